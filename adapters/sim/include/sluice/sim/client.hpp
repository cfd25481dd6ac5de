#pragma once
/// \file
/// A small client of the compute driver, for examples and tests: opens the device, creates AQL
/// queues, submits kernels and waits for them, as a GPU runtime does in an ordinary process. It
/// knows the driver's ABI and nothing of sluice's scheduler. A "kernel" is a duration; for anything
/// that computes, use ROCm.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::sim {

struct client_options {
  /// Device node. Empty: $SLUICE_KFD_DEVICE, or else /dev/kfd.
  std::string device;
  /// Root of the driver's sysfs tree. Empty: $SLUICE_KFD_SYSFS, or else /sys/class/kfd/kfd.
  std::string sysfs;
  /// KFD's gpu_id; 0: the first GPU of the topology.
  std::uint32_t gpu = 0;
  /// Whether to enable the runtime's debug support, as ROCm does. Programs that use the driver by
  /// themselves do not, and then no debug session can suspend their queues.
  bool runtime = true;
};

struct queue_options {
  std::uint32_t packets = 1024;  ///< Ring size: a power of two, 64 to 2^20.
  std::uint32_t priority = 7;    ///< KFD's, 0 to 15; 7 is what runtimes call normal.
  std::uint32_t gpu = 0;         ///< KFD's gpu_id; 0: the client's.
  bool doorbell = true;          ///< False: leave it to the device to notice new packets.
};

struct kernel {
  duration length{};        ///< How long it runs once it has its waves. At least 1 ns.
  std::uint32_t waves = 1;  ///< Wave slots it occupies; gpu_client::wave_slots() fills the GPU.
  /// Whether its end wakes wait(). Of kernels that are only waited for together, let only the last
  /// one: each wake-up costs. A wait() for another one may last until the next that notifies.
  bool notify = true;
};

class gpu_queue;

/// The process's use of the node's GPUs, of one in the first place. The driver knows one such use
/// per process: a second open() while one lives fails with EBUSY.
///
/// Threading: create_queue() from any thread; construction and destruction from one.
/// Lifetime:  outlives its queues. Destruction tells the driver that the runtime is gone; while a
///            debugger is attached, that waits for the debugger's answer, as open() does.
/// Errors:    the driver's errno values; errc::bad_config for options out of range. Calls that a
///            signal interrupts are taken up again.
class gpu_client {
 public:
  [[nodiscard]] static result<std::unique_ptr<gpu_client>> open(client_options options);
  gpu_client(const gpu_client&) = delete;
  gpu_client& operator=(const gpu_client&) = delete;
  ~gpu_client();

  std::uint32_t gpu() const noexcept;         ///< KFD's gpu_id.
  std::vector<std::uint32_t> gpus() const;    ///< All of the node that may be used, as numbered.
  std::uint32_t wave_slots() const noexcept;  ///< Waves that fit on the GPU at once.
  int fd() const noexcept;                    ///< The open device, for calls of the caller's own.

  [[nodiscard]] result<std::unique_ptr<gpu_queue>> create_queue(queue_options options);

 private:
  friend class gpu_queue;
  struct impl;
  explicit gpu_client(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

/// One hardware queue. Kernels run in the order of submission, one at a time; an index counts them
/// from 0 and is never reused.
///
/// Threading: submit() and ring() from one thread at a time; wait() from one thread at a time,
/// which
///            may be another; the queries from any. destroy() after all of these.
/// Errors:    as gpu_client's.
class gpu_queue {
 public:
  gpu_queue(const gpu_queue&) = delete;
  gpu_queue& operator=(const gpu_queue&) = delete;
  /// Destroys the queue; a failure goes unseen.
  ~gpu_queue();

  /// Writes a packet; the device need not look at it before ring(). No system call, no allocation.
  /// \return the kernel's index; errc::full while the ring holds `packets` unfinished kernels.
  [[nodiscard]] result<std::uint64_t> submit(const kernel& work) noexcept;
  /// Tells the device that packets were submitted. One system call with a doorbell, else none.
  void ring() noexcept;

  /// Blocks in the driver until kernel `index` has finished.
  /// \param timeout resolution 1 ms, rounded up. On expiry: ETIMEDOUT.
  /// Errors: EINVAL for an index that was not submitted; errc::lost if a GPU of the node was reset
  /// after the client was opened, or had a page fault of this process. After a reset, no queue of
  /// this process runs again, on any GPU, not even a new one; after a page fault, none on that GPU.
  /// The process must end, as ROCm's runtime ends it.
  [[nodiscard]] result<void> wait(std::uint64_t index, duration timeout);

  struct done {
    time_point start{};  ///< The device's stamps.
    time_point end{};
    std::int64_t value = 0;  ///< Of the completion signal: 0 after exactly one run.
  };
  bool finished(std::uint64_t index) const noexcept;
  /// Of a finished kernel, until `packets` later submissions.
  done completion(std::uint64_t index) const noexcept;

  std::uint64_t submitted() const noexcept;
  std::uint64_t completed() const noexcept;  ///< Every index below has finished.
  bool has_doorbell() const noexcept;        ///< False also when the device refused one.
  std::uint32_t id() const noexcept;         ///< The driver's queue id.
  std::uint64_t ring_base() const noexcept;

  /// Gives the queue back to the driver; kernels that have not finished never will. Blocks while a
  /// debugger keeps the queue suspended. Idempotent.
  [[nodiscard]] result<void> destroy();

 private:
  friend class gpu_client;
  struct impl;
  explicit gpu_queue(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::sim
