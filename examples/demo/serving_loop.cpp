#include "serving_loop.hpp"

#include "reset_text.hpp"
#include "stop_request.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace demo {
namespace {

using namespace std::chrono_literals;
using sluice::clock;
using sluice::time_point;

/// Sleeps until `when` or a signal, whichever is first.
void sleep_until(time_point when) {
  const auto since_epoch = when.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  const timespec at{seconds.count(), (since_epoch - seconds).count()};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

/// Takes requests as they arrive and marks them, whatever the GPU does meanwhile: a scheduler that
/// hears of a request only when the batch has room for it, between two steps, may hear too late.
class request_intake {
 public:
  request_intake(const arrivals& work, time_point start, sluice::online_client& client)
      : work_(work), start_(start), client_(client) {}

  /// Takes what has come by now.
  void look(time_point now) {
    for (; next() <= now; ++accepted_) {
      client_.begin_span(sluice::span_kind::request, accepted_, next());
      client_.begin_span(sluice::span_kind::ttft, accepted_, next());
    }
  }
  /// When the next one comes; never, when all have.
  time_point next() const { return arrival(accepted_); }
  std::size_t accepted() const { return accepted_; }
  time_point arrival(std::size_t number) const {
    return number < work_.requests.size() ? start_ + work_.requests[number].at : sluice::never;
  }

 private:
  const arrivals& work_;
  const time_point start_;
  sluice::online_client& client_;
  std::size_t accepted_ = 0;
};

struct active_request {
  std::uint64_t number;  ///< For the scheduler.
  time_point arrived;
  std::uint32_t tokens_left;
  bool first_token_seen;
  sluice::busy_token busy;
};

/// A token of the request came, perhaps the last one. What it marks is what policies know targets
/// for.
void mark_token(sluice::online_client& client, active_request& of, bool last) {
  using enum sluice::span_kind;
  const bool first = !std::exchange(of.first_token_seen, true);
  if (first) client.end_span(ttft, of.number);
  if (!last) client.begin_span(itl, of.number);  // Ends the one before.
  if (last && !first) client.end_span(itl, of.number);
  if (last) client.end_span(request, of.number);
}

enum class step_end { finished, given_up };

/// One step at a time: collects its GPU work as kernels of at most a given length, submits them in
/// one burst, and waits for the last.
class step_runner {
 public:
  step_runner(sluice::sim::gpu_queue& queue, std::uint32_t wave_slots, request_intake& intake)
      : queue_(queue), wave_slots_(wave_slots), intake_(intake), ledger_(queue, serving_packets) {}

  void add(std::chrono::duration<double, std::nano> work, duration longest, double occupancy) {
    const cut_work pieces = cut(work, longest);
    const sluice::sim::kernel each{
        .length = pieces.each,
        .waves = static_cast<std::uint32_t>(std::max(1l, std::lround(occupancy * wave_slots_))),
        .notify = false};
    step_.insert(step_.end(), pieces.kernels, each);
  }

  /// Takes requests meanwhile. Gives up at `give_up` or on a signal.
  sluice::result<step_end> run(time_point give_up) {
    first_ = queue_.submitted();
    if (!step_.empty()) step_.back().notify = true;
    std::uint64_t last_notifying = 0;
    for (std::size_t i = 0; i < step_.size();) {
      // A step larger than the ring needs wake-ups on its way.
      if (i % (serving_packets / 4) == serving_packets / 4 - 1) step_[i].notify = true;
      ledger_.before_submit();
      const auto index = queue_.submit(step_[i]);
      if (index.has_value()) {
        ledger_.submitted(*index, step_[i].length);
        if (step_[i].notify) last_notifying = *index;
        ++i;
        continue;
      }
      if (index.error() != sluice::errc::full) return index.error();
      queue_.ring();
      if (auto room = finish(last_notifying, give_up); room != step_end::finished) {
        return room;
      }
    }
    step_.clear();
    queue_.ring();
    last_ = last_notifying;
    return finish(last_, give_up);
  }

  time_point last_end() const { return queue_.completion(last_).end; }
  /// Nothing when the step was empty, or larger than the ring, which then has forgotten it.
  std::optional<time_point> first_start() const {
    const std::uint64_t kernels = queue_.submitted() - first_;
    if (kernels == 0 || kernels > serving_packets) return std::nullopt;
    return queue_.completion(first_).start;
  }
  kernel_ledger<sluice::sim::gpu_queue>& ledger() { return ledger_; }

 private:
  sluice::result<step_end> finish(std::uint64_t index, time_point give_up) {
    while (!queue_.finished(index)) {
      const time_point now = clock::now();
      if (stop_signal() != 0 || now >= give_up) return step_end::given_up;
      intake_.look(now);
      // Short waits, for a signal does not end one.
      const time_point until = std::min({give_up, now + 100ms, intake_.next()});
      const auto done = queue_.wait(index, until - now);
      if (done.has_error() && done.error() != boost::system::errc::timed_out) return done.error();
    }
    return step_end::finished;
  }

  sluice::sim::gpu_queue& queue_;
  std::uint32_t wave_slots_;
  request_intake& intake_;
  kernel_ledger<sluice::sim::gpu_queue> ledger_;
  std::vector<sluice::sim::kernel> step_;
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace

checked<serving_result> serve(sluice::sim::gpu_queue& queue, std::uint32_t wave_slots,
                              const arrivals& work, const token_costs& costs,
                              const serving_options& options, sluice::online_client& client) {
  serving_result seen;
  const time_point start = clock::now();
  request_intake intake(work, start, client);
  step_runner step(queue, wave_slots, intake);
  std::vector<active_request> active;
  active.reserve(options.most_active);
  const time_point give_up = start + work.window + options.drain_limit;
  std::size_t next = 0;
  bool all_done = true;
  time_point followed{};  // End of the step that the next one follows at once; zero: none.
  while (stop_signal() == 0) {
    const time_point now = clock::now();
    if (now >= give_up) break;
    intake.look(now);
    for (; next < intake.accepted() && active.size() < options.most_active; ++next) {
      const request& arrived = work.requests[next];
      active.push_back(
          {next, intake.arrival(next), arrived.generated_tokens, false, client.busy()});
      step.add(arrived.context_tokens * costs.prefill, options.prefill_kernel,
               options.prefill_occupancy);
    }
    if (active.empty()) {
      if (next == work.requests.size()) break;
      sleep_until(intake.next());
      continue;
    }

    const auto decoding = static_cast<double>(std::count_if(
        active.begin(), active.end(), [](const active_request& r) { return r.tokens_left > 0; }));
    step.add(decoding * costs.decode, options.decode_kernel, options.decode_occupancy);
    const auto finished = step.run(give_up);
    if (finished.has_error()) {
      return failure(finished.error() == sluice::errc::lost
                         ? std::string{reset_text}
                         : "the device refused online work: " + finished.error().message());
    }
    if (*finished == step_end::given_up) {
      all_done = false;
      break;
    }
    const time_point end = step.last_end();
    seen.wake_ups.push_back(clock::now() - end);
    if (const auto began = step.first_start(); followed != time_point{} && began) {
      seen.turnarounds.push_back(*began - followed - options.host_gap);
    }
    step.ledger().collect();
    ++seen.steps;
    std::erase_if(active, [&](active_request& each) {
      mark_token(client, each, each.tokens_left <= 1);
      if (each.tokens_left > 1) {
        --each.tokens_left;
        return false;
      }
      seen.finished.push_back(end - each.arrived);
      seen.arrivals.push_back(each.arrived - start);
      return true;
    });
    followed = active.empty() ? time_point{} : end;
    if (active.empty()) continue;
    if (options.host_gap > 0ns) sleep_until(clock::now() + options.host_gap);
  }

  const time_point now = clock::now();
  const auto unfinished = [&](time_point arrived) {
    seen.unfinished.push_back(now - arrived);
    seen.arrivals.push_back(arrived - start);
  };
  for (const active_request& each : active) unfinished(each.arrived);
  for (; intake.arrival(next) < now; ++next) unfinished(intake.arrival(next));
  active.clear();
  seen.kernels = all_done ? step.ledger().close() : step.ledger().abandon();
  return seen;
}

}  // namespace demo
