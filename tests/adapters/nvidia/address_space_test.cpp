#include "address_space.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

namespace sluice::nvidia::address_space_test {
namespace {

/// A process that has a pair of handles in an anonymous mapping. It execs a program that waits when
/// it gets SIGUSR1.
class pair_keeper {
 public:
  pair_keeper() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      auto* const words = static_cast<std::uint32_t*>(
          ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      words[100] = 0xc1d00042;
      words[101] = 0x5c000017;
      sigset_t go;
      ::sigemptyset(&go);
      ::sigaddset(&go, SIGUSR1);
      ::sigprocmask(SIG_BLOCK, &go, nullptr);
      (void)!::write(ends[1], "r", 1);
      int got = 0;
      ::sigwait(&go, &got);
      ::execlp("sleep", "sleep", "60", nullptr);
      ::_exit(1);
    }
    char ready = 0;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~pair_keeper() { end(); }
  void exec() const { ::kill(pid_, SIGUSR1); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

/// \return whether it ends within 30 s.
bool ends(const address_space& memory) {
  for (int wait = 0; wait < 30'000; ++wait) {
    if (!memory.is_alive()) return true;
    ::usleep(1000);
  }
  return false;
}

TEST(AddressSpace, FindsTheClientInAnotherProcess) {
  const pair_keeper child;
  auto memory = address_space::open(child.pid());
  ASSERT_TRUE(memory);
  EXPECT_TRUE(memory->is_alive());
  const auto [found, complete] = memory->find_clients(duration::max());
  EXPECT_TRUE(complete);
  const auto client = std::find_if(found.begin(), found.end(),
                                   [](const auto& each) { return each.client == 0xc1d00042; });
  ASSERT_NE(client, found.end());
  EXPECT_EQ(client->newest, 0x5c000017U);
}

TEST(AddressSpace, GoesOnWhereItsTimeEndedOrItWasStopped) {
  const pair_keeper child;
  auto memory = address_space::open(child.pid());
  ASSERT_TRUE(memory);
  for (const bool stopped : {false, false, true, true}) {
    int times = 0;
    int searches = 0;
    for (bool complete = false; !complete && searches < 100'000; ++searches) {
      const auto search = memory->find_clients(stopped ? duration::max() : duration::zero(),
                                               [&] { return stopped; });
      complete = search.complete;
      for (const auto& each : search.found) times += each.client == 0xc1d00042 ? 1 : 0;
    }
    EXPECT_EQ(times, 1);
    EXPECT_GT(searches, 1);
    EXPECT_LT(searches, 100'000);
  }
}

TEST(AddressSpace, EndsByAnExec) {
  const pair_keeper child;
  auto memory = address_space::open(child.pid());
  ASSERT_TRUE(memory);
  child.exec();
  EXPECT_TRUE(ends(*memory));
  EXPECT_TRUE(memory->find_clients(duration::max()).found.empty());
}

TEST(AddressSpace, EndsWithTheProcess) {
  pair_keeper child;
  const auto memory = address_space::open(child.pid());
  ASSERT_TRUE(memory);
  child.end();
  EXPECT_TRUE(ends(*memory));
}

}  // namespace
}  // namespace sluice::nvidia::address_space_test
