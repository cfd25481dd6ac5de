#include "sluice/policies/hqd_reservation.hpp"

#include "offline_quantum.hpp"
#include "rounds.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// Online work makes no difference to who runs.
constexpr duration never_yields = -1ns;

class hqd_reservation final : public rounds::policy_in_rounds {
 public:
  hqd_reservation(std::int64_t offline_percent, std::int64_t slots, duration rotation)
      : policy_in_rounds({rotation, never_yields}),
        offline_percent_(offline_percent),
        slots_(slots) {}

  std::string_view name() const noexcept override { return "hqd_reservation"; }

 private:
  void prepare(decision_sink& out) override {
    reserved_.resize(places().size());
    for (std::size_t i = 0; i < places().size(); ++i) {
      const gpu_view& view = *places()[i].view;
      if (view.can_reserve && !reserved_[i]) {
        out.reserve(view.id, static_cast<double>(offline_percent_) / 100);
      }
      reserved_[i] = view.can_reserve;
    }
  }

  bool fits(const rounds::contender& one) const noexcept override {
    const bool within = everywhere(one, [&](const rounds::place& on, std::uint32_t queues) {
      const auto slots = on.view->slots != 0 ? std::int64_t{on.view->slots} : slots_;
      return on.view->can_reserve || on.queues + queues <= slots * offline_percent_ / 100;
    });
    // Too big, or beside too many that cannot be held: then in its turn alone.
    return within || everywhere(one, [](const rounds::place& on, std::uint32_t) {
             return on.view->can_reserve || on.groups == 0;
           });
  }

  const std::int64_t offline_percent_;
  const std::int64_t slots_;
  std::vector<bool> reserved_;  // By place: the driver was told.
};

}  // namespace

policy_kind hqd_reservation_kind() {
  return with_offline_quantum(
      {.name = "hqd_reservation",
       .summary = "keep a share of each GPU's hardware queue slots free for online queues",
       .schema = {parameter::count("offline_percent", 50, 1, 100,
                                   "percentage of the slots that offline queues may use"),
                  parameter::count("slots", 24, 1, 1024,
                                   "number of slots assumed for a GPU that does not report it"),
                  parameter::span("rotation", 500ms, 1ms, 60s,
                                  "length of a turn, if not all groups fit at once")},
       .make = [](const parameters& values, std::string&) -> std::unique_ptr<policy> {
         return std::make_unique<hqd_reservation>(values.count("offline_percent"),
                                                  values.count("slots"), values.span("rotation"));
       }});
}

}  // namespace sluice
