#include "sluice/policies/slo.hpp"

#include "offline_quantum.hpp"
#include "slo_gpu.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// Begins without a mark after which it says that marks are missing.
constexpr std::uint64_t unmarked_limit = 100;

class slo final : public policy {
 public:
  explicit slo(const slo_options& options) : options_(options) {
    for (std::size_t k = 0; k < span_kinds; ++k) {
      if (has_target(static_cast<span_kind>(k))) targets_.push_back(static_cast<span_kind>(k));
    }
  }

  std::string_view name() const noexcept override { return "slo"; }
  std::span<const span_kind> needs_marks() const noexcept override { return targets_; }

  void decide(const snapshot& seen, decision_sink& out) override {
    const auto gpus = seen.table.gpus();
    while (gpus_.size() < gpus.size()) gpus_.emplace_back(options_, seen.now);
    for (std::size_t i = 0; i < gpus.size(); ++i) gpus_[i].begin_turn(gpus[i], seen.now);
    for (const event& one : seen.events) take(seen, one, out);

    time_point wake = never;
    bool listen = false;
    bool news = !seen.changed.empty();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const bool changed = gpus_[i].decide(gpus[i], seen.now, wake, out);
      listen |= gpus_[i].hears_tokens();
      if (!changed) continue;
      news = true;
      for (const group_id id : gpus[i].offline) declare(seen, id, out);
    }
    for (const group_id id : seen.changed) declare(seen, id, out);
    if (news) tell_what_is_held(seen);
    if (wake != never) out.wake_at(wake);
    if (listen != listening_) out.listen(span_kind::itl, listening_ = listen);
  }

 private:
  bool has_target(span_kind of) const noexcept {
    return options_.p99[static_cast<std::size_t>(of)] != 0ns;
  }

  void take(const snapshot& seen, const event& one, decision_sink& out) {
    if (one.kind == event_kind::online_begin) count_unmarked(one, out);
    const bool begins = one.kind == event_kind::span_begin;
    const bool ends = one.kind == event_kind::span_end;
    if (!begins && !ends && one.kind != event_kind::span_abandoned) return;
    marked_ |= has_target(one.span);
    const auto on = seen.table.gpus_of(one.client);
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const gpu_id id = seen.table.gpus()[i].id;
      if (!on.empty() && std::find(on.begin(), on.end(), id) == on.end()) continue;
      if (begins) {
        gpus_[i].begin(one, seen.now);
      } else if (ends) {
        gpus_[i].end(one, suspended_since(seen, seen.table.gpus()[i]), seen.now, out);
      } else {
        gpus_[i].abandon(one);
      }
    }
  }

  void count_unmarked(const event& one, decision_sink& out) {
    if (marked_ || warned_) return;
    unmarked_ += one.count;
    if (unmarked_ < unmarked_limit) return;
    warned_ = true;
    out.note(
        "online work arrived {} times, but no client marks spans that have a target, so nothing is "
        "suspended; mark spans (online_client::begin_span) or choose another policy",
        std::array{static_cast<double>(unmarked_)});
  }

  void declare(const snapshot& seen, group_id id, decision_sink& out) const {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    holds(seen, *group) ? out.hold(id, never) : out.run(id);
  }

  /// For any of its GPUs, unless it is owed time on one.
  bool holds(const snapshot& seen, const group_view& group) const {
    bool wanted = false;
    for (const gpu_id where : group.gpus) {
      const gpu_view* const on = seen.table.find(where);
      if (on == nullptr) continue;
      const slo_gpu& its = gpus_[static_cast<std::size_t>(on - seen.table.gpus().data())];
      if (its.owes()) return false;
      wanted |= its.wants();
    }
    return wanted && group.what == role::offline;
  }

  void tell_what_is_held(const snapshot& seen) {
    const auto held = [&](group_id id) {
      const group_view* const group = seen.table.find(id);
      return group == nullptr || holds(seen, *group);
    };
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const auto there = seen.table.gpus()[i].offline;
      gpus_[i].set_held(!there.empty() && std::all_of(there.begin(), there.end(), held), seen.now);
    }
  }

  static time_point suspended_since(const snapshot& seen, const gpu_view& on) {
    time_point since{};
    for (const group_id id : on.offline) {
      const group_view* const group = seen.table.find(id);
      if (group == nullptr) continue;
      if (group->actual != run_state::suspended) return never;
      since = std::max(since, group->state_since);
    }
    return since;
  }

  const slo_options options_;
  std::vector<span_kind> targets_;
  std::deque<slo_gpu> gpus_;  // In the order of the table's; they stay where they are.
  bool listening_ = false;
  bool marked_ = false;
  bool warned_ = false;
  std::uint64_t unmarked_ = 0;
};

}  // namespace

std::unique_ptr<policy> make_slo(slo_options options) { return std::make_unique<slo>(options); }

policy_kind slo_kind() {
  const auto target = [](span_kind what, const char* help) {
    return parameter::span(std::string(to_string(what)) + ".p99", 0ns, 100us, 10min, help)
        .but_optional();
  };
  return with_offline_quantum(
      {.name = "slo",
       .summary =
           "keep the latency targets of marked online spans; offline work gets the remaining time",
       .schema = {target(span_kind::request, "target: 99 % of requests take at most this time"),
                  target(span_kind::ttft, "target: 99 % of first tokens take at most this time"),
                  target(span_kind::itl,
                         "target: 99 % of the gaps between tokens take at most this time"),
                  parameter::number("offline", 0, 0, 0.9,
                                    "minimum share of the time in which offline work runs"),
                  parameter::span("suspend_cost", 5ms, 1us, 10s,
                                  "cost of a suspend, until the policy has measured it"),
                  parameter::span("resume_cost", 10ms, 1us, 10s,
                                  "cost of a resume, until the policy has measured it"),
                  parameter::text("profile", "",
                                  "file from 'sluice accept' that contains these costs")
                      .but_optional()},
       .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
         slo_options options;
         bool any = false;
         for (std::size_t k = 0; k < span_kinds; ++k) {
           const auto key = std::string(to_string(static_cast<span_kind>(k))) + ".p99";
           if (!values.has(key)) continue;
           options.p99[k] = values.span(key);
           any = true;
         }
         if (!any) {
           problem = "slo requires a target; set at least one of request.p99, ttft.p99, itl.p99";
           return nullptr;
         }
         options.offline = values.number("offline");
         options.suspend_cost = values.span("suspend_cost");
         options.resume_cost = values.span("resume_cost");
         return make_slo(options);
       }});
}

}  // namespace sluice
