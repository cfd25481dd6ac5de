// Rules about queues over what the (simulated) driver itself prints in sysfs and debugfs.

#include "node_scanner.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "sluice/kfd/survey.hpp"

namespace sluice::kfd::queue_rules_test {
namespace {

using test::offline_target;

class QueueRules : public ::testing::TestWithParam<std::string> {
 protected:
  role role_under(const roles::classification_rules& rules) {
    const auto tree = make_survey(device_.roots());
    node_scanner scanner{*tree, rules, -1, [](std::string_view words) { ADD_FAILURE() << words; }};
    std::map<pid_t, role> roles;
    scanner.scan([&](const observation& seen) {
      if (seen.kind == observation_kind::process_seen) roles[seen.pid] = seen.what;
    });
    EXPECT_EQ(roles.size(), 1U);
    return roles[target_.pid()];
  }

  test::simulated_device device_{{.profile = GetParam()}};
  offline_target target_{device_.roots(), {.queues = 2}};
};

INSTANTIATE_TEST_SUITE_P(Generations, QueueRules, ::testing::Values("mi300x", "gfx1100"));

// Its queues have priority 7 and rings somewhere in its address space.
TEST_P(QueueRules, ReadTheDriversOwnText) {
  ASSERT_TRUE(target_.says('r'));
  constexpr std::uint64_t anywhere = ~std::uint64_t{0};
  const std::string none;  // no role store
  EXPECT_EQ(role_under({.role_store = none}), role::unmatched);
  EXPECT_EQ(role_under({.role_store = none, .by_ring = {{1, anywhere, role::offline}}}),
            role::offline);
  EXPECT_EQ(role_under({.role_store = none, .by_ring = {{0, 1, role::offline}}}), role::unmatched);
  EXPECT_EQ(role_under({.role_store = none, .queue_priority = true}), role::unmatched);
  EXPECT_EQ(role_under({.role_store = none, .online_priority = 8, .queue_priority = true}),
            role::unmatched);
  EXPECT_EQ(role_under({.role_store = none, .online_priority = 7, .queue_priority = true}),
            role::online);
}

}  // namespace
}  // namespace sluice::kfd::queue_rules_test
