#pragma once
/// \file
/// An online process whose work a driver sees from outside.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/online_work.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

/// Threading: one thread, work_follower's: a look may take some hundred microseconds.
class followed_process {
 public:
  struct work {
    gpu_id gpu{};
    online_work state{};
    std::uint32_t came = 0;     ///< Submissions since the look before.
    std::uint32_t waiting = 0;  ///< Submissions that have not begun.
  };

  followed_process() = default;
  virtual ~followed_process() = default;
  followed_process(const followed_process&) = delete;
  followed_process& operator=(const followed_process&) = delete;

  /// Looks once. \param found the GPUs that the process uses; empty before.
  /// \return false when the process has ended.
  [[nodiscard]] virtual bool look(time_point now, std::vector<work>& found) = 0;
};

/// \return the system's error when the process cannot be looked at.
using follow_function =
    std::function<result<std::unique_ptr<followed_process>>(pid_t pid, std::uint64_t start_time)>;

}  // namespace sluice::agent
#pragma GCC visibility pop
