/// Which processes the host has its agent follow, and what comes back.

#include "backend_loop.hpp"
#include "online_processes.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/acting.hpp"
#include "sluice/agent/agent_backend.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::agent::follow_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::uint64_t start_time = 77;

observation see(observation_kind kind, pid_t pid = 0, role what = role::unmatched) {
  observation made;
  made.kind = kind;
  made.pid = pid;
  made.start_time = start_time;
  made.what = what;
  return made;
}
observation see(pid_t pid, role what) { return see(observation_kind::process_seen, pid, what); }

/// What the agent knows from orders.
class OnlineProcesses : public ::testing::Test {
 protected:
  OnlineProcesses() {
    online_.pace(2ms);
    online_.can_follow(true);
  }
  std::map<pid_t, duration> followed() {
    bring_up();
    return agent_;
  }
  bool bring_up(int room = 1000) {
    return online_.send_news([&](const online_processes::order& next) {
      using kind = online_processes::order::kind;
      if (room-- == 0) return false;
      ++orders_;
      if (next.what == kind::online) {
        EXPECT_TRUE(known_.insert(next.pid).second);
      } else if (next.what == kind::not_online) {
        EXPECT_EQ(known_.erase(next.pid), 1U);
      } else if (next.every == duration::zero()) {
        EXPECT_EQ(agent_.erase(next.pid), 1U);
      } else {
        agent_[next.pid] = next.every;
      }
      EXPECT_LE(agent_.size(), most_followed);
      return true;
    });
  }

  std::set<pid_t> known() {
    bring_up();
    return known_;
  }

  online_processes online_;
  std::map<pid_t, duration> agent_;  ///< Intervals.
  std::set<pid_t> known_;            ///< As online.
  int orders_ = 0;
};

TEST_F(OnlineProcesses, AreOnlineWhileOneSourceSaysSo) {
  online_.observe(0, see(11, role::online));
  online_.observe(1, see(11, role::unmatched));
  online_.observe(1, see(12, role::offline));
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 2ms)));
  online_.observe(1, see(11, role::online));
  online_.observe(0, see(observation_kind::process_gone, 11));
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 2ms)));
  online_.observe(1, see(11, role::offline));
  EXPECT_THAT(followed(), IsEmpty());
  online_.observe(1, see(11, role::online));
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 2ms)));
}

TEST_F(OnlineProcesses, AreThoseThatAResyncNames) {
  for (const pid_t pid : {11, 12, 13}) online_.observe(0, see(pid, role::online));
  online_.observe(3, see(14, role::online));
  EXPECT_EQ(followed().size(), 4U);
  online_.observe(0, see(observation_kind::resync_begin));
  online_.observe(0, see(12, role::online));
  online_.observe(0, see(observation_kind::queue_seen, 13));
  online_.observe(0, see(observation_kind::resync_end));
  EXPECT_THAT(followed(), ElementsAre(Pair(12, 2ms), Pair(13, 2ms), Pair(14, 2ms)));
}

TEST_F(OnlineProcesses, AreFollowedAtTheNewPace) {
  online_.observe(0, see(11, role::online));
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 2ms)));
  online_.pace(200us);
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 200us)));
  online_.pace({});
  EXPECT_THAT(followed(), IsEmpty());
  orders_ = 0;
  online_.observe(0, see(12, role::online));
  EXPECT_THAT(followed(), IsEmpty());
  online_.pace(200us);
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 200us), Pair(12, 200us)));
  EXPECT_EQ(orders_, 3);
  EXPECT_EQ(followed().size(), 2U);
  EXPECT_EQ(orders_, 3) << "nothing is sent twice";
}

// Its client's work replaced what was seen.
TEST_F(OnlineProcesses, AreFollowedAnewAfterTheyMarkedForAMoment) {
  const pid_t own = ::getpid();
  online_.observe(0, see(own, role::online));
  EXPECT_THAT(followed(), ElementsAre(Pair(own, 2ms)));
  orders_ = 0;
  online_.marks_requests(own, true);
  online_.marks_requests(own, false);
  EXPECT_THAT(followed(), ElementsAre(Pair(own, 2ms)));
  EXPECT_EQ(orders_, 2) << "to leave it, and to follow it";
  EXPECT_THAT(followed(), ElementsAre(Pair(own, 2ms)));
  EXPECT_EQ(orders_, 2);
}

TEST_F(OnlineProcesses, AreSentLaterWhereThereIsNoRoom) {
  for (pid_t pid = 1; pid <= 10; ++pid) online_.observe(0, see(pid, role::online));
  bring_up(4);
  EXPECT_EQ(known_.size(), 4U);
  bring_up(10);
  EXPECT_EQ(known_.size(), 10U);
  EXPECT_EQ(agent_.size(), 4U);
  EXPECT_EQ(followed().size(), 10U);
  EXPECT_EQ(orders_, 20);
}

TEST_F(OnlineProcesses, AreAllSentToANewAgent) {
  online_.observe(0, see(11, role::online));
  EXPECT_EQ(followed().size(), 1U);
  agent_.clear();
  known_.clear();
  online_.lost();
  EXPECT_THAT(followed(), IsEmpty());
  EXPECT_THAT(known(), ElementsAre(11));
  online_.observe(0, see(12, role::online));
  online_.can_follow(true);
  EXPECT_THAT(followed(), ElementsAre(Pair(11, 2ms), Pair(12, 2ms)));
}

TEST_F(OnlineProcesses, AreNoMoreThanTheAgentMayBeAskedFor) {
  for (pid_t pid = 1; pid <= 70; ++pid) online_.observe(0, see(pid, role::online));
  EXPECT_TRUE(bring_up());
  EXPECT_EQ(agent_.size(), most_followed);
  online_.pace(200us);
  EXPECT_FALSE(bring_up()) << "once is enough";
  EXPECT_EQ(agent_.size(), most_followed);
  EXPECT_FALSE(agent_.contains(70));
  for (pid_t pid = 1; pid <= 6; ++pid) online_.observe(0, see(observation_kind::process_gone, pid));
  EXPECT_EQ(followed().size(), most_followed);
  EXPECT_TRUE(agent_.contains(70)) << "what ends makes room";
}

// Whether anything asks for their work or not, however many they are, and marking ones, too.
TEST_F(OnlineProcesses, AreAllKnownToTheAgent) {
  online_.can_follow(false);
  online_.pace({});
  std::set<pid_t> all;
  for (pid_t pid = 1; pid <= 200; ++pid) {
    online_.observe(1, see(pid, role::online));
    all.insert(pid);
  }
  EXPECT_EQ(known(), all);
  EXPECT_THAT(agent_, IsEmpty());
  online_.observe(1, see(observation_kind::process_gone, 1));
  online_.observe(1, see(2, role::offline));
  all.erase(1);
  all.erase(2);
  online_.marks_requests(::getpid(), true);
  all.insert(::getpid());
  EXPECT_EQ(known(), all);
  online_.marks_requests(::getpid(), false);
  all.erase(::getpid());
  EXPECT_EQ(known(), all);
}

/// A host and its agent, following_agent.cpp.
class Follow : public ::testing::Test {
 protected:
  void start(std::map<std::string, std::string> settings = {}) {
    loop_.emplace(make_agent_backend(
        {.driver = {"following", std::move(settings)},
         .agent_path = SLUICE_FOLLOWING_AGENT,
         .owner_lock = "",
         .lease = 30s,
         .say = [this](std::string_view words) { message_ += std::string{words} + "\n"; }}));
    ASSERT_TRUE(loop_->start()) << message_;
  }
  test::backend_loop& loop() { return *loop_; }
  void online(pid_t pid) { loop()->observed(0, see(pid, role::online)); }
  /// The newest observation of a process has this interval.
  bool follows(pid_t pid, duration every) {
    return loop().until([&] {
      const auto& all = loop().observations;
      const auto last = std::find_if(all.rbegin(), all.rend(),
                                     [&](const observation& one) { return one.pid == pid; });
      return last != all.rend() && last->count == every / 1us && last->start_time == start_time;
    });
  }
  /// The agent has taken all that was sent to it.
  void settle() {
    ASSERT_TRUE(loop()->attach(process_id{9}, 1, 1));
    ASSERT_TRUE(loop().until([&] { return loop().attachments.erase(process_id{9}) == 1; }));
  }

  std::string message_;
  std::optional<test::backend_loop> loop_;
};

TEST_F(Follow, BringsWhatTheAgentSeesOfOnlineProcesses) {
  start();
  online(11);
  loop()->observed(0, see(12, role::offline));
  settle();
  EXPECT_THAT(loop().observations, IsEmpty()) << "nobody asked for it";
  loop()->poll_work(2ms);
  EXPECT_TRUE(follows(11, 2ms));
  EXPECT_EQ(loop().observations.front().work, online_work::waiting);
  loop()->observed(0, see(12, role::online));
  EXPECT_TRUE(follows(12, 2ms));
  loop()->poll_work(200us);
  EXPECT_TRUE(follows(11, 200us));
  EXPECT_TRUE(follows(12, 200us));
  loop()->observed(0, see(observation_kind::process_gone, 11));
  EXPECT_TRUE(follows(11, 0us));
  loop()->poll_work(0us);
  EXPECT_TRUE(follows(12, 0us));
}

TEST_F(Follow, AsksOnlyAnAgentThatCan) {
  start({{"cannot", "1"}});
  online(11);
  loop()->poll_work(2ms);
  settle();
  settle();
  EXPECT_THAT(loop().observations, IsEmpty());
}

TEST_F(Follow, GoesOnWithANewAgent) {
  start();
  online(11);
  loop()->poll_work(2ms);
  ASSERT_TRUE(follows(11, 2ms));
  const auto agent = static_cast<pid_t>(loop().observations.back().queue);
  ASSERT_EQ(::kill(agent, SIGKILL), 0);
  ASSERT_TRUE(loop().until([&] { return loop().losses == 1; }));
  loop().observations.clear();
  online(12);
  loop()->poll_work(200us);
  ASSERT_TRUE(loop().until([&] { return loop().restorations == 1; }));
  EXPECT_TRUE(follows(11, 200us));
  EXPECT_TRUE(follows(12, 200us));
  EXPECT_NE(static_cast<pid_t>(loop().observations.back().queue), agent);
  EXPECT_EQ(loop().observations.size(), 2U) << "each was sent once";
}

TEST_F(Follow, LeavesTheRestOfManyProcessesOut) {
  start();
  for (pid_t pid = 1; pid <= 200; ++pid) online(pid);
  loop()->poll_work(2ms);
  EXPECT_TRUE(loop().until([&] { return loop().observations.size() == most_followed; }));
  EXPECT_THAT(message_, HasSubstr("more than 64 online processes use GPUs"));
  const std::string said = message_;
  // More orders than the ring has room for, while nothing is drained.
  for (int round = 1; round <= 5; ++round) loop()->poll_work(round * 1ms);
  EXPECT_TRUE(follows(most_followed, 5ms));
  EXPECT_TRUE(follows(1, 5ms));
  for (pid_t pid = 1; pid <= 100; ++pid)
    loop()->observed(0, see(observation_kind::process_gone, pid));
  EXPECT_TRUE(follows(1, 0us));
  EXPECT_TRUE(follows(100 + most_followed, 5ms));
  EXPECT_EQ(message_, said) << "once is enough";
}

TEST_F(Follow, TellsTheDriverWhichProcessesAreOffline) {
  start({{"attaches", "1"}});
  online(11);
  online(12);
  duration pace = 1ms;
  const auto offline = [&](pid_t pid) {
    loop()->poll_work(pace += 1ms);
    EXPECT_TRUE(follows(pid, pace));
    const auto& all = loop().observations;
    const auto last = std::find_if(all.rbegin(), all.rend(),
                                   [&](const observation& one) { return one.pid == pid; });
    return last != all.rend() && last->work == online_work::finished;
  };
  EXPECT_FALSE(offline(11)) << "the host did not ask to attach to it";
  ASSERT_TRUE(loop()->attach(process_id{1}, 11, start_time));
  ASSERT_TRUE(loop()->attach(process_id{2}, 12, start_time + 1));
  ASSERT_TRUE(loop().until([&] { return loop().attachments.size() == 2; }));
  EXPECT_TRUE(offline(11));
  EXPECT_FALSE(offline(12)) << "it was another process with this pid";
  ASSERT_TRUE(loop()->detach(process_id{1}));
  ASSERT_TRUE(loop().until([&] { return loop().detachments.contains(process_id{1}); }));
  EXPECT_FALSE(offline(11));
}

// Before what it does next, and while nothing asks for their work.
TEST_F(Follow, TellsTheDriverWhichProcessesAreOnline) {
  start({{"attaches", "1"}, {"refuses_online", "1"}});
  std::uint64_t last = 0;
  const auto attaches = [&](pid_t pid, std::uint64_t since = start_time) {
    const process_id id{++last};
    EXPECT_TRUE(loop()->attach(id, pid, since));
    EXPECT_TRUE(loop().until([&] { return loop().attachments.contains(id); }));
    return !loop().attachments[id];
  };
  EXPECT_TRUE(attaches(11));
  online(11);
  EXPECT_FALSE(attaches(11));
  EXPECT_TRUE(attaches(11, start_time + 1)) << "another process with this pid";
  loop()->observed(0, see(observation_kind::process_gone, 11));
  EXPECT_TRUE(attaches(11));
  const std::uint64_t own_start = start_time_of(::getpid()).value();
  loop()->marks_requests(::getpid(), true);
  EXPECT_FALSE(attaches(::getpid(), own_start));
  loop()->marks_requests(::getpid(), false);
  EXPECT_TRUE(attaches(::getpid(), own_start));
}

TEST_F(Follow, SurvivesReportsThatMakeNoSense) {
  start({{"lies", "1"}});
  online(11);
  loop()->poll_work(2ms);
  EXPECT_TRUE(loop().until([&] { return loop().observations.size() == 3; }));
  EXPECT_EQ(loop().observations.front().work, online_work::unknown) << "no state has this number";
  for (const observation& each : loop().observations) EXPECT_LE(each.work, online_work::running);
  settle();
  EXPECT_EQ(loop().losses, 0);
}

}  // namespace
}  // namespace sluice::agent::follow_test
