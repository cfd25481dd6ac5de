// The simulated resource manager: clients and their objects, disabled channels, time slices.

#include "rm_bench.hpp"

#include <cerrno>

#include <gtest/gtest.h>

namespace sluice::sim::test {
namespace {

// nvstatuscodes.h, beside what uapi.hpp has.
constexpr status duplicate_name = 0x19;
constexpr status invalid_address = 0x1E;
constexpr status invalid_object_handle = 0x33;
constexpr status no_memory = 0x51;

TEST(RmObjects, CountsClientsOverAllFiles) {
  rm_bench b;
  const auto first = b.open(rm_app);
  const auto second = b.open(rm_other);
  EXPECT_EQ(b.make(rm_app, first, 0, 0, rm::NV01_ROOT_CLIENT), rm::RS_CLIENT_HANDLE_BASE + 1);
  EXPECT_EQ(b.make(rm_other, second, 0, 0, rm::NV01_ROOT_CLIENT), rm::RS_CLIENT_HANDLE_BASE + 2);
  EXPECT_EQ(b.make(rm_app, first, 0, 0, rm::NV01_ROOT_CLIENT), rm::RS_CLIENT_HANDLE_BASE + 3);
}

TEST(RmObjects, ObeysWhoeverHasTheOpenFileOfTheClientAndNobodyElse) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto strange = b.open(rm_scheduler);
  rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS info{};
  info.hObject = app.group;
  info.index = rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID;
  const auto ask = [&](file_id file) {
    return b.control(rm_scheduler, file, app.client, app.client,
                     rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, info);
  };
  EXPECT_EQ(ask(strange), rm::NV_ERR_INVALID_CLIENT);
  EXPECT_EQ(b.free(rm_scheduler, strange, app.client, app.group), rm::NV_ERR_INVALID_CLIENT);
  rm::NVOS21_PARAMETERS args{};
  args.hRoot = args.hObjectParent = app.client;
  args.hClass = rm::NV01_DEVICE_0;
  EXPECT_EQ(b.alloc(rm_scheduler, strange, args), rm::NV_ERR_INVALID_CLIENT);
  // Another process with a descriptor of the same open file.
  EXPECT_EQ(ask(app.file), rm::NV_OK);
  EXPECT_EQ(info.iResult, rm::KEPLER_CHANNEL_GROUP_A);
}

TEST(RmObjects, TellsParentsClassesAndChildren) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS info{};
  const auto ask = [&](rm::NvHandle object, std::uint32_t index) {
    info.hObject = object;
    info.index = index;
    return b.control(rm_app, app.file, app.client, app.client,
                     rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, info);
  };
  constexpr auto parent = rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT;
  constexpr auto cls = rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID;
  ASSERT_EQ(ask(app.channels[0], parent), rm::NV_OK);
  EXPECT_EQ(info.iResult, app.group);
  ASSERT_EQ(ask(app.channels[0], cls), rm::NV_OK);
  EXPECT_EQ(info.iResult, rm::HOPPER_CHANNEL_GPFIFO_A);
  ASSERT_EQ(ask(app.client, cls), rm::NV_OK);
  EXPECT_EQ(info.iResult, rm::NV01_ROOT_CLIENT);
  EXPECT_EQ(ask(0x5c000001, cls), rm::NV_ERR_OBJECT_NOT_FOUND);
  EXPECT_EQ(ask(app.group, 3), rm::NV_ERR_INVALID_ARGUMENT);

  rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS child{};
  const auto find = [&](rm::NvHandle of, std::uint32_t what) {
    child = {.hParent = of, .classId = what, .hObject = 0};
    return b.control(rm_app, app.file, app.client, app.client,
                     rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, child);
  };
  namespace kind = rm::nvoc_class_id;
  ASSERT_EQ(find(app.client, kind::Device), rm::NV_OK);
  const auto device = child.hObject;
  ASSERT_EQ(find(device, kind::KernelChannelGroupApi), rm::NV_OK);
  EXPECT_EQ(child.hObject, app.group);
  ASSERT_EQ(find(app.group, kind::KernelChannel), rm::NV_OK);
  EXPECT_EQ(child.hObject, app.channels[0]);
  EXPECT_EQ(find(app.client, kind::KernelChannelGroupApi), rm::NV_ERR_OBJECT_NOT_FOUND)
      << "only children, not theirs";
  EXPECT_EQ(find(device, rm::KEPLER_CHANNEL_GROUP_A), rm::NV_ERR_OBJECT_NOT_FOUND)
      << "only internal numbers";
  EXPECT_EQ(find(0x1234, kind::Device), rm::NV_ERR_OBJECT_NOT_FOUND);

  rm::NV2080_CTRL_GPU_GET_ID_PARAMS id{};
  EXPECT_EQ(
      b.control(rm_app, app.file, app.client, app.subdevice, rm::NV2080_CTRL_CMD_GPU_GET_ID, id),
      rm::NV_OK);
  EXPECT_EQ(id.gpuId, 0x400U);
}

TEST(RmObjects, RefusesWhatCannotBeMade) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto refused = [&](rm::NvHandle parent, std::uint32_t cls, rm::NvHandle wanted = 0,
                           std::uint64_t params = 0, std::uint32_t size = 0) {
    rm::NVOS21_PARAMETERS args{};
    args.hRoot = app.client;
    args.hObjectParent = parent;
    args.hObjectNew = wanted;
    args.hClass = cls;
    args.pAllocParms = params;
    args.paramsSize = size;
    return b.alloc(rm_app, app.file, args);
  };
  EXPECT_EQ(refused(app.device, 0xBEEF), rm::NV_ERR_INVALID_CLASS);
  EXPECT_EQ(refused(app.device, 0xC56F), rm::NV_ERR_INVALID_CLASS) << "another GPU's channels";
  EXPECT_EQ(refused(0x1234, rm::NV20_SUBDEVICE_0), rm::NV_ERR_OBJECT_NOT_FOUND);
  EXPECT_EQ(refused(app.client, rm::HOPPER_CHANNEL_GPFIFO_A), rm::NV_ERR_INVALID_OBJECT_PARENT);
  EXPECT_EQ(refused(app.device, rm::NV20_SUBDEVICE_0, app.group), duplicate_name);
  EXPECT_EQ(refused(app.device, rm::NV20_SUBDEVICE_0, app.client), invalid_object_handle);
  EXPECT_EQ(refused(app.client, rm::NV01_DEVICE_0, 0, 0, 56), rm::NV_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refused(app.client, rm::NV01_DEVICE_0, 0, parameters_at, 55),
            rm::NV_ERR_INVALID_PARAM_STRUCT);
  EXPECT_EQ(refused(app.client, rm::NV01_DEVICE_0, 0, 0xdead000, 56), invalid_address);
  nvidia_abi::NV0080_ALLOC_PARAMETERS second{};
  second.deviceId = 1;
  b.machine.memory(rm_app).put(parameters_at, second);
  EXPECT_EQ(refused(app.client, rm::NV01_DEVICE_0, 0, parameters_at, 56),
            rm::NV_ERR_INVALID_ARGUMENT)
      << "there is one GPU";
  nvidia_abi::NV_MEMORY_ALLOCATION_PARAMS memory{};
  memory.size = std::uint64_t{2} << 30U;
  b.machine.memory(rm_app).put(parameters_at, memory);
  EXPECT_EQ(
      refused(app.device, nvidia_abi::NV01_MEMORY_LOCAL_USER, 0, parameters_at, sizeof memory),
      no_memory);
  EXPECT_EQ(b.free(rm_app, app.file, app.client, 0x1234), rm::NV_ERR_OBJECT_NOT_FOUND);
}

TEST(RmObjects, RefusesIoctlsOfAnotherShape) {
  rm_bench b;
  const auto file = b.open(rm_app);
  rm::NVOS54_PARAMETERS args{};
  EXPECT_EQ(b.call(rm_app, b.open(rm_app, 1), rm::NV_RM_CONTROL, args), -EINVAL)
      << "the node of a GPU";
  std::uint64_t half = 0;
  EXPECT_EQ(b.call(rm_app, file, _IOWR('F', rm::NV_ESC_RM_CONTROL, std::uint64_t), half), -EINVAL);
  EXPECT_EQ(b.call(rm_app, file, _IOWR('F', 0x2C, rm::NVOS54_PARAMETERS), args), -EINVAL);
  EXPECT_EQ(b.call(rm_app, 999, rm::NV_RM_CONTROL, args), -EBADF);
}

TEST(RmObjects, FreesEverythingAtTheLastClose) {
  rm_bench b;
  const auto app = b.make_context(rm_app, b.open(rm_app), 0, 8);
  nvidia_abi::NV_MEMORY_ALLOCATION_PARAMS memory{};
  memory.size = std::uint64_t{300} << 20U;
  b.machine.memory(rm_app).put(parameters_at, memory);
  rm::NVOS21_PARAMETERS args{};
  args.hRoot = app.client;
  args.hObjectParent = app.device;
  args.hClass = nvidia_abi::NV01_MEMORY_LOCAL_USER;
  args.pAllocParms = parameters_at;
  args.paramsSize = sizeof memory;
  ASSERT_EQ(b.alloc(rm_app, app.file, args), rm::NV_OK);
  ASSERT_EQ(b.submit(app, 1h), rm::NV_OK);
  ASSERT_EQ(b.disable(app, true), rm::NV_OK);
  EXPECT_EQ(b.stat("memory_bytes"), 300 << 20);
  EXPECT_EQ(b.held(), 8);
  // Its process is gone, but the scheduler has a descriptor of the open file.
  b.machine.exit(rm_app);
  b.sim.reap();
  EXPECT_EQ(b.held(), 8);
  b.sim.release(app.file);
  EXPECT_EQ(b.held(), 0);
  EXPECT_EQ(b.stat("memory_bytes"), 0);
  EXPECT_EQ(b.stat("channels"), 0);
  const auto other = b.make_context(rm_other);
  ASSERT_EQ(b.submit(other, 1ms), rm::NV_OK);
  b.run_for(1ms);
  EXPECT_EQ(b.completed(other), 1U) << "the GPU is free";
}

TEST(RmChannels, TakesARunningKernelOffInItsMiddleAndPutsItBack) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto begin = b.planned.now();
  ASSERT_EQ(b.submit(app, 10ms), rm::NV_OK);
  b.run_for(2ms);
  ASSERT_EQ(b.disable(app, true), rm::NV_OK);
  EXPECT_EQ(b.planned.now() - begin, 2640us) << "the cost of the call";
  b.run_for(1s);
  EXPECT_EQ(b.completed(app), 0U);
  ASSERT_EQ(b.disable(app, false), rm::NV_OK);
  b.run_for(1s);
  ASSERT_EQ(b.completed(app), 1U);
  const auto seen = b.record(app, 0);
  EXPECT_EQ(b.at(seen.start), begin);
  EXPECT_EQ(b.at(seen.end), begin + 10ms + 1s + 350us) << "only while it was off";
  EXPECT_EQ(seen.runs, 1U);
}

TEST(RmChannels, CountsDisables) {
  rm_bench b;
  const auto app = b.make_context(rm_app, b.open(rm_app), 0, 8);
  ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  for (const bool off : {true, true, false}) ASSERT_EQ(b.disable(app, off), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.completed(app), 0U) << "two disables and one enable";
  EXPECT_EQ(b.held(), 8);
  for (const bool off : {false, false, false}) ASSERT_EQ(b.disable(app, off), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.completed(app), 1U);
  ASSERT_EQ(b.disable(app, true), rm::NV_OK);
  EXPECT_EQ(b.held(), 8) << "enables that were too many do not count";
}

TEST(RmChannels, HoldsWhatIsSubmittedToADisabledChannel) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  ASSERT_EQ(b.disable(app, true), rm::NV_OK);
  ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.completed(app), 0U);
  ASSERT_EQ(b.disable(app, false), rm::NV_OK);
  b.run_for(1ms);
  EXPECT_EQ(b.completed(app), 1U);
}

// One call for channels of several clients, made through another open file; and its maker goes.
TEST(RmChannels, StayDisabledWhenWhoeverDisabledThemIsGone) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto other = b.make_context(rm_other);
  const auto scheduler = b.make_context(rm_scheduler);
  for (const auto* each : {&app, &other}) ASSERT_EQ(b.submit(*each, 1ms), rm::NV_OK);
  ASSERT_EQ(b.disable(scheduler, {&app, &other}, true), rm::NV_OK);
  b.sim.release(scheduler.file);
  b.machine.exit(rm_scheduler);
  b.sim.reap();
  b.run_for(1s);
  EXPECT_EQ(b.held(), 2);
  EXPECT_EQ(b.completed(app) + b.completed(other), 0U);
  ASSERT_EQ(b.disable(app, {&app, &other}, false), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.completed(app) + b.completed(other), 2U);
}

TEST(RmChannels, AreLeftAloneByACallWithAWrongEntry) {
  rm_bench b{rm_profile(2)};
  const auto app = b.make_context(rm_app, b.open(rm_app), 0, 8);
  const auto elsewhere = b.make_context(rm_other, b.open(rm_other), 1);
  const auto answer = [&](const auto& change) {
    auto params = b.all_of({&app}, true);
    change(params);
    return b.control(rm_app, app.file, app.client, app.subdevice,
                     rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params);
  };
  EXPECT_EQ(answer([](auto& p) { p.numChannels = 65; }), rm::NV_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(answer([](auto& p) { p.hChannelList[7] = 0x1234; }), rm::NV_ERR_OBJECT_NOT_FOUND);
  EXPECT_EQ(answer([&](auto& p) { p.hChannelList[7] = app.group; }), rm::NV_ERR_OBJECT_NOT_FOUND);
  EXPECT_EQ(answer([](auto& p) { p.hClientList[7] = 0xC1D0FFFF; }), rm::NV_ERR_INVALID_CLIENT);
  EXPECT_EQ(answer([](auto& p) { p.pRunlistPreemptEvent = 1; }),
            rm::NV_ERR_INSUFFICIENT_PERMISSIONS);
  EXPECT_EQ(answer([](auto& p) { p.bOnlyDisableScheduling = 1; }), rm::NV_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer([&](auto& p) {
              p.hClientList[7] = elsewhere.client;
              p.hChannelList[7] = elsewhere.channels[0];
            }),
            rm::NV_ERR_INVALID_ARGUMENT)
      << "a channel of another GPU";
  EXPECT_EQ(b.held(), 0);
}

TEST(RmControls, ChecksSizesPointersAndMethods) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto answer = [&](rm::NvHandle object, std::uint32_t command, std::uint64_t params,
                          std::uint32_t size) {
    rm::NVOS54_PARAMETERS args{};
    args.hClient = app.client;
    args.hObject = object;
    args.cmd = command;
    args.params = params;
    args.paramsSize = size;
    EXPECT_EQ(b.call(rm_app, app.file, rm::NV_RM_CONTROL, args), 0);
    return args.status;
  };
  constexpr auto disable = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
  EXPECT_EQ(answer(app.subdevice, disable, parameters_at, 535), rm::NV_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(answer(app.subdevice, disable, 0, 536), rm::NV_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(answer(app.subdevice, disable, parameters_at, 0), rm::NV_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(answer(app.subdevice, disable, 0xdead0000, 536), invalid_address);
  EXPECT_EQ(answer(app.group, disable, parameters_at, 536), rm::NV_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer(app.subdevice, 0x20801234, parameters_at, 8), rm::NV_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer(0x1234, disable, parameters_at, 536), rm::NV_ERR_OBJECT_NOT_FOUND);
}

TEST(RmControls, AreServedOneAfterTheOtherOnEachGpu) {
  rm_bench b{rm_profile(2)};
  const auto app = b.make_context(rm_app);
  const auto other = b.make_context(rm_other);
  const auto elsewhere = b.make_context(rm_scheduler, b.open(rm_scheduler), 1);
  const auto begin = b.planned.now();
  std::vector<std::unique_ptr<pending_call<rm::NVOS54_PARAMETERS>>> calls;
  for (const auto* each : {&app, &other, &elsewhere}) {
    calls.push_back(
        b.begin(each->pid, each->file, rm::NV_RM_CONTROL,
                b.control_args(each->pid, each->client, each->subdevice,
                               rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, b.all_of({each}, true))));
  }
  for (const auto& each : calls) EXPECT_EQ(b.finish(*each), 0);
  EXPECT_EQ(calls[0]->finished - begin, 640us);
  EXPECT_EQ(calls[1]->finished - begin, 1280us);
  EXPECT_EQ(calls[2]->finished - begin, 640us);
}

TEST(RmGroups, HaveTimeSlicesThatOutliveTheirSetter) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto copies = b.make(rm_app, app.file, app.client, app.device, rm::KEPLER_CHANNEL_GROUP_A);
  const auto slice = [&](rm::NvHandle group, std::uint32_t command, std::uint64_t value) {
    rm::NVA06C_CTRL_TIMESLICE_PARAMS params{value};
    EXPECT_EQ(b.control(rm_scheduler, app.file, app.client, group, command, params),
              value == 0 && command == rm::NVA06C_CTRL_CMD_SET_TIMESLICE
                  ? rm::NV_ERR_INVALID_ARGUMENT
                  : rm::NV_OK);
    return params.timesliceUs;
  };
  constexpr auto set = rm::NVA06C_CTRL_CMD_SET_TIMESLICE;
  constexpr auto get = rm::NVA06C_CTRL_CMD_GET_TIMESLICE;
  EXPECT_EQ(slice(app.group, get, 0), 2048U);
  EXPECT_EQ(slice(copies, get, 0), 1024U);
  slice(app.group, set, 50);
  slice(app.group, set, 0);
  b.machine.exit(rm_scheduler);
  b.sim.reap();
  rm::NVA06C_CTRL_TIMESLICE_PARAMS params{};
  ASSERT_EQ(b.control(rm_app, app.file, app.client, app.group, get, params), rm::NV_OK);
  EXPECT_EQ(params.timesliceUs, 50U);
}

// The group that has the GPU keeps it for its slice; each change costs 190 us.
TEST(RmGroups, TakeTurnsOnTheGpu) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  const auto other = b.make_context(rm_other);
  const auto begin = b.planned.now();
  ASSERT_EQ(b.submit(app, 3ms), rm::NV_OK);
  ASSERT_EQ(b.submit(other, 1ms), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.at(b.record(other, 0).start), begin + 2048us + 190us);
  EXPECT_EQ(b.at(b.record(other, 0).end), begin + 2048us + 190us + 1ms);
  EXPECT_EQ(b.at(b.record(app, 0).end), begin + 3ms + 2 * 190us + 1ms);

  rm::NVA06C_CTRL_TIMESLICE_PARAMS slice{50};
  ASSERT_EQ(
      b.control(rm_app, app.file, app.client, app.group, rm::NVA06C_CTRL_CMD_SET_TIMESLICE, slice),
      rm::NV_OK);
  ASSERT_EQ(b.submit(app, 3ms), rm::NV_OK);
  b.run_for(1ms);
  const auto arrival = b.planned.now();
  ASSERT_EQ(b.submit(other, 65us), rm::NV_OK);
  b.run_for(1s);
  EXPECT_LE(b.at(b.record(other, 1).start), arrival + 50us + 190us);
  EXPECT_EQ(b.stat("kernels_completed"), 2);
}

TEST(RmKernels, EndWhereTheirPageIsGoneWithoutHarm) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  b.machine.memory(rm_app).unmap(page_at, fake_memory::page);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  b.run_for(1s);
  EXPECT_EQ(b.stat("kernels_completed"), 3);
  EXPECT_EQ(b.stat("broken_queues"), 1);
}

TEST(RmKernels, AreWaitedForUntilASignalOrTheTimeoutComes) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  ASSERT_EQ(b.submit(app, 5ms), rm::NV_OK);
  const auto wait = [&](std::uint64_t index, duration timeout) {
    return b.begin(rm_app, app.file, nvidia_abi::SLUICE_SIM_WAIT,
                   nvidia_abi::wait_args{.hClient = app.client,
                                         .hChannel = app.channels[0],
                                         .index = index,
                                         .timeout = static_cast<std::uint64_t>(timeout.count()),
                                         .status = 0,
                                         .pad = 0});
  };
  const auto early = wait(0, 2ms);
  EXPECT_EQ(b.finish(*early), 0);
  EXPECT_EQ(early->args.status, nvidia_abi::NV_ERR_TIMEOUT);
  const auto unknown = wait(1, 2ms);
  EXPECT_EQ(unknown->args.status, rm::NV_ERR_INVALID_ARGUMENT);
  const auto interrupted = wait(0, 1s);
  b.sim.interrupt(interrupted->request);
  EXPECT_EQ(b.finish(*interrupted), -512);
  const auto whole = wait(0, 1s);
  EXPECT_EQ(b.finish(*whole), 0);
  EXPECT_EQ(whole->args.status, rm::NV_OK);
  EXPECT_EQ(b.completed(app), 1U);
}

TEST(RmKernels, RunOnChannelsThatComputeOnly) {
  rm_bench b;
  auto app = b.make_context(rm_app);
  app.channels[0] = b.make(rm_app, app.file, app.client, app.group, rm::HOPPER_CHANNEL_GPFIFO_A);
  b.make(rm_app, app.file, app.client, app.channels[0], rm::HOPPER_DMA_COPY_A);
  EXPECT_EQ(b.submit(app, 1ms), rm::NV_ERR_NOT_SUPPORTED);
}

/// What shows the first channel's kernels.
struct shown {
  std::uint32_t gp_get = 0, get = 0, get_high = 0, count = 0;
  std::uint64_t at = 0;
  std::vector<std::uint32_t> states{};
};
shown words_of(rm_bench& b) {
  namespace userd = nvidia_abi::userd;
  auto& memory = b.machine.memory(rm_app);
  const auto word = [&memory](std::uint64_t offset) {
    return memory.get<std::uint32_t>(words_at + offset);
  };
  shown out{.gp_get = word(userd::gp_get),
            .get = word(userd::get),
            .get_high = word(userd::get_high),
            .count = word(record_at),
            .at = memory.get<std::uint64_t>(words_at + record_at + 8)};
  for (std::uint64_t slot = 0; slot < nvidia_abi::state_slots; ++slot)
    out.states.push_back(word(states_at + 8 * slot + 4));
  return out;
}

using states = std::vector<std::uint32_t>;

TEST(RmWords, AreConsistentAfterKernelsThatNoStoreShowed) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  for (int i = 0; i < 11; ++i) ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  b.planned.run_until(b.planned.now() + 10500us);  // One step.
  auto now = words_of(b);
  EXPECT_EQ(now.count, 11U);
  EXPECT_EQ(now.gp_get, 11U);
  EXPECT_EQ(now.get, 11 * nvidia_abi::userd::push_bytes);
  EXPECT_EQ(now.get_high, 2U);
  EXPECT_EQ(now.states, (states{10, 10, 9, 6, 6, 6, 6, 6})) << "the last one runs";
  const auto began = now.at;
  b.run_for(1ms);
  now = words_of(b);
  EXPECT_EQ(now.states, (states{10, 10, 10, 6, 6, 6, 6, 6}));
  EXPECT_EQ(now.count, 11U);
  EXPECT_EQ(now.at, began) << "the time of a start";
}

TEST(RmWords, CountOnWhenTheChannelGetsAnotherPage) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(b.submit(app, 1h), rm::NV_OK);
  b.run_for(1ms);
  EXPECT_EQ(words_of(b).states, (states{5, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(words_of(b).count, 1U);
  ASSERT_EQ(b.bind(app, 0), rm::NV_OK);
  EXPECT_EQ(words_of(b).states, (states{6, 6, 6, 0, 0, 0, 0, 0})) << "none is left running";
  EXPECT_EQ(words_of(b).count, 3U);
  ASSERT_EQ(b.bind(app, page_at), rm::NV_OK);
  ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  b.run_for(2ms);
  EXPECT_EQ(words_of(b).states, (states{6, 6, 6, 6, 0, 0, 0, 0}));
  EXPECT_EQ(words_of(b).count, 4U);
  EXPECT_EQ(words_of(b).gp_get, 4U);
}

// The program writes these two at the same time.
TEST(RmWords, LeaveThoseOfTheProgramAlone) {
  namespace userd = nvidia_abi::userd;
  rm_bench b;
  const auto app = b.make_context(rm_app);
  auto& memory = b.machine.memory(rm_app);
  for (const auto each : {userd::put, userd::put_high, userd::gp_put})
    memory.put(words_at + each, std::uint32_t{0x12345678});
  ASSERT_EQ(b.submit(app, 1ms), rm::NV_OK);
  b.run_for(2ms);
  EXPECT_EQ(words_of(b).gp_get, 1U);
  for (const auto each : {userd::put, userd::put_high, userd::gp_put})
    EXPECT_EQ(memory.get<std::uint32_t>(words_at + each), 0x12345678U) << each;
  for (const auto& each : memory.words) {
    for (const auto word : {userd::put, userd::put_high, userd::gp_put}) {
      EXPECT_TRUE(each.address + 8 <= words_at + word || words_at + word + 4 <= each.address)
          << "a store over the word at " << word;
    }
  }
}

TEST(RmFaults, AnswerDelayAndHangCallsOfOneKind) {
  rm_bench b;
  const auto app = b.make_context(rm_app);
  b.command("answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=2");
  b.command("delay FIFO_DISABLE_CHANNELS:DISABLE 5ms");
  const auto begin = b.planned.now();
  EXPECT_EQ(b.disable(app, true), rm::NV_OK);
  EXPECT_EQ(b.planned.now() - begin, 5640us);
  EXPECT_EQ(b.disable(app, false), rm::NV_ERR_GPU_IS_LOST);
  EXPECT_EQ(b.disable(app, false), rm::NV_ERR_GPU_IS_LOST);
  EXPECT_EQ(b.held(), 1);

  b.command("hang FIFO_DISABLE_CHANNELS caller=100");
  const auto hanging =
      b.begin(rm_app, app.file, rm::NV_RM_CONTROL,
              b.control_args(rm_app, app.client, app.subdevice,
                             rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, b.all_of({&app}, false)));
  b.sim.interrupt(hanging->request);
  b.run_for(1h);
  EXPECT_FALSE(hanging->result) << "no signal ends it";
  b.command("no-faults");
  EXPECT_EQ(b.finish(*hanging), 0);
  EXPECT_EQ(b.held(), 0);
  EXPECT_EQ(b.stat("FIFO_DISABLE_CHANNELS"), 4);
}

TEST(RmFaults, SayWhatIsWrongWithACommand) {
  rm_bench b;
  std::string problem;
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"reset 5", "unknown command 'reset'; available: answer"},
           {"answer", "usage: answer CALL STATUS"},
           {"hang", "usage: hang CALL [caller=PID]"},
           {"hang NOTHING", "unknown call 'NOTHING'; available: ALLOC, FREE"},
           {"hang ALLOC:DISABLE", "only FIFO_DISABLE_CHANNELS accepts an operation"},
           {"answer FREE NOPE", "unknown status 'NOPE'; available: BUSY_RETRY"},
           {"delay FREE 2h", "invalid duration '2h'"},
           {"hang FREE target=5",
            "unknown condition 'target=5'; available: caller=PID, times=N"}}) {
    EXPECT_EQ(b.sim.control(line, problem), -EINVAL) << line;
    EXPECT_NE(problem.find(part), std::string::npos) << line << ": " << problem;
  }
  EXPECT_EQ(b.sim.control("# a comment", problem), 0);
}

}  // namespace
}  // namespace sluice::sim::test
