#pragma once
/// \file
/// Hears of the resets of GPUs, and keeps what befell them until somebody asks.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/kfd/device.hpp"
#include "sluice/kfd/queue_holder.hpp"
#include "sluice/kfd/smi_events.hpp"

namespace sluice::kfd {

/// Threading: one thread at a time.
/// Lifetime:  the device outlives it.
class failure_listener {
 public:
  explicit failure_listener(const device& node) noexcept : node_(node) {}

  /// From now on. Where the driver gives no events, nothing is heard.
  void listen(gpu_id gpu);
  /// \return the GPU of each reset since the last call.
  std::vector<gpu_id> hear();
  void note(gpu_failure what);
  /// How often the GPU failed.
  unsigned times(gpu_id gpu) { return failed_[gpu]; }
  std::vector<gpu_failure> take() { return std::exchange(failures_, {}); }

 private:
  struct gpu_ear {
    std::unique_ptr<smi_stream> lines;  // null: the driver gives none
    bool in_reset = false;
  };

  const device& node_;
  std::map<gpu_id, gpu_ear> ears_;
  std::map<gpu_id, unsigned> failed_;
  std::vector<gpu_failure> failures_;  // not taken yet
};

}  // namespace sluice::kfd
