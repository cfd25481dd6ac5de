#pragma once
/// \file
/// Where other threads meet the reactor: the `sleeping` word with its eventfd, the clients' pages,
/// and the counter where clients register and wait.

#include "span_ring.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/online_client.hpp"
#include "sluice/policy.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice {

namespace core {

/// Saves producers the system call while the reactor is awake.
///
/// A producer publishes, then ring()s; the reactor says sleep(), then looks once more, then blocks.
/// The two seq_cst fences pair: either the producer sees `sleeping`, or the reactor's second look
/// sees what was published. The producer that takes the word from 1 to 0 is the one that writes.
class wake_word {
 public:
  wake_word() noexcept;
  ~wake_word();
  wake_word(const wake_word&) = delete;
  wake_word& operator=(const wake_word&) = delete;

  /// The eventfd, or -1 when the process was out of descriptors.
  int fd() const noexcept { return fd_; }
  /// Any thread, after publishing.
  void ring() noexcept;
  /// Any thread: wakes the reactor whether it says that it sleeps or not.
  void ring_always() noexcept;
  /// Reactor thread.
  void awake() noexcept { sleeping_.store(0, std::memory_order_relaxed); }
  void sleep() noexcept;
  void clear_eventfd() noexcept;

 private:
  alignas(64) std::atomic<std::uint32_t> sleeping_{1};
  int fd_;
};

class front_desk;

}  // namespace core

namespace core {

/// What a client's threads and the reactor share: words without pointers.
struct client_words {
  /// Written by clients. `first_unseen` is when the oldest begin began that the reactor has not
  /// looked at; a hint that feeds latencies, exact unless threads race to be first.
  alignas(64) std::atomic<std::uint64_t> begun{0};
  std::atomic<duration::rep> first_unseen{0};
  alignas(64) std::atomic<std::uint64_t> ended{0};
  /// Written by the reactor: the `begun` of its last look.
  alignas(64) std::atomic<std::uint64_t> seen{0};
  std::atomic<bool> withdrawn{false};
  span_ring spans;
};
static_assert(std::is_standard_layout_v<client_words> &&
              std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace core

/// One client. Owned together by the client, its tokens and the reactor, so that each may go first.
struct client_page : core::client_words {
  client_page(client_id id, client_options options, std::shared_ptr<core::front_desk> desk);

  void begin() noexcept;
  void end() noexcept;
  void mark(span_kind kind, std::uint64_t request, time_point at, bool begins) noexcept;

  const client_id id;
  const client_options options;
  const std::shared_ptr<core::front_desk> desk;
};

namespace core {

/// Threading: any thread, but for what says "reactor thread".
class front_desk {
 public:
  struct wait {
    std::uint64_t number = 0;
    std::shared_ptr<client_page> page;
    time_point deadline{};
    std::function<void(bool)> done;
  };

  /// \param time outlives every client.
  front_desk(const time_source& time, const scheduler_config& config)
      : time_(time), config_(config) {}

  wake_word& wake() noexcept { return wake_; }
  time_point now() const noexcept { return time_.now(); }

  /// Whether marks of that kind ring the bell. Reactor thread; any thread asks.
  void listen(span_kind kind, bool at_once) noexcept {
    listened_[static_cast<std::size_t>(kind)].store(at_once, std::memory_order_relaxed);
  }
  bool listens(span_kind kind) const noexcept {
    return listened_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }

  void register_page(std::shared_ptr<client_page> page);
  client_id next_id() noexcept {
    return client_id{last_id_.fetch_add(1, std::memory_order_relaxed) + 1};
  }
  /// \return the wait's number, or 0 when the desk is closed: then `done` was not taken.
  std::uint64_t add_wait(wait request);
  /// \return whether the wait was still there: then `done` will not be called.
  bool remove_wait(std::uint64_t number);
  /// Any thread: an operator's word that a GPU works again.
  void add_rearm(gpu_id which);
  /// Reactor thread.
  bool has_rearms() const noexcept { return rearms_waiting_.load(std::memory_order_acquire); }
  std::vector<gpu_id> take_rearms();
  /// Any thread: the policy from the next turn on; null for none. Nothing once closed.
  void offer_policy(std::unique_ptr<policy> next);
  /// Reactor thread.
  bool has_policy() const noexcept { return policy_waiting_.load(std::memory_order_acquire); }
  std::unique_ptr<policy> take_policy();
  /// Any thread: the settings from the next turn on, as scheduler::set_config().
  result<void> offer_config(const scheduler_config& next);
  /// Any thread: the latest.
  scheduler_config config() const;
  /// Reactor thread.
  bool has_config() const noexcept { return config_waiting_.load(std::memory_order_acquire); }
  scheduler_config take_config();
  bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  /// Reactor thread. Whether arrivals or waits are there to be looked at; no lock.
  bool has_arrivals() const noexcept { return arrivals_waiting_.load(std::memory_order_acquire); }
  bool has_waits() const noexcept { return waits_waiting_.load(std::memory_order_acquire) != 0; }
  /// Waits that no answer_waits() has looked at.
  bool has_new_waits() const noexcept { return new_waits_.load(std::memory_order_acquire); }
  /// Reactor thread.
  std::vector<std::shared_ptr<client_page>> take_arrivals();
  /// Reactor thread. Answers the waits for which `is_clear(page)` holds or whose time is over.
  /// \return the earliest deadline that is left.
  template <class Predicate>
  time_point answer_waits(time_point now, Predicate&& is_clear);
  /// Reactor thread. Answers everybody, takes nobody any more.
  void close();

 private:
  const time_source& time_;
  wake_word wake_;
  std::atomic<std::uint64_t> last_id_{0};
  std::atomic<bool> arrivals_waiting_{false};
  std::atomic<std::size_t> waits_waiting_{0};
  std::atomic<bool> new_waits_{false};
  std::atomic<bool> rearms_waiting_{false};
  std::atomic<bool> policy_waiting_{false};
  std::atomic<bool> config_waiting_{false};
  std::atomic<bool> closed_{false};
  std::array<std::atomic<bool>, span_kinds> listened_{true, true, false};  // As decision_sink says.
  // Registration and waiting only; no begin or end passes here.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<client_page>> arrivals_;
  std::vector<wait> waits_;
  std::vector<gpu_id> rearms_;
  std::unique_ptr<policy> policy_;
  scheduler_config config_;
  std::uint64_t last_wait_ = 0;
};

template <class Predicate>
time_point front_desk::answer_waits(time_point now, Predicate&& is_clear) {
  time_point next = never;
  std::vector<std::pair<wait, bool>> answered;
  {
    const std::lock_guard lock(mutex_);
    new_waits_.store(false, std::memory_order_relaxed);
    for (std::size_t i = 0; i < waits_.size();) {
      const bool clear = is_clear(*waits_[i].page);
      if (clear || now >= waits_[i].deadline) {
        answered.emplace_back(std::move(waits_[i]), clear);
        waits_[i] = std::move(waits_.back());
        waits_.pop_back();
      } else {
        next = std::min(next, waits_[i].deadline);
        ++i;
      }
    }
    waits_waiting_.store(waits_.size(), std::memory_order_release);
  }
  for (auto& [request, clear] : answered) request.done(clear);
  return next;
}

}  // namespace core
}  // namespace sluice
