#include "driver.hpp"
#include "driver_bench.hpp"

#include <linux/capability.h>

namespace sluice::sim::test::driver_dispatch_test {
namespace {

constexpr std::uint32_t with_size(std::uint32_t command, std::uint32_t size) {
  return (command & ~(std::uint32_t{_IOC_SIZEMASK} << _IOC_SIZESHIFT)) | size << _IOC_SIZESHIFT;
}

TEST(DriverDispatch, TellsItsVersion) {
  driver_bench b;
  b.open(app);
  uapi::kfd_ioctl_get_version_args args{};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_VERSION, args), 0);
  EXPECT_EQ(args.major_version, 1U);
  EXPECT_EQ(args.minor_version, 17U);
}

TEST(DriverDispatch, SelectsTheHandlerByNumberAlone) {
  driver_bench b;
  b.open(app);
  b.map_area(app, 0);
  // The size of before 1.17: 88 bytes, without sdma_engine_id.
  struct old_args {
    std::array<std::byte, uapi::KFD_CREATE_QUEUE_ARGS_SIZE_1_16> bytes;
  } old;
  const auto args = b.queue_args(0);
  std::memcpy(&old, &args, sizeof old);
  const auto command = with_size(uapi::AMDKFD_IOC_CREATE_QUEUE, sizeof old);
  EXPECT_EQ(b.call(app, command, old), 0);
  EXPECT_EQ(b.sim->queues_of(app).size(), 1U);
}

TEST(DriverDispatch, CopiesAsMuchAsTheCallersCommandSays) {
  driver_bench b;
  b.open(app);
  struct larger {
    uapi::kfd_ioctl_get_version_args args{};
    std::uint64_t beyond = 0x1111;
  } wide;
  EXPECT_EQ(b.call(app, with_size(uapi::AMDKFD_IOC_GET_VERSION, sizeof wide), wide), 0);
  EXPECT_EQ(wide.args.major_version, 1U);
  std::uint32_t narrow = 0;
  EXPECT_EQ(b.call(app, with_size(uapi::AMDKFD_IOC_GET_VERSION, 4), narrow), 0);
  EXPECT_EQ(narrow, 1U) << "the major version only";
}

TEST(DriverDispatch, CopiesBackWhenTheHandlerFailed) {
  driver_bench b;
  b.open(app);
  uapi::kfd_ioctl_wait_events_args args{
      .events_ptr = 0x1, .num_events = 1, .wait_for_all = 0, .timeout = 0, .wait_result = 77};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_WAIT_EVENTS, args), -EFAULT);
  EXPECT_EQ(args.wait_result, uapi::KFD_IOC_WAIT_RESULT_FAIL);
}

TEST(DriverDispatch, GivesNothingBackForWriteOnlyCommands) {
  driver_bench b;
  const auto file = b.open(app);
  std::optional<ioctl_reply> reply;
  const std::array<std::byte, 8> in{};
  b.sim->ioctl(app, file, uapi::AMDKFD_IOC_SET_EVENT, in,
               [&](ioctl_reply r) { reply = std::move(r); });
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->result, -EINVAL);
  EXPECT_TRUE(reply->out.empty());
}

TEST(DriverDispatch, AnswersENOTTYToNumbersOutsideItsTable) {
  driver_bench b;
  b.open(app);
  std::uint64_t args = 0;
  for (const unsigned number : {0x00U, 0x28U, 0x7fU, 0x80U, 0xffU}) {
    EXPECT_EQ(b.call(app, _IOWR('K', number, std::uint64_t), args), -ENOTTY) << number;
  }
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_PROCESS, args), -ENOTTY) << "ABI 1.19 has it";
}

TEST(DriverDispatch, HasNoDebuggerBeforeAbi13) {
  auto node = default_profile();
  node.abi_minor = 12;
  driver_bench b{node};
  b.open(app);
  EXPECT_EQ(b.runtime_enable(app), -ENOTTY);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_DISABLE);
  EXPECT_EQ(b.trap(args, app), -ENOTTY);
}

TEST(DriverDispatch, AnswersEOPNOTSUPPToCommandsItDoesNotSimulate) {
  driver_bench b;
  b.open(app);
  uapi::kfd_ioctl_criu_args args{};
  args.op = uapi::KFD_CRIU_OP_CHECKPOINT;
  b.machine.capabilities.insert({app, CAP_CHECKPOINT_RESTORE});
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CRIU_OP, args), -EOPNOTSUPP);
}

TEST(DriverDispatch, RefusesADescriptorOfAnotherProcess) {
  driver_bench b;
  const auto file = b.open(app);
  uapi::kfd_ioctl_get_version_args args{};
  EXPECT_EQ(b.call(other, file, uapi::AMDKFD_IOC_GET_VERSION, args), -EBADF);
  EXPECT_EQ(b.call(app, file + 1, uapi::AMDKFD_IOC_GET_VERSION, args), -EBADF);
}

TEST(DriverDispatch, ServesEveryThreadOfTheOpeningProcess) {
  driver_bench b;
  b.open(app);
  b.machine.add_thread(app, app + 1);
  uapi::kfd_ioctl_get_version_args args{};
  EXPECT_EQ(b.call(app + 1, b.file(app), uapi::AMDKFD_IOC_GET_VERSION, args), 0);
}

// --- Processes ---

TEST(DriverProcess, ExistsOncePerAddressSpaceFromTheFirstOpenToTheEndOfTheMemory) {
  driver_bench b;
  std::vector<std::pair<pid_t, bool>> seen;
  b.sim->on_process = [&](pid_t pid, bool appeared) { seen.emplace_back(pid, appeared); };
  const auto first = b.open(app);
  const auto second = b.open(app);
  EXPECT_NE(first, second);
  b.sim->release(first);
  b.sim->release(second);
  b.sim->reap();
  EXPECT_TRUE(b.sim->has_process(app)) << "close drops nothing";
  b.machine.exit(app);
  b.sim->reap();
  EXPECT_FALSE(b.sim->has_process(app));
  EXPECT_EQ(seen, (std::vector<std::pair<pid_t, bool>>{{app, true}, {app, false}}));
}

TEST(DriverProcess, AnExecdProgramIsANewProcess) {
  driver_bench b;
  b.open(app);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  std::vector<std::pair<pid_t, bool>> seen;
  b.sim->on_process = [&](pid_t pid, bool appeared) { seen.emplace_back(pid, appeared); };
  const auto inherited = b.file(app);
  b.exec(app);
  b.open(app);  // Before anybody noticed the exec.
  EXPECT_EQ(seen, (std::vector<std::pair<pid_t, bool>>{{app, false}, {app, true}}));
  EXPECT_TRUE(b.sim->queues_of(app).empty());
  uapi::kfd_ioctl_get_version_args args{};
  EXPECT_EQ(b.call(app, inherited, uapi::AMDKFD_IOC_GET_VERSION, args), -ESRCH);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_VERSION, args), 0);
}

TEST(DriverProcess, IsNotMadeForWhoIsNotThere) {
  driver_bench b;
  file_id file = 0;
  EXPECT_EQ(b.sim->open(12345, 0, file), -ESRCH);
  b.machine.become_zombie(other);
  EXPECT_EQ(b.sim->open(other, 0, file), -ESRCH);
}

TEST(DriverProcess, IsBoundToEveryGpu) {
  auto node = default_profile();
  node.gpus.push_back(node.gpus[0]);
  node.gpus[1].gpu_id = 4242;
  driver_bench b{node};
  b.open(app);
  EXPECT_EQ(b.sim->gpus_of(app), (std::vector<std::uint32_t>{node.gpus[0].gpu_id, 4242}));
  uapi::kfd_ioctl_get_process_apertures_new_args args{};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args), 0);
  EXPECT_EQ(args.num_of_nodes, 2U);
  args.kfd_process_device_apertures_ptr = scratch;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args), 0);
  const auto second = b.machine.memory(app).get<uapi::kfd_process_device_apertures>(
      scratch + sizeof(uapi::kfd_process_device_apertures));
  EXPECT_EQ(second.gpu_id, 4242U);
  args.kfd_process_device_apertures_ptr = 8;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args), -EFAULT);
}

TEST(DriverProcess, ReadsTheClocks) {
  driver_bench b;
  b.open(app);
  uapi::kfd_ioctl_get_clock_counters_args args{};
  args.gpu_id = b.profile_.gpus[0].gpu_id;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS, args), 0);
  EXPECT_EQ(args.system_clock_counter, 1'000'000'000U) << "the engine's clock";
  EXPECT_EQ(args.system_clock_freq, 1'000'000'000U);
  EXPECT_EQ(args.gpu_clock_counter, 100'000'000U);
}

// Symptom it guards against: a device that runs out of descriptors after thousands of clients.
TEST(DriverProcess, AnExitedOnesMemoryIsLetGo) {
  driver_bench b;
  b.open(app);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.publish(app, 0, {.length = 1ms});
  const auto memory = b.machine.observe(app);
  b.machine.exit(app);
  b.sim->reap();
  EXPECT_TRUE(memory.expired());
  b.run_for(1s);
}

TEST(DriverProcess, ExitedOnesStayInTheAccounts) {
  driver_bench b;
  b.open(app);
  b.machine.exit(app);
  b.sim->reap();
  b.settle();
  EXPECT_EQ(b.process_stat(app, "alive"), 0);
}

TEST(DriverStats, ReportLatenessWithinASixteenth) {
  driver_bench b;
  for (int i = 1; i <= 1000; ++i) b.sim->lateness.record(std::chrono::microseconds{i});
  const auto text = b.sim->stats_json();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      text, found,
      std::regex{R"("lateness_ns":\{"count":1000,"p50":([0-9]+),"p99":([0-9]+),"max":1000000\})"}))
      << text;
  EXPECT_NEAR(std::stod(found[1]), 500e3, 500e3 / 16);
  EXPECT_NEAR(std::stod(found[2]), 990e3, 990e3 / 16);
}

TEST(DriverStats, EscapeTheProfilesName) {
  auto node = default_profile();
  node.name = "a \"b\"\\\n";
  const driver_bench b{node};
  EXPECT_NE(b.sim->stats_json().find(R"("profile":"a \"b\"\\ ")"), std::string::npos);
}

}  // namespace
}  // namespace sluice::sim::test::driver_dispatch_test
