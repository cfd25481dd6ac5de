#include "sluice/os/node_lock.hpp"

#include "family.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace sluice::node_lock_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;

class NodeLock : public ::testing::Test {
 protected:
  std::string path() const { return (directory_ / "run" / "sluice" / "owner").string(); }
  result<std::unique_ptr<node_lock>> acquire() {
    return node_lock::acquire(path(), [this](std::string_view words) { message_ = words; });
  }

  /// For a child: says 'y' if it has the lock, and keeps it until it is killed.
  static int hold(int said, const result<std::unique_ptr<node_lock>>& held) {
    (void)!::write(said, held ? "y" : "n", 1);
    for (;;) ::pause();
  }

  const test::temporary_directory made_;
  const std::filesystem::path directory_ = made_.path();
  std::string message_;
};

TEST_F(NodeLock, CreatesItsDirectory) {
  EXPECT_TRUE(acquire());
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(NodeLock, IsHeldOncePerNodeAndNamesItsOwner) {
  family owner{[this](int said) { return hold(said, acquire()); }};
  ASSERT_EQ(owner.heard(), 'y');
  const auto second = acquire();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), errc::already_owned);
  EXPECT_NE(message_.find("process " + std::to_string(owner.pid()) + " ("), std::string::npos)
      << message_;
  EXPECT_NE(message_.find(path()), std::string::npos) << message_;
}

TEST_F(NodeLock, NamesTheProgramThatItsOwnerHoldsItFor) {
  family owner{[this](int said) {
    return hold(said,
                node_lock::acquire(path(), messages_to_stderr(), {.on_behalf_of = ::getppid()}));
  }};
  ASSERT_EQ(owner.heard(), 'y');
  EXPECT_EQ(acquire().error(), errc::already_owned);
  const std::size_t holder = message_.find("process " + std::to_string(owner.pid()) + " (");
  const std::size_t program = message_.find("owned by process ");
  ASSERT_NE(holder, std::string::npos) << message_;
  ASSERT_NE(program, std::string::npos) << message_;
  EXPECT_LT(program, holder) << message_;
  EXPECT_NE(program + 9, holder) << message_;
}

TEST_F(NodeLock, SaysWhatItsOwnerDoes) {
  using kind = node_lock::kind;
  EXPECT_FALSE(node_lock::look(path()).value());
  for (const kind what : {kind::node, kind::observing, kind::scheduler}) {
    family owner{[this, what](int said) {
      return hold(said, node_lock::acquire(path(), messages_to_stderr(),
                                           {.on_behalf_of = ::getppid(), .what = what}));
    }};
    ASSERT_EQ(owner.heard(), 'y');
    const auto found = node_lock::look(path());
    ASSERT_TRUE(found && *found);
    EXPECT_EQ((*found)->what, what);
    EXPECT_EQ((*found)->words, node_lock::owner(path()));
    EXPECT_TRUE((*found)->words.ends_with(")")) << (*found)->words;
    EXPECT_NE((*found)->words.find("whose agent is process " + std::to_string(owner.pid())),
              std::string::npos);
    EXPECT_EQ((*found)->agent, owner.pid());
  }
}

// Whoever waits for the lock will have it soon.
TEST_F(NodeLock, SaysThatTheProgramHasEndedForWhichItIsHeld) {
  family program{[](int) -> int {
    for (;;) ::pause();
  }};
  family agent{[&](int said) {
    return hold(said,
                node_lock::acquire(path(), messages_to_stderr(), {.on_behalf_of = program.pid()}));
  }};
  ASSERT_EQ(agent.heard(), 'y');
  const auto ended = [this] { return node_lock::look(path()).value().value().ended; };
  EXPECT_FALSE(ended());
  ::kill(program.pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, ended)) << "before its parent has waited for it";
}

TEST_F(NodeLock, CannotBeLookedAtThroughWhatIsNoDirectory) {
  std::ofstream{directory_ / "run"} << "a file";
  const auto found = node_lock::look(path());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error(), boost::system::errc::not_a_directory);
}

// Whoever owns the directory may put there what he likes, and root looks.
TEST_F(NodeLock, IsLookedAtThroughNobodysPipeOrLink) {
  std::filesystem::create_directories(directory_ / "run" / "sluice");
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(node_lock::look(path()).error(), boost::system::errc::invalid_argument);
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::symlink("/etc/hostname", path().c_str()), 0);
  EXPECT_EQ(node_lock::look(path()).error(), boost::system::errc::too_many_symbolic_link_levels);
}

TEST_F(NodeLock, IsFreeOnceItsOwnerIsKilled) {
  family owner{[this](int said) { return hold(said, acquire()); }};
  ASSERT_EQ(owner.heard(), 'y');
  ::kill(owner.pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return acquire().has_value(); })) << message_;
}

TEST_F(NodeLock, IsFreeOnceReleased) {
  { ASSERT_TRUE(acquire()); }
  EXPECT_TRUE(acquire());
}

// Who may read it may take a read lock, and nobody owns the node.
TEST_F(NodeLock, CanBeOpenedByNobodyElse) {
  const auto mode = [this] {
    struct stat found {};
    EXPECT_EQ(::stat(path().c_str(), &found), 0);
    return found.st_mode & 07777U;
  };
  { ASSERT_TRUE(acquire()); }
  EXPECT_EQ(mode(), 0600U);
  // As an earlier version made it.
  ASSERT_EQ(::chmod(path().c_str(), 0644), 0);
  { ASSERT_TRUE(acquire()); }
  EXPECT_EQ(mode(), 0640U);
  ASSERT_EQ(::chmod(path().c_str(), 0660), 0);
  { ASSERT_TRUE(acquire()); }
  EXPECT_EQ(mode(), 0660U) << "whom to trust is the administrator's word";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(directory_, std::filesystem::perms{0755});
  std::filesystem::remove(path());
  { ASSERT_TRUE(acquire()); }
  constexpr uid_t nobody = 65534;
  ASSERT_EQ(::seteuid(nobody), 0);
  const int fd = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
  const int why = errno;
  const auto found = node_lock::look(path());
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(why, EACCES);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error(), boost::system::errc::permission_denied);
}

TEST_F(NodeLock, IsWrittenThroughNobodysLink) {
  std::filesystem::create_directories(std::filesystem::path{path()}.parent_path());
  const auto victim = directory_ / "victim";
  std::ofstream{victim} << "whole";
  std::filesystem::create_symlink(victim, path());
  EXPECT_FALSE(acquire());
  EXPECT_EQ(std::filesystem::file_size(victim), 5U);
  EXPECT_NE(message_.find(path()), std::string::npos) << message_;
}

TEST_F(NodeLock, SaysWhereItCannotBe) {
  const auto impossible = node_lock::acquire("/proc/sluice/owner",
                                             [this](std::string_view words) { message_ = words; });
  ASSERT_FALSE(impossible);
  EXPECT_NE(message_.find("/proc/sluice/owner"), std::string::npos) << message_;
}

}  // namespace
}  // namespace sluice::node_lock_test
