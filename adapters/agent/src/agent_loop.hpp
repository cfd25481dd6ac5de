#pragma once
/// \file
/// What the agent does while it lives: it hands its host's commands to the acting side and the
/// reports back, and resumes everything and ends as soon as its host seems gone.

#include "cpu_latency.hpp"
#include "hold_record.hpp"
#include "host_roles.hpp"
#include "lease.hpp"
#include "protocol.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "sluice/acting.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// Threading: one thread, but for take_reports().
/// Lifetime:  the page, the processes and the record outlive it; what the host passed is open.
class agent_loop {
 public:
  struct descriptors {
    unique_fd signals{};   ///< A signalfd of those that end it, and of SIGCHLD where it counts.
    unique_fd events{};    ///< An epoll set.
    unique_fd timer{};     ///< A timerfd of the monotonic clock.
    unique_fd guardian{};  ///< Its pidfd; none: there is no guardian.
    std::optional<cpu_latency> latency{};  ///< Limited while there is a target.
  };

  /// \param roles follows what the host asks for. \param holds null: there is no guardian.
  agent_loop(shared_page& page, std::unique_ptr<acting_side> acting, duration length,
             descriptors own, host_roles& roles, hold_record* holds = nullptr);

  [[nodiscard]] result<void> prepare() const;
  /// \return why it ended.
  std::string_view run();
  /// For acting_host: by any thread, while the loop sleeps. Else, and where the loop has more to do
  /// about it, the loop is told.
  bool take_reports();
  /// \return false when a call is stuck: then the end of the process must do.
  bool close();
  /// A host that is gone or hangs reads no farewell: what became of it goes where operators read.
  void say_if_the_host_failed(std::string_view why) const;

 private:
  /// Takes what is there, at most one ring's worth, so that no host keeps the loop from its checks.
  /// \return false when the ring is broken.
  bool take_commands(bool& again);
  /// At the latest. A timer that is early enough is left alone: most deadlines only move out.
  void wake_by(time_point when, time_point now);
  void attach();
  void submit();
  void reserve();
  void set_quantum();
  /// \return false when the ring is broken. `again` is set when the host must take some before the
  /// rest fits, `pushed` when there is something to ring for.
  bool pass_reports_on(bool& again, bool& pushed);
  bool told_to_end();

  /// Whoever has it may use what follows: the loop but for while it sleeps, or a thread of the
  /// acting side's. None of those waits for it. The loop may, for as long as one hands a report
  /// over: the one lock on the way from an event to its batch.
  std::mutex mutex_;
  std::unique_lock<std::mutex> turn_{mutex_};
  shared_page& page_;
  command_reader commands_;
  report_writer reports_;
  std::unique_ptr<acting_side> acting_;
  const duration heartbeat_interval_;
  lease lease_;
  lease guardians_life_;
  host_roles& roles_;
  hold_record* const holds_;
  const unique_fd guardian_;
  std::optional<cpu_latency> latency_;
  unique_fd signals_;
  unique_fd events_;
  unique_fd timer_;
  time_point timer_at_{};
  time_point next_check_{};
  command command_;
  report report_;
  bool held_ = false;  // report_ waits for room
  std::deque<report> own_reports_;
};

}  // namespace sluice::agent
