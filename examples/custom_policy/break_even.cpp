// Resume when the pause has lasted as long as a switch costs: whatever comes next, the time lost is
// then never more than twice what one would lose who knew the future ("ski rental").

#include <algorithm>

#include "sluice/policy_plugin.hpp"

namespace {

class break_even final : public sluice::policy {
 public:
  break_even(double factor, sluice::duration least) : factor_(factor), least_(least) {}

  std::string_view name() const noexcept override { return "break_even"; }

  void decide(const sluice::snapshot& seen, sluice::decision_sink& out) override {
    for (const sluice::group_id group : seen.changed) declare(seen, group, out);
    for (const sluice::event& one : seen.events) {
      const sluice::gpu_view* const gpu = seen.table.find(one.gpu);
      if (gpu == nullptr) continue;
      for (const sluice::group_id group : gpu->offline) declare(seen, group, out);
    }
  }

 private:
  void declare(const sluice::snapshot& seen, sluice::group_id id, sluice::decision_sink& out) {
    const sluice::group_view* const group = seen.table.find(id);
    if (group == nullptr || group->what != sluice::role::offline) return;
    sluice::time_point until{};
    for (const sluice::gpu_id gpu : group->gpus) until = std::max(until, wanted(seen, gpu));
    until > seen.now ? out.hold(id, until) : out.run(id);
  }

  // Until when the GPU is to be left to online work.
  sluice::time_point wanted(const sluice::snapshot& seen, sluice::gpu_id id) const {
    const sluice::gpu_view* const gpu = seen.table.find(id);
    if (gpu == nullptr || gpu->last_begin == sluice::time_point{}) return {};
    if (gpu->online_in_flight != 0) return sluice::never;
    const std::chrono::duration<double, std::nano> cost = gpu->suspend_cost + gpu->resume_cost;
    return gpu->last_end + std::max(least_, sluice::duration(std::int64_t(factor_ * cost.count())));
  }

  const double factor_;
  const sluice::duration least_;
};

}  // namespace

SLUICE_POLICY_PLUGIN(
    {"break_even",
     "resume offline work when online work has paused for as long as a suspend and a resume take",
     {sluice::parameter::number("factor", 1, 0, 100,
                                "length of this pause, relative to a suspend and a resume"),
      sluice::parameter::span("least", std::chrono::milliseconds(1), {}, std::chrono::seconds(1),
                              "minimum length of this pause")},
     [](const sluice::parameters& values, std::string&) {
       return std::make_unique<break_even>(values.number("factor"), values.span("least"));
     }});
