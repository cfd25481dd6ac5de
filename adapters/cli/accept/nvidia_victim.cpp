// sluice-nvidia-victim: the victim of `sluice accept` on NVIDIA GPUs. It loads libcuda at run time,
// so it needs no CUDA toolkit. On a simulated device it uses the simulator's client instead.

#include "cuda_work.hpp"
#include "sim_work.hpp"

#include <cstdlib>

#include "sluice/nvidia/roots.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace {

class simulated_work final : public sluice::accept::queue_work<sluice::sim::nvidia_queue> {
 public:
  explicit simulated_work(unsigned queues) {
    using sluice::accept::cannot;
    auto client = sluice::sim::nvidia_client::open({.device = {}, .gpu = 0, .channels = queues});
    if (!client) cannot("cannot open the simulated device: " + client.error().message());
    client_ = std::move(*client);
    for (unsigned i = 0; i < queues; ++i) {
      auto queue = client_->create_queue(64);
      if (!queue) cannot("cannot create a queue: " + queue.error().message());
      queues_.push_back({std::move(*queue), 0});
    }
  }

  void close() override {
    queues_.clear();
    client_.reset();
  }

 private:
  std::size_t wave_slots() const override { return queues_.front().gpu->wave_slots(); }

  std::unique_ptr<sluice::sim::nvidia_client> client_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace sluice::accept;
  const unsigned queues = queues_of(argc, argv);
  if (sluice::nvidia::is_simulated(sluice::nvidia::roots::from_environment())) {
    simulated_work work{queues};
    return victim{work, queues}.obey();
  }
  // libcuda makes so many channels, and shares them out among the streams; 8 unless told.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues).c_str(), 1);
  cuda_work work{queues};
  return victim{work, queues}.obey();
}
