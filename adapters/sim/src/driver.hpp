#pragma once
/// \file
/// The simulated KFD: the driver's state machine for one node, above a GPU model and below whoever
/// carries its calls (fuse_fs.hpp, or a test). Runlist scheduling (CPSCH) as on gfx9.

#include "device_driver.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::sim {

class engine;
class os;
struct profile;

/// Commands that the driver has and the simulator has not answer EOPNOTSUPP, which the driver
/// itself gives for none of them.
///
/// The memory of clients is read at the end of an engine's step, and what was found counts as
/// submitted then; what the GPU writes goes out at the end of a step in one batch per process,
/// and only then waiters are woken. In virtual time, therefore, step from event to event
/// (run_until(*next())) while clients have work.
///
/// It has one node, which `open` counts as node 0.
///
/// Lifetime:  engine, os and profile outlive it.
class driver final : public device_driver {
 public:
  driver(engine& events, os& system, const profile& node);
  ~driver() override;

  /// What clients map of the device node lies at offsets from mmap_begin up to mmap_end. It is
  /// memory that begins as zeros and that the device neither reads nor writes: a store to a
  /// doorbell says nothing that the queue's write index does not.
  static constexpr std::uint64_t mmap_begin = std::uint64_t{1} << 60U;
  static constexpr std::uint64_t mmap_end = std::uint64_t{1} << 62U;

  int open(pid_t tid, std::uint32_t node, file_id& out) override;
  /// Drops nothing visible: the kfd_process lives as long as its mm.
  void release(file_id file) override;
  request_id ioctl(pid_t tid, file_id file, std::uint32_t command, std::span<const std::byte> in,
                   ioctl_done done) override;
  void interrupt(request_id request) override;
  void reap() override;

  /// Texts of debugfs, generated now.
  std::string mqds() const;
  std::string hqds() const;
  std::string rls() const;
  std::string mem_limit() const;
  /// A write to debugfs' hang_hws: a GPU's id. Its scheduler hangs, which ends in a reset, except
  /// on MES. `done` is called once, possibly before this returns, with 0 or -EINVAL.
  void hang_hws(std::string_view text, std::function<void(int)> done);

  /// The sysfs `proc` tree, read-only, as of now.
  struct sysfs_queue {
    std::uint32_t id;
    std::uint64_t serial;  ///< Never reused: tells a re-created id apart.
    std::uint64_t ring_size;
    int type;  ///< KFD's internal type number, as sysfs prints it.
    std::uint32_t gpu;
  };
  std::vector<pid_t> process_pids() const;
  bool has_process(pid_t pid) const;
  std::vector<sysfs_queue> queues_of(pid_t pid) const;  ///< By ascending id.
  std::vector<std::uint32_t> gpus_of(pid_t pid) const;  ///< GPUs bound to the process.
  /// What sysfs shows as vram_<gpu_id>: bytes of VRAM that the process has allocated there.
  std::uint64_t vram_of(pid_t pid, std::uint32_t gpu_id) const;
  /// What sysfs shows as pasid; 0 where PASIDs are per device.
  std::uint32_t pasid_of(pid_t pid) const;
  /// On one GPU, as debugfs shows it.
  std::uint32_t pasid_of(pid_t pid, std::uint32_t gpu_id) const;
  /// Compute units that the process occupies on that GPU: its running waves, packed as densely as
  /// they go (kfd_get_cu_occupancy: rounded up). Nothing where the GPU does not count them.
  std::optional<std::uint32_t> cu_occupancy(pid_t pid, std::uint32_t gpu_id) const;
  /// Called (on the engine's thread) when a queue of that process was made or destroyed.
  std::function<void(pid_t)> on_queue;

  // --- Descriptors of SMI events, and dma-bufs: a call has its caller open a file by number ---
  /// Whether thread `tid` may open that file: only the thread to which it was promised, once.
  bool file_promised(std::uint64_t number, pid_t tid) const;
  int file_open(std::uint64_t number, pid_t tid);  ///< 0 or -errno.
  void file_release(std::uint64_t number);
  std::uint64_t file_size(std::uint64_t number) const;  ///< Of a dma-buf, in bytes; else 0.
  int smi_write(std::uint64_t number, std::span<const std::byte> mask);  ///< 8 or -errno.
  /// As many queued bytes as there is room for. \return 0, or -EAGAIN when there are none.
  int smi_read(std::uint64_t number, std::size_t room, std::string& out);
  bool smi_readable(std::uint64_t number) const;
  /// Called (on the engine's thread) when something was queued for that client.
  std::function<void(std::uint64_t)> on_smi_event;

  int control(std::string_view line, std::string& problem) override;
  std::string stats_json() const override;

  enum class after_failure : std::uint8_t {
    reset,    ///< As hardware does: every GPU of the hive is reset.
    goes_on,  ///< What ran goes on.
  };
  /// Injects a fault: the next runlist cycle of that GPU takes `lasts` and fails (ETIME), as when a
  /// preemption times out; on a MES GPU the next firmware command (EIO).
  void fail_next_cycle(std::uint32_t gpu_id, duration lasts, after_failure then);

  /// What happens to calls that match, instead of or beside what they do.
  struct call_fault {
    std::uint32_t number = 0;           ///< _IOC_NR of the command.
    std::optional<std::uint32_t> op{};  ///< Of DBG_TRAP or CRIU_OP.
    pid_t caller = 0;                   ///< Whose calls; 0: everybody's.
    pid_t target = 0;                   ///< DBG_TRAP on whom; 0: anybody.
    duration delay{};                   ///< They begin so much later; no signal shortens that.
    int error = 0;                      ///< Answered instead of performing the call; 0: performed.
    bool kill_target = false;  ///< DBG_TRAP: SIGKILL to the target, `delay` after the call's
                               ///< begin, which is not delayed then.
    std::uint32_t times = 1;   ///< How many calls.
  };
  /// Of several that match, the one given first acts.
  void inject(const call_fault& fault);
  void forget_faults();
  /// How the next activation of debugging for that process ends: 2 busy, 3 error (runtime_state).
  int set_next_activation(pid_t pid, std::uint32_t state);
  /// What memory management does to a process: its queues are off the GPU (0: every GPU) until
  /// restored, counted. \return 0, -ESRCH, or -ENODEV for an unknown GPU.
  int evict(pid_t pid, std::uint32_t gpu_id);
  int restore(pid_t pid, std::uint32_t gpu_id);
  /// Resets the GPU and its hive, and evicts every process from every GPU for good. \return 0 or
  /// -ENODEV.
  int reset(std::uint32_t gpu_id);

  /// Milliseconds for which the process has been evicted from that GPU, as sysfs shows.
  std::uint64_t evicted_ms(pid_t pid, std::uint32_t gpu_id) const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::sim
