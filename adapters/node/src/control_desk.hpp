#pragma once
/// \file
/// Answers what people ask a running node: how it is, why it did what it did; and does what those
/// who may ask for. One line of JSON each way; adapters/cli/README.md lists the fields.

#include "history.hpp"
#include "observer.hpp"

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "sluice/node.hpp"
#include "sluice/node_files.hpp"
#include "sluice/node_view.hpp"
#include "sluice/picture.hpp"
#include "sluice/result.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// Who asks, as the kernel says.
struct asker {
  pid_t pid = 0;
  uid_t user = 0;
};

struct node_facts {
  node_mode mode{};
  std::string_view driver{};  ///< Its name, which outlives the node.
  bool paused = false;
  bool simulated = false;    ///< The device is.
  bool driver_gone = false;  ///< As discovery::driver_gone().
  /// It needs sluice-gangs for gangs on several nodes, and none is connected.
  bool without_gangs = false;
  std::string policy{};      ///< As a command line would name it; empty where that is not known.
  std::string policy_by{};   ///< Who asked for it, where it is not the configuration's.
  std::string role_store{};  ///< The file that it reads; empty: none.
};

/// What the desk does to the node.
///
/// Threading: the observer's thread.
class steered_node : public observed_node {
 public:
  virtual node_facts facts() const = 0;
  /// Why who has which role. nullptr: this program does not own the node.
  virtual std::shared_ptr<const roles::role_reasons> roles() const = 0;
  /// Another policy, until the next node::change() or the node's end.
  /// \param text    NAME[:KEY=VALUE,...]
  /// \param who     for the log.
  /// \param message on failure, one sentence.
  /// \return how it is named in full.
  [[nodiscard]] virtual result<std::string> use_policy(const std::string& text,
                                                       const std::string& who,
                                                       std::string& message) = 0;

 protected:
  ~steered_node() = default;
};

struct desk_options {
  node_files files{};
  std::string version{};
  /// Beside root, who may change something.
  uid_t owner = 0;
  /// For what GPUs' memory holds. Empty: nobody looks.
  std::function<result<node_view>()> look_at_memory = nullptr;
  /// Hears of each change who asked for it.
  std::function<void(std::string_view)> tell = nullptr;
};

/// Threading: the observer's thread. Lifetime: the node and the history outlive it.
class control_desk {
 public:
  static constexpr int protocol = 1;
  static constexpr std::size_t longest_request = 4096;

  control_desk(desk_options options, steered_node& node, const history& past);

  /// \param line a request, whatever is in it.
  /// \return one line, with its end.
  [[nodiscard]] std::string answer(std::string_view line, const asker& who);

 private:
  struct failure {
    std::string_view code;
    std::string sentence;
  };
  /// Who asks often gets the same for some time, a short one where the journal has told of news,
  /// but no shorter than a few looks take: each is a turn of the scheduler, which copies
  /// everything.
  const picture* seen(failure& why);
  const node_view* memory();

  boost::json::object do_request(const boost::json::object& request, const asker& who,
                                 failure& why);
  /// The whole line, the same for as long as the picture. \return empty after a failure.
  const std::string& status(failure& why);
  boost::json::object explain(const boost::json::object& request, failure& why);
  boost::json::object policy(const boost::json::object& request, const asker& who, failure& why);
  boost::json::object pause(const boost::json::object& request, const asker& who, failure& why);
  boost::json::object unpause(const asker& who, failure& why);
  bool may_change(const asker& who, failure& why) const;
  boost::json::object node_words() const;

  const desk_options options_;
  steered_node& node_;
  const history& past_;
  const time_point started_ = clock::now();
  std::optional<picture> picture_;
  std::string status_;  // of picture_; empty: nobody asked for it yet
  time_point pictured_{};
  duration look_took_{};
  std::uint64_t pictured_after_ = 0;  // entries of the journal
  std::optional<node_view> memory_;
  time_point memory_until_{};
};

}  // namespace sluice
