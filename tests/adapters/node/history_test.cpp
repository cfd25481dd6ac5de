#include "history.hpp"

#include "steered.hpp"

#include <cerrno>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test::history_test {
namespace {

using testing::HasSubstr;
using outcome = history::outcome;

class History : public testing::Test {
 protected:
  const history::known_group& group() const { return *past_.find(trainers); }
  const history::decision& last() const { return group().decisions.back(); }
  duration lost() const { return past_.losses(journal_.at)[trainers].all; }
  /// What a scheduler shows after everything that was heard.
  picture shown() const {
    picture made = usual_picture();
    made.at = journal_.at;
    return made;
  }

  history past_{name_of_test};
  script journal_{past_};
};

TEST_F(History, TellsEventRuleCommandAndOutcomeOfAHold) {
  journal_.policy("fixed_timeslice");
  journal_.client("llama");
  journal_.process();
  journal_.begin();
  journal_.held();
  ASSERT_EQ(group().decisions.size(), 1U);
  EXPECT_EQ(last().what, journal_kind::held);
  EXPECT_EQ(last().rule, journal_rule::policy);
  EXPECT_EQ(last().policy, "fixed_timeslice");
  EXPECT_EQ(last().event, "client 'llama' began work on GPU 51110");
  ASSERT_EQ(last().commands.size(), 1U);
  const auto& command = last().commands[0];
  EXPECT_EQ(command.kind, command_kind::suspend);
  EXPECT_EQ(command.queues, 2U);
  EXPECT_EQ(command.gpu, gpu_one);
  EXPECT_EQ(command.ended, outcome::done);
  EXPECT_EQ(command.length, 5ms);
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at),
              HasSubstr("client 'llama' has been busy on GPU 51110 for 5.0 ms"));
}

TEST_F(History, TellsOfOnlineWorkThatOnlyPointersShow) {
  journal_.process();
  journal_.turn();
  journal_.put({.kind = journal_kind::busy, .gpu = gpu_one});
  journal_.held();
  EXPECT_EQ(last().event, "online work arrived on GPU 51110");
  journal_.turn();
  journal_.put({.kind = journal_kind::busy, .pid = 4711, .gpu = gpu_one});
  journal_.held();
  EXPECT_EQ(last().event, "online work of process 4711 arrived on GPU 51110");
}

TEST_F(History, TellsOfAClientOnManyGpusOnce) {
  journal_.process();
  journal_.turn();
  for (std::uint32_t i = 1; i <= 8; ++i)
    journal_.put(
        {.kind = journal_kind::begin, .gpu = gpu_id{i}, .count = 1, .client = client_id{5}});
  for (std::uint32_t i = 1; i <= 8; ++i)
    journal_.put({.kind = journal_kind::busy, .gpu = gpu_id{i}});
  journal_.held();
  EXPECT_EQ(last().event, "client 5 began work on GPU 1 and 7 more");
}

// An event belongs to the decisions of its own turn.
TEST_F(History, ForgetsWhatCameInEarlierTurns) {
  journal_.process();
  journal_.begin();
  journal_.turn();
  journal_.held();
  EXPECT_EQ(last().event, "");
}

TEST_F(History, TellsWhatTheDriverRefusedFailedAndDidInPart) {
  journal_.process();
  journal_.begin();
  journal_.decide(journal_kind::held);
  journal_.hand(command_kind::suspend, 2, errc::not_managed);
  const auto failing = journal_.hand(command_kind::suspend, 2);
  const auto partly = journal_.hand(command_kind::suspend, 2);
  const auto pending = journal_.hand(command_kind::suspend, 2);
  journal_.done(failing, command_kind::suspend, 2, 1ms, EIO);
  journal_.done(partly, command_kind::suspend, 2, 1ms, 0, 1);
  const auto& told = last().commands;
  ASSERT_EQ(told.size(), 4U);
  EXPECT_EQ(told[0].ended, outcome::refused);
  EXPECT_THAT(told[0].text, HasSubstr("cannot be suspended"));
  EXPECT_EQ(told[1].ended, outcome::failed);
  EXPECT_EQ(told[1].error, EIO);
  EXPECT_EQ(told[2].ended, outcome::partly);
  EXPECT_EQ(told[2].failed, 1U);
  EXPECT_EQ(told[3].ended, outcome::pending);
  past_.missed(3);
  EXPECT_EQ(told[3].ended, outcome::unknown) << "its answer may be among what is missing";
  journal_.done(pending, command_kind::suspend, 2, 1ms);
  EXPECT_EQ(past_.missed_entries(), 3U);
}

TEST_F(History, RemembersWhyAProcessCannotBeAttached) {
  journal_.process();
  journal_.attached(error_code{EPERM, boost::system::system_category()});
  EXPECT_EQ(past_.find(trainer_pid)->attach_failure, "Operation not permitted");
  EXPECT_EQ(last().what, journal_kind::attach);
  EXPECT_EQ(last().ended, outcome::failed);
  journal_.attached();
  EXPECT_EQ(past_.find(trainer_pid)->attach_failure, "");
  EXPECT_EQ(last().ended, outcome::done);
}

TEST_F(History, KeepsTheLastDecisionsOfAGroup) {
  journal_.process();
  for (int i = 0; i < 1000; ++i) {
    journal_.begin();
    journal_.held();
    journal_.end();
    journal_.let_go();
  }
  EXPECT_EQ(group().decisions.size(), history::most_of_a_group);
  EXPECT_EQ(last().what, journal_kind::let_go);
  EXPECT_EQ(last().event, "client 5 ended work on GPU 51110");
}

// Memory is bounded, whoever comes and whatever is decided.
TEST_F(History, DropsTheOldestDecisionsOfAllGroups) {
  constexpr std::uint64_t groups = 500;
  for (std::uint64_t i = 0; i < groups; ++i) {
    journal_.turn();
    auto entry = journal_.of_process(journal_kind::process);
    entry.pid = static_cast<pid_t>(1000 + i);
    entry.process = process_id{1000 + i};
    entry.group = group_id{1000 + i};
    journal_.put(entry);
    for (int n = 0; n < 40; ++n) {
      entry.kind = journal_kind::held;
      journal_.put(entry);
    }
  }
  std::size_t kept = 0;
  for (std::uint64_t i = 0; i < groups; ++i)
    kept += past_.find(group_id{1000 + i})->decisions.size();
  EXPECT_EQ(kept, history::most_decisions);
  EXPECT_TRUE(past_.find(group_id{1000})->decisions.empty());
  EXPECT_EQ(past_.find(group_id{1000 + groups - 1})->decisions.size(), 40U);
}

TEST_F(History, CountsTheCommandsThatItHasNoRoomFor) {
  journal_.process();
  journal_.begin();
  journal_.decide(journal_kind::held);
  for (int i = 0; i < 20; ++i) journal_.hand(command_kind::suspend, 1);
  EXPECT_EQ(last().commands.size(), history::most_commands);
  EXPECT_EQ(last().more_commands, 20 - history::most_commands);
}

TEST_F(History, RemembersWhoEndedForAWhile) {
  journal_.process();
  journal_.begin();
  journal_.held();
  journal_.gone();
  past_.tick(journal_.at + history::remember_ended - 1s);
  ASSERT_NE(past_.find(trainer_pid), nullptr);
  EXPECT_EQ(past_.find(trainer_pid)->command, "train");
  EXPECT_EQ(group().decisions.size(), 1U);
  past_.tick(journal_.at + history::remember_ended);
  EXPECT_EQ(past_.find(trainer_pid), nullptr);
  EXPECT_EQ(past_.find(trainers), nullptr);
}

TEST_F(History, RemembersNoMoreThanSoManyWhoEnded) {
  for (std::uint64_t i = 1; i <= history::most_ended + 10; ++i) {
    journal_.turn();
    auto entry = journal_.of_process(journal_kind::process);
    entry.pid = static_cast<pid_t>(i);
    entry.process = process_id{i};
    entry.group = group_id{i};
    journal_.put(entry);
    entry.kind = journal_kind::process_gone;
    journal_.put(entry);
  }
  past_.tick(journal_.at);
  EXPECT_EQ(past_.find(pid_t{10}), nullptr);
  EXPECT_NE(past_.find(pid_t{11}), nullptr);
}

TEST_F(History, CountsWhatHoldsCostAndGave) {
  journal_.process();
  journal_.begin();
  const time_point busy = journal_.at;
  journal_.held();
  const time_point off = journal_.at;
  journal_.turn(1s);
  EXPECT_EQ(lost(), 1s) << "what goes on counts";
  journal_.end();
  const time_point idle = journal_.at;
  journal_.turn(500ms);
  journal_.let_go();
  const time_point on = journal_.at;
  journal_.turn(2s);
  EXPECT_EQ(lost(), on - off);
  EXPECT_EQ(past_.losses(journal_.at)[trainers].lately, on - off);
  const auto times = past_.times_of(gpu_one, journal_.at);
  EXPECT_EQ(times.gained, idle - off);
  EXPECT_EQ(times.busy_lately, idle - busy);
  EXPECT_EQ(times.suspended_lately, on - off);
  EXPECT_EQ(past_.losses(journal_.at + 2min)[trainers].lately, 0s);
}

TEST_F(History, CountsNothingMoreForWhoIsGone) {
  journal_.process();
  journal_.begin();
  journal_.held();
  journal_.turn(1s);
  journal_.gone();
  const auto before = lost();
  journal_.turn(5s);
  EXPECT_EQ(lost(), before);
  EXPECT_EQ(past_.times_of(gpu_one, journal_.at).gained, before);
}

// Queues that end while they are suspended are answered as invalid or gone.
TEST_F(History, CountsNothingMoreForWhoRunsAgainWhateverWasAnswered) {
  journal_.process();
  journal_.held();
  journal_.turn(1s);
  journal_.put(journal_.of_process(journal_kind::process_on));
  EXPECT_EQ(lost(), 1s);
  journal_.turn(5s);
  EXPECT_EQ(lost(), 1s);
}

TEST_F(History, CountsNothingMoreWhereAnAnswerWasLost) {
  journal_.process();
  journal_.begin();
  journal_.held();
  past_.missed(10);
  journal_.turn(1s);
  picture seen = shown();
  past_.mend(seen);
  EXPECT_EQ(lost(), 1s);
  journal_.turn(5s);
  EXPECT_EQ(lost(), 1s);
  EXPECT_EQ(past_.times_of(gpu_one, journal_.at).gained, 1s);
  EXPECT_EQ(past_.online_work_on({gpu_one}, journal_.at), "") << "the end of it was lost, too";

  // What is suspended, and nobody told of it.
  seen.groups[0].processes[0].off = true;
  seen.groups[0].processes[0].queues[0].suspended = 2;
  seen.at = journal_.at;
  past_.mend(seen);
  journal_.turn(2s);
  EXPECT_EQ(lost(), 3s);
}

TEST_F(History, LetsGoOfThoseWhoseEndWasLost) {
  journal_.process();
  journal_.begin();
  journal_.held();
  past_.missed(10);
  journal_.turn(1s);
  picture seen = shown();
  seen.groups.clear();
  past_.mend(seen);
  journal_.turn(5s);
  EXPECT_EQ(lost(), 1s);
  past_.tick(journal_.at + history::remember_ended);
  EXPECT_EQ(past_.find(trainer_pid), nullptr);
  EXPECT_EQ(past_.find(trainers), nullptr);
}

TEST_F(History, LearnsOfThoseWhoseBeginWasLost) {
  past_.missed(10);
  picture seen = shown();
  seen.gpus[0].busy = true;
  seen.clients.push_back({.id = client_id{5}, .name = "llama"});
  past_.mend(seen);
  ASSERT_NE(past_.find(trainer_pid), nullptr);
  EXPECT_EQ(past_.find(trainer_pid)->command, "train");
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at), HasSubstr("online work has been busy"));
  journal_.begin();
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at),
              HasSubstr("client 'llama' has been busy"));
}

TEST_F(History, NamesThoseWhoHaveWorkInFlight) {
  const auto other = [&](journal_kind kind, std::uint32_t count) {
    journal_.turn();
    journal_.put({.kind = kind, .gpu = gpu_one, .count = count, .client = client_id{6}});
  };
  journal_.client("llama");
  journal_.begin();
  other(journal_kind::begin, 2);
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at),
              HasSubstr("client 'llama', client 6 have been busy on GPU 51110"));
  other(journal_kind::end, 1);
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at), HasSubstr("client 6 have been busy"));
  other(journal_kind::end, 1);
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at),
              HasSubstr("client 'llama' has been busy"));
  journal_.turn();
  journal_.put({.kind = journal_kind::client_gone, .client = client_id{5}});
  EXPECT_THAT(past_.online_work_on({gpu_one}, journal_.at), HasSubstr("online work has been busy"));
}

TEST_F(History, CountsCommandsToNoAttach) {
  journal_.process();
  journal_.begin();
  journal_.decide(journal_kind::held);
  journal_.attached();
  journal_.hand(command_kind::suspend, 1);
  ASSERT_EQ(group().decisions.size(), 2U);
  EXPECT_EQ(group().decisions[0].commands.size(), 1U);
  EXPECT_TRUE(last().commands.empty());
}

TEST_F(History, KnowsNothingOfTheSchedulerBefore) {
  journal_.process();
  journal_.begin();
  journal_.held();
  past_.begin_anew();
  EXPECT_EQ(past_.find(trainers), nullptr);
  EXPECT_EQ(past_.find(trainer_pid), nullptr);
  EXPECT_EQ(lost(), 0s);
  journal_.process();
  EXPECT_EQ(past_.find(trainers)->number, 1U);
  EXPECT_EQ(past_.group_numbered(1), trainers);
}

TEST_F(History, KeepsTheSpansOfTheLastPeriods) {
  journal_.turn();
  journal_.put({.kind = journal_kind::span_end, .span = span_kind::ttft, .length = 7ms});
  const histogram lately = past_.spans().of(span_kind::ttft, journal_.at);
  EXPECT_EQ(lately.count(), 1U);
  EXPECT_EQ(lately.max(), 7ms);
  EXPECT_EQ(past_.spans().of(span_kind::itl, journal_.at).count(), 0U);
}

TEST(RecentSpans, ForgetThoseOfTwoPeriodsAgo) {
  recent_spans lately;
  const time_point begin{std::chrono::hours{10}};  // of a period
  const auto count = [&](duration after) {
    return lately.of(span_kind::request, begin + after).count();
  };
  lately.add(span_kind::request, 1ms, begin);
  EXPECT_EQ(count(0s), 1U);
  EXPECT_EQ(count(recent_spans::period), 1U);
  EXPECT_EQ(count(2 * recent_spans::period), 0U) << "also if no span followed";
  lately.add(span_kind::request, 1ms, begin + recent_spans::period);
  EXPECT_EQ(count(recent_spans::period), 2U);
  EXPECT_EQ(count(2 * recent_spans::period), 1U);
  lately.add(span_kind::request, 1ms, begin + 9 * recent_spans::period);
  EXPECT_EQ(count(9 * recent_spans::period), 1U);
}

TEST(LastMinute, HoldsTheSecondsOfItsWindow) {
  last_minute lately;
  const time_point begin{std::chrono::hours{10}};
  lately.add(begin, begin + 12s);
  EXPECT_EQ(lately.total(begin + 12s), 12s);
  EXPECT_EQ(lately.total(begin + 59s), 12s);
  EXPECT_EQ(lately.total(begin + 60s), 7s) << "the first step has left the window";
  EXPECT_EQ(lately.total(begin + 10min), 0s);
  lately.add(begin, begin + 10min + 1s);
  EXPECT_EQ(lately.total(begin + 10min + 1s), 56s) << "no more than the window";
  lately.add(begin, begin + 1s);
  EXPECT_EQ(lately.total(begin + 10min + 1s), 56s) << "what is older counts nowhere";
}

}  // namespace
}  // namespace sluice::test::history_test
