#include "sluice/sim/nvidia_client.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
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
  unique_fd control_node;
  unique_fd gpu_node;
  std::vector<object> objects;
  std::uint32_t root = 0;
  std::uint32_t device = 0;
  std::uint32_t subdevice = 0;
  std::uint32_t gpu_id = 0;
  std::vector<channel_group> groups;
  std::size_t queues = 0;

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

  /// \param compute whether its channels compute beside copying.
  result<void> make_group(std::size_t channels, bool compute) {
    const auto handle = make(device, rmapi::KEPLER_CHANNEL_GROUP_A);
    if (!handle) return handle.error();
    channel_group group{*handle, {}};
    for (std::size_t i = 0; i < channels; ++i) {
      const auto channel = make(*handle, rmapi::HOPPER_CHANNEL_GPFIFO_A);
      if (!channel) return channel.error();
      group.channels.push_back(*channel);
      if (compute) {
        if (const auto made = make(*channel, rmapi::HOPPER_COMPUTE_A); !made) return made.error();
      }
      if (const auto made = make(*channel, rmapi::HOPPER_DMA_COPY_A); !made) return made.error();
    }
    groups.push_back(std::move(group));
    return {};
  }

  result<void> make_all(std::uint32_t gpu) {
    rmapi::NVOS21_PARAMETERS args{};
    args.hClass = rmapi::NV01_ROOT_CLIENT;
    if (const auto made = rm_ioctl(control_node.get(), rmapi::NV_RM_ALLOC, args); !made)
      return made.error();
    root = args.hObjectNew;
    constexpr std::size_t usual_objects = 64;
    objects.reserve(usual_objects);
    abi::NV0080_ALLOC_PARAMETERS which{};
    which.deviceId = gpu;
    const auto made_device = make(root, rmapi::NV01_DEVICE_0, &which, sizeof which);
    if (!made_device) return made_device.error();
    device = *made_device;
    const auto made_subdevice = make(device, rmapi::NV20_SUBDEVICE_0);
    if (!made_subdevice) return made_subdevice.error();
    subdevice = *made_subdevice;
    constexpr std::size_t computing = 8;
    if (const auto made = make_group(computing, true); !made) return made.error();
    for (int i = 0; i < 3; ++i) {
      constexpr std::size_t copying = 4;
      if (const auto made = make_group(copying, false); !made) return made.error();
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
  auto state = std::make_unique<impl>();
  state->control_node = unique_fd{::open(options.device.c_str(), O_RDWR | O_CLOEXEC)};
  if (!state->control_node) return last_system_error();
  const auto folder = options.device.substr(0, options.device.rfind('/') + 1);
  const auto node = folder + "nvidia" + std::to_string(options.gpu);
  state->gpu_node = unique_fd{::open(node.c_str(), O_RDWR | O_CLOEXEC)};
  if (!state->gpu_node) return last_system_error();
  if (const auto made = state->make_all(options.gpu); !made) return made.error();
  auto client = std::unique_ptr<nvidia_client>(new nvidia_client(std::move(state)));
  rmapi::NV2080_CTRL_GPU_GET_ID_PARAMS id{};
  if (const auto asked =
          client->control(client->subdevice(), rmapi::NV2080_CTRL_CMD_GPU_GET_ID, id);
      !asked)
    return asked.error();
  client->impl_->gpu_id = id.gpuId;
  return client;
}

int nvidia_client::fd() const noexcept { return impl_->control_node.get(); }
std::uint32_t nvidia_client::handle() const noexcept { return impl_->root; }
std::uint32_t nvidia_client::device() const noexcept { return impl_->device; }
std::uint32_t nvidia_client::subdevice() const noexcept { return impl_->subdevice; }
std::uint32_t nvidia_client::gpu_id() const noexcept { return impl_->gpu_id; }
const std::vector<nvidia_client::channel_group>& nvidia_client::groups() const noexcept {
  return impl_->groups;
}

result<void> nvidia_client::control(std::uint32_t object, std::uint32_t command, void* params,
                                    std::size_t size) {
  rmapi::NVOS54_PARAMETERS args{};
  args.hClient = impl_->root;
  args.hObject = object;
  args.cmd = command;
  args.params = address_in_memory(params);
  args.paramsSize = static_cast<std::uint32_t>(size);
  return rm_ioctl(fd(), rmapi::NV_RM_CONTROL, args);
}

result<std::uint32_t> nvidia_client::allocate(std::uint64_t bytes) {
  abi::NV_MEMORY_ALLOCATION_PARAMS params{};
  params.size = bytes;
  return impl_->make(impl_->device, abi::NV01_MEMORY_LOCAL_USER, &params, sizeof params);
}

// --- A queue -------------------------------------------------------------------------------------

struct nvidia_queue::impl {
  int fd = -1;
  std::uint32_t client = 0;
  std::uint32_t channel = 0;
  std::uint32_t waves = 0;
  std::uint32_t packets = 0;
  abi::channel_page* page = nullptr;
  std::size_t size = 0;
  std::vector<abi::kernel_entry> collected;
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> handed_over{0};

  impl() = default;
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() {
    if (page != nullptr) munmap(page, size);
  }
  abi::kernel_record& record(std::uint64_t index) const noexcept {
    return reinterpret_cast<abi::kernel_record*>(page + 1)[index % packets];
  }
};

result<std::unique_ptr<nvidia_queue>> nvidia_client::create_queue(std::uint32_t packets) {
  if (packets < 64 || packets > 1U << 20U) return errc::bad_config;
  const auto& channels = impl_->groups.front().channels;
  if (impl_->queues == channels.size()) return errc::full;
  auto state = std::make_unique<nvidia_queue::impl>();
  state->fd = fd();
  state->client = impl_->root;
  state->channel = channels[impl_->queues];
  state->packets = packets;
  state->collected.reserve(packets);
  state->size = sizeof(abi::channel_page) + packets * sizeof(abi::kernel_record);
  void* const memory =
      mmap(nullptr, state->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return last_system_error();
  state->page = static_cast<abi::channel_page*>(memory);
  abi::bind_args args{.hClient = state->client,
                      .hChannel = state->channel,
                      .page = address_in_memory(memory),
                      .count = packets,
                      .waves = 0,
                      .status = 0,
                      .pad = 0};
  if (const auto bound = rm_ioctl(state->fd, abi::SIM_BIND_CHANNEL, args); !bound)
    return bound.error();
  state->waves = args.waves;
  ++impl_->queues;
  return std::unique_ptr<nvidia_queue>(new nvidia_queue(std::move(state)));
}

nvidia_queue::nvidia_queue(std::unique_ptr<impl> state) : impl_{std::move(state)} {}
nvidia_queue::~nvidia_queue() = default;

result<std::uint64_t> nvidia_queue::submit(const kernel& work) noexcept {
  const auto index = impl_->submitted.load(std::memory_order_relaxed);
  if (index - completed() >= impl_->packets) return errc::full;
  impl_->record(index) = {};
  impl_->collected.push_back(
      {.length = static_cast<std::uint64_t>(std::max<duration::rep>(work.length.count(), 1)),
       .waves = work.waves});
  impl_->submitted.store(index + 1, std::memory_order_release);
  return index;
}

result<void> nvidia_queue::ring() noexcept {
  auto& collected = impl_->collected;
  for (std::size_t at = 0; at < collected.size();) {
    const auto count = std::min<std::size_t>(collected.size() - at, abi::submit_limit);
    abi::submit_args args{.hClient = impl_->client,
                          .hChannel = impl_->channel,
                          .kernels = address_in_memory(collected.data() + at),
                          .count = static_cast<std::uint32_t>(count),
                          .status = 0};
    if (const auto taken = rm_ioctl(impl_->fd, abi::SIM_SUBMIT, args); !taken) return taken.error();
    at += count;
    impl_->handed_over.fetch_add(count, std::memory_order_release);
  }
  collected.clear();
  return {};
}

result<void> nvidia_queue::wait(std::uint64_t index, duration timeout) {
  const auto error = [](int value) { return error_code{value, boost::system::system_category()}; };
  if (index >= impl_->handed_over.load(std::memory_order_acquire)) return error(EINVAL);
  const auto deadline = clock::now() + timeout;
  while (!finished(index)) {
    const auto left = std::max(deadline - clock::now(), duration::zero());
    abi::wait_args args{.hClient = impl_->client,
                        .hChannel = impl_->channel,
                        .index = index,
                        .timeout = static_cast<std::uint64_t>(left.count()),
                        .status = 0,
                        .pad = 0};
    if (ioctl(impl_->fd, abi::SIM_WAIT, &args) != 0) {
      if (errno != EINTR) return last_system_error();
    } else if (args.status == abi::NV_ERR_TIMEOUT) {
      if (clock::now() >= deadline) return error(ETIMEDOUT);
    } else if (args.status != rmapi::NV_OK) {
      return status_error(args.status);
    }
  }
  return {};
}

bool nvidia_queue::finished(std::uint64_t index) const noexcept { return index < completed(); }

gpu_queue::done nvidia_queue::completion(std::uint64_t index) const noexcept {
  const auto& record = impl_->record(index);
  const auto point = [](std::uint64_t stamp) {
    return time_point{duration{static_cast<std::int64_t>(stamp)}};
  };
  // As a signal counts: from 1 down.
  return {.start = point(stored(record.start)),
          .end = point(stored(record.end)),
          .value = 1 - static_cast<std::int64_t>(stored(record.runs))};
}

std::uint64_t nvidia_queue::submitted() const noexcept {
  return impl_->submitted.load(std::memory_order_acquire);
}
std::uint64_t nvidia_queue::started() const noexcept { return stored(impl_->page->started); }
std::uint64_t nvidia_queue::completed() const noexcept { return stored(impl_->page->completed); }
std::uint32_t nvidia_queue::channel() const noexcept { return impl_->channel; }
std::uint32_t nvidia_queue::wave_slots() const noexcept { return impl_->waves; }

}  // namespace sluice::sim
