#include "job_lines.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

namespace sluice::cli::jobs_test {
namespace {

using namespace std::chrono_literals;
using observe::job_record;

job_record record() {
  return {.time = observe::wall_time{std::chrono::milliseconds{1'769'866'620'123}},
          .pid = 42,
          .start = 777,
          .command = "tr\"ain",
          .user = "ann",
          .group = "slurm:1",
          .what = role::offline,
          .gpus = {gpu_id{3}},
          .wall = 100s,
          .suspended = 20s,
          .suspensions = 4,
          .longest = 1s,
          .by_max_suspend = 2};
}

TEST(JobLines, AreReadAsTheyWereWritten) {
  const std::string line = to_json(record());
  const auto read = parse_job_line(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), line);
  const auto logged =
      parse_job_line("2026-01-31 13:37:00.123 [sluice] [info] job: " + line + " part=node");
  ASSERT_TRUE(logged);
  EXPECT_EQ(to_json(*logged), line);
  job_record simulated = record();
  simulated.simulated = true;
  const auto read_again = parse_job_line(to_json(simulated));
  ASSERT_TRUE(read_again);
  EXPECT_TRUE(read_again->simulated);
}

TEST(JobLines, AreRefusedWhereTheyAreDamaged) {
  const std::string line = to_json(record());
  EXPECT_FALSE(parse_job_line(""));
  for (std::size_t size = 0; size < line.size(); ++size)
    EXPECT_FALSE(parse_job_line(line.substr(0, size))) << size;
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string made = line;
    return made.replace(made.find(what), what.size(), instead);
  };
  EXPECT_TRUE(parse_job_line(with("100.000", "101")));
  EXPECT_FALSE(parse_job_line(with("100.000", "-1")));
  EXPECT_FALSE(parse_job_line(with("100.000", "1e300")));
  EXPECT_FALSE(parse_job_line(with("100.000", "\"1\"")));
  EXPECT_FALSE(parse_job_line(with("2026-01-31", "2026-02-31")));
  EXPECT_FALSE(parse_job_line(with("13:37", "3:037")));
  EXPECT_FALSE(parse_job_line(with("offline\"", "boss\"")));
  EXPECT_FALSE(parse_job_line(with("\"pid\":42", "\"pid\":-1.5")));
}

TEST(JobBook, AddsUpThePartsOfAProcessAndTheProcessesOfAGroup) {
  job_record first = record();
  first.end = observe::job_end::runs;
  job_record second = record();
  second.time += 100s;
  second.gpus = {gpu_id{2}, gpu_id{3}};
  second.longest = 3s;
  second.suspended = 40s;
  job_record other = record();
  other.pid = 43;
  other.suspended = 0s;
  other.suspensions = 0;
  job_record stranger = record();
  stranger.pid = 44;
  stranger.user = "bob";
  stranger.suspended = 90s;
  std::string text = "some other line of a log\n";
  for (const auto& each : {first, second, other, stranger}) text += to_json(each) + "\n";
  text += to_json(record()).substr(0, 50);
  job_book book(first.time);
  book.read(text);
  EXPECT_EQ(book.damaged(), 1U);
  const auto processes = book.processes();
  ASSERT_EQ(processes.size(), 3U);
  EXPECT_EQ(processes[0].whole.pid, 44) << "who was suspended most comes first";
  const job_record& sum = processes[1].whole;
  EXPECT_EQ(sum.pid, 42);
  EXPECT_EQ(sum.wall, 200s);
  EXPECT_EQ(sum.suspended, 60s);
  EXPECT_EQ(sum.suspensions, 8U);
  EXPECT_EQ(sum.longest, 3s);
  EXPECT_EQ(sum.by_max_suspend, 4U);
  EXPECT_EQ(sum.end, observe::job_end::ended);
  EXPECT_EQ(sum.gpus, (std::vector{gpu_id{2}, gpu_id{3}}));
  const auto groups = book.groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[1].processes, 2U);
  EXPECT_EQ(groups[1].whole.wall, 300s);
  EXPECT_EQ(groups[1].whole.suspended, 60s);

  job_book late(second.time);
  late.read(text);
  ASSERT_EQ(late.processes().size(), 1U) << "what was before does not count";
  EXPECT_EQ(late.processes()[0].whole.wall, 100s);
}

}  // namespace
}  // namespace sluice::cli::jobs_test
