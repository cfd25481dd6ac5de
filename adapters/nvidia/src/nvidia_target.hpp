#pragma once
/// \file
/// One process whose channels the agent disables and enables.

#include "channel_calls.hpp"
#include "device_users.hpp"
#include "hold_text.hpp"
#include "process_clients.hpp"
#include "slice_book.hpp"

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/agent/lane_side.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::nvidia {

/// A queue is a channel; its id is the channel's handle. Handles of two clients of one process may
/// be equal: then the process is not managed.
class nvidia_target final : public agent::lane_target {
 public:
  nvidia_target(user_list& users, channel_calls& calls, slice_book& slices,
                const agent::acting_host& host, pid_t pid, std::uint64_t start_time)
      : users_(users),
        calls_(calls),
        slices_(slices),
        host_(host),
        pid_(pid),
        start_time_(start_time) {}

  void yield_to(std::function<bool()> has_order) override { has_order_ = std::move(has_order); }
  result<std::vector<queue_info>> open() override;
  std::string why_refused() const override { return refused_; }
  int event_fd() const noexcept override { return timer_.get(); }
  result<std::vector<queue_info>> refresh() override;
  std::string record() const override;
  int act(command_kind what, gpu_id gpu, std::span<const driver_queue_id> queues,
          std::span<outcome> outcomes) override;
  result<void> set_quantum(gpu_id gpu, duration length) override;
  bool close() noexcept override;
  bool outlives_process() const noexcept override { return true; }

 private:
  using channel_key = std::pair<uapi::NvHandle, uapi::NvHandle>;  ///< Client, channel.
  struct disables {
    std::uint32_t count = 0;  ///< At most. Not 0.
    bool in_doubt = false;    ///< It may also run.
  };
  struct place {
    const client_objects* in = nullptr;
    const channel_group* group = nullptr;
    uapi::NvHandle channel = 0;
  };

  /// What open() and refresh() have in common.
  result<std::vector<queue_info>> read();
  [[nodiscard]] duration age_at_tick() const;
  [[nodiscard]] duration age_at_suspend() const;
  [[nodiscard]] duration age_at_look() const;
  result<std::vector<queue_info>> known_queues(duration age);
  /// As user_list::now(). \return false if they cannot be listed now, or it stopped.
  bool find_sharers(duration age, const stop_function& stops = {});
  void see_sharers(duration age);
  bool sharers_are_offline();
  /// Whether it changed anything, which then also concerns all sharers.
  bool acts() const noexcept {
    return !disables_.empty() || !set_slices_.empty() || !quanta_.empty();
  }
  std::optional<place> find(driver_queue_id id, gpu_id on) const;
  void drop_closed();
  void forget_gone();
  int suspend(gpu_id gpu, std::span<const driver_queue_id> queues, std::span<outcome> outcomes);
  int resume(gpu_id gpu, std::span<const driver_queue_id> queues, std::span<outcome> outcomes);
  /// Calls change() for channels of one GPU. \return the last refusal.
  rm_status change_all(bool disable, std::span<const place> which,
                       const std::function<void(std::size_t, channel_state)>& became);
  rm_status set_slice(const client_objects& in, uapi::NvHandle group, std::uint64_t microseconds);
  bool restore_slices(const client_objects& of, gpu_id on);
  bool restore_slices(gpu_id on);
  /// Ends all that is held of a client. \return false if the driver refuses.
  bool let_go(const client_objects& of);
  /// The same for a client that the process gave up. \return true also if no process has it any
  /// more: then the driver frees it.
  bool leave(const client_objects& of);
  error_code refuse(const std::string& why);
  error_code refuse(const error_code& error);

  user_list& users_;
  channel_calls& calls_;
  slice_book& slices_;
  const agent::acting_host& host_;
  const pid_t pid_;
  const std::uint64_t start_time_;
  unique_fd timer_;  ///< Tells when to refresh().
  std::optional<process_clients> clients_;
  std::map<channel_key, disables> disables_;             ///< That were not taken back.
  std::map<channel_key, slice_book::entry> set_slices_;  ///< Groups whose slice this one changed.
  std::map<gpu_id, std::uint64_t> quanta_;               ///< Microseconds; of GPUs that have one.
  stop_function has_order_;
  unsigned ticks_ = 0;              ///< Of the timer, since the last look.
  time_point looked_{};             ///< End of the last look.
  bool is_behind_suspend_ = false;  ///< The next refresh().
  bool only_sharers_ = false;       ///< The next refresh() lists them, where no look is due.
  bool is_in_parts_ = false;        ///< The look that is under way: objects may be made in between.
  std::vector<queue_info> queues_;  ///< At the last look.
  user_list::list users_seen_;      ///< Of which the next are some. Null: compare them again.
  std::vector<remote_fd> sharers_;
  std::uint64_t kinship_ = 0;                        ///< Of the process, at the last look.
  std::vector<held_process::sharer> other_sharers_;  ///< Those with another one.
  pid_t told_of_ = 0;                                ///< Of which sharer the log has a line.
  bool told_of_refusal_ = false;                     ///< Of leave(), in the log.
  bool told_of_search_ = false;                      ///< That it takes longer.
  std::string refused_;                              ///< Why, as a sentence.
};

}  // namespace sluice::nvidia
