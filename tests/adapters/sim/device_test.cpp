// The device node and the trees around it, through the mount, as any process sees them.

#include "kfd_calls.hpp"
#include "simulated_device.hpp"

#include <dirent.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "sluice/sim/client.hpp"

namespace sluice::test::device_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t gpu = 51110;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator{folder, error}) {
    out.push_back(each.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class inotify_watch {
 public:
  inotify_watch(const std::string& path, std::uint32_t mask)
      : fd_{inotify_init1(IN_CLOEXEC | IN_NONBLOCK)} {
    if (inotify_add_watch(fd_, path.c_str(), mask) < 0)
      throw std::runtime_error("inotify: " + path);
  }
  inotify_watch(const inotify_watch&) = delete;
  inotify_watch& operator=(const inotify_watch&) = delete;
  ~inotify_watch() { close(fd_); }

  /// All bits of all events since the last call.
  std::uint32_t seen() const {
    alignas(inotify_event) std::array<char, 4096> buffer{};
    std::uint32_t bits = 0;
    for (;;) {
      const auto got = read(fd_, buffer.data(), buffer.size());
      if (got <= 0) return bits;
      for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        bits |= event->mask;
        at += sizeof(inotify_event) + event->len;
      }
    }
  }

 private:
  int fd_;
};

TEST(SimulatedDevice, SaysFirstThatItIsSimulatedAndWithWhichProfile) {
  const simulated_device device;
  EXPECT_TRUE(device.output().starts_with("sluice-sim: simulated device ready: profile 'mi300x'"))
      << device.output();
}

TEST(SimulatedDevice, AnswersGetVersion) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  EXPECT_EQ(kfd.version(major, minor), 0);
  EXPECT_EQ(major, 1U);
  EXPECT_EQ(minor, 17U);
}

TEST(SimulatedDevice, RefusesUnknownCommandsWithEnotty) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  std::uint64_t argument = 0;
  EXPECT_EQ(raw_call(kfd.fd(), _IOWR('K', 0x7f, std::uint64_t), argument), -ENOTTY);
}

TEST(SimulatedDevice, RefusesADescriptorInheritedOverFork) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  child_process child{[&](channel&) {
    std::uint32_t version = 0;
    return kfd.version(version, version) == -EBADF ? 0 : 1;
  }};
  EXPECT_TRUE(child.succeeds(10s));
}

TEST(SimulatedDevice, RefusesReadingAndWritingTheNode) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  char byte = 0;
  EXPECT_EQ(read(kfd.fd(), &byte, 1), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(write(kfd.fd(), &byte, 1), -1);
  EXPECT_EQ(errno, EINVAL);
}

/// The page of a process's doorbells, through a queue of its own.
class doorbell_page {
 public:
  explicit doorbell_page(const simulated_device& device) : kfd_{device.roots().device} {
    std::uint64_t offset = 0;
    if (memory_.create(kfd_.fd(), gpu, &offset) != 0) throw std::runtime_error("no queue");
    memory_at_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, kfd_.fd(),
                      static_cast<off_t>(offset));
    if (memory_at_ == MAP_FAILED) throw std::runtime_error("cannot map the doorbells");
  }
  doorbell_page(const doorbell_page&) = delete;
  doorbell_page& operator=(const doorbell_page&) = delete;
  ~doorbell_page() { munmap(memory_at_, size); }
  volatile std::uint64_t& operator[](std::size_t i) const {
    return static_cast<volatile std::uint64_t*>(memory_at_)[i];
  }

 private:
  static constexpr std::size_t size = 8192;
  const raw_device kfd_;
  const queue_memory memory_;
  void* memory_at_ = nullptr;
};

TEST(SimulatedDevice, GivesEveryProcessAPageOfDoorbells) {
  const simulated_device device;
  const doorbell_page mine{device};
  EXPECT_EQ(mine[0], 0U);
  mine[0] = 42;
  mine[1023] = 43;
  child_process child{[&](channel&) {
    const doorbell_page its{device};
    if (its[0] != 0 || its[1023] != 0) return 1;
    its[0] = 7;
    return 0;
  }};
  EXPECT_TRUE(child.succeeds(10s));
  { const raw_device another{device.roots().device}; }  // No open and no close disturbs a mapping.
  EXPECT_EQ(mine[0], 42U);
  EXPECT_EQ(mine[1023], 43U);
}

TEST(SimulatedDevice, EndsWhileDoorbellsAreMappedAndWritten) {
  simulated_device device;
  const doorbell_page page{device};
  page[0] = 1;
  const int status = device.stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SimulatedDevice, ShowsQueuesInSysfsToTheByte) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(getpid());
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  EXPECT_EQ(names_in(folder + "/queues"), std::vector<std::string>{"0"});
  EXPECT_EQ(names_in(folder + "/queues/0"), (std::vector<std::string>{"gpuid", "size", "type"}));
  EXPECT_EQ(read_file(folder + "/queues/0/size"), "4096");
  EXPECT_EQ(read_file(folder + "/queues/0/type"), "0");
  EXPECT_EQ(read_file(folder + "/queues/0/gpuid"), "51110");
  EXPECT_EQ(read_file(folder + "/vram_51110"), "0\n");
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"pasid", "queues", "sdma_51110",
                                                        "stats_51110", "vram_51110"}));
  struct stat about {};
  ASSERT_EQ(stat((folder + "/queues/0/size").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0444U);
  ASSERT_EQ(destroy_queue(kfd.fd(), 0), 0);
  EXPECT_EQ(names_in(folder + "/queues"), std::vector<std::string>{});
  EXPECT_NE(stat((folder + "/queues/0").c_str(), &about), 0);
}

// gfx9 parts tell how many compute units a process occupies: here 32 wave slots each.
TEST(SimulatedDevice, CountsTheComputeUnitsThatAProcessOccupies) {
  const simulated_device device;
  auto client = sim::gpu_client::open(
      {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0});
  ASSERT_TRUE(client);
  auto queue = (*client)->create_queue({});
  ASSERT_TRUE(queue);
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(getpid()) + "/stats_51110";
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"cu_occupancy", "evicted_ms"}));
  EXPECT_EQ(read_file(folder + "/cu_occupancy"), "0\n");
  ASSERT_TRUE((*queue)->submit({.length = 60s, .waves = 33}));
  (*queue)->ring();
  EXPECT_TRUE(eventually(patience, [&] { return read_file(folder + "/cu_occupancy") == "2\n"; }))
      << read_file(folder + "/cu_occupancy");
  ASSERT_TRUE((*queue)->destroy());
  EXPECT_EQ(read_file(folder + "/cu_occupancy"), "0\n");
}

TEST(SimulatedDevice, HasNoOccupancyFileForAGenerationThatDoesNotCount) {
  const simulated_device device{{.profile = profile_text("", "gfx_target_version = 100300\n")}};
  const raw_device kfd{device.roots().device};
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(getpid()) + "/stats_51110";
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"evicted_ms"});
  EXPECT_FALSE(std::filesystem::exists(folder + "/cu_occupancy"));
}

TEST(SimulatedDevice, GivesOutTheLowestFreeQueueIdFirst) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const std::array<queue_memory, 4> memory;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(memory[static_cast<std::size_t>(i)].create(kfd.fd(), gpu), i);
  }
  ASSERT_EQ(destroy_queue(kfd.fd(), 1), 0);
  EXPECT_EQ(memory[3].create(kfd.fd(), gpu), 1);
  EXPECT_EQ(memory[1].create(kfd.fd(), gpu), 3);
  EXPECT_EQ(destroy_queue(kfd.fd(), 9), -EINVAL);
}

TEST(SimulatedDevice, GivesARecreatedQueueAnotherInode) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(getpid()) + "/queues/0";
  struct stat before {};
  struct stat after {};
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  ASSERT_EQ(stat(folder.c_str(), &before), 0);
  const int old = open((folder + "/size").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(destroy_queue(kfd.fd(), 0), 0);
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  ASSERT_EQ(stat(folder.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  char byte = 0;
  EXPECT_EQ(read(old, &byte, 1), -1) << "the old queue's file speaks for the new queue";
  EXPECT_EQ(errno, ENODEV);
  close(old);
}

// As kernfs does: that is how one sees without a listing whether there is something new to list.
TEST(SimulatedDevice, CountsTheDirectoriesInOneAsLinksToIt) {
  const simulated_device device{{.gpus = 2}};
  const auto processes = device.roots().sysfs + "/proc";
  const auto links = [](int directory) {
    struct stat found {};
    return fstat(directory, &found) == 0 ? static_cast<int>(found.st_nlink) : -1;
  };
  const int all = open(processes.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(links(all), 2);
  child_process child{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    const std::array<queue_memory, 2> memory;
    line.send("opened");
    line.receive(10s);
    const bool made = memory[0].create(kfd.fd(), gpu) == 0 && memory[1].create(kfd.fd(), gpu) == 1;
    line.send(made ? "made" : "not made");
    line.receive(10s);
    line.send(destroy_queue(kfd.fd(), 0) == 0 ? "destroyed" : "not destroyed");
    line.receive(10s);
    return 0;
  }};
  ASSERT_TRUE(child.says("opened", 10s));
  EXPECT_EQ(links(all), 3);
  const auto path = processes + "/" + std::to_string(child.pid());
  const int process = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int queues = openat(process, "queues", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(links(process), 2 + 1 + 2) << "queues, and of each GPU stats";
  EXPECT_EQ(links(queues), 2);
  child.line().send("make");
  ASSERT_TRUE(child.says("made", 10s));
  EXPECT_EQ(links(queues), 4);
  child.line().send("destroy");
  ASSERT_TRUE(child.says("destroyed", 10s));
  EXPECT_EQ(links(queues), 3);
  child.line().send("exit");
  ASSERT_TRUE(child.succeeds(10s));
  EXPECT_TRUE(eventually(patience, [&] { return links(queues) == 2 && links(all) == 2; }));
  for (const int each : {all, process, queues}) close(each);
}

TEST(SimulatedDevice, KeepsTheProcessDirectoryAfterCloseUntilExit) {
  const simulated_device device;
  child_process child{[&](channel& line) {
    { const raw_device kfd{device.roots().device}; }
    line.send("closed");
    line.receive(10s);
    return 0;
  }};
  ASSERT_TRUE(child.says("closed", 10s));
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(child.pid());
  EXPECT_TRUE(std::filesystem::exists(folder));
  child.line().send("exit");
  ASSERT_TRUE(child.succeeds(10s));
  EXPECT_TRUE(eventually(patience, [&] { return !std::filesystem::exists(folder); }));
}

TEST(SimulatedDevice, ListsNothingAboutProcessesThatNeverOpenedIt) {
  const simulated_device device;
  EXPECT_EQ(names_in(device.roots().sysfs + "/proc"), std::vector<std::string>{});
}

TEST(SimulatedDevice, DescribesItsGpusInTheTopology) {
  const simulated_device device{{.gpus = 2}};
  const auto nodes = device.roots().sysfs + "/topology/nodes";
  EXPECT_EQ(names_in(nodes), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(read_file(nodes + "/0/gpu_id"), "0\n");
  EXPECT_EQ(read_file(nodes + "/1/gpu_id"), "51110\n");
  std::istringstream lines{read_file(nodes + "/2/properties")};
  std::map<std::string, std::uint64_t> properties;
  std::string key;
  for (std::uint64_t value = 0; lines >> key >> value;) properties[key] = value;
  EXPECT_EQ(properties["simd_count"], 1216U);
  EXPECT_EQ(properties["gfx_target_version"], 90402U);
  EXPECT_EQ(properties["max_waves_per_simd"], 8U);
  EXPECT_NE(read_file(nodes + "/2/gpu_id"), read_file(nodes + "/1/gpu_id"));
  // What the counts promise is there.
  for (const std::string list : {"mem_banks", "caches", "io_links"}) {
    EXPECT_EQ(names_in(nodes + "/2/" + list).size(), properties[list + "_count"]) << list;
  }
  EXPECT_EQ(names_in(nodes + "/2/io_links"), (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(names_in(nodes + "/2/io_links/1"), std::vector<std::string>{"properties"});
  EXPECT_TRUE(read_file(nodes + "/2/io_links/1/properties").starts_with("type 11\nversion_major"));
  EXPECT_TRUE(read_file(nodes + "/0/mem_banks/0/properties").starts_with("heap_type 0\n"));
}

TEST(SimulatedDevice, RaisesInOpenOnTheNodeWhenItIsOpened) {
  const simulated_device device;
  const inotify_watch watch{device.roots().device, IN_OPEN};
  EXPECT_EQ(watch.seen(), 0U);
  child_process child{[&](channel&) {
    const raw_device kfd{device.roots().device};
    return 0;
  }};
  ASSERT_TRUE(child.succeeds(10s));
  EXPECT_EQ(watch.seen() & IN_OPEN, static_cast<unsigned>(IN_OPEN));
}

// As kernfs: what the kernel creates and removes raises nothing.
TEST(SimulatedDevice, RaisesNothingInSysfsWhenProcessesAndQueuesComeAndGo) {
  const simulated_device device;
  constexpr std::uint32_t changes =
      IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MODIFY | IN_ATTRIB | IN_MOVE | IN_MOVE_SELF;
  const inotify_watch processes{device.roots().sysfs + "/proc", changes};
  const raw_device kfd{device.roots().device};
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(getpid()) + "/queues";
  const inotify_watch queues{folder, changes};
  const queue_memory memory;
  child_process child{[&](channel&) {
    const raw_device own{device.roots().device};
    const queue_memory ring;
    return ring.create(own.fd(), gpu);
  }};
  ASSERT_TRUE(child.succeeds(10s));
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  ASSERT_EQ(names_in(folder), std::vector<std::string>{"0"});
  ASSERT_EQ(destroy_queue(kfd.fd(), 0), 0);
  ASSERT_EQ(names_in(folder), std::vector<std::string>{});
  const auto gone = device.roots().sysfs + "/proc/" + std::to_string(child.pid());
  ASSERT_TRUE(eventually(patience, [&] { return !std::filesystem::exists(gone); }));
  EXPECT_EQ(processes.seen(), 0U);
  EXPECT_EQ(queues.seen(), 0U);
}

TEST(SimulatedDevice, RaisesCreateAndDeleteInDebugfsWhenTheDriverHasProcessDirectories) {
  const simulated_device device{{.profile = profile_text("debugfs_proc_dirs = true\n", "")}};
  const auto folder = device.roots().debugfs + "/proc";
  const inotify_watch watch{folder, IN_CREATE | IN_DELETE};
  child_process child{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    line.send("open");
    line.receive(10s);
    return 0;
  }};
  ASSERT_TRUE(child.says("open", 10s));
  EXPECT_EQ(names_in(folder), std::vector<std::string>{std::to_string(child.pid())});
  EXPECT_EQ(watch.seen(), static_cast<std::uint32_t>(IN_CREATE | IN_ISDIR));
  const auto own = folder + "/" + std::to_string(child.pid());
  EXPECT_EQ(names_in(own), std::vector<std::string>{"pasid_51110"});
  EXPECT_EQ(read_file(own + "/pasid_51110"), "32769\n");
  struct stat about {};
  ASSERT_EQ(stat((own + "/pasid_51110").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode, static_cast<mode_t>(S_IFREG | 0444));
  EXPECT_NE(about.st_dev, [&] {  // A plain file, not one of FUSE's: it raises events.
    struct stat mounted {};
    EXPECT_EQ(stat(device.roots().sysfs.c_str(), &mounted), 0);
    return mounted.st_dev;
  }());
  const inotify_watch inside{own, IN_DELETE};
  child.line().send("exit");
  ASSERT_TRUE(child.succeeds(10s));
  EXPECT_TRUE(eventually(patience, [&] { return watch.seen() == (IN_DELETE | IN_ISDIR); }));
  EXPECT_EQ(inside.seen() & IN_DELETE, static_cast<std::uint32_t>(IN_DELETE));
}

// Where PASIDs are per device, each GPU has its own.
TEST(SimulatedDevice, GivesEveryGpuItsOwnPasidWhereDriversDo) {
  const simulated_device device{
      {.profile = profile_text("debugfs_proc_dirs = true\nmqds_header = \"lead_pid\"\n", ""),
       .gpus = 2}};
  const raw_device kfd{device.roots().device};
  const auto own = device.roots().debugfs + "/proc/" + std::to_string(getpid());
  EXPECT_EQ(names_in(own), (std::vector<std::string>{"pasid_51110", "pasid_51367"}));
  EXPECT_NE(read_file(own + "/pasid_51110"), read_file(own + "/pasid_51367"));
  EXPECT_EQ(read_file(device.roots().sysfs + "/proc/" + std::to_string(getpid()) + "/pasid"),
            "0\n");
}

// Through the mount: the texts themselves are the model's, and tested there.
TEST(SimulatedDevice, ShowsTheSlotAndTheRunlistOfALiveQueue) {
  const simulated_device device{{.profile = profile_text("", "num_xcc = 1\n")}};
  EXPECT_EQ(read_file(device.roots().debugfs + "/rls"),
            "Node 1, gpu_id c7a6:\n  No active runlist\n");
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  EXPECT_TRUE(read_file(device.roots().debugfs + "/rls")
                  .starts_with("Node 1, gpu_id c7a6:\n  00000000: c013a100 "));
  const auto text = read_file(device.roots().debugfs + "/hqds");
  const std::string title = " Inst 0,  CP Pipe 0, Queue 2\n    0000c914: ";
  const auto at = text.find(title);
  ASSERT_NE(at, std::string::npos) << text.substr(0, 400);
  EXPECT_EQ(text.substr(at + title.size() + 18, 17), "00000001 00000003");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 25 * (1 + 7) + 16 * 8 * (1 + 7));
}

TEST(SimulatedDevice, HasNoProcessDirectoriesInDebugfsOfAnOlderDriver) {
  const simulated_device device;
  EXPECT_EQ(names_in(device.roots().debugfs),
            (std::vector<std::string>{"hang_hws", "hqds", "mem_limit", "mqds", "rls"}));
}

// 64 lines of 8 words for each XCC, after the process's and the queue's line; the ring's address,
// shifted right by 8, stands at the words of cp_hqd_pq_base (136, 137).
TEST(SimulatedDevice, DumpsTheDescriptorOfALiveQueue) {
  const simulated_device device{{.profile = profile_text("", "num_xcc = 2\n")}};
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  std::istringstream text{read_file(device.roots().debugfs + "/mqds")};
  std::string line;
  ASSERT_TRUE(std::getline(text, line));
  EXPECT_TRUE(line.starts_with("Process " + std::to_string(getpid()) + " PASID 0x")) << line;
  ASSERT_TRUE(std::getline(text, line));
  EXPECT_EQ(line, "  Compute queue on device c7a6");
  std::vector<std::uint32_t> words;
  for (int lines = 0; std::getline(text, line); ++lines) {
    std::istringstream fields{line};
    std::string offset;
    fields >> offset;
    EXPECT_EQ(std::stoul(offset, nullptr, 16), static_cast<std::size_t>(lines % 64) * 32) << line;
    EXPECT_EQ(line.substr(0, 4), "    ");
    std::uint32_t word = 0;
    while (fields >> std::hex >> word) words.push_back(word);
  }
  ASSERT_EQ(words.size(), 2U * 512U);
  for (const std::size_t copy : {0U, 512U}) {
    EXPECT_EQ(words[copy + 136] | std::uint64_t{words[copy + 137]} << 32U, memory.ring() >> 8U);
  }
}

TEST(SimulatedDevice, MakesFilesAnewWhenTheyAreReadFromTheStart) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  const int mqds = open((device.roots().debugfs + "/mqds").c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> text{};
  const auto before = pread(mqds, text.data(), text.size(), 0);
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  const auto after = pread(mqds, text.data(), text.size(), 0);
  EXPECT_GT(after, before);
  close(mqds);
}

// A copy to a client's page that must first be read from a file of the device itself must not lock
// the device up: the call fails, and the device goes on.
TEST(SimulatedDevice, SurvivesAPointerIntoAFileOfItsOwn) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const int mqds = open((device.roots().debugfs + "/mqds").c_str(), O_RDONLY | O_CLOEXEC);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, mqds, 0);
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_EQ(kfd.runtime_enable(true), 0);
  debugger self{kfd.fd(), getpid()};
  ASSERT_EQ(self.enable(0), 0);
  uapi::kfd_ioctl_dbg_trap_args trap{};
  trap.pid = static_cast<std::uint32_t>(getpid());
  trap.op = uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES;
  trap.suspend_queues.queue_array_ptr = address_of(page);
  trap.suspend_queues.num_queues = 1;
  EXPECT_EQ(raw_call(kfd.fd(), uapi::AMDKFD_IOC_DBG_TRAP, trap), -EFAULT);
  EXPECT_EQ(self.disable(), 0);
  munmap(page, 4096);
  close(mqds);
}

TEST(SimulatedDevice, ServesTwoProcessesAtOnce) {
  const simulated_device device;
  const auto body = [&](channel& line) {
    auto client = sim::gpu_client::open(
        {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0});
    if (!client) return 1;
    auto queue = (*client)->create_queue({});
    if (!queue) return 2;
    line.send("ready");
    line.receive(10s);
    for (int i = 0; i < 100; ++i) {
      const auto index = (*queue)->submit({.length = 100us, .waves = 1});
      (*queue)->ring();
      if (!index || !(*queue)->wait(*index, 10s)) return 3;
      if ((*queue)->completion(*index).value != 0) return 4;
    }
    return 0;
  };
  child_process one{body};
  child_process two{body};
  ASSERT_TRUE(one.says("ready", 10s));
  ASSERT_TRUE(two.says("ready", 10s));
  EXPECT_EQ(names_in(device.roots().sysfs + "/proc").size(), 2U);
  one.line().send("go");
  two.line().send("go");
  EXPECT_TRUE(one.succeeds(30s));
  EXPECT_TRUE(two.succeeds(30s));
}

}  // namespace
}  // namespace sluice::test::device_test
