#pragma once
/// \file
/// The program sluice-gangs: speaks for a node's scheduler with the other nodes of its gangs,
/// through etcd.

#include "etcd.hpp"
#include "gang_packets.hpp"
#include "gang_room.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "sluice/time.hpp"

namespace sluice::fleet {

struct gangs_options {
  std::string socket{};  ///< The daemon's, node_files::gangs().
  std::string cluster{};
  std::string node{};  ///< This node's name: no other node of the cluster has it.
  std::vector<etcd_endpoint> endpoints{};
  std::string ca{}, certificate{}, key{};  ///< Files, PEM.
  /// After a node is cut off, everything runs within this time.
  duration lease = std::chrono::seconds(5);
};

/// Keys: /sluice/CLUSTER/gangs/USER/JOB/NODE, with one lease for each node; the values are those of
/// gang_room.
///
/// Threading: the loop's. Lifetime: outlives the loop's last handler.
/// Errors: logged to standard error when they begin; it goes on trying. Whatever fails, nothing is
///         said to the daemon, which then lets the gangs run.
class gangs {
 public:
  /// Throws std::runtime_error, with the file's name, if a file of TLS cannot be used.
  gangs(gangs_options options, boost::asio::io_context& loop);
  void start();
  /// Deletes this node's keys, so that the others need not wait, and then ends the loop.
  void stop();

 private:
  struct gang {
    std::uint64_t key = 0;
    std::uint64_t serial = 0;  ///< Of all that had the key, this one.
    std::string prefix{};      ///< .../JOB/
    gang_room room;
    std::shared_ptr<etcd_watch> watch{};
    bool reading = false;               ///< Its keys are being read.
    bool putting = false;               ///< Its key is on its way...
    std::string put{};                  ///< ...or was, with this state.
    std::optional<std::string> said{};  ///< Logged last: why it runs; empty: it can be held.
    gang_room::verdict told{};
  };

  void connect();
  void lose(std::string_view why);
  void receive();
  void take(const gang_packet& got);
  void send(const gang_packet& packet);
  void ask();
  void beat();
  void get_lease();
  void lost_lease();
  void keep_lease();
  void revoke(std::function<void()> then);
  void enter(gang& one);
  void watch(gang& one, std::int64_t revision);
  void put(gang& one);
  void judge(gang& one);
  void leave(gang& one);
  gang* find(std::uint64_t key) noexcept;
  gang* find(std::uint64_t key, std::uint64_t serial) noexcept;
  void etcd_failed(const etcd_connection& at, std::string_view what, boost::system::error_code why,
                   const boost::json::object& answer);
  void etcd_works(const etcd_connection& at, std::string_view what);
  void try_etcd();

  const gangs_options options_;
  const duration every_;  ///< Between beats.
  boost::asio::io_context& loop_;
  boost::asio::ssl::context tls_;
  std::size_t endpoint_ = 0;
  const etcd_access access_;
  etcd_caller puts_;  ///< What writes own keys, in order; no hold waits for other calls.
  etcd_caller calls_;
  boost::asio::posix::stream_descriptor daemon_;
  boost::asio::steady_timer timer_;
  std::map<std::uint64_t, std::unique_ptr<gang>> gangs_;
  std::string lease_{};  ///< Empty: none.
  bool granting_ = false;
  std::uint64_t serial_ = 0;
  std::uint64_t number_ = 0;  ///< Of the last `ask`, ...
  time_point asked_{};        ///< ...sent then.
  time_point alive_{};        ///< The last `ask` that was answered was sent then.
  bool keeping_ = false;      ///< The lease is being kept.
  bool trying_ = false;       ///< It is being asked whether etcd answers.
  bool answered_ = false;     ///< Said that etcd answers.
  std::set<std::string, std::less<>> failing_{};  ///< What fails, as was said.
  unsigned idle_ = 0;                             ///< Beats without a gang.
  std::string lost_{};    ///< Why the connection to the daemon ended, as was said.
  bool waiting_ = false;  ///< Said that no daemon is there.
  bool stopping_ = false;
};

}  // namespace sluice::fleet
