#pragma once
/// \file
/// A backend whose driver takes no time: everything is answered by the next drain(). What a
/// scheduler costs on it is the scheduler's.

#include <cstdint>

#include "sluice/testing/scripted_backend.hpp"
#include "sluice/time.hpp"

namespace sluice::test {

inline const steady_time real_time;

/// Wakes a sleeping scheduler, and allocates nothing for a batch.
class instant_backend final : public testing::scripted_backend {
 public:
  instant_backend() : scripted_backend(real_time) {
    wake_by_descriptor();
    keep_batches(false);
  }
  void add(pid_t pid, gpu_id gpu, std::uint32_t queues) {
    for (std::uint32_t id = 0; id < queues; ++id) add_queue(pid, driver_queue_id{id}, gpu);
  }
};

}  // namespace sluice::test
