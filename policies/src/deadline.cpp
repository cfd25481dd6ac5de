#include "sluice/policies/deadline.hpp"

#include "level_slips.hpp"
#include "levels.hpp"
#include "offline_quantum.hpp"
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
  return with_offline_quantum(
      {.name = "deadline",
       .summary = "on each GPU, run the offline group with the earliest deadline",
       .schema = {parameter::span("turn", 200ms, 1ms, 60s, "length of a turn"),
                  parameter::span("otherwise", 2s, 1ms, 1h,
                                  "budget of the priorities for which no budget.N is set"),
                  parameter::span("budget.*", 2s, 1ms, 1h,
                                  "time from the start or the last run of a group of this "
                                  "priority (0 to 15) to its next deadline"),
                  parameter::span("linger", 5ms, 0ms, 10s,
                                  "time for which a GPU stays free after online work ends")},
       .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
         const auto budgets = read_levels(values, "budget", values.span("otherwise"), problem);
         if (!problem.empty()) return nullptr;
         return std::make_unique<deadline>(
             budgets, level_slips(values, "budget"),
             rounds::settings{values.span("turn"), values.span("linger")});
       }});
}

}  // namespace sluice
