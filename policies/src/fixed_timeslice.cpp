#include "sluice/policies/fixed_timeslice.hpp"

#include <algorithm>
#include <string>

namespace sluice {
namespace {

/// Keeps no state: whether a group is to be held, and until when, follows from the GPUs it lives
/// on. A declaration that expires comes back as `changed`, so there is nothing to wake up for
/// either.
class fixed_timeslice final : public policy {
 public:
  explicit fixed_timeslice(fixed_timeslice_options options) noexcept : options_(options) {}

  std::string_view name() const noexcept override {
    return options_.release == release_on::client_done ? "fixed_timeslice/client_done"
                                                       : "fixed_timeslice/slice_end";
  }

  void decide(const snapshot& seen, decision_sink& out) override {
    for (const group_id id : seen.changed) declare(seen, id, out);
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      for (const group_id id : on->offline) declare(seen, id, out);
    }
  }

 private:
  void declare(const snapshot& seen, group_id id, decision_sink& out) const {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    time_point until{};
    if (group->what == role::offline) {
      for (const gpu_id where : group->gpus) until = std::max(until, busy_until(seen, where));
    }
    until > seen.now ? out.hold(id, until) : out.run(id);
  }

  time_point busy_until(const snapshot& seen, gpu_id where) const noexcept {
    const gpu_view* const on = seen.table.find(where);
    if (on == nullptr) return {};
    if (options_.release == release_on::client_done && on->online_in_flight != 0) return never;
    return on->last_begin == time_point{} ? time_point{} : on->last_begin + options_.slice;
  }

  const fixed_timeslice_options options_;
};

}  // namespace

std::unique_ptr<policy> make_fixed_timeslice(fixed_timeslice_options options) {
  options.slice = std::max<duration>(options.slice, std::chrono::nanoseconds(1));
  return std::make_unique<fixed_timeslice>(options);
}

policy_kind fixed_timeslice_kind() {
  using namespace std::chrono_literals;
  return {.name = "fixed_timeslice",
          .summary = "offline work makes room for at least one slice when online work arrives",
          .schema = {parameter::span("slice", 20ms, 1us, 1h, "shortest hold after an arrival"),
                     parameter::text("release", "client_done",
                                     "client_done: when the slice is over and no online work is "
                                     "in flight; slice_end: when the slice is over")},
          .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
            const std::string& release = values.text("release");
            if (release != "client_done" && release != "slice_end") {
              problem = "release is \"" + release + "\"; it must be client_done or slice_end";
              return nullptr;
            }
            return make_fixed_timeslice({values.span("slice"), release == "client_done"
                                                                   ? release_on::client_done
                                                                   : release_on::slice_end});
          }};
}

}  // namespace sluice
