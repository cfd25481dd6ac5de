#pragma once
/// \file
/// Two threads of a benchmark on two cores, and one that waits until the other sleeps.

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

namespace sluice::bench {

/// The calling thread, to the `index`-th of the cores that the program may use; modulo their
/// number.
inline void pin_to_core(int index) {
  static const cpu_set_t allowed = [] {
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    return all;
  }();
  index %= CPU_COUNT(&allowed);
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || index-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

/// Tells whether a thread of this process sleeps, so that what wakes it really wakes it.
///
/// Threading: one thread, another than the one that is watched.
class sleeper_watch {
 public:
  explicit sleeper_watch(pid_t thread)
      : stat_(::open(("/proc/self/task/" + std::to_string(thread) + "/stat").c_str(),
                     O_RDONLY | O_CLOEXEC)) {}
  ~sleeper_watch() { ::close(stat_); }
  sleeper_watch(const sleeper_watch&) = delete;
  sleeper_watch& operator=(const sleeper_watch&) = delete;

  bool sleeps() const {
    std::array<char, 128> text;
    const ssize_t got = ::pread(stat_, text.data(), text.size(), 0);
    if (got <= 0) return false;
    const std::string_view all(text.data(), static_cast<std::size_t>(got));
    const auto name_ends = all.rfind(") ");
    return name_ends != std::string_view::npos && all.substr(name_ends + 2, 1) == "S";
  }

 private:
  const int stat_;
};

}  // namespace sluice::bench
