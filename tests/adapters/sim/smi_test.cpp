// SMI events and the control file through the mount: real descriptors in real processes.

#include "kfd_calls.hpp"
#include "open_descriptors.hpp"
#include "simulated_device.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::test::smi_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t gpu = 51110;
constexpr std::uint64_t all_events = ~std::uint64_t{0};

/// \return the new descriptor, or -errno.
int smi_events(int kfd, std::uint32_t gpu_id = gpu) {
  uapi::kfd_ioctl_smi_events_args args{};
  args.gpuid = gpu_id;
  args.anon_fd = 0xffffffff;
  const int value = raw_call(kfd, uapi::AMDKFD_IOC_SMI_EVENTS, args);
  return value < 0 ? value : static_cast<int>(args.anon_fd);
}

int listen_to(int kfd, std::uint64_t mask = all_events) {
  const int fd = smi_events(kfd);
  if (fd >= 0 && write(fd, &mask, sizeof mask) != sizeof mask) {
    close(fd);
    return -errno;
  }
  return fd;
}

std::string read_some(int fd, std::size_t room = 8192) {
  std::string text(room, '\0');
  const auto got = read(fd, text.data(), room);
  return got < 0 ? "error " + std::to_string(errno) : text.substr(0, static_cast<std::size_t>(got));
}

/// What is there, once something is.
std::string next_lines(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 20'000) == 1 ? read_some(fd) : "nothing came";
}

/// 0 or -errno.
int command(const simulated_device& device, const std::string& text) {
  const int fd = open((device.root() + "/sim/control").c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return -errno;
  const auto written = write(fd, text.data(), text.size());
  const int result = written == static_cast<ssize_t>(text.size()) ? 0 : -errno;
  close(fd);
  return result;
}

std::string vm_fault(pid_t pid) { return "vmfault " + std::to_string(pid) + " 51110\n"; }

TEST(SmiEvents, IsADescriptorOfTheCallersOwn) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const auto before = open_descriptors();
  const int fd = listen_to(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  EXPECT_EQ(open_descriptors(), before + 1);
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
  EXPECT_EQ(fcntl(fd, F_GETFD), 0) << "not closed on exec";
  EXPECT_EQ(read_some(fd), "error " + std::to_string(EAGAIN)) << "and it does not block";
  const std::uint32_t half = 0;
  EXPECT_EQ(write(fd, &half, sizeof half), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(lseek(fd, 0, SEEK_SET), -1);
  ASSERT_EQ(command(device, vm_fault(getpid())), 0);
  const auto line = read_some(fd);
  EXPECT_TRUE(line.starts_with("1 ") && line.ends_with("\n")) << line;
  close(fd);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(smi_events(kfd.fd(), 1), -EINVAL);
}

TEST(SmiEvents, WakesPollAndEpollWhenSomethingComes) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const int fd = listen_to(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&one, 1, 0), 0);
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 0), 0);
  for (int round = 0; round < 3; ++round) {
    std::thread sleeper{[&] {
      pollfd same{.fd = fd, .events = POLLIN, .revents = 0};
      EXPECT_EQ(poll(&same, 1, 20'000), 1);
      EXPECT_EQ(same.revents, POLLIN);
    }};
    std::thread other{[&] {
      epoll_event seen{};
      EXPECT_EQ(epoll_wait(epoll, &seen, 1, 20'000), 1);
    }};
    std::this_thread::sleep_for(10ms);  // Likely asleep by then; right either way.
    EXPECT_EQ(command(device, vm_fault(getpid())), 0);
    sleeper.join();
    other.join();
    EXPECT_NE(read_some(fd).find('\n'), std::string::npos);
    EXPECT_EQ(poll(&one, 1, 0), 0) << "nothing is left";
  }
  close(epoll);
  close(fd);
}

TEST(SmiEvents, LivesThroughExecAndForkAsOtherDescriptorsDo) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const int fd = listen_to(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  ASSERT_EQ(command(device, vm_fault(getpid())), 0);
  const auto shell =
      "read -r line <&" + std::to_string(fd) + "; case $line in 1\\ *) exit 0; esac; exit 1";
  child_process child{[&](channel&) {
    execl("/bin/sh", "sh", "-c", shell.c_str(), nullptr);
    return 99;
  }};
  EXPECT_TRUE(child.succeeds(20s));
  close(fd);
}

TEST(SmiEvents, IsInNoListingAndFoundByNobodyElse) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const auto folder = device.root() + "/fuse";
  for (const auto& each : std::filesystem::directory_iterator{folder}) {
    EXPECT_NE(each.path().filename(), "smi");
  }
  const int fd = smi_events(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  EXPECT_EQ(open((folder + "/smi/1").c_str(), O_RDWR | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ENOENT);
  close(fd);
}

// The thread is stopped for a moment: none of its signals may be lost or come twice, no register
// may change, and its neighbours must not notice.
TEST(SmiEvents, DisturbsNeitherSignalsNorOtherThreads) {
  const simulated_device device;
  child_process child{[&](channel&) {
    const raw_device kfd{device.roots().device};
    static std::atomic<int> alarms{0};
    struct sigaction action {};
    action.sa_handler = [](int) { ++alarms; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    static std::atomic<int> queued{0};
    struct sigaction counted {};
    counted.sa_handler = [](int) { ++queued; };
    counted.sa_flags = SA_RESTART;
    sigaction(SIGRTMIN, &counted, nullptr);
    const itimerval often{.it_interval = {0, 300}, .it_value = {0, 300}};
    setitimer(ITIMER_REAL, &often, nullptr);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> spins{0};
    std::thread neighbour{[&] {
      while (!stop) ++spins;
    }};
    int sent = 0;
    int failures = 0;
    std::thread caller{[&] {
      for (int i = 0; i < 60 || queued == 0; ++i) {
        volatile std::uint64_t kept = 0x1234567890abcdefU + static_cast<std::uint64_t>(i);
        const double number = static_cast<double>(i) * 1.5;
        const int fd = smi_events(kfd.fd());
        if (fd < 0 || kept != 0x1234567890abcdefU + static_cast<std::uint64_t>(i) ||
            number != static_cast<double>(i) * 1.5) {
          ++failures;
        }
        if (fd >= 0) close(fd);
      }
    }};
    const auto target = caller.native_handle();
    for (int i = 0; i < 200; ++i) {
      if (pthread_sigqueue(target, SIGRTMIN, sigval{}) == 0) ++sent;
      std::this_thread::sleep_for(200us);
    }
    caller.join();
    const bool all_ran = eventually(patience, [&] { return alarms > 0 && spins > 0; });
    stop = true;
    neighbour.join();
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    if (failures != 0) return 1;
    // Real-time signals queue. Those that came after the thread's end went nowhere.
    if (queued > sent) return 2;
    return all_ran ? 0 : 3;
  }};
  EXPECT_TRUE(child.succeeds(60s));
}

// Stop and go from outside at any moment: the process stops each time, goes on each time, and in
// the end has lost nothing.
TEST(SmiEvents, LetsJobControlStopTheProcessAtAnyMoment) {
  const simulated_device device;
  child_process child{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    line.send("up");
    for (int i = 0; i < 150; ++i) {
      const int fd = smi_events(kfd.fd());
      if (fd < 0) return 1;
      close(fd);
    }
    line.send("done");
    line.receive(30s);
    return 0;
  }};
  ASSERT_TRUE(child.says("up", 10s));
  for (int i = 0; i < 20; ++i) {
    child.signal(SIGSTOP);
    int status = 0;
    ASSERT_TRUE(eventually(
        patience,
        [&] { return waitpid(child.pid(), &status, WUNTRACED | WNOHANG) == child.pid(); }))
        << "it did not stop in round " << i;
    ASSERT_TRUE(WIFSTOPPED(status)) << status;
    child.signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::microseconds{500 + 137 * i});
  }
  EXPECT_TRUE(child.says("done", 30s));
  child.line().send("exit");
  EXPECT_TRUE(child.succeeds(10s));
}

TEST(SmiEvents, RefusesAThreadThatIsTracedAndLeavesItAlone) {
  const simulated_device device;
  child_process child{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    line.send("up");
    line.receive(20s);
    if (smi_events(kfd.fd()) != -EBUSY) return 1;
    // A thread that nobody traces may.
    int fd = -1;
    std::thread{[&] { fd = smi_events(kfd.fd()); }}.join();
    return fd >= 0 ? 0 : 2;
  }};
  ASSERT_TRUE(child.says("up", 10s));
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0);
  child.line().send("go");
  EXPECT_TRUE(child.succeeds(20s));
}

TEST(SmiEvents, FailsTheCallWhenTheProcessHasNoDescriptorLeft) {
  const simulated_device device;
  child_process child{[&](channel&) {
    const raw_device kfd{device.roots().device};
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const auto soft = limit.rlim_cur;
    limit.rlim_cur = static_cast<rlim_t>(kfd.fd()) + 1;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (dup(kfd.fd()) >= 0) {
    }
    if (smi_events(kfd.fd()) != -EMFILE) return 1;
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_NOFILE, &limit);
    return smi_events(kfd.fd()) >= 0 ? 0 : 2;
  }};
  EXPECT_TRUE(child.succeeds(20s));
}

TEST(SmiEvents, OutlivesCallersThatAreKilledInTheMiddle) {
  const simulated_device device;
  for (int i = 0; i < 15; ++i) {
    child_process child{[&](channel& line) {
      const raw_device kfd{device.roots().device};
      line.send("up");
      for (;;) {
        const int fd = smi_events(kfd.fd());
        if (fd >= 0) close(fd);
      }
      return 0;
    }};
    ASSERT_TRUE(child.says("up", 10s));
    std::this_thread::sleep_for(std::chrono::microseconds{911 * i});
    child.signal(SIGKILL);
    ASSERT_TRUE(child.wait(20s));
  }
  const raw_device kfd{device.roots().device};
  const int fd = smi_events(kfd.fd());
  EXPECT_GE(fd, 0) << fd;
  close(fd);
}

TEST(SmiEvents, TellsOfProcessesWhereTheDriverDoes) {
  const simulated_device device{{.profile = profile_text("smi_process_events = true\n", "")}};
  const raw_device kfd{device.roots().device};
  const int fd = listen_to(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  child_process child{[&](channel&) {
    const raw_device own{device.roots().device};
    const queue_memory memory;
    return memory.create(own.fd(), gpu) == 0 ? 0 : 1;
  }};
  ASSERT_TRUE(child.succeeds(20s));
  std::array<char, 16> pid{};
  std::snprintf(pid.data(), pid.size(), "%x", static_cast<unsigned>(child.pid()));
  std::string seen;
  const auto name = read_file("/proc/self/comm");  // The child is our fork.
  const auto expected =
      "c " + std::string{pid.data()} + " " + name + "d " + std::string{pid.data()} + " " + name;
  EXPECT_TRUE(eventually(patience, [&] {
    const auto more = read_some(fd);
    if (!more.starts_with("error")) seen += more;
    return seen == expected;
  })) << seen;
  close(fd);
}

// Commanded from outside, seen in sysfs and by the process itself.
TEST(SmiEvents, TellsTheOwnerThatItsQueuesAreEvictedAndRestored) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  const int fd = listen_to(kfd.fd());
  ASSERT_GE(fd, 0) << fd;
  const auto own = std::to_string(getpid());
  const auto evicted = device.roots().sysfs + "/proc/" + own + "/stats_51110/evicted_ms";
  EXPECT_EQ(read_file(evicted), "0\n");
  ASSERT_EQ(command(device, "evict " + own + " 51110\n"), 0);
  auto line = next_lines(fd);
  EXPECT_TRUE(line.starts_with("9 ") && line.ends_with(" -" + own + " c7a6 2\n")) << line;
  EXPECT_TRUE(eventually(patience, [&] { return read_file(evicted) != "0\n"; }));
  ASSERT_EQ(command(device, "restore " + own + " 51110\n"), 0);
  line = next_lines(fd);
  EXPECT_TRUE(line.starts_with("a ") && line.ends_with(" -" + own + " c7a6\n")) << line;
  close(fd);
}

// --- The control file ----------------------------------------------------------------------------

TEST(ControlFile, IsRootsAloneAndTellsHowTheLastCommandWent) {
  const simulated_device device;
  const auto path = device.root() + "/sim/control";
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode, static_cast<mode_t>(S_IFREG | 0600));
  EXPECT_EQ(about.st_uid, 0U);
  EXPECT_EQ(read_file(path), "no command written yet\n");
  EXPECT_EQ(command(device, "fail-cycle 51110 20ms\n\n# and\nexplode\nfail-cycle 51110 1s\n"),
            -EINVAL);
  EXPECT_TRUE(
      read_file(path).starts_with("line 4: unknown command 'explode'; available: fail-cycle"))
      << read_file(path);
  EXPECT_EQ(command(device, "fail-cycle 51110 20ms"), 0) << "a line needs no end";
  EXPECT_EQ(read_file(path), "done\n");
}

TEST(ControlFile, TakesCommandsFromAShell) {
  const simulated_device device;
  const auto path = device.root() + "/sim/control";
  const auto script =
      "echo fail-cycle 51110 20ms > " + path + " && ! echo nonsense > " + path + " 2>/dev/null";
  EXPECT_EQ(std::system(("/bin/bash -c '" + script + "'").c_str()), 0);  // NOLINT: one thread.
  EXPECT_TRUE(read_file(path).starts_with("line 1: unknown command 'nonsense'"));
}

// The time it takes, and the result, are the injected ones.
TEST(ControlFile, FailsTheNextCycleOfAGpu) {
  const simulated_device device;
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  ASSERT_EQ(command(device, "fail-cycle 51110 300ms\n"), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(memory.create(kfd.fd(), gpu), -ETIME);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
  EXPECT_EQ(memory.create(kfd.fd(), gpu), 0);
}

}  // namespace
}  // namespace sluice::test::smi_test
