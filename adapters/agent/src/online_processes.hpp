#pragma once
/// \file
/// Which processes are online, which of them the agent is to follow (acting_side::follow()), and
/// what the agent was told.

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
    enum class kind : std::uint8_t { follow, online, not_online };
    kind what{};
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    duration every{};  ///< follow
  };

  /// As backend::observed(). A process is online while one of its sources reports it as online, or
  /// while it marks its requests.
  void observe(unsigned source, const observation& seen);
  void pace(duration every) noexcept;
  /// As backend::marks_requests(). Reads /proc.
  void marks_requests(pid_t pid, bool so);
  void can_follow(bool can) noexcept;
  /// The agent is gone: its successor knows and follows none, and has to say what it can.
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
    bool marks = false;              ///< Its requests: it is not followed.
    bool told_online = false;        ///< As the agent was.
    duration told{};                 ///< The same. Zero: it does not follow.
    bool anew = false;               ///< What it saw is forgotten: it has to leave it first.
    bool is_online() const noexcept { return online_votes != 0 || marks; }
  };
  process* find(pid_t pid, std::uint64_t start_time) noexcept;
  /// find(), or a new one.
  process& at(pid_t pid, std::uint64_t start_time);
  void vote(process& which, std::uint32_t bit, bool online) noexcept;
  duration wanted(const process& which) const noexcept;

  std::vector<process> processes_;  ///< Online ones, and those that the agent takes for such.
  std::size_t followed_ = 0;
  duration every_{};
  bool can_follow_ = false;
  bool changed_ = false;  ///< Some order may be due.
  bool told_of_rest_ = false;
};

}  // namespace sluice::agent
