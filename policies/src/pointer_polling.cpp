#include "sluice/policies/pointer_polling.hpp"

#include "offline_quantum.hpp"
#include "pointer_track.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

class pointer_polling final : public policy {
 public:
  explicit pointer_polling(const pointer_polling_options& options) noexcept : options_(options) {}

  std::string_view name() const noexcept override { return "pointer_polling"; }

  void decide(const snapshot& seen, decision_sink& out) override {
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      if (one.kind == event_kind::online_moved) track_of(one.gpu).follow(*on, one);
      if (one.kind == event_kind::online_end) track_of(one.gpu).end(seen.now);
    }
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      for (const group_id id : on->offline) declare(seen, id, out);
    }
    for (const group_id id : seen.changed) declare(seen, id, out);
    poll(seen, out);
  }

 private:
  pointer_track& track_of(gpu_id id) {
    const auto found = std::find_if(tracks_.begin(), tracks_.end(),
                                    [id](const pointer_track& one) { return one.id() == id; });
    return found != tracks_.end() ? *found : tracks_.emplace_back(id, options_);
  }

  void declare(const snapshot& seen, group_id id, decision_sink& out) {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    time_point until{};
    if (group->what == role::offline) {
      for (const gpu_id where : group->gpus) {
        const gpu_view* const on = seen.table.find(where);
        if (on != nullptr) until = std::max(until, track_of(where).busy_until(*on));
      }
    }
    until > seen.now ? out.hold(id, until) : out.run(id);
  }

  void poll(const snapshot& seen, decision_sink& out) {
    bool any = false;
    time_point likely{};  // Until when.
    for (const gpu_view& on : seen.table.gpus()) {
      if (on.offline.empty()) continue;
      if (!on.can_see_work) {
        note_blindness(seen, on, out);
        continue;
      }
      any = true;
      const time_point busy = track_of(on.id).busy_until(on);
      if (busy > seen.now) {
        likely = never;
      } else if (busy != time_point{}) {
        likely = std::max(likely, busy + options_.recent);
      }
    }
    const bool fast = likely > seen.now;
    const duration every = !any ? duration::zero() : fast ? options_.fast : options_.slow;
    if (every != every_) out.poll_pointers(every_ = every);
    if (any && fast && likely != never) out.wake_at(likely);
  }

  /// Once, and not before the scheduler knows.
  void note_blindness(const snapshot& seen, const gpu_view& on, decision_sink& out) {
    if (noted_ || std::none_of(on.offline.begin(), on.offline.end(), [&](group_id id) {
          const group_view* const group = seen.table.find(id);
          return group != nullptr && group->manageable;
        }))
      return;
    noted_ = true;
    out.note(
        "the work of programs without a client cannot be seen: offline work is held only for work "
        "that clients announce; with some drivers only an agent sees it, and mode observe has none",
        {});
  }

  const pointer_polling_options options_;
  std::vector<pointer_track> tracks_;
  duration every_{};  // As asked for.
  bool noted_ = false;
};

}  // namespace

std::unique_ptr<policy> make_pointer_polling(pointer_polling_options options) {
  return std::make_unique<pointer_polling>(options);
}

policy_kind pointer_polling_kind() {
  using namespace std::chrono_literals;
  using options = pointer_polling_options;
  struct field {
    const char* key;
    duration options::*value;
    duration low, high;
    const char* help;
  };
  static constexpr field fields[] = {
      {"fast", &options::fast, 20us, 1s, "poll interval while online work is likely"},
      {"slow", &options::slow, 20us, 10s, "poll interval at other times"},
      {"recent", &options::recent, 0s, 1h,
       "time after the end of online work during which more online work counts as likely"},
      {"linger", &options::linger, 0s, 10s,
       "time for which a hold continues after online work ends"},
      {"settle_min", &options::settle_min, 0s, 60s,
       "treat a kernel as ended after at least this time, if its end cannot be seen"},
      {"settle_max", &options::settle_max, 0s, 60s,
       "treat a kernel as ended after at most this time, if its end cannot be seen"},
      {"remember", &options::remember, 1ms, 24h,
       "time for which the policy remembers the longest kernel or gap"},
      {"give_up", &options::give_up, 10ms, 24h,
       "ignore a waiting or running packet if no other packet came for this time"}};
  policy_kind made{
      .name = "pointer_polling",
      .summary = "hold offline work while the queues of online programs without a client have work",
      .schema = {},
      .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
        options with;
        for (const field& each : fields) with.*each.value = values.span(each.key);
        if (with.slow < with.fast) {
          problem = "slow is shorter than fast; it must be at least fast";
          return nullptr;
        }
        if (with.settle_max < with.settle_min) {
          problem = "settle_max is shorter than settle_min; it must be at least settle_min";
          return nullptr;
        }
        return make_pointer_polling(with);
      }};
  for (const field& each : fields) {
    made.schema.push_back(
        parameter::span(each.key, options{}.*each.value, each.low, each.high, each.help));
  }
  return with_offline_quantum(std::move(made));
}

}  // namespace sluice
