#include "sluice/sim/nvidia_client.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "sluice/nvidia/uapi.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/sim/nvidia_abi.hpp"

namespace sluice::sim {

namespace {

namespace abi = nvidia_abi;
namespace rmapi = sluice::nvidia::uapi;

class status_category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "nvidia"; }
  std::string message(int value) const override {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string hex;
    for (auto left = static_cast<unsigned>(value); left != 0 || hex.empty(); left /= 16)
      hex.insert(hex.begin(), digits[left % 16]);
    return "status 0x" + hex + " of NVIDIA's driver";
  }
};

error_code status_error(std::uint32_t status) {
  return {static_cast<int>(status), nvidia_category()};
}

error_code system_error_of(int value) { return {value, boost::system::system_category()}; }

/// The driver's own calling convention, with the status in the argument.
template <class Args>
result<void> rm_ioctl(int fd, unsigned command, Args& args) {
  while (ioctl(fd, command, &args) != 0) {
    if (errno != EINTR) return last_system_error();
  }
  if (args.status != rmapi::NV_OK) return status_error(args.status);
  return {};
}

std::uint64_t address_in_memory(const void* memory) {
  return reinterpret_cast<std::uint64_t>(memory);
}

/// A word that the device stores.
std::uint64_t stored(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

// --- Memory that the process and the device share ------------------------------------------------

struct unmapper {
  void operator()(std::byte* memory) const noexcept { munmap(memory, abi::mapping_size); }
};
using mapping = std::unique_ptr<std::byte, unmapper>;

/// \param fd -1: private memory.
result<mapping> map(int fd, std::uint64_t offset) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, abi::mapping_size, PROT_READ | PROT_WRITE, kind, fd,
                            static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return last_system_error();
  madvise(memory, abi::mapping_size, MADV_DONTFORK);  // The device writes into the parent's.
  // The device cannot read back a page that the kernel drops, which it does when memory is short.
  // Locked pages stay. Where a limit forbids that, they nearly always do.
  (void)mlock2(memory, abi::mapping_size, MLOCK_ONFAULT);
  return mapping{static_cast<std::byte*>(memory)};
}

/// One channel's words, beyond the life of a queue.
struct channel_state {
  abi::channel_words words{};
  std::uint64_t submitted = 0;

  std::uint32_t* word(std::uint64_t offset) const {
    return reinterpret_cast<std::uint32_t*>(words.userd + offset);  // NOLINT: it was a pointer.
  }
  void put(std::uint64_t offset, std::uint64_t value) const {
    __atomic_store_n(word(offset), static_cast<std::uint32_t>(value), __ATOMIC_RELEASE);
  }
  /// While the device is there: later, the first access would be SIGBUS.
  void load_page() const { (void)__atomic_load_n(word(abi::userd::put), __ATOMIC_RELAXED); }
  /// As a program does before it tells the GPU.
  void submit(std::uint64_t kernels) {
    submitted += kernels;
    put(abi::userd::put_high, abi::userd::high);
    put(abi::userd::put, submitted * abi::userd::push_bytes);
    put(abi::userd::gp_put, submitted % abi::userd::ring_entries);
  }
};

// --- A queue -------------------------------------------------------------------------------------

/// Kernels on one channel.
class channel_queue final : public gpu_queue {
 public:
  /// \param state outlives it. \param freed told when it is destroyed.
  channel_queue(int fd, std::uint32_t client, std::uint32_t channel, channel_state& state,
                std::uint32_t packets, std::function<void()> freed)
      : fd_{fd},
        client_{client},
        channel_{channel},
        state_{state},
        packets_{packets},
        freed_{std::move(freed)} {
    collected_.reserve(packets);
  }
  ~channel_queue() override {
    (void)destroy();
    if (page_ != nullptr) munmap(page_, size());
  }

  result<void> open() {
    void* const memory =
        mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return last_system_error();
    page_ = static_cast<abi::channel_page*>(memory);
    if (const auto bound = bind(ring_base()); !bound) return bound;
    state_.load_page();
    return {};
  }

  result<std::uint64_t> submit(const kernel& work) noexcept override {
    const auto index = submitted_.load(std::memory_order_relaxed);
    if (index - completed() >= packets_) return errc::full;
    record(index) = {};
    const auto length = std::max<duration::rep>(work.length.count(), 1);
    collected_.push_back(
        {.length = static_cast<std::uint64_t>(length), .waves = std::max(work.waves, 1U)});
    submitted_.store(index + 1, std::memory_order_release);
    return index;
  }

  void ring() noexcept override {
    for (std::size_t at = 0; at < collected_.size() && !refused_.load();) {
      const auto count = std::min<std::size_t>(collected_.size() - at, abi::submit_limit);
      abi::submit_args args{.hClient = client_,
                            .hChannel = channel_,
                            .kernels = address_in_memory(collected_.data() + at),
                            .count = static_cast<std::uint32_t>(count),
                            .status = 0};
      state_.submit(count);
      const auto taken = rm_ioctl(fd_, abi::SLUICE_SIM_SUBMIT, args);
      if (!taken) refused_.store(true);
      at += count;
    }
    announced_.fetch_add(collected_.size(), std::memory_order_release);
    collected_.clear();
  }

  result<void> wait(std::uint64_t index, duration timeout) override {
    if (index >= announced_.load(std::memory_order_acquire)) return system_error_of(EINVAL);
    constexpr duration longest = std::chrono::hours{24 * 365};  // What can be added to now().
    const auto deadline = clock::now() + std::min(timeout, longest);
    while (!finished(index)) {
      if (refused_.load()) return errc::lost;
      const auto left = std::max(deadline - clock::now(), duration::zero());
      abi::wait_args args{.hClient = client_,
                          .hChannel = channel_,
                          .index = index,
                          .timeout = static_cast<std::uint64_t>(left.count()),
                          .status = 0,
                          .pad = 0};
      if (ioctl(fd_, abi::SLUICE_SIM_WAIT, &args) != 0) {
        if (errno != EINTR) return last_system_error();
      } else if (args.status == abi::NV_ERR_TIMEOUT) {
        if (clock::now() >= deadline) return system_error_of(ETIMEDOUT);
      } else if (args.status != rmapi::NV_OK) {
        return status_error(args.status);
      }
    }
    return {};
  }

  bool finished(std::uint64_t index) const noexcept override { return index < completed(); }
  done completion(std::uint64_t index) const noexcept override {
    const auto& of = record(index);
    const auto point = [](std::uint64_t stamp) {
      return time_point{duration{static_cast<std::int64_t>(stamp)}};
    };
    return {.start = point(stored(of.start)),
            .end = point(stored(of.end)),
            .value = 1 - static_cast<std::int64_t>(stored(of.runs))};
  }
  std::uint64_t submitted() const noexcept override {
    return submitted_.load(std::memory_order_acquire);
  }
  std::uint64_t completed() const noexcept override { return stored(page_->completed); }
  bool has_doorbell() const noexcept override { return true; }
  std::uint32_t id() const noexcept override { return channel_; }
  std::uint64_t ring_base() const noexcept override { return address_in_memory(page_); }

  result<void> destroy() override {
    if (!freed_) return {};
    if (const auto unbound = bind(0); !unbound) return unbound;
    std::exchange(freed_, nullptr)();
    return {};
  }

 private:
  std::size_t size() const noexcept {
    return sizeof(abi::channel_page) + packets_ * sizeof(abi::kernel_record);
  }
  abi::kernel_record& record(std::uint64_t index) const noexcept {
    return reinterpret_cast<abi::kernel_record*>(page_ + 1)[index % packets_];
  }
  result<void> bind(std::uint64_t address) const {
    abi::bind_args args{.hClient = client_,
                        .hChannel = channel_,
                        .page = address,
                        .count = packets_,
                        .status = 0,
                        .words = state_.words};
    return rm_ioctl(fd_, abi::SLUICE_SIM_BIND_CHANNEL, args);
  }

  const int fd_;
  const std::uint32_t client_;
  const std::uint32_t channel_;
  channel_state& state_;
  const std::uint32_t packets_;
  std::function<void()> freed_;  ///< Null: destroyed.
  abi::channel_page* page_ = nullptr;
  std::vector<abi::kernel_entry> collected_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> announced_{0};
  std::atomic<bool> refused_{false};  ///< The driver took some kernels not.
};

}  // namespace

const boost::system::error_category& nvidia_category() noexcept {
  static const status_category category;
  return category;
}

// --- The client ----------------------------------------------------------------------------------

struct nvidia_client::impl {
  /// As libcuda keeps its objects: each with the handle of its client.
  struct object {
    std::uint32_t client;
    std::uint32_t handle;
  };
  /// What shows the work of one context.
  struct context_words {
    mapping gpu_memory{};
    mapping control_memory{};
    mapping hidden_states{};
    std::vector<channel_state> states{};  ///< Of the channels that compute.
  };
  unique_fd control_node{};
  std::vector<unique_fd> gpu_nodes{};
  std::vector<object> objects{};
  std::uint32_t root = 0;
  std::vector<context> contexts{};
  std::vector<context_words> words{};  ///< As many.
  std::uint32_t waves = 0;
  std::set<std::uint32_t> in_use{};  ///< Channels with queues.

  result<std::uint32_t> make(std::uint32_t parent, std::uint32_t cls, void* params = nullptr,
                             std::size_t size = 0) {
    constexpr std::uint32_t first_object = 0x5c000001;
    rmapi::NVOS21_PARAMETERS args{};
    args.hRoot = root;
    args.hObjectParent = parent;
    args.hObjectNew = first_object + static_cast<std::uint32_t>(objects.size());
    args.hClass = cls;
    args.pAllocParms = address_in_memory(params);
    args.paramsSize = static_cast<std::uint32_t>(size);
    if (const auto made = rm_ioctl(control_node.get(), rmapi::NV_RM_ALLOC, args); !made)
      return made.error();
    objects.push_back({root, args.hObjectNew});
    return args.hObjectNew;
  }

  result<void> control(std::uint32_t on, std::uint32_t command, void* params,
                       std::size_t size) const {
    rmapi::NVOS54_PARAMETERS args{};
    args.hClient = root;
    args.hObject = on;
    args.cmd = command;
    args.params = address_in_memory(params);
    args.paramsSize = static_cast<std::uint32_t>(size);
    return rm_ioctl(control_node.get(), rmapi::NV_RM_CONTROL, args);
  }

  result<void> make_client(std::size_t gpus) {
    rmapi::NVOS21_PARAMETERS args{};
    args.hClass = rmapi::NV01_ROOT_CLIENT;
    if (const auto made = rm_ioctl(control_node.get(), rmapi::NV_RM_ALLOC, args); !made)
      return made.error();
    root = args.hObjectNew;
    constexpr std::size_t usual_objects = 128;
    objects.reserve(gpus * usual_objects);
    return {};
  }

  /// \param compute whether its channels compute beside copying.
  result<void> make_group(context& of, std::size_t channels, bool compute) {
    const auto handle = make(of.device, rmapi::KEPLER_CHANNEL_GROUP_A);
    if (!handle) return handle.error();
    channel_group group{.handle = *handle};
    for (std::size_t i = 0; i < channels; ++i) {
      const auto channel = make(*handle, rmapi::HOPPER_CHANNEL_GPFIFO_A);
      if (!channel) return channel.error();
      group.channels.push_back(*channel);
      if (compute) {
        if (const auto made = make(*channel, rmapi::HOPPER_COMPUTE_A); !made) return made.error();
      }
      if (const auto made = make(*channel, rmapi::HOPPER_DMA_COPY_A); !made) return made.error();
    }
    of.groups.push_back(std::move(group));
    return {};
  }

  result<void> make_context(std::uint32_t index, std::uint32_t computing) {
    context one;
    abi::NV0080_ALLOC_PARAMETERS which{};
    which.deviceId = index;
    const auto device = make(root, rmapi::NV01_DEVICE_0, &which, sizeof which);
    if (!device) return device.error();
    one.device = *device;
    const auto subdevice = make(one.device, rmapi::NV20_SUBDEVICE_0);
    if (!subdevice) return subdevice.error();
    one.subdevice = *subdevice;
    if (const auto made = make_group(one, computing, true); !made) return made.error();
    for (int i = 0; i < 3; ++i) {
      constexpr std::size_t copying = 4;
      if (const auto made = make_group(one, copying, false); !made) return made.error();
    }
    rmapi::NV2080_CTRL_GPU_GET_ID_PARAMS id{};
    if (const auto asked =
            control(one.subdevice, rmapi::NV2080_CTRL_CMD_GPU_GET_ID, &id, sizeof id);
        !asked)
      return asked.error();
    one.gpu = id.gpuId;
    contexts.push_back(std::move(one));
    return {};
  }

  /// Maps the words of the newest context.
  /// \param control_path the node nvidiactl, opened anew: a mapping must not keep the client alive.
  result<void> map_words(const std::string& control_path, bool states_elsewhere) {
    const unique_fd control{::open(control_path.c_str(), O_RDWR | O_CLOEXEC)};
    if (!control) return last_system_error();
    const auto offset = abi::mapping_of(root, words.size());
    context_words& to = words.emplace_back();
    const auto put_into = [](mapping& memory, result<mapping> made) -> result<void> {
      if (!made) return made.error();
      memory = std::move(*made);
      return {};
    };
    if (const auto made = put_into(to.gpu_memory, map(gpu_nodes.back().get(), offset)); !made)
      return made;
    if (const auto made = put_into(to.control_memory, map(control.get(), offset)); !made)
      return made;
    if (states_elsewhere) {
      if (const auto made = put_into(to.hidden_states, map(-1, 0)); !made) return made;
    }
    const auto gpu_base = address_in_memory(to.gpu_memory.get());
    const auto control_base = address_in_memory(to.control_memory.get());
    const auto states_base =
        states_elsewhere ? address_in_memory(to.hidden_states.get()) : control_base;
    for (std::uint64_t i = 0; i < contexts.back().groups.front().channels.size(); ++i) {
      to.states.push_back({.words = {.userd = gpu_base + abi::userd_of(i),
                                     .record = control_base + abi::record_of(i),
                                     .states = states_base + abi::states_of(i)}});
    }
    return {};
  }
};

nvidia_client::nvidia_client(std::unique_ptr<impl> state) : impl_{std::move(state)} {}
nvidia_client::~nvidia_client() = default;

result<std::unique_ptr<nvidia_client>> nvidia_client::open(nvidia_client_options options) {
  if (options.device.empty()) {
    const char* const chosen = std::getenv("SLUICE_NVIDIA_DEVICE");  // NOLINT: as the driver's.
    options.device = chosen != nullptr && *chosen != '\0' ? chosen : "/dev/nvidiactl";
  }
  constexpr std::uint32_t most_channels = 32;
  if (options.channels < 1 || options.channels > most_channels || options.gpus.empty())
    return errc::bad_config;
  auto state = std::make_unique<impl>();
  state->control_node = unique_fd{::open(options.device.c_str(), O_RDWR | O_CLOEXEC)};
  if (!state->control_node) return last_system_error();
  const auto node = options.device.substr(0, options.device.rfind('/') + 1) + "nvidia";
  for (const auto index : options.gpus) {
    const auto path = node + std::to_string(index);
    state->gpu_nodes.emplace_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!state->gpu_nodes.back()) return last_system_error();
    if (state->root == 0) {
      if (const auto made = state->make_client(options.gpus.size()); !made) return made.error();
    }
    if (const auto made = state->make_context(index, options.channels); !made) return made.error();
    if (const auto mapped = state->map_words(options.device, options.states_elsewhere); !mapped)
      return mapped.error();
  }
  abi::gpu_info_args about{.hClient = state->root,
                           .hSubdevice = state->contexts.front().subdevice,
                           .waves = 0,
                           .status = 0};
  if (rm_ioctl(state->control_node.get(), abi::SLUICE_SIM_GPU_INFO, about))
    state->waves = about.waves;
  return std::unique_ptr<nvidia_client>(new nvidia_client(std::move(state)));
}

int nvidia_client::fd() const noexcept { return impl_->control_node.get(); }
std::uint32_t nvidia_client::handle() const noexcept { return impl_->root; }
std::uint32_t nvidia_client::gpu() const noexcept { return impl_->contexts.front().gpu; }
std::uint32_t nvidia_client::wave_slots() const noexcept { return impl_->waves; }
const std::vector<nvidia_client::context>& nvidia_client::contexts() const noexcept {
  return impl_->contexts;
}
std::vector<std::uint32_t> nvidia_client::gpus() const {
  std::vector<std::uint32_t> all;
  for (const context& each : contexts()) all.push_back(each.gpu);
  return all;
}

result<void> nvidia_client::control(std::uint32_t object, std::uint32_t command, void* params,
                                    std::size_t size) {
  return impl_->control(object, command, params, size);
}

result<std::uint32_t> nvidia_client::allocate(std::uint64_t bytes) {
  abi::NV_MEMORY_ALLOCATION_PARAMS params{};
  params.size = bytes;
  return impl_->make(contexts().front().device, abi::NV01_MEMORY_LOCAL_USER, &params,
                     sizeof params);
}

result<std::unique_ptr<gpu_queue>> nvidia_client::create_queue(queue_options options) {
  if (!std::has_single_bit(options.packets) || options.packets < 64 || options.packets > 1U << 20U)
    return errc::bad_config;
  const auto on = std::find_if(contexts().begin(), contexts().end(), [&](const context& each) {
    return options.gpu == 0 || each.gpu == options.gpu;
  });
  if (on == contexts().end()) return system_error_of(ENODEV);
  const auto& channels = on->groups.front().channels;
  const auto free = std::find_if(channels.begin(), channels.end(), [this](std::uint32_t channel) {
    return !impl_->in_use.contains(channel);
  });
  if (free == channels.end()) return errc::full;
  auto& words = impl_->words[static_cast<std::size_t>(on - contexts().begin())];
  auto made = std::make_unique<channel_queue>(
      fd(), handle(), *free, words.states[static_cast<std::size_t>(free - channels.begin())],
      options.packets, [of = impl_.get(), channel = *free] { of->in_use.erase(channel); });
  if (const auto opened = made->open(); !opened) return opened.error();
  impl_->in_use.insert(*free);
  return std::unique_ptr<gpu_queue>{std::move(made)};
}

}  // namespace sluice::sim
