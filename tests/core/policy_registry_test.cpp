#include "sluice/policy_registry.hpp"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/policies/fixed_timeslice.hpp"

namespace sluice {
namespace {

TEST(PolicyRegistry, MakesWhatWasAddedByName) {
  policy_registry registry;
  registry.add("fixed_timeslice", [] { return make_fixed_timeslice(); });
  const auto made = registry.make("fixed_timeslice");
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)->name(), "fixed_timeslice/client_done");
}

TEST(PolicyRegistry, SaysWhenItDoesNotKnowAName) {
  const policy_registry registry;
  EXPECT_EQ(registry.make("fair_share").error(), errc::unknown_target);
}

TEST(PolicyRegistry, ListsNamesSorted) {
  policy_registry registry;
  registry.add("b", [] { return make_fixed_timeslice(); });
  registry.add("a", [] { return make_fixed_timeslice(); });
  EXPECT_THAT(registry.names(), testing::ElementsAre("a", "b"));
}

}  // namespace
}  // namespace sluice
