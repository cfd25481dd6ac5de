/// How the agent's start fails, each time with a reason. No device is needed for that.

#include "backend_loop.hpp"
#include "eventually.hpp"
#include "family.hpp"
#include "hold_record.hpp"
#include "launch.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/os/node_lock.hpp"

namespace sluice::agent::start_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class AgentStart : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.driver = kfd::acting();
    options_.driver.settings["device"] = directory_ + "/dev/kfd";
    options_.owner_lock = directory_ + "/owner";
    options_.say = [this](std::string_view words) { message_ += std::string{words} + "\n"; };
  }

  error_code start() {
    test::backend_loop loop{make_agent_backend(options_)};
    const auto started = loop.start();
    return started ? error_code{} : started.error();
  }
  bool said(const std::string& words) const { return message_.find(words) != std::string::npos; }

  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  agent_options options_;
  std::string message_;
};

TEST_F(AgentStart, NamesADeviceThatIsNotThere) {
  EXPECT_EQ(start(), boost::system::errc::no_such_file_or_directory);
  EXPECT_TRUE(said("cannot open " + options_.driver.settings["device"])) << message_;
}

TEST_F(AgentStart, NamesADeviceThatIsNotKfd) {
  options_.driver.settings["device"] = "/dev/null";
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  EXPECT_TRUE(said("/dev/null is not a KFD device")) << message_;
}

TEST_F(AgentStart, NamesTheOwnerOfTheNode) {
  test::family owner{[this](int said_fd) {
    const auto held = node_lock::acquire(options_.owner_lock, options_.say);
    (void)!::write(said_fd, held ? "y" : "n", 1);
    for (;;) ::pause();
    return 0;
  }};
  ASSERT_EQ(owner.heard(), 'y');
  EXPECT_EQ(start(), errc::already_owned);
  EXPECT_TRUE(said("owned by process " + std::to_string(owner.pid()))) << message_;
}

TEST_F(AgentStart, NamesAProgramThatIsNotThere) {
  options_.agent_path = directory_ + "/sluice-agent";
  EXPECT_EQ(start(), boost::system::errc::no_such_file_or_directory);
  EXPECT_TRUE(said("tried " + options_.agent_path)) << message_;
}

TEST_F(AgentStart, NamesAProgramThatIsNoAgent) {
  options_.agent_path = "/bin/true";
  EXPECT_EQ(start(), errc::lost);
  EXPECT_TRUE(said("/bin/true exited before it was ready")) << message_;
}

TEST_F(AgentStart, RefusesALeaseOutOfRange) {
  for (const duration length : {duration{10ms}, duration{5min}}) {
    options_.lease = length;
    EXPECT_EQ(start(), errc::bad_config);
  }
  EXPECT_TRUE(said("50 ms to 60 s")) << message_;
}

// Whatever numbers the host's descriptors have, the agent's come out right.
TEST_F(AgentStart, WorksWithFewAndWithManyDescriptorsInUse) {
  options_.driver.settings["device"] = "/dev/null";
  std::array<int, 40> held{};
  for (int& each : held) each = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  for (const int each : held) ::close(each);
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
}

// A host that waits for all its children must not wait for the agent, nor be disturbed by it.
TEST_F(AgentStart, LeavesTheHostNoChild) {
  options_.driver.settings["device"] = "/dev/null";
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

/// What a host of one's own passes to the agent.
class PassedDescriptors : public ::testing::Test {
 protected:
  void SetUp() override {
    int control[2];
    int bell[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, bell), 0);
    ours_[0].reset(control[0]);
    ours_[1].reset(bell[0]);
    unique_fd memory{::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    ASSERT_EQ(::ftruncate(memory.get(), sizeof(shared_page)), 0);
    ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    void* const mapped =
        ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    new (mapped) shared_page;
    ::munmap(mapped, sizeof(shared_page));
    theirs_[control_fd - 3].reset(control[1]);
    theirs_[memory_fd - 3] = std::move(memory);
    theirs_[agent_doorbell_fd - 3].reset(::eventfd(0, EFD_CLOEXEC));
    theirs_[host_doorbell_fd - 3].reset(bell[1]);
    theirs_[host_pidfd - 3].reset(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  }
  /// What the agent says to them.
  std::string answer() {
    std::array<int, 5> numbers{};
    for (std::size_t index = 0; index < numbers.size(); ++index)
      numbers[index] = ::fcntl(theirs_[index].get(), F_DUPFD_CLOEXEC, 100);
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::size_t index = 0; index < numbers.size(); ++index)
        ::dup2(numbers[index], 3 + static_cast<int>(index));
      ::execl(SLUICE_AGENT_PROGRAM, "sluice-agent", "--driver", "kfd", "--set", "device=/dev/null",
              "--owner-lock", "", nullptr);
      ::_exit(127);
    }
    for (const int each : numbers) ::close(each);
    for (auto& each : theirs_) each.reset();
    ::waitpid(child, nullptr, 0);
    pollfd line{ours_[0].get(), POLLIN, 0};
    note heard;
    unique_fd unexpected;
    if (::poll(&line, 1, 10'000) != 1 || !receive(ours_[0].get(), heard, unexpected))
      return "nothing";
    return std::string{heard.kind == note_kind::refused ? heard.get_text() : "no refusal"};
  }

  std::array<unique_fd, 2> ours_;
  std::array<unique_fd, 5> theirs_;
};

TEST_F(PassedDescriptors, AreTakenAsAgreed) {
  EXPECT_THAT(answer(), HasSubstr("/dev/null is not a KFD device"));
}

// A file of a file system that answers when it likes, say, would have the agent wait for it.
TEST_F(PassedDescriptors, AreTakenOfTheAgreedKindsOnly) {
  for (const int wrong : {memory_fd, agent_doorbell_fd, host_doorbell_fd, host_pidfd}) {
    SCOPED_TRACE(wrong);
    SetUp();
    theirs_[static_cast<std::size_t>(wrong - 3)].reset(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    EXPECT_THAT(answer(), HasSubstr("come from different builds"));
  }
}

/// A copy of the agent's program that has more rights than who starts it.
class PrivilegedAgent : public AgentStart {
 protected:
  void SetUp() override {
    AgentStart::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a file rights";
    ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
    options_.agent_path = directory_ + "/sluice-agent";
    std::filesystem::copy_file(SLUICE_AGENT_PROGRAM, options_.agent_path);
    options_.driver.settings["device"] = "/dev/null";
  }
  /// Starts it as nobody, in a child. \return 'y' when it said those words.
  char says_to_nobody(const std::string& words) {
    const test::family host{[&](int said_fd) {
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
      if (no_new_privs_ && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 1;
      start();
      (void)!::write(STDERR_FILENO, message_.data(), message_.size());
      (void)!::write(said_fd, said(words) ? "y" : "n", 1);
      return 0;
    }};
    return host.heard().value_or('?');
  }
  bool no_new_privs_ = false;
};

TEST_F(PrivilegedAgent, RefusesToBeSetUidOrSetGid) {
  for (const mode_t bit : {mode_t{S_ISUID}, mode_t{S_ISGID}}) {
    ASSERT_EQ(::chmod(options_.agent_path.c_str(), mode_t{0755} | bit), 0);
    EXPECT_EQ(says_to_nobody("set-uid or set-gid"), 'y');
  }
  ASSERT_EQ(::chmod(options_.agent_path.c_str(), 0755), 0);
  options_.owner_lock = "";
  EXPECT_EQ(says_to_nobody("/dev/null is not a KFD device"), 'y');
}

TEST_F(PrivilegedAgent, TakesOnlyTheNodesOwnDeviceAndLockWithFileCapabilities) {
  // cap_sys_ptrace+ep, as setcap writes it.
  vfs_cap_data data{};
  data.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  data.data[0].permitted = 1U << CAP_SYS_PTRACE;
  if (::setxattr(options_.agent_path.c_str(), "security.capability", &data, sizeof(data), 0) != 0)
    GTEST_SKIP() << "no file capabilities here: " << std::strerror(errno);
  EXPECT_EQ(says_to_nobody("only opens the default device"), 'y')
      << "a device and a lock of its own";
  options_.driver.settings["device"] = kfd::roots{}.device;
  EXPECT_EQ(says_to_nobody("only takes the default owner lock"), 'y') << "a lock of its own";
  options_.owner_lock = "";
  EXPECT_EQ(says_to_nobody("only takes the default owner lock"), 'y') << "no lock";
  options_.owner_lock = default_owner_lock;
  EXPECT_EQ(says_to_nobody("an agent with file capabilities only"), 'n');
  EXPECT_EQ(says_to_nobody("no_new_privs is set"), 'n');
  no_new_privs_ = true;
  EXPECT_EQ(says_to_nobody("no_new_privs is set, so the kernel ignores the capabilities"), 'y');
  no_new_privs_ = false;
  // Of mode 0755 here: who is nobody could not start it as DAEMON.md has it.
  EXPECT_EQ(says_to_nobody(options_.agent_path + " has file capabilities, and every user may"),
            'y');
  ASSERT_EQ(::chmod(options_.agent_path.c_str(), 0750), 0);
  EXPECT_FALSE(is_everybodys(options_.agent_path));
}

// Else what the guardian does at last for the agent before would undo what this one does.
TEST_F(AgentStart, ManagesNobodyWhomAnEarlierAgentStillHolds) {
  const std::string refuses = directory_ + "/refuses";
  std::ofstream{refuses} << "while this is there";
  {
    const auto record = hold_record::open(options_.owner_lock + ".holds", 0s, options_.say);
    ASSERT_TRUE(record && (*record)->begin({"following", {}}));
    hold left{.pid = ::getpid(), .bytes = static_cast<std::uint32_t>(refuses.size())};
    refuses.copy(left.about.data(), left.about.size());
    ASSERT_TRUE((*record)->enter(left));
  }
  options_.driver = {"following", {{"outlives", "1"}}};
  options_.agent_path = SLUICE_FOLLOWING_AGENT;
  test::backend_loop loop{make_agent_backend(options_)};
  ASSERT_TRUE(loop.start()) << message_;
  EXPECT_TRUE(said("without resuming 1 process; now resumed: 0")) << message_;
  const auto attach = [&](pid_t pid) {
    error_code answer = errc::lost;
    if (loop->attach(process_id{1}, pid, 1) &&
        loop.until([&] { return loop.attachments.contains(process_id{1}); }))
      answer = loop.attachments.at(process_id{1});
    loop.attachments.erase(process_id{1});
    return answer;
  };
  EXPECT_EQ(attach(::getpid()), errc::not_managed);
  std::filesystem::remove(refuses);
  EXPECT_TRUE(test::eventually(test::patience, [&] { return attach(::getpid()) == error_code{}; }))
      << "once the guardian has resumed it";
}

/// What the program says when it is run by hand, and its exit status.
std::string run_by_hand(const std::string& arguments, int& status) {
  const std::string command = std::string{SLUICE_AGENT_PROGRAM} + " " + arguments + " 3<&- 2>&1";
  FILE* const output = ::popen(command.c_str(), "r");
  std::string text(4000, '\0');
  text.resize(output != nullptr ? ::fread(text.data(), 1, text.size(), output) : 0);
  status = output != nullptr ? WEXITSTATUS(::pclose(output)) : -1;
  return text;
}

TEST(AgentProgram, SaysWhoStartsIt) {
  int status = 0;
  EXPECT_THAT(run_by_hand("", status), HasSubstr("the program that embeds the scheduler starts"));
  EXPECT_EQ(status, 2);
}

TEST(AgentProgram, SaysItsVersion) {
  int status = -1;
  EXPECT_THAT(run_by_hand("--version", status), testing::MatchesRegex("sluice-agent [0-9.]+\n"));
  EXPECT_EQ(status, 0);
}

TEST(AgentProgram, ListsTheSettingsOfItsDrivers) {
  int status = 0;
  const std::string help = run_by_hand("--help", status);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(help, HasSubstr("--rescue"));
  EXPECT_THAT(help, HasSubstr("Settings of driver kfd:"));
  EXPECT_THAT(help, HasSubstr("criu_pause=true"));
}

TEST_F(AgentStart, NamesItsDriversAndTheirSettings) {
  options_.driver.settings["colour"] = "red";
  EXPECT_EQ(start(), errc::bad_config);
  EXPECT_TRUE(said("invalid setting colour=red of driver kfd")) << message_;
  options_.driver = {.driver = "vaporware"};
  EXPECT_EQ(start(), errc::bad_config);
  EXPECT_TRUE(said("this program has no driver 'vaporware'; it has: kfd")) << message_;
}

}  // namespace
}  // namespace sluice::agent::start_test
