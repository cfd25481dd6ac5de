#pragma once
/// \file
/// A driver, as everything but the agent sees it: how its GPUs and the processes that use them are
/// found, how they are shown to people, and what an agent has to be told to act on it. The
/// agent's side is sluice/agent/acting_driver.hpp. README.md beside this folder says how to add
/// one.

#include <memory>
#include <string>
#include <string_view>

#include "sluice/acting.hpp"
#include "sluice/node_view.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"
#include "sluice/survey.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Threading: any thread. Lifetime: what it makes does not need it any more.
class driver {
 public:
  driver() = default;
  virtual ~driver() = default;
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  /// In configurations and messages; lower-case letters, digits and underscores.
  virtual std::string_view name() const noexcept = 0;
  /// Whether this machine has it.
  virtual bool present() const = 0;
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
  /// What an agent is told to act on it.
  virtual acting_choice acting() const = 0;
};

}  // namespace sluice
#pragma GCC visibility pop
