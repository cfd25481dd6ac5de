#pragma once
/// \file
/// Which processes the host takes for offline: it only attaches to such, and detaches when one is
/// not any more.

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "sluice/acting.hpp"
#include "sluice/os/process_identity.hpp"

namespace sluice::agent {

/// Threading: any thread.
class offline_processes {
 public:
  /// The host asked to attach to it.
  void asked(process_id target, pid_t pid, std::uint64_t start_time) {
    const std::scoped_lock held{mutex_};
    all_[target] = {pid, start_time};
  }
  /// The host asked to detach from it.
  void given_back(process_id target) {
    const std::scoped_lock held{mutex_};
    all_.erase(target);
  }
  /// What the acting side reports of its targets: of one that is not managed the host no longer
  /// says what it is.
  void reported(const report& what) {
    if (what.kind == report_kind::detached ||
        (what.kind == report_kind::attached && what.error.where != plain_error::domain::none))
      given_back(what.target);
  }

  bool has(pid_t pid, std::uint64_t start_time) const {
    const std::scoped_lock held{mutex_};
    return std::ranges::any_of(all_, [&](const auto& each) {
      return each.second.pid == pid && each.second.start_time == start_time;
    });
  }

 private:
  mutable std::mutex mutex_;
  std::map<process_id, process_identity> all_;
};

}  // namespace sluice::agent
