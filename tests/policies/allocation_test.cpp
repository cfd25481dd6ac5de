// No policy allocates once it has seen the groups and GPUs. A program of its own, for it replaces
// malloc.

#include "counted_allocations.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/all.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/testing/policy_harness.hpp"

namespace sluice::allocation_test {
namespace {

using namespace std::chrono_literals;

/// Follows what it is told as far as the next wake-up, and keeps nothing.
class wake_sink final : public decision_sink {
 public:
  void hold(group_id, time_point) override { ++declared; }
  void run(group_id) override { ++declared; }
  void wake_at(time_point when) override { wake = std::min(wake, when); }
  void poll_pointers(duration) override {}
  void reserve(gpu_id, double) override {}
  void set_quantum(group_id, duration) override {}
  time_point wake = never;
  std::uint64_t declared = 0;
};

class Allocation : public ::testing::TestWithParam<policy_kind> {};

TEST_P(Allocation, IsNoneAfterWarmUp) {
  parameters values;
  ASSERT_EQ(check_parameters(GetParam().schema, values), "");
  std::string problem;
  const auto subject = GetParam().make(values, problem);
  ASSERT_NE(subject, nullptr) << problem;

  testing::fake_world table;
  table.add_client(client_id{1}, "a client with a name that is not short");
  std::vector<group_id> all;
  for (std::uint32_t id = 1; id <= 12; ++id) {
    const gpu_id first{1 + id % 3};
    std::vector<gpu_id> on{first};
    if (id % 4 == 0) on.push_back(gpu_id{1 + (id + 1) % 3});
    table.add_group(group_id{id}, role::offline, on, {4});
    all.push_back(group_id{id});
  }
  wake_sink sink;
  time_point now{1h};
  std::uint64_t turns = 0;
  const auto play = [&](std::vector<event>& events) {
    for (int i = 0; i < 300; ++i) {
      now += 7ms;
      gpu_view& on = *table.edit(gpu_id{1 + static_cast<std::uint32_t>(i) % 3});
      const bool begins = on.online_in_flight == 0;
      on.online_in_flight = begins ? 1 : 0;
      (begins ? on.last_begin : on.last_end) = now;
      events[0] = {begins ? event_kind::online_begin : event_kind::online_end, on.id, client_id{1},
                   1, now};
      const auto changed = std::span(all).subspan(static_cast<std::size_t>(i) % all.size(), 1);
      table.edit(changed[0])->actual = i % 2 == 0 ? run_state::suspended : run_state::running;
      if (sink.wake <= now) sink.wake = never;
      subject->decide({now, ++turns, events, changed, table}, sink);
    }
  };
  std::vector<event> events(1);
  subject->decide({now, ++turns, {}, all, table}, sink);
  play(events);
  const auto declared = sink.declared;
  const test::counted_allocations here;
  play(events);
  EXPECT_EQ(here.so_far(), 0U);
  EXPECT_GT(sink.declared, declared);
}

/// But for those that do nothing here: slo without marks, and what wraps another. They are in
/// tests/core/allocation_test.cpp.
std::vector<policy_kind> deciding() {
  auto all = all_policies();
  std::erase_if(all,
                [](const policy_kind& one) { return one.wrap != nullptr || one.name == "slo"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, Allocation, ::testing::ValuesIn(deciding()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::allocation_test
