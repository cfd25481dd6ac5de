#pragma once
/// \file
/// What a victim of `sluice accept` is: a program that uses a GPU as it is told. The same for every
/// kind of device; gpu_work says how a kernel gets onto one. The standard library alone, so that
/// hipcc compiles it, too.
///
/// The program is started as `VICTIM --queues N`, makes N hardware queues and speaks in lines:
///
/// | standard input | answer | what it does |
/// |---|---|---|
/// | (its start) | `ready 1 N` | version of this protocol; queues made, all idle |
/// | `run NS PERCENT` | `ok` | from now on each queue has one kernel of about NS nanoseconds [1] |
/// | `idle` | `ok` | lets the kernels end, and submits no more |
/// | `once NS PERCENT` | `ok` | an idle queue each gets one kernel; answered once submitted [1] |
/// | `count` | `count DONE NS` | kernels that ended since the last `count`, and a time [2] |
/// | `exit` | none | gives everything back, and ends with 0 |
/// | `assert` | none | an assertion fails in a kernel [3] |
/// | `fault` | none | a kernel writes where no memory is [3] |
///
/// Answers are lines on standard output.
/// [1] The kernels of all queues together take PERCENT of what fits on the GPU at once.
/// [2] The longest between the ends of two kernels of one queue since the last `count`, what has
///     lasted until now included, idle times not.
/// [3] Only with driver kfd.
///
/// What it cannot do it says in one line on standard error, and ends with 1. Other output may go to
/// standard error only.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace sluice::accept {

[[noreturn]] inline void cannot(const std::string& what) {
  std::fprintf(stderr, "victim: %s\n", what.c_str());
  std::_Exit(1);
}

/// Errors: every member ends the program, by cannot(), where the device refuses.
class gpu_work {
 public:
  virtual ~gpu_work() = default;
  /// Enqueues a kernel, and makes the device see it. One thread per queue.
  virtual void submit(unsigned queue, std::chrono::nanoseconds length, unsigned percent) = 0;
  /// Until that has ended. The same thread.
  virtual void wait(unsigned queue) = 0;
  /// Gives everything back; nothing runs any more.
  virtual void close() = 0;
  [[noreturn]] virtual void fail_assertion() { cannot("this victim cannot fail an assertion"); }
  [[noreturn]] virtual void fault() { cannot("this victim cannot cause a memory fault"); }
};

/// Threading: a thread for each queue, and the one that hears commands.
class victim {
 public:
  victim(gpu_work& work, unsigned queues) : work_(work), lanes_(queues) {
    for (unsigned i = 0; i < queues; ++i) threads_.emplace_back([this, i] { serve(i); });
  }

  /// Obeys until it is told to end. \return the exit code.
  int obey() {
    say("ready 1 " + std::to_string(lanes_.size()));
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words{line};
      std::string verb;
      std::int64_t length = 0;
      unsigned percent = 0;
      words >> verb >> length >> percent;
      if (verb == "run" || verb == "once") {
        begin(verb == "run" ? mode::run : mode::once, std::chrono::nanoseconds{length}, percent);
        say("ok");
      } else if (verb == "idle") {
        rest();
        say("ok");
      } else if (verb == "count") {
        say(count());
      } else if (verb == "assert") {
        work_.fail_assertion();
      } else if (verb == "fault") {
        work_.fault();
      } else if (verb == "exit") {
        end();
        return 0;
      } else {
        cannot("unknown command '" + line + "'");
      }
    }
    std::_Exit(0);  // Who started it is gone.
  }

 private:
  using clock = std::chrono::steady_clock;
  enum class mode { idle, run, once, end };
  struct lane {
    unsigned turn = 0;  ///< The last `once` that it has served.
    bool submitted = false;
    bool busy = false;
    clock::time_point last{};  ///< When a kernel ended, or the first began.
  };

  static void say(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(0);
  }

  void serve(unsigned index) {
    std::unique_lock held{mutex_};
    lane& own = lanes_[index];
    for (;;) {
      changed_.wait(held, [&] {
        return mode_ == mode::run || mode_ == mode::end ||
               (mode_ == mode::once && own.turn != turn_);
      });
      if (mode_ == mode::end) return;
      own.turn = turn_;
      if (!own.busy) own.last = clock::now();
      own.busy = true;
      const auto length = length_;
      const unsigned percent = percent_;
      held.unlock();
      work_.submit(index, length, percent);
      held.lock();
      own.submitted = true;
      changed_.notify_all();
      held.unlock();
      work_.wait(index);
      held.lock();
      const auto now = clock::now();
      longest_ = std::max(longest_, now - own.last);
      own.last = now;
      ++done_;
      if (mode_ != mode::run) own.busy = false;
      changed_.notify_all();
    }
  }

  void begin(mode what, std::chrono::nanoseconds length, unsigned percent) {
    std::unique_lock held{mutex_};
    mode_ = what;
    length_ = length;
    percent_ = percent;
    ++turn_;
    for (lane& each : lanes_) each.submitted = false;
    changed_.notify_all();
    changed_.wait(held, [this] {
      return std::all_of(lanes_.begin(), lanes_.end(), [](const lane& l) { return l.submitted; });
    });
  }

  void rest() {
    std::unique_lock held{mutex_};
    mode_ = mode::idle;
    changed_.wait(held, [this] {
      return std::none_of(lanes_.begin(), lanes_.end(), [](const lane& l) { return l.busy; });
    });
  }

  std::string count() {
    const std::lock_guard held{mutex_};
    const auto now = clock::now();
    for (const lane& each : lanes_)
      if (each.busy) longest_ = std::max(longest_, now - each.last);
    auto text = "count " + std::to_string(done_) + " " + std::to_string(longest_.count());
    done_ = 0;
    longest_ = {};
    return text;
  }

  void end() {
    rest();
    {
      const std::lock_guard held{mutex_};
      mode_ = mode::end;
    }
    changed_.notify_all();
    for (auto& each : threads_) each.join();
    work_.close();
  }

  gpu_work& work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  mode mode_ = mode::idle;
  std::chrono::nanoseconds length_{};
  unsigned percent_ = 0;
  unsigned turn_ = 0;
  std::uint64_t done_ = 0;
  std::chrono::nanoseconds longest_{};
  std::vector<lane> lanes_;
  std::vector<std::thread> threads_;
};

/// The number behind --queues, 1 to 64.
inline unsigned queues_of(int argc, char** argv) {
  if (argc == 3 && std::string{argv[1]} == "--queues") {
    const int queues = std::atoi(argv[2]);
    if (queues >= 1 && queues <= 64) return static_cast<unsigned>(queues);
  }
  cannot("usage: --queues N (N is 1 to 64); 'sluice accept' starts this program");
}

}  // namespace sluice::accept
