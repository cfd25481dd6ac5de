/// What the simulation counts of itself: how late it was, and the JSON text that demo and tests
/// read.

#include "driver_state.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace sluice::sim {

// --- Lateness ------------------------------------------------------------------------------------

void lateness_histogram::record(duration late) {
  const auto value = std::max<std::int64_t>(late.count(), 0);
  const auto wide = static_cast<std::uint64_t>(value);
  const int shift = std::max(static_cast<int>(std::bit_width(wide)) - 1 - sub_bits, 0);
  const auto index = (static_cast<std::size_t>(shift) << sub_bits) + (wide >> shift);
  ++counts_[index];
  ++count_;
  max_ = std::max(max_, value);
}

std::int64_t lateness_histogram::percentile(double fraction) const {
  if (count_ == 0) return 0;
  const auto rank = std::max<std::uint64_t>(
      static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count_))), 1);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen < rank) continue;
    // Upper edge of the bucket; the inverse of record().
    const std::size_t sub = std::size_t{1} << sub_bits;
    const int shift = i < 2 * sub ? 0 : static_cast<int>((i >> sub_bits) - 1);
    const auto edge = ((i - (static_cast<std::size_t>(shift) << sub_bits)) + 1) << shift;
    return std::min(static_cast<std::int64_t>(edge - 1), max_);
  }
  return max_;
}

// --- stats.json ----------------------------------------------------------------------------------

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// `{"name":number,...}` without the braces' neighbours.
class json_object {
 public:
  json_object& add(const char* name, const std::string& raw) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += name;
    text_ += "\":";
    text_ += raw;
    return *this;
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> json_object& add(const char* name, Number value) {
    return add(name, std::to_string(value));
  }
  json_object& add(const char* name, duration value) { return add(name, value.count()); }
  std::string text() const { return text_ + '}'; }

 private:
  std::string text_;
};

std::string json_array(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    out += item;
  }
  return out + ']';
}

}  // namespace

void driver::impl::suspension_began(kfd_queue& queue) const {
  ++queue.owner->queue_suspends;
  if (!queue.suspended || queue.held_by == 0) queue.off_since = engine_.now();
}

void driver::impl::suspension_ended(kfd_queue& queue) const {
  if (queue.suspended || queue.held_by != 0) return;
  auto& longest = queue.owner->longest_suspension;
  longest = std::max(longest, engine_.now() - queue.off_since);
}

std::string driver::impl::stats_json() const {
  std::vector<std::string> gpus;
  for (const auto& node : gpus_) {
    gpus.push_back(json_object{}
                       .add("gpu_id", node->shape.gpu_id)
                       .add("cycles", node->model.cycles())
                       .add("cycle_ns", node->model.cycle_time())
                       .add("debug_cycles", node->model.debug_cycles())
                       .add("runlist_switches", node->model.switches())
                       .add("resets", node->resets)
                       .text());
  }
  std::vector<std::string> processes;
  const auto describe = [this, &processes](const kfd_process& process) {
    account sum;
    for (const auto& node : gpus_) {
      const auto one = node->model.process_account(static_cast<model_process>(process.serial));
      sum.busy += one.busy;
      sum.unfinished += one.unfinished;
      sum.disturbed += one.disturbed;
      sum.started += one.started;
      sum.completed += one.completed;
    }
    const auto suspended = std::count_if(process.queues.begin(), process.queues.end(),
                                         [](const auto& q) { return q->suspended; });
    const auto held = std::count_if(process.queues.begin(), process.queues.end(),
                                    [](const auto& q) { return q->held_by != 0; });
    duration longest = process.longest_suspension;
    for (const auto& q : process.queues) {
      if (q->suspended || q->held_by != 0)
        longest = std::max(longest, engine_.now() - q->off_since);
    }
    processes.push_back(json_object{}
                            .add("pid", process.pid)
                            .add("alive", std::string{process.gone ? "false" : "true"})
                            .add("queues", process.queues.size())
                            .add("suspended_queues", suspended)
                            .add("held_queues", held)
                            .add("queue_suspends", process.queue_suspends)
                            .add("longest_suspension_ns", longest)
                            .add("kernels_started", sum.started)
                            .add("kernels_completed", sum.completed)
                            .add("busy_ns", sum.busy)
                            .add("unfinished_ns", sum.unfinished)
                            .add("disturbed_ns", sum.disturbed)
                            .add("broken_queues", process.broken_queues)
                            .text());
  };
  for (const auto& process : exited_) describe(*process);
  for (const auto& [pid, process] : live_) describe(*process);
  return json_object{}
             .add("now_ns", engine_.now().time_since_epoch().count())
             .add("profile", quoted(profile_.name))
             .add("lateness_ns", json_object{}
                                     .add("count", lateness_.count())
                                     .add("p50", lateness_.percentile(0.5))
                                     .add("p99", lateness_.percentile(0.99))
                                     .add("max", lateness_.max())
                                     .text())
             .add("gpus", json_array(gpus))
             .add("processes", json_array(processes))
             .text() +
         "\n";
}

}  // namespace sluice::sim
