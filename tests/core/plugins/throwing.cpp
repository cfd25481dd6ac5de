// A C++ plugin whose policy throws where it is told to.

#include <stdexcept>
#include <string>

#include "sluice/policy_plugin.hpp"

namespace {

class throwing final : public sluice::policy {
 public:
  explicit throwing(std::string what) : what_(std::move(what)) {}
  std::string_view name() const noexcept override { return "throwing"; }
  void decide(const sluice::snapshot&, sluice::decision_sink&) override {
    if (what_ == "decide") throw std::runtime_error("thrown in decide()");
    if (what_ == "number") throw 42;
  }

 private:
  const std::string what_;
};

sluice::policy_kind throwing_kind() {
  return {.name = "throwing",
          .summary = "throws",
          .schema = {sluice::parameter::text("where", "decide", "decide, number or make")},
          .make = [](const sluice::parameters& values, std::string&) {
            if (values.text("where") == "make") throw std::runtime_error("thrown in make()");
            return std::make_unique<throwing>(values.text("where"));
          }};
}

}  // namespace

SLUICE_POLICY_PLUGIN(throwing_kind());
