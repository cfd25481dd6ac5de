#include "sluice/sim/client.hpp"

#include "aql.hpp"

#include <fcntl.h>
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
#include <new>
#include <utility>

#include "sluice/kfd/uapi.hpp"
#include "sluice/sim/abi.hpp"

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

/// Zeroed anonymous memory. A forked child does not get it: the device writes into the parent's.
class mapping {
 public:
  mapping() = default;
  static result<mapping> create(std::size_t size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return last_system_error();
    madvise(memory, size, MADV_DONTFORK);
    mapping made;
    made.memory_ = memory;
    made.size_ = size;
    return made;
  }
  mapping(mapping&& other) noexcept
      : memory_{std::exchange(other.memory_, nullptr)}, size_{other.size_} {}
  mapping& operator=(mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~mapping() {
    if (memory_ != nullptr) munmap(memory_, size_);
  }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(memory_);
  }
  std::uint64_t address() const noexcept { return address_of(memory_); }
  std::size_t size() const noexcept { return size_; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
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

/// Finds a GPU in the topology: `wanted`, or the first for 0.
result<topology_node> find_gpu(const std::string& sysfs, std::uint32_t wanted) {
  for (unsigned index = 0;; ++index) {
    const auto folder = sysfs + "/topology/nodes/" + std::to_string(index) + "/";
    std::ifstream id_file{folder + "gpu_id"};
    if (!id_file) return system_error(ENODEV);
    topology_node node;
    // A node that the device cgroup hides cannot be read, and is not ours to use.
    if (!(id_file >> node.gpu) || node.gpu == 0 || (wanted != 0 && node.gpu != wanted)) continue;
    std::ifstream file{folder + "properties"};
    std::string key;
    for (std::uint64_t value = 0; file >> key >> value;) node.properties.insert({key, value});
    return node;
  }
}

std::vector<std::uint32_t> all_gpus(const std::string& sysfs) {
  std::vector<std::uint32_t> out;
  for (unsigned index = 0;; ++index) {
    std::ifstream file{sysfs + "/topology/nodes/" + std::to_string(index) + "/gpu_id"};
    if (!file) return out;
    if (std::uint32_t gpu = 0; file >> gpu && gpu != 0) out.push_back(gpu);
  }
}

/// What a context save needs, as libhsakmt computes it for gfx9 (update_ctx_save_restore_size).
struct save_area {
  std::size_t control_stack = 0;
  std::size_t context = 0;  ///< Control stack included.
  std::size_t total = 0;    ///< With the debugger's part, for every XCC.
};

save_area save_area_of(const property_map& node) {
  constexpr std::size_t vgprs_per_cu = 0x80000;  // gfx90a, gfx94x.
  constexpr std::size_t sgprs_per_cu = 0x4000;
  constexpr std::size_t lds_per_cu = 0x10000;
  constexpr std::size_t registers_per_cu = 0x1000;
  constexpr std::size_t control_stack_per_wave = 8;
  constexpr std::size_t debugger_per_wave = 32;
  constexpr std::size_t waves_per_cu = 40;
  constexpr std::size_t waves_per_shader_engine = 512;
  const auto xccs = std::max<std::uint64_t>(value_of(node, "num_xcc"), 1);
  const auto simds = std::max<std::uint64_t>(value_of(node, "simd_per_cu"), 1);
  const auto cus = value_of(node, "simd_count") / simds / xccs;
  const auto engines = value_of(node, "array_count") /
                       std::max<std::uint64_t>(value_of(node, "simd_arrays_per_engine"), 1);
  const auto waves = std::min(cus * waves_per_cu, engines * waves_per_shader_engine);
  save_area out;
  out.control_stack =
      page_up(sizeof(uapi::kfd_context_save_area_header) + waves * control_stack_per_wave + 8);
  out.context = out.control_stack +
                page_up(cus * (vgprs_per_cu + sgprs_per_cu + lds_per_cu + registers_per_cu));
  out.total = page_up((out.context + waves * debugger_per_wave) * xccs);
  return out;
}

std::string setting(std::string given, const char* variable, const char* otherwise) {
  if (!given.empty()) return given;
  const char* from_environment = std::getenv(variable);  // NOLINT: nobody sets it meanwhile.
  return from_environment != nullptr && *from_environment != '\0' ? from_environment : otherwise;
}

}  // namespace

struct gpu_client::impl {
  int fd = -1;
  bool runtime_enabled = false;
  std::string sysfs;
  topology_node node;
  std::uint64_t r_debug = 0;  // What a runtime's link map would be; the driver keeps its address.

  impl() = default;
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() {
    if (runtime_enabled) {
      uapi::kfd_ioctl_runtime_enable_args disable{};
      (void)call(fd, uapi::AMDKFD_IOC_RUNTIME_ENABLE, disable);
    }
    if (fd >= 0) close(fd);
  }
};

gpu_client::gpu_client(std::unique_ptr<impl> state) : impl_{std::move(state)} {}
gpu_client::~gpu_client() = default;

result<std::unique_ptr<gpu_client>> gpu_client::open(client_options options) {
  const auto device = setting(std::move(options.device), "SLUICE_KFD_DEVICE", "/dev/kfd");
  const auto sysfs = setting(std::move(options.sysfs), "SLUICE_KFD_SYSFS", "/sys/class/kfd/kfd");
  auto state = std::make_unique<impl>();
  state->fd = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
  if (state->fd < 0) return last_system_error();
  uapi::kfd_ioctl_get_version_args version{};
  if (const auto got = call(state->fd, uapi::AMDKFD_IOC_GET_VERSION, version); !got) {
    return got.error();
  }
  if (version.major_version != uapi::KFD_IOCTL_MAJOR_VERSION) return errc::not_supported;
  auto node = find_gpu(sysfs, options.gpu);
  if (!node) return node.error();
  state->node = std::move(*node);
  state->sysfs = sysfs;
  if (!options.runtime) return std::unique_ptr<gpu_client>{new gpu_client{std::move(state)}};
  // As hsa_init: before any queue exists. Without it nobody could suspend our queues.
  uapi::kfd_ioctl_runtime_enable_args enable{};
  enable.r_debug = address_of(&state->r_debug);
  enable.mode_mask = uapi::KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK;
  if (const auto got = call(state->fd, uapi::AMDKFD_IOC_RUNTIME_ENABLE, enable); !got) {
    return got.error();
  }
  state->runtime_enabled = true;
  return std::unique_ptr<gpu_client>{new gpu_client{std::move(state)}};
}

std::uint32_t gpu_client::gpu() const noexcept { return impl_->node.gpu; }
std::vector<std::uint32_t> gpu_client::gpus() const { return all_gpus(impl_->sysfs); }
int gpu_client::fd() const noexcept { return impl_->fd; }

std::uint32_t gpu_client::wave_slots() const noexcept {
  const auto& properties = impl_->node.properties;
  return static_cast<std::uint32_t>(value_of(properties, "simd_count") *
                                    value_of(properties, "max_waves_per_simd"));
}

struct gpu_queue::impl {
  int fd = -1;  // The client's.
  bool alive = false;
  std::uint32_t id = 0;
  std::uint64_t packets = 0;
  int doorbell = -1;
  std::uint32_t gpu = 0;
  std::uint32_t event = 0;               // 0: none; the driver numbers signal events from 1.
  std::uint32_t hardware_exception = 0;  // 0: none. Tells of resets, whichever GPU's.
  std::atomic<bool> lost = false;        // This GPU was reset since the queue was made.

  mapping ring;
  mapping header;  // An aql::queue, and behind it the event's mailbox.
  mapping signals;
  mapping end_of_pipe;
  mapping saved_context;

  std::atomic<std::uint64_t> submitted{0};
  // Every index below has finished. Monotonic. Advanced by queries, and by submit() before it
  // re-arms a signal: who finds a signal armed that this already passed looked at a reused one.
  mutable std::atomic<std::uint64_t> completed{0};

  impl() = default;
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() {
    for (const std::uint32_t each : {event, hardware_exception}) {
      if (each == 0) continue;
      uapi::kfd_ioctl_destroy_event_args destroy{};
      destroy.event_id = each;
      (void)call(fd, uapi::AMDKFD_IOC_DESTROY_EVENT, destroy);
    }
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

result<std::unique_ptr<gpu_queue>> gpu_client::create_queue(queue_options options) {
  constexpr std::uint32_t most_packets = 1U << 20U;
  if (!std::has_single_bit(options.packets) || options.packets < 64 ||
      options.packets > most_packets || options.priority > uapi::KFD_MAX_QUEUE_PRIORITY) {
    return errc::bad_config;
  }
  auto state = std::make_unique<gpu_queue::impl>();
  state->fd = impl_->fd;
  state->packets = options.packets;
  auto node =
      options.gpu == 0 ? result<topology_node>{impl_->node} : find_gpu(impl_->sysfs, options.gpu);
  if (!node) return node.error();
  const auto save = save_area_of(node->properties);
  const auto ring_size = options.packets * sizeof(aql::kernel_dispatch_packet);
  for (const auto& [memory, size] :
       {std::pair{&state->ring, ring_size}, std::pair{&state->header, page},
        std::pair{&state->signals, page_up(options.packets * sizeof(aql::signal))},
        std::pair{&state->end_of_pipe, page}, std::pair{&state->saved_context, save.total}}) {
    auto made = mapping::create(size);
    if (!made) return made.error();
    *memory = std::move(*made);
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
  uapi::kfd_ioctl_create_event_args exception{};
  exception.event_type = uapi::KFD_IOC_EVENT_HW_EXCEPTION;
  exception.auto_reset = 1;
  if (const auto got = call(impl_->fd, uapi::AMDKFD_IOC_CREATE_EVENT, exception); !got) {
    return got.error();
  }
  state->hardware_exception = exception.event_id;
  auto* signals = state->signals.as<aql::signal>();
  for (std::uint32_t i = 0; i < options.packets; ++i) {
    signals[i].kind = 1;
    signals[i].event_mailbox_ptr = state->header.address() + sizeof(aql::queue);
    signals[i].queue_ptr = state->header.address();
  }

  uapi::kfd_ioctl_create_queue_args create{};
  create.ring_base_address = state->ring.address();
  create.ring_size = static_cast<std::uint32_t>(ring_size);
  create.write_pointer_address = address_of(&header.write_dispatch_id);
  create.read_pointer_address = address_of(&header.read_dispatch_id);
  create.gpu_id = state->gpu = node->gpu;
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
  return std::unique_ptr<gpu_queue>{new gpu_queue{std::move(state)}};
}

gpu_queue::gpu_queue(std::unique_ptr<impl> state) : impl_{std::move(state)} {}
gpu_queue::~gpu_queue() { (void)impl_->destroy_queue(); }

result<std::uint64_t> gpu_queue::submit(const kernel& work) noexcept {
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

void gpu_queue::ring() noexcept {
  if (impl_->doorbell >= 0) eventfd_write(impl_->doorbell, 1);
}

result<void> gpu_queue::wait(std::uint64_t index, duration timeout) {
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
    std::array<uapi::kfd_event_data, 2> events{};
    events[0].event_id = impl_->event;
    events[1].event_id = impl_->hardware_exception;
    uapi::kfd_ioctl_wait_events_args wait{};
    wait.events_ptr = address_of(events.data());
    wait.num_events = events.size();
    constexpr std::int64_t longest = 1'000'000'000;  // 0xffffffff would be "for ever".
    wait.timeout = static_cast<std::uint32_t>(std::min<std::int64_t>(left.count(), longest));
    if (ioctl(impl_->fd, uapi::AMDKFD_IOC_WAIT_EVENTS, &wait) < 0 && errno != EINTR) {
      return last_system_error();
    }
    if (wait.wait_result != uapi::KFD_IOC_WAIT_RESULT_COMPLETE) continue;
    // Left as zeros where the event was not among those that ended the wait.
    if (events[1].hw_exception_data.gpu_id == impl_->gpu) impl_->lost = true;
  }
}

bool gpu_queue::finished(std::uint64_t index) const noexcept {
  return index < submitted() && impl_->finished(index);
}

gpu_queue::done gpu_queue::completion(std::uint64_t index) const noexcept {
  auto& signal = impl_->signal_of(index);
  const auto value = std::atomic_ref{signal.value}.load(std::memory_order_acquire);
  const auto at = [](std::uint64_t& stamp) {
    return time_point{duration{
        static_cast<std::int64_t>(std::atomic_ref{stamp}.load(std::memory_order_relaxed))}};
  };
  return {.start = at(signal.start_ts), .end = at(signal.end_ts), .value = value};
}

std::uint64_t gpu_queue::submitted() const noexcept {
  return impl_->submitted.load(std::memory_order_acquire);
}
std::uint64_t gpu_queue::completed() const noexcept { return impl_->advance(); }
bool gpu_queue::has_doorbell() const noexcept { return impl_->doorbell >= 0; }
std::uint32_t gpu_queue::id() const noexcept { return impl_->id; }
std::uint64_t gpu_queue::ring_base() const noexcept { return impl_->ring.address(); }

result<void> gpu_queue::destroy() { return impl_->destroy_queue(); }

}  // namespace sluice::sim
