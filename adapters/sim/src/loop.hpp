#pragma once
/// \file
/// The device's one thread in real time: sleeps until the engine has something planned or the
/// outside wants something, and lets the engine catch up before it hands anything in.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/time.hpp"

namespace sluice::sim {

class engine;

/// Runs an engine against the monotonic clock.
///
/// Results stay exact however late the thread wakes, because the engine computes from planned
/// times; only the reporting is late. Therefore wake-ups for planned events keep a distance of
/// `coalesce` from each other: a chain of 10 us kernels costs one wake-up for several of them.
///
/// Threading: post() and stop() from any thread; all else from the thread in run(), or before it.
/// Lifetime:  the engine outlives it. Descriptors stay their owners', who unwatch before closing.
/// Errors:    the constructor and watch() throw std::system_error (no descriptors left, or one that
///            epoll does not take); nothing else fails. Handlers must not throw.
class realtime_loop {
 public:
  static constexpr duration coalesce = std::chrono::microseconds{30};

  explicit realtime_loop(engine& planned);
  realtime_loop(const realtime_loop&) = delete;
  realtime_loop& operator=(const realtime_loop&) = delete;

  /// Runs `work` soon, after everything that was planned for earlier. Allocates.
  void post(std::function<void()> work);
  /// Ends run() after the current turn.
  void stop() noexcept;

  /// Calls `ready` once for each time the descriptor *becomes* readable (edge-triggered): who
  /// drains it does so completely, and a counter that nobody reads need not be drained at all.
  void watch(int fd, std::function<void()> ready);
  /// Calls `ready` while the descriptor is readable, of several that watch it the same way (each
  /// with an epoll of its own) only one: this loop if it sleeps and was the first to watch. Called
  /// before anything that is planned. One descriptor at most.
  void watch_shared(int fd, std::function<void()> ready);
  void unwatch(int fd);

  /// Told how long after its planned time the oldest event of a wake-up ran.
  std::function<void(duration)> on_late;

  void run();

 private:
  void add(int fd, std::uint32_t events, std::function<void()> ready);
  void arm();
  void wake_up();
  void catch_up();
  void hand_in();

  engine& planned_;
  unique_fd epoll_;
  unique_fd wake_;
  unique_fd timer_;
  time_point armed_ = never;
  time_point last_timer_wake_{};
  std::uint64_t last_key_ = 0;
  std::uint64_t shared_ = 0;  // Of watch_shared().
  std::unordered_map<int, std::uint64_t> keys_;
  std::unordered_map<std::uint64_t, std::shared_ptr<std::function<void()>>> watched_;
  std::atomic<bool> stopping_{false};

  std::mutex inbox_mutex_;
  std::vector<std::function<void()>> inbox_;  // Guarded by inbox_mutex_.
  std::vector<std::function<void()>> taken_;
};

}  // namespace sluice::sim
