#include "offline.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// What runtimes call normal.
constexpr std::uint32_t offline_priority = 7;

/// Longer than any run: such a kernel ends when it is told to.
constexpr duration until_told = 24h * 365;

/// A cookie is the kernel's number on its lane, its lane, and whether it is a collective.
constexpr std::uint64_t collective_bit = 1;
constexpr std::uint64_t cookie_of(std::uint64_t number, std::size_t lane, bool of_gang) {
  return number << 16 | std::uint64_t{lane} << 1 | (of_gang ? collective_bit : 0);
}
constexpr std::size_t lane_of(std::uint64_t cookie) { return (cookie >> 1) & 0x7fff; }

}  // namespace

offline_process::offline_process(sim::engine& events, gpu& on, sim::model_process self,
                                 kernel_stream kernels, duration wake_up)
    : events_(events),
      gpu_(on),
      self_(self),
      stream_(std::move(kernels)),
      wake_up_(wake_up),
      lanes_(stream_.shape().queues),
      last_finished_(lanes_.size()) {
  for (lane& each : lanes_) each.queue = on.add_queue(self, offline_priority, *this);
}

void offline_process::begin() {
  host_planned_ = true;
  events_.at(events_.now(), [this] { host(); });
}

void offline_process::stop() { stopped_ = true; }

void offline_process::go_on() {
  stopped_ = false;
  if (std::exchange(host_owed_, false)) host();
}

void offline_process::host() {
  if (stopped_) {
    host_owed_ = true;
    return;
  }
  host_planned_ = false;
  if (stream_.shape().kernels_per_step == 0) {
    refill();
  } else {
    submit_step();
  }
}

void offline_process::refill() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    while (lanes_[i].in_flight < stream_.shape().depth) submit(i);
  }
}

void offline_process::submit_step() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    for (std::uint32_t k = 0; k < stream_.shape().kernels_per_step; ++k) submit(i);
  }
  if (gang_ == nullptr) return;
  ++lanes_[0].in_flight;
  gpu_.submit(lanes_[0].queue, until_told, gang_->occupancy(), cookie_of(++submitted_, 0, true));
  if (gpu_.is_part()) lanes_[0].longer.push_back(1);
}

void offline_process::submit(std::size_t lane_number) {
  lane& to = lanes_[lane_number];
  const drawn_kernel drawn = stream_.next();
  ++to.in_flight;
  const double longer = gpu_.submit(to.queue, drawn.length, drawn.occupancy,
                                    cookie_of(++submitted_, lane_number, false));
  if (gpu_.is_part()) to.longer.push_back(longer);
}

duration offline_process::surplus_now(const lane& of) const {
  if (of.longer.empty()) return {};
  const double share = 1 - 1 / of.longer.front();
  return duration(std::llround(static_cast<double>((busy(of) - of.counted).count()) * share));
}

void offline_process::kernel_started(std::uint64_t cookie, time_point) {
  if ((cookie & collective_bit) == 0) return;
  collective_began_ = busy(lanes_[0]);
  // Not from inside the model.
  events_.at(events_.now(), [this] { gang_->began(); });
}

void offline_process::finish_collective(duration left) {
  gpu_.model().finish_within(lanes_[0].queue, left);
}

void offline_process::kernel_finished(std::uint64_t cookie, time_point at) {
  const std::size_t number = lane_of(cookie);
  if (cookie <= last_finished_[number]) ++twice_;
  last_finished_[number] = cookie;
  ++finished_;
  lane& of = lanes_[number];
  --of.in_flight;
  if (!of.longer.empty()) {
    of.surplus += surplus_now(of);
    of.counted = busy(of);
    of.longer.pop_front();
  }
  if ((cookie & collective_bit) != 0) {
    collectives_ += busy(lanes_[0]) - *collective_began_;
    collective_began_.reset();
  } else {
    ++kernels_;
  }
  if (host_planned_) return;
  duration later = wake_up_;
  if (stream_.shape().kernels_per_step != 0) {
    if (std::any_of(lanes_.begin(), lanes_.end(),
                    [](const lane& each) { return each.in_flight != 0; })) {
      return;
    }
    later += stream_.next_gap();
  }
  host_planned_ = true;
  events_.at(at + later, [this] { host(); });
}

duration offline_process::work() const {
  duration sum{};
  for (const lane& each : lanes_) sum += busy(each) - each.surplus - surplus_now(each);
  sum -= collectives_;
  if (collective_began_) {
    sum -= busy(lanes_[0]) - *collective_began_;
  }
  return sum;
}

bool offline_process::conserved() const {
  std::uint64_t there = 0;
  for (const lane& each : lanes_) there += gpu_.model().backlog(each.queue);
  return twice_ == 0 && submitted_ == finished_ + there;
}

void collective::began() {
  if (++there_ < ranks_.size()) return;
  there_ = 0;
  for (offline_process* const each : ranks_) each->finish_collective(exchange_);
}

}  // namespace sluice::lab
