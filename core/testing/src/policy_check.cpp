#include "sluice/testing/policy_check.hpp"

#include "sequence.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "sluice/testing/policy_harness.hpp"
#include "sluice/testing/recording_sink.hpp"

namespace sluice::testing {
namespace {

using namespace std::chrono_literals;
using call = recording_sink::call;

struct finding {
  defect what{};
  std::string how;
};

std::string seconds(duration time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g s", std::chrono::duration<double>(time).count());
  return text.data();
}

std::string name(group_id id) { return "group " + std::to_string(static_cast<std::uint64_t>(id)); }

/// A group, as the scheduler's limits see it (core/runtime/src/holds.cpp says what and why).
struct subject {
  group_id id{};
  bool attached = false;
  time_point settles = never;  ///< When the suspend or resume under way is done.
  time_point hold_until{};     ///< Epoch: no declaration.
  bool off = false;
  time_point off_since{};
  time_point on_since{};
  duration debt{};
  bool forced = false;
  time_point forced_until = never;
  std::deque<std::pair<time_point, time_point>> offs;  ///< Within the window; but for the current.
  // For the verdict: since online work was last on one of its GPUs.
  bool wished = false;    ///< The policy wants it held.
  duration waited{};      ///< For how long, less what it ran since.
  duration alone{};       ///< How long it is held now with nothing else running on its GPUs.
  duration in_vain{};     ///< How long it was, over all holds, and not for a gang's sake,
  int times_in_vain = 0;  ///< and in how many of them.
};

/// So many holds with nothing to hold for, at most: one when online work has ended, and a few where
/// a policy foresees that more will come.
constexpr int most_times_in_vain = 8;

/// Plays one sequence to two instances of a policy.
class node {
 public:
  node(const policy_maker& make, const check_options& with)
      : with_(with), policy_(make()), twin_(make()) {
    for (std::uint32_t number = 1; number < step::most_ids; ++number) register_client(number);
  }

  /// \throws finding
  void play(const std::vector<step>& sequence) {
    for (const step& one : sequence) apply(one);
    for (std::uint32_t gpu = 1; gpu < step::most_ids; ++gpu) {
      if (gpu_view* const on = world_.edit(gpu_id{gpu}); on != nullptr && has_work(*on)) {
        apply({.what = verb::pointers, .gpu = gpu, .work = online_work::finished});
      }
      for (std::uint32_t client = 1; client < step::most_ids; ++client) {
        const auto open = in_flight_[gpu][client];
        if (open != 0) {
          apply({.what = verb::end, .gpu = gpu, .client = client, .count = open});
        }
      }
    }
    while (!spans_.empty()) {
      step last = spans_.back().first;
      last.what = verb::span_end;
      apply(last);
    }
    wait(3s);
  }

 private:
  static bool has_work(const gpu_view& on) {
    return on.work != online_work::unknown && on.work != online_work::finished;
  }

  [[noreturn]] void found(defect what, std::string how) const {
    throw finding{what, "after " + seconds(now_ - start) + " " + std::move(how)};
  }

  // What happens ------------------------------------------------------------------------------

  /// One that withdrew comes again under its name, with another id.
  void register_client(std::uint32_t number) {
    client_[number] = client_id{++clients_};
    world_.add_client(client_[number], "client-" + std::to_string(number));
  }

  void apply(const step& one) {
    note();
    switch (one.what) {
      case verb::costs:
        suspend_cost_ = one.suspend;
        resume_cost_ = one.resume;
        return;
      case verb::gpu: set_gpu(one); break;
      case verb::group: set_group(one); break;
      case verb::gone: remove(group_id{one.id}); break;
      case verb::begin:
      case verb::end: count(one); break;
      case verb::blink: {
        gpu_view& on = world_.add_gpu(gpu_id{one.gpu});
        on.last_begin = on.last_end = now_;
        add_event(event_kind::online_begin, one, one.count);
        add_event(event_kind::online_end, one, one.count);
        break;
      }
      case verb::pointers: move_pointers(one); break;
      case verb::span_begin:
      case verb::span_end: mark(one); break;
      case verb::withdraw: {
        withdraw(one.client);
        turn();
        world_.remove_client(client_[one.client]);
        register_client(one.client);
        return;
      }
      case verb::wait: wait(one.time); return;
    }
    turn();
  }

  void set_gpu(const step& one) {
    gpu_view& on = world_.add_gpu(gpu_id{one.id});
    on.slots = one.slots;
    on.can_reserve = one.reserve;
    on.can_set_quantum = one.quantum;
    if (!one.see) on.work = online_work::unknown;
    if (std::exchange(on.can_see_work, one.see) == one.see && on.lost == one.lost) return;
    on.lost = one.lost;
    for (const group_id id : on.offline) change(id);
  }

  void set_group(const step& one) {
    const group_id id{one.id};
    std::vector<gpu_id> on;
    for (std::uint32_t gpu = 1; gpu < step::most_ids; ++gpu) {
      if ((one.gpus >> gpu & 1U) != 0) on.push_back(gpu_id{gpu});
    }
    std::vector<std::uint32_t> queues(on.size(), one.queues);
    group_view& view = world_.add_group(id, one.what_role, std::move(on), std::move(queues));
    view.priority = static_cast<std::uint8_t>(one.priority);
    view.manageable = one.attached && one.what_role == role::offline;
    subject* known = find(id);
    if (known == nullptr) {
      known = &subjects_.emplace_back();
      known->id = id;
      view.state_since = now_;
    }
    known->attached = one.attached;
    change(id);
  }

  void remove(group_id id) {
    const group_view* const view = world_.find(id);
    if (view == nullptr) return;
    const std::vector<gpu_id> on(view->gpus.begin(), view->gpus.end());
    world_.remove_group(id);
    std::erase_if(subjects_, [&](const subject& one) { return one.id == id; });
    std::erase(changed_, id);
    for (const gpu_id where : on) {
      for (const group_id other : world_.find(where)->offline) change(other);
    }
  }

  void count(const step& one) {
    gpu_view& on = world_.add_gpu(gpu_id{one.gpu});
    auto& open = in_flight_[one.gpu][one.client];
    if (one.what == verb::begin) {
      open += one.count;
      on.online_in_flight += one.count;
      on.last_begin = now_;
      add_event(event_kind::online_begin, one, one.count);
    } else if (const auto ends = std::min(one.count, open); ends != 0) {
      open -= ends;
      on.online_in_flight -= ends;
      on.last_end = now_;
      add_event(event_kind::online_end, one, ends);
    }
  }

  void move_pointers(const step& one) {
    gpu_view& on = world_.add_gpu(gpu_id{one.gpu});
    // Nobody looks unless asked to; then every change is an event, with packets or without.
    const bool looks = poll_ != duration::zero() && on.can_see_work;
    const online_work seen = looks ? one.work : online_work::unknown;
    const bool came = seen == online_work::waiting;
    if (came) on.last_move = now_;
    if (came || seen != on.work) add_event(event_kind::online_moved, one, came ? 1 : 0);
    on.work = seen;
  }

  void withdraw(std::uint32_t number) {
    for (std::uint32_t gpu = 1; gpu < step::most_ids; ++gpu) {
      count({.what = verb::end, .gpu = gpu, .client = number, .count = in_flight_[gpu][number]});
    }
    std::erase_if(spans_, [&](const std::pair<step, time_point>& open) {
      const auto& [begun, at] = open;
      if (begun.client != number) return false;
      events_.push_back({.kind = event_kind::span_abandoned,
                         .client = client_[number],
                         .at = now_,
                         .span = begun.kind,
                         .request = begun.request,
                         .length = now_ - at});
      return true;
    });
  }

  void mark(const step& one) {
    const auto same = [&](const std::pair<step, time_point>& open) {
      return open.first.client == one.client && open.first.kind == one.kind &&
             open.first.request == one.request;
    };
    const auto open = std::find_if(spans_.begin(), spans_.end(), same);
    event made{.client = client_[one.client], .at = now_, .span = one.kind};
    made.request = one.request;
    if (one.what == verb::span_begin && open == spans_.end()) {
      spans_.emplace_back(one, now_);
      made.kind = event_kind::span_begin;
    } else if (one.what == verb::span_end && open != spans_.end()) {
      made.kind = event_kind::span_end;
      made.length = now_ - open->second;
      spans_.erase(open);
    } else {
      return;
    }
    events_.push_back(made);
  }

  void add_event(event_kind kind, const step& one, std::uint32_t number) {
    events_.push_back({.kind = kind,
                       .gpu = gpu_id{one.gpu},
                       .client = client_[one.client],
                       .count = number,
                       .at = now_});
  }

  void change(group_id id) {
    if (std::find(changed_.begin(), changed_.end(), id) == changed_.end()) changed_.push_back(id);
  }

  void wait(duration time) {
    const time_point end = now_ + time;
    for (time_point next = due(); next <= end; next = due()) {
      now_ = std::max(now_, next);
      turn();
    }
    now_ = end;
    note();
  }

  // The scheduler's rules ---------------------------------------------------------------------

  time_point due() {
    time_point next = wake_;
    for (subject& one : subjects_) {
      next = std::min(next, one.settles);
      if (one.hold_until != time_point{}) next = std::min(next, one.hold_until);
      if (one.off && !one.forced) {
        next = std::min(next, one.off_since + (with_.max_suspend - one.debt));
        if (with_.offline_floor > 0)
          next = std::min(next, now_ + std::max(allowance(one), 10us + 0ns));
      }
      if (one.forced && !one.off) {
        next = std::min(next, one.forced_until == never ? now_ : one.forced_until);
      }
    }
    return next;
  }

  duration allowance(subject& one) const {
    if (with_.offline_floor <= 0) return duration::max();
    const time_point from = now_ - with_.floor_window;
    while (!one.offs.empty() && one.offs.front().second <= from) one.offs.pop_front();
    duration spent = one.off ? now_ - std::max(one.off_since, from) : 0ns;
    for (const auto& [begin, end] : one.offs) spent += end - std::max(begin, from);
    return std::chrono::duration_cast<duration>(
               std::chrono::duration<double, std::nano>(with_.floor_window) *
               (1 - with_.offline_floor)) -
           spent;
  }

  void set_actual(subject& one, run_state actual) {
    group_view& view = *world_.edit(one.id);
    if (view.actual == actual) return;
    view.actual = actual;
    view.state_since = now_;
    change(one.id);
    const bool off = actual != run_state::running;
    if (off == one.off) return;
    one.off = off;
    if (!off) {
      one.debt += now_ - one.off_since;
      one.on_since = now_;
      one.offs.emplace_back(one.off_since, now_);
      return;
    }
    const duration ran = now_ - one.on_since;
    const auto paid = std::chrono::duration_cast<duration>(
        ran * (std::chrono::duration<double>(with_.max_suspend) /
               std::chrono::duration<double>(with_.min_run)));
    one.debt = ran >= with_.min_run ? 0ns : std::max(duration(0ns), one.debt - paid);
    one.off_since = now_;
  }

  /// Whether a hold can take effect: it is offline, attached, and not only on lost GPUs.
  bool holdable(const subject& one) const {
    const group_view& view = *world_.find(one.id);
    return view.manageable && std::any_of(view.gpus.begin(), view.gpus.end(),
                                          [&](gpu_id on) { return !world_.find(on)->lost; });
  }

  void before_policy() {
    for (subject& one : subjects_) {
      if (!holdable(one) && one.off) {
        one.settles = never;
        set_actual(one, run_state::running);
      }
      if (one.settles <= now_) {
        one.settles = never;
        const bool suspended = world_.find(one.id)->actual == run_state::suspending;
        set_actual(one, suspended ? run_state::suspended : run_state::running);
        for (const gpu_id on : world_.find(one.id)->gpus) {
          gpu_view& view = *world_.edit(on);
          (suspended ? view.suspend_cost : view.resume_cost) =
              suspended ? suspend_cost_ : resume_cost_;
        }
      }
      if (one.hold_until != time_point{} && one.hold_until <= now_) {
        one.hold_until = {};
        change(one.id);
      }
      if (!one.forced) {
        if (one.off &&
            (now_ >= one.off_since + (with_.max_suspend - one.debt) || allowance(one) <= 10us)) {
          one.forced = true;
          one.forced_until = never;
          one.hold_until = {};
          change(one.id);
        }
      } else if (!one.off) {
        if (one.forced_until == never) one.forced_until = now_ + with_.min_run;
        if (one.forced_until <= now_) {
          if (allowance(one) >= with_.min_run) {
            one.forced = false;
            change(one.id);
          } else {
            one.forced_until = now_ + with_.floor_window / 32;
          }
        }
      }
    }
  }

  void after_policy() {
    for (subject& one : subjects_) {
      const bool held = one.hold_until > now_ && !one.forced && holdable(one);
      const run_state actual = world_.find(one.id)->actual;
      if (held && actual == run_state::running) {
        one.settles = now_ + suspend_cost_;
        set_actual(one, run_state::suspending);
      } else if (!held && actual == run_state::suspended) {
        one.settles = now_ + resume_cost_;
        set_actual(one, run_state::resuming);
      }
    }
  }

  // The policy's turn -------------------------------------------------------------------------

  void turn() {
    note();
    before_policy();
    if (!events_.empty() || !changed_.empty() || wake_ <= now_) decide();
    events_.clear();
    changed_.clear();
    after_policy();
    for (subject& one : subjects_) one.wished = one.hold_until > now_ && holdable(one);
    note();
  }

  void decide() {
    if (wake_ <= now_) wake_ = never;
    const snapshot seen{now_, ++turn_, events_, changed_, world_};
    said_.calls.clear();
    twin_said_.calls.clear();
    try {
      policy_->decide(seen, said_);
      twin_->decide(seen, twin_said_);
    } catch (const std::exception& thrown) {
      found(defect::threw, std::string("it threw: ") + thrown.what());
    } catch (...) {
      found(defect::threw, "it threw an object that is not a std::exception");
    }
    for (const call& one : said_.calls) obey(one);
    if (said_.calls != twin_said_.calls || policy_->name() != twin_->name()) {
      found(defect::not_repeatable, "two instances decided differently on the same input: " +
                                        text_of(said_.calls) + " and " + text_of(twin_said_.calls));
    }
    judge_wakes();
  }

  void obey(const call& one) {
    switch (one.what) {
      case recording_sink::verb::hold:
      case recording_sink::verb::run: {
        const group_view* const view = world_.find(one.group);
        subject* const known = find(one.group);
        if (view == nullptr || known == nullptr) {
          found(defect::unknown_group,
                "it declared a state for " + name(one.group) + ", which does not exist");
        }
        const bool hold = one.what == recording_sink::verb::hold && one.until > now_;
        if (hold && view->what != role::offline) {
          found(defect::held_online,
                "it held " + name(one.group) + ", which is " + std::string(to_string(view->what)));
        }
        known->hold_until = hold ? std::min(one.until, now_ + with_.max_suspend) : time_point{};
        return;
      }
      case recording_sink::verb::wake_at:
        if (one.until <= now_) {
          found(defect::past_wake, "it requested a wake-up " + seconds(now_ - one.until) +
                                       " ago; wake_at() requires a time after the current turn");
        }
        wake_ = std::min(wake_, one.until);
        return;
      case recording_sink::verb::poll_pointers:
        if (one.every < 0ns)
          found(defect::bad_number,
                "it requested a pointer poll interval of " + seconds(one.every));
        poll_ = one.every;
        return;
      case recording_sink::verb::reserve:
        if (!(one.offline_share >= 0 && one.offline_share <= 1)) {
          found(defect::bad_number, "it requested a reservation with an offline share of " +
                                        std::to_string(one.offline_share));
        }
        return;
      case recording_sink::verb::set_quantum: judge_quantum(one); return;
      case recording_sink::verb::listen:
      case recording_sink::verb::note: return;
    }
  }

  void judge_quantum(const call& one) const {
    const group_view* const view = world_.find(one.group);
    if (view == nullptr) {
      found(defect::unknown_group,
            "it set a quantum for " + name(one.group) + ", which does not exist");
    }
    if (one.length < 0ns) {
      found(defect::bad_number,
            "it set a quantum of " + seconds(one.length) + " for " + name(one.group));
    }
    if (one.length > 0ns && view->what != role::offline) {
      found(defect::held_online, "it set a quantum for " + name(one.group) + ", which is " +
                                     std::string(to_string(view->what)));
    }
  }

  static std::string text_of(const std::vector<call>& calls) {
    std::string text;
    for (const call& one : calls) {
      constexpr std::array verbs{"hold",    "run",         "wake_at", "poll_pointers",
                                 "reserve", "set_quantum", "listen",  "note"};
      text += (text.empty() ? "" : ", ") + std::string(verbs[static_cast<std::size_t>(one.what)]);
      if (one.group != group_id::none) text += " " + name(one.group);
      if (one.until == never) {
        text += " forever";
      } else if (one.until != time_point{}) {
        text += " until " + seconds(one.until - start);
      }
    }
    return text.empty() ? "nothing" : text;
  }

  // The verdict -------------------------------------------------------------------------------

  void judge_wakes() {
    const bool woken = events_.empty() && changed_.empty();
    if (!woken || now_ - loop_since_ >= 1ms) {
      loop_ = 0;
      loop_since_ = now_;
    }
    if (++loop_ >= 100 && woken)
      found(defect::busy_loop, "it requested 100 turns within a millisecond");
    const bool holds = std::any_of(subjects_.begin(), subjects_.end(),
                                   [&](const subject& one) { return one.hold_until > now_; });
    const auto& gpus = world_.gpus();
    const bool online =
        std::any_of(gpus.begin(), gpus.end(), [&](const gpu_view& on) { return has_online(on); });
    idle_ = woken && !holds && !online ? idle_ + 1 : 0;
    if (idle_ == 0) idle_since_ = now_;
    if (idle_ > 32 && now_ - idle_since_ >= 1ms) {
      found(defect::restless,
            "it requested more than 32 turns although nothing happened and it held "
            "nothing");
    }
  }

  bool has_online(const gpu_view& on) const {
    // Spans count everywhere, for clients here work on every GPU.
    return !spans_.empty() || on.online_in_flight != 0 || has_work(on) || on.last_end == now_;
  }
  bool others_run(const gpu_view& on, group_id but) const {
    return std::any_of(on.offline.begin(), on.offline.end(), [&](group_id other) {
      return other != but && world_.find(other)->actual != run_state::suspended;
    });
  }
  /// On its GPUs, and those to which gangs reach from there, and so on: a GPU may be kept free for
  /// a gang for which another one is not free yet.
  bool others_run_in_reach(const group_view& from) const {
    std::vector<gpu_id> reached(from.gpus.begin(), from.gpus.end());
    for (std::size_t i = 0; i < reached.size(); ++i) {
      const gpu_view& on = *world_.find(reached[i]);
      if (others_run(on, from.id)) return true;
      for (const group_id other : on.offline) {
        for (const gpu_id to : world_.find(other)->gpus) {
          if (std::find(reached.begin(), reached.end(), to) == reached.end()) reached.push_back(to);
        }
      }
    }
    return false;
  }

  /// What was true until now, and what that means for groups that are held.
  void note() {
    const duration passed = now_ - std::exchange(noted_, now_);
    for (subject& one : subjects_) {
      const group_view& view = *world_.find(one.id);
      const auto anywhere = [&](auto&& is) {
        return std::any_of(view.gpus.begin(), view.gpus.end(),
                           [&](gpu_id id) { return is(*world_.find(id)); });
      };
      if (anywhere([&](const gpu_view& on) { return has_online(on); })) {
        one.waited = one.alone = one.in_vain = duration::zero();
        one.times_in_vain = 0;
        continue;
      }
      if (!one.wished) {
        one.alone = duration::zero();
        one.waited = std::max(one.waited - worth_of_run(passed), duration::zero());
        continue;
      }
      one.waited += passed;
      judge_wait(one);
      if (anywhere([&](const gpu_view& on) { return others_run(on, one.id); })) {
        one.alone = duration::zero();
      } else if (passed != duration::zero()) {
        const bool anew = one.alone == duration::zero();
        one.alone += passed;
        judge_alone(one);
        if (!others_run_in_reach(view)) judge_vain(one, passed, anew);
      }
    }
  }

  /// How long a wait is made good by running for so long: with less than its floor a group waits
  /// ever longer.
  duration worth_of_run(duration ran) const {
    if (with_.offline_floor <= 0) return duration::max() / 2;
    return std::chrono::duration_cast<duration>(std::chrono::duration<double, std::nano>(ran) *
                                                ((1 - with_.offline_floor) / with_.offline_floor));
  }

  void judge_wait(const subject& one) const {
    if (with_.patience <= 0ns || one.waited <= with_.patience) return;
    found(defect::starved,
          name(one.id) + " was held for " + seconds(one.waited) +
              " (after deduction of a credit for its short runs) while other groups ran "
              "and its GPUs had no online work");
  }

  void judge_alone(const subject& one) const {
    if (one.alone < with_.max_suspend) return;
    found(defect::left_held, name(one.id) + " was held for " + seconds(one.alone) +
                                 " while nothing else ran on its GPUs; only max_suspend ended the "
                                 "hold");
  }

  void judge_vain(subject& one, duration passed, bool anew) const {
    one.in_vain += passed;
    if (anew) ++one.times_in_vain;
    const bool often = one.times_in_vain > most_times_in_vain;
    if (one.in_vain < with_.max_suspend && !often) return;
    found(often ? defect::restless : defect::left_held,
          name(one.id) + " was held " + std::to_string(one.times_in_vain) + " times, " +
              seconds(one.in_vain) +
              " in total, after the last online work on its GPUs, while nothing else ran");
  }

  subject* find(group_id id) {
    const auto at = std::find_if(subjects_.begin(), subjects_.end(),
                                 [&](const subject& one) { return one.id == id; });
    return at == subjects_.end() ? nullptr : &*at;
  }

  static constexpr time_point start{1h};
  const check_options& with_;
  const std::unique_ptr<policy> policy_;
  const std::unique_ptr<policy> twin_;
  fake_world world_;
  std::vector<subject> subjects_;
  std::array<std::array<std::uint32_t, step::most_ids>, step::most_ids> in_flight_{};
  std::vector<std::pair<step, time_point>> spans_;
  std::array<client_id, step::most_ids> client_{};
  std::uint64_t clients_ = 0;
  duration suspend_cost_{};
  duration resume_cost_{};
  time_point now_ = start;
  time_point noted_ = start;  ///< Up to when note() has counted.
  std::vector<event> events_;
  std::vector<group_id> changed_;
  recording_sink said_;
  recording_sink twin_said_;
  time_point wake_ = never;
  duration poll_{};
  std::uint64_t turn_ = 0;
  int loop_ = 0;
  time_point loop_since_{};
  int idle_ = 0;
  time_point idle_since_{};
};

std::optional<finding> play(const policy_maker& make, const check_options& with,
                            const std::vector<step>& sequence) {
  try {
    node(make, with).play(sequence);
  } catch (finding& one) {
    return std::move(one);
  }
  return std::nullopt;
}

/// Leaves out what can be left out: ever smaller parts (delta debugging), then makes what is left
/// plain, as long as the same is wrong.
void shorten(const policy_maker& make, const check_options& with, std::vector<step>& sequence,
             finding& shown) {
  const auto still_fails = [&](std::vector<step> tried) {
    auto seen = play(make, with, tried);
    if (!seen || seen->what != shown.what) return false;
    sequence = std::move(tried);
    shown = std::move(*seen);
    return true;
  };
  const auto leave_out = [&] {
    bool shorter = false;
    for (std::size_t part = std::max<std::size_t>(sequence.size() / 2, 1);; part /= 2) {
      for (std::size_t at = 0; at < sequence.size();) {
        auto tried = sequence;
        const auto from = tried.begin() + static_cast<std::ptrdiff_t>(at);
        tried.erase(from, from + static_cast<std::ptrdiff_t>(std::min(part, tried.size() - at)));
        if (still_fails(std::move(tried))) {
          shorter = true;
        } else {
          at += part;
        }
      }
      if (part <= 1) return shorter;
    }
  };
  const auto make_plain = [&](std::size_t at, auto&& edit) {
    auto tried = sequence;
    edit(tried[at]);
    if (tried != sequence) still_fails(std::move(tried));
  };
  while (leave_out()) {
  }
  for (std::size_t at = 0; at < sequence.size(); ++at) {
    make_plain(at, [](step& one) { one.count = one.queues = 1; });
    make_plain(at, [](step& one) { one.priority = one.slots = 0; });
    make_plain(at, [](step& one) { one.attached = true; });
    make_plain(at, [](step& one) {
      one.reserve = one.quantum = one.lost = false;
      one.see = true;
    });
    make_plain(at, [](step& one) { one.gpus = 2; });
    for (const duration time : {12s + 0ns, 1s + 0ns, 100ms + 0ns, 10ms + 0ns, 1ms + 0ns}) {
      make_plain(at, [&](step& one) {
        if (one.time > time) one.time = time;
      });
    }
  }
  while (leave_out()) {
  }
}

check_failure failure(const policy_maker& make, const check_options& with, std::uint64_t seed,
                      std::vector<step> sequence, finding shown) {
  shorten(make, with, sequence, shown);
  return {shown.what, std::move(shown.how), seed, to_text(sequence)};
}

}  // namespace

std::string_view to_string(defect what) noexcept {
  switch (what) {
    case defect::held_online: return "held a group that is not offline";
    case defect::unknown_group: return "declared a state for an unknown group";
    case defect::left_held: return "did not end a hold";
    case defect::starved: return "starved a group";
    case defect::not_repeatable: return "not repeatable";
    case defect::restless: return "active while idle";
    case defect::busy_loop: return "busy loop";
    case defect::past_wake: return "wake-up in the past";
    case defect::bad_number: return "number out of range";
    case defect::threw: break;
  }
  return "threw";
}

std::string check_failure::text() const {
  return std::string(to_string(what)) + ": " + how + "\nseed " + std::to_string(seed) +
         "; the shortest sequence that causes it:\n" + sequence;
}

std::optional<check_failure> check_policy(const policy_maker& make, const check_options& options) {
  for (std::size_t i = 0; i < options.sequences; ++i) {
    const std::uint64_t seed = options.seed + i;
    auto sequence = random_sequence(seed, std::max<std::size_t>(options.steps, 1));
    if (auto shown = play(make, options, sequence)) {
      return failure(make, options, seed, std::move(sequence), std::move(*shown));
    }
  }
  return std::nullopt;
}

std::optional<check_failure> replay_sequence(const policy_maker& make, std::string_view sequence,
                                             const check_options& options) {
  auto steps = parse_sequence(sequence);
  auto shown = play(make, options, steps);
  if (!shown) return std::nullopt;
  return failure(make, options, options.seed, std::move(steps), std::move(*shown));
}

}  // namespace sluice::testing
