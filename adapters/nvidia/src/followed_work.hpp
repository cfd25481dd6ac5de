#pragma once
/// \file
/// An online process whose work the agent looks at.

#include "address_space.hpp"
#include "work_view.hpp"

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/agent/followed_process.hpp"
#include "sluice/nvidia/driver_text.hpp"
#include "sluice/nvidia/roots.hpp"

namespace sluice::nvidia {

/// Only reads the process's memory: mappings of the driver's files. When it runs another program,
/// it begins anew, with that one's words.
class followed_work final : public agent::followed_process {
 public:
  /// Needs the right to attach to the process.
  /// \param host for its may_follow, asked after each exec, and its messages. Outlives it.
  /// \return errc::unknown_target, or the system's error.
  [[nodiscard]] static result<std::unique_ptr<agent::followed_process>> open(
      const roots& where, const agent::acting_host& host, pid_t pid, std::uint64_t start_time);

  bool look(time_point now, std::vector<work>& found) override;

 private:
  followed_work(const roots& where, const agent::acting_host& host, pid_t pid,
                std::uint64_t start_time, address_space memory)
      : where_(where),
        host_(host),
        pid_(pid),
        start_time_(start_time),
        memory_(std::move(memory)) {}
  bool follow_mappings();
  void tell_why_unsure();

  const roots& where_;
  const agent::acting_host& host_;
  const pid_t pid_;
  const std::uint64_t start_time_;
  address_space memory_;
  work_view view_;
  std::vector<gpu_information> gpus_;
  time_point mappings_due_{};
  bool told_ = false;
};

}  // namespace sluice::nvidia
