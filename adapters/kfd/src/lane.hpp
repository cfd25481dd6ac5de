#pragma once
/// \file
/// One target's thread.

#include "batch_lane.hpp"
#include "gpu_nodes.hpp"
#include "stop_bell.hpp"
#include "target_holds.hpp"

#include <atomic>
#include <bitset>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/agent/lane.hpp"
#include "sluice/kfd/debug_session.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/target_session.hpp"
#include "sluice/kfd/tracee.hpp"

namespace sluice::kfd {

/// The thread seizes the target, holds its debug session, performs its batches, and ends to let go
/// of it.
///
/// Threading: as agent::lane.
class lane final : public agent::lane, private session_listener {
 public:
  lane(const device& node, const lanes_options& options, batch_commands& commands,
       const agent::owner_bell& owner, const std::vector<gpu_node>& gpus, bool by_process,
       unique_fd wake, process_id target, pid_t pid, std::uint64_t start_time);

  result<void> start() override;
  /// Its queues run, whatever was said of them: reports each removed and added before it performs
  /// anything that is submitted from now on.
  void announce_again() noexcept;
  /// The target is there, is who it is said to be, and may be acted on. Until then nobody may hold
  /// anything of it: this lane would not let go of it.
  bool admitted() const noexcept { return admitted_.load(std::memory_order_acquire); }
  /// What batch commands hold of the target; let go of before the lane says its last.
  const std::shared_ptr<target_holds>& holds() const noexcept { return holds_; }
  /// One cheap system call.
  bool child_changed() const noexcept override;
  /// Its batches are the lane's to perform even where there are batch commands. True from before
  /// attached() is said, if at all.
  bool pauses() const noexcept { return pauses_.load(std::memory_order_acquire); }

 private:
  /// What its thread waits for.
  enum class heard : std::uint32_t { bell, target, session };

  result<void> listen_to(int fd, heard what, std::uint32_t how = 0) const noexcept;
  void run() override;
  void while_full() override {
    // The target must not stand still for that.
    if (traced_) look_at_target();
  }
  void live();
  bool serve_target();
  /// As lanes_options::admits says.
  bool is_admitted() const;
  result<std::unique_ptr<tracee>> find_target() const;
  bool open_session();
  /// Nobody is traced beyond the ENABLE: the session is this process's.
  bool only_watches() const noexcept { return by_process_ && !pauses(); }
  result<std::unique_ptr<target_session>> open_by_helper(bool* without_runtime);
  result<std::unique_ptr<target_session>> open_pause();
  bool goes_on(const result<void>& answered);
  bool list_queues();
  void say_what_was_suspended(tracee::change how);
  bool read_events();
  void close_session();
  bool perform();
  int answer_batch(bool call);
  bool has_address_spaces();
  bool has_queues() const;
  bool explain_refused_resume(int error);
  void wait(std::optional<duration> retry = {});
  tracee::change look_at_target() noexcept;
  void follow(std::unique_ptr<tracee> target);
  void lose_address_space();
  void answer_attach(const error_code& error);

  void queue_added(const session_queue& queue) override;
  void queue_removed(driver_queue_id queue) override;

  const device& node_;
  const lanes_options& options_;
  batch_commands& commands_;
  const std::vector<gpu_node>& gpus_;  ///< The node's.
  bool has_address_spaces_ = false;
  const bool by_process_;  ///< Sessions are this process's, not the tracing thread's.
  unique_fd sources_;      ///< The epoll set of what the thread waits for.
  const pid_t pid_;
  const std::uint64_t start_time_;
  const message_sink say_;  ///< With the key pid.

  const std::shared_ptr<target_holds> holds_;
  std::bitset<uapi::KFD_MAX_NUM_OF_QUEUES_PER_PROCESS> suspended_;  ///< By this lane's batches.
  std::atomic<bool> announce_again_{false};
  std::atomic<bool> pauses_{false};
  std::atomic<bool> admitted_{false};

  // The lane's thread only.
  std::unique_ptr<tracee> traced_;
  std::unique_ptr<stop_bell> bell_;  ///< Null: the owner rings, or there are none here.
  std::unique_ptr<target_session> session_;
  tracee::change pending_change_ = tracee::change::none;
  enum class state : std::uint8_t { unanswered, refused, attached } state_ = state::unanswered;
  bool look_again_ = false;  ///< The last batch named a queue that the driver does not know so.
  bool list_again_ = false;  ///< The driver has refused to list the queues.
  bool said_unlisted_ = false;
  bool may_have_events_ = true;   ///< Unless the last wait() saw that there are none.
  bool target_is_quiet_ = false;  ///< The last wait() would have heard of a change, and has not.
  bool deaf_ = false;             ///< Something could not be listened to: look now and then.
  bool opening_ = true;           ///< There is no session, and it is wanted.
  time_point open_until_{};       ///< When to stop trying.
  report scratch_;
};

}  // namespace sluice::kfd
