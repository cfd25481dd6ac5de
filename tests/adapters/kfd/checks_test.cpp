#include "sluice/kfd/checks.hpp"

#include "mqds_text.hpp"
#include "temporary_directory.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/driver.hpp"

namespace sluice::kfd::checks_test {
namespace {

using testing::HasSubstr;

/// A machine made of files below a temporary directory: one healthy MI300X.
class KfdChecks : public testing::Test {
 protected:
  KfdChecks() {
    const std::string& name = directory_;
    here_.prefix = name;
    where_ = {.device = name + "/dev/kfd", .sysfs = name + "/kfd", .debugfs = name + "/debug"};
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
  std::vector<check> gpus() const { return check_gpus(here_, where_, *look_at_node(where_)); }
  void capabilities(const std::string& mask) const {
    write("proc/self/status", "CapEff:\t" + mask + "\n");
  }

  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  machine here_;
  roots where_;
};

TEST_F(KfdChecks, FindNothingWrongWithAHealthyMachine) {
  std::vector<std::string> names;
  for (const auto& each : make_driver({.where = where_})->examine(here_)) {
    names.push_back(each.name);
    if (each.name == "device") continue;  // not faked
    EXPECT_EQ(each.what, verdict::good) << each.name << ": " << each.found;
    EXPECT_NE(each.how, "") << each.name;
  }
  EXPECT_THAT(names, testing::ElementsAre("device", "scheduler", "debug support", "sched_policy",
                                          "cwsr_enable", "tracing", "debugfs", "debugfs processes",
                                          "queue pointers"));
  remove("kfd");
  const auto all = make_driver({.where = where_})->examine(here_);
  EXPECT_EQ(all[1].name, "GPUs");
  EXPECT_EQ(all[1].what, verdict::blocked);
}

TEST_F(KfdChecks, MissesTheDevice) {
  const auto all = check_device(where_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::blocked);
  EXPECT_THAT(all[0].found, HasSubstr("dev/kfd cannot be opened: No such file"));
  EXPECT_THAT(all[0].advice, HasSubstr("modprobe amdgpu"));
}

TEST_F(KfdChecks, RecognisesAFileThatIsNoDevice) {
  write("dev/kfd", "");
  const auto all = check_device(where_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].what, verdict::blocked);
  EXPECT_THAT(all[1].found, HasSubstr("is not a KFD device"));
}

TEST_F(KfdChecks, TellsTheSchedulerOfEachGpu) {
  EXPECT_THAT(gpus()[0].found, HasSubstr("GPU 0 (0000:01:00.0, gfx 9.4.2): runlist"));
  gpu(110000, 0x20008000);
  EXPECT_THAT(gpus()[0].found, HasSubstr("MES"));
  gpu(100302, 0x20008000);
  write("sys/module/amdgpu/parameters/mes", "1\n");
  EXPECT_THAT(gpus()[0].found, HasSubstr("MES"));
  EXPECT_THAT(gpus()[0].how, HasSubstr("parameters/mes is 1"));
}

TEST_F(KfdChecks, TellsHowManyProcessesAGpuLetsDebug) {
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

TEST_F(KfdChecks, IsBlockedByAGpuWithoutDebugSupport) {
  gpu(90402, 0x8000);
  EXPECT_EQ(gpus()[1].what, verdict::blocked);
  EXPECT_THAT(gpus()[1].found, HasSubstr("its firmware does not support debugging"));
  gpu(90402, 0);
  EXPECT_EQ(gpus()[1].what, verdict::blocked);
  remove("kfd/topology/nodes/1");
  EXPECT_EQ(gpus()[0].what, verdict::blocked);
}

TEST_F(KfdChecks, ReadsTheModulesParameters) {
  EXPECT_EQ(check_scheduling(here_).what, verdict::good);
  write("sys/module/amdgpu/parameters/sched_policy", "2\n");
  EXPECT_EQ(check_scheduling(here_).what, verdict::blocked);
  write("sys/module/amdgpu/parameters/cwsr_enable", "0\n");
  EXPECT_EQ(check_cwsr(here_).what, verdict::blocked);
  remove("sys/module");
  EXPECT_EQ(check_scheduling(here_).what, verdict::unknown);
  EXPECT_EQ(check_cwsr(here_).what, verdict::unknown);
}

TEST_F(KfdChecks, KnowsWhoMayTrace) {
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

TEST_F(KfdChecks, SaysWhatDebugfsLacks) {
  EXPECT_EQ(check_debugfs(here_, where_)[0].what, verdict::good);
  remove("debug");
  write("proc/self/mounts", "proc /proc proc rw 0 0\n");
  auto all = check_debugfs(here_, where_);
  EXPECT_EQ(all[0].what, verdict::note);
  EXPECT_THAT(all[0].advice, HasSubstr("mount -t debugfs"));
  EXPECT_EQ(all[1].what, verdict::note);
  write("proc/self/mounts", "debugfs /sys/kernel/debug debugfs rw 0 0\n");
  EXPECT_THAT(check_debugfs(here_, where_)[0].advice, testing::Not(HasSubstr("mount -t debugfs")));
  write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
  EXPECT_THAT(check_debugfs(here_, where_)[0].found, HasSubstr("locked down"));
}

/// This process has the queues.
TEST_F(KfdChecks, SaysWhoseQueuePointersCanBeRead) {
  const auto look = [this] { return check_pointers(where_, *look_at_node(where_)); };
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
}  // namespace sluice::kfd::checks_test
