#pragma once
/// \file
/// How late this machine wakes who is ready.

#include "child_process.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::soak {

/// Of each processor, for a virtual one may stand still while the others go on: a process on each,
/// which sleeps for a short while at a time.
///
/// Threading: one thread, and no other in the process (it forks).
/// Errors:    the constructor throws std::system_error.
class lateness {
 public:
  lateness() {
    void* const at = ::mmap(nullptr, sizeof(worst_type), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::system_error{errno, std::generic_category(), "mmap"};
    worst_.reset(new (at) worst_type{0});
    cpu_set_t usable;
    CPU_ZERO(&usable);
    ::sched_getaffinity(0, sizeof(usable), &usable);
    for (std::size_t each = 0; each < CPU_SETSIZE; ++each) {
      if (!CPU_ISSET(each, &usable)) continue;
      watchers_.push_back(
          std::make_unique<test::child_process>([&](test::channel&) { return watch(each); }));
    }
  }

  /// Since it began, or the last call.
  duration worst() { return duration{worst_->exchange(0)}; }
  bool is_one_of_its(pid_t pid) const {
    return std::any_of(watchers_.begin(), watchers_.end(),
                       [pid](const auto& each) { return each->pid() == pid; });
  }

 private:
  using worst_type = std::atomic<duration::rep>;
  static_assert(worst_type::is_always_lock_free);
  struct unmapped {
    void operator()(worst_type* one) const noexcept { ::munmap(one, sizeof(worst_type)); }
  };

  int watch(std::size_t processor) const {
    constexpr std::chrono::milliseconds interval{5};
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    ::sched_setaffinity(0, sizeof(only), &only);
    // Until it is killed.
    for (;;) {
      const time_point due = clock::now() + interval;
      std::this_thread::sleep_until(due);
      const auto late = (clock::now() - due).count();
      for (auto worst = worst_->load();
           late > worst && !worst_->compare_exchange_weak(worst, late);) {
      }
    }
  }

  std::unique_ptr<worst_type, unmapped> worst_;
  std::vector<std::unique_ptr<test::child_process>> watchers_;
};

}  // namespace sluice::soak
