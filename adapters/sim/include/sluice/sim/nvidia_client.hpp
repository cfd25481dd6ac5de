#pragma once
/// \file
/// A small client of NVIDIA's driver, for examples and tests: makes the objects that a CUDA program
/// has, under the handles that libcuda gives them, and runs kernels on a simulated device, where a
/// "kernel" is a duration. It knows nothing of sluice's scheduler. For AMD's driver: client.hpp.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/result.hpp"
#include "sluice/sim/client.hpp"
#include "sluice/time.hpp"

namespace sluice::sim {

/// Statuses of NVIDIA's driver as errors: the value is the status (0x57, ...).
const boost::system::error_category& nvidia_category() noexcept;

struct nvidia_client_options {
  /// The node nvidiactl, with those of the GPUs beside it. Empty: $SLUICE_NVIDIA_DEVICE, or else
  /// /dev/nvidiactl.
  std::string device;
  /// Indices of the GPUs, one at least: a context is made on each, in this order.
  std::vector<std::uint32_t> gpus{0};
  /// Channels of a context that compute, which libcuda takes from $CUDA_DEVICE_MAX_CONNECTIONS: 1
  /// to 32.
  std::uint32_t channels = 8;
  /// Hides the words that say which kernel runs (nvidia_abi.hpp): they lie in private memory
  /// instead of nvidiactl's.
  bool states_elsewhere = false;
};

/// The contexts of a program, one on each GPU: a device, a subdevice, a channel group of channels
/// that compute and copy, and 3 groups of 4 channels that copy. The handles of all of them count
/// from 0x5c000001 in the order of creation, and stand in this process's heap beside the client's,
/// as libcuda's do.
///
/// Threading: every member from one thread at a time.
/// Lifetime:  outlives its queues. Destruction closes the device, which frees all.
/// Errors:    as gpu_client's; nvidia_category() for what the driver refuses. NVIDIA's own driver
///            refuses create_queue().
class nvidia_client final : public gpu_client {
 public:
  [[nodiscard]] static result<std::unique_ptr<nvidia_client>> open(nvidia_client_options options);
  ~nvidia_client() override;

  std::uint32_t gpu() const noexcept override;  ///< The first one's.
  std::vector<std::uint32_t> gpus() const override;
  std::uint32_t wave_slots() const noexcept override;  ///< Of the first one.
  int fd() const noexcept override;
  /// On a channel of that GPU that computes and has no queue yet.
  [[nodiscard]] result<std::unique_ptr<gpu_queue>> create_queue(queue_options options) override;

  struct channel_group {
    std::uint32_t handle = 0;
    std::vector<std::uint32_t> channels{};
  };
  struct context {
    std::uint32_t gpu = 0;  ///< The driver's gpu_id.
    std::uint32_t device = 0;
    std::uint32_t subdevice = 0;
    std::vector<channel_group> groups{};  ///< The one that computes first.
  };
  std::uint32_t handle() const noexcept;  ///< The client's.
  const std::vector<context>& contexts() const noexcept;

  /// A control of one of the client's objects.
  template <class Params>
  [[nodiscard]] result<void> control(std::uint32_t object, std::uint32_t command, Params& params) {
    return control(object, command, &params, sizeof params);
  }

  /// Allocates memory of the first GPU until the client goes. \return its handle.
  [[nodiscard]] result<std::uint32_t> allocate(std::uint64_t bytes);

 private:
  struct impl;
  explicit nvidia_client(std::unique_ptr<impl> state);
  result<void> control(std::uint32_t object, std::uint32_t command, void* params, std::size_t size);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::sim
