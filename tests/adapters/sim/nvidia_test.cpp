// The simulated NVIDIA device through the mount, with the client that does what libcuda does.

#include "../nvidia/gpu_program.hpp"
#include "eventually.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>

#include <gtest/gtest.h>

#include "sluice/nvidia/uapi.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace sluice::test::nvidia_device_test {
namespace {

using namespace std::chrono_literals;
namespace rm = nvidia::uapi;

std::unique_ptr<sim::nvidia_client> open_client(const simulated_device& device,
                                                std::vector<std::uint32_t> gpus = {0}) {
  auto client =
      sim::nvidia_client::open({.device = device.nvidia_device(), .gpus = std::move(gpus)});
  if (!client) throw std::runtime_error("open: " + client.error().message());
  return std::move(*client);
}

/// The first number of that name in stats.json; -1: there is none.
std::int64_t stat(const simulated_device& device, const std::string& name) {
  const auto text = device.stats();
  std::smatch found;
  const bool there = std::regex_search(text, found, std::regex{"\"" + name + "\":([0-9]+)"});
  return there ? std::stoll(found[1]) : -1;
}

std::size_t clients(const simulated_device& device) {
  const auto text = device.stats();
  const std::regex one{"\"client\":"};
  return static_cast<std::size_t>(
      std::distance(std::sregex_iterator{text.begin(), text.end(), one}, std::sregex_iterator{}));
}

/// The open file behind another process's descriptor.
unique_fd take(pid_t pid, int fd) {
  const unique_fd process{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  return unique_fd{static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), fd, 0))};
}

std::uint32_t call(int fd, std::uint32_t client, std::uint32_t object, std::uint32_t command,
                   void* params, std::size_t size) {
  rm::NVOS54_PARAMETERS args{};
  args.hClient = client;
  args.hObject = object;
  args.cmd = command;
  args.params = reinterpret_cast<std::uint64_t>(params);
  args.paramsSize = static_cast<std::uint32_t>(size);
  EXPECT_EQ(ioctl(fd, rm::NV_RM_CONTROL, &args), 0) << std::strerror(errno);
  return args.status;
}

std::uint32_t set_disabled(int fd, const sim::nvidia_client& whose, bool disable) {
  rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params{};
  params.bDisable = disable ? 1 : 0;
  const auto& on = whose.contexts().front();
  for (const auto channel : on.groups.front().channels) {
    params.hClientList[params.numChannels] = whose.handle();
    params.hChannelList[params.numChannels++] = channel;
  }
  return call(fd, whose.handle(), on.subdevice, rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &params,
              sizeof params);
}

TEST(NvidiaDevice, ShowsItsGpusAsTheDriverDoes) {
  const simulated_device device{{.profile = "h100", .gpus = 2}};
  const auto version = read_file(device.nvidia_proc() + "/version");
  EXPECT_TRUE(version.starts_with(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  ("))
      << version;
  EXPECT_NE(version.find("\nGCC version:  "), std::string::npos) << version;
  for (std::uint32_t gpu = 0; gpu < 2; ++gpu) {
    const auto client = open_client(device, {gpu});
    const auto id = client->gpu();
    char address[16];
    std::snprintf(address, sizeof address, "%04x:%02x:%02x.0", id >> 16U, id >> 8U & 0xffU,
                  id & 0xffU);
    const auto text = read_file(device.nvidia_proc() + "/gpus/" + address + "/information");
    EXPECT_TRUE(text.starts_with("Model: \t\t NVIDIA H100 80GB HBM3\n")) << text;
    EXPECT_NE(text.find(std::string{"Bus Location: \t "} + address + "\n"), std::string::npos);
    EXPECT_NE(text.find("Device Minor: \t " + std::to_string(gpu) + "\n"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(device.roots().device)) << "no device of AMD's driver";
}

TEST(NvidiaDevice, MakesTheObjectsOfLibcuda) {
  const simulated_device device{{.profile = "h100"}};
  const auto client = open_client(device);
  EXPECT_EQ(client->handle() & ~(rm::RS_CLIENT_HANDLE_MAX - 1), rm::RS_CLIENT_HANDLE_BASE);
  std::vector<std::uint64_t> classes;
  for (std::uint32_t handle = 0x5c000001;; ++handle) {
    rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS info{};
    info.hObject = handle;
    info.index = rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID;
    if (!client->control(client->handle(), rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, info)) break;
    classes.push_back(info.iResult);
  }
  const auto count = [&](std::uint64_t cls) {
    return std::count(classes.begin(), classes.end(), cls);
  };
  EXPECT_EQ(count(rm::NV01_DEVICE_0), 1);
  EXPECT_EQ(count(rm::NV20_SUBDEVICE_0), 1);
  EXPECT_EQ(count(rm::KEPLER_CHANNEL_GROUP_A), 4);
  EXPECT_EQ(count(rm::HOPPER_CHANNEL_GPFIFO_A), 8 + 4 + 4 + 4);
  EXPECT_EQ(count(rm::HOPPER_COMPUTE_A), 8);
  EXPECT_EQ(count(rm::HOPPER_DMA_COPY_A), 8 + 4 + 4 + 4);

  // They stand in the heap, each beside its client.
  std::ifstream maps{"/proc/self/maps"};
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with("[heap]")) continue;
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &from, &to), 2);
    std::vector<std::uint32_t> words((to - from) / sizeof(std::uint32_t));
    const unique_fd memory{open("/proc/self/mem", O_RDONLY | O_CLOEXEC)};
    ASSERT_EQ(pread(memory.get(), words.data(), to - from, static_cast<off_t>(from)),
              static_cast<ssize_t>(to - from));
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
      found += words[i] == client->handle() && words[i + 1] >> 20U == 0x5c0U ? 1U : 0U;
  }
  EXPECT_GE(found, classes.size());
}

TEST(NvidiaDevice, HasTheContextsOfAProgramInOneClient) {
  const simulated_device device{{.profile = "h100", .gpus = 2}};
  const auto client = open_client(device, {0, 1});
  EXPECT_EQ(clients(device), 1U);
  EXPECT_EQ(client->gpus(), (std::vector<std::uint32_t>{0x400, 0x500}));
  ASSERT_EQ(client->contexts().size(), 2U);
  const auto& first = client->contexts()[0];
  const auto& second = client->contexts()[1];
  EXPECT_GT(second.device, first.groups.back().channels.back()) << "one sequence of handles";
  rm::NV2080_CTRL_GPU_GET_ID_PARAMS id{};
  ASSERT_TRUE(client->control(second.subdevice, rm::NV2080_CTRL_CMD_GPU_GET_ID, id));
  EXPECT_EQ(id.gpuId, 0x500U);

  // Each runs the kernels of its queues, also while the other one is disabled.
  const auto on_first = client->create_queue({});
  const auto on_second = client->create_queue({.gpu = 0x500});
  ASSERT_TRUE(on_first && on_second);
  EXPECT_EQ((*on_first)->id(), first.groups.front().channels.front());
  EXPECT_EQ((*on_second)->id(), second.groups.front().channels.front());
  EXPECT_EQ(client->create_queue({.gpu = 0x600}).error().value(), ENODEV);
  ASSERT_EQ(set_disabled(client->fd(), *client, true), rm::NV_OK);
  EXPECT_EQ(stat(device, "held_channels"), 8);
  for (const auto* each : {&on_first, &on_second}) {
    ASSERT_TRUE((**each)->submit({.length = 1ms}));
    (**each)->ring();
  }
  EXPECT_TRUE((*on_second)->wait(0, 60s));
  EXPECT_EQ(stat(device, "kernels_started"), 1);
  ASSERT_EQ(set_disabled(client->fd(), *client, false), rm::NV_OK);
  EXPECT_TRUE((*on_first)->wait(0, 60s));
}

// The device's clock and accounts judge, so a busy machine changes nothing.
TEST(NvidiaDevice, StopsAKernelInItsMiddleForWhoeverHasTheOpenFile) {
  const simulated_device device{{.profile = "h100"}};
  const auto client = open_client(device);
  const auto queue = client->create_queue({});
  ASSERT_TRUE(queue) << queue.error().message();
  const auto index = (*queue)->submit({.length = 2s, .waves = client->wave_slots()});
  ASSERT_TRUE(index);
  (*queue)->ring();
  ASSERT_TRUE(eventually(20s, [&] { return stat(device, "kernels_started") == 1; }));

  const auto stranger = open_client(device);
  EXPECT_EQ(set_disabled(stranger->fd(), *client, true), rm::NV_ERR_INVALID_CLIENT);
  const auto taken = take(getpid(), client->fd());
  ASSERT_TRUE(taken) << std::strerror(errno);
  ASSERT_EQ(set_disabled(taken.get(), *client, true), rm::NV_OK);
  EXPECT_EQ(stat(device, "held_channels"), 8);
  const auto busy = stat(device, "busy_ns");
  EXPECT_EQ((*queue)->wait(*index, 50ms).error().value(), ETIMEDOUT);
  EXPECT_EQ(stat(device, "busy_ns"), busy);
  ASSERT_EQ(set_disabled(taken.get(), *client, false), rm::NV_OK);
  ASSERT_TRUE((*queue)->wait(*index, 60s));
  EXPECT_EQ((*queue)->completed(), 1U);
  const auto done = (*queue)->completion(*index);
  EXPECT_EQ(done.value, 0);
  EXPECT_GE(done.end - done.start, 2s + 50ms) << "its length and the hold";
  EXPECT_EQ(stat(device, "busy_ns"), 2'000'000'000);
}

TEST(NvidiaDevice, RunsAThousandKernelsExactlyOnceInOrder) {
  const simulated_device device{{.profile = "h100"}};
  const auto client = open_client(device);
  const auto queue = client->create_queue({});
  ASSERT_TRUE(queue);
  constexpr std::uint64_t count = 1000;
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSERT_TRUE((*queue)->submit({.length = 20us}));
    if (i % 50 == 49) (*queue)->ring();
  }
  ASSERT_TRUE((*queue)->wait(count - 1, 60s));
  time_point last{};
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto done = (*queue)->completion(i);
    ASSERT_EQ(done.value, 0) << i;
    ASSERT_GE(done.start, last) << i;
    ASSERT_EQ(done.end - done.start, 20us) << i;
    last = done.end;
  }
}

TEST(NvidiaDevice, GivesTheChannelOfADestroyedQueueToTheNext) {
  const simulated_device device{{.profile = "h100", .gpus = 2}};
  const auto named =
      sim::gpu_client::open({.device = device.nvidia_device(), .sysfs = {}, .gpu = 0x500});
  ASSERT_TRUE(named) << named.error().message();
  EXPECT_EQ((*named)->gpu(), 0x500U);
  std::vector<std::unique_ptr<sim::gpu_queue>> queues;
  for (int i = 0; i < 8; ++i) {
    auto made = (*named)->create_queue({});
    ASSERT_TRUE(made) << made.error().message();
    queues.push_back(std::move(*made));
  }
  EXPECT_EQ((*named)->create_queue({}).error(), errc::full);
  ASSERT_TRUE(queues[3]->submit({.length = 1h}));
  queues[3]->ring();
  const auto channel = queues[3]->id();
  ASSERT_TRUE(queues[3]->destroy());
  const auto next = (*named)->create_queue({});
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)->id(), channel);
  const auto index = (*next)->submit({.length = 1ms});
  (*next)->ring();
  EXPECT_TRUE(index && (*next)->wait(*index, 60s)) << "after a kernel of an hour";
}

TEST(NvidiaDevice, KeepsAKilledProgramsClientWhileItsOpenFileIsHeld) {
  const simulated_device device{{.profile = "h100"}};
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto client = open_client(device);
    const auto memory = client->allocate(std::uint64_t{5} << 30U);
    const int fd = memory ? client->fd() : -1;
    if (write(ready[1], &fd, sizeof fd) < 0) _exit(1);
    for (;;) pause();
  }
  int fd = -1;
  ASSERT_EQ(read(ready[0], &fd, sizeof fd), static_cast<ssize_t>(sizeof fd));
  auto taken = take(child, fd);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  ASSERT_TRUE(taken) << std::strerror(errno);
  EXPECT_EQ(clients(device), 1U);
  EXPECT_EQ(stat(device, "memory_bytes"), std::int64_t{5} << 30U);
  taken = unique_fd{};
  EXPECT_TRUE(eventually(20s, [&] { return clients(device) == 0; }));
  EXPECT_EQ(stat(device, "memory_bytes"), 0);
}

// --- The words that show a program's work to others ----------------------------------------------

/// A process's memory, read from outside.
class seen_memory {
 public:
  explicit seen_memory(pid_t pid)
      : fd_{open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)} {
    std::ifstream maps{"/proc/" + std::to_string(pid) + "/maps"};
    for (std::string line; std::getline(maps, line);) {
      std::uint64_t from = 0;
      std::uint64_t to = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2 || to - from != 2U << 20U ||
          line.find(" rw-s ") == std::string::npos)
        continue;
      if (line.ends_with("/nvidia0")) gpu_.push_back(from);
      if (line.ends_with("/nvidiactl")) control_.push_back(from);
    }
  }
  bool has_both() const { return gpu_.size() == 1 && control_.size() == 1; }

  std::uint32_t user_word(std::uint64_t channel, std::uint64_t offset) const {
    return read<std::uint32_t>(gpu_.at(0) + 0x3000 * channel + 0x2000 + offset);
  }
  std::uint32_t put(std::uint64_t channel = 0) const { return user_word(channel, 0x40); }
  std::uint32_t get(std::uint64_t channel = 0) const { return user_word(channel, 0x44); }
  std::uint32_t gp_get(std::uint64_t channel = 0) const { return user_word(channel, 0x88); }
  std::uint32_t gp_put(std::uint64_t channel = 0) const { return user_word(channel, 0x8c); }
  /// Submissions begun.
  std::uint32_t count(std::uint64_t channel = 0) const {
    return read<std::uint32_t>(record(channel));
  }
  std::uint64_t time(std::uint64_t channel = 0) const {
    return read<std::uint64_t>(record(channel) + 8);
  }
  std::vector<std::uint32_t> states(std::uint64_t block = 0x37f00) const {
    const auto words = read<std::array<std::uint32_t, 16>>(control_.at(0) + block);
    std::vector<std::uint32_t> out;
    for (std::size_t slot = 0; slot < 8; ++slot) out.push_back(words[2 * slot + 1]);
    return out;
  }

 private:
  std::uint64_t record(std::uint64_t channel) const {
    return control_.at(0) + 0x10000 - 16 * (channel + 1);
  }
  template <class T>
  T read(std::uint64_t address) const {
    T out{};
    if (pread(fd_.get(), &out, sizeof out, static_cast<off_t>(address)) !=
        static_cast<ssize_t>(sizeof out))
      throw std::runtime_error("pread of a program's memory");
    return out;
  }
  unique_fd fd_;
  std::vector<std::uint64_t> gpu_, control_;
};

using states = std::vector<std::uint32_t>;
constexpr std::uint32_t first_runs = 4 | 1;

std::uint64_t wall_time() {
  return static_cast<std::uint64_t>(
      duration{std::chrono::system_clock::now().time_since_epoch()}.count());
}

TEST(NvidiaWords, ShowWhatAProgramSubmittedAndWhatRuns) {
  const simulated_device device{{.profile = "h100"}};
  gpu_program program{device};
  program.ask("open");
  const seen_memory seen{program.pid()};
  ASSERT_TRUE(seen.has_both());
  EXPECT_EQ(seen.put() + seen.get() + seen.gp_put() + seen.gp_get() + seen.count() +
                seen.user_word(0, 0x4c) + seen.user_word(0, 0x60),
            0U);
  EXPECT_EQ(seen.states(), states(8));

  // 8 slots in turn, and the number of turns.
  for (std::uint32_t kernel = 0; kernel < 19; ++kernel) {
    const auto slot = kernel % 8;
    const auto turn = (kernel / 8 + 1) << 2U;
    auto expected = seen.states();
    const auto before = wall_time();
    const auto put = seen.put();
    program.ask("run");
    expected[slot] = turn | 2U;
    EXPECT_EQ(seen.states(), expected) << kernel;
    EXPECT_EQ(seen.count(), kernel + 1);
    EXPECT_EQ(seen.gp_put(), kernel + 1);
    EXPECT_EQ(seen.gp_get(), kernel + 1);
    EXPECT_GT(seen.put(), put);
    EXPECT_EQ(seen.get(), seen.put());
    EXPECT_GT(seen.time(), before - 1'000'000'000);
    EXPECT_LT(seen.time(), wall_time() + 1'000'000'000);
  }
  EXPECT_EQ(seen.user_word(0, 0x4c), 2U);
  EXPECT_EQ(seen.user_word(0, 0x60), 2U);
  EXPECT_EQ(seen.user_word(0, 0x48), 0U);
}

TEST(NvidiaWords, CountMovesAtTheStartAndStateAtTheEnd) {
  const simulated_device device{{.profile = "h100"}};
  gpu_program program{device};
  program.ask("open");
  const seen_memory seen{program.pid()};
  program.ask("launch 2000000");
  // The last word that the device stores.
  ASSERT_TRUE(eventually(20s, [&] { return seen.gp_get() == 1; }));
  EXPECT_EQ(seen.states()[0], first_runs);
  EXPECT_EQ(seen.count(), 1U);
  const auto time = seen.time();
  program.ask("launch 20");
  EXPECT_EQ(seen.gp_put(), 2U) << "at once";
  EXPECT_EQ(seen.gp_get(), 1U) << "not before the kernel starts";
  EXPECT_EQ(seen.count(), 1U);
  program.ask("wait");
  EXPECT_EQ(seen.states(), (states{6, 6, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(seen.count(), 2U);
  EXPECT_EQ(seen.gp_get(), 2U);
  EXPECT_GE(seen.time(), time + 1'900'000'000) << "the second one started after the first one";
}

TEST(NvidiaWords, DoNotMoveWhileTheChannelIsDisabled) {
  const simulated_device device{{.profile = "h100"}};
  gpu_program program{device};
  const auto opened = program.ask("open");
  const seen_memory seen{program.pid()};
  const auto taken = take(program.pid(), static_cast<int>(opened[0]));
  ASSERT_TRUE(taken) << std::strerror(errno);
  const auto disable = [&](bool off) {
    rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params{};
    params.bDisable = off ? 1 : 0;
    params.numChannels = 1;
    params.hClientList[0] = opened[1];
    params.hChannelList[0] = opened[3];
    const auto subdevice = opened[2] - 1;
    return call(taken.get(), opened[1], subdevice, rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                &params, sizeof params);
  };
  program.ask("launch 2000000");
  // The last word that the device stores.
  ASSERT_TRUE(eventually(20s, [&] { return seen.gp_get() == 1; }));
  EXPECT_EQ(seen.states()[0], first_runs);
  ASSERT_EQ(disable(true), rm::NV_OK);
  const auto time = seen.time();
  program.ask("launch 20");

  // Another program's kernel takes the time of the first one, and longer.
  const auto other = open_client(device);
  const auto queue = other->create_queue({});
  ASSERT_TRUE(queue);
  const auto index = (*queue)->submit({.length = 2500ms});
  (*queue)->ring();
  ASSERT_TRUE(index && (*queue)->wait(*index, 60s));
  EXPECT_EQ(seen.states(), (states{5, 0, 0, 0, 0, 0, 0, 0})) << "a kernel in its middle runs";
  EXPECT_EQ(seen.count(), 1U);
  EXPECT_EQ(seen.gp_get(), 1U);
  EXPECT_EQ(seen.gp_put(), 2U) << "the program goes on";
  EXPECT_EQ(seen.time(), time);

  ASSERT_EQ(disable(false), rm::NV_OK);
  program.ask("wait");
  EXPECT_EQ(seen.states(), (states{6, 6, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(seen.count(), 2U);
}

TEST(NvidiaWords, AreEachChannelsOwnAndOutliveItsQueue) {
  const simulated_device device{{.profile = "h100"}};
  const auto client = open_client(device);
  const seen_memory seen{getpid()};
  ASSERT_TRUE(seen.has_both());
  const auto run = [](sim::gpu_queue& queue) {
    const auto index = queue.submit({.length = 20us});
    queue.ring();
    return index && queue.wait(*index, 60s);
  };
  std::vector<std::unique_ptr<sim::gpu_queue>> queues;
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto made = client->create_queue({});
    ASSERT_TRUE(made);
    queues.push_back(std::move(*made));
    for (std::uint64_t kernel = 0; kernel <= i; ++kernel) ASSERT_TRUE(run(*queues.back()));
  }
  const std::array<std::uint64_t, 5> blocks{0x37f00, 0x37a80, 0x379c0, 0x37900, 0x37880};
  for (std::uint32_t i = 0; i < 5; ++i) {
    states ended(8);
    std::fill_n(ended.begin(), i + 1, 6);
    EXPECT_EQ(seen.states(blocks[i]), ended) << i;
    EXPECT_EQ(seen.count(i), i + 1);
    EXPECT_EQ(seen.gp_put(i), i + 1);
  }
  EXPECT_EQ(seen.count(5), 0U);

  ASSERT_TRUE((*queues[2]).submit({.length = 1h}));
  queues[2]->ring();
  queues[2].reset();
  EXPECT_EQ(seen.states(blocks[2]), (states{6, 6, 6, 6, 0, 0, 0, 0})) << "its kernel is gone";
  const auto next = client->create_queue({});
  ASSERT_TRUE(next);
  ASSERT_TRUE(run(**next));
  EXPECT_EQ(seen.count(2), 5U);
  EXPECT_EQ(seen.gp_put(2), 5U);
  EXPECT_EQ(seen.gp_get(2), 5U);
}

// After 1024 of them, GPPut begins anew, and the count does not.
TEST(NvidiaWords, AgreeAfterMoreKernelsThanARingHas) {
  const simulated_device device{{.profile = "h100"}};
  const auto client = open_client(device);
  const seen_memory seen{getpid()};
  const auto queue = client->create_queue({});
  ASSERT_TRUE(queue);
  for (std::uint32_t kernel = 0; kernel < 1100; ++kernel) {
    const auto index = (*queue)->submit({.length = 1us});
    ASSERT_TRUE(index);
    if (kernel % 50 == 49) {
      (*queue)->ring();
      ASSERT_TRUE((*queue)->wait(*index, 60s));
    }
  }
  EXPECT_EQ(seen.count(), 1100U);
  EXPECT_EQ(seen.gp_put(), 1100U - 1024U);
  EXPECT_EQ(seen.gp_get(), 1100U - 1024U);
  EXPECT_EQ(seen.get(), seen.put());
}

TEST(NvidiaWords, OfOneProgramAreNotAnotherOnes) {
  const simulated_device device{{.profile = "h100"}};
  gpu_program one{device};
  gpu_program other{device};
  one.ask("open");
  other.ask("open hidden");
  const seen_memory seen{one.pid()};
  const seen_memory hidden{other.pid()};
  for (int i = 0; i < 3; ++i) other.ask("run");
  EXPECT_EQ(seen.count(), 0U);
  EXPECT_EQ(hidden.count(), 3U);
  EXPECT_EQ(hidden.gp_put(), 3U);
  EXPECT_EQ(hidden.states(), states(8)) << "they are elsewhere";
}

TEST(NvidiaWords, DoNotKillAProgramWhoseDeviceIsGone) {
  simulated_device device{{.profile = "h100"}};
  gpu_program program{device};
  program.ask("open");
  // Its channel's page is loaded, and clean.
  program.ask("launch 20");
  program.ask("wait");
  const unique_fd node{open(device.nvidia_device().c_str(), O_RDWR | O_CLOEXEC)};
  ASSERT_TRUE(node);
  fsync(node.get());
  device.stop(SIGKILL);
  program.tell("run");
  EXPECT_TRUE(program.process().says("refused", patience));
}

}  // namespace
}  // namespace sluice::test::nvidia_device_test
