#include "sluice/policies/priority.hpp"

#include "offline_quantum.hpp"
#include "rounds.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace sluice {
namespace {

using namespace std::chrono_literals;

class priority final : public rounds::policy_in_rounds {
 public:
  priority(bool together, rounds::settings with) noexcept
      : policy_in_rounds(with), together_(together) {}

  std::string_view name() const noexcept override {
    return together_ ? "priority/together" : "priority/turns";
  }

 private:
  int rank(const rounds::contender& one) const noexcept override { return one.view->priority; }
  double key(const rounds::contender& one) const noexcept override {
    return together_ ? 0 : one.service;
  }
  /// Asked from the highest level down: whoever runs already is not below it.
  bool fits(const rounds::contender& one) const noexcept override {
    return everywhere(one, [&](const rounds::place& on, std::uint32_t) {
      return on.rank <= rank(one) && (together_ || on.groups == 0);
    });
  }

  const bool together_;
};

}  // namespace

policy_kind priority_kind() {
  return with_offline_quantum(
      {.name = "priority",
       .summary = "on each GPU, run only the offline groups of the highest priority",
       .schema = {parameter::text("equal", "together",
                                  "how groups of equal priority run: together, or in turns"),
                  parameter::span("turn", 200ms, 1ms, 60s, "length of a turn, if equal is turns"),
                  parameter::span("linger", 5ms, 0ms, 10s,
                                  "time for which a GPU stays free after online work ends")},
       .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
         const std::string& equal = values.text("equal");
         if (equal != "together" && equal != "turns") {
           problem = "equal is \"" + equal + "\"; it must be together or turns";
           return nullptr;
         }
         return std::make_unique<priority>(
             equal == "together", rounds::settings{values.span("turn"), values.span("linger")});
       }});
}

}  // namespace sluice
