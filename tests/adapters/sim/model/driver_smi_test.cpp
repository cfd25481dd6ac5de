/// SMI events: who gets a descriptor, who sees which line, and what the lines look like.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "driver_state.hpp"
#include "smi_payload.hpp"

#include <linux/capability.h>

#include <gmock/gmock.h>

namespace sluice::sim::test::driver_smi_test {
namespace {

using ::testing::StartsWith;

constexpr std::uint64_t bit(uapi::kfd_smi_event event) {
  return std::uint64_t{1} << (static_cast<unsigned>(event) - 1U);
}
constexpr auto start_bit = bit(uapi::KFD_SMI_EVENT_PROCESS_START);
constexpr auto end_bit = bit(uapi::KFD_SMI_EVENT_PROCESS_END);
constexpr auto fault_bit = bit(uapi::KFD_SMI_EVENT_VMFAULT);
constexpr auto all_processes = bit(uapi::KFD_SMI_EVENT_ALL_PROCESS);

profile newer_driver() {
  auto node = default_profile();
  node.smi_process_events = true;
  node.gpus.push_back(node.gpus[0]);
  node.gpus[1].gpu_id = 7;
  return node;
}

class DriverSmi : public ::testing::Test {
 protected:
  explicit DriverSmi(profile node = newer_driver()) : b{std::move(node)} {
    for (const pid_t pid : {app, scheduler, other}) b.open(pid);
    b.sim->on_smi_event = [this](std::uint64_t client) { woken.push_back(client); };
  }
  int ask(pid_t pid, std::uint32_t gpu_id) {
    uapi::kfd_ioctl_smi_events_args args{};
    args.gpuid = gpu_id;
    return b.call(pid, uapi::AMDKFD_IOC_SMI_EVENTS, args);
  }
  /// An open client with a mask.
  std::uint64_t client(pid_t pid, std::uint64_t mask, std::uint32_t gpu_id = 51110) {
    EXPECT_EQ(ask(pid, gpu_id), 0);
    auto& promised = b.machine.handovers.back();
    EXPECT_EQ(b.sim->file_open(promised.file, pid), 0);
    promised.told.done(0);
    EXPECT_EQ(b.sim->smi_write(promised.file, std::as_bytes(std::span{&mask, 1})), 8);
    return promised.file;
  }
  std::string read(std::uint64_t client, std::size_t room = 8192) {
    std::string out;
    const int error = b.sim->smi_read(client, room, out);
    return error == 0 ? out : "error " + std::to_string(-error);
  }
  void fault(pid_t pid, const std::string& gpu_id = "51110") {
    std::string problem;
    EXPECT_EQ(b.sim->control("vmfault " + std::to_string(pid) + " " + gpu_id, problem), 0)
        << problem;
  }

  driver_bench b;
  std::vector<std::uint64_t> woken;
};

const std::string nothing = "error " + std::to_string(EAGAIN);

TEST_F(DriverSmi, RefusesAGpuThatIsNone) {
  EXPECT_EQ(ask(app, 1), -EINVAL);
  EXPECT_TRUE(b.machine.handovers.empty());
}

TEST_F(DriverSmi, PromisesItsFileToTheCallingThreadAlone) {
  b.machine.add_thread(app, 101);
  uapi::kfd_ioctl_smi_events_args args{};
  args.gpuid = 51110;
  ASSERT_EQ(b.call(101, b.file(app), uapi::AMDKFD_IOC_SMI_EVENTS, args), 0);
  const auto& promised = b.machine.handovers.back();
  EXPECT_EQ(promised.tid, 101);
  EXPECT_EQ(promised.where.offset, offsetof(uapi::kfd_ioctl_smi_events_args, anon_fd));
  EXPECT_FALSE(promised.where.close_on_exec);
  EXPECT_FALSE(b.sim->file_promised(promised.file, app));
  EXPECT_EQ(b.sim->file_open(promised.file, app), -ENOENT);
  EXPECT_TRUE(b.sim->file_promised(promised.file, 101));
  EXPECT_EQ(b.sim->file_open(promised.file, 101), 0);
  EXPECT_FALSE(b.sim->file_promised(promised.file, 101)) << "once";
  EXPECT_EQ(b.sim->file_open(promised.file, 101), -ENOENT);
}

TEST_F(DriverSmi, WaitsForTheMachineAndRefusesWithItsError) {
  b.machine.handover_error.reset();
  uapi::kfd_ioctl_smi_events_args args{};
  args.gpuid = 51110;
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_SMI_EVENTS, args);
  b.sim->interrupt(pending->request);  // The stop itself shows as a signal.
  b.run_for(1s);
  ASSERT_FALSE(pending->result);
  const auto& promised = b.machine.handovers.back();
  promised.told.ready(EBUSY);
  EXPECT_EQ(b.finish(*pending), -EBUSY);
  EXPECT_FALSE(b.sim->file_promised(promised.file, app));
}

TEST_F(DriverSmi, ForgetsAClientThatDidNotGetItsDescriptor) {
  ASSERT_EQ(ask(app, 51110), 0);
  auto& promised = b.machine.handovers.back();
  promised.told.done(EMFILE);
  EXPECT_FALSE(b.sim->file_promised(promised.file, app));
}

TEST_F(DriverSmi, SaysNothingBeforeAMaskIsWritten) {
  ASSERT_EQ(ask(app, 51110), 0);
  const auto file = b.machine.handovers.back().file;
  ASSERT_EQ(b.sim->file_open(file, app), 0);
  fault(app);
  EXPECT_EQ(read(file), nothing);
  const std::array<std::byte, 7> short_mask{};
  EXPECT_EQ(b.sim->smi_write(file, short_mask), -EFAULT);
  EXPECT_FALSE(b.sim->smi_readable(file));
}

TEST_F(DriverSmi, WritesTheEventsNumberAndPayloadInHexadecimal) {
  const auto mine = client(app, fault_bit);
  const auto others = client(other, fault_bit);
  const auto elsewhere = client(app, fault_bit, 7);
  const auto uninterested = client(app, start_bit);
  fault(app);
  // A fault concerns everybody on the GPU. 100 is 64 in hexadecimal.
  EXPECT_EQ(read(mine), "1 64:task100\n");
  EXPECT_EQ(read(others), "1 64:task100\n");
  EXPECT_EQ(read(elsewhere), nothing);
  EXPECT_EQ(read(uninterested), nothing);
  EXPECT_EQ(woken, (std::vector<std::uint64_t>{mine, others}));
}

TEST_F(DriverSmi, RaisesTheMemoryViolationToADebuggerAsWell) {
  b.machine.trace(app, scheduler);
  ASSERT_EQ(b.enable(app, scheduler, uapi::KFD_EC_MASK(uapi::EC_DEVICE_MEMORY_VIOLATION)), 0);
  fault(app, "7");
  const auto event = b.query(~std::uint64_t{0});
  EXPECT_EQ(event.result, 0);
  EXPECT_EQ(event.status, uapi::KFD_EC_MASK(uapi::EC_DEVICE_MEMORY_VIOLATION));
  EXPECT_EQ(event.gpu, 7U);
}

TEST_F(DriverSmi, AnnouncesAProcessOncePerGpuAndItsEnd) {
  const auto first = client(scheduler, start_bit | end_bit);
  const auto second = client(scheduler, start_bit | end_bit, 7);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 1), 1);
  b.acquire(app);
  EXPECT_EQ(read(first), "c 64 task100\n");
  EXPECT_EQ(read(second), nothing);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(read(first), "d 64 task100\n");
  EXPECT_EQ(read(second), nothing) << "it never used that GPU";
}

TEST_F(DriverSmi, DropsALineThatDoesNotFitAndCutsNone) {
  const auto slow = client(other, fault_bit);
  const std::string line = "1 64:task100\n";
  for (int i = 0; i < 200; ++i) fault(app);
  const auto queued = read(slow, 1 << 20);
  EXPECT_EQ(queued.size(), 1024 / line.size() * line.size());
  EXPECT_EQ(queued.substr(queued.size() - line.size()), line);
  fault(app);
  EXPECT_EQ(read(slow), line) << "there is room again";
}

TEST_F(DriverSmi, FillsASmallBufferAndKeepsTheRest) {
  const auto reader = client(other, fault_bit);
  fault(app);
  EXPECT_EQ(read(reader, 4), "1 64");
  EXPECT_TRUE(b.sim->smi_readable(reader));
  EXPECT_EQ(read(reader, 100), ":task100\n");
  EXPECT_FALSE(b.sim->smi_readable(reader));
}

TEST_F(DriverSmi, ReleasesAClient) {
  const auto gone = client(other, fault_bit);
  b.sim->file_release(gone);
  fault(app);
  EXPECT_TRUE(woken.empty());
  EXPECT_EQ(read(gone), "error " + std::to_string(EINVAL));
}

// With the fix of mid-2026, events of a process are its own clients', and of those who had
// CAP_SYS_ADMIN when they asked.
class DriverSmiFixed : public DriverSmi {
 protected:
  DriverSmiFixed()
      : DriverSmi{[] {
          auto node = newer_driver();
          node.authority = trap_authority::debugger_process;
          return node;
        }()} {}
};

TEST_F(DriverSmiFixed, ShowsAProcessToItselfAndToAdministrators) {
  const auto own = client(app, start_bit);
  const auto stranger = client(other, start_bit | all_processes);
  b.machine.capabilities.insert({scheduler, CAP_SYS_ADMIN});
  const auto administrator = client(scheduler, start_bit);
  b.machine.capabilities.clear();  // What counts is when it asked.
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(read(own), "c 64 task100\n");
  EXPECT_EQ(read(stranger), nothing);
  EXPECT_EQ(read(administrator), "c 64 task100\n");
}

TEST_F(DriverSmi, TellsTheOwnerOfEvictionAndRestore) {
  using uapi::KFD_SMI_EVENT_QUEUE_EVICTION;
  using uapi::KFD_SMI_EVENT_QUEUE_RESTORE;
  const auto both = bit(KFD_SMI_EVENT_QUEUE_EVICTION) | bit(KFD_SMI_EVENT_QUEUE_RESTORE);
  const auto own = client(app, both);
  const auto stranger = client(other, both | all_processes);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto when = std::to_string(b.planned.now().time_since_epoch().count());
  std::string problem;
  ASSERT_EQ(b.sim->control("evict 100 51110", problem), 0) << problem;
  b.settle();
  EXPECT_EQ(read(own), "9 " + when + " -100 c7a6 2\n");
  b.run_for(1s);
  const auto later = std::to_string(b.planned.now().time_since_epoch().count());
  ASSERT_EQ(b.sim->control("restore 100 51110", problem), 0) << problem;
  b.settle();
  EXPECT_EQ(read(own), "a " + later + " -100 c7a6\n");
  EXPECT_EQ(read(stranger), nothing);
}

TEST_F(DriverSmi, NumbersTheResetsOfAGpu) {
  const auto mask =
      bit(uapi::KFD_SMI_EVENT_GPU_PRE_RESET) | bit(uapi::KFD_SMI_EVENT_GPU_POST_RESET);
  const auto reader = client(other, mask);
  std::string problem;
  ASSERT_EQ(b.sim->control("reset 51110", problem), 0) << problem;
  b.settle();
  EXPECT_EQ(read(reader), "3 1\n");
  EXPECT_EQ(b.sim->hqds().substr(0, 41), "Node 1, gpu_id c7a6:\n Device is stopped\nN");
  b.run_for(60s);
  EXPECT_EQ(read(reader), "4 1\n");
  ASSERT_EQ(b.sim->control("reset 51110", problem), 0) << problem;
  b.run_for(60s);
  EXPECT_EQ(read(reader), "3 2\n4 2\n");
}

class DriverSmiOld : public DriverSmi {
 protected:
  DriverSmiOld() : DriverSmi{default_profile()} {}
};

TEST_F(DriverSmiOld, KnowsNoProcessEvents) {
  const auto reader = client(app, ~std::uint64_t{0});
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(read(reader), nothing);
}

// An event with an owner is for its owner's clients; for others only if they were administrators
// when they asked, and have set the bit for all processes.
TEST(SmiAudience, IsTheOwnerAndAdministratorsWhoAsk) {
  constexpr auto event = uapi::KFD_SMI_EVENT_QUEUE_EVICTION;
  const auto client = [](pid_t pid, bool administrator, std::uint64_t mask) {
    smi_client made;
    made.pid = pid;
    made.administrator = administrator;
    made.events = mask;
    return made;
  };
  EXPECT_TRUE(sees(client(app, false, bit(event)), event, {.owner = app}));
  EXPECT_FALSE(sees(client(app, false, fault_bit), event, {.owner = app}));
  EXPECT_FALSE(sees(client(other, false, bit(event)), event, {.owner = app}));
  EXPECT_FALSE(sees(client(other, false, bit(event) | all_processes), event, {.owner = app}));
  EXPECT_FALSE(sees(client(other, true, bit(event)), event, {.owner = app}));
  EXPECT_TRUE(sees(client(other, true, bit(event) | all_processes), event, {.owner = app}));
  EXPECT_FALSE(sees(client(other, true, all_processes), event, {.owner = app}));
  EXPECT_TRUE(sees(client(other, false, bit(event)), event, {}));
}

// The formats of the driver's header, with what newer drivers add.
TEST(SmiPayload, FollowsTheDriversFormats) {
  using namespace std::string_literals;
  EXPECT_EQ(smi_payload::queue_eviction(123456789, 4242, 0x4db5, smi_eviction_trigger::ttm),
            "123456789 -4242 4db5 2\n");
  EXPECT_EQ(smi_payload::queue_restore(5, 4242, 0x4db5, std::nullopt), "5 -4242 4db5\n");
  EXPECT_EQ(smi_payload::queue_restore(5, 4242, 0x4db5, true), "5 -4242 4db5 R\n");
  EXPECT_EQ(smi_payload::queue_restore(5, 4242, 0x4db5, false), "5 -4242 4db5 \0\n"s);
  EXPECT_EQ(smi_payload::gpu_reset(26, ""), "1a\n");
  EXPECT_EQ(smi_payload::gpu_reset(26, "hang"), "1a hang\n");
  EXPECT_EQ(smi_payload::vm_fault(4242, "python3"), "1092:python3\n");
  EXPECT_EQ(smi_payload::process(4242, "python3"), "1092 python3\n");
}

// --- The commands of sim/control -----------------------------------------------------------------

TEST(DriverControl, SaysWhatIsWrongInOneSentence) {
  driver_bench b;
  b.open(app);
  const auto complaint = [&b](const char* line) {
    std::string problem;
    return b.sim->control(line, problem) == -EINVAL ? problem : "accepted";
  };
  EXPECT_THAT(complaint("explode 51110"),
              StartsWith("unknown command 'explode'; available: fail-cycle GPU DURATION"));
  EXPECT_EQ(complaint("fail-cycle 51110"), "usage: fail-cycle GPU DURATION [goes-on]");
  EXPECT_EQ(complaint("fail-cycle 5 1s"), "unknown GPU '5'; available gpu_ids: 51110");
  EXPECT_EQ(complaint("fail-cycle 51110 often"),
            "invalid duration 'often': expected 0s to 60s, such as 9s or 20ms");
  EXPECT_EQ(complaint("fail-cycle 51110 61s"),
            "invalid duration '61s': expected 0s to 60s, such as 9s or 20ms");
  EXPECT_EQ(complaint("vmfault 100"), "usage: vmfault PID GPU");
  EXPECT_EQ(complaint("vmfault 300 51110"),
            "unknown process '300': expected the pid of a process that opened the device");
  EXPECT_EQ(complaint("vmfault 100 x"), "unknown GPU 'x'; available gpu_ids: 51110");
  EXPECT_EQ(complaint("evict 100"), "usage: evict PID GPU");
  EXPECT_EQ(complaint("restore 300 51110"),
            "unknown process '300': expected the pid of a process that opened the device");
  EXPECT_EQ(complaint("reset"), "usage: reset GPU");
  EXPECT_EQ(complaint("fail-cycle 51110 1s later"), "usage: fail-cycle GPU DURATION [goes-on]");
  EXPECT_EQ(complaint("activation 100 late"), "usage: activation PID busy|error");
  EXPECT_EQ(complaint("activation 300 busy"),
            "unknown process '300': expected the pid of a process that opened the device");
  EXPECT_THAT(complaint("answer"), StartsWith("usage: answer CALL ERRNO"));
  EXPECT_THAT(complaint("answer MAKE_TEA EIO"), StartsWith("unknown call 'MAKE_TEA'; available: "));
  EXPECT_THAT(complaint("answer DBG_TRAP:SING EIO"),
              StartsWith("unknown operation 'SING' of DBG_TRAP; available: ENABLE"));
  EXPECT_EQ(complaint("answer CREATE_QUEUE:ENABLE EIO"),
            "invalid call 'CREATE_QUEUE:ENABLE': only DBG_TRAP and CRIU_OP accept an operation; "
            "omit ':ENABLE'");
  EXPECT_THAT(complaint("answer DBG_TRAP EWHAT"),
              StartsWith("unknown error 'EWHAT'; available: EAGAIN"));
  EXPECT_THAT(complaint("delay DBG_TRAP soon"), StartsWith("invalid duration 'soon'"));
  EXPECT_EQ(complaint("delay DBG_TRAP 1s times=0"),
            "invalid condition 'times=0': expected times=N with N from 1 to 1000000000");
  EXPECT_EQ(complaint("delay DBG_TRAP 1s times=1000000001"),
            "invalid condition 'times=1000000001': expected times=N with N from 1 to 1000000000");
  EXPECT_EQ(complaint("delay DBG_TRAP 1s caller=me"),
            "invalid condition 'caller=me': expected caller=N with N from 1 to 4194304");
  EXPECT_EQ(complaint("delay DBG_TRAP 1s who=1"),
            "unknown condition 'who=1'; available: caller=PID, target=PID, times=N");
  EXPECT_THAT(complaint("kill-target"), StartsWith("usage: kill-target DURATION"));
  EXPECT_EQ(complaint("answer CRIU_OP:UNPAUSE EIO times=2"), "accepted");
  EXPECT_EQ(complaint("no-faults"), "accepted");
  EXPECT_EQ(complaint(""), "accepted");
  EXPECT_EQ(complaint("  # a remark"), "accepted");
  EXPECT_EQ(complaint("\tvmfault  100 51110 \r"), "accepted");
}

TEST(DriverControl, FailsTheNextCycle) {
  driver_bench b;
  b.open(app);
  std::string problem;
  ASSERT_EQ(b.sim->control("fail-cycle 51110 20ms", problem), 0) << problem;
  const auto begin = b.planned.now();
  EXPECT_EQ(b.create_queue(app, 0), -ETIME);
  EXPECT_EQ(b.planned.now() - begin, 20ms);
  EXPECT_EQ(b.create_queue(app, 0), 0) << "one only";
}

}  // namespace
}  // namespace sluice::sim::test::driver_smi_test
