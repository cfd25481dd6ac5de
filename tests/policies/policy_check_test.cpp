#include "sluice/testing/policy_check.hpp"

#include "test_seed.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/policies/all.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/shadow.hpp"
#include "sluice/policies/slo.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice::policy_check_test {
namespace {

using namespace std::chrono_literals;
using testing::check_options;
using testing::check_policy;
using testing::defect;
using ::testing::HasSubstr;
using testing::policy_maker;
using testing::replay_sequence;

/// How many sequences a policy is checked with.
std::size_t sequences() {
  const std::size_t number = test::long_tests() ? 100'000 : 10'000;
#if defined(SLUICE_SANITIZED)
  return number / 10;  // A sequence takes twenty times as long.
#else
  return number;
#endif
}

policy_maker maker_of(const policy_kind& kind, parameters values = {}) {
  EXPECT_EQ(check_parameters(kind.schema, values), "");
  return [kind, values] {
    std::string problem;
    auto made = kind.make(values, problem);
    if (made == nullptr) throw std::runtime_error(problem);
    return made;
  };
}

/// What a policy does not promise, as its header says.
check_options options_for(const std::string& name) {
  check_options options{.sequences = sequences()};
  if (name == "priority") options.patience = 0s;
  return options;
}

// Every policy -----------------------------------------------------------------------------------

class EveryPolicy : public ::testing::TestWithParam<policy_kind> {};

/// With what it cannot do without.
policy_maker plain(const policy_kind& kind) {
  if (kind.wrap != nullptr) {
    return [kind, other = maker_of(fixed_timeslice_kind())] { return kind.wrap(other()); };
  }
  parameters values;
  if (kind.name == "slo") values.set("request.p99", 100ms);
  return maker_of(kind, std::move(values));
}

TEST_P(EveryPolicy, KeepsWhatHoldsForAllOfThem) {
  const auto failure = check_policy(plain(GetParam()), options_for(GetParam().name));
  EXPECT_FALSE(failure) << failure->text();
}

TEST_P(EveryPolicy, SaysWhatItIsInOneLine) {
  EXPECT_FALSE(GetParam().summary.empty());
  EXPECT_EQ(GetParam().summary.find('\n'), std::string::npos);
  for (const parameter& one : GetParam().schema) EXPECT_FALSE(one.help.empty()) << one.key;
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, EveryPolicy, ::testing::ValuesIn(all_policies()),
                         [](const auto& each) { return each.param.name; });

/// Other values than the defaults, where they lead elsewhere.
TEST(PolicyCheck, FindsNothingWithOtherParametersEither) {
  struct choice {
    std::string name;
    std::string key;
    parameter_value value;
  };
  for (const auto& one :
       std::vector<choice>{{"fixed_timeslice", "release", std::string("slice_end")},
                           {"fixed_timeslice", "slice_of.2", duration(300ms)},
                           {"fixed_timeslice", "weight_of.client-*", 0.0},
                           {"hqd_reservation", "offline_percent", std::int64_t{1}},
                           {"hqd_reservation", "slots", std::int64_t{3}},
                           {"hqd_reservation", "rotation", duration(30ms)},
                           {"priority", "equal", std::string("turns")},
                           {"priority", "linger", duration(0ms)},
                           {"fair_share", "weight.0", 3.0},
                           {"fair_share", "linger", duration(300ms)},
                           {"fair_share", "quantum", duration(30ms)},
                           {"deadline", "otherwise", duration(1ms)},
                           {"deadline", "budget.0", duration(5s)},
                           {"deadline", "offline_quantum", duration(50us)},
                           {"slo", "offline", 0.3},
                           {"slo", "request.p99", duration(10min)}}) {
    const auto kinds = all_policies();
    const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const auto& each) { return each.name == one.name; });
    ASSERT_NE(kind, kinds.end()) << one.name;
    parameters values;
    if (one.name == "slo") values.set("request.p99", 100ms);
    values.set(one.key, one.value);
    auto options = options_for(one.name);
    options.sequences /= 20;
    const auto failure = check_policy(maker_of(*kind, values), options);
    EXPECT_FALSE(failure) << one.name << ", " << one.key << ": " << failure->text();
  }
}

policy_maker slo_with_share() {
  parameters values;
  values.set("request.p99", 100ms);
  values.set("offline", 0.3);
  return maker_of(slo_kind(), std::move(values));
}

policy_maker shadow_of(policy_maker other) {
  return [kind = shadow_kind(), other = std::move(other)] { return kind.wrap(other()); };
}

TEST(PolicyCheck, FindsNothingInAShadowOfSloEither) {
  check_options options{.sequences = sequences() / 20};
  const auto failure = check_policy(shadow_of(slo_with_share()), options);
  EXPECT_FALSE(failure) << failure->text();
}

TEST(PoliciesReadme, ShowsConfigurationsThatLoad) {
  std::ifstream file(SLUICE_POLICIES_README);
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  policy_registry known;
  for (policy_kind& each : all_policies()) known.add(std::move(each));
  const std::string fence = "```toml\n";
  std::size_t found = 0;
  for (auto at = readme.find(fence); at != std::string::npos; at = readme.find(fence, at + 1)) {
    const auto begin = at + fence.size();
    const auto path = std::filesystem::path(::testing::TempDir()) /
                      ("sluice_policies_readme." + std::to_string(::getpid()) + ".toml");
    std::ofstream(path) << readme.substr(begin, readme.find("```", begin) - begin);
    std::string message;
    EXPECT_TRUE(load_policy(known, path, "none", message)) << message;
    std::filesystem::remove(path);
    ++found;
  }
  EXPECT_GE(found, 2U);
  for (const policy_kind& each : all_policies()) {
    EXPECT_NE(readme.find("| `" + each.name + "` |"), std::string::npos) << each.name;
    for (const parameter& one : each.schema) {
      const auto stem = one.key.substr(0, one.key.find(".*"));
      EXPECT_NE(readme.find("`" + stem), std::string::npos) << each.name << ": " << one.key;
    }
  }
}

// What the check must find ------------------------------------------------------------------------

using body = std::function<void(const snapshot&, decision_sink&)>;

class function_policy final : public policy {
 public:
  explicit function_policy(body decide) : decide_(std::move(decide)) {}
  std::string_view name() const noexcept override { return "function"; }
  void decide(const snapshot& seen, decision_sink& out) override { decide_(seen, out); }

 private:
  body decide_;
};

policy_maker always(const body& decide) {
  return [decide] { return std::make_unique<function_policy>(decide); };
}

bool busy(const world& table, const group_view& group) {
  return std::any_of(group.gpus.begin(), group.gpus.end(),
                     [&](gpu_id on) { return table.find(on)->online_in_flight != 0; });
}

/// A plain policy without a fault, for a fault to be put into: holds while online work is in
/// flight.
template <class Wrong>
body yields_but(Wrong wrong) {
  return [wrong](const snapshot& seen, decision_sink& out) mutable {
    const auto say = [&](group_id id) {
      const group_view* const group = seen.table.find(id);
      if (group == nullptr || wrong(seen, *group, out)) return;
      if (group->what == role::offline && busy(seen.table, *group)) {
        out.hold(id, never);
      } else {
        out.run(id);
      }
    };
    for (const group_id id : seen.changed) say(id);
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      for (const group_id id : on->offline) say(id);
    }
  };
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// The sequence without one of its lines, once for each.
std::vector<std::string> shorter(const std::string& sequence) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < sequence.size(); at = sequence.find('\n', at) + 1) {
    all.push_back(sequence);
    all.back().erase(at, sequence.find('\n', at) + 1 - at);
  }
  return all;
}

/// The check finds the fault, in at most so many steps of which none can be left out, and finds it
/// again in what it printed.
void expect_found(const policy_maker& make, defect what, std::size_t most_steps,
                  bool repeatable = true) {
  const auto failure = check_policy(make, {.sequences = 10'000});
  ASSERT_TRUE(failure) << to_string(what);
  EXPECT_EQ(failure->what, what) << failure->text();
  EXPECT_LE(lines(failure->sequence), most_steps) << failure->text();
  const auto again = replay_sequence(make, failure->sequence);
  ASSERT_TRUE(again) << failure->text();
  EXPECT_EQ(again->what, what) << again->text();
  if (!repeatable) return;
  EXPECT_EQ(again->sequence, failure->sequence);
  for (const std::string& less : shorter(failure->sequence)) {
    const auto other = replay_sequence(make, less);
    EXPECT_FALSE(other && other->what == what) << less << "is enough";
  }
  const auto by_seed = check_policy(make, {.seed = failure->seed, .sequences = 1});
  ASSERT_TRUE(by_seed);
  EXPECT_EQ(by_seed->sequence, failure->sequence);
}

TEST(PolicyCheck, FindsNothingInAPolicyWithoutFault) {
  const auto none = [](const snapshot&, const group_view&, decision_sink&) { return false; };
  const auto failure = check_policy(always(yields_but(none)), {.sequences = 10'000});
  EXPECT_FALSE(failure) << failure->text();
}

TEST(PolicyCheck, FindsAHoldOnWhatIsNotOffline) {
  expect_found(
      always(yields_but([](const snapshot& seen, const group_view& group, decision_sink& out) {
        if (busy(seen.table, group)) out.hold(group.id, never);
        return busy(seen.table, group);
      })),
      defect::held_online, 2);
}

TEST(PolicyCheck, FindsAPolicyThatNeverResumes) {
  expect_found(
      always([held = std::vector<group_id>()](const snapshot& seen, decision_sink& out) mutable {
        for (const event& one : seen.events) {
          const gpu_view* const on = seen.table.find(one.gpu);
          if (on != nullptr) held.assign(on->offline.begin(), on->offline.end());
        }
        for (const group_id id : held) {
          const group_view* const group = seen.table.find(id);
          if (group != nullptr && group->what == role::offline) out.hold(id, never);
        }
      }),
      defect::left_held, 2);
}

/// It holds until the end of max_suspend, and once only: the limits end that as well.
TEST(PolicyCheck, FindsAHoldThatOnlyTheLimitsEnd) {
  expect_found(always(yields_but([](const snapshot& seen, const group_view& group, decision_sink&) {
                 return group.actual == run_state::suspended && !busy(seen.table, group);
               })),
               defect::left_held, 4);
}

/// Each of two gangs waits for the other to go first.
TEST(PolicyCheck, FindsADeadlockOfGangs) {
  expect_found(always([](const snapshot& seen, decision_sink& out) {
                 for (const gpu_view& on : seen.table.gpus()) {
                   const auto gangs =
                       std::count_if(on.offline.begin(), on.offline.end(),
                                     [&](group_id id) { return seen.table.find(id)->manageable; });
                   for (const group_id id : on.offline) {
                     gangs > 1 ? out.hold(id, never) : out.run(id);
                   }
                 }
               }),
               defect::left_held, 3);
}

TEST(PolicyCheck, FindsStarvation) {
  expect_found(always([](const snapshot& seen, decision_sink& out) {
                 for (const gpu_view& on : seen.table.gpus()) {
                   for (const group_id id : on.offline) {
                     const bool first =
                         id == *std::min_element(on.offline.begin(), on.offline.end());
                     const bool gang = seen.table.find(id)->gpus.size() > 1;
                     first || gang ? out.run(id) : out.hold(id, never);
                   }
                 }
               }),
               defect::starved, 3);
}

TEST(PolicyCheck, LetsAPolicyStarveWhereTheOptionsSaySo) {
  const auto starves = [](const snapshot& seen, decision_sink& out) {
    for (const group_id id : seen.changed) {
      const group_view* const group = seen.table.find(id);
      if (group != nullptr && group->what == role::offline && id == group_id{2}) {
        out.hold(id, never);
      }
    }
  };
  const std::string sequence = "group id=1\ngroup id=2\nwait time=12s\n";
  EXPECT_TRUE(replay_sequence(always(starves), sequence));
  EXPECT_FALSE(replay_sequence(always(starves), sequence, {.patience = 0s}));
}

TEST(PolicyCheck, FindsAPolicyThatDecidesAtRandom) {
  int shared = 0;
  expect_found(
      always(yields_but([&shared](const snapshot&, const group_view& group, decision_sink& out) {
        if (++shared % 2 != 0) return false;  // Two instances in turn: replaying finds it, too.
        out.run(group.id);
        return true;
      })),
      defect::not_repeatable, 12, false);
}

/// It remembers across its instances: the same input, and another decision.
TEST(PolicyCheck, FindsAnotherDecisionOnTheSameInput) {
  expect_found(
      [instance = 0]() mutable {
        const bool odd = ++instance % 2 != 0;
        return std::make_unique<function_policy>(
            yields_but([odd](const snapshot& seen, const group_view& group, decision_sink& out) {
              const bool waits = seen.now - group.state_since > 1s && busy(seen.table, group);
              if (waits && odd && group.what == role::offline) out.hold(group.id, seen.now + 1s);
              return waits && odd;
            }));
      },
      defect::not_repeatable, 6);
}

TEST(PolicyCheck, FindsABusyLoop) {
  expect_found(
      always([](const snapshot& seen, decision_sink& out) { out.wake_at(seen.now + 1us); }),
      defect::busy_loop, 1);
}

TEST(PolicyCheck, FindsAPolicyThatIsNeverQuiet) {
  expect_found(
      always([](const snapshot& seen, decision_sink& out) { out.wake_at(seen.now + 5ms); }),
      defect::restless, 1);
}

/// Holds everything, and lets it run, by turns for ever.
policy_maker turns(duration held, duration run) {
  return always([held, run, next = time_point{}](const snapshot& seen, decision_sink& out) mutable {
    if (seen.now >= next) {
      for (const gpu_view& on : seen.table.gpus()) {
        for (const group_id id : on.offline) out.hold(id, seen.now + held);
      }
      next = seen.now + held + run;
    }
    out.wake_at(next);
  });
}

TEST(PolicyCheck, FindsAPolicyThatHoldsAgainAndAgainForNothing) {
  expect_found(turns(900ms, 20ms), defect::left_held, 2);
  expect_found(turns(20ms, 900ms), defect::restless, 3);
}

/// The rest it gets from the limits.
TEST(PolicyCheck, FindsAPolicyThatLetsOneRunForAMomentOnly) {
  const auto uneven =
      always([next = time_point{}](const snapshot& seen, decision_sink& out) mutable {
        const bool moment = seen.now >= next;
        if (moment) next = seen.now + 1s;
        for (const gpu_view& on : seen.table.gpus()) {
          const auto last = std::max_element(on.offline.begin(), on.offline.end());
          for (const group_id id : on.offline) {
            if (on.offline.size() > 1 && id == *last && !moment && seen.now + 990ms >= next) {
              out.hold(id, next);
            } else {
              out.run(id);
            }
          }
        }
        out.wake_at(moment ? seen.now + 10ms : next);
      });
  expect_found(uneven, defect::starved, 4);
}

/// Its client withdraws, and the end never comes.
TEST(PolicyCheck, FindsAPolicyThatCountsOnlyBeginsAndEndsOfSpans) {
  const auto counts = [](bool all) {
    return always([all, open = 0](const snapshot& seen, decision_sink& out) mutable {
      for (const event& one : seen.events) {
        open += one.kind == event_kind::span_begin;
        open -= one.kind == event_kind::span_end || (all && one.kind == event_kind::span_abandoned);
      }
      for (const gpu_view& on : seen.table.gpus()) {
        for (const group_id id : on.offline) open > 0 ? out.hold(id, never) : out.run(id);
      }
    });
  };
  expect_found(counts(false), defect::left_held, 3);
  const auto failure = check_policy(counts(true), {.sequences = 10'000});
  EXPECT_FALSE(failure) << failure->text();
}

/// With an open span there is something to do, and for a policy that only watches, too.
TEST(PolicyCheck, LetsShadowsDecideWhileASpanIsOpen) {
  const auto failure =
      replay_sequence(shadow_of(slo_with_share()),
                      "group\nspan_begin client=1 kind=request request=1\nwait time=12s\n");
  EXPECT_FALSE(failure) << failure->text();
}

TEST(PolicyCheck, FindsAWakeUpInThePast) {
  expect_found(always([](const snapshot& seen, decision_sink& out) { out.wake_at(seen.now); }),
               defect::past_wake, 1);
}

TEST(PolicyCheck, FindsDeclarationsForGroupsThatAreGone) {
  expect_found(
      always([known = std::vector<group_id>()](const snapshot& seen, decision_sink& out) mutable {
        known.insert(known.end(), seen.changed.begin(), seen.changed.end());
        for (const group_id id : known) out.run(id);
      }),
      defect::unknown_group, 4);
}

TEST(PolicyCheck, FindsAThrow) {
  expect_found(always([](const snapshot& seen, decision_sink&) {
                 for (const gpu_view& on : seen.table.gpus()) {
                   if (on.lost && on.online_in_flight > 1) throw std::runtime_error("no such GPU");
                 }
               }),
               defect::threw, 3);
}

TEST(PolicyCheck, FindsAThrowOfWhatIsNoException) {
  expect_found(always([](const snapshot& seen, decision_sink&) {
                 for (const event& one : seen.events) {
                   if (one.kind == event_kind::span_end) throw 42;
                 }
               }),
               defect::threw, 1);
}

TEST(PolicyCheck, FindsNumbersThatAreOutOfRange) {
  expect_found(always([](const snapshot& seen, decision_sink& out) {
                 for (const gpu_view& on : seen.table.gpus()) {
                   if (on.can_reserve) out.reserve(on.id, 50);
                 }
               }),
               defect::bad_number, 2);
  expect_found(always([](const snapshot& seen, decision_sink& out) {
                 for (const gpu_view& on : seen.table.gpus()) {
                   for (const group_id id : on.offline) {
                     if (on.can_set_quantum) out.set_quantum(id, -1ns);
                   }
                 }
               }),
               defect::bad_number, 2);
  expect_found(always([](const snapshot& seen, decision_sink& out) {
                 for (const event& one : seen.events) out.poll_pointers(one.at - seen.now - 1ns);
               }),
               defect::bad_number, 1);
}

TEST(PolicyCheck, SaysWhatIsWrongForPeople) {
  const auto failure = replay_sequence(
      always([](const snapshot& seen, decision_sink& out) {
        for (const group_id id : seen.changed) out.hold(id, never);
      }),
      "group id=1 role=offline   # left out\nwait time=250ms\n\ngroup id=3 role=online gpus=1+2\n");
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->text(), HasSubstr("it held group 3, which is online"));
  EXPECT_THAT(failure->text(), HasSubstr("seed 1"));
  EXPECT_EQ(lines(failure->sequence), 1U) << failure->sequence;
}

TEST(PolicyCheck, RefusesASequenceThatItDoesNotUnderstand) {
  const auto idle = always([](const snapshot&, decision_sink&) {});
  for (const std::string line : {"hello", "wait time=soon", "group id=0", "group gpus=", "begin 3",
                                 "group role=boss", "wait time=-1s", "gpu id=1 colour=red"}) {
    EXPECT_THROW(static_cast<void>(replay_sequence(idle, line)), std::invalid_argument) << line;
  }
}

/// The limits, against what the scheduler does in the same situations (tests/core/limits_test.cpp).
TEST(PolicyCheck, KeepsTheSchedulersLimits) {
  time_point suspended{};
  time_point back{};
  time_point again{};
  const auto watches = always([&](const snapshot& seen, decision_sink& out) {
    for (const group_id id : seen.changed) {
      const group_view& group = *seen.table.find(id);
      if (!group.manageable) continue;
      const bool off = group.actual == run_state::suspended;
      if (off && suspended == time_point{}) suspended = seen.now;
      if (!off && suspended != time_point{} && back == time_point{}) back = seen.now;
      if (off && back != time_point{} && again == time_point{}) again = seen.now;
      out.hold(id, never);
    }
  });
  const auto failure = replay_sequence(watches, "group id=2 attached=0\ngroup\nwait time=5s\n",
                                       {.patience = 0s, .offline_floor = 0});
  EXPECT_FALSE(failure) << failure->text();
  EXPECT_EQ(back - suspended, 1s);
  EXPECT_EQ(again - back, 100ms);
}

TEST(PolicyCheck, KeepsTheOfflineFloorOfTheScheduler) {
  time_point since{};
  duration off{};
  const auto watches = always([&](const snapshot& seen, decision_sink& out) {
    for (const group_id id : seen.changed) {
      const group_view& group = *seen.table.find(id);
      if (!group.manageable) continue;
      if (since != time_point{}) off += seen.now - since;
      since = group.actual == run_state::suspended ? seen.now : time_point{};
      out.hold(id, never);
    }
  });
  const auto failure = replay_sequence(watches, "group id=2 attached=0\ngroup\nwait time=17s\n",
                                       {.patience = 0s,
                                        .max_suspend = 100s,
                                        .min_run = 50ms,
                                        .offline_floor = 0.4,
                                        .floor_window = 1s});
  EXPECT_FALSE(failure) << failure->text();
  // Of 17 s and the 3 s of the end; the second instance saw the same and added nothing.
  EXPECT_LE(off, 12s);
  EXPECT_GE(off, 10s);
}

}  // namespace
}  // namespace sluice::policy_check_test
