#pragma once
/// \file
/// A scheduler's loop without a scheduler: turns, ticks, and a memory of what was heard.

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::test {

class backend_loop final : public backend_listener {
 public:
  explicit backend_loop(std::unique_ptr<backend> what) : backend_(std::move(what)) {}
  ~backend_loop() { backend_.reset(); }
  backend_loop(const backend_loop&) = delete;
  backend_loop& operator=(const backend_loop&) = delete;

  backend& operator*() { return *backend_; }
  backend* operator->() { return backend_.get(); }

  result<void> start() { return backend_->start(*this); }

  /// Turns until the condition holds. \return false when it did not within the limit.
  bool until(const std::function<bool()>& condition, duration limit = std::chrono::seconds{10}) {
    const time_point end = clock::now() + limit;
    for (;;) {
      turn(std::chrono::milliseconds{2});
      if (condition()) return true;
      if (clock::now() >= end) return false;
    }
  }

  void turn(duration at_most) {
    const time_point now = clock::now();
    if (now >= next_tick_) next_tick_ = backend_->tick(now);
    pollfd ready{backend_->ready_fd(), POLLIN, 0};
    const duration left = std::min(at_most, next_tick_ - now);
    ::poll(&ready, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    backend_->drain();
  }

  /// Submits and waits for the outcomes.
  std::optional<batch_result> act(command_kind kind, process_id target,
                                  const std::vector<std::uint32_t>& ids,
                                  duration limit = std::chrono::seconds{10}) {
    batch work;
    work.id = ++last_batch_;
    work.target = target;
    work.gpu = gpu_id{1};
    work.kind = kind;
    work.count = static_cast<std::uint16_t>(ids.size());
    for (std::size_t index = 0; index < ids.size(); ++index)
      work.queues[index] = driver_queue_id{ids[index]};
    if (!backend_->submit(work)) return {};
    if (!until([&] { return results.contains(work.id); }, limit)) return {};
    return results.at(work.id);
  }
  std::optional<batch_result> suspend(process_id target, const std::vector<std::uint32_t>& ids) {
    return act(command_kind::suspend, target, ids);
  }
  std::optional<batch_result> resume(process_id target, const std::vector<std::uint32_t>& ids) {
    return act(command_kind::resume, target, ids);
  }

  // What was heard.
  std::map<process_id, error_code> attachments;
  std::map<process_id, std::string> refusals;  ///< Why, of those that were refused with a sentence.
  std::map<process_id, std::set<driver_queue_id>> queues;
  std::vector<queue_info> added;
  std::map<std::uint64_t, batch_result> results;
  std::set<process_id> detachments;
  std::map<process_id, error_code> quanta;  ///< Answers to set_quantum().
  std::vector<observation> observations;
  std::set<gpu_id> lost_gpus;
  int losses = 0;
  int restorations = 0;

 private:
  void attached(process_id target, error_code error) override { attachments[target] = error; }
  void attach_refused(process_id target, std::string_view why) override { refusals[target] = why; }
  void queue_added(const queue_info& queue) override {
    queues[queue.target].insert(queue.id);
    added.push_back(queue);
  }
  void queue_removed(process_id target, driver_queue_id queue) override {
    queues[target].erase(queue);
  }
  void completed(const batch_result& result) override { results[result.id] = result; }
  void detached(process_id target) override {
    detachments.insert(target);
    queues.erase(target);
  }
  void quantum_set(process_id target, gpu_id, duration, error_code error) override {
    quanta[target] = error;
  }
  void observed(const observation& seen) override { observations.push_back(seen); }
  void gpu_lost(gpu_id gpu) override { lost_gpus.insert(gpu); }
  void lost(error_code) override {
    ++losses;
    attachments.clear();
    queues.clear();
  }
  void restored() override { ++restorations; }

  std::unique_ptr<backend> backend_;
  time_point next_tick_{};
  std::uint64_t last_batch_ = 0;
};

}  // namespace sluice::test
