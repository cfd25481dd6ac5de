#pragma once
/// \file
/// Makes a shared library out of a policy: one line, SLUICE_POLICY_PLUGIN(my_kind()), in one source
/// file of it. Build it with sluice_add_policy_plugin() or as a CMake MODULE with hidden
/// visibility: what this header instantiates must not be shared between two plugins.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "sluice/plugin.h"
#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"

/// Exports the policy of that policy_kind.
#define SLUICE_POLICY_PLUGIN(...)                                                              \
  namespace {                                                                                  \
  sluice::policy_kind sluice_exported_kind() { return __VA_ARGS__; }                           \
  }                                                                                            \
  extern "C" SLUICE_PLUGIN_EXPORT const sluice_policy_plugin* sluice_get_policy_plugin(void) { \
    return sluice::plugin::exporter<sluice_exported_kind>::descriptor();                       \
  }                                                                                            \
  static_assert(true, "takes the semicolon")

#pragma GCC visibility push(default)
namespace sluice::plugin {

/// sluice_value::kind is the index in parameter_value.
static_assert(
    std::is_same_v<std::variant_alternative_t<SLUICE_PARAMETER_FLAG, parameter_value>, bool>);
static_assert(std::is_same_v<std::variant_alternative_t<SLUICE_PARAMETER_COUNT, parameter_value>,
                             std::int64_t>);
static_assert(
    std::is_same_v<std::variant_alternative_t<SLUICE_PARAMETER_NUMBER, parameter_value>, double>);
static_assert(
    std::is_same_v<std::variant_alternative_t<SLUICE_PARAMETER_SPAN, parameter_value>, duration>);
static_assert(std::is_same_v<std::variant_alternative_t<SLUICE_PARAMETER_TEXT, parameter_value>,
                             std::string>);

// Values have the same meaning on both sides, so they are cast.
template <class Enum>
constexpr bool is(Enum value, unsigned number) noexcept {
  return static_cast<unsigned>(value) == number;
}
static_assert(is(event_kind::online_begin, SLUICE_EVENT_ONLINE_BEGIN) &&
              is(event_kind::online_end, SLUICE_EVENT_ONLINE_END) &&
              is(event_kind::online_moved, SLUICE_EVENT_ONLINE_MOVED) &&
              is(event_kind::span_begin, SLUICE_EVENT_SPAN_BEGIN) &&
              is(event_kind::span_end, SLUICE_EVENT_SPAN_END) &&
              is(event_kind::span_abandoned, SLUICE_EVENT_SPAN_ABANDONED));
static_assert(is(span_kind::request, SLUICE_SPAN_REQUEST) &&
              is(span_kind::ttft, SLUICE_SPAN_TTFT) && is(span_kind::itl, SLUICE_SPAN_ITL));
static_assert(is(online_work::unknown, SLUICE_WORK_UNKNOWN) &&
              is(online_work::waiting, SLUICE_WORK_WAITING) &&
              is(online_work::consumed, SLUICE_WORK_CONSUMED) &&
              is(online_work::finished, SLUICE_WORK_FINISHED) &&
              is(online_work::running, SLUICE_WORK_RUNNING));
static_assert(is(role::unmatched, SLUICE_ROLE_UNMATCHED) && is(role::online, SLUICE_ROLE_ONLINE) &&
              is(role::offline, SLUICE_ROLE_OFFLINE));
static_assert(is(run_state::running, SLUICE_STATE_RUNNING) &&
              is(run_state::suspending, SLUICE_STATE_SUSPENDING) &&
              is(run_state::suspended, SLUICE_STATE_SUSPENDED) &&
              is(run_state::resuming, SLUICE_STATE_RESUMING) &&
              is(run_state::mixed, SLUICE_STATE_MIXED));
// Arrays of ids cross as they are.
static_assert(sizeof(gpu_id) == sizeof(std::uint32_t) && sizeof(group_id) == sizeof(std::uint64_t));
static_assert(never.time_since_epoch().count() == SLUICE_NEVER);

constexpr time_point time_from(std::int64_t nanoseconds) noexcept {
  return time_point(duration(nanoseconds));
}
constexpr std::int64_t to_c(time_point when) noexcept { return when.time_since_epoch().count(); }

inline parameter_value value_from(const sluice_value& from) {
  switch (from.kind) {
    case SLUICE_PARAMETER_FLAG: return from.whole != 0;
    case SLUICE_PARAMETER_COUNT: return from.whole;
    case SLUICE_PARAMETER_NUMBER: return from.number;
    case SLUICE_PARAMETER_SPAN: return duration(from.whole);
    default: return std::string(from.text);
  }
}

/// `key` and a text are borrowed.
inline sluice_value to_c(const std::string& key, const parameter_value& value) noexcept {
  sluice_value out{key.c_str(), static_cast<std::uint32_t>(value.index()), 0, 0, nullptr};
  if (const auto* flag = std::get_if<bool>(&value)) out.whole = *flag ? 1 : 0;
  if (const auto* count = std::get_if<std::int64_t>(&value)) out.whole = *count;
  if (const auto* number = std::get_if<double>(&value)) out.number = *number;
  if (const auto* span = std::get_if<duration>(&value)) out.whole = span->count();
  if (const auto* text = std::get_if<std::string>(&value)) out.text = text->c_str();
  return out;
}

/// Fills a caller's buffer, cut to fit.
inline void say(char* problem, std::size_t size, std::string_view text) noexcept {
  if (problem == nullptr || size == 0) return;
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(problem, text.data(), length);
  problem[length] = '\0';
}

/// Runs `body`; an exception becomes `failed` and a sentence.
template <class Result, class Body>
Result guarded(Result failed, char* problem, std::size_t size, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& thrown) {
    say(problem, size, thrown.what());
  } catch (...) {
    say(problem, size, "it threw an object that is not a std::exception");
  }
  return failed;
}

/// The table of one C snapshot at a time. Allocates only while it sees more of something than
/// before.
class shown_world final : public world {
 public:
  void show(const sluice_snapshot& seen) {
    seen_ = &seen;
    groups_.clear();
    clients_.clear();
    gpus_.clear();
    for (const sluice_gpu& one : std::span(seen.gpus, seen.gpu_count)) {
      gpus_.push_back({.id = gpu_id{one.id},
                       .online_in_flight = one.online_in_flight,
                       .lost = one.lost != 0,
                       .can_reserve = one.can_reserve != 0,
                       .can_set_quantum = one.can_set_quantum != 0,
                       .can_see_work = one.can_see_work != 0,
                       .slots = one.slots,
                       .suspend_cost = duration(one.suspend_cost),
                       .resume_cost = duration(one.resume_cost),
                       .work = static_cast<online_work>(one.work),
                       .last_move = time_from(one.last_move),
                       .last_begin = time_from(one.last_begin),
                       .last_end = time_from(one.last_end),
                       .offline = ids<group_id>(one.offline, one.offline_count)});
    }
    events_.clear();
    for (const sluice_event& one : std::span(seen.events, seen.event_count)) {
      events_.push_back({.kind = static_cast<event_kind>(one.kind),
                         .gpu = gpu_id{one.gpu},
                         .client = client_id{one.client},
                         .count = one.count,
                         .at = time_from(one.at),
                         .span = static_cast<span_kind>(one.span),
                         .request = one.request,
                         .length = duration(one.length)});
    }
  }

  snapshot picture() const noexcept {
    return {time_from(seen_->now), seen_->turn, events_,
            ids<group_id>(seen_->changed, seen_->changed_count), *this};
  }

  std::span<const gpu_view> gpus() const noexcept override { return gpus_; }
  const gpu_view* find(gpu_id id) const noexcept override {
    const sluice_gpu* const found = seen_->find_gpu(seen_, static_cast<std::uint32_t>(id));
    return found == nullptr ? nullptr : &gpus_[static_cast<std::size_t>(found - seen_->gpus)];
  }
  const group_view* find(group_id id) const noexcept override {
    sluice_group found;
    if (seen_->find_group(seen_, static_cast<std::uint64_t>(id), &found) == 0) return nullptr;
    return groups_.add({.id = id,
                        .what = static_cast<role>(found.role),
                        .actual = static_cast<run_state>(found.state),
                        .manageable = found.manageable != 0,
                        .priority = static_cast<std::uint8_t>(found.priority),
                        .queues = found.queues,
                        .gpus = ids<gpu_id>(found.gpus, found.gpu_count),
                        .queues_on = {found.queues_on, found.gpu_count},
                        .state_since = time_from(found.state_since)});
  }
  const client_view* find(client_id id) const noexcept override {
    sluice_client found;
    if (seen_->find_client(seen_, static_cast<std::uint64_t>(id), &found) == 0) return nullptr;
    client_view view{.id = id,
                     .name = {found.name, found.name_length},
                     .gpus = ids<gpu_id>(found.gpus, found.gpu_count)};
    for (std::size_t i = 0; i < span_kinds; ++i) view.targets[i] = duration(found.targets[i]);
    return clients_.add(view);
  }

 private:
  /// What find() has returned in this turn: a deque, for pointers into it stay.
  template <class View>
  class pool {
   public:
    void clear() noexcept { used_ = 0; }
    /// nullptr without memory: as if it had gone.
    const View* add(const View& one) noexcept {
      try {
        if (used_ == all_.size()) all_.emplace_back();
      } catch (...) {
        return nullptr;
      }
      return &(all_[used_++] = one);
    }

   private:
    std::deque<View> all_;
    std::size_t used_ = 0;
  };

  template <class Id>
  static std::span<const Id> ids(const std::underlying_type_t<Id>* first,
                                 std::size_t count) noexcept {
    return {reinterpret_cast<const Id*>(first), count};
  }

  const sluice_snapshot* seen_ = nullptr;
  std::vector<gpu_view> gpus_;
  std::vector<event> events_;
  mutable pool<group_view> groups_;
  mutable pool<client_view> clients_;
};

class c_sink final : public decision_sink {
 public:
  explicit c_sink(const sluice_sink& out) noexcept : out_(out) {}
  void hold(group_id group, time_point until) override {
    out_.hold(&out_, static_cast<std::uint64_t>(group), to_c(until));
  }
  void run(group_id group) override { out_.run(&out_, static_cast<std::uint64_t>(group)); }
  void wake_at(time_point when) override { out_.wake_at(&out_, to_c(when)); }
  void poll_pointers(duration every) override { out_.poll_pointers(&out_, every.count()); }
  void reserve(gpu_id gpu, double offline_share) override {
    out_.reserve(&out_, static_cast<std::uint32_t>(gpu), offline_share);
  }
  void set_quantum(group_id group, duration length) override {
    out_.set_quantum(&out_, static_cast<std::uint64_t>(group), length.count());
  }
  void listen(span_kind what, bool at_once) override {
    out_.listen(&out_, static_cast<std::uint32_t>(what), at_once ? 1 : 0);
  }
  void note(std::string_view text, std::span<const double> numbers) override {
    text_ = text;
    out_.note(&out_, text_.c_str(), numbers.data(), numbers.size());
  }

 private:
  std::string text_;
  const sluice_sink& out_;
};

/// The descriptor of one kind. A template over a function that only its own library can name, so
/// that two plugins in one process never share the static data within.
template <policy_kind (*Kind)()>
class exporter {
 public:
  static const sluice_policy_plugin* descriptor() noexcept {
    return guarded<const sluice_policy_plugin*>(nullptr, nullptr, 0, [] { return &mine().plugin; });
  }

 private:
  struct instance {
    std::unique_ptr<policy> decider;
    std::string name;
    shown_world table;
  };

  struct exported {
    exported() {
      for (const parameter& one : kind.schema) {
        parameters.push_back({to_c(one.key, one.fallback), one.optional ? 1U : 0U, one.low,
                              one.high, one.help.c_str()});
      }
      plugin = {.abi_version = SLUICE_PLUGIN_ABI,
                .struct_size = sizeof(sluice_policy_plugin),
                .name = kind.name.c_str(),
                .summary = kind.summary.c_str(),
                .parameters = parameters.data(),
                .parameter_count = parameters.size(),
                .create = &create,
                .decide = &decide,
                .destroy = &destroy,
                .name_of = &name_of,
                .needs_marks = &needs_marks};
    }
    const policy_kind kind = Kind();
    std::vector<sluice_parameter> parameters;
    sluice_policy_plugin plugin{};
  };

  static const exported& mine() {
    static const exported only;
    return only;
  }

  static void* create(const sluice_value* values, std::size_t count, char* problem,
                      std::size_t problem_size) noexcept {
    return guarded<void*>(nullptr, problem, problem_size, [&]() -> void* {
      parameters given;
      for (const sluice_value& one : std::span(values, count)) given.set(one.key, value_from(one));
      std::string why;
      auto made = std::make_unique<instance>();
      made->decider = mine().kind.make(given, why);
      if (made->decider == nullptr) {
        say(problem, problem_size, why);
        return nullptr;
      }
      made->name = made->decider->name();
      return made.release();
    });
  }

  static std::int32_t decide(void* state, const sluice_snapshot* seen, const sluice_sink* out,
                             char* problem, std::size_t problem_size) noexcept {
    return guarded<std::int32_t>(-1, problem, problem_size, [&] {
      instance& self = *static_cast<instance*>(state);
      self.table.show(*seen);
      c_sink sink(*out);
      self.decider->decide(self.table.picture(), sink);
      return 0;
    });
  }

  static void destroy(void* state) noexcept { delete static_cast<instance*>(state); }

  static const char* name_of(const void* state) noexcept {
    return static_cast<const instance*>(state)->name.c_str();
  }

  static std::uint32_t needs_marks(const void* state) noexcept {
    std::uint32_t kinds = 0;
    for (const span_kind each : static_cast<const instance*>(state)->decider->needs_marks()) {
      kinds |= 1U << static_cast<unsigned>(each);
    }
    return kinds;
  }
};

}  // namespace sluice::plugin
#pragma GCC visibility pop
