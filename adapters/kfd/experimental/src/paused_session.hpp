#pragma once
/// \file
/// A target that is paused as a whole.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/hold_book.hpp"
#include "sluice/kfd/target_session.hpp"
#include "sluice/kfd/tracee.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

/// The first queue that is suspended pauses the process, on all of its GPUs; once none is left that
/// has to be suspended, be it resumed or destroyed, the process runs. It is never paused twice.
/// Outcomes are of what was asked: a queue that is resumed before the others is `done` and stands
/// still as long as they do.
///
/// Queues are listed from sysfs, which tells of no changes: event_fd() is a clock.
class paused_session final : public target_session {
 public:
  struct settings {
    std::string device;
    std::string sysfs;
    std::uint64_t start_time = 0;  ///< The target's.
    hold_book& holds;              ///< A pause outlives who made it.
  };

  /// What an earlier scheduler left paused runs from here on.
  /// \return errc::not_managed when the target cannot be paused; `say` gets the reason.
  [[nodiscard]] static result<std::unique_ptr<paused_session>> open(const settings& how,
                                                                    const tracee& target,
                                                                    session_listener& listener,
                                                                    const message_sink& say);

  result<void> start() override { return refresh(); }
  int event_fd() const noexcept override { return clock_.get(); }
  result<void> read_events() override;
  result<void> refresh() override;
  result<void> announce_again() override;
  call_result suspend(std::span<const driver_queue_id> queues,
                      std::span<outcome> outcomes) override;
  call_result resume(std::span<const driver_queue_id> queues, std::span<outcome> outcomes) override;
  bool close() override;
  /// The guardian does it then, and no sooner than close() can.
  bool ends_with_process() const noexcept override { return false; }
  bool may_be_suspended() const noexcept override { return paused_; }
  void discard() override;

 private:
  struct known_queue {
    driver_queue_id id{};
    ino_t inode = 0;
    gpu_id gpu{};
    queue_type type{};
    bool held = false;
  };

  paused_session(const settings& how, const tracee& target, session_listener& listener,
                 unique_fd device, unique_fd clock);
  known_queue* find(driver_queue_id id) noexcept;
  bool any_held() const noexcept;
  void forget_all();
  int pause() noexcept;
  int unpause() noexcept;
  outcome refused(int error) const noexcept;

  const settings how_;
  const std::string directory_;  ///< proc/PID/queues
  const tracee& target_;
  session_listener& listener_;
  const unique_fd device_;
  const unique_fd clock_;
  std::vector<known_queue> known_;
  std::vector<known_queue> seen_;
  bool paused_ = false;          ///< Or may be.
  hold_book::number entry_ = 0;  ///< While paused_.
};

}  // namespace sluice::kfd
