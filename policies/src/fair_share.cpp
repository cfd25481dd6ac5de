#include "sluice/policies/fair_share.hpp"

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

/// How many quanta a group may be ahead of one that waits for another GPU and still run: enough
/// for a gang's turn to come without leaving GPUs idle, and with the quantum it then gets, the
/// promised four.
constexpr double most_ahead = 3;

class fair_share final : public rounds::policy_in_rounds {
 public:
  fair_share(const per_level<double>& weights, level_slips slips, rounds::settings with) noexcept
      : policy_in_rounds(with),
        weights_(weights),
        slips_(std::move(slips)),
        quantum_(static_cast<double>(with.round.count())) {}

  std::string_view name() const noexcept override { return "fair_share"; }

 private:
  double weight(const rounds::contender& one) const noexcept override {
    return weights_[std::min<std::size_t>(one.view->priority, weights_.size() - 1)];
  }
  bool fits(const rounds::contender& one) const noexcept override {
    const double ahead = most_ahead * quantum_ / weight(one);
    return everywhere(one, [&](const rounds::place& on, std::uint32_t) {
      return on.groups == 0 && one.service <= on.waiting + ahead;
    });
  }

  void prepare(decision_sink& out) override { slips_.look(groups(), out); }

  const per_level<double> weights_;
  level_slips slips_;
  const double quantum_;
};

}  // namespace

policy_kind fair_share_kind() {
  return with_offline_quantum(
      {.name = "fair_share",
       .summary = "share the time of each GPU among offline groups in proportion to their weights",
       .schema = {parameter::span("quantum", 200ms, 1ms, 60s, "length of a turn"),
                  parameter::number("weight.*", 1, 0.01, 100,
                                    "weight of groups of this priority (0 to 15)"),
                  parameter::span("linger", 5ms, 0ms, 10s,
                                  "time for which a GPU stays free after online work ends")},
       .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
         const auto weights = read_levels(values, "weight", 1.0, problem);
         if (!problem.empty()) return nullptr;
         return std::make_unique<fair_share>(
             weights, level_slips(values, "weight"),
             rounds::settings{values.span("quantum"), values.span("linger")});
       }});
}

}  // namespace sluice
