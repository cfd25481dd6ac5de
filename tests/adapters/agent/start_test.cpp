/// How the agent's start fails, each time with a reason. No device is needed for that.

#include "backend_loop.hpp"
#include "family.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/node_lock.hpp"

namespace sluice::agent {
namespace {

using namespace std::chrono_literals;

class AgentStart : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-agent-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    options_.roots.device = directory_ + "/dev/kfd";
    options_.owner_lock = directory_ + "/owner";
    options_.say = [this](std::string_view words) { message_ += std::string{words} + "\n"; };
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  error_code start() {
    test::backend_loop loop{make_agent_backend(options_)};
    const auto started = loop.start();
    return started ? error_code{} : started.error();
  }
  bool said(const std::string& words) const { return message_.find(words) != std::string::npos; }

  std::string directory_;
  agent_options options_;
  std::string message_;
};

TEST_F(AgentStart, NamesADeviceThatIsNotThere) {
  EXPECT_EQ(start(), boost::system::errc::no_such_file_or_directory);
  EXPECT_TRUE(said("cannot open " + options_.roots.device)) << message_;
}

TEST_F(AgentStart, NamesADeviceThatIsNotKfd) {
  options_.roots.device = "/dev/null";
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  EXPECT_TRUE(said("/dev/null is not a KFD device")) << message_;
}

TEST_F(AgentStart, NamesTheOwnerOfTheNode) {
  test::family owner{[this](int said_fd) {
    const auto held = kfd::node_lock::acquire(options_.owner_lock, options_.say);
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
  EXPECT_TRUE(said("/bin/true ended before it was ready")) << message_;
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
  options_.roots.device = "/dev/null";
  std::array<int, 40> held{};
  for (int& each : held) each = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  for (const int each : held) ::close(each);
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
}

// A host that waits for all its children must not wait for the agent, nor be disturbed by it.
TEST_F(AgentStart, LeavesTheHostNoChild) {
  options_.roots.device = "/dev/null";
  EXPECT_EQ(start(), boost::system::errc::inappropriate_io_control_operation);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
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
    options_.roots.device = "/dev/null";
  }
  /// Starts it as nobody, in a child. \return 'y' when it said those words.
  char says_to_nobody(const std::string& words) {
    const test::family host{[&](int said_fd) {
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
      start();
      (void)!::write(STDERR_FILENO, message_.data(), message_.size());
      (void)!::write(said_fd, said(words) ? "y" : "n", 1);
      return 0;
    }};
    return host.heard().value_or('?');
  }
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
  EXPECT_EQ(says_to_nobody("takes no other device"), 'y') << "a device and a lock of its own";
  options_.roots.device = kfd::roots{}.device;
  EXPECT_EQ(says_to_nobody("takes no other device"), 'y') << "a lock of its own";
  options_.owner_lock = "";
  EXPECT_EQ(says_to_nobody("takes no other device"), 'y') << "no lock";
  options_.owner_lock = kfd::default_owner_lock;
  EXPECT_EQ(says_to_nobody("takes no other device"), 'n');
}

TEST(AgentProgram, SaysWhoStartsIt) {
  const std::string command = std::string{SLUICE_AGENT_PROGRAM} + " 3<&- 2>&1";
  FILE* const output = ::popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text(1000, '\0');
  text.resize(::fread(text.data(), 1, text.size(), output));
  EXPECT_EQ(WEXITSTATUS(::pclose(output)), 2);
  EXPECT_NE(text.find("started by the program that embeds"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::agent
