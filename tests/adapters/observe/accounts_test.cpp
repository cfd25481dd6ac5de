#include "sluice/observe/accounts.hpp"

#include "entries.hpp"
#include "temporary_directory.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "sluice/observe/job_log.hpp"

namespace sluice::observe::accounts_test {
namespace {

using namespace test;

class Accounts : public testing::Test {
 protected:
  accounts made{{.write = [this](const job_record& each) { lines.push_back(each); },
                 .read = words,
                 .part_every = 1h}};
  std::vector<job_record> lines;
};

TEST_F(Accounts, SayAtItsEndHowLongAProcessWasOff) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  made.hear(of_process(journal_kind::process_off, 10s, 1));
  made.hear(batch(10s, 1, command_kind::suspend, 1));
  made.hear(on(11s, 1, 1s));
  auto forced = of_process(journal_kind::forced, 20s, 1);
  forced.why = journal_rule::max_suspend;
  made.hear(forced);
  made.hear(of_process(journal_kind::process_off, 30s, 1));
  made.hear(on(33s, 1, 3s));
  EXPECT_TRUE(lines.empty());
  auto gone = of_process(journal_kind::process_gone, 40s, 1);
  gone.count = 2;
  gone.length = 4s;
  gone.longest = 3s;
  made.hear(gone);
  ASSERT_EQ(lines.size(), 1U);
  const job_record& line = lines[0];
  EXPECT_EQ(line.end, job_end::ended);
  EXPECT_EQ(line.wall, 40s);
  EXPECT_EQ(line.suspended, 4s);
  EXPECT_EQ(line.suspensions, 2U);
  EXPECT_EQ(line.longest, 3s);
  EXPECT_EQ(line.by_max_suspend, 1U);
  EXPECT_EQ(line.by_offline_floor, 0U);
  EXPECT_EQ(line.gpus, std::vector{gpu_id{7}});
  EXPECT_EQ(line.group, "slurm:42");
  EXPECT_EQ(line.what, role::offline);
}

// What the journal lost, the sums at the end still hold.
TEST_F(Accounts, TakeTheSumsOfTheSchedulerWhereEntriesWereLost) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  auto gone = of_process(journal_kind::process_gone, 40s, 1);
  gone.count = 9;
  gone.length = 5s;
  gone.longest = 2s;
  made.hear(gone);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].suspended, 5s);
  EXPECT_EQ(lines[0].suspensions, 9U);
  EXPECT_EQ(lines[0].longest, 2s);
}

// Where the journal lost entries, the scheduler's picture says who is there, and how they are.
TEST_F(Accounts, GoByAPictureWhereEntriesWereLost) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  made.hear(of_process(journal_kind::process, 0s, 2));
  made.hear(of_process(journal_kind::process_off, 5s, 2));  // and on at 7 s, and off at 9 s
  picture now{.at = start + 10s};
  now.groups.push_back({.id = group_id{2}});
  process_picture two{.id = process_id{2}, .pid = 2, .start_time = 2, .what = role::offline};
  two.off = true;
  two.off_since = start + 9s;
  two.off_count = 2;
  two.off_total = 3s;
  two.off_longest = 2s;
  process_picture three{.id = process_id{3}, .pid = 3, .start_time = 3, .what = role::offline};
  three.seen_since = start + 6s;
  three.off_count = 1;
  three.off_total = three.off_longest = 1s;
  now.groups[0].processes = {two, three};
  made.mend(now);
  ASSERT_EQ(lines.size(), 1U) << "its end was lost";
  EXPECT_EQ(lines[0].pid, 1);
  EXPECT_EQ(lines[0].end, job_end::ended);
  EXPECT_EQ(lines[0].wall, 10s);
  made.hear(on(12s, 2, 3s));
  made.leave(start + 20s);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].suspended, 5s);
  EXPECT_EQ(lines[1].suspensions, 2U);
  EXPECT_EQ(lines[1].longest, 3s);
  EXPECT_EQ(lines[2].pid, 3);
  EXPECT_EQ(lines[2].wall, 14s);
  EXPECT_EQ(lines[2].suspended, 1s);
  EXPECT_EQ(lines[2].suspensions, 1U);
}

// Each its own hours, whoever came first or goes.
TEST_F(Accounts, CutEachLifeByItself) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  made.hear(of_process(journal_kind::process, 1800s, 2));
  for (int now = 0; now <= 7200; now += 600) made.tick(start + std::chrono::seconds(now));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].pid, 1);
  EXPECT_EQ(lines[1].pid, 2);
  EXPECT_EQ(lines[2].pid, 1);
  for (const job_record& each : lines) EXPECT_EQ(each.wall, 1h);
}

// The lines of a process add up to what was, wherever they are cut.
TEST_F(Accounts, CutALongLifeIntoPartsThatAddUp) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  made.hear(of_process(journal_kind::process_off, 3599s, 1));
  made.tick(start + 3599s);
  EXPECT_TRUE(lines.empty());
  made.tick(start + 3600s);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].end, job_end::runs);
  EXPECT_EQ(lines[0].wall, 1h);
  EXPECT_EQ(lines[0].suspended, 1s);
  made.hear(on(3602s, 1, 3s));
  auto gone = of_process(journal_kind::process_gone, 3700s, 1);
  gone.count = 1;
  gone.length = 3s;
  gone.longest = 3s;
  made.hear(gone);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].wall, 100s);
  EXPECT_EQ(lines[1].suspended, 2s);
  EXPECT_EQ(lines[1].suspensions, 0U);
  EXPECT_EQ(lines[1].longest, 3s);
}

TEST_F(Accounts, SayWhatIsKnownOfThoseWhoAreThereInTheEnd) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  made.hear(of_process(journal_kind::process, 0s, 2));
  made.hear(of_process(journal_kind::process_off, 5s, 2));
  made.leave(start + 8s);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].end, job_end::left);
  EXPECT_EQ(lines[1].suspended, 3s);
  made.leave(start + 9s);
  EXPECT_EQ(lines.size(), 2U);
}

// The daemon itself and its agent have the driver open.
TEST_F(Accounts, LeaveOutWhoHasNoQueueAndNoRole) {
  auto agent = of_process(journal_kind::process, 0s, 1);
  agent.what = role::unmatched;
  made.hear(agent);
  EXPECT_TRUE(made.curious());
  picture now;
  now.groups.push_back({.id = group_id{1}});
  now.groups[0].processes.push_back({.id = process_id{1}});
  made.see(now);
  made.leave(start + 8s);
  EXPECT_TRUE(lines.empty());
}

// Symptom: each program that only asked what GPUs there are got a line.
TEST_F(Accounts, LeaveOutWhoEndedBeforeAnybodyLooked) {
  auto seen = of_process(journal_kind::process, 0s, 1);
  seen.what = role::unmatched;
  made.hear(seen);
  auto gone = of_process(journal_kind::process_gone, 1s, 1);
  gone.what = role::unmatched;
  made.hear(gone);
  EXPECT_TRUE(lines.empty());
  EXPECT_FALSE(made.curious());
}

TEST_F(Accounts, KnowGpusByWhatIsSeen) {
  made.hear(of_process(journal_kind::process, 0s, 1));
  picture now;
  now.groups.push_back({.id = group_id{1}});
  now.groups[0].processes.push_back(
      {.id = process_id{1}, .queues = {{.gpu = gpu_id{9}}, {.gpu = gpu_id{4}}}});
  EXPECT_TRUE(made.curious());
  made.see(now);
  EXPECT_FALSE(made.curious());
  made.see(now);
  made.leave(start + 8s);
  EXPECT_EQ(lines.at(0).gpus, (std::vector{gpu_id{4}, gpu_id{9}}));
}

TEST(JobRecord, IsOneLineOfJson) {
  const job_record record{.time = wall_time{std::chrono::milliseconds{1'769'866'620'123}},
                          .pid = 42,
                          .start = 777,
                          .command = "a\"b",
                          .user = "ann",
                          .group = "slurm:1",
                          .what = role::offline,
                          .gpus = {gpu_id{3}, gpu_id{5}},
                          .wall = 100s,
                          .suspended = 25s,
                          .suspensions = 7,
                          .longest = 1500ms};
  EXPECT_EQ(to_json(record),
            R"({"time":"2026-01-31T13:37:00.123Z","pid":42,"start":777,"command":"a\"b",)"
            R"("user":"ann","group":"slurm:1","role":"offline","gpus":[3,5],"end":"ended",)"
            R"("wall_s":100.000,"suspended_s":25.000000,"share":0.2500,"suspensions":7,)"
            R"("longest_s":1.500000,"max_suspend":0,"offline_floor":0})");
  EXPECT_TRUE(boost::json::parse(to_json(record)).is_object());
  const job_record simulated{.simulated = true};
  EXPECT_TRUE(boost::json::parse(to_json(simulated)).at("simulated").as_bool());
}

class JobLog : public testing::Test {
 protected:
  static std::string content(const std::string& of) {
    std::ostringstream all;
    all << std::ifstream{of}.rdbuf();
    return all.str();
  }
  const sluice::test::temporary_directory made;
  const std::string directory = made.path();
  const std::string path = directory + "/jobs";
  job_record record{.command = "one"};
};

TEST_F(JobLog, BeginsALineAfterOneThatWasCutShort) {
  job_log log(path);
  std::ofstream{path} << "{\"time\":\"20";
  ASSERT_TRUE(log.write(record).has_value());
  EXPECT_EQ(content(path), "{\"time\":\"20\n" + to_json(record) + "\n");
}

TEST_F(JobLog, KeepsTheOneBeforeAndNoMore) {
  const std::string line = to_json(record) + "\n";
  job_log log(path, 2 * line.size());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(log.write(record).has_value());
  EXPECT_EQ(content(path), line);
  EXPECT_EQ(content(path + ".1"), line + line);
  EXPECT_FALSE(std::filesystem::exists(path + ".2"));
}

TEST_F(JobLog, SaysWhatIsWrong) {
  EXPECT_EQ(job_log(directory + "/none/jobs").write(record).error(),
            boost::system::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace sluice::observe::accounts_test
