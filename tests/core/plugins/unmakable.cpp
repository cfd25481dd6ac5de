// A C++ plugin that asks for its parameter as something else.

#include "sluice/policy_plugin.hpp"

namespace {

class unmakable final : public sluice::policy {
 public:
  explicit unmakable(sluice::duration) {}
  std::string_view name() const noexcept override { return "unmakable"; }
  void decide(const sluice::snapshot&, sluice::decision_sink&) override {}
};

sluice::policy_kind unmakable_kind() {
  return {.name = "unmakable",
          .summary = "cannot be made",
          .schema = {sluice::parameter::count("n", 2, 1, 5, "a count")},
          .make = [](const sluice::parameters& values, std::string&) {
            return std::make_unique<unmakable>(values.span("n"));
          }};
}

}  // namespace

SLUICE_POLICY_PLUGIN(unmakable_kind());
