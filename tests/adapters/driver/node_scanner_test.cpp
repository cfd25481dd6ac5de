#include "node_scanner.hpp"

#include "fake_driver.hpp"
#include "family.hpp"
#include "looks.hpp"
#include "temporary_directory.hpp"

#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"

namespace sluice::node_scanner_test {
namespace {

using namespace std::chrono_literals;
using test::all;
using test::eventually;
using test::family;
using test::look;
using test::patience;
using test::tagged;
using test::wait_for_exec;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NodeScanner : public ::testing::Test {
 protected:
  const test::temporary_directory made_;
  test::fake_driver driver_;
  const std::unique_ptr<survey> survey_ = driver_.make_survey();
};

process_identity identity(pid_t pid) { return identity_of(pid).value(); }

TEST_F(NodeScanner, HonoursTheTagOfAnAllowedUserOnly) {
  family online{tagged("ONLINE_AI")};
  wait_for_exec(online);
  driver_.show(online.pid());
  node_scanner trusting{*survey_, {}, -1};
  look(trusting);
  EXPECT_THAT(all(trusting), ElementsAre("begin", "gpu 4660", "process online", "end"));
  node_scanner distrusting{*survey_, {.may_claim_online = {.users = {::getuid() + 1}}}, -1};
  look(distrusting);
  EXPECT_THAT(all(distrusting), ElementsAre("begin", "gpu 4660", "process unmatched", "end"));
}

TEST_F(NodeScanner, LeavesAnUnknownTagUnmatched) {
  family target{tagged("BEST_EFFORT")};
  wait_for_exec(target);
  driver_.show(target.pid());
  node_scanner scanner{*survey_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, PrefersWhatWasSaidExplicitly) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid());
  node_scanner scanner{*survey_, {.by_process = {{identity(target.pid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process offline"));
}

// The pid's next owner has another start time, and nothing of what was said of the one before.
TEST_F(NodeScanner, GivesARecycledPidNothingOfWhatWasSaidOfItsFormerOwner) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid());
  process_identity former = identity(target.pid());
  --former.start_time;
  node_scanner registered{*survey_, {.by_process = {{former, role::offline}}}, -1};
  EXPECT_THAT(look(registered), ElementsAre("gpu 4660", "process online"));
  node_scanner untouched{*survey_, {.never_touch = {former}}, -1};
  EXPECT_THAT(look(untouched), ElementsAre("gpu 4660", "process online"));
}

TEST_F(NodeScanner, SaysWhoseRoleIsSaidAnew) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid(), {0});
  node_scanner scanner{*survey_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  scanner.set_roles({{identity(target.pid()), role::offline}});
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
  EXPECT_THAT(look(scanner), IsEmpty());
  scanner.set_roles({});
  EXPECT_THAT(look(scanner), ElementsAre("process online"));
}

TEST_F(NodeScanner, KeepsASaidRoleThroughAnExec) {
  const std::string go = made_.path() + "/go";
  family target{[go](int said) {
    (void)!::write(said, "r", 1);
    while (::access(go.c_str(), F_OK) != 0) ::usleep(1000);
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  }};
  ASSERT_EQ(target.heard(), 'r');
  driver_.show(target.pid());
  node_scanner scanner{*survey_, {.by_process = {{identity(target.pid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process offline"));
  std::ofstream{go} << "";
  wait_for_exec(target);
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
}

TEST_F(NodeScanner, NeverTouchesWhomItIsToldNotTo) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid());
  node_scanner scanner{*survey_,
                       {.never_touch = {identity(target.pid())},
                        .by_process = {{identity(target.pid()), role::offline}}},
                       -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, NeverTakesItselfForOffline) {
  driver_.show(::getpid());
  node_scanner scanner{*survey_, {.by_process = {{identity(::getpid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, ReadsTheRoleAgainAfterAnExec) {
  const std::string go = made_.path() + "/go";
  family target{[go](int said) {
    (void)!::write(said, "r", 1);
    while (::access(go.c_str(), F_OK) != 0) ::usleep(1000);
    ::setenv("AMD_QUEUE_TAG", "OFFLINE_AI", 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  }};
  ASSERT_EQ(target.heard(), 'r');
  driver_.show(target.pid());
  driver_.show(target.pid(), {0});
  node_scanner scanner{*survey_, {}, -1};
  look(scanner);
  std::ofstream{go} << "";
  wait_for_exec(target);
  EXPECT_THAT(look(scanner),
              ElementsAre("queue 0 gone", "process offline", "queue 0 on 4660 compute"));
  EXPECT_THAT(look(scanner), IsEmpty());
}

// Its memory, which holds its environment, goes before it does: that looked like an exec into an
// empty environment, and the process lost its role.
TEST_F(NodeScanner, KeepsTheRoleOfAProcessThatIsExiting) {
  const family target{[](int) {
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execlp("python3", "python3", "-c",
             "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
             nullptr);
    return 1;
  }};
  const pid_t pid = target.pid();
  pid_t second = 0;
  ASSERT_TRUE(eventually(patience, [&] {
    // Sanitizers have threads of their own before the exec.
    if (command_of(pid) != "python3") return false;
    (void)for_each_numbered_entry<pid_t>("/proc/" + std::to_string(pid) + "/task",
                                         [&](pid_t thread) { second = std::max(second, thread); });
    return second > pid;
  }));
  driver_.show(pid);
  driver_.show(pid, {0});
  node_scanner scanner{*survey_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  // A thread that its tracer does not wait for keeps the process from being gone.
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, second, nullptr, nullptr), 0);
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return is_exiting(pid); }));
  const std::string memory = "/proc/" + std::to_string(pid) + "/statm";
  ASSERT_TRUE(eventually(patience, [&] { return std::ifstream{memory}.get() == '0'; }));
  EXPECT_THAT(look(scanner), IsEmpty());
  ASSERT_EQ(::waitpid(second, nullptr, __WALL), second);
  ASSERT_TRUE(eventually(patience, [&] { return look(scanner).size() == 2; }));
}

// Early in an exec there is no environment yet.
TEST_F(NodeScanner, KeepsTheRoleOfAProcessThatExecsAgainAndAgain) {
  const family target{[](int) {
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execl("/bin/sh", "sh", "-c", R"(exec /bin/sh -c "$0" "$0")", R"(exec /bin/sh -c "$0" "$0")",
            nullptr);
    return 1;
  }};
  const pid_t pid = target.pid();
  ASSERT_TRUE(eventually(patience,
                         [&] { return command_of(pid) == "sh" && environment_end_of(pid) != 0; }));
  driver_.show(pid);
  driver_.show(pid, {0});
  node_scanner scanner{*survey_, {}, -1};
  ASSERT_TRUE(eventually(patience, [&] {
    look(scanner);
    return std::ranges::count(all(scanner), "process online") == 1;
  }));
  for (int i = 0; i < 2000; ++i) {
    for (const std::string& each : look(scanner)) ASSERT_NE(each, "process unmatched") << i;
  }
}

TEST_F(NodeScanner, SeesAnExitThoughTheDriverStillShowsIt) {
  auto target = std::make_unique<family>(tagged("OFFLINE_AI"));
  wait_for_exec(*target);
  const pid_t pid = target->pid();
  driver_.show(pid);
  driver_.show(pid, {0});
  const unique_fd exits{::epoll_create1(0)};
  node_scanner scanner{*survey_, {}, exits.get()};
  look(scanner);
  target.reset();
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(exits.get(), &event, 1, 5000), 1);
  const std::uint64_t exited =
      event.data.u64;  // epoll_event is packed; a reference would be misaligned
  EXPECT_EQ(exited, static_cast<std::uint64_t>(pid));
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "process gone"));
  EXPECT_THAT(look(scanner), IsEmpty());
  EXPECT_EQ(::epoll_wait(exits.get(), &event, 1, 0), 0) << "its descriptor is still watched";
}

TEST_F(NodeScanner, RestatesWhatItKnows) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid(), {7});
  node_scanner scanner{*survey_, {}, -1};
  look(scanner);
  EXPECT_THAT(all(scanner), ElementsAre("begin", "gpu 4660", "process offline",
                                        "queue 7 on 4660 compute", "end"));
}

// To another user, tags show nothing; that this is so shows.
TEST_F(NodeScanner, SaysOnceThatEnvironmentsAreHiddenFromIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid(), {0});
  driver_.show(::getpid(), {0});
  family agent{tagged("")};
  wait_for_exec(agent);
  driver_.show(agent.pid());
  const auto known = identity(target.pid());
  const auto self = identity(::getpid());
  const std::string name =
      "(for example process " + std::to_string(std::min(target.pid(), ::getpid())) + ", ";
  family other{[&](int said) {
    if (::setresgid(64003, 64003, 64003) != 0 || ::setresuid(64003, 64003, 64003) != 0) return 1;
    std::vector<std::string> lines;
    node_scanner scanner{
        *survey_, {}, -1, [&](std::string_view line) { lines.emplace_back(line); }};
    for (int looks = 0; looks < 3; ++looks) look(scanner);
    const bool right =
        lines.size() == 1 &&
        lines[0].starts_with("cannot read the environment of 2 processes that use a GPU " + name);
    // Roles that come from elsewhere want no environment.
    node_scanner told{*survey_, {}, -1, [&](std::string_view line) { lines.emplace_back(line); }};
    told.set_roles({{known, role::offline}, {self, role::offline}});
    look(told);
    const bool silent = lines.size() == 1;
    if (!right || !silent) {
      for (const std::string& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
    }
    (void)!::write(said, right && silent ? "y" : "n", 1);
    return 0;
  }};
  EXPECT_EQ(other.heard(), 'y');
}

// Its tag, which another user cannot see, says that it is online.
TEST_F(NodeScanner, TakesNobodyForOfflineWhoMayClaimToBeOnlineUnseen) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  driver_.show(target.pid());
  const auto role_for_another = [&](roles::claim_grant online) {
    const family other{[&](int said) {
      if (::setresgid(64003, 64003, 64003) != 0 || ::setresuid(64003, 64003, 64003) != 0) return 1;
      node_scanner scanner{
          *survey_, {.may_claim_online = online, .by_cgroup = {{"/", role::offline}}}, -1};
      const auto seen = look(scanner);
      for (const auto& [line, letter] :
           {std::pair{"process offline", "o"}, {"process unmatched", "u"}, {"process online", "a"}})
        if (std::ranges::find(seen, line) != seen.end()) (void)!::write(said, letter, 1);
      return 0;
    }};
    return other.heard();
  };
  EXPECT_EQ(role_for_another({.users = {::getuid()}}), 'u');
  EXPECT_EQ(role_for_another({}), 'o') << "its word does not count anyway";
}

TEST_F(NodeScanner, ListsTheComputeQueuesOfOnlineProcesses) {
  const family online{tagged("ONLINE_AI")};
  const family idle{tagged("ONLINE_AI")};
  const family offline{tagged("OFFLINE_AI")};
  for (const family* each : {&online, &idle, &offline}) wait_for_exec(*each);
  driver_.show(online.pid(), {3, 1});
  driver_.show(idle.pid());
  driver_.show(offline.pid(), {1});
  node_scanner scanner{*survey_, {}, -1};
  look(scanner);
  const auto before = scanner.online();
  ASSERT_EQ(before.size(), 1U);
  EXPECT_EQ(before[0].who, identity(online.pid()));
  const surveyed_queue first{driver_queue_id{1}, test::fake_driver::gpu, queue_kind::compute};
  const surveyed_queue third{driver_queue_id{3}, test::fake_driver::gpu, queue_kind::compute};
  EXPECT_THAT(before[0].queues, ElementsAre(first, third));
  look(scanner);
  EXPECT_EQ(scanner.online()[0].change, before[0].change);
  driver_.show(online.pid(), {1});
  look(scanner);
  EXPECT_THAT(scanner.online()[0].queues, ElementsAre(first));
  EXPECT_NE(scanner.online()[0].change, before[0].change);
}

}  // namespace
}  // namespace sluice::node_scanner_test
