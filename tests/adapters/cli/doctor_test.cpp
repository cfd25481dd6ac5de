#include "doctor.hpp"

#include "mqds_text.hpp"
#include "temporary_directory.hpp"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::doctor_test {
namespace {

using testing::HasSubstr;

/// A machine made of files below a temporary directory: one healthy MI300X.
class Doctor : public testing::Test {
 protected:
  Doctor() {
    const std::string& name = directory_;
    here_.prefix = name;
    here_.where = {.device = name + "/dev/kfd", .sysfs = name + "/kfd", .debugfs = name + "/debug"};
    here_.try_io_uring = [] { return 0; };
    here_.breakers = name + "/run/breakers";
    here_.files.directory = name + "/run";
    write("proc/sys/kernel/osrelease", "6.12.0\n");
    write("proc/self/status", "Name:\tsluice\nCapEff:\t000001ffffffffff\n");
    for (const auto& [parameter, value] :
         {std::pair{"sched_policy", "0"}, {"cwsr_enable", "1"}, {"mes", "0"}})
      write(std::string{"sys/module/amdgpu/parameters/"} + parameter, std::string{value} + "\n");
    gpu(90402, 0x20008000);
    std::filesystem::create_directories(directory_ + "/kfd/proc");
    write("debug/mqds", "");
    std::filesystem::create_directories(directory_ + "/debug/proc");
  }

  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path{directory_} / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  void remove(const std::string& path) const {
    std::filesystem::remove_all(directory_ + "/" + path);
  }
  void gpu(std::uint32_t gfx, std::uint64_t capability) const {
    write("kfd/topology/nodes/1/gpu_id", "51110\n");
    write("kfd/topology/nodes/1/properties", "domain 0\nlocation_id 256\ngfx_target_version " +
                                                 std::to_string(gfx) + "\ncapability " +
                                                 std::to_string(capability) + "\n");
  }
  std::vector<check> gpus() const { return check_gpus(here_, *kfd::look_at_node(here_.where)); }
  void capabilities(const std::string& mask) const {
    write("proc/self/status", "CapEff:\t" + mask + "\n");
  }

  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  machine here_;
};

TEST_F(Doctor, FindsNothingWrongWithAHealthyMachine) {
  std::filesystem::remove_all(directory_ + "/dev");
  for (const auto& each : examine(here_)) {
    if (each.name == "device" || each.name == "pid namespace") continue;  // not faked
    EXPECT_EQ(each.what, verdict::good) << each.name << ": " << each.found;
    EXPECT_NE(each.how, "") << each.name;
  }
}

TEST_F(Doctor, ShowsOpenBreakers) {
  const auto node = *kfd::look_at_node(here_.where);
  write("run/breakers",
        "sluice breakers 1\nopen 51110 51110 reset 1000000 -\nopen 7 51110 reset 1000000 -\n"
        "open 8 8 stuck_call 1000 2000\n");
  const auto all = check_breakers(here_, node);
  ASSERT_EQ(all.size(), 2U) << "the last one's time is over";
  EXPECT_EQ(all[0].name, "breakers");
  EXPECT_EQ(all[0].what, verdict::note) << "it is not shown any more";
  EXPECT_THAT(all[0].found,
              HasSubstr("the GPU with gpu_id 7: its breaker is open: the driver reset the GPU (the "
                        "failure was on GPU 0 (gpu_id 51110) of the same hive)"));
  EXPECT_THAT(all[1].found, HasSubstr("GPU 0 (gpu_id 51110): its breaker is open: the driver reset "
                                      "the GPU; since 1970-01-01 00:16:40 UTC, until re-armed"));
  EXPECT_THAT(all[1].advice, HasSubstr("sluice breaker rearm 51110"));
  EXPECT_EQ(all[1].name, "breakers");
  EXPECT_TRUE(blocks(all)) << "the node has no other GPU";
  write("kfd/topology/nodes/2/gpu_id", "51367\n");
  write("kfd/topology/nodes/2/properties", "domain 0\nlocation_id 512\n");
  EXPECT_FALSE(blocks(check_breakers(here_, *kfd::look_at_node(here_.where))));
  write("run/breakers", "what\n");
  EXPECT_EQ(check_breakers(here_, node)[0].what, verdict::unknown);
  EXPECT_THAT(check_breakers(here_, node)[0].found,
              HasSubstr("run/breakers:1: invalid line \"what\""));
}

// Root may do all that, so this process is somebody else for a moment.
TEST_F(Doctor, SaysWhatAnotherUserMayNotChange) {
  const auto node = *kfd::look_at_node(here_.where);
  EXPECT_EQ(check_owner_lock(here_).what, verdict::good) << "which is not there yet";
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/run")) << "and stays so";
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
  std::filesystem::permissions(directory_, std::filesystem::perms{0755});
  write("run/owner", "");
  constexpr uid_t nobody = 65534;
  ASSERT_EQ(::seteuid(nobody), 0);
  const auto lock = check_owner_lock(here_);
  const auto breakers = check_breakers(here_, node);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(lock.what, verdict::blocked);
  EXPECT_THAT(lock.found, HasSubstr("run/owner cannot be opened by this user"));
  ASSERT_EQ(breakers.size(), 2U);
  EXPECT_EQ(breakers[1].what, verdict::note);
  EXPECT_THAT(breakers[1].found, HasSubstr("run/breakers cannot be written by this user"));
  EXPECT_EQ(check_owner_lock(here_).what, verdict::good);
  EXPECT_EQ(check_pause(here_).what, verdict::good);
  write("run/disabled", "new\tfirmware\n");
  EXPECT_EQ(check_pause(here_).what, verdict::blocked);
  EXPECT_THAT(check_pause(here_).found, HasSubstr("run/disabled exists: new?firmware"));
  EXPECT_EQ(check_breakers(here_, node).size(), 1U);
}

TEST_F(Doctor, MissesTheDevice) {
  const auto all = check_device(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::blocked);
  EXPECT_THAT(all[0].found, HasSubstr("dev/kfd cannot be opened: No such file"));
  EXPECT_THAT(all[0].advice, HasSubstr("modprobe amdgpu"));
}

TEST_F(Doctor, RecognisesAFileThatIsNoDevice) {
  write("dev/kfd", "");
  const auto all = check_device(here_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].what, verdict::blocked);
  EXPECT_THAT(all[1].found, HasSubstr("is not a KFD device"));
}

TEST_F(Doctor, TellsTheSchedulerOfEachGpu) {
  EXPECT_THAT(gpus()[0].found, HasSubstr("GPU 0 (0000:01:00.0, gfx 9.4.2): runlist"));
  gpu(110000, 0x20008000);
  EXPECT_THAT(gpus()[0].found, HasSubstr("MES"));
  gpu(100302, 0x20008000);
  write("sys/module/amdgpu/parameters/mes", "1\n");
  EXPECT_THAT(gpus()[0].found, HasSubstr("MES"));
  EXPECT_THAT(gpus()[0].how, HasSubstr("parameters/mes is 1"));
}

TEST_F(Doctor, TellsHowManyProcessesAGpuLetsDebug) {
  for (const std::uint32_t many : {90010U, 90402U, 90500U, 110000U, 120001U}) {
    gpu(many, 0x20008000);
    EXPECT_EQ(gpus()[1].what, verdict::good) << many;
  }
  for (const std::uint32_t one : {90000U, 90006U, 90008U, 100300U}) {
    gpu(one, 0x20008000);
    EXPECT_EQ(gpus()[1].what, verdict::note) << one;
    EXPECT_THAT(gpus()[1].found, HasSubstr("one process at a time"));
  }
}

TEST_F(Doctor, IsBlockedByAGpuWithoutDebugSupport) {
  gpu(90402, 0x8000);
  EXPECT_EQ(gpus()[1].what, verdict::blocked);
  EXPECT_THAT(gpus()[1].found, HasSubstr("its firmware does not support debugging"));
  gpu(90402, 0);
  EXPECT_EQ(gpus()[1].what, verdict::blocked);
  remove("kfd/topology/nodes/1");
  EXPECT_EQ(gpus()[0].what, verdict::blocked);
}

TEST_F(Doctor, ReadsTheModulesParameters) {
  EXPECT_EQ(check_scheduling(here_).what, verdict::good);
  write("sys/module/amdgpu/parameters/sched_policy", "2\n");
  EXPECT_EQ(check_scheduling(here_).what, verdict::blocked);
  write("sys/module/amdgpu/parameters/cwsr_enable", "0\n");
  EXPECT_EQ(check_cwsr(here_).what, verdict::blocked);
  remove("sys/module");
  EXPECT_EQ(check_scheduling(here_).what, verdict::unknown);
  EXPECT_EQ(check_cwsr(here_).what, verdict::unknown);
}

TEST_F(Doctor, KnowsWhoMayTrace) {
  EXPECT_EQ(check_tracing(here_).what, verdict::good);
  write("proc/sys/kernel/yama/ptrace_scope", "2\n");
  EXPECT_EQ(check_tracing(here_).what, verdict::good) << "CAP_SYS_PTRACE is enough";
  write("proc/sys/kernel/yama/ptrace_scope", "3\n");
  EXPECT_EQ(check_tracing(here_).what, verdict::blocked) << "nothing is";

  capabilities("0000000000000000");
  const std::pair<const char*, verdict> expected[] = {
      {"0", verdict::note}, {"1", verdict::blocked}, {"2", verdict::blocked}};
  for (const auto& [scope, what] : expected) {
    write("proc/sys/kernel/yama/ptrace_scope", std::string{scope} + "\n");
    EXPECT_EQ(check_tracing(here_).what, what) << scope;
    EXPECT_NE(check_tracing(here_).advice, "");
  }
  capabilities("0000000000080000");  // CAP_SYS_PTRACE and nothing else
  EXPECT_EQ(check_tracing(here_).what, verdict::good);
  capabilities("00000000fff7ffff");  // everything else
  EXPECT_EQ(check_tracing(here_).what, verdict::blocked);
}

TEST_F(Doctor, SaysThatEverybodyMayRunAnAgentWithCapabilities) {
  write("agent", "");
  here_.agent = directory_ + "/agent";
  ASSERT_EQ(::chmod(here_.agent.c_str(), 0751), 0);
  EXPECT_TRUE(check_agent(here_).empty()) << "it has none";
  // cap_sys_ptrace+ep, as setcap writes it.
  vfs_cap_data data{};
  data.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  data.data[0].permitted = 1U << CAP_SYS_PTRACE;
  if (::setxattr(here_.agent.c_str(), "security.capability", &data, sizeof(data), 0) != 0)
    GTEST_SKIP() << "no file capabilities here: " << std::strerror(errno);
  auto all = check_agent(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::note);
  EXPECT_THAT(all[0].found, HasSubstr("every user may execute " + here_.agent));
  EXPECT_THAT(all[0].advice, HasSubstr("chmod o-x " + here_.agent));
  ASSERT_EQ(::chmod(here_.agent.c_str(), 0750), 0);
  all = check_agent(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::good);
}

TEST_F(Doctor, SaysWhatDebugfsLacks) {
  EXPECT_EQ(check_debugfs(here_)[0].what, verdict::good);
  remove("debug");
  write("proc/self/mounts", "proc /proc proc rw 0 0\n");
  auto all = check_debugfs(here_);
  EXPECT_EQ(all[0].what, verdict::note);
  EXPECT_THAT(all[0].advice, HasSubstr("mount -t debugfs"));
  EXPECT_EQ(all[1].what, verdict::note);
  write("proc/self/mounts", "debugfs /sys/kernel/debug debugfs rw 0 0\n");
  EXPECT_THAT(check_debugfs(here_)[0].advice, testing::Not(HasSubstr("mount -t debugfs")));
  write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
  EXPECT_THAT(check_debugfs(here_)[0].found, HasSubstr("locked down"));
}

TEST_F(Doctor, WarnsOfAutogroups) {
  EXPECT_EQ(check_autogroups(here_).what, verdict::good) << "no such kernel";
  write("proc/sys/kernel/sched_autogroup_enabled", "0\n");
  EXPECT_EQ(check_autogroups(here_).what, verdict::good);
  write("proc/sys/kernel/sched_autogroup_enabled", "1\n");
  EXPECT_EQ(check_autogroups(here_).what, verdict::note);
  EXPECT_THAT(check_autogroups(here_).advice, HasSubstr("kernel.sched_autogroup_enabled=0"));
}

TEST_F(Doctor, SaysWhyIoUringIsRefused) {
  here_.try_io_uring = [] { return EPERM; };
  write("proc/sys/kernel/io_uring_disabled", "2\n");
  auto all = check_io_uring(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::note) << "there is an epoll build";
  EXPECT_THAT(all[0].how, HasSubstr("io_uring_disabled is 2"));
  EXPECT_THAT(all[0].advice, HasSubstr("kernel.io_uring_disabled=0"));
  write("proc/sys/kernel/io_uring_disabled", "0\n");
  EXPECT_THAT(check_io_uring(here_)[0].advice, HasSubstr("seccomp"));
  here_.try_io_uring = [] { return ENOMEM; };
  all = check_io_uring(here_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].name, "memlock");
}

TEST_F(Doctor, PrintsWhatIsBlockedAndWhatToDo) {
  const std::vector<check> all{
      {"a", verdict::good, "fine", "by looking"},
      {"b", verdict::blocked, "bad", "by looking twice", "mend it"},
  };
  EXPECT_EQ(doctor_text(all),
            "ok       a: fine\n"
            "         (by looking)\n"
            "BLOCKED  b: bad\n"
            "         (by looking twice)\n"
            "         -> mend it\n"
            "preemption does not work on this node: fix each BLOCKED check\n");
  const auto value = doctor_json(all);
  EXPECT_TRUE(value.at("blocked").as_bool());
  EXPECT_EQ(value.at("checks").at(1).at("verdict").as_string(), "blocked");
  EXPECT_FALSE(blocks({all[0]}));
}

/// This process has the queues.
TEST_F(Doctor, SaysWhoseQueuePointersCanBeRead) {
  const auto look = [this] { return check_pointers(here_, *kfd::look_at_node(here_.where)); };
  ASSERT_EQ(look().size(), 1U);
  EXPECT_THAT(look()[0].found, HasSubstr("no process has"));
  const auto add_queue = [this](int id) {
    const auto queue = "kfd/proc/" + std::to_string(::getpid()) + "/queues/" + std::to_string(id);
    write(queue + "/gpuid", "51110");
    write(queue + "/type", "0");
    write(queue + "/size", "4096");
  };
  alignas(8) static std::uint64_t memory[10];
  const auto text =
      test::mqds_text(::getpid(), {.gpu = 51110,
                                   .read_pointer = reinterpret_cast<std::uintptr_t>(&memory[9]),
                                   .write_pointer = reinterpret_cast<std::uintptr_t>(&memory[0])});
  add_queue(0);
  write("debug/mqds", text);
  ASSERT_EQ(look().size(), 1U);
  EXPECT_EQ(look()[0].what, verdict::good);
  EXPECT_THAT(look()[0].found, HasSubstr("of all 1 compute queues"));
  add_queue(1);
  const auto process = "process " + std::to_string(::getpid());
  EXPECT_EQ(look()[0].what, verdict::note);
  EXPECT_THAT(look()[0].found, HasSubstr(process));
  EXPECT_THAT(look()[0].found,
              HasSubstr("1 of 2 compute queues cannot be read: the driver's mqds"));
  write("debug/mqds",
        text + test::mqds_text(::getpid(),
                               {.gpu = 51110, .read_pointer = 0x50, .write_pointer = 0x8}));
  EXPECT_THAT(
      look()[0].found,
      HasSubstr("1 of 2 compute queues cannot be read: the pointers are in unreadable memory"));
  remove("debug/mqds");
  ASSERT_EQ(look().size(), 1U);
  EXPECT_EQ(look()[0].what, verdict::note);
  EXPECT_THAT(look()[0].found, HasSubstr("unknown: the addresses"));
}

}  // namespace
}  // namespace sluice::cli::doctor_test
