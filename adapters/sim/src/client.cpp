#include "sluice/sim/client.hpp"

#include "aql.hpp"

#include <fcntl.h>
#include <link.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_memory.hpp"
#include "sluice/sim/abi.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace sluice::sim {

namespace {

namespace uapi = kfd::uapi;

error_code system_error(int value) { return {value, boost::system::system_category()}; }

/// The driver's own calling convention: a negative result is an errno, any other is passed on.
/// Only for commands that may be repeated after a signal.
template <class Argument>
result<int> call(int fd, std::uint32_t command, Argument& argument) {
  for (;;) {
    const int value = ioctl(fd, command, &argument);
    if (value >= 0) return value;
    if (errno != EINTR) return last_system_error();
  }
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

/// Opens a render node, or returns the descriptor of the first call. It stays open until the
/// process ends, as in libhsakmt: the driver lets a process use a GPU through one open file only.
result<int> open_render_node(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, int> opened;
  static pid_t owner = 0;
  const std::lock_guard lock{mutex};
  // The open files that a forked child inherits serve its parent.
  if (owner != getpid()) {
    for (const auto& [name, fd] : opened) close(fd);
    opened.clear();
    owner = getpid();
  }
  if (const auto found = opened.find(path); found != opened.end()) return found->second;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return last_system_error();
  opened.emplace(path, fd);
  return fd;
}

/// Zeroed memory that the process and one GPU have at the same address, as runtimes allocate it. A
/// forked child does not get it: the device writes into the parent's.
class shared_memory {
 public:
  /// Whose pages are behind the addresses: the process's own; the driver's, which the process maps
  /// from the render node; or the driver's, which only the GPU sees.
  enum class kind : std::uint8_t { process, driver, driver_alone };

  shared_memory() = default;
  /// \param fd the client's. \param render that GPU's node.
  static result<shared_memory> create(int fd, int render, std::uint32_t gpu, std::size_t size,
                                      kind of) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return last_system_error();
    shared_memory made;
    made.memory_ = memory;
    made.size_ = size;
    made.fd_ = fd;
    made.gpu_ = gpu;
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = made.address();
    alloc.size = size;
    alloc.gpu_id = gpu;
    alloc.flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
                  uapi::KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE | uapi::KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    if (of == kind::process) {
      alloc.flags |= uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
      alloc.mmap_offset = made.address();
    } else {
      alloc.flags |= uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    }
    if (const auto got = call(fd, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, alloc); !got)
      return got.error();
    made.handle_ = alloc.handle;
    made.allocated_ = true;
    if (of == kind::driver && mmap(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                   render, static_cast<off_t>(alloc.mmap_offset)) == MAP_FAILED)
      return last_system_error();
    madvise(memory, size, MADV_DONTFORK);
    if (const auto mapped = made.change_mapping(uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU); !mapped)
      return mapped.error();
    return made;
  }
  shared_memory(shared_memory&& other) noexcept { *this = std::move(other); }
  shared_memory& operator=(shared_memory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    std::swap(gpu_, other.gpu_);
    std::swap(handle_, other.handle_);
    std::swap(allocated_, other.allocated_);
    return *this;
  }
  ~shared_memory() {
    if (allocated_) {
      (void)change_mapping(uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU);
      uapi::kfd_ioctl_free_memory_of_gpu_args free{};
      free.handle = handle_;
      (void)call(fd_, uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU, free);
    }
    if (memory_ != nullptr) munmap(memory_, size_);
  }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(memory_);
  }
  std::uint64_t address() const noexcept { return address_of(memory_); }
  std::size_t size() const noexcept { return size_; }

 private:
  result<int> change_mapping(std::uint32_t command) {
    uapi::kfd_ioctl_map_memory_to_gpu_args change{};
    change.handle = handle_;
    change.device_ids_array_ptr = address_of(&gpu_);
    change.n_devices = 1;
    return call(fd_, command, change);
  }

  void* memory_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;  // The client's.
  std::uint32_t gpu_ = 0;
  std::uint64_t handle_ = 0;
  bool allocated_ = false;
};

/// The slots of the process's events, in which the device says which events it set.
class event_slots {
 public:
  event_slots() = default;
  static result<event_slots> map(int fd, std::uint64_t offset) {
    void* memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (memory == MAP_FAILED) return last_system_error();
    event_slots made;
    made.memory_ = memory;
    return made;
  }
  event_slots(event_slots&& other) noexcept : memory_{std::exchange(other.memory_, nullptr)} {}
  event_slots& operator=(event_slots&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~event_slots() {
    if (memory_ != nullptr) munmap(memory_, size);
  }
  std::uint64_t address() const noexcept { return address_of(memory_); }

 private:
  static constexpr std::size_t size = uapi::KFD_SIGNAL_EVENT_LIMIT * sizeof(std::uint64_t);
  void* memory_ = nullptr;
};

constexpr std::size_t page = 4096;

constexpr std::size_t page_up(std::size_t size) { return (size + page - 1) / page * page; }

using property_map = std::map<std::string, std::uint64_t, std::less<>>;

std::uint64_t value_of(const property_map& all, std::string_view key) {
  const auto found = all.find(key);
  return found == all.end() ? 0 : found->second;
}

struct topology_node {
  std::uint32_t gpu = 0;
  property_map properties;
};

/// The GPUs of the topology. A node that the device cgroup hides cannot be read, and is not ours to
/// use.
std::vector<topology_node> find_gpus(const std::string& sysfs) {
  std::vector<topology_node> out;
  for (unsigned index = 0;; ++index) {
    const auto folder = sysfs + "/topology/nodes/" + std::to_string(index) + "/";
    std::ifstream id_file{folder + "gpu_id"};
    if (!id_file) return out;
    topology_node node;
    if (!(id_file >> node.gpu) || node.gpu == 0) continue;
    std::ifstream file{folder + "properties"};
    std::string key;
    for (std::uint64_t value = 0; file >> key >> value;) node.properties.insert({key, value});
    out.push_back(std::move(node));
  }
}

/// What a context save needs, as the driver prints it since Linux 6.12, which compares. Older
/// drivers compare nothing.
struct save_area {
  std::size_t control_stack = page;
  std::size_t context = 2 * page;  ///< Control stack included.
  std::size_t total = 2 * page;    ///< With the debugger's part, for every XCC.
};

save_area save_area_of(const property_map& node) {
  constexpr std::size_t debugger_per_wave = 32;
  constexpr std::size_t debugger_align = 64;
  constexpr std::size_t waves_per_cu = 40;
  constexpr std::size_t waves_per_cu_since_navi = 32;
  constexpr std::size_t waves_per_shader_engine = 512;
  constexpr std::uint64_t navi = 100100;
  save_area out;
  const auto context = value_of(node, "cwsr_size");
  if (context == 0) return out;
  const auto xccs = std::max<std::uint64_t>(value_of(node, "num_xcc"), 1);
  const auto simds = std::max<std::uint64_t>(value_of(node, "simd_per_cu"), 1);
  const auto cus = value_of(node, "simd_count") / simds / xccs;
  const auto engines = value_of(node, "array_count") /
                       std::max<std::uint64_t>(value_of(node, "simd_arrays_per_engine"), 1);
  const auto waves = value_of(node, "gfx_target_version") >= navi
                         ? cus * waves_per_cu_since_navi
                         : std::min(cus * waves_per_cu, engines * waves_per_shader_engine);
  const auto debugger =
      (waves * debugger_per_wave + debugger_align - 1) / debugger_align * debugger_align;
  out.control_stack = value_of(node, "ctl_stack_size");
  out.context = context;
  out.total = page_up((context + debugger) * xccs);
  return out;
}

std::string setting(std::string given, const char* variable, const char* otherwise) {
  if (!given.empty()) return given;
  const char* from_environment = std::getenv(variable);  // NOLINT: nobody sets it meanwhile.
  return from_environment != nullptr && *from_environment != '\0' ? from_environment : otherwise;
}

/// A runtime calls this before and after it changes its list of code objects. Debuggers set a
/// breakpoint here.
void code_objects_change() {}

/// The list of a runtime's code objects, in which debuggers find kernels: an empty one. AMD's
/// debugger library of 2024 accepts the versions 8 to 10 of it; ROCr of 2024 has version 10.
r_debug no_code_objects() {
  constexpr int version = 10;
  r_debug out{};
  out.r_version = version;
  out.r_brk = reinterpret_cast<ElfW(Addr)>(&code_objects_change);
  out.r_state = r_debug::RT_CONSISTENT;
  return out;
}

/// \param event 0: none; the driver numbers events from 1.
void destroy_event(int fd, std::uint32_t event) noexcept {
  if (event == 0) return;
  uapi::kfd_ioctl_destroy_event_args destroy{};
  destroy.event_id = event;
  (void)call(fd, uapi::AMDKFD_IOC_DESTROY_EVENT, destroy);
}

/// A process's use of AMD's driver.
struct kfd_client_state {
  int fd = -1;
  bool runtime_enabled = false;
  // 0: none. They stay set after a reset of any GPU, and after a page fault of this process.
  std::uint32_t hardware_exception = 0, page_fault = 0;
  std::vector<topology_node> nodes;
  std::size_t first = 0;     // Of `nodes`: what was asked for.
  std::vector<int> renders;  // Render nodes, whose address spaces the driver uses for queues.
  r_debug code_objects = no_code_objects();  // The driver keeps its address.

  kfd_client_state() = default;
  kfd_client_state(const kfd_client_state&) = delete;
  kfd_client_state& operator=(const kfd_client_state&) = delete;
  ~kfd_client_state() {
    if (runtime_enabled) {
      uapi::kfd_ioctl_runtime_enable_args disable{};
      (void)call(fd, uapi::AMDKFD_IOC_RUNTIME_ENABLE, disable);
    }
    destroy_event(fd, hardware_exception);
    destroy_event(fd, page_fault);
    if (fd >= 0) close(fd);
  }

  const topology_node& node() const { return nodes[first]; }
  const topology_node* find(std::uint32_t gpu) const {
    const auto found = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const topology_node& each) { return each.gpu == gpu; });
    return found == nodes.end() ? nullptr : &*found;
  }

  /// As runtimes do when they start: of every GPU. Without it the driver creates no queue.
  result<void> acquire_address_spaces(const std::string& folder) {
    for (const topology_node& each : nodes) {
      const auto path =
          folder + "/dri/renderD" + std::to_string(value_of(each.properties, "drm_render_minor"));
      const auto render = open_render_node(path);
      if (!render) return render.error();
      renders.push_back(*render);
      uapi::kfd_ioctl_acquire_vm_args acquire{};
      acquire.drm_fd = static_cast<std::uint32_t>(*render);
      acquire.gpu_id = each.gpu;
      if (const auto got = call(fd, uapi::AMDKFD_IOC_ACQUIRE_VM, acquire); !got) return got.error();
    }
    return {};
  }
};

struct kfd_queue_state {
  int fd = -1;  // The client's.
  bool alive = false;
  std::uint32_t id = 0;
  std::uint64_t packets = 0;
  int doorbell = -1;
  std::uint32_t event = 0;                               // 0: none.
  std::uint32_t hardware_exception = 0, page_fault = 0;  // The client's.
  std::atomic<bool> lost = false;                        // One of these was set.

  shared_memory ring;
  shared_memory header;  // An aql::queue.
  event_slots slots;
  shared_memory signals;
  shared_memory end_of_pipe;
  shared_memory saved_context;

  std::atomic<std::uint64_t> submitted{0};
  // Every index below has finished. Monotonic. Advanced by queries, and by submit() before it
  // re-arms a signal: who finds a signal armed that this already passed looked at a reused one.
  mutable std::atomic<std::uint64_t> completed{0};

  kfd_queue_state() = default;
  kfd_queue_state(const kfd_queue_state&) = delete;
  kfd_queue_state& operator=(const kfd_queue_state&) = delete;
  ~kfd_queue_state() {
    destroy_event(fd, event);
    if (doorbell >= 0) close(doorbell);
  }

  aql::signal& signal_of(std::uint64_t index) const noexcept {
    return signals.as<aql::signal>()[index % packets];
  }

  // The device writes its stamps before the value; acquire here orders our reads behind that.
  bool signalled(std::uint64_t index) const noexcept {
    return std::atomic_ref{signal_of(index).value}.load(std::memory_order_acquire) <= 0;
  }

  std::uint64_t advance() const noexcept {
    auto seen = completed.load(std::memory_order_acquire);
    const auto end = submitted.load(std::memory_order_acquire);
    while (seen < end) {
      if (signalled(seen)) {
        // A failure means that somebody else advanced it, and loads how far.
        if (completed.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) ++seen;
        continue;
      }
      const auto again = completed.load(std::memory_order_acquire);
      if (again == seen) break;
      seen = again;
    }
    return seen;
  }

  bool finished(std::uint64_t index) const noexcept {
    return index < completed.load(std::memory_order_acquire) || index < advance();
  }

  result<void> destroy_queue() {
    if (!alive) return {};
    uapi::kfd_ioctl_destroy_queue_args destroy{};
    destroy.queue_id = id;
    const auto got = call(fd, uapi::AMDKFD_IOC_DESTROY_QUEUE, destroy);
    if (!got) return got.error();
    alive = false;
    return {};
  }
};

class kfd_gpu_queue final : public gpu_queue {
 public:
  explicit kfd_gpu_queue(std::unique_ptr<kfd_queue_state> state) : impl_{std::move(state)} {}
  ~kfd_gpu_queue() override { (void)impl_->destroy_queue(); }
  result<std::uint64_t> submit(const kernel& work) noexcept override;
  void ring() noexcept override {
    if (impl_->doorbell >= 0) eventfd_write(impl_->doorbell, 1);
  }
  result<void> wait(std::uint64_t index, duration timeout) override;
  bool finished(std::uint64_t index) const noexcept override {
    return index < submitted() && impl_->finished(index);
  }
  done completion(std::uint64_t index) const noexcept override;
  std::uint64_t submitted() const noexcept override {
    return impl_->submitted.load(std::memory_order_acquire);
  }
  std::uint64_t completed() const noexcept override { return impl_->advance(); }
  bool has_doorbell() const noexcept override { return impl_->doorbell >= 0; }
  std::uint32_t id() const noexcept override { return impl_->id; }
  std::uint64_t ring_base() const noexcept override { return impl_->ring.address(); }
  result<void> destroy() override { return impl_->destroy_queue(); }

 private:
  const std::unique_ptr<kfd_queue_state> impl_;
};

class kfd_gpu_client final : public gpu_client {
 public:
  explicit kfd_gpu_client(std::unique_ptr<kfd_client_state> state) : impl_{std::move(state)} {}
  std::uint32_t gpu() const noexcept override { return impl_->node().gpu; }
  std::vector<std::uint32_t> gpus() const override {
    std::vector<std::uint32_t> out;
    for (const auto& each : impl_->nodes) out.push_back(each.gpu);
    return out;
  }
  std::uint32_t wave_slots() const noexcept override {
    const auto& properties = impl_->node().properties;
    return static_cast<std::uint32_t>(value_of(properties, "simd_count") *
                                      value_of(properties, "max_waves_per_simd"));
  }
  int fd() const noexcept override { return impl_->fd; }
  result<std::unique_ptr<gpu_queue>> create_queue(queue_options options) override;

 private:
  const std::unique_ptr<kfd_client_state> impl_;
};

result<std::unique_ptr<gpu_queue>> kfd_gpu_client::create_queue(queue_options options) {
  constexpr std::uint32_t most_packets = 1U << 20U;
  if (!std::has_single_bit(options.packets) || options.packets < 64 ||
      options.packets > most_packets || options.priority > uapi::KFD_MAX_QUEUE_PRIORITY) {
    return errc::bad_config;
  }
  auto state = std::make_unique<kfd_queue_state>();
  state->fd = impl_->fd;
  state->packets = options.packets;
  const auto* const node = options.gpu == 0 ? &impl_->node() : impl_->find(options.gpu);
  if (node == nullptr) return system_error(ENODEV);
  const int render = impl_->renders[static_cast<std::size_t>(node - impl_->nodes.data())];
  const auto save = save_area_of(node->properties);
  const auto ring_size = options.packets * sizeof(aql::kernel_dispatch_packet);
  struct wanted_memory {
    shared_memory* memory;
    std::size_t size;
    shared_memory::kind kind = shared_memory::kind::process;
  };
  for (const wanted_memory& each :
       {wanted_memory{&state->ring, ring_size},
        wanted_memory{&state->header, page, shared_memory::kind::driver},
        wanted_memory{&state->signals, page_up(options.packets * sizeof(aql::signal))},
        wanted_memory{&state->end_of_pipe, page, shared_memory::kind::driver_alone},
        wanted_memory{&state->saved_context, save.total, shared_memory::kind::driver_alone}}) {
    auto made = shared_memory::create(impl_->fd, render, node->gpu, each.size, each.kind);
    if (!made) return made.error();
    *each.memory = std::move(*made);
  }
  auto* packets = state->ring.as<aql::kernel_dispatch_packet>();
  for (std::uint32_t i = 0; i < options.packets; ++i) packets[i].header = aql::packet_invalid;
  auto& header = *new (state->header.as<void>()) aql::queue{};
  header.type = 1;
  header.features = 1;  // Kernel dispatch.
  header.base_address = state->ring.address();
  header.size = options.packets;
  header.read_dispatch_id_field_base_byte_offset = offsetof(aql::queue, read_dispatch_id);
  header.queue_properties = 1U << 1U;  // 64-bit addresses.

  uapi::kfd_ioctl_create_event_args event{};
  event.event_type = uapi::KFD_IOC_EVENT_SIGNAL;
  event.auto_reset = 1;
  if (const auto got = call(impl_->fd, uapi::AMDKFD_IOC_CREATE_EVENT, event); !got) {
    return got.error();
  }
  state->event = event.event_id;
  auto slots = event_slots::map(impl_->fd, event.event_page_offset);
  if (!slots) return slots.error();
  state->slots = std::move(*slots);
  state->hardware_exception = impl_->hardware_exception;
  state->page_fault = impl_->page_fault;
  auto* signals = state->signals.as<aql::signal>();
  for (std::uint32_t i = 0; i < options.packets; ++i) {
    signals[i].kind = 1;
    signals[i].event_mailbox_ptr =
        state->slots.address() + event.event_slot_index * sizeof(std::uint64_t);
    signals[i].queue_ptr = state->header.address();
  }

  uapi::kfd_ioctl_create_queue_args create{};
  create.ring_base_address = state->ring.address();
  create.ring_size = static_cast<std::uint32_t>(ring_size);
  create.write_pointer_address = address_of(&header.write_dispatch_id);
  create.read_pointer_address = address_of(&header.read_dispatch_id);
  create.gpu_id = node->gpu;
  create.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
  create.queue_percentage = uapi::KFD_MAX_QUEUE_PERCENTAGE;
  create.queue_priority = options.priority;
  create.eop_buffer_address = state->end_of_pipe.address();
  create.eop_buffer_size = state->end_of_pipe.size();
  create.ctx_save_restore_address = state->saved_context.address();
  create.ctx_save_restore_size = static_cast<std::uint32_t>(save.context);
  create.ctl_stack_size = static_cast<std::uint32_t>(save.control_stack);
  if (const auto got = call(impl_->fd, uapi::AMDKFD_IOC_CREATE_QUEUE, create); !got) {
    return got.error();
  }
  state->id = create.queue_id;
  state->alive = true;

  if (options.doorbell) {
    state->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    set_doorbell_args bell{.queue_id = state->id, .eventfd = state->doorbell};
    if (state->doorbell >= 0 && !call(impl_->fd, SLUICE_SIM_IOC_SET_DOORBELL, bell)) {
      close(std::exchange(state->doorbell, -1));  // The device looks at the write index instead.
    }
  }
  return std::unique_ptr<gpu_queue>{std::make_unique<kfd_gpu_queue>(std::move(state))};
}

result<std::uint64_t> kfd_gpu_queue::submit(const kernel& work) noexcept {
  const auto index = impl_->submitted.load(std::memory_order_relaxed);
  if (index >= impl_->packets && !impl_->finished(index - impl_->packets)) return errc::full;

  auto& signal = impl_->signal_of(index);
  signal.event_id = work.notify ? impl_->event : 0;
  signal.start_ts = 0;
  signal.end_ts = 0;
  std::atomic_ref{signal.value}.store(1, std::memory_order_release);

  auto& packet = impl_->ring.as<aql::kernel_dispatch_packet>()[index % impl_->packets];
  packet.workgroup_size_x = aql::wave_lanes;
  packet.workgroup_size_y = 1;
  packet.workgroup_size_z = 1;
  packet.grid_size_x = std::max(work.waves, 1U) * aql::wave_lanes;
  packet.grid_size_y = 1;
  packet.grid_size_z = 1;
  packet.setup = 1;
  packet.kernel_object = static_cast<std::uint64_t>(std::max<std::int64_t>(work.length.count(), 1));
  packet.completion_signal = address_of(&signal);
  // The header makes the packet valid and so comes last; then the index, for who only looks there.
  std::atomic_ref{packet.header}.store(aql::packet_kernel_dispatch | aql::header_bits,
                                       std::memory_order_release);
  impl_->submitted.store(index + 1, std::memory_order_release);
  std::atomic_ref{impl_->header.as<aql::queue>()->write_dispatch_id}.store(
      index + 1, std::memory_order_release);
  return index;
}

result<void> kfd_gpu_queue::wait(std::uint64_t index, duration timeout) {
  if (index >= submitted()) return system_error(EINVAL);
  constexpr duration for_ever = std::chrono::hours{24 * 365};  // What can be added to now().
  const auto deadline = clock::now() + std::min(timeout, for_ever);
  for (;;) {
    // The event is set after the signal's value, stays set until a wait takes it, and only one
    // thread waits: so a completion between this look and the call makes the call return at once.
    if (impl_->finished(index)) return {};
    if (impl_->lost) return errc::lost;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
    if (left.count() <= 0) return system_error(ETIMEDOUT);
    std::array<uapi::kfd_event_data, 3> events{};
    events[0].event_id = impl_->event;
    events[1].event_id = impl_->hardware_exception;
    events[2].event_id = impl_->page_fault;
    uapi::kfd_ioctl_wait_events_args wait{};
    wait.events_ptr = address_of(events.data());
    wait.num_events = events.size();
    constexpr std::int64_t longest = 1'000'000'000;  // 0xffffffff would be "for ever".
    wait.timeout = static_cast<std::uint32_t>(std::min<std::int64_t>(left.count(), longest));
    if (ioctl(impl_->fd, uapi::AMDKFD_IOC_WAIT_EVENTS, &wait) < 0 && errno != EINTR) {
      return last_system_error();
    }
    if (wait.wait_result != uapi::KFD_IOC_WAIT_RESULT_COMPLETE) continue;
    // Stays zero if the event is not among those that ended the wait. After a reset, the driver
    // evicts this process from all GPUs, so the number of the GPU does not matter. After a page
    // fault, ROCm's runtime ends the process.
    if (events[1].hw_exception_data.gpu_id != 0 || events[2].memory_exception_data.gpu_id != 0) {
      impl_->lost = true;
    }
  }
}

gpu_queue::done kfd_gpu_queue::completion(std::uint64_t index) const noexcept {
  auto& signal = impl_->signal_of(index);
  const auto value = std::atomic_ref{signal.value}.load(std::memory_order_acquire);
  const auto at = [](std::uint64_t& stamp) {
    return time_point{duration{
        static_cast<std::int64_t>(std::atomic_ref{stamp}.load(std::memory_order_relaxed))}};
  };
  return {.start = at(signal.start_ts), .end = at(signal.end_ts), .value = value};
}

result<std::unique_ptr<gpu_client>> open_kfd(const std::string& device, client_options options) {
  const auto sysfs = setting(std::move(options.sysfs), "SLUICE_KFD_SYSFS", "/sys/class/kfd/kfd");
  auto state = std::make_unique<kfd_client_state>();
  do {
    state->fd = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
  } while (state->fd < 0 && errno == EINTR);  // amdkfd's open does not wait for a signal handler.
  if (state->fd < 0) return last_system_error();
  uapi::kfd_ioctl_get_version_args version{};
  if (const auto got = call(state->fd, uapi::AMDKFD_IOC_GET_VERSION, version); !got) {
    return got.error();
  }
  if (version.major_version != uapi::KFD_IOCTL_MAJOR_VERSION) return errc::not_supported;
  state->nodes = find_gpus(sysfs);
  const topology_node* const wanted =
      options.gpu == 0 ? state->nodes.data() : state->find(options.gpu);
  if (state->nodes.empty() || wanted == nullptr) return system_error(ENODEV);
  state->first = static_cast<std::size_t>(wanted - state->nodes.data());
  if (auto got = state->acquire_address_spaces(device.substr(0, device.rfind('/'))); !got)
    return got.error();
  // Before any queue exists, so that no reset is missed.
  for (const auto& [type, event] :
       {std::pair{uapi::KFD_IOC_EVENT_HW_EXCEPTION, &state->hardware_exception},
        std::pair{uapi::KFD_IOC_EVENT_MEMORY, &state->page_fault}}) {
    uapi::kfd_ioctl_create_event_args made{};
    made.event_type = type;
    if (const auto got = call(state->fd, uapi::AMDKFD_IOC_CREATE_EVENT, made); !got) {
      return got.error();
    }
    *event = made.event_id;
  }
  if (!options.runtime)
    return std::unique_ptr<gpu_client>{std::make_unique<kfd_gpu_client>(std::move(state))};
  // As hsa_init: before any queue exists. Otherwise no debugger could suspend the queues.
  uapi::kfd_ioctl_runtime_enable_args enable{};
  enable.r_debug = address_of(&state->code_objects);
  enable.mode_mask = uapi::KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK;
  if (const auto got = call(state->fd, uapi::AMDKFD_IOC_RUNTIME_ENABLE, enable); !got) {
    return got.error();
  }
  state->runtime_enabled = true;
  return std::unique_ptr<gpu_client>{std::make_unique<kfd_gpu_client>(std::move(state))};
}

}  // namespace

result<std::unique_ptr<gpu_client>> gpu_client::open(client_options options) {
  const auto of_nvidia = [](const std::string& path) {
    return path.substr(path.rfind('/') + 1) == "nvidiactl";
  };
  std::string device = std::move(options.device);
  if (device.empty()) {
    device = setting("", "SLUICE_KFD_DEVICE", "/dev/kfd");
    const auto other = setting("", "SLUICE_NVIDIA_DEVICE", "/dev/nvidiactl");
    if (access(device.c_str(), F_OK) != 0 && access(other.c_str(), F_OK) == 0) device = other;
  }
  if (!of_nvidia(device)) return open_kfd(device, std::move(options));
  for (std::uint32_t index = 0;; ++index) {
    auto made = nvidia_client::open({.device = device, .gpus = {index}});
    if (!made && index > 0 && made.error().value() == ENOENT) return system_error(ENODEV);
    if (!made) return made.error();
    if (options.gpu == 0 || (*made)->gpu() == options.gpu)
      return std::unique_ptr<gpu_client>{std::move(*made)};
  }
}

}  // namespace sluice::sim
