#include "runtime_log.hpp"

#include "analyze.hpp"
#include "test_seed.hpp"

#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::runtime_log_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::string sample(const std::string& name) {
  std::ifstream file{SLUICE_LOG_SAMPLES "/" + name};
  if (!file) throw std::runtime_error{"no sample " + name};
  return {std::istreambuf_iterator<char>{file}, {}};
}

log_usage read(std::string_view text) {
  runtime_log_parser parser;
  parser.feed(text);
  return parser.finish();
}

std::uint64_t sum(const log_usage& usage) {
  std::uint64_t all = 0;
  for (const auto each : usage.of_kind) all += each;
  return all;
}

/// A line of the log as it is since ROCm 6.
std::string line(const std::string& text) {
  return ":4:rocvirtual.cpp           :1177: 0000001000 us: [pid:7     tid: 0x7f01] " + text + "\n";
}

std::string dispatch(std::uint64_t read, std::uint64_t write) {
  return line("SWq=0x10, HWq=0x20, id=1, Dispatch Header = 0xb02 (type=2), rptr=" +
              std::to_string(read) + ", wptr=" + std::to_string(write));
}

TEST(RuntimeLog, TellsQueuesTheirKindsAndWhoSharesThem) {
  const auto usage = read(sample("hip_shared.log"));
  EXPECT_EQ(usage.lines, 33U);
  EXPECT_EQ(sum(usage), usage.lines);
  EXPECT_EQ(usage.count(line_kind::unknown), 1U);
  EXPECT_EQ(usage.first_unknown, 1U);
  EXPECT_EQ(usage.first_unknown_text, "loading the model");
  EXPECT_EQ(usage.limit_per_priority, 4U);
  ASSERT_THAT(usage.queues, SizeIs(2));
  const auto& normal = usage.queues[0];
  EXPECT_EQ(normal.pid, 4242);
  EXPECT_EQ(normal.address, 0x7f1000000000U);
  EXPECT_EQ(normal.object, 0x7f1100000000U);
  EXPECT_EQ(normal.ring_packets, 16384U);
  EXPECT_EQ(kind_of(normal), "normal");
  EXPECT_EQ(normal.cooperative, false);
  EXPECT_EQ(normal.created, 1U);
  EXPECT_EQ(normal.acquired, 2U);
  EXPECT_EQ(normal.released, 1U);
  EXPECT_EQ(normal.deleted, 1U);
  EXPECT_EQ(normal.most_users, 2U);
  EXPECT_EQ(normal.streams.count(), 2U);
  EXPECT_EQ(normal.threads.count(), 2U);
  EXPECT_EQ(normal.dispatches, 6U);
  EXPECT_EQ(normal.barriers, 1U);
  EXPECT_TRUE(normal.shared());
  const auto& high = usage.queues[1];
  EXPECT_EQ(kind_of(high), "high");
  EXPECT_EQ(high.streams.count(), 1U);
  EXPECT_FALSE(high.shared());
}

// The packet's own index less the read index: what stands before it.
TEST(RuntimeLog, CountsThePacketsThatADispatchHasBeforeIt) {
  const auto usage = read(dispatch(5, 5) + dispatch(5, 8) + dispatch(0, 100) + dispatch(9, 8));
  ASSERT_THAT(usage.queues, SizeIs(1));
  const auto& queue = usage.queues[0];
  EXPECT_EQ(queue.dispatches, 4U);
  EXPECT_EQ(queue.behind_others, 2U) << "taken before its line was written: no backlog";
  EXPECT_EQ(queue.packets_before, 103U);
  EXPECT_EQ(queue.backlog.count(), 4U);
  EXPECT_EQ(packets(queue.backlog.max()), 100U);
  EXPECT_EQ(packets(queue.backlog.percentile(50)), 0U);
}

TEST(RuntimeLog, ReadsTheLinesOfAllAges) {
  const auto usage = read(sample("hip_ages.log"));
  EXPECT_EQ(usage.count(line_kind::unknown), 0U) << usage.first_unknown_text;
  EXPECT_EQ(sum(usage), usage.lines);
  ASSERT_THAT(usage.queues, SizeIs(5));
  EXPECT_EQ(usage.queues[0].pid, 16);
  EXPECT_EQ(kind_of(usage.queues[0]), "normal, cooperative");
  EXPECT_EQ(usage.queues[1].pid, 17154);
  EXPECT_EQ(usage.queues[1].threads.count(), 1U);
  EXPECT_EQ(usage.queues[1].dispatches, 1U);
  EXPECT_EQ(usage.queues[1].barriers, 1U);
  EXPECT_EQ(usage.queues[1].backlog.count(), 0U) << "these lines had no indices";
  EXPECT_EQ(usage.left_out, 1U) << "this BarrierValue names no ring";
  EXPECT_EQ(usage.queues[2].pid, 0);
  EXPECT_EQ(packets(usage.queues[2].backlog.max()), 10U);
  EXPECT_EQ(usage.queues[3].pid, 21983);
  EXPECT_EQ(usage.queues[3].dispatches, 2U);
  EXPECT_EQ(usage.queues[3].barriers, 1U);
  EXPECT_EQ(kind_of(usage.queues[4]), "runtime's own");
}

TEST(RuntimeLog, FindsLinesBehindWhatWasWrittenWithoutALineEnd) {
  EXPECT_THAT(read("epoch 1: 50%\r" + dispatch(0, 0)).queues, SizeIs(1));
  EXPECT_THAT(read("0: " + dispatch(0, 0)).queues, SizeIs(1)) << "srun --label";
  std::string windows = dispatch(0, 3);
  windows.insert(windows.size() - 1, "\r");
  EXPECT_EQ(packets(read(windows).queues.at(0).backlog.max()), 3U);
}

TEST(RuntimeLog, CountsWhatItDoesNotKnowAndGoesOn) {
  std::string text;
  for (const char* const each :
       {"SWq=0x10, HWq=0x20", "SWq=0x, HWq=0x20, Dispatch Header = 0x1", "HWq=0x20, id=1",
        "HWq=0x20, id=1, Unheard Header = 0x1", "Created SWq=0x10 to map on HWq=nil",
        "acquireQueue refCount: (nil) (1)", "acquireQueue refCount: 0x20",
        "acquireQueue refCount: 0x20 (1", "Deleting hardware queue "})
    text += line(each);
  text += std::string(
              "\0\x7f"
              "ELF\xff\n",
              7) +
          "\n:\n::::\n:4:x.cpp:1: us:\n";
  text += ":4:x.cpp:1: 99999999999999999999999 us: a time beyond 64 bits\n";
  const auto usage = read(text + dispatch(1, 2));
  EXPECT_EQ(usage.lines, 16U);
  EXPECT_EQ(usage.count(line_kind::unknown), 15U);
  EXPECT_EQ(usage.first_unknown, 1U);
  EXPECT_EQ(usage.count(line_kind::dispatch), 1U);
  ASSERT_THAT(usage.queues, SizeIs(1));
}

// Rotated logs, and those of a program that was killed.
TEST(RuntimeLog, ReadsALineWithoutAnEnd) {
  std::string text = dispatch(1, 2);
  text.pop_back();
  EXPECT_EQ(read(text).count(line_kind::dispatch), 1U);
  EXPECT_EQ(read("").lines, 0U);
}

TEST(RuntimeLog, ReadsTheSameWhereverTheTextIsCut) {
  const test::random_seed seed;
  std::mt19937 random{seed.value()};
  const std::string text = sample("hip_shared.log") + std::string(20000, 'x') + dispatch(1, 4) +
                           sample("ftrace_function.txt") + sample("hip_ages.log") + "end";
  const std::string whole = boost::json::serialize(analysis_json({{"log", read(text)}}));
  for (int round = 0; round < 50; ++round) {
    runtime_log_parser parser;
    std::string_view rest = text;
    while (!rest.empty()) {
      const auto length = std::min<std::size_t>(rest.size(), 1 + random() % 300);
      parser.feed(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    ASSERT_EQ(boost::json::serialize(analysis_json({{"log", parser.finish()}})), whole);
  }
}

// A log of anything, or one made to harm, takes no more memory than one of many queues.
TEST(RuntimeLog, KeepsSoManyQueuesAndCountsTheRest) {
  runtime_log_parser parser;
  constexpr std::size_t beyond = 10;
  for (std::size_t i = 0; i < runtime_log_parser::most + beyond; ++i)
    parser.feed(line("acquireQueue refCount: 0x" + std::to_string(i + 1) + "000 (1)"));
  const auto usage = parser.finish();
  EXPECT_THAT(usage.queues, SizeIs(runtime_log_parser::most));
  EXPECT_EQ(usage.left_out, beyond);
  EXPECT_EQ(usage.count(line_kind::acquired), runtime_log_parser::most + beyond);
}

TEST(RuntimeLog, KeepsQueuesOfProcessesApart) {
  std::string other = dispatch(0, 0);
  other.replace(other.find("pid:7"), 5, "pid:8");
  EXPECT_THAT(read(dispatch(0, 0) + other).queues, SizeIs(2));
}

TEST(FtraceText, CountsCallsOfTheDriver) {
  const auto usage = read(sample("ftrace_function.txt"));
  EXPECT_EQ(usage.count(line_kind::unknown), 0U) << usage.first_unknown_text;
  EXPECT_EQ(usage.count(line_kind::driver_call), 5U);
  EXPECT_EQ(usage.count(line_kind::other_trace), 5U);
  ASSERT_THAT(usage.tasks, SizeIs(2));
  EXPECT_EQ(usage.tasks[0].pid, 4242) << "a thread whose process is said counts for that";
  EXPECT_EQ(usage.tasks[0].name, "python3");
  EXPECT_EQ(usage.tasks[0].created(), 2U) << "one call goes through several of the functions";
  EXPECT_EQ(usage.tasks[1].pid, 77);
  EXPECT_EQ(usage.tasks[1].name, "kworker/3:1");
  EXPECT_EQ(usage.tasks[1].created(), 0U);
}

TEST(FtraceText, TakesCommentsForATracersOnlyBelowItsName) {
  const auto usage = read(
      "# mine\n# tracer: nop\n#\n# entries: 0\nx\n# mine\n##### CPU 1 buffer started ####\nCPU:1 "
      "[LOST 7 EVENTS]\n");
  EXPECT_EQ(usage.count(line_kind::other_trace), 5U);
  EXPECT_EQ(usage.count(line_kind::unknown), 3U);
}

TEST(FtraceText, ReadsTheGraphOfCalls) {
  const auto usage = read(sample("ftrace_graph.txt"));
  EXPECT_EQ(usage.count(line_kind::unknown), 0U) << usage.first_unknown_text;
  EXPECT_EQ(usage.count(line_kind::driver_call), 3U) << "the end of a call is none";
  ASSERT_THAT(usage.tasks, SizeIs(2));
  EXPECT_EQ(usage.tasks[0].pid, 0);
  EXPECT_EQ(usage.tasks[0].created(), 1U);
  EXPECT_EQ(usage.tasks[1].pid, 4242);
}

TEST(FtraceText, TakesATasksNameForWhatItIs) {
  const auto odd = read_trace_line(
      " a [001] b: 1.5: c-12 [002] d..1.   176.000001: kfd_ioctl_create_queue <-kfd_ioctl");
  EXPECT_EQ(odd.what, trace_line::is::call);
  EXPECT_EQ(odd.task, "a [001] b: 1.5: c");
  EXPECT_EQ(odd.pid, 12);
  const auto probe = read_trace_line(
      "  sh-9 [000] d..2. 176.000001: queue_made: (pqm_create_queue+0x0/0x7b0 [amdgpu])");
  EXPECT_EQ(probe.what, trace_line::is::call);
  EXPECT_EQ(driver_functions[probe.function], "pqm_create_queue");
  const auto ended = read_trace_line(
      "  sh-9 [000] d..2. 176.000001: made: (kfd_ioctl_create_queue+0x1/0x7b0 <- "
      "pqm_create_queue)");
  EXPECT_EQ(ended.what, trace_line::is::other);
  for (const char* const each : {"", " [", "x [000] 1.2: y", "sh-9 [000] d..2.", "1)", "|", "# x"})
    EXPECT_EQ(read_trace_line(each).what, trace_line::is::nothing) << each;
}

TEST(Analysis, HoldsQueuesOfAKindAgainstEachOther) {
  const analyzed_file alone{"alone.log", read(sample("hip_alone.log"))};
  const analyzed_file shared{"shared.log", read(sample("hip_shared.log"))};
  const auto pairs = compare(alone.usage, shared.usage);
  ASSERT_THAT(pairs, SizeIs(2));
  EXPECT_EQ(pairs[0].kind, "high");
  EXPECT_EQ(pairs[0].first, nullptr);
  EXPECT_EQ(pairs[0].second, &shared.usage.queues[1]);
  EXPECT_THAT(pairs[0].differs, ElementsAre("number"));
  EXPECT_EQ(pairs[1].kind, "normal");
  EXPECT_THAT(pairs[1].differs, ElementsAre("sharing", "backlog"));
  for (const auto& each : compare(alone.usage, alone.usage))
    EXPECT_THAT(each.differs, testing::IsEmpty());

  const auto text = analysis_text({alone, shared}, 0);
  EXPECT_THAT(text, HasSubstr("1 hardware queue of 1 process: 1 normal; 0 shared by several "
                              "streams; HIP creates at most 4 per priority and device\n"));
  EXPECT_THAT(text, HasSubstr("2 hardware queues of 1 process: 1 high; 1 normal; 1 shared"));
  EXPECT_THAT(text, testing::ContainsRegex("shared by streams +0 +1\n"));
  EXPECT_THAT(text, testing::ContainsRegex("dispatches +6 +7\n"));
  EXPECT_THAT(text,
              testing::ContainsRegex("0x7f1000000000 \\| 0x7f1000000000 +no \\| yes +6 \\| 6 "));

  const auto json = analysis_json({alone, shared});
  const auto& queue = json.at("files").at(1).at("queues").at(0);
  EXPECT_EQ(queue.at("kind").as_string(), "normal");
  EXPECT_EQ(queue.at("most_users").to_number<int>(), 2);
  EXPECT_TRUE(queue.at("shared").as_bool());
  EXPECT_EQ(queue.at("backlog").at("max").to_number<int>(), 5);
  EXPECT_EQ(json.at("files").at(1).at("lines_by_kind").at("dispatches").to_number<int>(), 7);
  EXPECT_TRUE(json.at("compared").at(0).at("first").is_null());
  EXPECT_EQ(json.at("compared").at(0).at("second").to_number<int>(), 1);
  EXPECT_TRUE(analysis_json({alone}).at("compared").is_null());
}

// Logs of ROCm 5 name one queue in two ways.
TEST(Analysis, SaysWhereAQueueMayCountTwice) {
  std::string old = sample("hip_ages.log");
  EXPECT_THAT(analysis_text({{"old", read(old)}}, 0), HasSubstr("may be counted twice"));
  const std::string same = line("created hardware queue 0x20 with size 4 with priority 1") +
                           line("HWq=0x20, Dispatch Header = 0xb02 (type=2)") +
                           line("HWq=0x30, Dispatch Header = 0xb02 (type=2)");
  EXPECT_THAT(analysis_text({{"same", read(same)}}, 0), testing::Not(HasSubstr("twice")));
  EXPECT_THAT(analysis_text({{"new", read(sample("hip_shared.log"))}}, 0),
              testing::Not(HasSubstr("twice")));
}

}  // namespace
}  // namespace sluice::cli::runtime_log_test
