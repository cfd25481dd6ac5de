#pragma once
/// \file
/// Coroutines for driver code: what blocks in the kernel (locks, waits, the time that hardware
/// takes) is here a suspension on the engine's time line.
///
/// House rules, since frames are destroyed wherever they wait when the driver goes: parameters by
/// value; no coroutine lambda with captures; nothing with a destructor inside a conditional
/// expression that awaits (g++ 12 destroys it twice).

#include "engine.hpp"

#include <coroutine>
#include <cstdint>
#include <exception>
#include <list>
#include <optional>
#include <unordered_set>
#include <utility>

#include "sluice/time.hpp"

namespace sluice::sim {

template <class T>
class task;

namespace detail {

/// On completion, continues whoever awaits the task.
struct final_awaiter {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> done) const noexcept {
    return done.promise().continuation;
  }
  void await_resume() const noexcept {}
};

struct task_promise_base {
  std::coroutine_handle<> continuation = std::noop_coroutine();
  std::suspend_always initial_suspend() const noexcept { return {}; }
  final_awaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() const noexcept { std::terminate(); }
};

template <class T>
struct task_promise : task_promise_base {
  std::optional<T> value;
  task<T> get_return_object() noexcept;
  void return_value(T result) { value.emplace(std::move(result)); }
  T take() { return std::move(*value); }
};

template <>
struct task_promise<void> : task_promise_base {
  task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void take() const noexcept {}
};

}  // namespace detail

/// A coroutine that starts when it is awaited and is destroyed with its task, wherever it waits.
template <class T = void>
class [[nodiscard]] task {
 public:
  using promise_type = detail::task_promise<T>;

  explicit task(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  task(task&& other) noexcept : frame_{std::exchange(other.frame_, {})} {}
  task& operator=(task&&) = delete;
  ~task() {
    if (frame_) frame_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    frame_.promise().continuation = awaiting;
    return frame_;
  }
  T await_resume() { return frame_.promise().take(); }

 private:
  std::coroutine_handle<promise_type> frame_;
};

template <class T>
task<T> detail::task_promise<T>::get_return_object() noexcept {
  return task<T>{std::coroutine_handle<task_promise>::from_promise(*this)};
}
inline task<void> detail::task_promise<void>::get_return_object() noexcept {
  return task<void>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

/// Owns coroutines that nobody awaits. Destruction destroys those that still wait.
class task_scope {
 public:
  task_scope() = default;
  task_scope(const task_scope&) = delete;
  task_scope& operator=(const task_scope&) = delete;
  ~task_scope() {
    for (void* frame : std::exchange(running_, {})) {
      std::coroutine_handle<>::from_address(frame).destroy();
    }
  }

  /// Runs the task up to its first suspension, and from there as its awaitables say.
  void start(task<void> work) {
    const auto frame = run(std::move(work)).frame;
    frame.promise().scope = this;
    running_.insert(frame.address());
    frame.resume();
  }

 private:
  struct root {
    struct promise_type {
      task_scope* scope = nullptr;
      ~promise_type() {
        if (scope == nullptr) return;
        scope->running_.erase(std::coroutine_handle<promise_type>::from_promise(*this).address());
      }
      root get_return_object() noexcept {
        return {std::coroutine_handle<promise_type>::from_promise(*this)};
      }
      std::suspend_always initial_suspend() const noexcept { return {}; }
      std::suspend_never final_suspend() const noexcept { return {}; }
      void unhandled_exception() const noexcept { std::terminate(); }
      void return_void() const noexcept {}
    };
    std::coroutine_handle<promise_type> frame;
  };
  static root run(task<void> work) { co_await work; }

  std::unordered_set<void*> running_;
};

/// `co_await sleep_until(engine, when)`: continues at the planned moment, or at once if it is past.
class sleep_until {
 public:
  sleep_until(engine& events, time_point when) noexcept : engine_{events}, when_{when} {}
  sleep_until(const sleep_until&) = delete;
  sleep_until& operator=(const sleep_until&) = delete;
  ~sleep_until() { engine_.cancel(timer_); }

  bool await_ready() const noexcept { return when_ <= engine_.now(); }
  void await_suspend(std::coroutine_handle<> waiting) {
    timer_ = engine_.at(when_, [waiting] { waiting.resume(); });
  }
  void await_resume() noexcept { timer_ = {}; }

 private:
  engine& engine_;
  time_point when_;
  timer_id timer_{};
};

/// A mutex for coroutines: uninterruptible, first come first served. Its next owner continues from
/// the engine, at the moment of the release.
class async_mutex {
 public:
  explicit async_mutex(engine& events) noexcept : engine_{events} {}
  async_mutex(const async_mutex&) = delete;
  async_mutex& operator=(const async_mutex&) = delete;

  /// Ownership; given up by unlock() or destruction.
  class [[nodiscard]] guard {
   public:
    guard() = default;
    explicit guard(async_mutex& owned) noexcept : owned_{&owned} {}
    guard(guard&& other) noexcept : owned_{std::exchange(other.owned_, nullptr)} {}
    guard& operator=(guard&& other) noexcept {
      if (this != &other) {
        unlock();
        owned_ = std::exchange(other.owned_, nullptr);
      }
      return *this;
    }
    ~guard() { unlock(); }
    void unlock() noexcept {
      if (owned_ != nullptr) std::exchange(owned_, nullptr)->release();
    }

   private:
    async_mutex* owned_ = nullptr;
  };

  class acquisition {
   public:
    explicit acquisition(async_mutex& wanted) noexcept : mutex_{wanted} {}
    acquisition(const acquisition&) = delete;
    acquisition& operator=(const acquisition&) = delete;
    ~acquisition() {
      if (!waiting_) return;
      mutex_.waiters_.remove(this);
      if (owns_) {  // It was handed over but has not continued yet.
        mutex_.engine_.cancel(timer_);
        mutex_.release();
      }
    }
    bool await_ready() noexcept {
      if (mutex_.locked_) return false;
      mutex_.locked_ = true;
      return true;
    }
    void await_suspend(std::coroutine_handle<> waiting) {
      waiting_ = waiting;
      mutex_.waiters_.push_back(this);
    }
    guard await_resume() noexcept {
      waiting_ = {};
      return guard{mutex_};
    }

   private:
    friend class async_mutex;
    void hand_over() {
      owns_ = true;
      timer_ = mutex_.engine_.at(mutex_.engine_.now(), [this] { waiting_.resume(); });
    }
    async_mutex& mutex_;
    std::coroutine_handle<> waiting_;
    bool owns_ = false;
    timer_id timer_{};
  };

  acquisition lock() noexcept { return acquisition{*this}; }

 private:
  void release() noexcept {
    if (waiters_.empty()) {
      locked_ = false;
      return;
    }
    acquisition* next = waiters_.front();
    waiters_.pop_front();
    next->hand_over();
  }

  engine& engine_;
  bool locked_ = false;
  std::list<acquisition*> waiters_;
};

enum class wake_reason : std::uint8_t { woken, interrupted, timed_out };

class interruption;

/// Where coroutines sleep until somebody says that something changed.
class wait_queue {
 public:
  explicit wait_queue(engine& events) noexcept : engine_{events} {}
  wait_queue(const wait_queue&) = delete;
  wait_queue& operator=(const wait_queue&) = delete;

  class waiter;
  /// Sleeps until wake_all(), the signal, or the deadline. As with the kernel's queues: test the
  /// condition before and after. A signal raised earlier counts.
  waiter wait(interruption& signal, time_point deadline = never) noexcept;
  void wake_all();

 private:
  engine& engine_;
  std::list<waiter*> waiters_;
};

/// A pending signal of one caller: once raised, it stays raised.
class interruption {
 public:
  interruption() = default;
  interruption(const interruption&) = delete;
  interruption& operator=(const interruption&) = delete;
  bool raised() const noexcept { return raised_; }
  void raise();

 private:
  friend class wait_queue::waiter;
  bool raised_ = false;
  wait_queue::waiter* sleeping_ = nullptr;
};

class wait_queue::waiter {
 public:
  waiter(wait_queue& queue, interruption& signal, time_point deadline) noexcept
      : queue_{queue}, signal_{signal}, deadline_{deadline} {}
  waiter(const waiter&) = delete;
  waiter& operator=(const waiter&) = delete;
  ~waiter() {
    if (!waiting_) return;
    unlink();
    queue_.engine_.cancel(timer_);
  }
  bool await_ready() noexcept {
    if (signal_.raised())
      reason_ = wake_reason::interrupted;
    else if (deadline_ <= queue_.engine_.now())
      reason_ = wake_reason::timed_out;
    else
      return false;
    return true;
  }
  void await_suspend(std::coroutine_handle<> waiting) {
    waiting_ = waiting;
    queue_.waiters_.push_back(this);
    signal_.sleeping_ = this;
    if (deadline_ == never) return;
    timer_ = queue_.engine_.at(deadline_, [this] {
      unlink();
      reason_ = wake_reason::timed_out;
      waiting_.resume();
    });
  }
  wake_reason await_resume() noexcept {
    waiting_ = {};
    return reason_;
  }

 private:
  friend class wait_queue;
  friend class interruption;
  void unlink() noexcept {
    queue_.waiters_.remove(this);
    if (signal_.sleeping_ == this) signal_.sleeping_ = nullptr;
  }
  /// Continues from the engine, at this moment.
  void finish(wake_reason reason) {
    unlink();
    queue_.engine_.cancel(timer_);
    reason_ = reason;
    timer_ = queue_.engine_.at(queue_.engine_.now(), [this] { waiting_.resume(); });
  }
  wait_queue& queue_;
  interruption& signal_;
  time_point deadline_;
  std::coroutine_handle<> waiting_;
  timer_id timer_{};
  wake_reason reason_ = wake_reason::woken;
};

inline wait_queue::waiter wait_queue::wait(interruption& signal, time_point deadline) noexcept {
  return waiter{*this, signal, deadline};
}

inline void wait_queue::wake_all() {
  while (!waiters_.empty()) waiters_.front()->finish(wake_reason::woken);
}

inline void interruption::raise() {
  raised_ = true;
  if (sleeping_ != nullptr) sleeping_->finish(wake_reason::interrupted);
}

}  // namespace sluice::sim
