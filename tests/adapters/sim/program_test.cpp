// The program around the device: starting, refusing, stopping, and what happens to processes that
// exit, exec or die meanwhile.

#include "kfd_calls.hpp"
#include "simulated_device.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/sim/client.hpp"

namespace sluice::test::program_test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr std::uint32_t gpu = 51110;

/// A directory of the test's own.
class scratch {
 public:
  scratch() = default;
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() { umount2((path() + "/root/fuse").c_str(), MNT_DETACH); }
  const std::string& path() const { return made_.path(); }

 private:
  const temporary_directory made_;
};

struct outcome {
  int status = -1;
  std::string said;
};

/// Runs sluice-sim to its end.
outcome run_program(const std::vector<std::string>& arguments) {
  std::array<int, 2> out{};
  if (pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    dup2(out[1], STDOUT_FILENO);
    dup2(out[1], STDERR_FILENO);
    std::vector<std::string> words{SLUICE_SIM_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(99);
  }
  close(out[1]);
  outcome result;
  std::array<char, 1024> buffer{};
  for (ssize_t got = 0; (got = read(out[0], buffer.data(), buffer.size())) > 0;) {
    result.said.append(buffer.data(), static_cast<std::size_t>(got));
  }
  close(out[0]);
  waitpid(pid, &result.status, 0);
  return result;
}

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

bool mounted_below(const std::string& path) {
  return read_file("/proc/self/mountinfo").find(path) != std::string::npos;
}

TEST(Program, ExplainsItself) {
  const auto help = run_program({"--help"});
  EXPECT_EQ(exit_code(help.status), 0);
  for (const auto* option : {"--root", "--profile", "--gpus", "--ready-fd", "--with-parent"}) {
    EXPECT_NE(help.said.find(option), std::string::npos) << option;
  }
}

TEST(Program, RefusesABadCommandLineInOneLine) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"--root"},
                                             {"--root", ""},
                                             {"--root", "/tmp/x", "--gpus", "0"},
                                             {"--root", "/tmp/x", "--ready-fd", "777"},
                                             {"--root", "/tmp/x", "--with-parent", "1"},
                                             {"--root", "/tmp/x", "--profile", "/tmp"},
                                             {"--root", "/tmp/x", "--what"}}) {
    const auto refused = run_program(arguments);
    EXPECT_EQ(exit_code(refused.status), 2);
    EXPECT_EQ(std::count(refused.said.begin(), refused.said.end(), '\n'), 1) << refused.said;
    EXPECT_TRUE(refused.said.starts_with("sluice-sim: ")) << refused.said;
  }
}

TEST(Program, RefusesAnUnknownProfileNamingWhereItLookedAndWhatIsThere) {
  const scratch here;
  const auto refused = run_program({"--root", here.path() + "/root", "--profile", "mi9000"});
  EXPECT_EQ(exit_code(refused.status), 2);
  EXPECT_NE(refused.said.find("profiles/mi9000.toml"), std::string::npos) << refused.said;
  const std::string names = "gfx1100, h100, mi300x, mi300x-batch";
  EXPECT_NE(refused.said.find("available: " + names), std::string::npos) << refused.said;
  EXPECT_NE(run_program({"--help"}).said.find("Profiles: " + names), std::string::npos);
  EXPECT_FALSE(fs::exists(here.path() + "/root"));
}

TEST(Program, NamesFileLineAndKeyOfABadProfile) {
  const scratch here;
  std::ofstream{here.path() + "/bad.toml"} << "name = \"bad\"\n[[gpu]]\ngpu_id = 1\n"
                                              "suspend_cost = \"5 parsecs\"\n";
  const auto refused =
      run_program({"--root", here.path() + "/root", "--profile", here.path() + "/bad.toml"});
  EXPECT_EQ(exit_code(refused.status), 2);
  EXPECT_NE(refused.said.find("/bad.toml:4: gpu.suspend_cost: expected a duration"),
            std::string::npos)
      << refused.said;
}

TEST(Program, RefusesARootInWhichSomethingElseIsInTheWay) {
  const scratch here;
  fs::create_directories(here.path() + "/root/dev/kfd");
  const auto refused = run_program({"--root", here.path() + "/root"});
  EXPECT_EQ(exit_code(refused.status), 1);
  EXPECT_NE(refused.said.find("root/dev/kfd: the path exists and is not a link"), std::string::npos)
      << refused.said;
  EXPECT_FALSE(fs::exists(here.path() + "/root/fuse"));
}

TEST(Program, RefusesASecondDeviceAtTheSameRoot) {
  const simulated_device device;
  const auto refused = run_program({"--root", device.root()});
  EXPECT_EQ(exit_code(refused.status), 1);
  EXPECT_NE(refused.said.find("another simulated device uses it"), std::string::npos)
      << refused.said;
  const raw_device still_there{device.roots().device};
}

TEST(Program, LeavesNothingBehindOnSigtermAndSigint) {
  for (const int number : {SIGTERM, SIGINT}) {
    simulated_device device{{.profile = profile_text("debugfs_proc_dirs = true\n", "")}};
    const raw_device kfd{device.roots().device};  // Still open when the device goes.
    EXPECT_TRUE(mounted_below(device.root()));
    EXPECT_EQ(exit_code(device.stop(number)), 0);
    EXPECT_FALSE(mounted_below(device.root()));
    EXPECT_TRUE(fs::is_empty(device.root()));
    std::uint32_t version = 0;
    EXPECT_LT(kfd.version(version, version), 0) << "the device is gone";
  }
}

TEST(Program, EndsCallsInProgressWhenItStops) {
  simulated_device device;
  child_process child{[&](channel& line) {
    auto client = sim::gpu_client::open(
        {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0});
    if (!client) return 1;
    auto queue = (*client)->create_queue({});
    if (!queue || !(*queue)->submit({.length = 60s, .waves = 1})) return 2;
    (*queue)->ring();
    line.send("waiting");
    const auto waited = (*queue)->wait(0, 30s);
    return !waited && waited.error().value() != ETIMEDOUT ? 0 : 3;
  }};
  ASSERT_TRUE(child.says("waiting", 10s));
  EXPECT_EQ(exit_code(device.stop(SIGTERM)), 0);
  EXPECT_TRUE(child.succeeds(5s));
}

TEST(Program, ReplacesTheDeadMountOfAKilledDevice) {
  simulated_device killed;
  const auto point = killed.root() + "/fuse";
  killed.stop(SIGKILL);
  struct stat about {};
  ASSERT_EQ(stat(point.c_str(), &about), -1);
  ASSERT_EQ(errno, ENOTCONN);
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  child_process next{[&](channel&) {
    execl(SLUICE_SIM_PROGRAM, SLUICE_SIM_PROGRAM, "--root", killed.root().c_str(), "--ready-fd",
          std::to_string(ready[1]).c_str(), nullptr);
    return 99;
  }};
  close(ready[1]);
  pollfd waited{.fd = ready[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waited, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1) << "it did not start";
  close(ready[0]);
  {
    const raw_device kfd{killed.roots().device};
    std::uint32_t version = 0;
    EXPECT_EQ(kfd.version(version, version), 0);
  }
  next.signal(SIGTERM);
  EXPECT_TRUE(next.succeeds(10s));
  EXPECT_FALSE(mounted_below(killed.root()));
}

// It said so, and went on without anybody who knew that it was there.
TEST(Program, EndsWhenItCannotSayThatItIsReady) {
  const scratch here;
  const std::string only_readable = here.path() + "/file";
  std::ofstream{only_readable} << "";
  const int fd = open(only_readable.c_str(), O_RDONLY);  // NOLINT: for the child to inherit.
  ASSERT_GE(fd, 0);
  const auto refused =
      run_program({"--root", here.path() + "/root", "--ready-fd", std::to_string(fd)});
  close(fd);
  EXPECT_EQ(exit_code(refused.status), 1);
  EXPECT_NE(refused.said.find("cannot write 'ready' to --ready-fd"), std::string::npos)
      << refused.said;
  EXPECT_FALSE(fs::exists(here.path() + "/root"));
}

// with_simulated_gpu.sh, killed, left the device to itself.
TEST(Program, EndsWithItsParentWhereThatIsWanted) {
  const scratch here;
  const std::string root = here.path() + "/root";
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  child_process parent{[&](channel& line) {
    const std::string self = std::to_string(getpid());
    if (fork() == 0) {
      execl(SLUICE_SIM_PROGRAM, SLUICE_SIM_PROGRAM, "--root", root.c_str(), "--ready-fd",
            std::to_string(ready[1]).c_str(), "--with-parent", self.c_str(), nullptr);
      _exit(99);
    }
    line.receive(60s);
    return 0;
  }};
  close(ready[1]);
  pollfd waited{.fd = ready[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waited, 1, 10'000), 1);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "it did not start";
  close(ready[0]);
  EXPECT_TRUE(mounted_below(root));
  parent.signal(SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return !fs::exists(root); }));
  EXPECT_FALSE(mounted_below(root));
}

TEST(Program, StopsWithAnErrorWhenSomebodyElseUnmountsIt) {
  simulated_device device;
  ASSERT_EQ(umount2((device.root() + "/fuse").c_str(), MNT_DETACH), 0);
  const auto status = device.wait(10s);
  ASSERT_TRUE(status);
  EXPECT_EQ(exit_code(*status), 1);
  EXPECT_NE(device.output().find("another process unmounted"), std::string::npos)
      << device.output();
}

// --- Processes that come and go ---

TEST(ProcessLife, LosesItsQueuesByExec) {
  const simulated_device device;
  child_process child{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    const queue_memory memory;
    if (memory.create(kfd.fd(), gpu) != 0) return 1;
    line.send("created");
    line.receive(10s);
    std::this_thread::sleep_for(50ms);  // The device must not look only for a while.
    execl("/bin/sleep", "sleep", "60", nullptr);
    return 99;
  }};
  ASSERT_TRUE(child.says("created", 10s));
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(child.pid());
  ASSERT_TRUE(fs::exists(folder + "/queues/0"));
  child.line().send("exec");
  EXPECT_TRUE(eventually(patience, [&] { return !fs::exists(folder); }));
  EXPECT_EQ(kill(child.pid(), 0), 0) << "it lives on, without the device";
}

TEST(ProcessLife, GivesItsWavesBackWhenKilled) {
  const simulated_device device;
  const sim::client_options options{
      .device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0};
  child_process hog{[&](channel& line) {
    auto client = sim::gpu_client::open(options);
    if (!client) return 1;
    auto queue = (*client)->create_queue({});
    if (!queue || !(*queue)->submit({.length = 60s, .waves = (*client)->wave_slots()})) return 2;
    (*queue)->ring();
    line.send("running");
    line.receive(60s);
    return 0;
  }};
  ASSERT_TRUE(hog.says("running", 10s));
  auto client = sim::gpu_client::open(options);
  ASSERT_TRUE(client);
  auto queue = (*client)->create_queue({});
  ASSERT_TRUE(queue);
  const auto index = (*queue)->submit({.length = 1ms, .waves = 1});
  (*queue)->ring();
  ASSERT_TRUE(index);
  EXPECT_FALSE((*queue)->wait(*index, 50ms)) << "the GPU was not full";
  hog.signal(SIGKILL);
  EXPECT_TRUE((*queue)->wait(*index, 5s));
  // Whoever died stays in the accounts.
  const auto entry = "{\"pid\":" + std::to_string(hog.pid()) + ",\"alive\":false";
  EXPECT_NE(device.stats().find(entry), std::string::npos) << device.stats();
}

// The driver knows a process by its memory, which outlives a main thread that calls pthread_exit().
TEST(ProcessLife, GoesOnWhenItsMainThreadHasEnded) {
  const simulated_device device;
  child_process child{[&](channel& line) {
    static std::atomic<bool> alone{false};
    std::thread{[&] {
      const auto work = [&] {
        auto client = sim::gpu_client::open(
            {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0});
        if (!client) return 1;
        auto early = (*client)->create_queue({});
        if (!early) return 2;
        alone = true;
        alone.notify_one();
        line.send("alone");
        line.receive(10s);
        auto late = (*client)->create_queue({});
        if (!late) return 3;
        for (auto* queue : {early->get(), late->get()}) {
          for (int i = 0; i < 30; ++i) {
            if (!queue->submit({.length = 200us, .waves = 1})) return 4;
            queue->ring();
          }
          if (!queue->wait(29, 10s) || queue->completed() != 30) return 5;
        }
        line.send("worked");
        line.receive(10s);
        return 0;
      };
      _exit(work());
    }}.detach();
    alone.wait(false);
    syscall(SYS_exit, 0);  // pthread_exit() without unwinding the test's own frames.
    return 99;
  }};
  ASSERT_TRUE(child.says("alone", 10s));
  const auto status = "/proc/" + std::to_string(child.pid()) + "/status";
  ASSERT_TRUE(eventually(patience, [&] {
    return read_file(status).find("State:\tZ") != std::string::npos;
  })) << "its main thread lives";
  child.line().send("go");
  EXPECT_TRUE(child.says("worked", 20s));
  const auto stats = device.stats();
  const auto at = stats.find("{\"pid\":" + std::to_string(child.pid()) + ",\"alive\":true");
  ASSERT_NE(at, std::string::npos) << stats;
  const auto entry = stats.substr(at, stats.find('}', at) - at);
  EXPECT_NE(entry.find("\"kernels_completed\":60"), std::string::npos) << entry;
  EXPECT_NE(entry.find("\"broken_queues\":0"), std::string::npos) << entry;
  child.line().send("end");
  EXPECT_TRUE(child.succeeds(10s));
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(child.pid());
  EXPECT_TRUE(eventually(patience, [&] { return !fs::exists(folder); }));
}

TEST(ProcessLife, FreesADebuggedTargetThatExits) {
  const simulated_device device;
  child_process target{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    const queue_memory memory;
    if (kfd.runtime_enable(true) != 0 || memory.create(kfd.fd(), gpu) != 0) return 1;
    line.send("created");
    line.receive(10s);
    return 0;
  }};
  ASSERT_TRUE(target.says("created", 10s));
  const raw_device kfd{device.roots().device};
  debugger session{kfd.fd(), target.pid()};
  ASSERT_TRUE(debugger::seize(target.pid()));
  ASSERT_EQ(session.enable(usual_mask), 0);
  ASSERT_EQ(session.clear_new(), 0);
  std::vector<std::uint32_t> array{0};
  ASSERT_EQ(session.suspend(array), 1);
  target.signal(SIGKILL);
  ASSERT_TRUE(target.wait(5s));
  EXPECT_EQ(session.suspend(array), -ESRCH);
  const auto folder = device.roots().sysfs + "/proc/" + std::to_string(target.pid());
  EXPECT_TRUE(eventually(patience, [&] { return !fs::exists(folder); }));
}

}  // namespace
}  // namespace sluice::test::program_test
