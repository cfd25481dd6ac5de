#include "sluice/roles/role_store.hpp"

#include "family.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/file_watch.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/classification.hpp"

namespace sluice::roles::role_store_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

int wait_here(int said) {
  (void)!::write(said, "r", 1);
  for (;;) ::pause();
}

class RoleStore : public ::testing::Test {
 protected:
  void SetUp() override { store_ = role_store{directory_ + "/lib/sluice/roles"}; }

  stored_roles read() {
    auto roles = store_.read(message_);
    EXPECT_TRUE(roles) << message_;
    return roles ? *roles : stored_roles{};
  }
  void expect_refusal(const std::string& why) {
    message_.clear();
    const auto roles = store_.read(message_);
    ASSERT_FALSE(roles) << why;
    EXPECT_EQ(roles.error(), errc::bad_config);
    EXPECT_THAT(message_, HasSubstr(why));
    EXPECT_THAT(message_, HasSubstr(directory_));
    // Nor is it a base for changes, which would make it look like ours.
    EXPECT_EQ(store_.set("/x", role::online, message_).error(), errc::bad_config);
  }
  void write(const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path{store_.path()}.parent_path());
    std::ofstream{store_.path()} << text;
    ::chmod(store_.path().c_str(), 0644);
  }
  std::string text() const {
    std::ifstream file{store_.path()};
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string boot() {
    std::string line;
    std::getline(std::ifstream{"/proc/sys/kernel/random/boot_id"}, line);
    return line;
  }

  const test::temporary_directory made_{test::memory_directory};
  const std::string directory_ = made_.path();
  std::string message_;
  role_store store_;
};

TEST_F(RoleStore, IsEmptyWithoutAFile) {
  EXPECT_EQ(read(), stored_roles{});
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/lib"));
}

TEST_F(RoleStore, KeepsWhatWasSaid) {
  const process_identity self = identity_of(::getpid()).value();
  ASSERT_TRUE(store_.set(self, role::online, message_)) << message_;
  ASSERT_TRUE(store_.set("/a b/*", role::offline, message_)) << message_;
  ASSERT_TRUE(store_.set("/c", role::unmatched, message_)) << message_;
  role_store later{store_.path()};
  EXPECT_THAT(later.read(message_).value().by_process, ElementsAre(Pair(self, role::online)));
  EXPECT_THAT(
      later.read(message_).value().by_cgroup,
      ElementsAre(cgroup_rule{"/a b/*", role::offline}, cgroup_rule{"/c", role::unmatched}));
  ASSERT_TRUE(later.set(self, role::offline, message_)) << message_;
  EXPECT_THAT(read().by_process, ElementsAre(Pair(self, role::offline)));
  ASSERT_TRUE(later.clear(self, message_)) << message_;
  ASSERT_TRUE(later.clear("/c", message_)) << message_;
  EXPECT_THAT(read().by_process, IsEmpty());
  EXPECT_THAT(read().by_cgroup, ElementsAre(cgroup_rule{"/a b/*", role::offline}));
}

TEST_F(RoleStore, OrdersCgroupsByPosition) {
  const auto patterns = [&] {
    std::string all;
    for (const cgroup_rule& each : read().by_cgroup)
      all += each.cgroup + (each.what == role::online ? "+" : "-");
    return all;
  };
  for (const char* each : {"/a", "/b", "/c"})
    ASSERT_TRUE(store_.set(each, role::offline, message_)) << message_;
  EXPECT_EQ(patterns(), "/a-/b-/c-");
  ASSERT_TRUE(store_.set("/b", role::online, message_));
  EXPECT_EQ(patterns(), "/a-/b+/c-");
  ASSERT_TRUE(store_.set("/d", role::online, message_, 0));
  EXPECT_EQ(patterns(), "/d+/a-/b+/c-");
  ASSERT_TRUE(store_.set("/a", role::offline, message_, 2));
  EXPECT_EQ(patterns(), "/d+/b+/a-/c-");
  ASSERT_TRUE(store_.set("/d", role::online, message_, 99));
  EXPECT_EQ(patterns(), "/b+/a-/c-/d+");
}

TEST_F(RoleStore, SaysWhatIsNotThereToClear) {
  EXPECT_EQ(store_.clear("/a", message_).error(), errc::unknown_target);
  EXPECT_THAT(message_, HasSubstr("\"/a\""));
  EXPECT_EQ(store_.clear(identity_of(::getpid()).value(), message_).error(), errc::unknown_target);
  EXPECT_THAT(message_, HasSubstr(std::to_string(::getpid())));
}

TEST_F(RoleStore, RefusesWhatIsNoPattern) {
  for (const std::string wrong : {"", "a", "/a\n/b"}) {
    EXPECT_EQ(store_.set(wrong, role::online, message_).error(), errc::bad_config);
    EXPECT_THAT(message_, HasSubstr("must begin with /"));
  }
  EXPECT_FALSE(std::filesystem::exists(store_.path()));
}

TEST_F(RoleStore, GivesAReusedPidNothing) {
  process_identity former = identity_of(::getpid()).value();
  --former.start_time;
  EXPECT_EQ(store_.set(former, role::offline, message_).error(), errc::unknown_target);
  const std::string pid = "pid " + std::to_string(::getpid()) + " ";
  const std::string start = std::to_string(former.start_time + 1);
  write("sluice roles 1\n" + pid + std::to_string(former.start_time) + " " + boot() + " offline\n" +
        pid + start + " 00000000-0000-0000-0000-000000000000 offline\n");
  EXPECT_THAT(read().by_process, IsEmpty());
  write("sluice roles 1\n" + pid + start + " " + boot() + " offline\n");
  EXPECT_EQ(read().by_process.size(), 1U);
}

TEST_F(RoleStore, DropsTheDeadWhenWriting) {
  auto target = std::make_unique<family>(wait_here);
  const process_identity who = identity_of(target->pid()).value();
  ASSERT_TRUE(store_.set(who, role::offline, message_)) << message_;
  EXPECT_THAT(text(), HasSubstr("pid " + std::to_string(who.pid) + " "));
  target.reset();
  ASSERT_TRUE(eventually(patience, [&] { return !identity_of(who.pid); }));
  EXPECT_THAT(read().by_process, IsEmpty());
  ASSERT_TRUE(store_.set("/a", role::offline, message_)) << message_;
  EXPECT_EQ(text().find("pid "), std::string::npos);
}

TEST_F(RoleStore, ReleasesForATimeThatEndsByItselfOrEarly) {
  const process_identity self = identity_of(::getpid()).value();
  const auto before = boot_time_now();
  ASSERT_TRUE(store_.release(self, 10min, message_)) << message_;
  ASSERT_EQ(read().released.size(), 1U);
  EXPECT_GE(read().released.at(self), before + 10min);
  EXPECT_LE(read().released.at(self), boot_time_now() + 10min);
  ASSERT_TRUE(store_.set("/a", role::offline, message_)) << "other changes keep it";
  EXPECT_EQ(read().released.size(), 1U);
  ASSERT_TRUE(store_.end_release(self, message_)) << message_;
  EXPECT_THAT(read().released, IsEmpty());
  EXPECT_EQ(store_.end_release(self, message_).error(), errc::unknown_target);
  EXPECT_THAT(message_, HasSubstr("process " + std::to_string(self.pid) + " is not released"));

  ASSERT_TRUE(store_.release(self, 10min, message_)) << message_;
  ASSERT_TRUE(store_.release(self, 30ms, message_)) << "the last word counts";
  EXPECT_TRUE(eventually(patience, [&] { return read().released.empty(); }));
  EXPECT_THAT(text(), HasSubstr("released ")) << "reading changes nothing";
  ASSERT_TRUE(store_.set("/b", role::offline, message_)) << message_;
  EXPECT_EQ(text().find("released "), std::string::npos);

  for (const boot_time wrong : {boot_time{0}, boot_time{-1}, boot_time{24h} + 1ms})
    EXPECT_EQ(store_.release(self, wrong, message_).error(), errc::bad_config);
  EXPECT_EQ(store_.release({self.pid, self.start_time - 1}, 1min, message_).error(),
            errc::unknown_target);
}

// Of another boot, and of the pid's owner before.
TEST_F(RoleStore, GivesAReusedPidNoRelease) {
  const process_identity self = identity_of(::getpid()).value();
  const std::string pid = "released " + std::to_string(self.pid) + " ";
  const std::string start = std::to_string(self.start_time);
  write("sluice roles 1\n" + pid + std::to_string(self.start_time - 1) + " " + boot() +
        " 9000000000000\n" + pid + start + " 00000000-0000-0000-0000-000000000000 9000000000000\n");
  EXPECT_THAT(read().released, IsEmpty());
  write("sluice roles 1\n" + pid + start + " " + boot() + " 9000000000000\n");
  EXPECT_EQ(read().released.size(), 1U);
}

TEST_F(RoleStore, LeavesAFileThatOthersMayReadAndNobodyElseWrite) {
  const mode_t before = ::umask(0);
  ASSERT_TRUE(store_.set("/a", role::offline, message_)) << message_;
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::stat(store_.path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0644U);
  ASSERT_EQ(::stat((directory_ + "/lib/sluice").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0755U);
  ASSERT_EQ(::stat((store_.path() + ".lock").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0077, 0U);
  EXPECT_FALSE(std::filesystem::exists(store_.path() + ".new"));
}

TEST_F(RoleStore, RefusesAFileThatOthersMayWriteOrReplace) {
  write("sluice roles 1\n");
  ::chmod(store_.path().c_str(), 0664);
  expect_refusal("is writable by group or others; run chmod go-w on it");
  ::chmod(store_.path().c_str(), 0646);
  expect_refusal("is writable by group or others");
  ::chmod(store_.path().c_str(), 0644);
  read();
  ::chmod((directory_ + "/lib/sluice").c_str(), 0777);
  expect_refusal("directory");
  ::chmod((directory_ + "/lib/sluice").c_str(), 01777);
  read();
}

TEST_F(RoleStore, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  write("sluice roles 1\n");
  ASSERT_EQ(::chown(store_.path().c_str(), 4711, 0), 0);
  expect_refusal("belongs to user 4711");
}

TEST_F(RoleStore, RefusesWhatIsNoFile) {
  write("sluice roles 1\n");
  std::filesystem::rename(store_.path(), store_.path() + "2");
  std::filesystem::create_symlink(store_.path() + "2", store_.path());
  expect_refusal("is a symbolic link");
  std::filesystem::remove(store_.path());
  ASSERT_EQ(::mkfifo(store_.path().c_str(), 0644), 0);
  expect_refusal("is not a regular file");
}

TEST_F(RoleStore, PointsAtALineThatItDoesNotUnderstand) {
  const std::string first = "sluice roles 1\n";
  const std::string good = "pid 1 2 " + boot() + " online\n";
  const std::string wrong[] = {"pid",
                               "pid 1 2 online",
                               "pid x 2 b online",
                               "pid 0 2 b online",
                               "pid -1 2 b online",
                               "pid 1 2 b Online",
                               "pid 1 2 b online ",
                               "cgroup",
                               "cgroup online",
                               "cgroup online x",
                               "cgroup /x",
                               "cgroups online /x",
                               "released 1 2 b",
                               "released 1 2 b x",
                               "released 1 2 b -1",
                               "released 0 2 b 10",
                               " cgroup online /x"};
  for (const std::string& each : wrong) {
    write(first + good + each + "\n");
    expect_refusal(":3: invalid line \"" + each + "\": ");
  }
  for (const char* each : {"", "sluice roles 2\n", "cgroup online /x\n", "\n"}) {
    write(each);
    expect_refusal(":1: ");
  }
  write(first + "\n# words\n" + good + "cgroup online /x");
  EXPECT_THAT(read().by_cgroup, ElementsAre(cgroup_rule{"/x", role::online}));
  write(first + std::string(role_store::most_bytes, '#'));
  expect_refusal("bytes");
}

TEST_F(RoleStore, SaysWhereItCannotWrite) {
  role_store nowhere{"/proc/sluice/roles"};
  EXPECT_FALSE(nowhere.set("/a", role::offline, message_));
  EXPECT_THAT(message_, HasSubstr("/proc/sluice/roles"));
  role_store none{""};
  EXPECT_EQ(none.set("/a", role::offline, message_).error(), errc::bad_config);
}

TEST_F(RoleStore, LosesNoChangeOfManyProgramsAtOnce) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([this, caller] {
      role_store mine{store_.path()};
      std::string message;
      for (int round = 0; round < 5; ++round) {
        const std::string cgroup = "/" + std::to_string(caller) + "/" + std::to_string(round);
        // Others may keep it waiting longer than the store waits.
        EXPECT_TRUE(eventually(patience, [&] {
          return mine.set(cgroup, role::offline, message).has_value();
        })) << message;
      }
    });
  }
  for (std::thread& each : callers) each.join();
  EXPECT_EQ(read().by_cgroup.size(), 40U);
}

// A reader that looks all the while sees the store as it was before a change or after it.
TEST_F(RoleStore, ShowsReadersWholeFilesOnly) {
  ASSERT_TRUE(store_.set("/" + std::string(200, 'a'), role::offline, message_));
  std::atomic<bool> done{false};
  std::thread writer{[&] {
    role_store mine{store_.path()};
    std::string message;
    for (int round = 0; round < 30; ++round) {
      const std::string big = "/" + std::string(2000, static_cast<char>('a' + round % 26));
      EXPECT_TRUE(mine.set(big, role::online, message)) << message;
      EXPECT_TRUE(mine.clear(big, message)) << message;
    }
    done = true;
  }};
  while (!done) {
    const stored_roles seen = read();
    EXPECT_GE(seen.by_cgroup.size(), 1U);
    EXPECT_LE(seen.by_cgroup.size(), 2U);
  }
  writer.join();
}

TEST_F(RoleStore, GivesUpOnALockThatIsNotGivenBack) {
  ASSERT_TRUE(store_.set("/a", role::offline, message_));
  const unique_fd held{::open((store_.path() + ".lock").c_str(), O_RDWR)};
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  EXPECT_EQ(store_.set("/b", role::offline, message_).error(), errc::busy);
  EXPECT_THAT(message_, HasSubstr(store_.path() + ".lock"));
  EXPECT_EQ(read().by_cgroup.size(), 1U);
}

// What an editor killed half-way leaves behind.
TEST_F(RoleStore, GoesOnAfterAnUnfinishedChange) {
  ASSERT_TRUE(store_.set("/a", role::offline, message_));
  std::ofstream{store_.path() + ".new"} << "sluice ro";
  EXPECT_EQ(read().by_cgroup.size(), 1U);
  ASSERT_TRUE(store_.set("/b", role::offline, message_)) << message_;
  EXPECT_EQ(read().by_cgroup.size(), 2U);
}

class RoleWatch : public RoleStore {
 protected:
  /// Whether its descriptor speaks up; an event may be one of the lock's.
  static bool tells(file_watch& watch) {
    return eventually(patience, [&] {
      pollfd readable{watch.fd(), POLLIN, 0};
      return ::poll(&readable, 1, 0) == 1 && watch.changed();
    });
  }
};

TEST_F(RoleWatch, TellsOfAFileWhoseDirectoriesAreMadeLater) {
  file_watch watch{store_.path()};
  EXPECT_FALSE(watch.changed());
  ASSERT_TRUE(store_.set("/a", role::offline, message_));
  EXPECT_TRUE(tells(watch));
  EXPECT_FALSE(watch.changed());
}

TEST_F(RoleWatch, TellsOfReplacementRemovalAndRights) {
  ASSERT_TRUE(store_.set("/a", role::offline, message_));
  file_watch watch{store_.path()};
  EXPECT_TRUE(watch.changed());
  EXPECT_FALSE(watch.changed());
  ASSERT_TRUE(store_.set("/b", role::offline, message_));
  EXPECT_TRUE(tells(watch));
  ::chmod(store_.path().c_str(), 0666);
  EXPECT_TRUE(tells(watch));
  std::filesystem::remove_all(directory_ + "/lib");
  EXPECT_TRUE(tells(watch));
  ASSERT_TRUE(store_.set("/c", role::offline, message_)) << message_;
  EXPECT_TRUE(tells(watch));
}

TEST_F(RoleWatch, TellsNothingWithoutAPath) {
  file_watch watch{""};
  EXPECT_EQ(watch.fd(), -1);
  EXPECT_FALSE(watch.changed());
}

/// As a client asks: granted, or given by an administrator, but not by its registration.
TEST_F(RoleStore, LetsAProcessBeWhatItSays) {
  const process_identity self = identity_of(::getpid()).value();
  classification_rules rules;
  rules.role_store = directory_ + "/lib/sluice/roles";
  rules.may_claim_online = rules.may_claim_offline = {};
  const auto may = [&](role what) { return may_be(rules, what, self, ::getuid()); };
  EXPECT_FALSE(may(role::online));
  rules.by_process = {{self, role::online}};
  EXPECT_FALSE(may(role::online));
  ASSERT_TRUE(store_.set("/*", role::online, message_)) << message_;
  EXPECT_TRUE(may(role::online));
  EXPECT_FALSE(may(role::offline));
  ASSERT_TRUE(store_.set(self, role::unmatched, message_)) << message_;
  EXPECT_FALSE(may(role::online)) << "a role of the process comes before that of its cgroup";
  std::ofstream(rules.role_store) << "nonsense\n";
  EXPECT_FALSE(may(role::online));
  rules.by_pid = {{self, role::online}};
  EXPECT_TRUE(may(role::online));
  rules.by_pid = {};
  rules.may_claim_online = claim_grant::own_user();
  EXPECT_TRUE(may(role::online));
}

}  // namespace
}  // namespace sluice::roles::role_store_test
