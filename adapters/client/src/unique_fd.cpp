#include "unique_fd.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "sluice/quiet_thread.hpp"

namespace sluice::client {
namespace {

/// Never destroyed, and its thread never joined: a peer may keep it in a close() for hours.
struct closer {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<int> fds;
  bool has_thread = false;
  std::atomic<std::size_t> waiting{0};

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      news.wait(lock, [&] { return !fds.empty(); });
      const int fd = fds.back();
      fds.pop_back();
      lock.unlock();
      ::close(fd);
      waiting.fetch_sub(1, std::memory_order_relaxed);
      lock.lock();
    }
  }
};

closer& the_closer() {
  static closer* const one = new closer;
  return *one;
}

bool start_thread(closer& on) {
  std::thread made;
  if (!start_quiet_thread(made, [&on] { on.run(); })) return false;
  made.detach();
  return true;
}

}  // namespace

void close_elsewhere(int fd) noexcept {
  closer& on = the_closer();
  {
    const std::lock_guard lock(on.mutex);
    if (!on.has_thread) on.has_thread = start_thread(on);
    if (on.has_thread) {
      on.waiting.fetch_add(1, std::memory_order_relaxed);
      on.fds.push_back(fd);
      fd = -1;
    }
  }
  if (fd >= 0) {
    ::close(fd);  // No thread is to be had.
  } else {
    on.news.notify_one();
  }
}

std::size_t closes_waiting() noexcept {
  return the_closer().waiting.load(std::memory_order_relaxed);
}

}  // namespace sluice::client
