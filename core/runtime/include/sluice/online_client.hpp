#pragma once
/// \file
/// How online code tells the scheduler that it has work, and how its requests fare: two counters
/// that any thread may bump, and marks where spans of requests begin and end.

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/policy.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

namespace detail {
template <class Token, class Handler>
class acquire_operation;
}
struct client_page;
class scheduler_core;

struct client_options {
  std::string name;  ///< For logs.
  /// Where the work runs; empty means every GPU of the node. That of a member of an online gang
  /// counts on every GPU of the gang.
  std::vector<gpu_id> gpus;
  /// Longest time acquire() waits for the GPUs to be free; while nobody makes room it waits for
  /// none.
  duration acquire_limit = std::chrono::milliseconds(100);
  /// How long its spans should take at most, by span_kind; zero: it does not say. For policies.
  std::array<duration, span_kinds> targets{};
  pid_t pid = 0;  ///< Whose it is; 0: this process's.
};

/// "Online work is in flight", for as long as it lives. Move it to where the work ends.
///
/// Threading: any thread may destroy it, not two at once.
/// Lifetime:  independent of the client's and the scheduler's: ending late is harmless.
class busy_token {
 public:
  busy_token() noexcept = default;  ///< Holds nothing.
  busy_token(busy_token&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)), clear_(std::exchange(other.clear_, false)) {}
  busy_token& operator=(busy_token&& other) noexcept {
    if (this != &other) {
      end();
      page_ = std::exchange(other.page_, nullptr);
      clear_ = std::exchange(other.clear_, false);
    }
    return *this;
  }
  ~busy_token() { end(); }

  /// Ends the busy period before the token's life does.
  void end() noexcept;
  explicit operator bool() const noexcept { return page_ != nullptr; }
  /// From acquire() only: whether every offline queue that could be suspended was, when it
  /// completed.
  bool was_clear() const noexcept { return clear_; }

 private:
  friend class online_client;
  template <class Token, class Handler>
  friend class detail::acquire_operation;
  explicit busy_token(std::shared_ptr<client_page> page) noexcept : page_(std::move(page)) {}
  std::shared_ptr<client_page> page_;
  bool clear_ = false;
};

/// A span of a request, which ends with its life. Move it to where the span ends.
///
/// Threading: any thread may destroy it, not two at once.
/// Lifetime:  independent of the client's and the scheduler's.
class span_token {
 public:
  span_token() noexcept = default;  ///< Holds nothing.
  span_token(span_token&& other) noexcept = default;
  span_token& operator=(span_token&& other) noexcept {
    if (this != &other) {
      end();
      page_ = std::move(other.page_);
      kind_ = other.kind_;
      request_ = other.request_;
    }
    return *this;
  }
  ~span_token() { end(); }

  /// Ends the span before the token's life does.
  void end() noexcept;
  explicit operator bool() const noexcept { return page_ != nullptr; }

 private:
  friend class online_client;
  span_token(std::shared_ptr<client_page> page, span_kind kind, std::uint64_t request) noexcept
      : page_(std::move(page)), kind_(kind), request_(request) {}
  std::shared_ptr<client_page> page_;
  span_kind kind_{};
  std::uint64_t request_ = 0;
};

/// A registered online client.
///
/// Threading: begin(), end(), busy(), acquire() and the marks of spans from any number of threads
///            at once; moving and destroying it from one.
/// Lifetime:  independent of the scheduler's. Destruction withdraws the client: what it had in
///            flight no longer counts. The page of counters is owned together by the client, its
///            tokens and the scheduler.
/// Errors:    none: a full scheduler, a stopped one and a dead one all look the same from here.
class online_client {
 public:
  online_client() noexcept = default;  ///< Registered nowhere: every call does nothing.
  online_client(online_client&&) noexcept = default;
  online_client& operator=(online_client&& other) noexcept;
  ~online_client();

  /// Online work begins. Wait-free but for one eventfd write when the reactor sleeps; no lock, no
  /// allocation.
  void begin() noexcept;
  /// Online work ended; as begin(), but that it is lock-free where several end at once.
  void end() noexcept;
  /// begin() now, end() when the token goes.
  [[nodiscard]] busy_token busy() noexcept;

  /// Begins, then completes when every offline queue that can be suspended on the client's GPUs
  /// is, after client_options::acquire_limit, or at once where nobody makes room (no policy, as
  /// while a node is paused; a scheduler that stops or only observes). Include acquire.hpp to use
  /// it:
  /// `auto busy = co_await client.acquire();` or with any completion token for
  /// `void(error_code, busy_token)`.
  template <class... CompletionToken>
  auto acquire(CompletionToken&&... token);

  /// The span `kind` of a request begins now, or began at `since` (not later than now). Beginning
  /// one that is open ends it and begins it anew, so a server that marks every token needs one call
  /// per token. One that nobody ends stops counting after max_busy, or when the client withdraws.
  ///
  /// Marks are for policies that know targets (slo); online work begins with begin() and busy().
  /// Wait-free, no lock, no allocation. Marks of requests and first tokens wake the reactor as
  /// begin() does, those of tokens only while the policy waits for them. When a thousand marks wait
  /// to be looked at, further ones are dropped and counted (statistics::lost_marks).
  /// \param request the caller's number; unique among this client's open spans of this kind.
  void begin_span(span_kind kind, std::uint64_t request) noexcept;
  void begin_span(span_kind kind, std::uint64_t request, time_point since) noexcept;
  /// As begin_span(). One that is not open is ignored and counted.
  void end_span(span_kind kind, std::uint64_t request) noexcept;
  /// begin_span() now, end_span() when the token goes.
  [[nodiscard]] span_token span(span_kind kind, std::uint64_t request) noexcept;

  client_id id() const noexcept;

 private:
  friend class scheduler_core;
  explicit online_client(std::shared_ptr<client_page> page) noexcept : page_(std::move(page)) {}

  // The parts of acquire() that need no Asio. Static: the client may be moved or go meanwhile.
  using shared_page = std::shared_ptr<client_page>;
  static busy_token begin_on(shared_page page) noexcept;
  /// Calls `done(clear)` once, on the reactor thread.
  /// \return a number for stop_waiting(); 0 when nobody will ever answer: `done` is not called
  /// then.
  static std::uint64_t wait_until_clear(const shared_page& page, std::function<void(bool)> done);
  /// \return whether it was in time: `done` will not be called then.
  static bool stop_waiting(const shared_page& page, std::uint64_t wait);
  std::shared_ptr<client_page> page_;
};

}  // namespace sluice
#pragma GCC visibility pop
