#include "os_linux.hpp"

#include "child_process.hpp"
#include "engine.hpp"
#include "eventually.hpp"
#include "loop.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::sim::os_linux_test {
namespace {

using namespace std::chrono_literals;
using test::channel;
using test::child_process;

class OsLinux : public ::testing::Test {
 protected:
  engine planned_{clock::now()};
  realtime_loop loop_{planned_};
  int exits_ = 0;
  os_linux os_{loop_, [this] {
                 ++exits_;
                 loop_.stop();
               }};
};

/// Says where `word` is and waits to be told to go on.
void show_address(channel& line, const void* word) {
  line.send(std::to_string(reinterpret_cast<std::uintptr_t>(word)));
  line.receive(20s);
}

std::uint64_t hear_address(child_process& child) {
  const auto said = child.line().receive(10s);
  return said ? std::stoull(*said) : 0;
}

TEST_F(OsLinux, KnowsTheLeaderOfAThread) {
  EXPECT_EQ(os_.leader_of(getpid()), getpid());
  std::thread{[&] {
    EXPECT_NE(gettid(), getpid());
    EXPECT_EQ(os_.leader_of(gettid()), getpid());
    EXPECT_EQ(os_.leader_of(gettid()), getpid()) << "the second time it is remembered";
  }}.join();
  EXPECT_EQ(os_.leader_of(0), 0);
  EXPECT_EQ(os_.leader_of(0x7ffffff0), 0);
}

TEST_F(OsLinux, KnowsTheThreadThatTraces) {
  child_process child{[](channel& line) {
    line.receive(20s);
    return 0;
  }};
  EXPECT_EQ(os_.tracer_of(child.pid()), 0);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0);
  EXPECT_EQ(os_.tracer_of(child.pid()), gettid());
}

TEST_F(OsLinux, CopiesWholeOrNotAtAll) {
  child_process child{[](channel& line) {
    auto* pages = static_cast<char*>(
        mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    munmap(pages + 4096, 4096);
    std::memset(pages, 7, 4096);
    show_address(line, pages);
    return pages[8] == 9 && pages[16] == 3 && pages[0] == 5 ? 0 : 1;
  }};
  const auto base = hear_address(child);
  auto space = os_.open_address_space(child.pid());
  ASSERT_TRUE(space);
  std::array<std::byte, 16> bytes{};
  ASSERT_TRUE((*space)->read(base + 100, bytes));
  EXPECT_EQ(bytes[15], std::byte{7});
  EXPECT_EQ((*space)->read(base + 4090, bytes).error().value(), EFAULT) << "half of it is unmapped";
  EXPECT_EQ((*space)->read(0, bytes).error().value(), EFAULT);
  EXPECT_EQ((*space)->read(1ULL << 63U, bytes).error().value(), EFAULT);
  const std::byte five{5};
  EXPECT_TRUE((*space)->write(base, {&five, 1}));
  const std::array<address_space::patch, 3> words{{{base + 8, 8}, {base + 16, 3}, {base + 8, 9}}};
  EXPECT_TRUE((*space)->write_words(words));
  child.line().send("go");
  EXPECT_TRUE(child.succeeds(10s));
}

TEST_F(OsLinux, WritesMoreWordsThanOneSystemCallTakes) {
  constexpr std::size_t count = 5000;
  child_process child{[](channel& line) {
    std::vector<std::uint64_t> words(count);
    show_address(line, words.data());
    for (std::size_t i = 0; i < count; ++i) {
      if (words[i] != i + 1) return 1;
    }
    return 0;
  }};
  const auto base = hear_address(child);
  auto space = os_.open_address_space(child.pid());
  ASSERT_TRUE(space);
  std::vector<address_space::patch> patches;
  for (std::size_t i = 0; i < count; ++i) patches.push_back({base + i * 8, i + 1});
  EXPECT_TRUE((*space)->write_words(patches));
  child.line().send("go");
  EXPECT_TRUE(child.succeeds(10s));
}

// A legal program may end its main thread: its memory and descriptors live on with the others.
TEST_F(OsLinux, ReachesAProcessWhoseMainThreadHasEnded) {
  child_process child{[](channel& line) {
    static std::uint64_t word = 7;
    static std::array<int, 2> ends{};
    static std::atomic<bool> alone{false};
    if (pipe(ends.data()) != 0) return 1;
    std::thread{[&line] {
      line.send(std::to_string(gettid()));
      show_address(line, &word);
      alone = true;
      alone.notify_one();
      line.send(std::to_string(ends[1]));
      const bool written = line.receive(20s) == "written";
      char byte = 0;
      if (written && (read(ends[0], &byte, 1) != 1 || byte != '.')) _exit(2);
      _exit(word == 9 ? 0 : 3);
    }}.detach();
    alone.wait(false);
    syscall(SYS_exit, 0);  // pthread_exit() without unwinding the test's own frames.
    return 99;
  }};
  const auto worker = static_cast<pid_t>(hear_address(child));
  const auto address = hear_address(child);
  auto space = os_.open_address_space(child.pid());
  ASSERT_TRUE(space);
  std::uint64_t word = 0;
  const auto bytes = std::as_writable_bytes(std::span{&word, 1});
  ASSERT_TRUE((*space)->read(address, bytes));
  ASSERT_TRUE(os_.has_memory(child.pid()));
  child.line().send("go");
  ASSERT_TRUE(test::eventually(test::patience, [&] { return !os_.has_memory(child.pid()); }));

  EXPECT_TRUE(os_.has_memory(worker));
  EXPECT_EQ(os_.leader_of(worker), child.pid());
  EXPECT_TRUE((*space)->alive());
  EXPECT_TRUE(os_.same_address_space(child.pid(), **space));
  ASSERT_TRUE((*space)->read(address, bytes));
  EXPECT_EQ(word, 7U);
  EXPECT_EQ((*space)->read(0, bytes).error().value(), EFAULT);
  const std::uint64_t eight = 8;
  EXPECT_TRUE((*space)->write(address, std::as_bytes(std::span{&eight, 1})));
  const std::array<address_space::patch, 1> nine{{{address, 9}}};
  EXPECT_TRUE((*space)->write_words(nine));
  const auto fd = os_.take_fd(worker, static_cast<int>(hear_address(child)));
  if (fd) {
    os_.write_byte(*fd, '.');
    os_.close_fd(*fd);
  }
  const auto by_thread = static_cast<int>(syscall(SYS_pidfd_open, gettid(), O_EXCL));
  if (by_thread >= 0) close(by_thread);
  EXPECT_EQ(fd.has_value(), by_thread >= 0) << "from Linux 6.9 on (PIDFD_THREAD)";
  child.line().send(fd ? "written" : "nothing was written");
  EXPECT_TRUE(child.succeeds(10s));
  EXPECT_FALSE((*space)->alive());
}

TEST_F(OsLinux, RefusesZombiesAndUnknownProcesses) {
  child_process child{[](channel&) { return 0; }};
  siginfo_t about{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &about, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(os_.open_address_space(child.pid()).error().value(), ESRCH);
  EXPECT_EQ(os_.open_address_space(0x7ffffff0).error().value(), ESRCH);
  EXPECT_EQ(os_.open_address_space(2).error().value(), ESRCH) << "kthreadd has no memory";
}

TEST_F(OsLinux, SeesThatAnAddressSpaceEndedByExec) {
  child_process child{[](channel& line) {
    line.send("up");
    line.receive(20s);
    execl("/bin/sleep", "sleep", "20", nullptr);
    return 99;
  }};
  ASSERT_TRUE(child.says("up", 10s));
  auto space = os_.open_address_space(child.pid());
  ASSERT_TRUE(space);
  EXPECT_TRUE((*space)->alive());
  EXPECT_TRUE(os_.same_address_space(child.pid(), **space));
  EXPECT_FALSE(os_.same_address_space(getpid(), **space));
  child.line().send("exec");
  EXPECT_TRUE(test::eventually(test::patience, [&] { return !(*space)->alive(); }));
  EXPECT_FALSE(os_.same_address_space(child.pid(), **space));
  const std::byte one{1};
  EXPECT_EQ((*space)->write(0x400000, {&one, 1}).error().value(), ESRCH)
      << "a write would reach the new program";
}

TEST_F(OsLinux, SaysWhenAProcessExits) {
  child_process child{[](channel& line) {
    line.receive(20s);
    return 0;
  }};
  auto space = os_.open_address_space(child.pid());
  ASSERT_TRUE(space);
  child.line().send("exit");
  loop_.run();
  EXPECT_EQ(exits_, 1);
  EXPECT_FALSE((*space)->alive());
}

TEST_F(OsLinux, TakesADescriptorOfAnotherProcess) {
  child_process child{[](channel& line) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) return 1;
    line.send(std::to_string(ends[1]));
    char byte = 0;
    return read(ends[0], &byte, 1) == 1 && byte == '.' ? 0 : 2;
  }};
  const auto fd = os_.take_fd(child.pid(), static_cast<int>(hear_address(child)));
  ASSERT_TRUE(fd);
  os_.write_byte(*fd, '.');
  os_.close_fd(*fd);
  EXPECT_TRUE(child.succeeds(10s));
  EXPECT_EQ(os_.take_fd(getpid(), 9999).error().value(), EBADF);
}

// A debugger's pipe may be a blocking one, and full.
TEST_F(OsLinux, NeverBlocksOnAFullPipe) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const int size = fcntl(ends[1], F_SETPIPE_SZ, 4096);
  ASSERT_GT(size, 0);
  const std::vector<char> fill(static_cast<std::size_t>(size));
  ASSERT_EQ(write(ends[1], fill.data(), fill.size()), size);
  alarm(10);  // A failure would be a hang.
  os_.write_byte(ends[1], '.');
  alarm(0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(OsLinux, KnowsNamesAndCapabilities) {
  EXPECT_EQ(os_.name_of(getpid()) + "\n", [] {
    std::ifstream file{"/proc/self/comm"};
    std::string line;
    std::getline(file, line);
    return line + "\n";
  }());
  EXPECT_EQ(os_.name_of(0x7ffffff0), "");
  EXPECT_TRUE(os_.has_capability(getpid(), CAP_SYS_ADMIN)) << "these tests run as root";
  child_process child{[](channel& line) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> sets{};
    if (syscall(SYS_capget, &header, sets.data()) != 0) return 1;
    sets[0].effective &= ~(1U << static_cast<unsigned>(CAP_SYS_ADMIN));
    if (syscall(SYS_capset, &header, sets.data()) != 0) return 2;
    line.send("dropped");
    line.receive(20s);
    return 0;
  }};
  ASSERT_TRUE(child.says("dropped", 10s));
  EXPECT_FALSE(os_.has_capability(child.pid(), CAP_SYS_ADMIN));
  EXPECT_FALSE(os_.has_capability(0x7ffffff0, CAP_SYS_ADMIN));
}

}  // namespace
}  // namespace sluice::sim::os_linux_test
