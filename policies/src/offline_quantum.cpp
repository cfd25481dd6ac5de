#include "offline_quantum.hpp"

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr const char* quantum_key = "offline_quantum";

/// Decides as `inner` does, and sets the quantum of each offline group when it hears of it.
class in_quanta final : public policy {
 public:
  in_quanta(std::unique_ptr<policy> inner, duration quantum) noexcept
      : inner_(std::move(inner)), quantum_(quantum) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  std::span<const span_kind> needs_marks() const noexcept override { return inner_->needs_marks(); }

  void decide(const snapshot& seen, decision_sink& out) override {
    for (const group_id id : seen.changed) {
      const group_view* const group = seen.table.find(id);
      if (group != nullptr && group->what == role::offline) out.set_quantum(id, quantum_);
    }
    inner_->decide(seen, out);
  }

 private:
  const std::unique_ptr<policy> inner_;
  const duration quantum_;
};

}  // namespace

policy_kind with_offline_quantum(policy_kind kind) {
  kind.schema.push_back(
      parameter::span(quantum_key, 50us, 10us, 1s,
                      "time for which an offline group keeps a GPU once others want it, if the "
                      "driver slices time; default: the driver's own")
          .but_optional());
  kind.make = [make = std::move(kind.make)](const parameters& values,
                                            std::string& problem) -> std::unique_ptr<policy> {
    auto made = make(values, problem);
    if (made == nullptr || !values.has(quantum_key)) return made;
    return std::make_unique<in_quanta>(std::move(made), values.span(quantum_key));
  };
  return kind;
}

}  // namespace sluice
