// Clients in processes of their own against a scheduler in this one.

#include "sluice/client.h"

#include "cgroup.hpp"
#include "peer_process.hpp"
#include "program.hpp"
#include "raw_client.hpp"
#include "run_delay.hpp"
#include "served_node.hpp"
#include "test_seed.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/discovery.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/roles/classification.hpp"

/// A forked child starts a client here, whose thread is the only other one.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace sluice::test::client_test {
namespace {

using ::testing::HasSubstr;

class Client : public ::testing::Test {
 protected:
  client::server_options options() const {
    client::server_options made;
    made.socket = place_.path();
    made.say = [](std::string_view line) { std::printf("%.*s\n", int(line.size()), line.data()); };
    return made;
  }
  std::string open_line(int role = 1) const {
    return "open " + place_.path() + " " + std::to_string(role);
  }
  bool becomes(program& of, const std::string& part) {
    std::string status;
    const bool there = eventually(patience, [&] {
      status = of.ask("status");
      return status.find(part) != status.npos;
    });
    EXPECT_TRUE(there) << "no " << part << " in: " << status;
    return there;
  }

  /// Opens an online client, and sees it registered.
  bool joins(program& one) {
    EXPECT_EQ(one.ask(open_line()), "ok");
    return becomes(one, "connected=1 role=1");
  }
  /// And its work holds the offline process.
  bool begins(program& one, served_node& node) {
    return joins(one) && one.ask("begin") == "0" && node.suspends();
  }
  /// A client whose core is being written is withdrawn before it has been.
  void expect_end_while_core_is_written(served_node& node) {
    duration lasted{};
    bool ended = false;
    // More memory where half a gigabyte was written too fast to be seen.
    for (int megabytes = 512; !ended && lasted < 150ms && megabytes <= 1024; megabytes *= 2) {
      program one;
      ASSERT_EQ(one.ask(open_line()), "ok");
      ASSERT_EQ(one.ask("begin"), "0");
      ASSERT_TRUE(becomes(one, "connected=1"));
      ASSERT_TRUE(node.suspends());
      const std::string line = "withdrawn " + std::to_string(one.pid()) + " online";
      const auto withdrawn = [&] { return node.roles.lines().back() == line; };
      one.tell("core " + place_.directory() + " " + std::to_string(megabytes));
      const auto dumping = [&] { return client::is_dumping_core(one.pid()); };
      (void)eventually(patience, [&] { return dumping() || withdrawn(); });
      const auto since = clock::now();
      // In this order: its socket hangs up, too, once the core is written.
      while (dumping() && !ended) ended = withdrawn() && dumping();
      lasted = clock::now() - since;
      EXPECT_TRUE(eventually(patience, withdrawn));
    }
    std::string pattern;
    std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
    if (!ended && lasted < 150ms && (pattern.empty() || pattern[0] == '|' || pattern[0] == '/')) {
      GTEST_SKIP() << "no core is written here, or too fast: core_pattern is '" << pattern << "'";
    }
    EXPECT_TRUE(ended) << "the core was written for " << lasted / 1ms << " ms";
  }

  socket_place place_;
};

TEST_F(Client, SuspendsOfflineWorkFromItsOwnProcess) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(joins(one));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(one.ask("begin"), "0");
    ASSERT_TRUE(node.suspends()) << i;
    EXPECT_EQ(one.ask("end"), "0");
    ASSERT_TRUE(node.resumes()) << i;
  }
  EXPECT_EQ(node.stats().begins, 20U);
  EXPECT_EQ(one.ask("close"), "0");
}

TEST_F(Client, LosesNoBeginAndNoEndAmongProcessesAndThreads) {
  constexpr int processes = 3;
  constexpr int threads = 3;
  constexpr int times = 50'000;
  served_node node(options());
  ASSERT_TRUE(node.runs());
  std::vector<std::unique_ptr<program>> all;
  for (int i = 0; i < processes; ++i) {
    all.push_back(std::make_unique<program>());
    ASSERT_EQ(all.back()->ask(open_line()), "ok");
    ASSERT_TRUE(becomes(*all.back(), "connected=1"));
  }
  for (auto& each : all) {
    each->tell("hammer " + std::to_string(threads) + " " + std::to_string(times));
  }
  for (auto& each : all) EXPECT_EQ(each->hear(), "done");
  EXPECT_TRUE(node.resumes());
  constexpr std::uint64_t expected = std::uint64_t{processes} * threads * times;
  EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == expected; }))
      << node.stats().begins << " of " << expected;
}

// Nothing but a client's ring wakes this scheduler: one that gets lost is never made up for.
TEST_F(Client, WakesASchedulerThatFallsAsleep) {
  constexpr std::uint64_t rounds = 20;
  constexpr std::uint64_t times = 250;
  const test::random_seed seed;
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(one, "connected=1"));
  for (std::uint64_t round = 0; round < rounds; ++round) {
    ASSERT_EQ(
        one.ask("knock " + std::to_string(times) + " " + std::to_string(seed.value() + round)),
        "all were seen");
  }
  EXPECT_EQ(node.stats().begins, rounds * times);
  EXPECT_EQ(node.stats().suspends, rounds * times);
}

TEST_F(Client, WakesASchedulerForABeginThatHasEndedAlready) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(one, "connected=1"));
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ASSERT_EQ(one.ask("hammer 1 1"), "done");
    ASSERT_TRUE(eventually(patience, [&] { return node.stats().begins == i; })) << i;
  }
}

TEST_F(Client, CostsNoTurnWhileNothingHappens) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(one, "connected=1"));
  EXPECT_TRUE(node.falls_asleep()) << "with nothing in flight";
  ASSERT_EQ(one.ask("begin"), "0");
  ASSERT_TRUE(node.suspends());
  EXPECT_TRUE(node.falls_asleep()) << "with offline work suspended";
  ASSERT_EQ(one.ask("end"), "0");
  ASSERT_TRUE(node.resumes());
}

TEST_F(Client, CountsAsEndedWhenItIsKilled) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(begins(one, node));
  one.kill(SIGKILL);
  EXPECT_TRUE(node.resumes());
}

TEST_F(Client, DelaysNobodyWhileItIsStopped) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program stopped;
  ASSERT_TRUE(joins(stopped));
  stopped.kill(SIGSTOP);
  program other;
  ASSERT_TRUE(joins(other));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(other.ask("begin"), "0");
    ASSERT_TRUE(node.suspends());
    ASSERT_EQ(other.ask("end"), "0");
    ASSERT_TRUE(node.resumes());
  }
  stopped.kill(SIGCONT);
  EXPECT_EQ(stopped.ask("begin"), "0");
  EXPECT_TRUE(node.suspends());
}

TEST_F(Client, WorksBeforeThereIsASchedulerAndOverItsRestart) {
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_EQ(one.ask("hammer 2 1000"), "done");
  ASSERT_EQ(one.ask("begin"), "0");
  ASSERT_THAT(one.ask("status"), HasSubstr("connected=0"));
  for (int life = 1; life <= 3; ++life) {
    served_node node(options());
    ASSERT_TRUE(node.runs());
    ASSERT_TRUE(becomes(one, "connections=" + std::to_string(life)));
    // What is in flight counts, what is past does not.
    EXPECT_TRUE(node.suspends());
    EXPECT_EQ(node.stats().begins, 1U);
    EXPECT_EQ(one.ask("begin"), "0");
    EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == 2; }));
    EXPECT_EQ(one.ask("end"), "0");
    node.stop();
    ASSERT_TRUE(becomes(one, "connected=0"));
  }
  EXPECT_THAT(one.ask("status"), HasSubstr("in_flight=1"));
}

/// A scheduler that hangs hangs up on nobody.
TEST_F(Client, GoesToWhoeverTookTheSocketFromASchedulerThatHangs) {
  std::promise<void> go_on;
  std::atomic<bool> hangs{false};
  auto hanging = options();
  hanging.allow = [&, until = go_on.get_future().share()](const client::peer&, role) {
    if (hangs) until.wait();
    return true;
  };
  served_node first(hanging);
  ASSERT_TRUE(first.runs());
  program one;
  ASSERT_TRUE(begins(one, first));
  hangs = true;
  program another;
  ASSERT_EQ(another.ask(open_line()), "ok");
  ASSERT_EQ(unlink(place_.path().c_str()), 0);
  // Gone is not taken over: the first may be well.
  EXPECT_FALSE(eventually(
      1200ms, [&] { return one.ask("status").find("connected=1") == std::string::npos; }));
  served_node second(options());
  EXPECT_TRUE(second.runs());
  EXPECT_TRUE(becomes(one, "connected=1 role=1 error=0 in_flight=1 connections=2"));
  EXPECT_TRUE(second.suspends());
  EXPECT_TRUE(becomes(another, "connected=1"));
  go_on.set_value();
  first.stop();
  EXPECT_THAT(one.ask("status"), HasSubstr("connections=2"));
}

// Its hello comes before the scheduler's first look at the node, where both start at once.
TEST_F(Client, ThatNamesAGpuWhichIsNotSeenYetAsksAgainSoon) {
  std::mutex mutex;
  std::vector<time_point> asked;
  auto with = options();
  with.allow = [&](const client::peer&, role) {
    const std::scoped_lock lock(mutex);
    asked.push_back(clock::now());
    return true;
  };
  served_node node(with);
  ASSERT_TRUE(node.runs());
  program one;
  run_delay waits;
  for (const pid_t each : {::getpid(), one.pid()}) waits.add(each);
  const regular_looks looks{waits};
  ASSERT_EQ(one.ask(open_line() + " 2989"), "ok");
  ASSERT_TRUE(eventually(patience, [&] {
    const std::scoped_lock lock(mutex);
    return asked.size() >= 2;
  }));
  waits.look();
  EXPECT_THAT(one.ask("status"), HasSubstr("the scheduler has not seen this GPU"));
  const std::scoped_lock lock(mutex);
  // The second that other refusals take.
  EXPECT_LT(asked[1] - asked[0], 900ms + waits.waited_by_any(asked[0], asked[1]));
}

TEST_F(Client, StartsAnewInAForkedChildAndLeavesNothingToASpawnedProgram) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(joins(one));
  ASSERT_EQ(one.ask("begin"), "0");
  ASSERT_TRUE(node.suspends());
  const std::string child = one.ask("fork_begin");
  EXPECT_THAT(child, HasSubstr("connected=1"));
  EXPECT_THAT(child, HasSubstr("in_flight=1 connections=1"));
  EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == 2; }));
  // The child's work holds offline work by itself, and ends with the child.
  EXPECT_EQ(one.ask("end"), "0");
  EXPECT_THAT(one.ask("status"), HasSubstr("in_flight=0"));
  EXPECT_FALSE(eventually(50ms, [&] { return node.stats().suspended_now == 0; }));
  EXPECT_EQ(one.ask("kill " + child.substr(0, child.find(' '))), "done");
  EXPECT_TRUE(node.resumes());

  EXPECT_EQ(one.ask("fork_and_close"), "done");
  EXPECT_EQ(one.ask("fork_and_reuse"), "done");
  EXPECT_EQ(one.ask("spawn"), "0");
  EXPECT_EQ(one.ask("begin"), "0");
  EXPECT_TRUE(node.suspends());
}

TEST_F(Client, EndsWhenItIsClosedThoughAChildHasItsSocket) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(begins(one, node));
  const std::string child = one.ask("fork_idle");
  EXPECT_EQ(one.ask("close"), "0");
  EXPECT_TRUE(node.resumes());
  EXPECT_EQ(one.ask("kill " + child), "done");
}

TEST_F(Client, CountsAsEndedWhenItCallsExecThoughAChildLives) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(begins(one, node));
  const pid_t child = std::stoi(one.ask("fork_idle"));
  one.tell("exec");
  EXPECT_TRUE(node.resumes());
  EXPECT_TRUE(eventually(patience, [&] { return node.roles.lines().size() == 2; }));
  EXPECT_EQ(kill(one.pid(), 0), 0);
  EXPECT_EQ(kill(child, SIGKILL), 0);
}

TEST_F(Client, WaitsUntilItsGpusAreClear) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  EXPECT_EQ(one.ask("wait 1"), "0");
  ASSERT_TRUE(becomes(one, "connected=1"));
  EXPECT_EQ(one.ask("stop_waiting"), "10");
  ASSERT_EQ(one.ask("begin"), "0");
  EXPECT_EQ(one.ask("wait 20000"), "1");
  EXPECT_EQ(node.stats().suspended_now, 1U);
  ASSERT_EQ(one.ask("end"), "0");
  ASSERT_TRUE(node.resumes());
  EXPECT_EQ(one.ask("wait 1"), "0");  // Nobody makes it clear.
}

// Symptom: who waited for clear GPUs waited for the whole timeout where nobody would make room.
TEST_F(Client, IsToldAtOnceThatNobodyMakesRoom) {
  program one;  // It is heard for 20 s.
  ASSERT_EQ(one.ask(open_line()), "ok");
  EXPECT_EQ(one.ask("wait 60000"), "0");
  ASSERT_TRUE(becomes(one, "no scheduler"));
  EXPECT_EQ(one.ask("wait 60000"), "0");
  {
    auto refusing = options();
    refusing.allow = [](const client::peer&, role) { return false; };
    served_node node(std::move(refusing));
    ASSERT_TRUE(node.runs());
    ASSERT_TRUE(becomes(one, "error=-13"));
    EXPECT_EQ(one.ask("wait 60000"), "0");
  }
  served_node node(options());
  ASSERT_TRUE(node.runs());
  ASSERT_TRUE(becomes(one, "connected=1"));
  one.tell("wait 60000");  // It has begun nothing.
  node.stop();
  EXPECT_EQ(one.hear(), "0");
}

TEST_F(Client, MayForkWhereItIsCalledBack) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_TRUE(joins(one));
  EXPECT_EQ(one.ask("fork_in_done"), "0 0 0 ");
  // The parent's thread has gone on.
  EXPECT_THAT(one.ask("status"), HasSubstr("connections=1 "));
  ASSERT_EQ(one.ask("begin"), "0");
  EXPECT_EQ(one.ask("wait 20000"), "1");
}

TEST_F(Client, CountsAsEndedWhileItsCoreIsWritten) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  expect_end_while_core_is_written(node);
  EXPECT_TRUE(node.resumes());
}

TEST_F(Client, CountsAsEndedWhileItsCoreIsWrittenAmongManyThatAreBusy) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  // More than are looked at at once, each with something in flight.
  std::vector<std::unique_ptr<program>> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(std::make_unique<program>());
    ASSERT_EQ(others.back()->ask(open_line()), "ok");
    ASSERT_EQ(others.back()->ask("begin"), "0");
  }
  ASSERT_TRUE(eventually(patience, [&] { return node.stats().begins == others.size(); }));
  expect_end_while_core_is_written(node);
  EXPECT_EQ(node.stats().suspended_now, 1U);  // The others' work goes on.
}

TEST(CoreDumping, IsWhatTheKernelSaysInStatus) {
  EXPECT_TRUE(client::says_core_dumping("Name:\tx\nCoreDumping:\t1\nThreads:\t1\n"));
  EXPECT_FALSE(client::says_core_dumping("Name:\tx\nCoreDumping:\t0\nThreads:\t1\n"));
  EXPECT_FALSE(client::says_core_dumping("Name:\tCoreDumping:\t1\nThreads:\t1\n"));
  EXPECT_FALSE(client::says_core_dumping(""));
  EXPECT_FALSE(client::is_dumping_core(getpid()));
  std::ifstream status("/proc/self/status");
  const std::string text((std::istreambuf_iterator<char>(status)), {});
  EXPECT_THAT(text, HasSubstr("\nCoreDumping:\t0\n"));
}

// What it is told, and the log
// ----------------------------------------------------------------------

/// A client of this process, closed at the end.
class own_client {
 public:
  explicit own_client(const std::string& socket) {
    sluice_client_options with{};
    with.size = sizeof with;
    with.socket = socket.c_str();
    with.name = "own";
    outcome = sluice_client_open(&with, &client_);
  }
  ~own_client() { sluice_client_close(client_); }
  own_client(const own_client&) = delete;
  own_client& operator=(const own_client&) = delete;

  /// Why it is not connected, once that has been tried.
  std::string why() const {
    std::string said;
    EXPECT_TRUE(eventually(patience, [&] {
      said = status().why;
      return !said.empty() && !said.starts_with("connecting to ");
    }));
    return said;
  }
  sluice_client_status status() const {
    sluice_client_status now{};
    now.size = sizeof now;
    sluice_client_get_status(client_, &now);
    return now;
  }

  int outcome = 0;

 private:
  sluice_connection* client_ = nullptr;
};

TEST_F(Client, IsRefusedAPathThatNoSocketCanHave) {
  EXPECT_EQ(own_client("/" + std::string(107, 'x')).outcome, -ENAMETOOLONG);
  EXPECT_STREQ(sluice_client_last_error(),
               "invalid socket path of 108 bytes: expected at most 107");
  EXPECT_EQ(own_client("/" + std::string(106, 'x')).outcome, 0);
}

TEST_F(Client, IsToldWhatIsWhereItsSchedulerShouldBe) {
  const std::string file = place_.directory() + "/file";
  std::ofstream{file}.flush();
  EXPECT_THAT(own_client(file).why(), HasSubstr(file + " is not the socket of a scheduler"));
  const std::string datagrams = place_.directory() + "/datagrams";
  const int other = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  datagrams.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(other, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(own_client(datagrams).why(),
              HasSubstr(datagrams + " is not the socket of a scheduler"));
  close(other);
  EXPECT_THAT(own_client(place_.directory() + "/nothing").why(), HasSubstr("no scheduler at"));
}

TEST_F(Client, IsToldWhoseTheSocketIsThatItMayNotOpen) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  int go[2];
  int words[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(words), 0);
  const pid_t child = fork();  // Before there are threads.
  if (child == 0) {
    char told = 0;
    if (read(go[0], &told, 1) != 1) _exit(1);
    if (setresgid(64003, 64003, 64003) != 0 || setresuid(64003, 64003, 64003) != 0) _exit(1);
    const own_client stranger(place_.path());
    const std::string why = stranger.why();
    _exit(write(words[1], why.data(), why.size()) > 0 ? 0 : 1);
  }
  close(go[0]);
  close(words[1]);
  served_node node(options());
  EXPECT_TRUE(node.runs());
  std::filesystem::permissions(place_.directory(), std::filesystem::perms{0755});
  EXPECT_EQ(write(go[1], "!", 1), 1);
  close(go[1]);
  std::string why(300, '\0');
  why.resize(std::size_t(std::max<ssize_t>(read(words[0], why.data(), why.size()), 0)));
  close(words[0]);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(why, place_.path() +
                     ": cannot connect as this user (Permission denied); add the user to the "
                     "scheduler's socket_group; retrying");
}

TEST_F(Client, IsNamedInTheLogWhenItRegistersAndOnceWhenItIsRefused) {
  std::vector<std::string> said;  // the scheduler's thread's, until it has ended
  std::vector<std::string> told;
  std::atomic<bool> granted{false};
  auto with = options();
  with.allow = [&](const client::peer&, role) { return granted.load(); };
  with.say = [&](std::string_view line) { said.emplace_back(line); };
  with.tell = [&](std::string_view line) { told.emplace_back(line); };
  const std::string self =
      "process " + std::to_string(getpid()) + " (own) of user " + std::to_string(getuid());
  served_node node(with);
  ASSERT_TRUE(node.runs());
  for (int i = 0; i < 3; ++i) EXPECT_THAT(own_client(place_.path()).why(), HasSubstr("may not be"));
  granted = true;
  for (int i = 0; i < 2; ++i) {
    const own_client one(place_.path());
    EXPECT_TRUE(eventually(patience, [&] { return one.status().connected == 1; }));
  }
  node.stop();
  EXPECT_THAT(said, ::testing::ElementsAre(::testing::StartsWith("refused client " + self + ": ")));
  EXPECT_THAT(told,
              ::testing::Contains(::testing::StartsWith(self + " registered as online pid=")));
}

#ifdef SLUICE_CLIENT_EXAMPLE
TEST_F(Client, ExampleRunsBesideASchedulerAndWithoutOne) {
  ASSERT_EQ(setenv("SLUICE_CLIENT_SOCKET", place_.path().c_str(), 1), 0);
  const auto run = [] {
    FILE* const from = popen(SLUICE_CLIENT_EXAMPLE " 3", "r");
    std::string text(1000, '\0');
    text.resize(from == nullptr ? 0 : std::fread(text.data(), 1, text.size(), from));
    return pclose(from) == 0 ? text : text + "failed";
  };
  EXPECT_THAT(run(),
              ::testing::MatchesRegex("not connected: no scheduler at .*\nanswered 3 requests\n"));
  {
    served_node node(options());
    ASSERT_TRUE(node.runs());
    EXPECT_EQ(run(), "connected: online\nanswered 3 requests\n");
    EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == 3; }));
    EXPECT_TRUE(node.resumes());
  }
  unsetenv("SLUICE_CLIENT_SOCKET");
}
#endif

// Roles ------------------------------------------------------------------------------------------

/// As a main() does it: what [roles] grants decides.
client::server_options with_grant(client::server_options made, roles::claim_grant grant) {
  made.allow = [grant = std::move(grant)](const client::peer& who, role what) {
    return what == role::online && roles::grants(grant, who.pid, who.user);
  };
  return made;
}

TEST_F(Client, IsOnlineOnlyWithAGrantAndSaysWhyNot) {
  served_node node(with_grant(options(), {.users = {getuid() + 1}, .groups = {}, .cgroups = {}}));
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(one, "error=-13"));
  EXPECT_THAT(one.ask("status"), HasSubstr("may not be online"));
  EXPECT_EQ(one.ask("begin"), "0");
  EXPECT_FALSE(eventually(100ms, [&] { return node.stats().begins != 0; }));
  EXPECT_TRUE(node.roles.lines().empty());
}

TEST_F(Client, LosesItsGrantWhenTheRulesChange) {
  std::atomic<bool> online_is_granted{true};
  std::atomic<int> asked{0};
  auto with = options();
  with.allow = [&](const client::peer&, role what) {
    ++asked;
    return what == role::offline || online_is_granted;
  };
  served_node node(with);
  ASSERT_TRUE(node.runs());
  program offline;
  ASSERT_EQ(offline.ask(open_line(2)), "ok");
  ASSERT_TRUE(becomes(offline, "connected=1 role=2"));
  program one;
  ASSERT_TRUE(begins(one, node));
  node.clients().rules_changed();  // As they were.
  EXPECT_TRUE(eventually(patience, [&] { return asked == 4; }));
  EXPECT_THAT(one.ask("status"), HasSubstr("connected=1"));
  online_is_granted = false;
  node.clients().rules_changed();
  EXPECT_TRUE(becomes(one, "connected=0 role=0 error=-13 in_flight=1"));
  EXPECT_THAT(one.ask("status"), HasSubstr("may not be online"));
  EXPECT_TRUE(node.resumes());
  online_is_granted = true;
  EXPECT_TRUE(becomes(one, "connected=1 role=1"));
  EXPECT_TRUE(node.suspends());
  EXPECT_THAT(offline.ask("status"), HasSubstr("connections=1"));
}

TEST_F(Client, MayBeGrantedItsRoleByUserOrGroup) {
  for (const roles::claim_grant& grant :
       {roles::claim_grant{.users = {getuid()}, .groups = {}, .cgroups = {}},
        roles::claim_grant{.users = {}, .groups = {getgid()}, .cgroups = {}}}) {
    served_node node(with_grant(options(), grant));
    ASSERT_TRUE(node.runs());
    {
      program one;
      ASSERT_TRUE(joins(one));
      program offline;  // Not granted.
      ASSERT_EQ(offline.ask(open_line(2)), "ok");
      EXPECT_TRUE(becomes(offline, "error=-13"));
    }
    EXPECT_TRUE(eventually(patience, [&] { return node.roles.lines().size() == 2; }));
  }
}

TEST_F(Client, HasNoGrantByAUserThatItBecameOnceItHadConnected) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  constexpr uid_t granted = 65534;
  served_node node(with_grant(options(), {.users = {granted}, .groups = {}, .cgroups = {}}));
  ASSERT_TRUE(node.runs());
  ASSERT_EQ(chmod(place_.directory().c_str(), 0711), 0);
  const auto answer_to_who_changes_user = [&](bool once_connected) {
    const pid_t child = fork();
    if (child == 0) {
      if (!once_connected && setresuid(granted, granted, granted) != 0) _exit(255);
      raw_client one(place_.path());
      if (once_connected && setresuid(granted, granted, granted) != 0) _exit(255);
      const auto said = one.register_itself();
      _exit(said ? said->error : 254);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(answer_to_who_changes_user(false), 0);
  EXPECT_EQ(answer_to_who_changes_user(true), EACCES);
}

TEST_F(Client, OfOneUserAreToldApartByTheirCgroups) {
  cgroup allowed("allowed");
  cgroup other("other");
  // Where they are mounted read-only, or not at all, as in many containers.
  if (!allowed.can_be_made()) GTEST_SKIP() << "no cgroup can be made here: " << allowed.why_not();
  ASSERT_TRUE(allowed && other);
  served_node node(with_grant(options(), {.users = {}, .groups = {}, .cgroups = {allowed.path()}}));
  ASSERT_TRUE(node.runs());
  program granted([&] { allowed.enter(); });
  program refused([&] { other.enter(); });
  ASSERT_EQ(granted.ask(open_line()), "ok");
  ASSERT_EQ(refused.ask(open_line()), "ok");
  EXPECT_TRUE(becomes(granted, "connected=1 role=1"));
  EXPECT_TRUE(becomes(refused, "error=-13"));
}

TEST_F(Client, RoleReachesDiscovery) {
  const auto discovery =
      make_discovery(kfd::make_survey());  // Not started: it records what is said.
  client::server_options with = options();
  roles::classification_rules rules;
  std::atomic<int> said{0};
  with.allow = [&](const client::peer& who, role what) {
    return roles::grants(what == role::online ? rules.may_claim_online : rules.may_claim_offline,
                         who.pid, who.user);
  };
  with.registered = [&](const client::peer& who, role what) {
    if (discovery->set_role({who.pid, who.start_time}, what)) said = 1;
  };
  with.withdrawn = [&](const client::peer& who, role) {
    if (discovery->withdraw_role({who.pid, who.start_time})) said = 2;
  };
  served_node node(with);
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line(2)), "ok");
  ASSERT_TRUE(becomes(one, "connected=1 role=2"));
  EXPECT_EQ(said, 1);
  EXPECT_EQ(one.ask("begin"), "0");  // Counts for nothing.
  EXPECT_EQ(one.ask("close"), "0");
  EXPECT_TRUE(eventually(patience, [&] { return said == 2; }));
  EXPECT_EQ(node.stats().begins, 0U);
}

TEST_F(Client, RegistersItsProcessesRoleOnceAndTakesItBack) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  std::vector<std::string> expected;
  {
    program one;
    const std::string pid = std::to_string(one.pid());
    ASSERT_TRUE(joins(one));
    ASSERT_EQ(one.ask(open_line()), "ok");  // A second one of the same process.
    ASSERT_TRUE(becomes(one, "connected=1"));
    ASSERT_EQ(one.ask(open_line(2)), "ok");
    EXPECT_TRUE(becomes(one, "already registered as online"));
    expected = {"registered " + pid + " online", "withdrawn " + pid + " online"};
    EXPECT_EQ(node.roles.lines().size(), 1U);
  }
  EXPECT_TRUE(eventually(patience, [&] { return node.roles.lines() == expected; }));
}

// The socket -------------------------------------------------------------------------------------

TEST_F(Client, SocketOfADeadServerIsReplacedAndThatOfALivingOneIsNot) {
  std::string said;
  auto first = options();
  served_node node(first);
  ASSERT_TRUE(node.runs());
  struct stat about {};
  ASSERT_EQ(stat(place_.path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0660U);

  auto again = options();
  again.say = [&](std::string_view line) { said = line; };
  served_node second(again);
  EXPECT_EQ(second.start().error(), errc::already_owned);
  EXPECT_THAT(said, HasSubstr("served by another scheduler"));

  // What a server leaves that is killed.
  node.stop();
  EXPECT_NE(stat(place_.path().c_str(), &about), 0);
  ASSERT_TRUE(leave_a_socket(place_.path()));
  ASSERT_EQ(stat(place_.path().c_str(), &about), 0);
  served_node third(options());
  ASSERT_TRUE(third.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  EXPECT_TRUE(becomes(one, "connected=1"));
}

}  // namespace
}  // namespace sluice::test::client_test
