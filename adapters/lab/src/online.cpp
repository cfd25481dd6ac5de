#include "online.hpp"

#include <algorithm>
#include <utility>

namespace sluice::lab {
namespace {

/// What ROCr gives a stream of high priority, as the demo's server has it.
constexpr std::uint32_t online_priority = 11;

}  // namespace

online_server::online_server(sim::engine& events, gpu& on, sim::model_process self,
                             const arrivals& work, const options& how, std::function<void()> busy)
    : events_(events),
      gpu_(on),
      work_(work),
      how_(how),
      busy_(std::move(busy)),
      queue_(on.add_queue(self, online_priority, *this)),
      whole_kernels_(how.whole_kernels) {
  on.watch_disturbance(self);
  seen_.reserve(work.requests.size());
}

void online_server::begin(time_point start) {
  start_ = last_end_ = start;
  if (!work_.requests.empty()) {
    events_.at(start + work_.requests.front().at, [this] { accept(); });
  }
}

/// What has come, as the thread does that reads the sockets: between two steps or in one.
void online_server::accept() {
  const time_point now = events_.now();
  for (; accepted_ < work_.requests.size(); ++accepted_) {
    const time_point at = start_ + work_.requests[accepted_].at;
    if (at > now) {
      events_.at(at, [this] { accept(); });
      break;
    }
    client_.begin_span(span_kind::request, accepted_, at);
    if (how_.service == service_kind::continuous) {
      client_.begin_span(span_kind::ttft, accepted_, at);
    }
  }
  busy_();
  if (active_.empty()) step();
}

void online_server::admit() {
  const std::size_t most = how_.service == service_kind::fifo ? 1 : how_.shape.most_active;
  bool changed = false;
  while (admitted_ < accepted_ && active_.size() < most) {
    const request& arrived = work_.requests[admitted_];
    seen_.push_back(
        {arrived.at, arrived.context_tokens, arrived.generated_tokens, {}, {}, {}, false});
    active_.push_back({static_cast<std::uint32_t>(admitted_++),
                       arrived.generated_tokens,
                       false,
                       {},
                       client_.busy()});
    changed = true;
    add(arrived.context_tokens * how_.costs.prefill, how_.shape.prefill_kernel,
        how_.shape.prefill_occupancy);
    if (how_.service == service_kind::fifo) {
      add(arrived.generated_tokens * how_.costs.decode, how_.shape.decode_kernel,
          how_.shape.decode_occupancy);
    }
  }
  if (changed) busy_();
}

void online_server::step() {
  admit();
  if (active_.empty()) return;  // The next arrival goes on.
  if (how_.service == service_kind::continuous) {
    const auto decoding = static_cast<double>(
        std::count_if(active_.begin(), active_.end(),
                      [](const active_request& each) { return each.tokens_left > 0; }));
    const auto fixed = decoding > 0 ? how_.decode_step : duration::zero();
    add(decoding * how_.costs.decode + fixed, how_.shape.decode_kernel,
        how_.shape.decode_occupancy);
  }
  submit_step();
}

void online_server::add(std::chrono::duration<double, std::nano> work, duration longest,
                        double occupancy) {
  const cut_work made = cut(work, longest);
  if (made.kernels == 0) return;
  if (!whole_kernels_) {
    pieces_.insert(pieces_.end(), made.kernels, {made.each, occupancy});
  } else if (!pieces_.empty() && pieces_.back().occupancy == occupancy) {
    pieces_.back().length += made.total();
  } else {
    pieces_.push_back({made.total(), occupancy});
  }
}

void online_server::submit_step() {
  if (pieces_.empty()) {  // Tokens that cost nothing.
    events_.at(events_.now(), [this] { step_ended(events_.now()); });
    return;
  }
  last_cookie_ = cookies_ + pieces_.size();
  for (const piece& each : pieces_) {
    gpu_.submit(queue_, each.length, each.occupancy, ++cookies_);
  }
  move(pointers_.written, pieces_.size());
  pieces_.clear();
}

void online_server::kernel_finished(std::uint64_t cookie, time_point at) {
  move(pointers_.finished, 1);
  if (cookie != last_cookie_) return;
  events_.at(at + how_.wake_up, [this, at] { step_ended(at); });
}

/// The first token is the end of `ttft`, each further one that of an `itl`, the last that of
/// `request`; marked as the demo's server does it.
void online_server::step_ended(time_point end) {
  ++steps_;
  last_end_ = end;
  for (active_request& each : active_) {
    served_request& row = seen_[each.number];
    if (how_.service == service_kind::fifo) {
      each.tokens_left = 0;
    } else {
      const bool first = !std::exchange(each.answered, true);
      if (first) {
        client_.end_span(span_kind::ttft, each.number);
        row.ttft = end - (start_ + row.arrived);
      } else {
        const duration gap = end - each.last_token;
        gaps_.push_back(gap);
        row.worst_itl = std::max(row.worst_itl, gap);
      }
      each.last_token = end;
      if (each.tokens_left > 0) --each.tokens_left;
      if (each.tokens_left != 0) {
        client_.begin_span(span_kind::itl, each.number);  // Ends the one before.
      } else if (!first) {
        client_.end_span(span_kind::itl, each.number);
      }
    }
    if (each.tokens_left == 0) finish(each, end);
  }
  std::erase_if(active_, [](const active_request& each) { return each.tokens_left == 0; });
  busy_();
  if (active_.empty() || how_.shape.host_gap == duration::zero()) {
    step();
  } else {
    events_.at(events_.now() + how_.shape.host_gap, [this] { step(); });
  }
}

void online_server::finish(active_request& one, time_point end) {
  served_request& row = seen_[one.number];
  row.latency = end - (start_ + row.arrived);
  row.finished = true;
  client_.end_span(span_kind::request, one.number);
  one.busy.end();
}

std::vector<served_request> online_server::take_results(time_point now) {
  for (; admitted_ < work_.requests.size(); ++admitted_) {
    const request& one = work_.requests[admitted_];
    if (start_ + one.at >= now) break;
    seen_.push_back({one.at, one.context_tokens, one.generated_tokens, {}, {}, {}, false});
  }
  for (served_request& each : seen_) {
    if (!each.finished) each.latency = now - (start_ + each.arrived);
  }
  return std::move(seen_);
}

}  // namespace sluice::lab
