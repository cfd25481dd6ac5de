#include "sluice/policies/shadow.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr duration report_every = 10s;

class shadow final : public policy, private decision_sink {
 public:
  explicit shadow(std::unique_ptr<policy> inner)
      : inner_(std::move(inner)), name_("shadow/" + std::string(inner_->name())) {}

  std::string_view name() const noexcept override { return name_; }
  std::span<const span_kind> needs_marks() const noexcept override { return inner_->needs_marks(); }

  void decide(const snapshot& seen, decision_sink& out) override {
    seen_ = &seen;
    out_ = &out;
    if (wake_ <= seen.now) wake_ = never;
    // What the scheduler does with declarations that act: those that expire are asked for again.
    changed_.assign(seen.changed.begin(), seen.changed.end());
    for (auto& [id, one] : groups_) {
      count(id, one);
      if (!one.held() || one.until > seen.now) continue;
      one.until = {};
      if (std::find(changed_.begin(), changed_.end(), id) == changed_.end()) changed_.push_back(id);
    }
    inner_->decide({seen.now, seen.turn, seen.events, changed_, seen.table}, *this);
    std::erase_if(groups_,
                  [&](const auto& each) { return seen.table.find(each.first) == nullptr; });
    report(seen, out);
    time_point wake = std::min(wake_, next_report_);
    for (const auto& [id, one] : groups_) {
      if (one.held()) wake = std::min(wake, one.until);
    }
    if (wake != never) out.wake_at(std::max(wake, seen.now));
  }

 private:
  struct would_be {
    time_point until{};    ///< Epoch: not held.
    time_point counted{};  ///< Up to when it is in the sums.
    bool online = false;   ///< Online work was in flight then.
    bool held() const noexcept { return until != time_point{}; }
  };

  // decision_sink, for the inner policy.
  void hold(group_id id, time_point until) override {
    const group_view* const group = seen_->table.find(id);
    if (until <= seen_->now || group == nullptr || group->what != role::offline) return run(id);
    would_be& one = groups_[id];
    if (!one.held()) {
      one.counted = seen_->now;
      one.online = online_on(*group);
      ++holds_;
      const duration suspend = cost(*group, &gpu_view::suspend_cost, 5ms);
      round_trips_ += suspend + cost(*group, &gpu_view::resume_cost, 10ms);
      if (one.online) spared_ -= suspend;
      if (next_report_ == never) next_report_ = seen_->now;  // The first one is said at once.
    }
    one.until = until;
  }
  void run(group_id id) override {
    if (const auto found = groups_.find(id); found != groups_.end()) found->second.until = {};
  }
  void wake_at(time_point when) override { wake_ = std::min(wake_, when); }
  void poll_pointers(duration every) override { out_->poll_pointers(every); }  // Looking is no act.
  void reserve(gpu_id, double) override {}
  void set_quantum(group_id, duration) override {}
  void listen(span_kind what, bool at_once) override { out_->listen(what, at_once); }
  void note(std::string_view text, std::span<const double> numbers) override {
    out_->note(text, numbers);
  }

  /// The time since the last look goes into the sums.
  void count(group_id id, would_be& one) noexcept {
    if (!one.held()) return;
    const time_point until = std::min(one.until, seen_->now);
    const duration passed = std::max<duration>(until - std::exchange(one.counted, until), 0ns);
    held_ += passed;
    if (one.online) spared_ += passed;
    const group_view* const group = seen_->table.find(id);
    one.online = group != nullptr && online_on(*group);
    if (group == nullptr) one.until = {};
  }

  void report(const snapshot& seen, decision_sink& out) {
    if (seen.now < next_report_) return;
    const auto ms = [](duration value) {
      return std::chrono::duration<double, std::milli>(value).count();
    };
    if (holds_ == 0 && held_ == 0ns) {
      next_report_ = never;
      return;
    }
    next_report_ = seen.now + report_every;
    out.note(
        "would have held offline groups {} times: {} ms held, {} ms for suspends and resumes; "
        "online work would have waited less, by at most {} ms; nothing was suspended",
        std::array{static_cast<double>(std::exchange(holds_, 0)),
                   ms(std::exchange(held_, duration::zero())),
                   ms(std::exchange(round_trips_, duration::zero())),
                   ms(std::max(std::exchange(spared_, duration::zero()), duration::zero()))});
  }

  bool online_on(const group_view& group) const noexcept {
    return std::any_of(group.gpus.begin(), group.gpus.end(), [&](gpu_id where) {
      const gpu_view* const on = seen_->table.find(where);
      return on != nullptr && on->online_in_flight != 0;
    });
  }
  /// On the GPU where it takes longest. \param assumed where it was never measured.
  duration cost(const group_view& group, duration gpu_view::*which,
                duration assumed) const noexcept {
    duration most{};
    for (const gpu_id where : group.gpus) {
      const gpu_view* const on = seen_->table.find(where);
      if (on != nullptr) most = std::max(most, on->*which > 0ns ? on->*which : assumed);
    }
    return most;
  }

  const std::unique_ptr<policy> inner_;
  const std::string name_;
  const snapshot* seen_ = nullptr;  // During decide(), as `out_`.
  decision_sink* out_ = nullptr;
  std::unordered_map<group_id, would_be> groups_;  // Those that would be held, or were.
  std::vector<group_id> changed_;
  time_point wake_ = never;
  time_point next_report_ = never;
  std::uint64_t holds_ = 0;
  duration held_{};
  duration round_trips_{};
  duration spared_{};
};

}  // namespace

std::unique_ptr<policy> make_shadow(std::unique_ptr<policy> inner) {
  return std::make_unique<shadow>(std::move(inner));
}

policy_kind shadow_kind() {
  return {
      .name = "shadow",
      .summary = "try another policy: log what its holds would have gained, and suspend nothing",
      .schema = {parameter::text(
          "of", "", "name of the policy to try; all other parameters are passed to it")},
      .make = nullptr,
      .wrap = make_shadow};
}

}  // namespace sluice
