#pragma once
/// \file
/// The driver's private state: its objects under KFD's own ideas, shared by the driver_*.cpp files.
/// Everything on the engine's thread.

#include "cost_draw.hpp"
#include "driver.hpp"
#include "gpu_model.hpp"
#include "os.hpp"
#include "profile.hpp"
#include "smi_payload.hpp"
#include "task.hpp"

#include <array>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/kfd/uapi_memory.hpp"
#include "sluice/sim/abi.hpp"

namespace sluice::sim {

namespace uapi = kfd::uapi;

/// In-kernel errno values that user space normally does not see.
inline constexpr int kernel_erestartsys = 512;
inline constexpr int kernel_enotsupp = 524;

struct kfd_process;

/// What a test does to the next unmap or firmware command of a GPU.
struct failing_cycle {
  duration lasts{};
  bool reset_follows = true;
};

/// One GPU: its device queue manager and what lies below it.
struct gpu_node {
  gpu_node(engine& events, const gpu_profile& about, std::size_t place, gpu_model::started on_start,
           gpu_model::completed on_complete)
      : shape{about},
        index{place},
        dqm{events},
        destroy_wait{events},
        model{events, about, std::move(on_start), std::move(on_complete)} {}
  const gpu_profile shape;
  const std::size_t index;  ///< On its node; the topology's node number is one more.
  async_mutex dqm;          ///< Serialises all queue operations of the GPU, cycles included.
  wait_queue destroy_wait;  ///< DESTROY_QUEUE callers whose queue is suspended.
  gpu_model model;
  std::map<model_queue, std::shared_ptr<struct kfd_queue>> queues;  ///< Compute queues.
  /// SDMA queues by the RLC and the engine they have for life (allocate_sdma_queue).
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<struct kfd_queue>> sdma;
  std::uint32_t queue_count = 0;
  std::bitset<4> watch_points;   ///< MAX_WATCH_ADDRESSES; shared by all processes.
  std::uint64_t vram_used = 0;   ///< Bytes, of all buffers.
  std::uint64_t vram_taken = 0;  ///< The same, each buffer in whole steps.
  /// The driver's own handles of buffers (kfd.client.file), by number.
  std::map<std::uint32_t, std::shared_ptr<struct buffer_object>> handles;
  std::uint32_t add_handle(std::shared_ptr<struct buffer_object> object);
  std::uint64_t debug_vmid_owner = 0;    ///< Serial of a process; GPUs without per-VMID debug.
  std::optional<failing_cycle> failing;  ///< Injected.
  bool resetting = false;
  std::uint64_t resets = 0;          ///< Finished.
  std::uint32_t reset_sequence = 0;  ///< KFD's reset_seq_num: begun.
  std::uint64_t reservation_of = 0;  ///< The open file that made it; 0: none.
  std::uint32_t reserved_slots = 0;  ///< For marked queues.

  duration suspend_cost() noexcept {
    return suspends_.next(shape.suspend_cost, shape.suspend_cost_p99);
  }
  duration resume_cost() noexcept {
    return resumes_.next(shape.resume_cost, shape.resume_cost_p99);
  }

 private:
  cost_draw suspends_{};
  cost_draw resumes_{};
};

struct kfd_queue {
  std::uint64_t serial = 0;
  std::uint32_t id = 0;
  std::uint32_t type = 0;  ///< KFD_IOC_QUEUE_TYPE_*, by-engine SDMA already converted.
  gpu_node* gpu = nullptr;
  kfd_process* owner = nullptr;           ///< Valid unless `destroyed`.
  model_queue model = model_queue::none;  ///< None for SDMA.

  std::uint64_t ring_base = 0;
  std::uint32_t ring_size = 0;
  std::uint32_t percentage = 0;
  std::uint32_t priority = 0;
  std::uint64_t write_pointer = 0;
  std::uint64_t read_pointer = 0;
  std::uint64_t eop_address = 0;
  std::uint64_t eop_size = 0;
  std::uint64_t save_area = 0;
  std::uint32_t save_area_size = 0;
  std::uint32_t control_stack_size = 0;
  std::vector<std::uint64_t> buffers;  ///< Handles of the memory that it keeps mapped.

  bool suspended = false;
  time_point off_since{};  ///< While suspended or held.
  bool evicted = false;    ///< By memory management, or for CRIU; comes back with restore.
  bool was_reset = false;  ///< Its GPU was reset under it: it never runs again.
  bool gws = false;        ///< Was given the global wave sync last.
  bool cu_masked = false;
  bool debug_workaround = false;  ///< is_dbg_wa: a debugger restricts its compute units.
  std::uint64_t held_by = 0;      ///< The `holder` of uapi_batch.hpp: an open file, 0 none.
  std::uint64_t marked_by = 0;    ///< Its `marker`, likewise.
  bool being_destroyed = false;   ///< Without the fixes an interrupted DESTROY leaves it set.
  bool destroyed = false;         ///< Off its process's list; somebody may still hold it.
  bool active = false;            ///< Counted and mapped, as of the last cycle.
  std::uint64_t exception_status = 0;

  /// What the MQD in memory says of the last save: stale while the queue is mapped.
  struct {
    bool saved = false;
    std::uint32_t vmid = 0;             ///< From 0.
    std::uint64_t read = 0, write = 0;  ///< Packets.
  } mqd;
  std::uint32_t sdma_engine = 0, sdma_rlc = 0;

  // --- AQL packet processor ---
  struct packet {
    std::uint64_t signal = 0;  ///< Addresses in the client's memory; no signal: 0.
    std::uint64_t slot = 0;
    std::uint64_t first_word = 0;  ///< Header, setup, and two sizes.
  };
  std::deque<packet> fetched;        ///< From the oldest uncompleted packet on.
  std::deque<model_kernel> arrived;  ///< The youngest of these, not yet with the model.
  std::uint64_t next_fetch = 0;      ///< Packet indices.
  std::uint64_t consumed = 0;        ///< = what the read index says.
  std::uint64_t completed = 0;
  std::uint64_t write_seen = 0;
  bool failed = false;  ///< A broken packet or memory: it consumes nothing any more.
  bool fetch_planned = false;
  int doorbell = -1;  ///< Our duplicate of the client's eventfd.
  timer_id poll{};

  bool is_compute() const noexcept {
    return type == uapi::KFD_IOC_QUEUE_TYPE_COMPUTE || type == uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
  }
  bool is_aql() const noexcept { return type == uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL; }
  /// QUEUE_IS_ACTIVE of kfd_priv.h, and what a reset and the batch commands add to it.
  bool should_be_active() const noexcept {
    return ring_size > 0 && ring_base != 0 && percentage > 0 && !evicted && !suspended &&
           !was_reset && held_by == 0;
  }
};

struct kfd_event;

/// One entry of a WAIT_EVENTS array while its call sleeps.
class event_waiter {
 public:
  event_waiter(kfd_event& awaited, wait_queue& sleeping);
  event_waiter(const event_waiter&) = delete;
  event_waiter& operator=(const event_waiter&) = delete;
  ~event_waiter();
  kfd_event* event = nullptr;  ///< Null: destroyed meanwhile.
  wait_queue& wake;
  bool activated = false;
  bool age_enabled = false;
};

struct kfd_event {
  std::uint32_t type = 0;
  bool auto_reset = false;
  bool signaled = false;
  std::uint64_t age = 1;
  /// The GPU of the last reset (HW_EXCEPTION) or page fault (MEMORY); 0: none yet.
  std::uint32_t gpu = 0;
  std::vector<event_waiter*> waiters;

  kfd_event() = default;
  kfd_event(const kfd_event&) = delete;
  kfd_event& operator=(const kfd_event&) = delete;
  ~kfd_event();
  void set();
};

/// Bytes of system memory that buffers of all processes take (kfd_mem_limit).
struct system_memory {
  std::uint64_t used = 0;  ///< Pages of processes included.
  std::uint64_t ttm = 0;   ///< Without them.
};

/// The memory of a buffer (amdgpu_bo), accounted for while it exists (driver_memory.cpp).
/// Owners: the buffers of processes that share it, dma-bufs, and its GPU's handles.
struct buffer_object {
  /// \param imported the memory of another GPU that this one stands for; its account is there.
  buffer_object(gpu_node& of, system_memory& whole, std::uint32_t what, std::uint64_t bytes,
                std::shared_ptr<buffer_object> imported);
  buffer_object(const buffer_object&) = delete;
  buffer_object& operator=(const buffer_object&) = delete;
  ~buffer_object();
  gpu_node& gpu;
  system_memory& system;
  const std::uint32_t kind;  ///< One of KFD_IOC_ALLOC_MEM_FLAGS_VRAM to MMIO_REMAP.
  const std::uint64_t size;  ///< Whole pages.
  const std::shared_ptr<buffer_object> source;
  bool pinned;  ///< Now or before, which the driver shows as accessible by the CPU.

 private:
  void account(std::uint64_t bytes, std::uint64_t whole_steps);
};

/// A buffer of a process (kgd_mem).
struct memory_object {
  std::uint64_t address = 0;  ///< In the client, which has it at the GPU's address.
  std::shared_ptr<buffer_object> memory;
  std::uint32_t handle = 0;               ///< In its GPU's handles, until it is deleted there.
  std::shared_ptr<buffer_object> dmabuf;  ///< What its descriptors name; null: not exported yet.
  bool imported = false;
  /// By GPU that it is mapped to: how many times queues there use it.
  std::map<std::uint32_t, std::uint32_t> queues;

  bool is(std::uint32_t kind) const noexcept { return memory->kind == kind; }
  /// Other GPUs need a link to it.
  bool behind_bus() const noexcept;
};

/// A process on one GPU (kfd_process_device).
struct process_device {
  gpu_node* gpu = nullptr;
  std::uint32_t pasid = 0;
  bool started = false;  ///< Has taken the GPU's VM into use.
  int render = -1;  ///< Our duplicate of the render node whose address space it uses; -1: none.
  std::map<std::uint32_t, memory_object> memory;
  std::optional<memory_object> trap_handler;  ///< The driver's own, with its address space.
  std::uint64_t exception_status = 0;
  bool gws = false;             ///< One of its queues has the global wave sync.
  std::bitset<4> watch_points;  ///< Its own of the GPU's.
  std::uint32_t evictions = 0;  ///< Not yet restored; only the first and the last act.
  time_point evicted_since{};
  duration evicted_total{};

  std::uint64_t add(memory_object object);  ///< \return its handle.
};

/// What the GPU has to tell a process at the end of the step.
struct memory_update {
  enum class what : std::uint8_t { consumed, completed } kind{};
  std::shared_ptr<kfd_queue> queue;
  std::uint64_t index = 0;
  kfd_queue::packet packet;
  time_point start{}, end{};
};

/// Owners: the driver's tables, calls in progress, its own teardown.
struct kfd_process : std::enable_shared_from_this<kfd_process> {
  kfd_process(engine& planned, std::unique_ptr<address_space> space, std::string comm)
      : pid{space->pid()},
        name{std::move(comm)},
        memory{std::move(space)},
        mutex{planned},
        runtime_wait{planned} {}
  std::uint64_t serial = 0;
  const pid_t pid;
  const std::string name;  ///< `comm` when it opened the device first.
  std::uint32_t pasid = 0;
  std::unique_ptr<address_space> memory;
  bool gone = false;  ///< Its mm is released: unknown to everyone; the teardown may still go on.
  bool torn_down = false;

  async_mutex mutex;
  std::vector<process_device> devices;             ///< In binding order.
  std::vector<std::shared_ptr<kfd_queue>> queues;  ///< Newest first.
  std::bitset<uapi::KFD_MAX_NUM_OF_QUEUES_PER_PROCESS> queue_ids;
  std::map<std::uint32_t, kfd_event> events;
  std::optional<std::uint64_t> event_page;  ///< Its handle; 0: the driver's own.

  // --- Runtime ---
  uapi::kfd_runtime_info runtime{};
  std::optional<std::uint32_t> next_activation;  ///< Injected: the state that it ends in.
  bool queues_paused = false;                    ///< CRIU.
  bool runtime_retry = false;  ///< The last handshake was interrupted: do not raise it again.
  std::uint32_t runtime_permits = 0;  ///< runtime_enable_sema.
  wait_queue runtime_wait;

  // --- Debug session of which it is the target ---
  bool debug_enabled = false;
  std::uint64_t debugger = 0;  ///< Serial; 0 for none and for self-debug.
  int debugged = 0;            ///< Sessions that the driver counts as its, as their debugger.
  int debug_fd = -1;           ///< Our duplicate.
  std::uint64_t enabled_exceptions = 0;
  std::uint64_t exception_status = 0;
  std::uint32_t debug_flags = 0;
  std::uint32_t trap_override = 0;

  std::vector<memory_update> updates;
  std::uint64_t broken_queues = 0;
  std::uint64_t queue_suspends = 0;  ///< Queues that were taken off the runlist by a debugger.
  duration longest_suspension{};     ///< Of one queue without a break; what goes on is not in it.

  process_device* device(std::uint32_t gpu_id);
  memory_object* memory_of(std::uint64_t handle);
  std::shared_ptr<kfd_queue> queue(std::uint32_t id) const;
};

/// The reader behind one SMI_EVENTS descriptor.
struct smi_client {
  const gpu_node* gpu = nullptr;
  pid_t pid = 0;               ///< Process that asked for it.
  bool administrator = false;  ///< Had CAP_SYS_ADMIN when it asked.
  std::uint64_t events = 0;    ///< Mask.
  std::string fifo;            ///< At most profile::smi_fifo_bytes.
};

/// Who may see an SMI event.
struct smi_audience {
  pid_t owner = 0;  ///< 0: everybody. Else that process's clients, and administrators' who set
                    ///< KFD_SMI_EVENT_ALL_PROCESS.
  bool administrators_need_not_ask = false;
};
/// Has the client asked for that event, and may it see this one?
bool sees(const smi_client& client, uapi::kfd_smi_event event, smi_audience audience);
/// What a client can map of the device node: the offset that mmap takes.
///
/// The driver's offsets are a type in bits 62 and 63 with the GPU's id from bit 46 on. Here the
/// type lies two bits lower, since FUSE maps nothing at or above 2^63; and the process is in the
/// offset, since all who map a file at one offset share its pages. Clients hand an offset back
/// unread, but for the 32 low bits: libhsakmt takes those of the first queue's doorbell for the
/// place in a page.
enum class mmap_type : std::uint8_t { mmio = 1, events = 2, doorbell = 3 };
inline constexpr unsigned mmap_type_shift = 60;
static_assert(driver::mmap_begin == std::uint64_t{1} << mmap_type_shift &&
              driver::mmap_end == std::uint64_t{4} << mmap_type_shift);
constexpr std::uint64_t mmap_offset(mmap_type type, std::uint32_t pasid, std::size_t gpu) {
  constexpr unsigned process_shift = 38;
  constexpr unsigned gpu_shift = 32;
  constexpr auto below = [](unsigned bit) { return (std::uint64_t{1} << bit) - 1; };
  return static_cast<std::uint64_t>(type) << mmap_type_shift |
         (pasid & below(mmap_type_shift - process_shift)) << process_shift |
         (gpu & below(process_shift - gpu_shift)) << gpu_shift;
}

/// One ioctl. Owners: its coroutine, and the table that interrupt() looks into.
struct call {
  request_id id = 0;
  pid_t tid = 0;
  file_id file = 0;
  std::shared_ptr<kfd_process> caller;
  std::uint32_t command = 0;    ///< The driver's own, of the number that the caller gave.
  std::size_t user_size = 0;    ///< Bytes the caller's command copies.
  std::vector<std::byte> data;  ///< The larger of both sizes, zero-extended.
  interruption signal;
  ioctl_done done;
};

class driver::impl {
 public:
  using process_ptr = std::shared_ptr<kfd_process>;
  using call_ptr = std::shared_ptr<call>;

  impl(driver& outer, engine& events, os& system, const profile& node);
  ~impl();

  // driver.cpp: processes, dispatch, small ioctls, what is shown
  int open(pid_t tid, file_id& out);
  void release(file_id file);
  request_id ioctl(pid_t tid, file_id file, std::uint32_t command, std::span<const std::byte> in,
                   ioctl_done done);
  void interrupt(request_id request);
  void reap();
  std::string stats_json() const;  // driver_stats.cpp
  std::string mqds() const;        // driver_debugfs.cpp
  std::string hqds() const;
  std::string rls() const;
  std::string mem_limit() const;                                        // driver_memory.cpp
  void hang_hws(std::string_view text, std::function<void(int)> done);  // driver_faults.cpp
  int control(std::string_view line, std::string& problem);             // driver_control.cpp

  // driver_files.cpp: descriptors that calls give to their callers
  bool file_promised(std::uint64_t number, pid_t tid) const;
  int file_open(std::uint64_t number, pid_t tid);
  void file_release(std::uint64_t number);
  std::uint64_t file_size(std::uint64_t number) const;
  // driver_smi.cpp: those of SMI events
  int smi_write(std::uint64_t number, std::span<const std::byte> mask);
  int smi_read(std::uint64_t number, std::size_t room, std::string& out);
  bool smi_readable(std::uint64_t number) const;
  const kfd_process* find(pid_t pid) const;

  driver& outer_;
  engine& engine_;
  os& os_;
  const profile profile_;
  // What buffers refer to outlives the processes that have them.
  system_memory system_;
  std::vector<std::unique_ptr<gpu_node>> gpus_;
  std::map<pid_t, process_ptr> live_;
  gpu_node* gpu(std::uint32_t gpu_id);

 private:
  // --- Processes ---
  process_ptr add_process(std::unique_ptr<address_space> space);
  /// The process of that address space; one found dead is buried on the way.
  process_ptr lookup(pid_t leader);
  void bury(process_ptr process);
  task<void> tear_down(process_ptr process);
  void drop_queue(kfd_process& process, const std::shared_ptr<kfd_queue>& queue);

  // --- Dispatch ---
  task<void> serve(call_ptr c);
  task<int> perform(call_ptr c);
  task<int> dispatch(call_ptr c);
  /// Runs a handler on a typed copy of the argument and stores it back, whatever the result.
  template <class Args>
  task<int> with(call_ptr c, task<int> (impl::*handler)(call_ptr, Args&));
  template <class Args>
  int with(call& c, int (impl::*handler)(call&, Args&));
  int get_version(call& c, uapi::kfd_ioctl_get_version_args& args);
  int get_clock_counters(call& c, uapi::kfd_ioctl_get_clock_counters_args& args);
  int get_apertures(call& c, uapi::kfd_ioctl_get_process_apertures_new_args& args);
  int acquire_vm(call& c, uapi::kfd_ioctl_acquire_vm_args& args);
  int use_render_node(kfd_process& process, std::uint32_t gpu_id, int fd);
  static std::vector<uapi::kfd_process_device_apertures> apertures_of(const kfd_process& process);

  // --- Memory (driver_memory.cpp) ---
  int get_apertures_old(call& c, uapi::kfd_ioctl_get_process_apertures_args& args);
  int set_memory_policy(call& c, uapi::kfd_ioctl_set_memory_policy_args& args);
  int set_scratch_backing(call& c, uapi::kfd_ioctl_set_scratch_backing_va_args& args);
  int set_trap_handler(call& c, uapi::kfd_ioctl_set_trap_handler_args& args);
  int get_tile_config(call& c, uapi::kfd_ioctl_get_tile_config_args& args);
  int available_memory(call& c, uapi::kfd_ioctl_get_available_memory_args& args);
  int alloc_memory(call& c, uapi::kfd_ioctl_alloc_memory_of_gpu_args& args);
  int free_memory(call& c, uapi::kfd_ioctl_free_memory_of_gpu_args& args);
  int map_memory(call& c, uapi::kfd_ioctl_map_memory_to_gpu_args& args);
  int unmap_memory(call& c, uapi::kfd_ioctl_map_memory_to_gpu_args& args);
  task<int> export_dmabuf(call_ptr c, uapi::kfd_ioctl_export_dmabuf_args& args);
  int import_dmabuf(call& c, uapi::kfd_ioctl_import_dmabuf_args& args);
  int dmabuf_info(call& c, uapi::kfd_ioctl_get_dmabuf_info_args& args);
  /// The memory that a descriptor of the caller's names. \return 0, -EBADF or -EINVAL.
  int dmabuf_of(const call& c, std::uint32_t fd, std::shared_ptr<buffer_object>& out);
  /// Is there as much memory of that kind?
  bool has_room(const gpu_node& node, std::uint32_t kind, std::uint64_t size) const;
  /// A new buffer, with a handle of its GPU.
  memory_object make_buffer(gpu_node& node, std::uint32_t kind, std::uint64_t size);
  static void delete_handle(const memory_object& object);
  static int share(memory_object& object);
  static int change_mapping(kfd_process& process, uapi::kfd_ioctl_map_memory_to_gpu_args& args,
                            bool map);
  static int map_to(const kfd_process& process, const process_device& owner, memory_object& object,
                    const process_device& peer);
  static int unmap_from(const kfd_process& process, memory_object& object, std::uint32_t gpu_id);
  static std::uint64_t buffer_at(kfd_process& process, std::uint32_t gpu_id, std::uint64_t address,
                                 std::uint64_t size);
  static int acquire_buffers(kfd_process& process, kfd_queue& queue);
  static void release_buffers(kfd_process& process, kfd_queue& queue);
  static int replace_ring(kfd_process& process, kfd_queue& queue, std::uint64_t base,
                          std::uint64_t size);
  static int set_event_page(kfd_process& process, std::uint64_t handle);
  void free_all_memory(kfd_process& process);

  // --- Eviction, CRIU, reset (driver_evict.cpp) ---
 public:
  /// Takes all queues of the process off the GPU's runlist until restore(), counted.
  /// \param trigger what the SMI event names; without one, there is no event.
  task<int> evict(process_ptr process, gpu_node& node, std::optional<smi_eviction_trigger> trigger);
  /// The same for a caller that holds the GPU's dqm.
  task<int> evict_locked(process_ptr process, gpu_node& node,
                         std::optional<smi_eviction_trigger> trigger);
  task<int> restore(process_ptr process, gpu_node& node);
  /// Reports a page fault to a debugger that subscribed to it. Otherwise evicts the process from
  /// the GPU, and sets its memory events.
  task<void> vm_fault(process_ptr process, gpu_node& node);
  void start_reset(gpu_node& node);

  // --- Injection (driver_faults.cpp) ---
  std::vector<driver::call_fault> faults_;
  int start_on(pid_t pid, std::uint32_t gpu_id, bool evicting);

 private:
  /// The fault that this call meets, if any; takes one of its times.
  std::optional<driver::call_fault> fault_of(const call& c);
  task<void> evict_on(process_ptr process, std::vector<gpu_node*> nodes, bool evicting);
  task<void> kill_later(pid_t pid, duration after);
  task<void> hang_scheduler(gpu_node& node, std::function<void(int)> done);
  task<int> evict_everywhere(process_ptr process);
  task<int> restore_everywhere(process_ptr process);
  task<int> criu_op(call_ptr c, uapi::kfd_ioctl_criu_args& args);
  bool is_resetting() const;
  task<void> evict_all_processes(const std::vector<gpu_node*>& hive);
  task<void> reset_hive(std::vector<gpu_node*> hive, bool first);
  void signal_reset(gpu_node& node);

  // --- Batch commands (driver_batch.cpp) ---
  struct batch_item {
    std::size_t entry = 0;  ///< Index in the caller's array.
    std::shared_ptr<kfd_queue> queue;
  };
  /// The entries that exist and that the caller may name, GPU by GPU in the topology's order.
  using batch_plan = std::vector<std::pair<gpu_node*, std::vector<batch_item>>>;
  /// \param own what a file may always do to its own: that field of the queue names it.
  int read_batch(call& c, std::uint64_t address, std::uint32_t count,
                 std::vector<uapi::kfd_batch_queue_entry>& entries, batch_plan& plan,
                 file_id kfd_queue::*own);
  task<int> batch_unmap(call_ptr c, uapi::kfd_ioctl_batch_unmap_queues_args& args);
  task<int> fast_remap(call_ptr c, uapi::kfd_ioctl_fast_remap_args& args);
  task<int> set_hqd_reservation(call_ptr c, uapi::kfd_ioctl_set_hqd_reservation_args& args);
  /// Ends holds of one file on one GPU, with its dqm held. \return 0 or the hardware's error; then
  /// `done` tells which were mapped (MES), and the others stay held.
  task<int> end_holds(gpu_node& node, file_id file, std::vector<std::shared_ptr<kfd_queue>> held,
                      std::vector<bool>* done);
  /// The file is closed for good, or its process is gone: all that it holds runs again.
  task<void> release_holds(file_id file);
  std::vector<std::shared_ptr<kfd_queue>> held_on(const gpu_node& node, file_id file) const;
  void apply_reservation(gpu_node& node);

  // --- Queues (driver_queues.cpp) ---
  task<int> create_queue(call_ptr c, uapi::kfd_ioctl_create_queue_args& args);
  task<int> update_queue(call_ptr c, uapi::kfd_ioctl_update_queue_args& args);
  task<int> destroy_queue(call_ptr c, uapi::kfd_ioctl_destroy_queue_args& args);
  task<int> set_cu_mask(call_ptr c, uapi::kfd_ioctl_set_cu_mask_args& args);
  task<int> alloc_queue_gws(call_ptr c, uapi::kfd_ioctl_alloc_queue_gws_args& args);
  int set_doorbell(call& c, set_doorbell_args& args);
  void close_doorbell(kfd_queue& queue);
  // What follows is called with the GPU's dqm held.
  /// Gives an SDMA queue its engine and RLC. \param engine the one it asks for, or any.
  /// \return false when all are taken.
  static bool place_sdma(const std::shared_ptr<kfd_queue>& queue,
                         std::optional<std::uint32_t> engine);
  /// Runlist: one unmap and map of everything on the GPU, after what is left of `grace` for the
  /// waves that run. \return 0 or -ETIME; then the GPU's reset has been planned.
  task<int> cycle(gpu_node& node, cycle_kind kind, duration cost, duration grace = {});
  /// Takes an injected failure; its reset follows once the caller lets go of the dqm.
  std::optional<duration> take_failure(gpu_node& node);
  /// Puts one queue on the hardware or takes it off: a cycle, or (MES) an ADD_QUEUE or REMOVE_QUEUE
  /// if it is not so already. \return 0, -ETIME, or (MES) -EIO with the queue left as it was.
  task<int> change_queue(std::shared_ptr<kfd_queue> queue, bool active, cycle_kind kind,
                         duration cost);
  /// Hands changed properties of a queue to the hardware: a cycle, or (MES) off and on again.
  task<int> renew_queue(std::shared_ptr<kfd_queue> queue);
  /// Tells the GPU of a debugger's settings: a cycle, or (MES) a command that disturbs nobody.
  task<int> refresh_debugger(gpu_node& node);
  /// Brings `active` in line with the queue's properties; takes effect with the next cycle.
  void refresh_active(kfd_queue& queue);
  /// Said after `suspended` or `held_by` changed, for the accounts.
  void suspension_began(kfd_queue& queue) const;
  void suspension_ended(kfd_queue& queue) const;
  void set_active(kfd_queue& queue, bool active);

  // --- Packets (driver_aql.cpp) ---
  void kernel_started(gpu_node& node, model_queue queue, std::uint64_t index);
  void kernel_completed(gpu_node& node, model_queue queue, std::uint64_t index, time_point start,
                        time_point end);
  void note(memory_update update);
  /// Has the queue's write index read at the end of the step.
  void plan_fetch(const std::shared_ptr<kfd_queue>& queue);
  void plan_step_end();
  void step_end();
  void fetch(const std::shared_ptr<kfd_queue>& queue);
  bool fetch_packets(const std::shared_ptr<kfd_queue>& queue);
  /// Hands to the model what the last step found.
  static void admit(kfd_queue& queue);
  void plan_poll(const std::shared_ptr<kfd_queue>& queue, bool waiting_for_packet);
  void forget_fetched(kfd_queue& queue);
  void flush(const process_ptr& process);
  void fail_queue(kfd_queue& queue, uapi::kfd_dbg_trap_exception_code why);
  task<void> suspend_bad_queue(std::shared_ptr<kfd_queue> queue);

  // --- Events (driver_events.cpp) ---
  int create_event(call& c, uapi::kfd_ioctl_create_event_args& args);
  int destroy_event(call& c, uapi::kfd_ioctl_destroy_event_args& args);
  int set_event(call& c, uapi::kfd_ioctl_set_event_args& args);
  int reset_event(call& c, uapi::kfd_ioctl_reset_event_args& args);
  task<int> wait_events(call_ptr c, uapi::kfd_ioctl_wait_events_args& args);

  // --- Descriptors (driver_files.cpp) ---
  /// A number for a file that only this thread may open, once.
  std::uint64_t promise_file(pid_t tid);
  /// Has the caller open that file on the way back from its call. \return 0 or -errno.
  task<int> hand_over(call_ptr c, std::uint64_t number, os::file_place where);

  // --- SMI events (driver_smi.cpp) ---
  task<int> smi_events(call_ptr c, uapi::kfd_ioctl_smi_events_args& args);
  /// A line of that GPU, into the FIFO of everybody who may see it and has room for it.
  void smi_event(const gpu_node& node, uapi::kfd_smi_event event, smi_audience audience,
                 std::string_view payload);
  /// The driver's boot time, which here is monotonic time: the machine is never suspended.
  std::int64_t smi_time() const { return engine_.now().time_since_epoch().count(); }
  void smi_queue_eviction(const kfd_process& process, const gpu_node& node,
                          smi_eviction_trigger trigger);
  void smi_queue_restore(const kfd_process& process, const gpu_node& node, bool rescheduled);
  void smi_gpu_pre_reset(gpu_node& node);
  void smi_gpu_post_reset(const gpu_node& node);
  void smi_process(process_device& device, const kfd_process& process, bool starts);

  // --- Debugger (driver_debug.cpp) ---
  task<int> runtime_enable(call_ptr c, uapi::kfd_ioctl_runtime_enable_args& args);
  /// Raises EC_PROCESS_RUNTIME (once) and waits for the debugger, without the process's mutex.
  task<int> runtime_handshake(call_ptr c, async_mutex::guard* held);
  task<int> dbg_trap(call_ptr c, uapi::kfd_ioctl_dbg_trap_args& args);
  task<int> trap_operation(call_ptr c, process_ptr target, uapi::kfd_ioctl_dbg_trap_args& args);
  task<int> trap_enable(call_ptr c, process_ptr target, uapi::kfd_ioctl_dbg_trap_enable_args& args);
  task<void> trap_disable(process_ptr target);
  /// Of the target's debugger, while that lives.
  void count_debugged(const kfd_process& target, int change);
  task<void> activate(process_ptr target);
  task<void> deactivate(process_ptr target);
  task<void> release_devices(process_ptr target, std::size_t count);
  /// Writes to the queue's error payload, and sets the event that announces it.
  static void send_to_runtime(kfd_queue& queue, std::uint64_t mask);
  int send_runtime_event(kfd_process& target,
                         const uapi::kfd_ioctl_dbg_trap_send_runtime_event_args& args);
  void set_exceptions_enabled(kfd_process& target, std::uint64_t mask);
  task<int> suspend_queues(call_ptr c, process_ptr target,
                           uapi::kfd_ioctl_dbg_trap_suspend_queues_args& args);
  task<int> resume_queues(call_ptr c, process_ptr target,
                          uapi::kfd_ioctl_dbg_trap_resume_queues_args& args);
  /// \param ids the caller's array; null: every queue.
  task<int> resume(process_ptr target, std::vector<std::uint32_t>* ids);
  // On one GPU, with its dqm held. \return how many of the ids were found and done.
  task<int> suspend_on_runlist(process_ptr target, gpu_node& node, std::vector<std::uint32_t>& ids,
                               std::uint64_t exception_mask, std::uint32_t grace_period);
  task<int> suspend_on_mes(process_ptr target, gpu_node& node, std::vector<std::uint32_t>& ids,
                           std::uint64_t exception_mask);
  task<int> resume_on_runlist(process_ptr target, gpu_node& node, std::vector<std::uint32_t>* ids);
  task<int> resume_on_mes(process_ptr target, gpu_node& node, std::vector<std::uint32_t>* ids);
  /// Puts a header at `at`. \return what it wrote, or nothing: it could not.
  static std::optional<uapi::kfd_context_save_area_header> write_wave_state(const kfd_queue& queue,
                                                                            std::uint64_t at);
  task<int> get_wave_state(call_ptr c, uapi::kfd_ioctl_get_queue_wave_state_args& args);
  task<int> refresh_devices(process_ptr target);
  task<int> set_watch(process_ptr target,
                      uapi::kfd_ioctl_dbg_trap_set_node_address_watch_args& args);
  task<int> clear_watch(process_ptr target,
                        uapi::kfd_ioctl_dbg_trap_clear_node_address_watch_args& args);
  int query_debug_event(kfd_process& target, uapi::kfd_ioctl_dbg_trap_query_debug_event_args& args);
  int query_exception_info(call& c, kfd_process& target,
                           uapi::kfd_ioctl_dbg_trap_query_exception_info_args& args);
  int queue_snapshot(call& c, kfd_process& target,
                     uapi::kfd_ioctl_dbg_trap_queue_snapshot_args& args);
  int device_snapshot(call& c, kfd_process& target,
                      uapi::kfd_ioctl_dbg_trap_device_snapshot_args& args);
  /// kfd_dbg_ev_raise: into `status`, and a byte to who subscribed. Without a session: nothing.
  /// \return whether the debugger subscribed to it.
  bool raise(kfd_process& process, std::uint64_t& status, uapi::kfd_dbg_trap_exception_code code);

  std::uint64_t last_serial_ = 0;
  std::uint32_t last_pasid_ = 0x8000;  // amdgpu_pasid_alloc starts above with 16 bits.
  std::deque<process_ptr> exited_;     // For the accounts; the youngest only.
  std::unordered_map<file_id, process_ptr> files_;
  file_id last_file_ = 0;
  std::set<file_id> secondary_files_;  ///< CREATE_PROCESS made these another KFD process.
  std::map<request_id, call_ptr> calls_;
  request_id last_call_ = 0;

  std::uint64_t last_promise_ = 0;
  std::map<std::uint64_t, pid_t> promises_;  // Files not opened yet, and the threads that may.
  std::map<std::uint64_t, smi_client> smi_clients_;
  std::map<std::uint64_t, std::shared_ptr<buffer_object>> dmabufs_;

  bool step_end_planned_ = false;
  std::vector<process_ptr> dirty_;  // With updates.
  std::vector<std::shared_ptr<kfd_queue>> to_fetch_;

  // The last members: frames go first, then what actions planned with the engine must not outlive.
  std::shared_ptr<impl*> alive_ = std::make_shared<impl*>(this);
  task_scope scope_;
};

/// The object representation of a trivially copyable value.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span{&value, 1});
}

template <class T>
result<T> read_object(address_space& memory, std::uint64_t address) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  if (const auto read = memory.read(address, std::as_writable_bytes(std::span{&value, 1})); !read) {
    return read.error();
  }
  return value;
}

}  // namespace sluice::sim
