#include "foreign_fd.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::client {
namespace {

constexpr std::size_t most_threads = 8;
/// Once nothing was taken off the queue for so long, a further thread does it.
constexpr std::chrono::milliseconds patience(100);
/// And once that thread had nothing to do for so long, it ends.
constexpr std::chrono::seconds idle(3);

/// Never destroyed, and its threads never joined: a peer may keep each in a close() for hours.
class closer {
 public:
  /// \return false: no thread is to be had.
  bool add(int fd) {
    const std::lock_guard lock(mutex_);
    if (threads_ == 0) {
      if (!start([this] { run(true); })) return false;
      ++threads_;
    }
    if (!minded_) minded_ = start([this] { mind(); });
    waiting_.fetch_add(1, std::memory_order_relaxed);
    fds_.push_back(fd);
    work_.notify_one();
    minder_.notify_one();
    return true;
  }
  std::size_t waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }

 private:
  template <class Function>
  static bool start(Function run) {
    std::thread made;
    if (!start_quiet_thread(made, run)) return false;
    made.detach();
    return true;
  }

  void run(bool stays) {
    std::unique_lock lock(mutex_);
    const auto any = [&] { return !fds_.empty(); };
    for (;;) {
      if (stays) {
        work_.wait(lock, any);
      } else if (!work_.wait_for(lock, idle, any)) {
        --threads_;
        return;
      }
      const int fd = fds_.front();
      fds_.pop_front();
      ++taken_;
      lock.unlock();
      ::close(fd);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      lock.lock();
    }
  }
  /// Starts further threads, as many as may be.
  void mind() {
    std::unique_lock lock(mutex_);
    for (;;) {
      minder_.wait(lock, [&] { return !fds_.empty() && threads_ < most_threads; });
      const std::uint64_t before = taken_;
      lock.unlock();
      std::this_thread::sleep_for(patience);
      lock.lock();
      if (!fds_.empty() && taken_ == before && start([this] { run(false); })) ++threads_;
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable minder_;
  std::deque<int> fds_;
  std::uint64_t taken_ = 0;
  std::size_t threads_ = 0;  // That close.
  bool minded_ = false;
  std::atomic<std::size_t> waiting_{0};
};

closer& the_closer() {
  static closer* const one = new closer;
  return *one;
}

}  // namespace

void close_elsewhere(int fd) noexcept {
  if (!the_closer().add(fd)) ::close(fd);
}

std::size_t closes_waiting() noexcept { return the_closer().waiting(); }

}  // namespace sluice::client
