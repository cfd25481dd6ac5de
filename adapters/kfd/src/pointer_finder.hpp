#pragma once
/// \file
/// Finds out where the pointers of online queues are.

#include "pointer_view.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sluice/kfd/roots.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/survey.hpp"

namespace sluice::kfd {

/// `mqds` shows them. Reading it takes every process's lock in the driver, so it is read only after
/// a queue of an online process came or went, and while somebody wants to know.
///
/// Threading: one thread.
class pointer_finder {
 public:
  pointer_finder(roots where, message_sink say) : where_(std::move(where)), say_(std::move(say)) {}

  /// Whether find() reads what is new. Not at first. While it cannot be read, each
  /// call tries, wanted or not.
  void want(bool wanted);
  [[nodiscard]] bool can_read() const noexcept { return !refused_; }
  /// The same processes, with what is known of their queues' pointers.
  std::vector<online_process> find(std::span<const work_watch::process> online);

 private:
  struct known_process {
    std::uint64_t change = 0;
    int reads_due = 0;  // until mqds shows all its queues
    std::vector<online_queue> pointers{};
  };
  void read(std::span<const work_watch::process> online);
  void say_refused(error_code why);

  const roots where_;
  const message_sink say_;
  bool wanted_ = false;
  bool refused_ = false;
  std::map<process_identity, known_process> known_{};
};

}  // namespace sluice::kfd
