#pragma once
/// \file
/// The victim's work on the simulated device, where a kernel is a duration.

#include "victim.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/sim/client.hpp"

namespace sluice::accept {

class sim_work : public gpu_work {
 public:
  explicit sim_work(unsigned queues,
                    result<std::unique_ptr<sim::gpu_client>> client = sim::gpu_client::open({})) {
    if (!client) cannot("cannot open the simulated device: " + client.error().message());
    client_ = std::move(*client);
    for (unsigned i = 0; i < queues; ++i) {
      auto queue = client_->create_queue({.packets = 64});
      if (!queue) cannot("cannot create a queue: " + queue.error().message());
      queues_.push_back({std::move(*queue), 0});
    }
  }

  void submit(unsigned queue, std::chrono::nanoseconds length, unsigned percent) override {
    const auto share = client_->wave_slots() * percent / 100 / queues_.size();
    const auto waves = static_cast<std::uint32_t>(std::max<std::size_t>(share, 1));
    const auto index = queues_[queue].gpu->submit({.length = length, .waves = waves});
    if (!index) cannot("cannot submit a kernel: " + index.error().message());
    queues_[queue].last = *index;
    queues_[queue].gpu->ring();
  }
  void wait(unsigned queue) override {
    using std::chrono::milliseconds;
    for (auto& own = queues_[queue]; !own.gpu->finished(own.last);) {
      const auto done = own.gpu->wait(own.last, milliseconds{100});
      if (!done && done.error() != boost::system::errc::timed_out)
        cannot("cannot wait for a kernel: " + done.error().message());
    }
  }
  void close() override {
    for (auto& each : queues_)
      if (const auto gone = each.gpu->destroy(); !gone)
        cannot("cannot destroy a queue: " + gone.error().message());
    queues_.clear();
    client_.reset();
  }
  // No code runs on this device. What is real is how the process ends: as ROCm's runtime ends it.
  void fail_assertion() override { std::abort(); }
  void fault() override { std::abort(); }

 private:
  struct owned {
    std::unique_ptr<sim::gpu_queue> gpu;
    std::uint64_t last = 0;
  };
  std::unique_ptr<sim::gpu_client> client_;
  std::vector<owned> queues_;
};

}  // namespace sluice::accept
