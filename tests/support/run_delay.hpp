#pragma once
/// \file
/// What the processes of a test were given of the processors.

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::test {

/// For how long the threads of some processes ran, and for how long they were ready and waited for
/// a processor (the run-queue delay), from /proc/PID/task/TID/schedstat. On a busy machine a test
/// subtracts it from what it measured. A virtual processor that stands still counts as well: as
/// time that a thread ran, or waited.
///
/// The times of a thread that ends are lost from the last look on, so look() must be called often:
/// see regular_looks.
///
/// Threading: any.
class run_delay {
 public:
  /// Adds a process; what its threads did before does not count.
  void add(pid_t pid) {
    const std::lock_guard hold{mutex_};
    processes_.push_back(pid);
    look_at(pid, true);
  }
  /// Reads what the threads did since the last look.
  void look() {
    const std::lock_guard hold{mutex_};
    for (const pid_t pid : processes_) look_at(pid, false);
  }
  /// Counts from now on.
  void restart() {
    look();
    const std::lock_guard hold{mutex_};
    ran_ = waited_ = longest_ = duration{};
  }

  /// Sums of all threads.
  duration ran() const { return locked(ran_); }
  duration waited() const { return locked(waited_); }
  /// The longest time for which one thread ran or waited between two looks, or has been waiting.
  duration longest() const { return locked(longest_); }

 private:
  struct times {
    duration ran{};
    duration waited{};
    time_point since = time_point::max();  ///< It has been ready, and has not run.
  };
  duration locked(const duration& which) const {
    const std::lock_guard hold{mutex_};
    return which;
  }
  /// \param is_new whether the threads' times until now do not count.
  void look_at(pid_t pid, bool is_new) {
    std::error_code gone;
    std::filesystem::directory_iterator each{"/proc/" + std::to_string(pid) + "/task", gone};
    for (; !gone && each != std::filesystem::directory_iterator{}; each.increment(gone)) {
      const std::string path = each->path().string();
      duration::rep ran = 0;
      duration::rep waited = 0;
      if (!(std::ifstream{path + "/schedstat"} >> ran >> waited)) continue;
      times& last = threads_[path];
      const times more{duration{ran} - last.ran, duration{waited} - last.waited};
      last.ran += more.ran;
      last.waited += more.waited;
      // A wait is counted when it ends.
      const bool waits = more.ran == duration{} && more.waited == duration{} && is_ready(path);
      last.since = waits ? std::min(last.since, clock::now()) : time_point::max();
      if (is_new) continue;
      ran_ += more.ran;
      waited_ += more.waited;
      longest_ = std::max(longest_, more.ran + more.waited);
      if (waits) longest_ = std::max(longest_, clock::now() - last.since);
    }
  }
  static bool is_ready(const std::string& path) {
    std::string text;
    std::getline(std::ifstream{path + "/stat"}, text);
    const auto name = text.rfind(')');
    return name != text.npos && text.compare(name, 3, ") R") == 0;
  }

  mutable std::mutex mutex_;
  std::vector<pid_t> processes_;
  std::map<std::string, times> threads_;
  duration ran_{};
  duration waited_{};
  duration longest_{};
};

/// Looks every 5 ms, in a thread of its own.
class regular_looks {
 public:
  explicit regular_looks(run_delay& at)
      : thread_([&at](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            at.look();
            std::this_thread::sleep_for(std::chrono::milliseconds{5});
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace sluice::test
