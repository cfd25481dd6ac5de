#pragma once
/// \file
/// What the lanes said lately: the reasons of failures, for whom asks later.

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

namespace sluice::kfd {

/// As in the lanes' sentences.
inline std::string name_of(pid_t pid) { return "process " + std::to_string(pid); }

/// Last sentences said, from any thread. Shared with the lanes' threads.
class lane_sentences {
 public:
  void add(std::string_view sentence) {
    const std::scoped_lock held{mutex_};
    if (all_.size() == most) all_.pop_front();
    // What a lane appends is for a log.
    all_.emplace_back(sentence.substr(0, sentence.rfind(" pid=")));
  }
  /// The latest that speaks of the process, or else nothing.
  std::string about(pid_t pid) const {
    const std::string name = name_of(pid);
    const std::scoped_lock held{mutex_};
    for (auto each = all_.rbegin(); each != all_.rend(); ++each) {
      const auto at = each->find(name);
      if (at == std::string::npos) continue;
      const auto end = at + name.size();
      if (end == each->size() || (*each)[end] < '0' || (*each)[end] > '9') return *each;
    }
    return {};
  }
  std::string last() const {
    const std::scoped_lock held{mutex_};
    return all_.empty() ? std::string{} : all_.back();
  }

 private:
  /// Kept until somebody asks why something failed.
  static constexpr std::size_t most = 32;

  mutable std::mutex mutex_;
  std::deque<std::string> all_;
};

}  // namespace sluice::kfd
