#include "unique_fd.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

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

/// The host's signals are for the host's threads.
bool start_thread(closer& on) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([&on] { on.run(); }).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
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
