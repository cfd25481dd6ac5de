/// What the agent and its helpers may no longer do once they have confined themselves. In children,
/// for there is no way back.

#include "sluice/agent/confinement.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/kfd/acting_driver.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::agent::confinement_test {
namespace {

constexpr int bells = 700;  // A number for a pidfd; RLIMIT_NOFILE need not be that low here.

/// How a child ends that confines itself so and then does that: waitpid's status.
int status_of(const confinement& how, const std::function<int()>& afterwards) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    if (!confine(how)) ::_exit(99);
    ::_exit(afterwards());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

struct attempt {
  const char* name;
  std::function<int()> body;
};

void PrintTo(const attempt& what, std::ostream* to) { *to << what.name; }

std::string named(const ::testing::TestParamInfo<attempt>& info) { return info.param.name; }

class Forbidden : public ::testing::TestWithParam<attempt> {};

long call(long number, auto... arguments) { return ::syscall(number, arguments...); }

/// A mapping that the test has made before.
void* const somewhere =
    ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

INSTANTIATE_TEST_SUITE_P(
    ToTheAgent, Forbidden,
    ::testing::Values(
        attempt{"RunAnotherProgram", [] { return ::execl("/bin/true", "true", nullptr); }},
        attempt{"MakeAProcess",
                [] { return static_cast<int>(call(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }},
        attempt{"OpenForWriting", [] { return ::open("/dev/null", O_WRONLY | O_CLOEXEC); }},
        attempt{"OpenForBoth", [] { return ::open("/dev/null", O_RDWR | O_CLOEXEC); }},
        attempt{"CreateAFile",
                [] { return ::open("/tmp/sluice-never", O_RDONLY | O_CREAT, 0600); }},
        attempt{"EmptyAFile", [] { return ::open("/dev/null", O_RDONLY | O_TRUNC); }},
        attempt{"RemoveAFile", [] { return ::unlink("/tmp/sluice-never"); }},
        attempt{"MakeASocket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); }},
        attempt{"ReceiveDescriptors",
                [] {
                  msghdr none{};
                  return static_cast<int>(::recvmsg(0, &none, MSG_DONTWAIT));
                }},
        attempt{"KillAnybody", [] { return ::kill(::getpid(), SIGTERM); }},
        attempt{
            "KillByPidfd",
            [] { return static_cast<int>(call(SYS_pidfd_send_signal, 0, SIGTERM, nullptr, 0)); }},
        attempt{"WriteATargetsMemory",
                [] {
                  return static_cast<int>(
                      call(SYS_process_vm_writev, 1, nullptr, 0, nullptr, 0, 0));
                }},
        attempt{"PokeATarget",
                [] { return static_cast<int>(::ptrace(PTRACE_POKEDATA, 1, nullptr, nullptr)); }},
        attempt{"SetATargetsRegisters",
                [] { return static_cast<int>(::ptrace(PTRACE_SETREGSET, 1, nullptr, nullptr)); }},
        attempt{"AttachWithAStop",
                [] { return static_cast<int>(::ptrace(PTRACE_ATTACH, 1, nullptr, nullptr)); }},
        attempt{"MapCode",
                [] {
                  return ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                                -1, 0) == MAP_FAILED;
                }},
        attempt{"MakeDataCode", [] { return ::mprotect(somewhere, 4096, PROT_READ | PROT_EXEC); }},
        attempt{"MakeAnIoUring",
                [] { return static_cast<int>(call(SYS_io_uring_setup, 1, nullptr)); }},
        attempt{"RegisterFilesInAnIoUring",
                [] { return static_cast<int>(call(SYS_io_uring_register, 0, 2, nullptr, 0)); }},
        attempt{"TakeDescriptorsOfOthers",
                [] { return static_cast<int>(call(SYS_pidfd_getfd, 0, 0, 0)); }},
        attempt{"LetGoOfTheMakersPidfd", [] { return ::close(bells); }},
        attempt{"LetGoOfItWithHighBits",
                [] { return static_cast<int>(call(SYS_close, long{bells} | 1L << 32U)); }},
        attempt{"TalkToOtherDrivers", [] { return ::ioctl(0, TIOCSTI, "x"); }},
        // KDSETMODE, whose type is the driver's.
        attempt{"TalkToAConsole", [] { return ::ioctl(0, 0x4B3A, 0); }},
        attempt{"ChangeItsLimits",
                [] {
                  const rlimit more{1024, 1024};
                  return ::setrlimit(RLIMIT_NOFILE, &more);
                }},
        attempt{"ChangeItsUser", [] { return ::setuid(65534); }},
        attempt{"MountSomething", [] { return static_cast<int>(call(SYS_mount, 0, 0, 0, 0, 0)); }},
        attempt{"LoadAProgramIntoTheKernel",
                [] { return static_cast<int>(call(SYS_bpf, 0, 0, 0)); }}),
    named);

TEST_P(Forbidden, EndsTheProcess) {
  const int status = status_of(kfd::agent_confinement({.bells = bells}), GetParam().body);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended with code " << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGSYS);
}

TEST(Allowed, AreThreadsAndToLookAtProcesses) {
  const int status = status_of(kfd::agent_confinement({.bells = bells}), [] {
    int done = 0;
    std::thread{[&] {
      ::prctl(PR_SET_NAME, "another");
      std::ifstream about{"/proc/self/stat"};
      std::string text;
      done = std::getline(about, text) ? 1 : 0;
    }}.join();
    kfd::uapi::kfd_ioctl_get_version_args version{};
    const bool asked =
        ::ioctl(0, kfd::uapi::AMDKFD_IOC_GET_VERSION, &version) != 0;  // of no device
    // Where a role store is not root's it is looked whose else it may be.
    (void)::geteuid();
    return done == 1 && asked && ::write(-1, "", 0) < 0 ? 0 : 1;
  });
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Its death must look like one, in logs and to whoever waits for it.
TEST(Allowed, IsToAbort) {
  const int status =
      status_of(kfd::agent_confinement({.bells = bells}), []() -> int { std::abort(); });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
}

TEST(Allowed, IsToTakeDescriptorsOfTargetsWherePausesNeedIt) {
  const int status = status_of(kfd::agent_confinement({.criu_pause = true}),
                               [] { return call(SYS_pidfd_getfd, -1, 0, 0) < 0 ? 0 : 1; });
  EXPECT_TRUE(WIFEXITED(status));
}

TEST(Allowed, IsOnlyToMakeRingsToTheMaker) {
  const confinement how = kfd::bell_maker_confinement();
  const int makes = status_of(how, [] {
    return call(SYS_io_uring_setup, 1, nullptr) < 0 ? 0 : 1;  // EFAULT, or refused here
  });
  EXPECT_TRUE(WIFEXITED(makes));
  for (const auto& other :
       {std::function<int()>{[] { return ::open("/dev/null", O_RDONLY); }},
        std::function<int()>{[] { return ::prctl(PR_SET_DUMPABLE, 0); }}, std::function<int()>{[] {
          return static_cast<int>(call(SYS_io_uring_enter, 0, 0, 0, 0, 0, 0));
        }}}) {
    const int status = status_of(how, other);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
}

std::uint64_t only(std::initializer_list<int> capabilities) {
  std::uint64_t set = 0;
  for (const int each : capabilities) set |= std::uint64_t{1} << static_cast<unsigned>(each);
  return set;
}

struct sets {
  std::uint64_t effective, permitted, inheritable, bounding, ambient;
  bool no_new_privileges;
};

/// Of a child that has dropped what it does not need.
sets left_of(const confinement& how) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!drop_capabilities(how)) ::_exit(99);
    sets seen{};
    std::ifstream status{"/proc/self/status"};
    for (std::string line; std::getline(status, line);) {
      const auto take = [&](const char* key, std::uint64_t& into) {
        if (line.rfind(key, 0) == 0) into = std::stoull(line.substr(7), nullptr, 16);
      };
      take("CapEff:", seen.effective);
      take("CapPrm:", seen.permitted);
      take("CapInh:", seen.inheritable);
      take("CapBnd:", seen.bounding);
      take("CapAmb:", seen.ambient);
      if (line.rfind("NoNewPrivs:\t1", 0) == 0) seen.no_new_privileges = true;
    }
    (void)!::write(ends[1], &seen, sizeof seen);
    ::_exit(0);
  }
  sets seen{};
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], &seen, sizeof seen), static_cast<ssize_t>(sizeof seen));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return seen;
}

TEST(Capabilities, AreDroppedButForThoseThatItsWorkNeeds) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to have some";
  const std::pair<confinement, std::uint64_t> cases[] = {
      {kfd::agent_confinement({}), only({CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH})},
      {kfd::agent_confinement({.criu_pause = true}),
       only({CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE})},
      {kfd::agent_confinement({.reservations = true}),
       only({CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN})},
      {kfd::bell_maker_confinement(), 0},
  };
  for (const auto& [how, wanted] : cases) {
    const sets left = left_of(how);
    // Root of a container may have fewer to begin with.
    EXPECT_EQ(left.effective & ~wanted, 0U);
    EXPECT_EQ(left.permitted, left.effective);
    EXPECT_EQ(left.bounding & ~wanted, 0U);
    EXPECT_EQ(left.inheritable, 0U);
    EXPECT_EQ(left.ambient, 0U);
    EXPECT_TRUE(left.no_new_privileges);
  }
  EXPECT_NE(left_of(kfd::agent_confinement({})).effective & only({CAP_SYS_PTRACE}), 0U);
}

}  // namespace
}  // namespace sluice::agent::confinement_test
