#pragma once
/// \file
/// Which processes the host takes for offline and for online. It attaches only to offline ones, and
/// detaches when one is not offline any more; online ones it names.

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "sluice/acting.hpp"
#include "sluice/os/process_identity.hpp"

namespace sluice::agent {

/// Threading: any thread.
class host_roles {
 public:
  /// The host asked to attach to it.
  void asked(process_id target, pid_t pid, std::uint64_t start_time) {
    const std::scoped_lock held{mutex_};
    offline_[target] = {pid, start_time};
  }
  /// The host asked to detach from it.
  void given_back(process_id target) {
    const std::scoped_lock held{mutex_};
    offline_.erase(target);
  }
  /// What the acting side reports of its targets: the host does not state any more what a process
  /// is that is not managed.
  void reported(const report& what) {
    if (what.kind == report_kind::detached ||
        (what.kind == report_kind::attached && what.error.where != plain_error::domain::none))
      given_back(what.target);
  }
  /// The host stated whether it is online.
  void named(pid_t pid, std::uint64_t start_time, bool online) {
    const std::scoped_lock held{mutex_};
    if (!online)
      online_.erase({pid, start_time});
    else if (online_.size() < most_online)
      online_.insert({pid, start_time});
    else
      too_many_ = true;
  }

  /// Whether the host manages a process, or asked for it.
  bool has_targets() const {
    const std::scoped_lock held{mutex_};
    return !offline_.empty();
  }
  bool is_offline(pid_t pid, std::uint64_t start_time) const {
    const std::scoped_lock held{mutex_};
    return std::ranges::any_of(offline_, [&](const auto& each) {
      return each.second.pid == pid && each.second.start_time == start_time;
    });
  }
  /// Returns true for every process once the host has named more than this remembers.
  bool is_online(pid_t pid, std::uint64_t start_time) const {
    const std::scoped_lock held{mutex_};
    return too_many_ || online_.contains({pid, start_time});
  }

 private:
  /// The agent may have more rights than its host, which must not fill its memory.
  static constexpr std::size_t most_online = 16384;

  mutable std::mutex mutex_;
  std::map<process_id, process_identity> offline_;
  std::set<process_identity> online_;
  bool too_many_ = false;
};

}  // namespace sluice::agent
