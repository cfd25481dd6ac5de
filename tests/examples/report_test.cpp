#include "demo_report.hpp"

#include <chrono>
#include <fstream>
#include <set>
#include <string>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::demo_tests::report_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

TEST(Percentiles, AreByNearestRank) {
  std::vector<sluice::duration> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i * 1ms);
  const demo::percentiles seen = demo::percentiles_of(samples);
  EXPECT_EQ(seen.p50, 50ms);
  EXPECT_EQ(seen.p90, 90ms);
  EXPECT_EQ(seen.p99, 99ms);
  EXPECT_EQ(seen.max, 100ms);
}

TEST(Percentiles, OfOneSampleAreThatSample) {
  EXPECT_EQ(demo::percentiles_of({7ms}).p99, 7ms);
  EXPECT_EQ(demo::percentiles_of({}).max, 0ms);
}

// offline_loss_percent = 100 × (1 − offline GPU time ÷ (wall − time with unfinished online work)).
TEST(OfflineRun, LosesWhatItDidNotUseOfTheTimeThatWasFree) {
  const demo::offline_run run{
      .wall = 10s, .gpu_time = 4500ms, .online_unfinished = 4s, .kernels = 50};
  EXPECT_NEAR(run.loss_percent(), 25, 1e-9);
  EXPECT_NEAR(run.kernels_per_second(), 5, 1e-9);
  EXPECT_NEAR(run.gpu_share(), 0.45, 1e-9);
}

TEST(OfflineRun, WithoutFreeTimeHasNothingToLose) {
  EXPECT_EQ((demo::offline_run{.wall = 1s, .online_unfinished = 1s}).loss_percent(), 0);
}

demo::load_report sample() {
  demo::load_report report;
  report.load = demo::load_kind::training;
  report.online_alone = {100, 0, {10ms, 20ms, 30ms, 40ms}, {50us, 60us, 70us, 80us}};
  report.unscheduled = {100, 7, {100ms, 200ms, 300ms, 400ms}, {}};
  report.scheduled = {100, 0, {11ms, 22ms, 33ms, 44ms}, {}};
  report.scheduled.samples = {11ms, 33ms};
  report.scheduled.arrivals = {1ms, 2500us};
  report.offline_alone = {.wall = 2s, .gpu_time = 2s, .kernels = 20};
  report.scheduled_offline = {
      .wall = 10s, .gpu_time = 4500ms, .online_unfinished = 4s, .kernels = 50};
  report.scheduler.suspends = 12;
  report.offline_kernels.completed = 90;
  report.online_disturbed = 61500us;
  report.driver_cycles = 7;
  report.driver_cycle_time = 75ms;
  return report;
}

boost::json::object parsed_json(const demo::arrival_options& asked = {}) {
  return boost::json::parse(demo::json(sample(), "a \"quoted\" name", asked, 1500ms)).as_object();
}

TEST(Json, HoldsTheSchema) {
  const auto parsed = parsed_json();
  EXPECT_EQ(parsed.at("device").as_string(), "simulated");
  EXPECT_EQ(parsed.at("profile").as_string(), "a \"quoted\" name");
  EXPECT_EQ(parsed.at("load").as_string(), "train");
  const auto& runs = parsed.at("runs").as_object();
  EXPECT_EQ(runs.at("online_alone").at("requests").as_int64(), 100);
  EXPECT_DOUBLE_EQ(runs.at("online_alone").at("p50_ms").as_double(), 10);
  EXPECT_DOUBLE_EQ(runs.at("online_alone").at("p90_ms").as_double(), 20);
  EXPECT_DOUBLE_EQ(runs.at("online_alone").at("p99_ms").as_double(), 30);
  EXPECT_DOUBLE_EQ(runs.at("online_alone").at("max_ms").as_double(), 40);
  EXPECT_FALSE(runs.at("online_alone").as_object().contains("offline_kernels_per_s"));
  EXPECT_DOUBLE_EQ(runs.at("scheduled").at("offline_gpu_share").as_double(), 0.45);
  EXPECT_DOUBLE_EQ(parsed.at("offline_alone_gpu_share").as_double(), 1);
  EXPECT_EQ(runs.at("unscheduled").at("unfinished").as_int64(), 7);
  EXPECT_DOUBLE_EQ(runs.at("scheduled").at("offline_kernels_per_s").as_double(), 5);
  EXPECT_EQ(runs.at("scheduled").at("arrival_and_latency_ms"),
            (boost::json::array{{1.0, 11.0}, {2.5, 33.0}}));
  EXPECT_TRUE(runs.at("unscheduled").at("arrival_and_latency_ms").as_array().empty());
  EXPECT_DOUBLE_EQ(parsed.at("offline_alone_kernels_per_s").as_double(), 10);
  EXPECT_DOUBLE_EQ(parsed.at("offline_loss_percent").as_double(), 25);
  EXPECT_DOUBLE_EQ(parsed.at("offline_share_of_alone").as_double(), 0.5);
  EXPECT_EQ(parsed.at("suspends").as_int64(), 12);
  for (const char* key : {"resumes", "driver_calls", "failed_outcomes", "still_suspended",
                          "kernels_lost", "kernels_repeated"}) {
    EXPECT_EQ(parsed.at(key).as_int64(), 0) << key;
  }
  EXPECT_DOUBLE_EQ(parsed.at("online_disturbed_ms").as_double(), 61.5);
  EXPECT_EQ(parsed.at("driver_cycles").as_int64(), 7);
  EXPECT_DOUBLE_EQ(parsed.at("driver_cycle_ms").as_double(), 75);
}

TEST(Json, SaysWhatWasRun) {
  demo::arrival_options asked;
  asked.seed = 18446744073709551615u;
  asked.speedup = 2;
  asked.online_load = 0.25;
  const auto generated = parsed_json(asked);
  EXPECT_EQ(generated.at("seed").to_number<std::uint64_t>(), 18446744073709551615u);
  EXPECT_FALSE(generated.contains("trace"));
  EXPECT_EQ(generated.at("window_s").to_number<double>(), 1.5);
  EXPECT_EQ(generated.at("speedup").to_number<double>(), 2);
  EXPECT_EQ(generated.at("online_load").to_number<double>(), 0.25);
  asked.trace = "a \"trace\".csv";
  EXPECT_EQ(parsed_json(asked).at("trace").as_string(), asked.trace);
  EXPECT_FALSE(parsed_json(asked).contains("seed"));
}

void collect_keys(const boost::json::object& from, std::set<std::string>& into) {
  for (const auto& each : from) {
    into.insert(std::string(each.key()));
    if (each.value().is_object()) collect_keys(each.value().as_object(), into);
  }
}

// Every `key` in the first column of the tables below "## The JSON file" is written, and every key
// that is written is there.
TEST(Json, IsDocumentedToTheLastKey) {
  std::ifstream readme(SLUICE_EXAMPLES_README);
  ASSERT_TRUE(readme) << SLUICE_EXAMPLES_README;
  std::set<std::string> documented;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("## ")) inside = line == "## The JSON file";
    if (!inside || !line.starts_with("| `")) continue;
    const std::string column = line.substr(0, line.find(" | "));
    for (std::size_t at = column.find('`'); at != std::string::npos;) {
      const std::size_t end = column.find('`', at + 1);
      ASSERT_NE(end, std::string::npos) << line;
      documented.insert(column.substr(at + 1, end - at - 1));
      at = column.find('`', end + 1);
    }
  }
  std::set<std::string> written;
  demo::arrival_options traced;
  traced.trace = "t.csv";
  for (const auto& asked : {demo::arrival_options{}, traced}) {
    collect_keys(parsed_json(asked), written);
  }
  EXPECT_THAT(documented, testing::ContainerEq(written));
}

// `--load long --online-load 0.9 --window 2` said "offline loss -4.1 %", and nothing else.
TEST(Table, ExplainsANegativeLoss) {
  demo::load_report report = sample();
  EXPECT_THAT(demo::table(report), Not(HasSubstr("offline also ran")));
  report.scheduled_offline.gpu_time = 7s;
  EXPECT_THAT(demo::table(report),
              HasSubstr("offline loss -16.7 % of the time without unfinished online work "
                        "(offline also ran while online work was unfinished);"));
}

// Symptom: "online p99 3.5 times shorter", and below it that online work gains little.
TEST(Table, ExplainsALittleGainOnlyWhereThereIsOne) {
  demo::load_report report = sample();
  EXPECT_THAT(demo::table(report), Not(HasSubstr(demo::why_it_gains_little)));
  report.scheduled.latency.p99 = 250ms;
  EXPECT_THAT(demo::table(report), HasSubstr(demo::why_it_gains_little));
  report.load = demo::load_kind::long_kernels;
  EXPECT_THAT(demo::table(report), Not(HasSubstr(demo::why_it_gains_little)));
}

TEST(Table, SaysOfHowManyCallsThePercentilesAre) {
  demo::load_report report = sample();
  report.scheduler.suspend_calls = 4;
  report.scheduler.resume_calls = 3;
  report.scheduler.resume_p99 = 10ms;
  EXPECT_THAT(demo::table(report), HasSubstr("p50/p99 of 4 suspends 0.00/0.00 ms, of 3 resumes "
                                             "0.00/10.00 ms"));
}

// Symptoms: "offline loss -4940.9 %", "p50/p99 of 0 suspends 0.00/0.00 ms", "arrival to driver call
// p50/p99 0/0 us", "online p99 0.9 times shorter".
TEST(Table, HasNoFiguresOfNothing) {
  demo::load_report report = sample();
  const std::string text = demo::table(report);
  EXPECT_THAT(text, HasSubstr("p50/p99 of 0 suspends - ms, of 0 resumes - ms"));
  EXPECT_THAT(
      text, HasSubstr("time from an online arrival p50/p99: to the driver call - us, until offline "
                      "work was off the GPU - ms"));
  EXPECT_THAT(text,
              HasSubstr("online p99 at least 9.1 times shorter, offline kernels per second -"));
  report.scheduled_offline.online_unfinished = 9900ms;
  EXPECT_THAT(demo::table(report),
              HasSubstr("offline loss not computed, because online work was unfinished for"));
  report.scheduled.latency.p99 = 600ms;
  EXPECT_THAT(demo::table(report), HasSubstr("online p99 at most 2.0 times longer"));
  report.scheduled.unfinished = 1;
  EXPECT_THAT(demo::table(report),
              HasSubstr("online p99 unknown: the scheduled run left requests unfinished"));
}

// Symptom: the table said that it had taken too long, whatever it had done.
TEST(Table, SaysThatThePolicyWasRemovedAndWhereTheReasonIs) {
  demo::load_report report = sample();
  EXPECT_THAT(demo::table(report), Not(HasSubstr("REMOVED")));
  report.scheduler.policy_ejections = 1;
  EXPECT_THAT(demo::table(report), HasSubstr("THE POLICY WAS REMOVED: see the scheduler's log"));
}

// What the device counted until the last request stands apart from what the scheduler counted in
// its whole life: the last resume comes after the last request.
TEST(Table, SaysOverWhichTimeTheDevicesCyclesWereCounted) {
  EXPECT_THAT(demo::table(sample()),
              HasSubstr("until the last request ended, the GPU spent 75.0 ms in 7 driver cycles, "
                        "61.5 ms of this while online queues had work"));
}

TEST(Table, MarksLowerBoundsAndOnlyThose) {
  const std::string text = demo::table(sample());
  EXPECT_THAT(text, HasSubstr(">=300.0"));
  EXPECT_THAT(text, HasSubstr("7 of 100 unfinished"));
  EXPECT_THAT(text, Not(HasSubstr(">=33.0")));
  EXPECT_THAT(text, HasSubstr("offline loss 25.0 %"));
}

TEST(LoadReport, NamesABrokenPromise) {
  demo::load_report report = sample();
  EXPECT_EQ(report.broken_promise(), "");
  report.offline_kernels.lost = 1;
  EXPECT_THAT(report.broken_promise(), HasSubstr("1 lost"));
  report = sample();
  report.still_suspended = 2;
  EXPECT_THAT(report.broken_promise(), HasSubstr("still suspended"));
}

TEST(WireReport, SurvivesTheWayThroughALine) {
  demo::online_report sent;
  sent.finished = {5ms, 6ms};
  sent.unfinished = {7s};
  sent.arrivals = {1ms, 3ms, 2ms};
  sent.wake_up.p99 = 90us;
  sent.turnaround = 150us;
  sent.kernels.repeated = 3;
  sent.scheduler.emplace();
  sent.scheduler->settings = "a, \"b\"";
  sent.scheduler->suspends = 4;
  sent.scheduler->resume_p99 = 10ms;
  sent.scheduler->resume_calls = 5;
  const std::string line = demo::to_line(sent);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto heard = demo::parse_online_report(line);
  ASSERT_TRUE(heard.has_value()) << heard.error().message;
  EXPECT_EQ(heard->finished, sent.finished);
  EXPECT_EQ(heard->unfinished, sent.unfinished);
  EXPECT_EQ(heard->arrivals, sent.arrivals);
  EXPECT_EQ(heard->wake_up.p99, 90us);
  EXPECT_EQ(heard->turnaround, 150us);
  EXPECT_EQ(heard->kernels.repeated, 3u);
  ASSERT_TRUE(heard->scheduler.has_value());
  EXPECT_EQ(heard->scheduler->settings, "a, \"b\"");
  EXPECT_EQ(heard->scheduler->suspends, 4u);
  EXPECT_EQ(heard->scheduler->resume_p99, 10ms);
  EXPECT_EQ(heard->scheduler->resume_calls, 5u);
}

TEST(WireReport, WithoutASchedulerHasNone) {
  const auto heard = demo::parse_online_report(demo::to_line(demo::online_report{}));
  ASSERT_TRUE(heard.has_value()) << heard.error().message;
  EXPECT_FALSE(heard->scheduler.has_value());
}

TEST(WireReport, ThatIsCutShortIsAnError) {
  EXPECT_TRUE(demo::parse_verdict("{\"completed\":1").has_error());
  EXPECT_TRUE(demo::parse_verdict("{\"completed\":1}").has_error());
}

TEST(DeviceStats, AreReadFromTheDevicesText) {
  const auto seen = demo::parse_device_stats(
      R"({"now_ns":5,"profile":"mi300x","lateness_ns":{"count":9,"p50":1000,"p99":2000,"max":3000},)"
      R"("gpus":[{"gpu_id":7,"cycles":3,"cycle_ns":15},{"gpu_id":8,"cycles":1,"cycle_ns":5}],)"
      R"("processes":[{"pid":41,"alive":false,"queues":0,"suspended_queues":1,"kernels_started":2,)"
      R"("kernels_completed":2,"busy_ns":10,"unfinished_ns":11,"disturbed_ns":12},)"
      R"({"pid":42,"alive":true,"queues":2,"suspended_queues":2,"kernels_started":3,)"
      R"("kernels_completed":3,"busy_ns":20,"unfinished_ns":21,"disturbed_ns":22}]})");
  ASSERT_TRUE(seen.has_value()) << seen.error().message;
  EXPECT_EQ(seen->profile, "mi300x");
  EXPECT_EQ(seen->lateness_p99, 2us);
  EXPECT_EQ(seen->driver_cycles, 4u);
  EXPECT_EQ(seen->driver_cycle_time, 20ns);
  EXPECT_EQ(seen->of(42).busy, 20ns);
  EXPECT_EQ(seen->of(41).unfinished, 11ns);
  EXPECT_EQ(seen->of(43).kernels_completed, 0u);
  EXPECT_EQ(seen->suspended_queues(), 2u);
}

TEST(DeviceStats, WithoutAFieldAreAnError) {
  EXPECT_TRUE(demo::parse_device_stats("{\"now_ns\":5}").has_error());
  EXPECT_TRUE(demo::parse_device_stats("nonsense").has_error());
}

}  // namespace
}  // namespace sluice::demo_tests::report_test
