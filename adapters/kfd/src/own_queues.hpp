#pragma once
/// \file
/// A process's debug session with itself, which needs no ptrace: it may suspend its own queues.

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/queue_holder.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

/// The session lasts from suspend() to resume(): while there is one, the end of the process's own
/// runtime waits for an answer from us.
///
/// Threading: one thread at a time, any thread. Lifetime: the device outlives it.
class own_queues {
 public:
  own_queues(const device& node, std::string sysfs) : node_(node), sysfs_(std::move(sysfs)) {}

  struct order {
    driver_queue_id queue{};
    gpu_id gpu{};   ///< Out.
    int error = 0;  ///< Out: 0, ENOENT, EBUSY, EIO.
  };
  struct refusal {
    hold_failure why{};
    bool whole = false;  ///< No order was tried.

    explicit operator bool() const noexcept { return static_cast<bool>(why); }
  };

  /// \param orders empty: becomes all compute queues.
  refusal suspend(std::vector<order>& orders);
  hold_failure resume();

 private:
  hold_failure enable();
  void answer_runtime() const;
  hold_failure end();
  /// end(), unless an earlier suspend() left queues suspended.
  void end_if_unused();

  const device& node_;
  const std::string sysfs_;
  unique_fd events_;
  unique_fd driver_end_;
  bool enabled_ = false;
  bool suspended_ = false;
};

}  // namespace sluice::kfd
