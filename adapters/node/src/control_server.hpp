#pragma once
/// \file
/// The control socket: lines in, lines out, whoever is at the other end.

#include "control_desk.hpp"
#include "foreign_fd.hpp"
#include "listener.hpp"
#include "observer.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/os/unique_fd.hpp"
#include "sluice/reactor.hpp"
#include "sluice/time.hpp"

namespace sluice {

struct control_server_options {
  std::string socket{};
  mode_t mode = 0660;
  std::optional<gid_t> group{};  ///< none: this process's.
  /// Further connections are told so and closed. Of them so many are kept for root and this user.
  std::size_t most_connections = 32;
  std::size_t kept_for_own = 8;
  std::size_t most_of_a_user = 8;  ///< But for root and this user.
  duration request_limit =
      std::chrono::seconds(5);  ///< From the first byte of a request to its end.
  duration answer_limit = std::chrono::seconds(5);  ///< Until an answer is taken.
  duration idle_limit = std::chrono::minutes(1);
  /// Takes lines for a log.
  std::function<void(std::string_view)> say = nullptr;
};

/// Serves while this program owns the node.
///
/// Threading: the observer's thread, which it never makes wait for a peer. What answers a request
///            may take its time: others wait.
class control_server final : public journal_reader {
 public:
  using answerer = std::function<std::string(std::string_view line, const asker& who)>;

  control_server(control_server_options options, reactor& loop, answerer answer);
  ~control_server() override;

  // journal_reader
  void hear(const journal_entry&) override {}
  void tick(time_point now) override;
  void owns(bool does) override;

  std::size_t connections() const noexcept { return connections_.size(); }

 private:
  struct connection {
    client::foreign_fd socket;
    asker who;
    std::string in{};
    std::string out{};
    std::size_t sent = 0;
    time_point
        since{};  ///< Of the request that is not whole, the answer that is not taken, silence.
    bool last = false;  ///< Closed once its answer is taken.
  };
  using handle = std::map<std::uint64_t, connection>::iterator;

  void open();
  void close();
  void look_after_file(time_point now);
  void accept_again();
  /// Accepts nobody for a moment.
  void pause();
  void accept_some();
  bool admit(const asker& who) const;
  void look_at_connections();
  bool receive_from(connection& from);
  /// \return false: it is to be closed.
  bool serve(handle which);
  bool flush(connection& to);
  bool listen_to(handle which);
  void drop(handle which);
  bool is_own(uid_t user) const noexcept;

  const control_server_options options_;
  reactor& loop_;
  const answerer answer_;
  client::listener listener_;
  unique_fd events_;  // an epoll of all connections, which is one descriptor for the loop
  watch_id accepting_{};
  watch_id looking_{};
  timer_id again_{};
  std::map<std::uint64_t, connection> connections_;
  std::uint64_t next_ = 1;
  bool wanted_ = false;  // this program owns the node
  bool opened_ = false;
  bool complained_ = false;
  bool failed_ = false;
  bool lost_ = false;  // Its file was removed or replaced, and it is not back.
  time_point next_look_{};
};

}  // namespace sluice
