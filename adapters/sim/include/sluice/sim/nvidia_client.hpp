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
  std::uint32_t gpu = 0;  ///< Index of the GPU.
};

class nvidia_queue;

/// One context of a program on one GPU: a device, a subdevice, a channel group of 8 channels that
/// compute and copy, and 3 groups of 4 channels that copy. Their handles count from 0x5c000001 in
/// the order of creation, and stand in this process's heap beside the client's, as libcuda's do.
///
/// Threading: every member from one thread at a time.
/// Lifetime:  outlives its queues. Destruction closes the device, which frees all.
/// Errors:    errno values, nvidia_category() for what the driver refuses, errc::bad_config for
///            options out of range. A driver that is no simulated one makes the objects, but
///            create_queue() fails.
class nvidia_client {
 public:
  [[nodiscard]] static result<std::unique_ptr<nvidia_client>> open(nvidia_client_options options);
  nvidia_client(const nvidia_client&) = delete;
  nvidia_client& operator=(const nvidia_client&) = delete;
  ~nvidia_client();

  struct channel_group {
    std::uint32_t handle = 0;
    std::vector<std::uint32_t> channels;
  };
  int fd() const noexcept;                ///< Of nvidiactl, for calls of the caller's own.
  std::uint32_t handle() const noexcept;  ///< The client's.
  std::uint32_t device() const noexcept;
  std::uint32_t subdevice() const noexcept;
  std::uint32_t gpu_id() const noexcept;                      ///< As GPU_GET_ID says.
  const std::vector<channel_group>& groups() const noexcept;  ///< The one that computes first.

  /// A control of one of the client's objects.
  template <class Params>
  [[nodiscard]] result<void> control(std::uint32_t object, std::uint32_t command, Params& params) {
    return control(object, command, &params, sizeof params);
  }

  /// Allocates memory of the GPU until the client goes. \return its handle.
  [[nodiscard]] result<std::uint32_t> allocate(std::uint64_t bytes);

  /// A queue on the next channel that computes. errc::full: all have one.
  /// \param packets how many kernels may be unfinished: 64 to 2^20.
  [[nodiscard]] result<std::unique_ptr<nvidia_queue>> create_queue(std::uint32_t packets = 1024);

 private:
  friend class nvidia_queue;
  struct impl;
  explicit nvidia_client(std::unique_ptr<impl> state);
  result<void> control(std::uint32_t object, std::uint32_t command, void* params, std::size_t size);
  std::unique_ptr<impl> impl_;
};

/// One channel with kernels, with gpu_queue's members. Kernels run in the order of submission, one
/// at a time; an index counts them from 0.
///
/// Threading: submit() and ring() from one thread at a time; wait() from one thread at a time,
/// which
///            may be another; the queries from any.
class nvidia_queue {
 public:
  nvidia_queue(const nvidia_queue&) = delete;
  nvidia_queue& operator=(const nvidia_queue&) = delete;
  ~nvidia_queue();

  /// Collects a kernel for ring(). No system call, no allocation. `notify` has no effect: a waiter
  /// is woken when its kernel has ended.
  /// \return the kernel's index; errc::full while `packets` are unfinished.
  [[nodiscard]] result<std::uint64_t> submit(const kernel& work) noexcept;
  /// Hands over what was submitted. \return what the driver refused it with.
  result<void> ring() noexcept;

  /// Blocks in the driver until kernel `index` has finished. On expiry: ETIMEDOUT.
  /// Errors: EINVAL for an index that was not handed over.
  [[nodiscard]] result<void> wait(std::uint64_t index, duration timeout);

  bool finished(std::uint64_t index) const noexcept;
  /// Of a finished kernel, until `packets` later submissions.
  gpu_queue::done completion(std::uint64_t index) const noexcept;
  std::uint64_t submitted() const noexcept;
  std::uint64_t started() const noexcept;     ///< Every index below has begun.
  std::uint64_t completed() const noexcept;   ///< Every index below has finished.
  std::uint32_t channel() const noexcept;     ///< Its handle.
  std::uint32_t wave_slots() const noexcept;  ///< Waves that fit on the GPU at once.

 private:
  friend class nvidia_client;
  struct impl;
  explicit nvidia_queue(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::sim
