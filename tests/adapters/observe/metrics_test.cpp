#include "sluice/observe/metrics.hpp"

#include "entries.hpp"
#include "test_seed.hpp"
#include "time_buckets.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace sluice::observe::metrics_test {
namespace {

using namespace test;

struct scrape {
  std::map<std::string, std::string> types;  ///< By the name of the family, as the text has it.
  std::map<std::string, double> values;      ///< By the name with its labels.
};

/// Reads a page as strictly as its form is written: each family's comments before its samples, in
/// one place, and every sample of the type that was said.
scrape read_page(const std::string& page, metrics_form form) {
  scrape made;
  const bool open = form == metrics_form::openmetrics;
  static const std::regex comment{"# (HELP|TYPE) ([a-z_]+) (.+)"};
  static const std::regex sample{
      R"re(([a-z_]+)(\{[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*\})? ([0-9.e+-]+))re"};
  std::istringstream lines{page};
  std::string family;
  std::string type;
  bool ended = false;
  double below = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(ended) << "text after the end";
    std::smatch found;
    if (open && line == "# EOF") {
      ended = true;
    } else if (std::regex_match(line, found, comment)) {
      if (found[1] == "HELP") {
        family = found[2];
        EXPECT_FALSE(made.types.contains(family)) << family << " twice";
      } else {
        EXPECT_EQ(found[2], family);
        type = found[3];
        made.types[family] = type;
      }
    } else if (std::regex_match(line, found, sample)) {
      const std::string name = found[1];
      const std::string key = name + found[2].str();
      const double value = std::stod(found[6]);
      EXPECT_TRUE(made.values.try_emplace(key, value).second) << key << " twice";
      EXPECT_TRUE(name.starts_with(family)) << name << " is no sample of " << family;
      const std::string suffix = name.substr(std::min(family.size(), name.size()));
      if (type == "counter") {
        EXPECT_EQ(suffix, open ? "_total" : "") << key;
        EXPECT_TRUE(name.ends_with("_total"));
        EXPECT_GE(value, 0) << key;
      } else if (type == "histogram") {
        EXPECT_TRUE(suffix == "_bucket" || suffix == "_sum" || suffix == "_count") << key;
        const bool bucket = suffix == "_bucket";
        if (bucket && key.find(R"(le="1e-05")") != key.npos) below = 0;
        if (bucket) {
          EXPECT_GE(value, below) << key << ": buckets are cumulative";
        }
        if (bucket) below = value;
        if (suffix == "_count") {
          EXPECT_EQ(value, below) << key;
        }
      } else if (type == "info") {
        EXPECT_EQ(suffix, "_info");
      } else {
        EXPECT_EQ(type, "gauge");
        EXPECT_EQ(suffix, "") << key;
      }
    } else {
      ADD_FAILURE() << "no line of this form: " << line;
    }
  }
  EXPECT_EQ(ended, open);
  return made;
}

picture some_picture() {
  picture seen;
  seen.policy = "pointer_polling";
  seen.backend = "agent";
  seen.gpus.push_back({.id = gpu_id{7}, .online_in_flight = 2, .busy = true, .not_off = 1});
  seen.groups.push_back({.id = group_id{1}, .what = role::offline});
  seen.groups[0].processes.push_back(
      {.id = process_id{1},
       .what = role::offline,
       .queues = {{.gpu = gpu_id{7}, .compute = 4, .others = 1, .suspended = 2, .in_doubt = 1}}});
  return seen;
}

/// Each kind of value once.
struct filled {
  metrics counted{words};
  statistics sums;
  picture seen = some_picture();

  filled() {
    counted.hear(of_process(journal_kind::process, 0s, 1));
    counted.hear(of_process(journal_kind::process_off, 1s, 1));
    counted.hear(of_gpu(journal_kind::busy, 1s));
    counted.hear(done(1s, 1, command_kind::suspend, 1, 1s, 1s + 3ms));
    auto off = of_gpu(journal_kind::off, 1s);
    off.length = 4ms;
    counted.hear(off);
    auto forced = of_process(journal_kind::forced, 2s, 1);
    forced.why = journal_rule::max_suspend;
    counted.hear(forced);
    counted.hear(of_process(journal_kind::let_go, 2s, 1));
    counted.hear(of_gpu(journal_kind::breaker_open, 2s));
    counted.hear(on(3s, 1, 2s));
    counted.hear(of_process(journal_kind::process_off, 4s, 1));
    counted.missed(5);
    sums.turns = 12;
    sums.turn.record(20us);
    sums.decision.record(30us);
    sums.span_length[0].record(15ms);
    sums.forced_run_ns = 1'500'000'000;
  }
  scrape page(metrics_form form = metrics_form::prometheus) {
    const metrics_moment moment{
        .counted = &sums, .seen = &seen, .owns = true, .enforces = true, .simulated = true};
    return read_page(counted.text(form, moment, start + 10s), form);
  }
};

TEST(Metrics, SayWhatHappened) {
  filled all;
  auto values = all.page().values;
  const auto is = [&](const std::string& name, double value) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_DOUBLE_EQ(values[name], value) << name;
  };
  is(R"(sluice_build_info{version=")" SLUICE_VERSION R"("})", 1);
  is("sluice_owns_node", 1);
  is("sluice_paused", 0);
  is("sluice_gangs_disconnected", 0);
  is(R"(sluice_scheduler_info{policy="pointer_polling",backend="agent",simulated="true"})", 1);
  is(R"(sluice_queues{gpu="7",role="offline",state="running"})", 2);
  is(R"(sluice_queues{gpu="7",role="offline",state="suspended"})", 2);
  is(R"(sluice_queues{gpu="7",role="offline",state="in_doubt"})", 1);
  is(R"(sluice_online_in_flight{gpu="7"})", 2);
  is(R"(sluice_driver_call_seconds_bucket{gpu="7",command="suspend",le="0.0025"})", 0);
  is(R"(sluice_driver_call_seconds_bucket{gpu="7",command="suspend",le="0.005"})", 1);
  is(R"(sluice_driver_call_seconds_sum{gpu="7",command="suspend"})", 0.003);
  is(R"(sluice_queue_commands_total{gpu="7",command="suspend"})", 2);
  is(R"(sluice_arrival_to_off_seconds_sum{gpu="7"})", 0.004);
  is(R"(sluice_online_busy_seconds_total{gpu="7"})", 9);
  is(R"(sluice_breaker_opens_total{gpu="7",cause="preemption_failed"})", 1);
  is(R"(sluice_group_processes{group="slurm:42"})", 1);
  is(R"(sluice_group_suspensions_total{group="slurm:42"})", 2);
  // Of the second one, which goes on, 6 s are over.
  is(R"(sluice_group_suspended_seconds_total{group="slurm:42"})", 8);
  is("sluice_suspension_seconds_count", 1);
  is(R"(sluice_processes{role="offline"})", 1);
  is(R"(sluice_forced_runs_total{why="max_suspend"})", 1);
  is(R"(sluice_releases_total{why="policy"})", 1);
  is("sluice_turns_total", 12);
  is("sluice_forced_run_seconds_total", 1.5);
  is(R"(sluice_turn_seconds_bucket{le="1e-05"})", 0);
  is(R"(sluice_turn_seconds_bucket{le="2.5e-05"})", 1);
  is(R"(sluice_span_seconds_count{span="request"})", 1);
  is("sluice_journal_lost_total", 5);
}

TEST(Metrics, CountSpansThatTakeLongerThanTheTarget) {
  filled all;
  const auto ended = [](span_kind kind, duration length) {
    journal_entry made = entry(journal_kind::span_end, 5s);
    made.span = kind;
    made.length = length;
    return made;
  };
  all.counted.hear(ended(span_kind::request, 1h));  // before there is a target
  all.counted.aim(targets_in("slo:offline=0,request.p99=50ms,resume_cost=10ms"));
  all.counted.hear(ended(span_kind::request, 50ms));
  all.counted.hear(ended(span_kind::request, 51ms));
  all.counted.hear(ended(span_kind::ttft, 1h));
  auto values = all.page().values;
  EXPECT_EQ(values.at(R"(sluice_late_spans_total{span="request"})"), 1);
  EXPECT_EQ(values.at(R"(sluice_late_spans_total{span="ttft"})"), 0);
  EXPECT_EQ(values.at(R"(sluice_span_target_seconds{span="request"})"), 0.05);
  EXPECT_FALSE(values.contains(R"(sluice_span_target_seconds{span="ttft"})"));
}

TEST(SpanTargets, AreThoseOfThePolicysText) {
  EXPECT_EQ(targets_in("slo:request.p99=50ms"), (span_targets{50ms, 0ms, 0ms}));
  EXPECT_EQ(targets_in("slo:itl.p99=60ms,offline=0.1,ttft.p99=400ms"),
            (span_targets{0ms, 400ms, 60ms}));
  EXPECT_EQ(targets_in("shadow:of=slo,ttft.p99=1s"), (span_targets{0ms, 1s, 0ms}));
  EXPECT_EQ(targets_in("mine:another_request.p99=50ms"), span_targets{});
  EXPECT_EQ(targets_in("slo:request.p99=soon"), span_targets{});
  EXPECT_EQ(targets_in(""), span_targets{});
}

TEST(Metrics, HaveEachCounterOfTheScheduler) {
  filled all;
  std::uint64_t number = 0;
  for (const counter_row& each : counter_rows)
    if (each.unit.empty()) all.sums.*each.of = ++number;
  const scrape page = all.page();
  number = 0;
  for (const counter_row& each : counter_rows) {
    if (each.unit.empty()) ++number;
    const std::string family = "sluice_" + std::string(each.metric_name());
    const std::string total = family + "_total";
    const bool is_counter = each.kind == counter_kind::counter;
    // Those with labels may be counted in another way, such as by a histogram.
    ASSERT_TRUE(page.types.contains(family) || page.types.contains(total)) << family;
    if (each.has_labels || !each.unit.empty()) continue;
    ASSERT_EQ(page.types.contains(total), is_counter) << family;
    EXPECT_EQ(page.values.at(is_counter ? total : family), number) << family;
  }
  for (const histogram_row& each : histogram_rows) {
    const std::string family = "sluice_" + std::string(each.metric) + "_seconds";
    EXPECT_TRUE(page.types.contains(family)) << family;
  }
}

// increase() of Prometheus sees no first value: each counter is there before it counts.
TEST(Metrics, BeginEachCounterAtZero) {
  const metrics none;
  picture seen;
  seen.gpus.push_back({.id = gpu_id{7}});
  statistics sums;
  const metrics_moment moment{.counted = &sums, .seen = &seen};
  const auto values =
      read_page(none.text(metrics_form::prometheus, moment, start), metrics_form::prometheus)
          .values;
  for (const char* const each :
       {R"(sluice_forced_runs_total{why="max_suspend"})",
        R"(sluice_forced_runs_total{why="offline_floor"})",
        R"(sluice_releases_total{why="policy"})", R"(sluice_releases_total{why="refused"})",
        R"(sluice_breaker_opens_total{gpu="7",cause="reset"})",
        R"(sluice_queue_failures_total{gpu="7",outcome="failed"})",
        R"(sluice_late_spans_total{span="request"})",
        R"(sluice_driver_call_errors_total{gpu="7",command="suspend"})"}) {
    ASSERT_TRUE(values.contains(each)) << each;
    EXPECT_EQ(values.at(each), 0) << each;
  }
  EXPECT_FALSE(values.contains(R"(sluice_forced_runs_total{why="policy"})")) << "never happens";
}

// Symptom: sluice, sluice-agent and every monitor were groups that use a GPU.
TEST(Metrics, LeaveOutWhoHasNoQueueAndNoRole) {
  metrics counted([](pid_t pid, std::uint64_t) {
    return process_words{.group = pid == 1 ? "sluice-agent" : "interactive"};
  });
  picture seen;
  seen.groups.resize(1);
  for (unsigned id = 1; id <= 2; ++id) {
    auto one = of_process(journal_kind::process, 0s, id);
    one.what = role::unmatched;
    counted.hear(one);
    seen.groups[0].processes.push_back({.id = process_id{id}});
  }
  seen.groups[0].processes[1].queues.push_back({.gpu = gpu_id{7}, .compute = 1});
  const auto values = read_page(counted.text(metrics_form::prometheus, {.seen = &seen}, start + 1s),
                                metrics_form::prometheus)
                          .values;
  EXPECT_EQ(values.count(R"(sluice_group_processes{group="sluice-agent"})"), 0U);
  EXPECT_EQ(values.at(R"(sluice_group_processes{group="interactive"})"), 1);
  EXPECT_EQ(values.at(R"(sluice_processes{role="unmatched"})"), 1);
}

TEST(Metrics, TakeTheLengthOfASuspensionWhoseBeginWasLost) {
  metrics counted{words};
  counted.hear(of_process(journal_kind::process, 0s, 1));
  counted.hear(on(3s, 1, 2s));
  auto values =
      read_page(counted.text(metrics_form::prometheus, {}, start + 10s), metrics_form::prometheus)
          .values;
  EXPECT_EQ(values[R"(sluice_group_suspensions_total{group="slurm:42"})"], 1);
  EXPECT_EQ(values[R"(sluice_group_suspended_seconds_total{group="slurm:42"})"], 2);
  EXPECT_EQ(values["sluice_suspension_seconds_sum"], 2);
  EXPECT_EQ(values[R"(sluice_group_holds_total{group="slurm:42"})"], 1);
  EXPECT_EQ(values[R"(sluice_group_held_seconds_total{group="slurm:42"})"], 2);
}

// The processes of a pod are suspended together: what its user wants to know is how often and how
// long the pod was.
TEST(Metrics, CountOverlappingSuspensionsOfAGroupOnce) {
  metrics counted{words};
  for (unsigned id = 1; id <= 2; ++id) counted.hear(of_process(journal_kind::process, 0s, id));
  counted.hear(of_process(journal_kind::process_off, 1s, 1));
  counted.hear(of_process(journal_kind::process_off, 2s, 2));
  counted.hear(on(3s, 1, 2s));
  counted.hear(on(4s, 2, 2s));
  counted.hear(of_process(journal_kind::process_off, 6s, 2));
  const auto at = [&](duration when, const std::string& what) {
    return read_page(counted.text(metrics_form::prometheus, {}, start + when),
                     metrics_form::prometheus)
        .values.at("sluice_group_" + what + R"(_total{group="slurm:42"})");
  };
  EXPECT_EQ(at(8s, "suspensions"), 3);
  EXPECT_EQ(at(8s, "suspended_seconds"), 6);
  EXPECT_EQ(at(8s, "holds"), 2);
  EXPECT_EQ(at(8s, "held_seconds"), 5) << "1 s to 4 s, and 6 s to now";
  counted.hear(of_process(journal_kind::process_gone, 9s, 2));
  EXPECT_EQ(at(20s, "held_seconds"), 6) << "it ended while it was suspended";
  EXPECT_EQ(at(20s, "holds"), 2);
}

TEST(Metrics, GoByAPictureWhereEntriesWereLost) {
  metrics counted{words};
  const auto at = [&](duration when, const std::string& name) {
    return read_page(counted.text(metrics_form::prometheus, {}, start + when),
                     metrics_form::prometheus)
        .values[name];
  };
  const std::string processes = R"(sluice_group_processes{group="slurm:42"})";
  const std::string suspended = R"(sluice_group_suspended_seconds_total{group="slurm:42"})";
  const std::string busy = R"(sluice_online_busy_seconds_total{gpu="7"})";
  for (unsigned id = 1; id <= 2; ++id) counted.hear(of_process(journal_kind::process, 0s, id));
  counted.hear(of_process(journal_kind::process_off, 5s, 2));  // and on at 6 s
  counted.hear(of_gpu(journal_kind::busy, 5s));
  EXPECT_EQ(at(10s, suspended), 5);
  picture now{.at = start + 10s};
  now.gpus.push_back({.id = gpu_id{7}});
  now.groups.push_back({.id = group_id{2}});
  process_picture two{.id = process_id{2}, .pid = 2, .start_time = 2, .what = role::offline};
  two.off_count = 1;
  two.off_total = 1s;
  now.groups[0].processes = {two};
  counted.mend(now);
  EXPECT_EQ(at(20s, processes), 1);
  EXPECT_EQ(at(20s, suspended), 5) << "a counter does not go back";
  EXPECT_EQ(at(20s, "sluice_suspension_seconds_sum"), 1);
  EXPECT_EQ(at(20s, busy), 5);
  counted.hear(of_process(journal_kind::process_off, 20s, 2));
  counted.hear(on(29s, 2, 9s));
  EXPECT_EQ(at(30s, suspended), 10) << "1 s and 9 s";
  EXPECT_EQ(at(30s, R"(sluice_group_suspensions_total{group="slurm:42"})"), 2);
  EXPECT_EQ(at(30s, R"(sluice_group_held_seconds_total{group="slurm:42"})"), 10);
  EXPECT_EQ(at(30s, R"(sluice_group_holds_total{group="slurm:42"})"), 2);
}

TEST(Metrics, AreTheSameInBothForms) {
  filled all;
  const scrape one = all.page();
  const scrape other = all.page(metrics_form::openmetrics);
  EXPECT_EQ(one.values, other.values);
  EXPECT_EQ(one.types.size(), other.types.size());
  EXPECT_EQ(other.types.at("sluice_scheduler"), "info");
}

TEST(Metrics, NeverNamePids) {
  filled all;
  const metrics_moment moment{.counted = &all.sums, .seen = &all.seen};
  EXPECT_EQ(all.counted.text(metrics_form::prometheus, moment, start).find("pid"),
            std::string::npos);
}

TEST(Metrics, AreAPageBeforeAnythingIsKnown) {
  const metrics none;
  for (const auto form : {metrics_form::prometheus, metrics_form::openmetrics}) {
    const auto page = read_page(none.text(form, {}, start), form);
    EXPECT_EQ(page.values.at("sluice_owns_node"), 0);
    EXPECT_FALSE(page.types.contains("sluice_turns_total"));
  }
}

// However many jobs come: a bounded number of them is named, and those that are over go.
TEST(Metrics, NameABoundedNumberOfGroups) {
  metrics many([](pid_t pid, std::uint64_t) {
    return process_words{.group = "job\\\"" + std::to_string(pid)};
  });
  constexpr unsigned all = 200;
  for (unsigned i = 1; i <= all; ++i) {
    many.hear(of_process(journal_kind::process, 0s, i));
    many.hear(of_process(journal_kind::process_off, 0s, i));
    many.hear(on(1s, i, 1s));
  }
  const auto groups = [&](time_point now) {
    double suspended = 0;
    std::size_t count = 0;
    for (const auto& [name, value] :
         read_page(many.text(metrics_form::prometheus, {}, now), metrics_form::prometheus).values)
      if (name.starts_with("sluice_group_suspended_seconds_total{")) {
        suspended += value;
        ++count;
      }
    return std::pair{count, suspended};
  };
  EXPECT_EQ(groups(start + 1s), (std::pair<std::size_t, double>{metrics::most_groups + 1, all}));
  for (unsigned i = 1; i <= all; ++i) many.hear(of_process(journal_kind::process_gone, 2s, i));
  many.tick(start + metrics::forget_after);
  EXPECT_EQ(groups(start + 1s).first, metrics::most_groups + 1);
  many.tick(start + 3s + metrics::forget_after);
  EXPECT_EQ(groups(start + 1s).first, 0U);
}

TEST(Metrics, AreWellFormedAndNeverGoBackWhateverComes) {
  const sluice::test::random_seed seed;
  metrics some(words);
  random_entries entries(seed.value());
  std::map<std::string, double> before;
  for (int i = 0; i < 3000; ++i) {
    const journal_entry next = entries.next();
    some.hear(next);
    if (entries.below(500) == 0) some.begin_anew(next.at);
    some.tick(next.at);
    if (i % 100 != 0) continue;
    const auto page =
        read_page(some.text(metrics_form::openmetrics, {}, next.at), metrics_form::openmetrics);
    for (const auto& [name, value] : before)
      if (name.find("_total") != name.npos || name.find("_bucket") != name.npos) {
        EXPECT_GE(page.values.at(name), value - 1e-9) << name;
      }
    before = page.values;
  }
}

TEST(TimeBuckets, HaveTheirBoundsInWords) {
  ASSERT_EQ(bounds.size(), bound_words.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const double said = std::stod(std::string{bound_words[i]});
    EXPECT_DOUBLE_EQ(said, std::chrono::duration<double>(bounds[i]).count());
    if (i > 0) {
      EXPECT_LT(bounds[i - 1], bounds[i]);
    }
  }
}

/// Every text of a JSON document whose key is `expr`.
void collect(const boost::json::value& in, std::vector<std::string>& into) {
  if (const auto* const object = in.if_object()) {
    for (const auto& [key, value] : *object) {
      if (key == "expr") into.emplace_back(value.as_string());
      collect(value, into);
    }
  } else if (const auto* const array = in.if_array()) {
    for (const auto& each : *array) collect(each, into);
  }
}

std::string content_of(const char* file) {
  std::ostringstream text;
  text << std::ifstream{file}.rdbuf();
  return text.str();
}

/// The metrics that a text names.
std::set<std::string> named_in(const std::string& text) {
  static const std::regex word{"sluice_[a-z_]+"};
  std::set<std::string> names;
  for (auto at = std::sregex_iterator{text.begin(), text.end(), word}; at != std::sregex_iterator{};
       ++at)
    names.insert(at->str());
  return names;
}

/// Those on a page; of a histogram all that is made of it.
std::set<std::string> names_there() {
  filled all;
  std::set<std::string> names;
  const scrape page = all.page();
  for (const auto& [name, value] : page.values) names.insert(name.substr(0, name.find('{')));
  for (const auto& [name, type] : page.types) names.insert(name);
  return names;
}

TEST(Dashboard, AsksForMetricsThatThereAre) {
  std::vector<std::string> expressions;
  collect(boost::json::parse(content_of(SLUICE_DASHBOARD)), expressions);
  EXPECT_GT(expressions.size(), 20U);
  const auto there = names_there();
  for (const std::string& each : expressions) {
    EXPECT_FALSE(named_in(each).empty()) << each;
    for (const std::string& name : named_in(each))
      EXPECT_TRUE(there.contains(name)) << "no metric " << name;
  }
}

// What the page for operators says to watch is exported under that name, and has its alert.
TEST(Alerts, AreForWhatOperatorsAreToldToWatch) {
  const auto there = names_there();
  const std::string operating = content_of(SLUICE_OPERATING);
  const auto from = operating.find("| metric | of `stats()` | alert |");
  ASSERT_NE(from, operating.npos);
  const std::string table = operating.substr(from, operating.find("\n\n", from) - from);
  std::string alerts;
  std::istringstream lines{content_of(SLUICE_ALERTS)};
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" expr: ") == line.npos) continue;
    alerts += line + "\n";
    ++count;
  }
  EXPECT_GT(count, 10U);
  const auto asked = named_in(alerts);
  for (const std::string& name : asked) EXPECT_TRUE(there.contains(name)) << "no metric " << name;
  EXPECT_GT(named_in(table).size(), 10U);
  for (const std::string& name : named_in(table)) {
    EXPECT_TRUE(there.contains(name)) << "no metric " << name;
    const bool has_alert = asked.contains(name) || asked.contains(name + "_bucket");
    // How often, and for how long: one of them is enough.
    EXPECT_TRUE(has_alert || name == "sluice_forced_runs_total") << "no alert for " << name;
  }
}

}  // namespace
}  // namespace sluice::observe::metrics_test
