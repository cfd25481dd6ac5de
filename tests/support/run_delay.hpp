#pragma once
/// \file
/// How long the machine kept the processes of a test from running.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::test {

/// For how long the threads of some processes were ready and waited for a processor (the run-queue
/// delay), from /proc/PID/task/TID/schedstat. What the hypervisor takes from a virtual processor
/// (steal, from /proc/stat) counts as a wait of every process. The time for which a thread runs
/// does not count: a process that computes instead of answering is late by its own doing.
///
/// A look finds only the sum of the waits since the last one, and the waits of a thread that ends
/// are lost from the last look on. So look() must be called often: see regular_looks.
///
/// Threading: any.
class run_delay {
 public:
  /// Adds a process.
  /// \param since_its_start whether the waits of its threads until now count, as one for each.
  void add(pid_t pid, bool since_its_start = false) {
    const std::lock_guard hold{mutex_};
    processes_.push_back(pid);
    look_at(pid, !since_its_start);
    look_at_steal();
  }
  /// Reads what the threads waited since the last look.
  void look() {
    const std::lock_guard hold{mutex_};
    ++looks_;
    for (const pid_t pid : processes_) look_at(pid, false);
    look_at_steal();
    for (auto& [path, each] : threads_) {
      if (each.seen == looks_ || !each.ready) continue;
      each.waits.push_back(*each.ready);  // It has ended.
      each.ready.reset();
    }
  }
  /// Counts from now on.
  void restart() {
    look();
    const std::lock_guard hold{mutex_};
    any_.clear();
    for (auto& [path, each] : threads_) each.waits.clear();
  }

  /// The longest that one thread waited in all between two times: what the machine added at least
  /// to something that all threads had a part in.
  duration waited_by_one(time_point from, time_point to) const {
    const std::lock_guard hold{mutex_};
    return most_of_one(from, to);
  }
  /// For how long at least one thread waited between two times: what the machine added at most.
  /// Waits that overlap count once, so this never exceeds the time between the two.
  duration waited_by_any(time_point from, time_point to) const {
    const std::lock_guard hold{mutex_};
    // Of waits within one look it knows the sum, and so may find them to overlap that did not.
    return std::max(within(any_, from, to), most_of_one(from, to));
  }
  /// The sum of all threads' waits between two times.
  duration waited_by_all(time_point from, time_point to) const {
    const std::lock_guard hold{mutex_};
    duration sum{};
    for (const auto& [path, each] : threads_) sum += within(each.waits, from, to);
    return sum;
  }
  /// The longest wait of one thread without a break, which may last.
  duration longest() const {
    const std::lock_guard hold{mutex_};
    return longest_of([](pid_t) { return true; }, time_point::min());
  }
  /// The same of a process, and only waits that had not ended before `from`.
  duration longest(pid_t pid, time_point from = time_point::min()) const {
    const std::lock_guard hold{mutex_};
    return longest_of([pid](pid_t whose) { return whose == pid || whose == everybody; }, from);
  }

 private:
  struct span {
    time_point from;
    time_point to;
  };
  struct times {
    pid_t pid = 0;
    duration ran{};
    duration waited{};
    std::vector<span> waits{};  ///< That have ended; disjoint, in order.
    std::uint64_t seen = 0;     ///< At which look.
    time_point checked = time_point::min();
    std::optional<span> ready{};  ///< It has been ready and has not run: a wait that lasts.
  };
  static constexpr pid_t everybody = -1;
  static constexpr duration check_every = std::chrono::milliseconds{20};

  /// \param is_new whether the waits of its threads until now do not count.
  void look_at(pid_t pid, bool is_new) {
    std::error_code gone;
    std::filesystem::directory_iterator each{"/proc/" + std::to_string(pid) + "/task", gone};
    for (; !gone && each != std::filesystem::directory_iterator{}; each.increment(gone)) {
      const std::string path = each->path().string();
      duration::rep ran = 0;
      duration::rep waited = 0;
      if (!(std::istringstream{head_of(path + "/schedstat")} >> ran >> waited)) continue;
      const time_point now = clock::now();
      times& last = threads_[path];
      const bool is_same = last.ran == duration{ran} && last.waited == duration{waited};
      last.pid = pid;
      last.seen = looks_;
      last.ran = duration{ran};
      const duration more = duration{waited} - std::exchange(last.waited, duration{waited});
      if (!is_same) {
        last.checked = now;
        last.ready.reset();
        if (!is_new) count(last, more, now);
      } else if (now - check_every >= last.checked) {
        last.checked = now;
        if (!is_ready(path)) {
          last.ready.reset();
        } else {
          last.ready = span{last.ready ? last.ready->from : now, now};
        }
      }
    }
  }
  /// A wait that has ended by now.
  void count(times& whose, duration length, time_point now) {
    if (length <= duration{}) return;  // Below: another thread has the number.
    whose.waits.push_back({now - length, now});
    span all = whose.waits.back();
    for (; !any_.empty() && any_.back().to >= all.from; any_.pop_back())
      all.from = std::min(all.from, any_.back().from);
    any_.push_back(all);
  }
  void look_at_steal() {
    const time_point now = clock::now();
    if (now - check_every < steal_checked_) return;
    const bool is_first = steal_checked_ == time_point::min();
    steal_checked_ = now;
    std::istringstream lines{head_of("/proc/stat")};
    for (std::string line; std::getline(lines, line) && line.starts_with("cpu");) {
      std::istringstream words{line};
      std::string processor;
      std::array<long, 8> ticks{};  // The last one: steal.
      words >> processor;
      for (long& one : ticks) words >> one;
      if (!words || processor == "cpu") continue;
      times& last = threads_[processor];
      last.pid = everybody;
      const duration stolen = ticks.back() * std::chrono::seconds{1} / ::sysconf(_SC_CLK_TCK);
      const duration more = stolen - std::exchange(last.waited, stolen);
      if (!is_first) count(last, more, now);
    }
  }
  static duration within(const std::vector<span>& all, time_point from, time_point to) {
    duration sum{};
    for (const span& each : all)
      sum += std::max(std::min(each.to, to) - std::max(each.from, from), duration{});
    return sum;
  }
  duration most_of_one(time_point from, time_point to) const {
    duration most{};
    for (const auto& [path, each] : threads_) most = std::max(most, within(each.waits, from, to));
    return std::min(most, to - from);
  }
  template <class IsWanted>
  duration longest_of(IsWanted is_wanted, time_point from) const {
    duration longest{};
    for (const auto& [path, each] : threads_) {
      if (!is_wanted(each.pid)) continue;
      for (const span& wait : each.waits) {
        if (wait.to >= from) longest = std::max(longest, wait.to - wait.from);
      }
      if (each.ready) longest = std::max(longest, each.ready->to - each.ready->from);
    }
    return longest;
  }
  static bool is_ready(const std::string& path) {
    const std::string text = head_of(path + "/stat");
    const auto name = text.rfind(')');
    return name != text.npos && text.compare(name, 3, ") R") == 0;
  }
  static std::string head_of(const std::string& path) {
    std::array<char, 4096> text;  // NOLINT: read() fills it.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    const ssize_t length = ::read(fd, text.data(), text.size());
    ::close(fd);
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

  mutable std::mutex mutex_;
  std::vector<pid_t> processes_;
  std::uint64_t looks_ = 0;
  std::map<std::string, times> threads_;  ///< By path; and processors, with their steal.
  time_point steal_checked_ = time_point::min();
  std::vector<span> any_;  ///< All waits that have ended; disjoint, in order.
};

/// Looks every 5 ms, in a thread of its own, which gets a processor before others if it may: a look
/// that is late takes several short waits for one long one.
class regular_looks {
 public:
  explicit regular_looks(run_delay& at)
      : thread_([&at](const std::stop_token& stop) {
          ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), -10);
          while (!stop.stop_requested()) {
            at.look();
            std::this_thread::sleep_for(std::chrono::milliseconds{5});
          }
        }) {}

 private:
  std::jthread thread_;
};

/// Measures a time from its construction on, without the time for which a process under test waited
/// for a processor.
class undelayed_stopwatch {
 public:
  explicit undelayed_stopwatch(std::initializer_list<pid_t> under_test) {
    for (const pid_t each : under_test) waits_.add(each);
  }
  duration elapsed() {
    const time_point now = clock::now();
    waits_.look();
    return now - since_ - waits_.waited_by_any(since_, now);
  }

 private:
  const time_point since_ = clock::now();
  run_delay waits_;
  const regular_looks looks_{waits_};
};

}  // namespace sluice::test
