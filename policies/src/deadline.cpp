#include "sluice/policies/deadline.hpp"

#include "level_slips.hpp"
#include "levels.hpp"
#include "rounds.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace sluice {
namespace {

using namespace std::chrono_literals;

class deadline final : public rounds::policy_in_rounds {
 public:
  deadline(const per_level<duration>& budgets, level_slips slips, rounds::settings with) noexcept
      : policy_in_rounds(with), budgets_(budgets), slips_(std::move(slips)) {}

  std::string_view name() const noexcept override { return "deadline"; }

 private:
  double key(const rounds::contender& one) const noexcept override {
    const auto level = std::min<std::size_t>(one.view->priority, budgets_.size() - 1);
    return static_cast<double>((one.last_ran + budgets_[level]).time_since_epoch().count());
  }
  bool fits(const rounds::contender& one) const noexcept override {
    return everywhere(one, [](const rounds::place& on, std::uint32_t) { return on.groups == 0; });
  }

  void prepare(decision_sink& out) override { slips_.look(groups(), out); }

  const per_level<duration> budgets_;
  level_slips slips_;
};

}  // namespace

policy_kind deadline_kind() {
  return {.name = "deadline",
          .summary = "the offline group that is due first runs, on each GPU",
          .schema = {parameter::span("turn", 200ms, 1ms, 60s, "how long a turn is"),
                     parameter::span("otherwise", 2s, 1ms, 1h,
                                     "the budget of priorities that have none of their own"),
                     parameter::span("budget.*", 2s, 1ms, 1h,
                                     "within how long after it came or last ran a group of that "
                                     "priority, 0 to 15, is due"),
                     parameter::span("linger", 5ms, 0ms, 10s,
                                     "how long a GPU stays free after online work ended")},
          .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
            const auto budgets = read_levels(values, "budget", values.span("otherwise"), problem);
            if (!problem.empty()) return nullptr;
            return std::make_unique<deadline>(
                budgets, level_slips(values, "budget"),
                rounds::settings{values.span("turn"), values.span("linger")});
          }};
}

}  // namespace sluice
