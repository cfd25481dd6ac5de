#pragma once
/// \file
/// The simulated resource manager on a fake machine in virtual time, with the calls that tests
/// make.

#include "call_bench.hpp"
#include "profile.hpp"
#include "rm_driver.hpp"

#include <cstddef>
#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "sluice/nvidia/uapi.hpp"
#include "sluice/sim/nvidia_abi.hpp"

namespace sluice::sim::test {

namespace rm = sluice::nvidia::uapi;
using status = std::uint32_t;

/// Processes of a test.
inline constexpr pid_t rm_app = 100;
inline constexpr pid_t rm_other = 200;
inline constexpr pid_t rm_scheduler = 300;

/// Where things lie in every fake process.
inline constexpr std::uint64_t parameters_at = 0x10000;
inline constexpr std::uint64_t kernels_at = 0x20000;
inline constexpr std::uint64_t page_at = 0x30000;  ///< One of 4 KiB for each channel.
inline constexpr std::uint32_t page_records = 64;
inline constexpr std::uint64_t words_at = 0x50000;  ///< The same: USERD, and behind it these.
inline constexpr std::uint64_t record_at = 0x200;
inline constexpr std::uint64_t states_at = 0x240;

inline profile rm_profile(std::size_t gpus = 1) {
  profile node;
  node.name = "rm";
  node.driver = driver_kind::nvidia;
  for (std::uint32_t i = 0; i < gpus; ++i) {
    gpu_profile gpu;
    gpu.gpu_id = 0x400 + i * 0x100;
    gpu.scheduler = queue_scheduler::channels;
    gpu.suspend_cost = 640us;
    gpu.resume_cost = 350us;
    gpu.time_sliced = true;
    gpu.memory_mib = 1024;
    node.gpus.push_back(gpu);
  }
  return node;
}

class rm_bench : public call_bench {
 public:
  explicit rm_bench(profile node = rm_profile()) : profile_{std::move(node)} {
    for (const pid_t pid : {rm_app, rm_other, rm_scheduler}) {
      auto& memory = machine.start(pid);
      memory.map(parameters_at, 0x1000);
      memory.map(kernels_at, 0x1000);
      memory.map(page_at, 16 * fake_memory::page);
      memory.map(words_at, 16 * fake_memory::page);
    }
  }

  file_id open(pid_t pid, std::uint32_t node = 0) {
    file_id file = 0;
    EXPECT_EQ(sim.open(pid, node, file), 0);
    return file;
  }
  status alloc(pid_t pid, file_id file, rm::NVOS21_PARAMETERS& args) {
    EXPECT_EQ(call(pid, file, rm::NV_RM_ALLOC, args), 0);
    return args.status;
  }
  /// \return its handle; fails the test where it cannot be made.
  rm::NvHandle make(pid_t pid, file_id file, rm::NvHandle client, rm::NvHandle parent,
                    std::uint32_t cls) {
    rm::NVOS21_PARAMETERS args{};
    args.hRoot = client;
    args.hObjectParent = parent;
    args.hClass = cls;
    EXPECT_EQ(alloc(pid, file, args), rm::NV_OK) << std::hex << cls;
    return args.hObjectNew;
  }
  status free(pid_t pid, file_id file, rm::NvHandle client, rm::NvHandle object) {
    rm::NVOS00_PARAMETERS args{};
    args.hRoot = client;
    args.hObjectOld = object;
    EXPECT_EQ(call(pid, file, rm::NV_RM_FREE, args), 0);
    return args.status;
  }
  template <class Params>
  rm::NVOS54_PARAMETERS control_args(pid_t pid, rm::NvHandle client, rm::NvHandle object,
                                     std::uint32_t command, const Params& params) {
    machine.memory(pid).put(parameters_at, params);
    rm::NVOS54_PARAMETERS args{};
    args.hClient = client;
    args.hObject = object;
    args.cmd = command;
    args.params = parameters_at;
    args.paramsSize = sizeof params;
    return args;
  }
  template <class Params>
  status control(pid_t pid, file_id file, rm::NvHandle client, rm::NvHandle object,
                 std::uint32_t command, Params& params) {
    auto args = control_args(pid, client, object, command, params);
    EXPECT_EQ(call(pid, file, rm::NV_RM_CONTROL, args), 0);
    params = machine.memory(pid).get<Params>(parameters_at);
    return args.status;
  }

  /// A client with what it takes to compute.
  struct context {
    pid_t pid = 0;
    file_id file = 0;
    rm::NvHandle client = 0, device = 0, subdevice = 0, group = 0;
    std::vector<rm::NvHandle> channels{};
  };
  context make_context(pid_t pid, file_id file, std::uint32_t gpu = 0, std::size_t channels = 1) {
    context made{.pid = pid, .file = file};
    made.client = make(pid, file, 0, 0, rm::NV01_ROOT_CLIENT);
    nvidia_abi::NV0080_ALLOC_PARAMETERS which{};
    which.deviceId = gpu;
    machine.memory(pid).put(parameters_at, which);
    rm::NVOS21_PARAMETERS args{};
    args.hRoot = args.hObjectParent = made.client;
    args.hClass = rm::NV01_DEVICE_0;
    args.pAllocParms = parameters_at;
    args.paramsSize = sizeof(nvidia_abi::NV0080_ALLOC_PARAMETERS);
    EXPECT_EQ(alloc(pid, file, args), rm::NV_OK);
    made.device = args.hObjectNew;
    made.subdevice = make(pid, file, made.client, made.device, rm::NV20_SUBDEVICE_0);
    made.group = make(pid, file, made.client, made.device, rm::KEPLER_CHANNEL_GROUP_A);
    for (std::size_t i = 0; i < channels; ++i) {
      made.channels.push_back(
          make(pid, file, made.client, made.group, rm::HOPPER_CHANNEL_GPFIFO_A));
      make(pid, file, made.client, made.channels.back(), rm::HOPPER_COMPUTE_A);
      EXPECT_EQ(bind(made, page_at + i * fake_memory::page, i), rm::NV_OK);
    }
    return made;
  }
  context make_context(pid_t pid) { return make_context(pid, open(pid)); }

  /// \param page 0: forgets the channel's kernels.
  status bind(const context& of, std::uint64_t page, std::size_t channel = 0) {
    const auto words = words_at + channel * fake_memory::page;
    nvidia_abi::bind_args args{
        .hClient = of.client,
        .hChannel = of.channels[channel],
        .page = page,
        .count = page_records,
        .status = 0,
        .words = {.userd = words, .record = words + record_at, .states = words + states_at}};
    EXPECT_EQ(call(of.pid, of.file, nvidia_abi::SLUICE_SIM_BIND_CHANNEL, args), 0);
    return args.status;
  }

  /// One kernel for the channel of that index.
  status submit(const context& of, duration length, std::size_t channel = 0) {
    machine.memory(of.pid).put(
        kernels_at, nvidia_abi::kernel_entry{static_cast<std::uint64_t>(length.count()), 1});
    nvidia_abi::submit_args args{.hClient = of.client,
                                 .hChannel = of.channels[channel],
                                 .kernels = kernels_at,
                                 .count = 1,
                                 .status = 0};
    EXPECT_EQ(call(of.pid, of.file, nvidia_abi::SLUICE_SIM_SUBMIT, args), 0);
    return args.status;
  }
  std::uint64_t completed(const context& of, std::size_t channel = 0) {
    return machine.memory(of.pid)
        .get<nvidia_abi::channel_page>(page_at + channel * fake_memory::page)
        .completed;
  }
  nvidia_abi::kernel_record record(const context& of, std::uint64_t kernel) {
    return machine.memory(of.pid).get<nvidia_abi::kernel_record>(
        page_at + sizeof(nvidia_abi::channel_page) + kernel * sizeof(nvidia_abi::kernel_record));
  }
  static time_point at(std::uint64_t stamp) {
    return time_point{duration{static_cast<std::int64_t>(stamp)}};
  }

  /// All channels of `targets`, for one call.
  static rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS all_of(
      const std::vector<const context*>& targets, bool disable) {
    rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params{};
    params.bDisable = disable ? 1 : 0;
    for (const auto* each : targets) {
      for (const auto channel : each->channels) {
        params.hClientList[params.numChannels] = each->client;
        params.hChannelList[params.numChannels++] = channel;
      }
    }
    return params;
  }
  /// \param by whose client and open file makes the call.
  status disable(const context& by, const std::vector<const context*>& targets, bool off) {
    auto params = all_of(targets, off);
    return control(by.pid, by.file, by.client, by.subdevice,
                   rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params);
  }
  status disable(const context& whom, bool off) { return disable(whom, {&whom}, off); }

  /// The first number of that name in stats.json.
  std::int64_t stat(const std::string& name) const {
    const auto text = sim.stats_json();
    std::smatch found;
    if (!std::regex_search(text, found, std::regex{"\"" + name + "\":(-?[0-9]+)"})) {
      ADD_FAILURE() << "no " << name << " in " << text;
      return -1;
    }
    return std::stoll(found[1]);
  }
  std::int64_t held() const { return stat("held_channels"); }
  void command(const std::string& line) {
    std::string problem;
    EXPECT_EQ(sim.control(line, problem), 0) << problem;
  }

 private:
  device_driver& called() override { return sim; }
  const profile profile_;

 public:
  rm_driver sim{planned, machine, profile_};
};

}  // namespace sluice::sim::test
