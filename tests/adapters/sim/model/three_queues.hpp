#pragma once
/// \file
/// What most tests of suspend and resume begin with, in either generation of the driver.

#include "driver_bench.hpp"

#include <utility>

#include <gtest/gtest.h>

namespace sluice::sim::test {

/// A target with queue 0 running, 1 new, 2 suspended.
class three_queues : public ::testing::Test {
 protected:
  explicit three_queues(profile node = default_profile()) : b{std::move(node)} {
    for (const pid_t pid : {app, scheduler, other}) b.open(pid);
    EXPECT_EQ(b.runtime_enable(app), 0);
    b.machine.trace(app, scheduler);
    EXPECT_EQ(b.enable(), 0);
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(b.create_queue(app, i), static_cast<int>(i));
    b.snapshot(new_bit);
    EXPECT_EQ(b.destroy_queue(app, 1), 0);
    EXPECT_EQ(b.create_queue(app, 1), 1);
    EXPECT_EQ(b.suspend({2}), (driver_bench::ids_result{1, {2}}));
    cycles_before_ = b.gpu_stat("cycles");
  }
  /// Runlist cycles, or MES commands, since the last call.
  std::int64_t cycles() {
    const auto now = b.gpu_stat("cycles");
    return now - std::exchange(cycles_before_, now);
  }
  std::uint32_t gpu_id() const { return b.profile_.gpus[0].gpu_id; }
  std::int64_t completed(pid_t pid = app) const { return b.process_stat(pid, "kernels_completed"); }
  std::int64_t suspended() const { return b.process_stat(app, "suspended_queues"); }
  driver_bench b;

 private:
  std::int64_t cycles_before_ = 0;
};

}  // namespace sluice::sim::test
