#pragma once
/// \file
/// Where other threads meet the reactor: the `sleeping` word with its eventfd, the clients' pages,
/// and the counter where clients register and wait.

#include "scheduler_page.hpp"
#include "wait_list.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sluice/client_host.hpp"
#include "sluice/client_words.h"
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
/// sees what was published. The producer here that takes the word from 1 to 0 is the one that
/// writes; those in other processes can only read it, and each writes an eventfd of its own.
class wake_word {
 public:
  /// \param sleeping where the word is; nobody else writes it.
  explicit wake_word(std::uint64_t& sleeping) noexcept;
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
  void awake() noexcept { __atomic_store_n(&sleeping_, 0, __ATOMIC_RELAXED); }
  void sleep() noexcept;
  void clear_eventfd() noexcept;

 private:
  std::uint64_t& sleeping_;
  /// From the time on when it was made: later than any that a scheduler before it came to.
  std::uint64_t last_sleep_;
  int fd_;
};

class front_desk;

inline std::uint64_t load_word(const std::uint64_t& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

}  // namespace core

/// One client. Owned together by the client, its tokens and the reactor, so that each may go first.
struct client_page {
  enum class made_by : std::uint8_t {
    client,
    scheduler,  ///< For a process that is no client: what is seen of its work (seen_requests.hpp).
  };
  /// \param from of a client in another process: its words are not to be trusted. Null: of this.
  client_page(client_id id, client_options options, std::shared_ptr<core::front_desk> desk,
              std::shared_ptr<sluice_client_words> words, remote_client* from,
              made_by maker = made_by::client);

  void begin() noexcept;
  /// At a time that is past.
  void begin(time_point at) noexcept;
  void end() noexcept;
  void mark(span_kind kind, std::uint64_t request, time_point at, bool begins) noexcept;

  const client_id id;
  const client_options options;
  const std::shared_ptr<core::front_desk> desk;
  const std::shared_ptr<sluice_client_words> words;
  /// What the words said when it came: one that another scheduler knew before has begun and ended
  /// `base` periods that are past; what is in flight begins now.
  const std::uint64_t base;
  const std::uint64_t taken;
  const std::uint64_t lost;
  const bool foreign;
  const made_by maker;
  std::atomic<bool> withdrawn{false};
  /// Reactor thread. Null once the client is withdrawn.
  remote_client* remote;
};

namespace core {

/// Threading: any thread, but for what says "reactor thread".
class front_desk {
 public:
  /// \param time outlives every client.
  /// \param acts backend::acts(): whether somebody makes room for those who wait.
  front_desk(const time_source& time, const scheduler_config& config, bool acts);

  wake_word& wake() noexcept { return wake_; }
  scheduler_page& shared() noexcept { return page_; }
  time_point now() const noexcept { return time_.now(); }

  /// Whether marks of that kind ring the bell. Reactor thread; any thread asks.
  void listen(span_kind kind, bool at_once) noexcept {
    __atomic_store_n(&listened(kind), at_once ? 1U : 0U, __ATOMIC_RELAXED);
  }
  bool listens(span_kind kind) noexcept {
    return __atomic_load_n(&listened(kind), __ATOMIC_RELAXED) != 0;
  }

  void register_page(std::shared_ptr<client_page> page);
  client_id next_id() noexcept {
    return client_id{last_id_.fetch_add(1, std::memory_order_relaxed) + 1};
  }
  /// As client_host::wait_until_clear().
  /// \return the wait's number, or 0 when nobody will make room or the desk is closed: then `done`
  /// was not taken.
  std::uint64_t add_wait(std::shared_ptr<client_page> page, time_point deadline,
                         std::function<void(bool)> done);
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
  /// Reactor thread. Answers the waits for which `is_clear(page)` holds or whose time is over at
  /// `now`; never: all of them.
  /// \return the earliest deadline that is left.
  template <class Predicate>
  time_point answer_waits(time_point now, Predicate&& is_clear);
  /// Reactor thread. Answers everybody, takes nobody any more.
  void close();

 private:
  std::uint32_t& listened(span_kind kind) noexcept {
    return page_.words().listened[static_cast<std::size_t>(kind)];
  }

  const time_source& time_;
  const bool acts_;
  scheduler_page page_;
  wake_word wake_;
  std::atomic<std::uint64_t> last_id_{0};
  std::atomic<bool> arrivals_waiting_{false};
  std::atomic<std::size_t> waits_waiting_{0};
  std::atomic<bool> new_waits_{false};
  std::atomic<bool> rearms_waiting_{false};
  std::atomic<bool> policy_waiting_{false};
  std::atomic<bool> config_waiting_{false};
  std::atomic<bool> closed_{false};
  // Registration and waiting only; no begin or end passes here.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<client_page>> arrivals_;
  wait_list waits_;
  std::vector<gpu_id> rearms_;
  std::unique_ptr<policy> policy_;
  scheduler_config config_;
  std::uint64_t last_wait_ = 0;
};

template <class Predicate>
time_point front_desk::answer_waits(time_point now, Predicate&& is_clear) {
  time_point next = never;
  std::vector<wait_list::answer> answered;
  {
    const std::lock_guard lock(mutex_);
    new_waits_.store(false, std::memory_order_relaxed);
    answered = waits_.take_answered(
        now, [&](client_id, const std::shared_ptr<client_page>& page) { return is_clear(*page); });
    next = waits_.next();
    waits_waiting_.store(waits_.size(), std::memory_order_release);
  }
  for (auto& [request, clear] : answered) request.done(clear);
  return next;
}

}  // namespace core
}  // namespace sluice
