#include "sluice/policies/slo.hpp"

#include "decaying_histogram.hpp"
#include "gap_plan.hpp"
#include "span_track.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// A run that `offline` forces lasts at least so many round trips, so that most of it is run.
constexpr int share_stretch = 8;
/// `offline` is kept over about this time.
constexpr duration share_window = 10s;
/// Once released while spans are open, offline work runs for at least so many round trips.
constexpr int least_run = 64;
/// Begins without a mark after which it says that marks are missing.
constexpr std::uint64_t unmarked_limit = 100;

struct gpu_state {
  std::array<span_track, span_kinds> tracks;
  bool holding = false;
  time_point since{};            ///< When `holding` changed.
  time_point counted{};          ///< Up to when `beside` and `credit` are.
  duration beside{};             ///< For how long offline work was not held, in all.
  double credit = 0;             ///< Nanoseconds that it ran more than its share.
  bool owed = false;             ///< It runs until that is zero again.
  duration busy_from{};          ///< `beside` when the first of the spans that are open began.
  std::uint64_t busy = 0;        ///< So often a span began when none was open...
  bool trial = false;            ///< ...and this time holding for them is put to the test.
  bool idle = false;             ///< No span is open...
  time_point idle_since{};       ///< ...since then.
  decaying_histogram gaps{512};  ///< From the last span's end to the next one's begin.
  gap_plan plan;

  duration beside_at(time_point when) const noexcept {
    return holding ? beside - std::max<duration>(since - when, 0ns)
                   : beside - std::min(counted - when, counted - since);
  }
};

class slo final : public policy {
 public:
  explicit slo(const slo_options& options) : options_(options) {}

  std::string_view name() const noexcept override { return "slo"; }

  void decide(const snapshot& seen, decision_sink& out) override {
    const auto gpus = seen.table.gpus();
    while (states_.size() < gpus.size()) {
      gpu_state& fresh = states_.emplace_back();
      fresh.since = fresh.counted = seen.now;
      for (std::size_t k = 0; k < span_kinds; ++k) fresh.tracks[k].aim(options_.p99[k]);
    }
    for (gpu_state& each : states_) count_time(each, seen.now);
    for (const event& one : seen.events) take(seen, one, out);

    time_point wake = never;
    bool listen = false;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      gpu_state& state = states_[i];
      const bool hold = !gpus[i].offline.empty() && wants_hold(state, gpus[i], seen.now, wake, out);
      const auto& tokens = state.tracks[static_cast<std::size_t>(span_kind::itl)];
      listen |= tokens.has_target() && (hold || !tokens.open());
      if (hold == state.holding) continue;
      state.holding = hold;
      state.since = seen.now;
      for (span_track& each : state.tracks) each.set_held(hold, seen.now);
      for (const group_id id : gpus[i].offline) declare(seen, id, out);
    }
    for (const group_id id : seen.changed) declare(seen, id, out);
    if (wake != never) out.wake_at(wake);
    if (listen != listening_) out.listen(span_kind::itl, listening_ = listen);
  }

 private:
  void count_time(gpu_state& state, time_point now) const noexcept {
    const duration passed = now - std::exchange(state.counted, now);
    if (!state.holding) state.beside += passed;
    const double earned = state.holding ? -options_.offline : 1 - options_.offline;
    const double most = options_.offline * static_cast<double>(duration(share_window).count());
    state.credit = std::min(state.credit + earned * static_cast<double>(passed.count()), most);
  }

  void take(const snapshot& seen, const event& one, decision_sink& out) {
    const bool begins = one.kind == event_kind::span_begin;
    if (one.kind == event_kind::online_begin && !marked_) {
      unmarked_ += one.count;
      if (unmarked_ < unmarked_limit || warned_) return;
      warned_ = true;
      out.note(
          "online work came {} times and no client marks spans that have a target: nothing is "
          "suspended for it; mark them (online_client::begin_span), or choose another policy",
          std::array{static_cast<double>(unmarked_)});
    }
    if ((!begins && one.kind != event_kind::span_end) ||
        options_.p99[static_cast<std::size_t>(one.span)] == 0ns) {
      return;
    }
    marked_ = true;
    const auto on = seen.table.gpus_of(one.client);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const gpu_view& view = seen.table.gpus()[i];
      if (!on.empty() && std::find(on.begin(), on.end(), view.id) == on.end()) continue;
      gpu_state& state = states_[i];
      span_track& track = state.tracks[static_cast<std::size_t>(one.span)];
      if (begins) {
        const bool fresh = std::exchange(state.idle, false);
        if (fresh) {
          state.gaps.add(one.at - state.idle_since);
          state.busy_from = state.beside_at(one.at);
          state.trial = ++state.busy % track.trial_every() == 0;
        }
        track.begin(one.at, seen.now, state.holding, fresh && state.trial);
      } else {
        track.end(one.at - one.length, one.length, state.beside - state.busy_from, seen.now,
                  one.span, out);
      }
    }
  }

  bool wants_hold(gpu_state& state, const gpu_view& view, time_point now, time_point& wake,
                  decision_sink& out) const {
    const auto at = [&](time_point when) { wake = std::min(wake, std::max(when, now + 1us)); };
    const auto known = [](duration seen, duration assumed) { return seen > 0ns ? seen : assumed; };
    const duration suspend = known(view.suspend_cost, options_.suspend_cost);
    const duration round_trip = suspend + known(view.resume_cost, options_.resume_cost);

    bool open = false;
    double price = 1;
    duration least = duration::max();  // Patience of what may come.
    time_point due = never;            // When what is there is out of it.
    for (std::size_t k = 0; k < span_kinds; ++k) {
      span_track& track = state.tracks[k];
      if (options_.p99[k] == 0ns) continue;
      track.set_round_trip(round_trip);
      at(track.look(now, static_cast<span_kind>(k), out));
      least = std::min(least, track.helps() ? track.patience(1) : duration::max());
      price = std::max(price, track.price());
      if (!track.open()) continue;
      open = true;
      due = std::min(due, track.hold_at(state.trial));
    }
    if (!open && !state.idle) {
      state.idle = true;
      state.idle_since = now;
      state.plan = {release_after(state.gaps, round_trip - least)};
      if (price > 1 && least < round_trip) {
        hold_early(state.gaps, state.plan.release + round_trip, suspend, round_trip, price,
                   state.plan);
      }
    }

    if (options_.offline > 0) {  // Its share comes first.
      const double stretch =
          (1 - options_.offline) * share_stretch * static_cast<double>(round_trip.count());
      const auto after = [&](double amount, double rate) {
        at(now + duration(static_cast<std::int64_t>(amount / rate)));
      };
      if (state.credit >= 0) state.owed = false;
      if (state.holding && state.credit <= -stretch) state.owed = true;
      if (state.owed) {
        after(-state.credit, 1 - options_.offline);
        return false;
      }
      if (state.holding) after(state.credit + stretch, options_.offline);
    }
    if (open) {
      // What is released runs for long enough to make little of the round trip.
      const duration worth = state.holding ? least_run * round_trip : 0ns;
      if (due != never && due - worth <= now) return true;
      at(due);
      return false;
    }
    const duration idle = now - state.idle_since;
    const gap_plan& plan = state.plan;
    if (state.holding && idle < plan.release) {
      at(state.idle_since + plan.release);
      return true;
    }
    if (plan.hold_from == duration::max() || idle >= plan.hold_to) return false;
    const bool early = idle >= plan.hold_from;
    at(state.idle_since + (early ? plan.hold_to : plan.hold_from));
    return early;
  }

  void declare(const snapshot& seen, group_id id, decision_sink& out) const {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    const auto held_on = [&](gpu_id where) {
      const gpu_view* const on = seen.table.find(where);
      return on != nullptr &&
             states_[static_cast<std::size_t>(on - seen.table.gpus().data())].holding;
    };
    const bool hold = group->what == role::offline &&
                      std::any_of(group->gpus.begin(), group->gpus.end(), held_on);
    hold ? out.hold(id, never) : out.run(id);
  }

  const slo_options options_;
  std::vector<gpu_state> states_;  // In the order of the table's.
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
  return {.name = "slo",
          .summary = "offline work gets what the targets for marked online spans leave",
          .schema = {target(span_kind::request, "99 % of requests are answered within"),
                     target(span_kind::ttft, "99 % of first tokens come within"),
                     target(span_kind::itl, "99 % of tokens come after the one before within"),
                     parameter::number("offline", 0, 0, 0.9,
                                       "share of the time that offline work runs in any case"),
                     parameter::span("suspend_cost", 5ms, 1us, 10s, "until it was measured"),
                     parameter::span("resume_cost", 10ms, 1us, 10s, "until it was measured")},
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
              problem = "slo needs a target: at least one of request.p99, ttft.p99, itl.p99";
              return nullptr;
            }
            options.offline = values.number("offline");
            options.suspend_cost = values.span("suspend_cost");
            options.resume_cost = values.span("resume_cost");
            return make_slo(options);
          }};
}

}  // namespace sluice
