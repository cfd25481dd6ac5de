#include "demo_report.hpp"

#include <chrono>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Json, HoldsTheSchema) {
  const auto parsed = boost::json::parse(demo::json(sample(), "a \"quoted\" name")).as_object();
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
  EXPECT_EQ(runs.at("unscheduled").at("unfinished").as_int64(), 7);
  EXPECT_DOUBLE_EQ(runs.at("scheduled").at("offline_kernels_per_s").as_double(), 5);
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

// What the device counted until the last request stands apart from what the scheduler counted in
// its whole life: the last resume comes after the last request.
TEST(Table, SaysOverWhichTimeTheDevicesCyclesWereCounted) {
  EXPECT_THAT(
      demo::table(sample()),
      HasSubstr("until the last request was done the GPU spent 75.0 ms in 7 runlist cycles, "
                "61.5 ms of them while online queues had work"));
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
  sent.wake_up.p99 = 90us;
  sent.kernels.repeated = 3;
  sent.scheduler.emplace();
  sent.scheduler->settings = "a, \"b\"";
  sent.scheduler->suspends = 4;
  sent.scheduler->resume_p99 = 10ms;
  const std::string line = demo::to_line(sent);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto heard = demo::parse_online_report(line);
  ASSERT_TRUE(heard.has_value()) << heard.error().message;
  EXPECT_EQ(heard->finished, sent.finished);
  EXPECT_EQ(heard->unfinished, sent.unfinished);
  EXPECT_EQ(heard->wake_up.p99, 90us);
  EXPECT_EQ(heard->kernels.repeated, 3u);
  ASSERT_TRUE(heard->scheduler.has_value());
  EXPECT_EQ(heard->scheduler->settings, "a, \"b\"");
  EXPECT_EQ(heard->scheduler->suspends, 4u);
  EXPECT_EQ(heard->scheduler->resume_p99, 10ms);
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
