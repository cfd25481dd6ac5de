// sluice-nvidia-victim: the victim of `sluice accept` on NVIDIA GPUs. It loads libcuda at run time,
// so it needs no CUDA toolkit. On a simulated device it uses the simulator's client instead.

#include "cuda_work.hpp"
#include "sim_work.hpp"

#include <cstdlib>

#include "sluice/nvidia/roots.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace {

sluice::result<std::unique_ptr<sluice::sim::gpu_client>> open_simulated(unsigned queues) {
  auto client = sluice::sim::nvidia_client::open({.device = {}, .gpus = {0}, .channels = queues});
  if (!client) return client.error();
  return std::unique_ptr<sluice::sim::gpu_client>{std::move(*client)};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sluice::accept;
  const unsigned queues = queues_of(argc, argv);
  if (sluice::nvidia::is_simulated(sluice::nvidia::roots::from_environment())) {
    sim_work work{queues, open_simulated(queues)};
    return victim{work, queues}.obey();
  }
  // libcuda makes so many channels, and shares them out among the streams; 8 unless told.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues).c_str(), 1);
  cuda_work work{queues};
  return victim{work, queues}.obey();
}
