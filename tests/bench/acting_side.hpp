#pragma once
/// \file
/// Lanes with their targets attached and nobody who decides: what a preemption costs at least.

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {

/// The in-process backend. Queues of one target are on one GPU.
///
/// Threading: one thread. Errors: throws std::runtime_error.
class acting_side final : public backend_listener {
 public:
  acting_side(const kfd::roots& where, bool batch_commands)
      : driver_(kfd::make_in_process_backend(
            {.roots = where, .owner_lock = "", .batch_commands = batch_commands})) {
    if (!driver_->start(*this)) throw std::runtime_error("the backend does not start");
  }

  void attach(pid_t pid, std::size_t queues) {
    const auto who = identity_of(pid);
    if (!who) throw std::runtime_error("a target has ended");
    const process_id id{targets_.size() + 1};
    targets_.push_back(id);
    if (!driver_->attach(id, pid, who->start_time)) throw std::runtime_error("attach refused");
    until([&] { return queues_[id].size() == queues; });
  }

  struct cost {
    std::size_t calls = 0;
    duration time{};
  };
  /// All queues of all targets, each call naming at most `at_once` of one target.
  cost all(command_kind kind, std::size_t at_once) {
    cost sum;
    std::map<process_id, std::size_t> next;
    const auto& by_commands = acting_.has(capability::batch_targets);
    std::set<std::pair<time_point, time_point>> calls;
    const time_point began = clock::now();
    for (;;) {
      results_.clear();
      std::size_t sent = 0;
      for (const process_id target : targets_) {
        const auto& ids = queues_[target];
        std::size_t& from = next[target];
        if (from == ids.size()) continue;
        batch work;
        work.id = ++last_batch_;
        work.target = target;
        work.gpu = gpu_of_[target];
        work.kind = kind;
        while (from < ids.size() && work.count < at_once) work.queues[work.count++] = ids[from++];
        if (!driver_->submit(work)) throw std::runtime_error("submit refused");
        ++sent;
        if (at_once == 1) break;  // one by one
      }
      if (sent == 0) break;
      driver_->flush();
      until([&] { return results_.size() == sent; });
      for (const auto& result : results_) {
        const auto end = result.outcomes.begin() + result.count;
        if (std::any_of(result.outcomes.begin(), end,
                        [](outcome one) { return one != outcome::done; }))
          throw std::runtime_error("a queue was not " + std::string{kind == command_kind::suspend
                                                                        ? "suspended"
                                                                        : "resumed"});
        // Batches that went in one call share its times.
        if (by_commands)
          calls.emplace(result.started, result.finished);
        else
          ++sum.calls;
      }
    }
    sum.time = clock::now() - began;
    if (by_commands) sum.calls = calls.size();
    return sum;
  }

  const capabilities& acts() const { return acting_; }

 private:
  template <class Condition>
  void until(Condition condition) {
    const time_point give_up = clock::now() + std::chrono::minutes{1};
    while (!condition()) {
      if (clock::now() > give_up) throw std::runtime_error("no answer within a minute");
      pollfd ready{driver_->ready_fd(), POLLIN, 0};
      ::poll(&ready, 1, 10);
      driver_->drain();
    }
  }

  void attached(process_id, error_code error) override {
    if (error) throw std::runtime_error("attach: " + error.message());
  }
  void queue_added(const queue_info& queue) override {
    gpu_of_[queue.target] = queue.gpu;
    queues_[queue.target].push_back(queue.id);
  }
  void queue_removed(process_id, driver_queue_id) override {}
  void completed(const batch_result& result) override { results_.push_back(result); }
  void detached(process_id) override {}
  void acts_by(const capabilities& what, bool) override { acting_ = what; }
  void gpu_lost(gpu_id) override { throw std::runtime_error("the GPU is lost"); }
  void lost(error_code) override {}
  void restored() override {}

  std::unique_ptr<backend> driver_;
  capabilities acting_;
  std::vector<process_id> targets_;
  std::map<process_id, std::vector<driver_queue_id>> queues_;
  std::map<process_id, gpu_id> gpu_of_;
  std::vector<batch_result> results_;
  std::uint64_t last_batch_ = 0;
};

inline double milliseconds(duration span) {
  return std::chrono::duration<double, std::milli>(span).count();
}

/// The median of several rounds, by time.
template <class Round>
acting_side::cost median(int rounds, Round round) {
  std::vector<acting_side::cost> all;
  for (int i = 0; i < rounds; ++i) all.push_back(round());
  std::ranges::sort(all, {}, &acting_side::cost::time);
  return all[all.size() / 2];
}

}  // namespace sluice::bench
