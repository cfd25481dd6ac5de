// Every policy that holds offline work can set its quantum, and does so when it is asked to only.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/all.hpp"
#include "sluice/testing/policy_harness.hpp"

namespace sluice::offline_quantum_test {
namespace {

using namespace std::chrono_literals;
using verb = testing::recording_sink::verb;

constexpr gpu_id gpu_a{10};
constexpr group_id train{1};
constexpr group_id serve{2};

class OfflineQuantum : public ::testing::TestWithParam<policy_kind> {
 protected:
  /// The policy, with these beside what it cannot do without.
  static std::unique_ptr<policy> make(parameters values) {
    const policy_kind& kind = GetParam();
    if (kind.name == "slo") values.set("request.p99", duration(100ms));
    for (const parameter& one : kind.schema) {
      const bool given = values.has(one.key) || one.optional || one.key.ends_with(".*");
      if (!given) values.set(one.key, one.fallback);
    }
    std::string problem;
    auto made = kind.make(values, problem);
    EXPECT_NE(made, nullptr) << problem;
    return made;
  }
  static void see_all(testing::policy_harness& node) {
    node.table().add_group(train, role::offline, {gpu_a});
    node.table().add_group(serve, role::online, {gpu_a});
    node.change(train);
    node.change(serve);
    node.begin(gpu_a);
    node.advance(10ms);
    node.end(gpu_a);
    node.advance(1s);
  }
};

TEST_P(OfflineQuantum, IsSetForOfflineGroupsOnly) {
  parameters values;
  values.set("offline_quantum", duration(50us));
  testing::policy_harness node(make(std::move(values)));
  see_all(node);
  EXPECT_EQ(node.quantum(train), 50us);
  EXPECT_EQ(node.quantum(serve), 0us);
}

TEST_P(OfflineQuantum, IsLeftAloneWithoutTheParameter) {
  testing::policy_harness node(make({}));
  see_all(node);
  EXPECT_TRUE(std::none_of(node.calls().begin(), node.calls().end(),
                           [](const auto& one) { return one.what == verb::set_quantum; }));
}

std::vector<policy_kind> holding_policies() {
  auto kinds = all_policies();
  std::erase_if(kinds, [](const policy_kind& each) { return each.wrap != nullptr; });
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(HoldingPolicies, OfflineQuantum, ::testing::ValuesIn(holding_policies()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::offline_quantum_test
