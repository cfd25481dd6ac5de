#pragma once
/// \file
/// Looks at the work of online processes by the pointers of their queues.

#include "pointer_finder.hpp"
#include "pointer_view.hpp"

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "sluice/agent/work_follower.hpp"
#include "sluice/inbox.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/survey.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

/// Threading: as work_watch. Lifetime: the inbox outlives it.
class pointer_watch final : public work_watch {
 public:
  /// \param say hears, once for each process, why its pointers cannot be read. On the thread that
  ///        calls set().
  pointer_watch(const roots& where, inbox_producer& inbox, message_sink say);

  void pace(duration every) noexcept override;
  void restate() noexcept override { follower_.restate(); }
  void follow(std::span<const process> online) override;
  bool can_see() const noexcept override { return finder_.can_read() && !refused_; }
  /// Looks at these, while pace() is not zero. Opens what is new, so it may block. On follow()'s
  /// thread.
  void set(std::vector<online_process> who);

 private:
  void complain(const process_identity& of, const std::string& why);

  const std::string sysfs_;
  const message_sink say_;
  pointer_finder finder_;
  std::atomic<duration::rep> every_{0};
  std::atomic<bool> anew_{false};      ///< It began to look again.
  std::vector<online_process> known_;  ///< That the follower has. Others are tried again.
  std::vector<process_identity> complained_;
  bool refused_ = false;
  agent::work_follower follower_;
};

}  // namespace sluice::kfd
