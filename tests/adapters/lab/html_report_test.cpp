#include "html_report.hpp"

#include "scenarios.hpp"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::lab::html_report_test {
namespace {

using namespace test;
using page::state;
using ::testing::HasSubstr;

study_spec two_processes() {
  study_spec spec;
  spec.profiles = {{"mi300x", machine(2)}};
  spec.sources = {{"poisson", [](std::uint64_t seed) { return poisson(seed, 3s, 20); }}};
  spec.loads = {0.3};
  spec.offline = {{"long", {.shape = shape_of(load_kind::long_kernels), .processes = 2}}};
  spec.policies = {timeslice(20ms)};
  spec.policies[0].name = "<b>mine</b>";
  spec.common.serving.drain_limit = 1min;
  spec.seeds = 2;
  spec.threads = 2;
  spec.keep_requests = spec.keep_decisions = true;
  return spec;
}

TEST(LabHtmlReport, HasEveryoneTheBoundAndTheCommand) {
  const study_spec spec = two_processes();
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value()) << all.error().message;
  const std::string text = html_report(spec, *all, "sluice lab --policy '<b>mine</b>'");
  EXPECT_THAT(text,
              HasSubstr("<code>sluice lab --policy &#39;&lt;b&gt;mine&lt;/b&gt;&#39;</code>"));
  for (const char* const name : {"online alone", "no scheduler", "SIGSTOP", "static split 65/35",
                                 "suspend at once", "&lt;b&gt;mine&lt;/b&gt;"}) {
    EXPECT_THAT(text, HasSubstr(std::string(name) + "</th>"));
  }
  EXPECT_THAT(text, HasSubstr("class=\"bound\""));
  EXPECT_THAT(text, HasSubstr("Simulated."));
  EXPECT_EQ(text, html_report(spec, *all, "sluice lab --policy '<b>mine</b>'"));
}

TEST(LabHtmlReport, TellsOfEachQueueWhatTheDriverDidToIt) {
  const study_spec spec = two_processes();
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value()) << all.error().message;
  const page::document made = page_of(spec, *all, "");
  ASSERT_EQ(made.sections.size(), 1u);
  const page::timeline& events = *made.sections[0].events;
  EXPECT_GT(events.end, events.begin);
  EXPECT_LE(events.end - events.begin, 10s);
  const page::timeline::track& mine = events.tracks.back();
  ASSERT_EQ(made.actors[mine.who].name, "<b>mine</b>");
  EXPECT_FALSE(made.actors[mine.who].reference);
  const run_result& run = all->settings[0].cells.back().runs[0];
  // Online, two processes, driver calls; twice.
  ASSERT_EQ(mine.lanes.size(), 8u);
  EXPECT_EQ(mine.lanes[0].name, "GPU 0: online");
  EXPECT_EQ(mine.lanes[6].name, "GPU 1: offline 2");

  std::map<std::uint32_t, duration> suspending;
  for (const auto& each : run.decisions) {
    if (each.kind == command_kind::suspend) {
      suspending[each.process] += each.finished - each.started;
    }
  }
  ASSERT_EQ(suspending.size(), 4u);
  const std::map<std::size_t, std::uint32_t> process_of{{1, 0}, {2, 2}, {5, 1}, {6, 3}};
  for (const auto& [lane, process] : process_of) {
    duration sum{};
    const auto& intervals = mine.lanes[lane].intervals;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      EXPECT_LT(intervals[i].from, intervals[i].to);
      if (i > 0) {
        EXPECT_EQ(intervals[i].from, intervals[i - 1].to) << "a gap, or two things at once";
        EXPECT_NE(intervals[i].what, intervals[i - 1].what);
      }
      if (intervals[i].what == state::suspending) sum += intervals[i].to - intervals[i].from;
      if (intervals[i].what == state::suspended) {
        EXPECT_EQ(intervals[i - 1].what, state::suspending);
      }
    }
    EXPECT_EQ(sum, suspending[process]) << "lane " << lane;
  }
  // Requests come and go.
  std::size_t arrived = 0;
  for (const std::size_t lane : {0u, 4u}) {
    arrived += mine.lanes[lane].instants.size();
    EXPECT_EQ(mine.lanes[lane].levels.back().value, 0u);
  }
  EXPECT_EQ(arrived, run.requests.size());
}

TEST(LabHtmlReport, ShortensTheTimelineWhereMuchHappens) {
  study_spec spec = two_processes();
  spec.seeds = 1;
  spec.profiles = {{"mi300x", machine(1)}};
  spec.sources = {{"dense", [](std::uint64_t seed) { return poisson(seed, 1s, 4000); }}};
  spec.loads = {0.1};
  spec.policies.clear();
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value()) << all.error().message;
  const page::document made = page_of(spec, *all, "");
  EXPECT_LT(made.sections[0].events->end - made.sections[0].events->begin, 1s);
  EXPECT_LT(page::render(made).size(), 1500000u);
}

}  // namespace
}  // namespace sluice::lab::html_report_test
