#include "record_stream.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>
#include <type_traits>
#include <utility>

#include "sluice/result.hpp"

namespace sluice::core {
namespace {

std::string_view to_string(observation_kind value) noexcept {
  switch (value) {
    case observation_kind::process_seen: return "process_seen";
    case observation_kind::process_gone: return "process_gone";
    case observation_kind::queue_seen: return "queue_seen";
    case observation_kind::queue_gone: return "queue_gone";
    case observation_kind::gpu_seen: return "gpu_seen";
    case observation_kind::pointers_seen: return "pointers_seen";
    case observation_kind::gpu_lost: return "gpu_lost";
    case observation_kind::breaker_kept: return "breaker_kept";
    case observation_kind::breaker_rearmed: return "breaker_rearmed";
    case observation_kind::gang_heard: return "gang_heard";
    case observation_kind::resync_begin: return "resync_begin";
    case observation_kind::resync_end: break;
  }
  return "resync_end";
}

std::string_view to_string(online_work value) noexcept {
  switch (value) {
    case online_work::waiting: return "waiting";
    case online_work::consumed: return "consumed";
    case online_work::finished: return "finished";
    case online_work::running: return "running";
    case online_work::unknown: break;
  }
  return "unknown";
}

std::string_view to_string(outcome value) noexcept {
  switch (value) {
    case outcome::done: return "done";
    case outcome::invalid: return "invalid";
    case outcome::failed: return "failed";
    case outcome::target_gone: break;
  }
  return "target_gone";
}

constexpr std::string_view to_string(command_kind value) noexcept {
  return value == command_kind::suspend ? "suspend" : "resume";
}

}  // namespace

/// One object, into a buffer of fixed size.
class record_stream::line {
 public:
  line(record_stream& of, std::string_view is) noexcept : line(of, is, of.text_) {}
  line(const record_stream& of, std::string_view is, std::span<char> into) noexcept
      : begin_(into.data()), at_(begin_), end_(begin_ + into.size()), base_(of.base_) {
    raw("{\"t\":");
    number((of.now_ - base_).count());
    text("is", is);
  }
  line(const line&) = delete;
  line& operator=(const line&) = delete;

  template <class Number>
  line& add(std::string_view name, Number value) noexcept {
    if (value == Number{}) return *this;
    return always(name, value);
  }
  template <class Number>
  line& always(std::string_view name, Number value) noexcept {
    key(name);
    number(value);
    return *this;
  }
  line& text(std::string_view name, std::string_view value) noexcept {
    if (value.empty()) return *this;
    key(name);
    quoted(value);
    return *this;
  }
  line& flag(std::string_view name, bool value) noexcept {
    if (!value) return *this;
    key(name);
    raw("true");
    return *this;
  }
  /// A point in time; of the epoch and "never" nothing.
  line& when(std::string_view name, time_point value) noexcept {
    if (value == time_point{} || value == never) return *this;
    key(name);
    number((value - base_).count());
    return *this;
  }
  line& error(error_code value) noexcept {
    if (!value) return *this;
    always("error", value.value());
    return text("category", value.category().name());
  }
  template <class Range, class Write>
  line& list(std::string_view name, const Range& values, Write&& write) noexcept {
    if (std::empty(values)) return *this;
    key(name);
    char before = '[';
    for (const auto& each : values) {
      put(std::exchange(before, ','));
      write(each);
    }
    put(']');
    return *this;
  }
  template <class Range>
  line& numbers(std::string_view name, const Range& values) noexcept {
    return list(name, values, [this](auto each) { this->number(each); });
  }
  line& object(std::string_view name) noexcept {
    key(name);
    put('{');
    return *this;
  }
  line& close() noexcept {
    put('}');
    return *this;
  }
  void quoted(std::string_view value) noexcept {
    put('"');
    for (const char c : value) {
      const auto code = static_cast<unsigned char>(c);
      if (code >= 0x20 && c != '"' && c != '\\') {
        put(c);
        continue;
      }
      raw("\\u00");
      put("0123456789abcdef"[code >> 4]);
      put("0123456789abcdef"[code & 15]);
    }
    put('"');
  }

  /// \return empty when it did not fit.
  std::string_view finish() noexcept {
    raw("}\n");
    return fits_ ? std::string_view(begin_, static_cast<std::size_t>(at_ - begin_))
                 : std::string_view();
  }

 private:
  void put(char c) noexcept { raw({&c, 1}); }
  void raw(std::string_view value) noexcept {
    fits_ = fits_ && value.size() <= static_cast<std::size_t>(end_ - at_);
    if (!fits_) return;
    std::memcpy(at_, value.data(), value.size());
    at_ += value.size();
  }
  void key(std::string_view name) noexcept {
    if (at_ != begin_ && at_[-1] != '{') put(',');
    put('"');
    raw(name);
    raw("\":");
  }
  template <class Number>
  void number(Number value) noexcept {
    if constexpr (std::is_enum_v<Number>) {
      number(static_cast<std::underlying_type_t<Number>>(value));
    } else if constexpr (std::is_same_v<Number, duration>) {
      number(value.count());
    } else {
      const auto [rest, wrong] = std::to_chars(at_, end_, value);
      fits_ = fits_ && wrong == std::errc{};
      if (fits_) at_ = rest;
    }
  }

  char* const begin_;
  char* at_;
  char* const end_;
  const time_point base_;
  bool fits_ = true;
};

void record_stream::put(line& made) noexcept {
  in_turn_ = true;
  if (ended_) return;
  const std::string_view whole = made.finish();
  if (lost_ == 0 && !whole.empty() && sink_.put(whole)) return;
  if (lost_ != 0 && !whole.empty()) {
    std::array<char, 128> place;
    line gap(*this, "gap", place);
    if (sink_.put(gap.add("count", lost_).finish())) {
      lost_ = 0;
      if (sink_.put(whole)) return;
    }
  }
  ++lost_;
  stats_.lost_records.add();
}

void record_stream::begin(const beginning& what) noexcept {
  const scheduler_config& with = what.config;
  line made(*this, "recording");
  made.always("version", recording_version)
      .always("clock_ns", base_.time_since_epoch().count())
      .text("device", what.device)
      .text("policy", what.policy)
      .text("policy_text", what.policy_text)
      .text("backend", what.backend)
      .add("own_pid", what.own_pid)
      .object("config")
      .always("max_suspend", with.max_suspend)
      .always("min_run", with.min_run)
      .always("offline_floor", with.offline_floor)
      .always("floor_window", with.floor_window)
      .always("attach_after", with.attach_after)
      .always("attach_at_latest", with.attach_at_latest)
      .always("max_busy", with.max_busy)
      .always("failure_backoff", with.failure_backoff)
      .always("breaker_after", with.breaker_after)
      .always("breaker_rearm", with.breaker_rearm)
      .always("policy_time_limit", with.policy_time_limit)
      .always("stop_limit", with.stop_limit)
      .always("inbox_capacity", with.inbox_capacity)
      .flag("suspend_copy_queues", with.suspend_copy_queues)
      .flag("see_unmarked", with.see_unmarked)
      .close();
  put(made);
}

void record_stream::seen(unsigned source, const observation& what) noexcept {
  line made(*this, "seen");
  made.add("source", source).text("what", to_string(what.kind));
  made.add("pid", what.pid).add("start", what.start_time);
  if (what.what != role::unmatched) made.text("role", sluice::to_string(what.what));
  made.add("group", what.group_key).add("priority", what.priority).add("gpu", what.gpu);
  made.add("queue", what.queue).add("type", what.type);
  if (what.work != online_work::unknown) made.text("work", to_string(what.work));
  made.add("count", what.count).add("waiting", what.waiting).flag("shows_work", what.shows_work);
  const bool until =
      what.kind == observation_kind::breaker_kept || what.kind == observation_kind::gang_heard;
  made.when(until ? "until" : "at", what.at);
  put(made);
}

void record_stream::overflow(unsigned source, std::uint64_t dropped) noexcept {
  line made(*this, "overflow");
  put(made.add("source", source).add("count", dropped));
}

void record_stream::client(client_id id, const client_options& options) noexcept {
  line made(*this, "client");
  const auto& [request, ttft, itl] = options.targets;
  put(made.add("id", id)
          .text("name", options.name)
          .add("pid", options.pid)
          .numbers("gpus", options.gpus)
          .add("target_request", request.count())
          .add("target_ttft", ttft.count())
          .add("target_itl", itl.count()));
}

void record_stream::work(client_id id, std::uint64_t begun, std::uint64_t ended, time_point first,
                         bool withdrawn) noexcept {
  line made(*this, "work");
  put(made.add("client", id)
          .add("begun", begun)
          .add("ended", ended)
          .when("first", first)
          .flag("withdrawn", withdrawn));
}

void record_stream::mark(client_id id, span_kind span, std::uint64_t request, bool begins,
                         time_point at) noexcept {
  line made(*this, "mark");
  put(made.add("client", id)
          .text("span", sluice::to_string(span))
          .add("request", request)
          .flag("begins", begins)
          .when("at", at));
}

void record_stream::rearm(gpu_id gpu) noexcept {
  line made(*this, "rearm");
  put(made.add("gpu", gpu));
}

void record_stream::new_policy(std::string_view name, bool removed) noexcept {
  line made(*this, "policy");
  put(made.text("name", name).flag("removed", removed));
}

void record_stream::attach(process_id target, pid_t pid, std::uint64_t start,
                           error_code error) noexcept {
  line made(*this, "attach");
  put(made.add("process", target).add("pid", pid).add("start", start).error(error));
}

void record_stream::attached(process_id target, error_code error) noexcept {
  line made(*this, "attached");
  put(made.add("process", target).error(error));
}

void record_stream::detach(process_id target, error_code error) noexcept {
  line made(*this, "detach");
  put(made.add("process", target).error(error));
}

void record_stream::detached(process_id target) noexcept {
  line made(*this, "detached");
  put(made.add("process", target));
}

void record_stream::queue(const queue_info& what) noexcept {
  line made(*this, "queue");
  put(made.add("process", what.target)
          .add("queue", what.id)
          .add("gpu", what.gpu)
          .add("type", what.type)
          .add("incarnation", what.incarnation)
          .add("fault", what.fault));
}

void record_stream::queue_gone(process_id target, driver_queue_id id) noexcept {
  line made(*this, "queue_gone");
  put(made.add("process", target).add("queue", id));
}

void record_stream::handed(const batch& work, error_code error) noexcept {
  line made(*this, "batch");
  put(made.add("id", work.id)
          .add("process", work.target)
          .add("gpu", work.gpu)
          .text("kind", to_string(work.kind))
          .numbers("queues", std::span(work.queues).first(work.count))
          .error(error));
}

void record_stream::done(const batch_result& what) noexcept {
  line made(*this, "done");
  made.add("id", what.id).add("process", what.target).add("gpu", what.gpu);
  made.text("kind", to_string(what.kind))
      .when("started", what.started)
      .when("finished", what.finished)
      .add("errno", what.driver_errno)
      .numbers("queues", std::span(what.queues).first(what.count));
  const auto outcomes = std::span(what.outcomes).first(what.count);
  if (std::any_of(outcomes.begin(), outcomes.end(),
                  [](outcome each) { return each != outcome::done; })) {
    made.list("outcomes", outcomes, [&](outcome each) { made.quoted(to_string(each)); });
  }
  put(made);
}

void record_stream::reserve(gpu_id gpu, double share, error_code error) noexcept {
  line made(*this, "reserve");
  put(made.add("gpu", gpu).always("share", share).error(error));
}

void record_stream::reserved(gpu_id gpu, double share, error_code error) noexcept {
  line made(*this, "reserved");
  put(made.add("gpu", gpu).always("share", share).error(error));
}

void record_stream::quantum(process_id target, gpu_id gpu, duration length,
                            error_code error) noexcept {
  line made(*this, "quantum");
  put(made.add("process", target).add("gpu", gpu).add("length", length).error(error));
}

void record_stream::quantum_set(process_id target, gpu_id gpu, duration length,
                                error_code error) noexcept {
  line made(*this, "quantum_set");
  put(made.add("process", target).add("gpu", gpu).add("length", length).error(error));
}

void record_stream::acts_by(const capabilities& what, bool fell_back) noexcept {
  line made(*this, "acts_by");
  put(made.text("mechanism", what.name()).add("can", what.can).flag("fell_back", fell_back));
}

void record_stream::gpu_lost(gpu_id gpu) noexcept {
  line made(*this, "gpu_lost");
  put(made.add("gpu", gpu));
}

void record_stream::lost(error_code reason) noexcept {
  line made(*this, "lost");
  put(made.error(reason));
}

void record_stream::restored() noexcept {
  line made(*this, "restored");
  put(made);
}

void record_stream::off(gpu_id gpu, duration after) noexcept {
  line made(*this, "off");
  put(made.add("gpu", gpu).always("after", after));
}

void record_stream::forced(std::uint64_t so_far) noexcept {
  const std::uint64_t more = so_far - std::exchange(forced_, so_far);
  if (more == 0) return;
  line made(*this, "forced");
  put(made.add("count", more));
}

void record_stream::stop() noexcept {
  line made(*this, "stop");
  put(made);
}

void record_stream::turn(time_point due) noexcept {
  if (!in_turn_) return;
  line made(*this, "turn");
  if (due < now_) made.when("due", due);
  put(made);
  in_turn_ = false;
  sink_.pass_on();
}

void record_stream::end() noexcept {
  if (ended_) return;
  line made(*this, "end");
  put(made);
  ended_ = true;
  sink_.pass_on();
}

}  // namespace sluice::core
