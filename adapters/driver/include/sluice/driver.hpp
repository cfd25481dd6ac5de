#pragma once
/// \file
/// A driver, as everything but the agent sees it: how its GPUs and the processes that use them are
/// found, how they are shown to people, and what an agent has to be told to act on it. The
/// agent's side is sluice/agent/acting_driver.hpp. README.md beside this folder says how to add
/// one.

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/check.hpp"
#include "sluice/node_view.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/queue_holder.hpp"
#include "sluice/result.hpp"
#include "sluice/survey.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A value of a configuration.
using setting = std::variant<bool, std::string>;
/// For driver::set(). \return "must be true or false", "must be a string in quotes"; empty: taken.
[[nodiscard]] std::string take_setting(const setting& value, bool& into);
[[nodiscard]] std::string take_setting(const setting& value, std::string& into);

/// Threading: any thread, but set(): before all else. Lifetime: what it makes does not need it any
/// more.
class driver {
 public:
  driver() = default;
  virtual ~driver() = default;
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  /// In configurations and messages; lower-case letters, digits and underscores.
  virtual std::string_view name() const noexcept = 0;
  /// Why this machine does not have it: one sentence that says what to do. Empty: it has it.
  virtual std::string why_absent() const = 0;
  bool present() const { return why_absent().empty(); }
  /// Takes a setting: of a configuration's table that has the driver's name. What acting() shows of
  /// it, a reload compares, to tell that it needs a restart.
  /// \return what is wrong, to follow the key: "must be true or false". Empty: it is taken.
  [[nodiscard]] virtual std::string set(std::string_view key, const setting& value);
  /// Whether its device is a simulated one.
  virtual bool simulated() const { return false; }
  /// Names the device where it is not the machine's own, so that what is written down of it is
  /// kept apart. Empty: the machine's own.
  virtual std::string device_key() const { return {}; }

  /// What make_discovery() finds its GPUs, processes and queues by.
  /// \param say hears what goes wrong, on any thread.
  virtual std::unique_ptr<survey> make_survey(message_sink say) const = 0;
  /// Some system calls for each process and queue. \return the system's error when the driver
  /// cannot be looked at at all.
  virtual result<node_view> look() const = 0;
  /// The same with what the driver may be slow to show, such as priorities of queues.
  virtual result<node_view> look_closely() const { return look(); }
  /// For people, where look() failed: one sentence that says what to do.
  virtual std::string why_no_look(const error_code& error) const;
  /// For people, where look() does not list the process: one sentence.
  virtual std::string why_not_listed(pid_t pid) const;
  /// What it needs to preempt, in the order to show it in; `sluice doctor` checks what every driver
  /// needs. Changes nothing and traces no process.
  virtual std::vector<check> examine(const machine& here) const {
    (void)here;
    return {};
  }
  /// What an agent is told to act on it.
  virtual acting_choice acting() const = 0;
  /// For `sluice suspend`: what holds processes in the calling process, where the kernel resumes
  /// everything when that ends. \return null with a failure where it cannot be had; null without
  /// one where the driver acts in an agent alone, which the command then starts.
  [[nodiscard]] virtual std::unique_ptr<queue_holder> open_holder(hold_failure& why) const {
    (void)why;
    return nullptr;
  }
  /// Whether survey::watch_work() sees the work of online programs without a client. Else only an
  /// agent does, or no process.
  virtual bool survey_sees_work() const noexcept { return false; }
};

}  // namespace sluice
#pragma GCC visibility pop
