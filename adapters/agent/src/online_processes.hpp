#pragma once
/// \file
/// Which online processes the agent is to follow (acting_side::follow()), and which it follows.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sluice/observation.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// Threading: reactor thread.
/// Cost:      an observation costs a search among the online processes and allocates for a new one.
///            send_news() costs a comparison when there are none.
class online_processes {
 public:
  struct order {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    duration every{};
  };

  /// As backend::observed(). A process is online while one of its sources reports it as online.
  void observe(unsigned source, const observation& seen);
  void pace(duration every) noexcept;
  /// As backend::marks_requests().
  void marks_requests(pid_t pid, bool so);
  void can_follow(bool can) noexcept;
  /// The agent is gone: it follows none, and its successor has to say what it can.
  void lost() noexcept;

  /// Sends what the agent has not been told, until `send` returns false; then the rest goes with
  /// the next call. \return whether some processes have to go without: true once.
  bool send_news(const std::function<bool(const order&)>& send);

 private:
  struct process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    std::uint32_t online_votes = 0;  ///< Bits of sources.
    std::uint32_t marked_by = 0;     ///< As online_votes: seen since the resync began.
    duration told{};                 ///< As the agent was. Zero: it does not follow.
  };
  process* find(const observation& of) noexcept;
  void vote(process& which, std::uint32_t bit, bool online) noexcept;
  duration wanted(const process& which) const noexcept;

  std::vector<process> processes_;  ///< Online ones, and those that the agent still follows.
  std::vector<pid_t> marking_;      ///< Those that mark their requests: they are not followed.
  std::size_t followed_ = 0;
  duration every_{};
  bool can_follow_ = false;
  bool changed_ = false;  ///< Some order may be due.
  bool told_of_rest_ = false;
};

}  // namespace sluice::agent
