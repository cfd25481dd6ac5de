#pragma once
/// \file
/// A small client of a GPU's driver, for examples and tests: opens the device, creates queues,
/// submits kernels and waits for them, as a GPU runtime does in an ordinary process. It knows the
/// driver's ABI and nothing of sluice's scheduler. A "kernel" is a duration; for anything that
/// computes, use ROCm or CUDA. NVIDIA's driver: nvidia_client.hpp has more.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::sim {

struct client_options {
  /// Device node of AMD's driver, or of NVIDIA's if it is called nvidiactl. Empty: the first that
  /// exists of $SLUICE_KFD_DEVICE (else /dev/kfd) and $SLUICE_NVIDIA_DEVICE (else /dev/nvidiactl).
  std::string device;
  /// AMD: root of the driver's sysfs tree. Empty: $SLUICE_KFD_SYSFS, or else /sys/class/kfd/kfd.
  std::string sysfs;
  /// The driver's gpu_id; 0: the first GPU.
  std::uint32_t gpu = 0;
  /// AMD: whether to enable the runtime's debug support, as ROCm does. Programs that use the driver
  /// by themselves do not, and then no debug session can suspend their queues.
  bool runtime = true;
};

struct queue_options {
  std::uint32_t packets = 1024;  ///< Ring size: a power of two, 64 to 2^20.
  std::uint32_t priority = 7;    ///< AMD: 0 to 15; 7 is what runtimes call normal.
  std::uint32_t gpu = 0;         ///< The driver's gpu_id; 0: the client's.
  bool doorbell = true;          ///< AMD, false: leave it to the device to notice new packets.
};

struct kernel {
  duration length{};        ///< How long it runs once it has its waves. At least 1 ns.
  std::uint32_t waves = 1;  ///< Wave slots it occupies; gpu_client::wave_slots() fills the GPU.
  /// Whether its end wakes wait(). Of kernels that are only waited for together, let only the last
  /// one: each wake-up costs. A wait() for another one may last until the next that notifies.
  bool notify = true;
};

class gpu_queue;

/// The process's use of the node's GPUs, of one in the first place. AMD's driver knows one such use
/// per process: a second open() while one lives fails with EBUSY.
///
/// Threading: create_queue() from any thread (NVIDIA: from one at a time); construction and
///            destruction from one.
/// Lifetime:  outlives its queues. AMD: destruction tells the driver that the runtime is gone;
/// while
///            a debugger is attached, that waits for the debugger's answer, as open() does.
/// Errors:    errno values, and of NVIDIA's driver its statuses (nvidia_client.hpp);
///            errc::bad_config for options out of range. Calls that a signal interrupts are taken
///            up again.
class gpu_client {
 public:
  [[nodiscard]] static result<std::unique_ptr<gpu_client>> open(client_options options);
  gpu_client(const gpu_client&) = delete;
  gpu_client& operator=(const gpu_client&) = delete;
  virtual ~gpu_client() = default;

  virtual std::uint32_t gpu() const noexcept = 0;  ///< The driver's gpu_id.
  /// All that queues may be created on, as the driver numbers them.
  virtual std::vector<std::uint32_t> gpus() const = 0;
  virtual std::uint32_t wave_slots() const noexcept = 0;  ///< Waves that fit on the GPU at once.
  /// The open device, for calls of the caller's own.
  virtual int fd() const noexcept = 0;

  /// errc::full: NVIDIA's client has 8 channels for queues, and all are in use.
  [[nodiscard]] virtual result<std::unique_ptr<gpu_queue>> create_queue(queue_options options) = 0;

 protected:
  gpu_client() = default;
};

/// One hardware queue. Kernels run in the order of submission, one at a time; an index counts them
/// from 0 and is never reused.
///
/// Threading: submit() and ring() from one thread at a time; wait() from one thread at a time,
///            which may be another; the queries from any. destroy() after all of these.
/// Errors:    as gpu_client's.
class gpu_queue {
 public:
  gpu_queue(const gpu_queue&) = delete;
  gpu_queue& operator=(const gpu_queue&) = delete;
  /// Destroys the queue; a failure goes unseen.
  virtual ~gpu_queue() = default;

  /// Writes a packet; the device need not look at it before ring(). No system call, no allocation.
  /// \return the kernel's index; errc::full while the ring holds `packets` unfinished kernels.
  [[nodiscard]] virtual result<std::uint64_t> submit(const kernel& work) noexcept = 0;
  /// Tells the device that packets were submitted. One system call, or none where the device looks
  /// by itself.
  virtual void ring() noexcept = 0;

  /// Blocks in the driver until kernel `index` has finished.
  /// \param timeout AMD: resolution 1 ms, rounded up. On expiry: ETIMEDOUT.
  /// Errors: EINVAL for an index that was not submitted (NVIDIA: or not announced by ring()). AMD:
  /// errc::lost if a GPU of the node was reset after the client was opened, or had a page fault of
  /// this process. After a reset, no queue of this process runs again, on any GPU, not even a new
  /// one; after a page fault, none on that GPU. The process must end, as ROCm's runtime ends it.
  [[nodiscard]] virtual result<void> wait(std::uint64_t index, duration timeout) = 0;

  struct done {
    time_point start{};  ///< The device's stamps.
    time_point end{};
    std::int64_t value = 0;  ///< Counts down from 1 with each run: 0 after exactly one.
  };
  virtual bool finished(std::uint64_t index) const noexcept = 0;
  /// Of a finished kernel, until `packets` later submissions.
  virtual done completion(std::uint64_t index) const noexcept = 0;

  virtual std::uint64_t submitted() const noexcept = 0;
  virtual std::uint64_t completed() const noexcept = 0;  ///< Every index below has finished.
  /// Whether ring() is a system call. False also when AMD's driver refused a doorbell.
  virtual bool has_doorbell() const noexcept = 0;
  virtual std::uint32_t id()
      const noexcept = 0;  ///< The driver's queue id, or the channel's handle.
  /// Address of the memory that the device reads (AMD: packets) or writes (NVIDIA: records).
  virtual std::uint64_t ring_base() const noexcept = 0;

  /// Gives the queue back to the driver; kernels that have not finished never will. AMD: blocks
  /// while a debugger keeps the queue suspended. Idempotent.
  [[nodiscard]] virtual result<void> destroy() = 0;

 protected:
  gpu_queue() = default;
};

}  // namespace sluice::sim
