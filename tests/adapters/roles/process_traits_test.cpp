#include "sluice/roles/process_traits.hpp"

#include "family.hpp"
#include "pattern.hpp"

#include <grp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::roles::process_traits_test {
namespace {

using namespace std::string_view_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Pair;

TEST(ParseCredentials, TakesTheRealIdsAndAllGroups) {
  const auto found = parse_credentials(
      "Name:\tGroups:\nUid:\t1000\t0\t0\t0\nGid:\t100\t5\t5\t5\nGroups:\t4 24 1000 \nVmPeak:\t9 "
      "kB\n");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->user, 1000U);
  EXPECT_THAT(found->groups, ElementsAre(100, 4, 24, 1000));
  EXPECT_THAT(parse_credentials("Uid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\nGroups:\t \n")->groups,
              ElementsAre(2));
  EXPECT_FALSE(parse_credentials("Uid:\t1\t1\t1\t1\n"));
  EXPECT_FALSE(parse_credentials(""));
}

TEST(ParseCgroups, PutsTheUnifiedHierarchyFirst) {
  EXPECT_THAT(parse_cgroups("12:pids:/a\n1:name=systemd:/b:c\n0::/d\n3:cpu,cpuacct:/a\n"),
              ElementsAre("/d", "/a", "/b:c"));
  EXPECT_THAT(parse_cgroups("0::/"), ElementsAre("/"));
  EXPECT_THAT(parse_cgroups("0::\nx\n\n"), IsEmpty());
}

TEST(ParseEnvironment, TakesTheFirstOfEachWantedName) {
  EXPECT_THAT(parse_environment("A=1\0B=x=y\0A=2\0C=\0AB=3\0D\0=E\0B"sv, {"A", "B", "C", "D", ""}),
              ElementsAre(Pair("", "E"), Pair("A", "1"), Pair("B", "x=y"), Pair("C", "")));
  EXPECT_THAT(parse_environment("A=1"sv, {"A"}), ElementsAre(Pair("A", "1")));
  EXPECT_THAT(parse_environment(""sv, {"A"}), IsEmpty());
}

TEST(ReadChangingTraits, ReadsThisProcess) {
  process_traits self{.who = {::getpid(), 0}};
  EXPECT_TRUE(read_changing_traits(self));
  ASSERT_TRUE(self.as);
  EXPECT_EQ(self.as->user, ::getuid());
  EXPECT_EQ(self.as->groups.front(), ::getgid());
  std::vector<gid_t> more(static_cast<std::size_t>(::getgroups(0, nullptr)));
  (void)::getgroups(static_cast<int>(more.size()), more.data());
  EXPECT_THAT(self.as->groups, IsSupersetOf(more));
  EXPECT_NE(network_of(::getpid()), 0U);
}

TEST(Standing, IsAnotherOnceTheProcessIsAnotherUsersOrGroups) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t other = 64003;
  test::family target{[](int said, int told) {
    char order = 0;
    (void)!::write(said, "r", 1);
    while (::read(told, &order, 1) == 1) {
      const int changed =
          order == 'g' ? ::setresgid(other, other, other) : ::setresuid(other, other, other);
      (void)!::write(said, changed == 0 ? "y" : "n", 1);
    }
    return 0;
  }};
  ASSERT_EQ(target.heard(), 'r');
  const unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, target.pid(), 0))};
  const auto before = standing_of(pidfd.get());
  if (!before) GTEST_SKIP() << "this kernel does not say";
  EXPECT_EQ(before->user, ::getuid());
  EXPECT_EQ(before->group, ::getgid());
  EXPECT_EQ(standing_of(pidfd.get()), before);
  target.tell('g');
  ASSERT_EQ(target.heard(), 'y');
  EXPECT_EQ(standing_of(pidfd.get()), (standing{before->user, other, before->cgroup}));
  target.tell('u');
  ASSERT_EQ(target.heard(), 'y');
  EXPECT_EQ(standing_of(pidfd.get()), (standing{other, other, before->cgroup}));
  ::kill(target.pid(), SIGKILL);
  EXPECT_TRUE(test::eventually(test::patience, [&] { return !standing_of(pidfd.get()); }));
}

TEST(Pattern, HoldsForAllBelowWhatItMatches) {
  const auto under = [](const std::string& pattern, std::string_view path) {
    return std::string{matching_cgroup(pattern, path)};
  };
  EXPECT_EQ(under("/a", "/a"), "/a");
  EXPECT_EQ(under("/a", "/a/b/c"), "/a");
  EXPECT_EQ(under("/a/b", "/a/b/c"), "/a/b");
  EXPECT_EQ(under("/a/*", "/a/b/c"), "/a/b");
  EXPECT_EQ(under("/*/c", "/a/b/c/d"), "/a/b/c");
  EXPECT_EQ(under("/", "/a"), "/");
  EXPECT_EQ(under("/a", "/ab"), "");
  EXPECT_EQ(under("/a/b", "/a"), "");
  EXPECT_EQ(under("/a", "/"), "");
  EXPECT_EQ(under("/a\\x2db", "/a\\x2db/c"), "/a\\x2db");
  EXPECT_EQ(under("/job_[0-9]*", "/job_12/step"), "/job_12");
}

}  // namespace
}  // namespace sluice::roles::process_traits_test
