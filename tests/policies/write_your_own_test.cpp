// The policy that policies/README.md shows, and a check that it shows this one.

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

// clang-format off: each part stands on its own in the README, with its own includes.
// [policy]
#include <algorithm>
#include <cstdint>

#include "sluice/policy.hpp"

/// Holds offline work while more than a number of online requests are in flight.
class hold_above final : public sluice::policy {
 public:
  explicit hold_above(std::uint32_t requests) : requests_(requests) {}

  std::string_view name() const noexcept override { return "hold_above"; }

  void decide(const sluice::snapshot& seen, sluice::decision_sink& out) override {
    // Online work began or ended: decide again for the offline groups of that GPU.
    for (const sluice::event& one : seen.events) {
      const sluice::gpu_view* const gpu = seen.table.find(one.gpu);
      if (gpu == nullptr) continue;
      for (const sluice::group_id group : gpu->offline) declare(seen.table, group, out);
    }
    // Groups that are new, have changed, or were resumed by a limit: declare them again.
    for (const sluice::group_id group : seen.changed) declare(seen.table, group, out);
  }

 private:
  void declare(const sluice::world& table, sluice::group_id id, sluice::decision_sink& out) const {
    const sluice::group_view* const group = table.find(id);
    if (group == nullptr || group->what != sluice::role::offline) return;
    const bool crowded = std::any_of(group->gpus.begin(), group->gpus.end(), [&](auto gpu) {
      return table.find(gpu)->online_in_flight > requests_;
    });
    if (crowded) {
      out.hold(id, sluice::never);  // At most max_suspend of the configuration.
    } else {
      out.run(id);
    }
  }

  const std::uint32_t requests_;
};
// [policy]

// [test]
#include <chrono>
#include <memory>

#include "sluice/testing/policy_harness.hpp"

TEST(HoldAbove, HoldsOfflineWorkAboveTwoRequests) {
  sluice::testing::policy_harness node(std::make_unique<hold_above>(2));
  const sluice::gpu_id gpu{1};
  const sluice::group_id training{7};
  node.table().add_group(training, sluice::role::offline, {gpu});

  node.begin(gpu, 2);
  EXPECT_FALSE(node.held(training));
  node.begin(gpu);
  EXPECT_TRUE(node.held(training));
  node.advance(std::chrono::seconds(1));
  node.end(gpu);
  EXPECT_FALSE(node.held(training));
}
// [test]

// [check]
#include <memory>

#include "sluice/testing/policy_check.hpp"

TEST(HoldAbove, PassesTheChecksForEveryPolicy) {
  const auto failure = sluice::testing::check_policy([] { return std::make_unique<hold_above>(2); },
                                                     {.sequences = 10'000});
  EXPECT_FALSE(failure) << failure->text();
}
// [check]
// clang-format on

namespace {

std::string content(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WriteYourOwn, ReadmeShowsTheCodeThatIsTestedHere) {
  const std::string readme = content(SLUICE_POLICIES_README);
  const std::string here = content(SLUICE_POLICIES_EXAMPLE);
  ASSERT_FALSE(readme.empty());
  for (const std::string marker : {"// [policy]\n", "// [test]\n", "// [check]\n"}) {
    const auto begin = here.find(marker) + marker.size();
    const auto snippet = here.substr(begin, here.find(marker, begin) - begin);
    ASSERT_GT(snippet.size(), 100U);
    EXPECT_NE(readme.find("```cpp\n" + snippet + "```"), std::string::npos)
        << "policies/README.md does not show what is between the marks " << marker;
  }
}

}  // namespace
