#include "profile_file.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

namespace sluice::sim::profile_file_test {
namespace {

using namespace std::chrono_literals;

class file_with {
 public:
  explicit file_with(const std::string& text) {
    const int fd = mkstemps(path_.data(), 5);
    if (fd < 0 || write(fd, text.data(), text.size()) < 0) throw std::runtime_error("mkstemps");
    close(fd);
  }
  file_with(const file_with&) = delete;
  file_with& operator=(const file_with&) = delete;
  ~file_with() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/sluice-profile-XXXXXX.toml";
};

/// What load_profile says of this text, without the file's name; "" when it accepts it.
std::string complaint(const std::string& text) {
  const file_with file{text};
  try {
    (void)load_profile(file.path());
  } catch (const profile_error& error) {
    const std::string said = error.what();
    if (!said.starts_with(file.path())) return "names no file: " + said;
    return said.substr(file.path().size());
  }
  return "";
}

TEST(ProfileFile, GivesTheBuiltInDefaultsByTheShippedProfile) {
  const auto shipped = load_profile(find_profile("mi300x"));
  const auto built_in = default_profile();
  EXPECT_EQ(shipped.name, built_in.name);
  EXPECT_EQ(shipped.abi_minor, built_in.abi_minor);
  EXPECT_EQ(shipped.authority, built_in.authority);
  EXPECT_EQ(shipped.header, built_in.header);
  EXPECT_EQ(shipped.format, built_in.format);
  EXPECT_EQ(shipped.debugfs_proc_dirs, built_in.debugfs_proc_dirs);
  EXPECT_EQ(shipped.smi_fifo_bytes, built_in.smi_fifo_bytes);
  EXPECT_EQ(shipped.smi_process_events, built_in.smi_process_events);
  EXPECT_EQ(shipped.smi_restore_flag, built_in.smi_restore_flag);
  EXPECT_EQ(shipped.smi_reset_cause, built_in.smi_reset_cause);
  EXPECT_EQ(shipped.diq_type_exists, built_in.diq_type_exists);
  EXPECT_EQ(shipped.preemption_timeout, built_in.preemption_timeout);
  EXPECT_EQ(shipped.poll_busy, built_in.poll_busy);
  EXPECT_EQ(shipped.poll_idle, built_in.poll_idle);
  ASSERT_EQ(shipped.gpus.size(), 1U);
  const auto& gpu = shipped.gpus[0];
  const auto& expected = built_in.gpus[0];
  EXPECT_EQ(gpu.gpu_id, expected.gpu_id);
  EXPECT_EQ(gpu.scheduler, expected.scheduler);
  EXPECT_EQ(gpu.gfx_target_version, expected.gfx_target_version);
  EXPECT_EQ(gpu.wave_slots(), expected.wave_slots());
  EXPECT_EQ(gpu.num_xcc, expected.num_xcc);
  EXPECT_EQ(gpu.hqd_slots, expected.hqd_slots);
  EXPECT_EQ(gpu.max_queues_per_process, expected.max_queues_per_process);
  EXPECT_EQ(gpu.vmids, expected.vmids);
  EXPECT_EQ(gpu.per_vmid_debug, expected.per_vmid_debug);
  EXPECT_EQ(gpu.device_id, expected.device_id);
  EXPECT_EQ(gpu.domain, expected.domain);
  EXPECT_EQ(gpu.location_id, expected.location_id);
  EXPECT_EQ(gpu.unique_id, expected.unique_id);
  EXPECT_EQ(gpu.hive_id, expected.hive_id);
  EXPECT_EQ(gpu.memory_mib, expected.memory_mib);
  EXPECT_EQ(gpu.memory_width, expected.memory_width);
  EXPECT_EQ(gpu.shader_arrays, expected.shader_arrays);
  EXPECT_EQ(gpu.arrays_per_engine, expected.arrays_per_engine);
  EXPECT_EQ(gpu.wave_front_size, expected.wave_front_size);
  EXPECT_EQ(gpu.sdma_engines, expected.sdma_engines);
  EXPECT_EQ(gpu.sdma_xgmi_engines, expected.sdma_xgmi_engines);
  EXPECT_EQ(gpu.sdma_queues_per_engine, expected.sdma_queues_per_engine);
  EXPECT_EQ(gpu.suspend_cost, expected.suspend_cost);
  EXPECT_EQ(gpu.resume_cost, expected.resume_cost);
  EXPECT_EQ(gpu.cycle_cost, expected.cycle_cost);
  EXPECT_EQ(gpu.quantum, expected.quantum);
  EXPECT_EQ(gpu.switch_cost, expected.switch_cost);
  EXPECT_EQ(gpu.time_sliced, expected.time_sliced);
}

TEST(ProfileFile, ShipsAMesGpu) {
  const auto shipped = load_profile(find_profile("gfx1100"));
  EXPECT_EQ(shipped.name, "gfx1100");
  ASSERT_EQ(shipped.gpus.size(), 1U);
  EXPECT_EQ(shipped.gpus[0].scheduler, queue_scheduler::mes);
  EXPECT_GE(shipped.gpus[0].gfx_target_version, 110000U);
  EXPECT_FALSE(shipped.gpus[0].counts_occupancy());
}

TEST(ProfileFile, ShipsAnNvidiaGpu) {
  auto shipped = load_profile(find_profile("h100"));
  EXPECT_EQ(shipped.driver, driver_kind::nvidia);
  EXPECT_EQ(shipped.driver_version, "580.159.04");
  ASSERT_EQ(shipped.gpus.size(), 1U);
  EXPECT_EQ(shipped.gpus[0].scheduler, queue_scheduler::channels);
  EXPECT_TRUE(shipped.gpus[0].time_sliced);
  EXPECT_EQ(shipped.gpus[0].wave_slots(), 132U * 64U) << "warps";
  set_gpu_count(shipped, 2);
  EXPECT_EQ(shipped.gpus[1].gpu_id, shipped.gpus[0].gpu_id + 0x100) << "the next PCI bus";
}

TEST(ProfileFile, ReadsEveryKindOfValue) {
  const file_with file{
      "name = \"x\"\n"
      "[driver]\nauthority = \"debugger_process\"\neinval_for_unknown_commands = "
      "true\ndebugfs_proc_dirs = true\n"
      "[device]\npoll_busy = \"1ms\"\n"
      "[[gpu]]\ngpu_id = 5\nsuspend_cost = \"250us\"\n"
      "[[gpu]]\ngpu_id = 6\ncompute_units = 10\n"};
  const auto read = load_profile(file.path());
  EXPECT_EQ(read.name, "x");
  EXPECT_EQ(read.authority, trap_authority::debugger_process);
  EXPECT_TRUE(read.einval_for_unknown_commands);
  EXPECT_TRUE(read.debugfs_proc_dirs);
  EXPECT_EQ(read.poll_busy, 1ms);
  ASSERT_EQ(read.gpus.size(), 2U);
  EXPECT_EQ(read.gpus[0].suspend_cost, 250us);
  EXPECT_EQ(read.gpus[1].compute_units, 10U);
}

TEST(ProfileFile, NamesLineKeyAndExpectationOfWhatIsWrong) {
  const std::string gpu = "[[gpu]]\ngpu_id = 5\n";
  EXPECT_EQ(complaint("[driver]\nkind = \"nvidia\"\n[[gpu]]\ngpu_id = 51110\n"),
            ": gpu.gpu_id 51110 is no PCI address; expected domain << 16 | bus << 8 | device, with "
            "a device up to 31");
  EXPECT_EQ(complaint(gpu + "hqd_slots = 0\n"),
            ":3: gpu.hqd_slots: expected a whole number from 1 to 4096");
  EXPECT_EQ(complaint(gpu + "hqd_slots = \"many\"\n"),
            ":3: gpu.hqd_slots: expected a whole number from 1 to 4096");
  EXPECT_EQ(complaint(gpu + "resume_cost = \"10s\"\n"),
            ":3: gpu.resume_cost: expected a duration from 0ns to 9s, such as \"5ms\" (ns, us, ms, "
            "s, min, h)");
  for (const char* time : {"-1ms", "1.5ms", "1e3us", "5", "5 parsecs", "nan"}) {
    EXPECT_EQ(complaint(gpu + "resume_cost = \"" + time + "\"\n"),
              ":3: gpu.resume_cost: expected a duration from 0ns to 9s, such as \"5ms\" (ns, us, "
              "ms, s, min, h)");
  }
  EXPECT_EQ(complaint(gpu + "suspend_cost = \"3ms\"\nsuspend_cost_p99 = \"2ms\"\n"),
            ":4: gpu.suspend_cost_p99: expected at least the median of 3ms");
  EXPECT_EQ(
      complaint("[measured]\nattach_p50 = \"2min\"\n" + gpu),
      ":2: measured.attach_p50: expected a duration from 0ns to 1min, such as \"5ms\" (ns, us, "
      "ms, s, min, h)");
  EXPECT_EQ(complaint("[measured]\nluck = 1\n" + gpu), ":2: measured.luck: unknown key");
  EXPECT_EQ(complaint(gpu + "per_vmid_debug = 1\n"),
            ":3: gpu.per_vmid_debug: expected true or false");
  EXPECT_EQ(complaint("[driver]\nmqds_header = \"new\"\n" + gpu),
            ":2: driver.mqds_header: expected \"pasid\" or \"lead_pid\"");
  EXPECT_EQ(complaint("[driver]\nmqd_header = \"pasid\"\n" + gpu),
            ":2: driver.mqd_header: unknown key");
  EXPECT_EQ(complaint("gpu = 3\n"), ":1: gpu: expected [[gpu]] tables");
  EXPECT_EQ(complaint("name = \"x\"\n"), ": no [[gpu]] table; add at least one");
  // They said "no [[gpu]] table" instead.
  EXPECT_EQ(complaint("nonsense = 1\n"), ":1: nonsense: unknown key");
  EXPECT_EQ(complaint("[timing]\nquantum = 1\n"), ":1: timing: unknown key");
  EXPECT_EQ(complaint("[[gpu]]\nhqd_slots = 4\n"),
            ": gpu.gpu_id is missing; add it to each [[gpu]] table");
  EXPECT_EQ(complaint(gpu + gpu),
            ": gpu.gpu_id 5 is in two [[gpu]] tables; use a different gpu_id in each table");
  EXPECT_TRUE(complaint("[driver\n").starts_with(":1: ")) << complaint("[driver\n");
}

TEST(ProfileFile, SaysWhenTheFileCannotBeRead) {
  try {
    (void)load_profile("/nonexistent/x.toml");
    FAIL();
  } catch (const profile_error& error) {
    EXPECT_TRUE(std::string{error.what()}.starts_with("/nonexistent/x.toml: ")) << error.what();
  }
}

TEST(ProfileFile, SaysThatADirectoryIsNone) {
  try {
    (void)load_profile("/tmp");
    FAIL();
  } catch (const profile_error& error) {
    EXPECT_STREQ(error.what(), "/tmp: is a directory; expected a TOML file");
  }
}

TEST(ProfileFile, GivesEveryGpuAnIdOfItsOwn) {
  auto node = default_profile();
  set_gpu_count(node, 8);
  ASSERT_EQ(node.gpus.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(node.gpus[i].gpu_id, node.gpus[j].gpu_id);
  }
}

}  // namespace
}  // namespace sluice::sim::profile_file_test
