#pragma once
/// \file
/// What stands behind the event's number in a line of SMI events, with the line's end
/// (KFD_EVENT_FMT_* of kfd_ioctl.h). Pure.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::sim {

/// KFD_QUEUE_EVICTION_TRIGGERS.
enum class smi_eviction_trigger : std::uint8_t {
  svm,
  userptr,
  ttm,
  suspend,  ///< Of the system, or a reset; not a debugger's.
  criu_checkpoint,
  criu_restore,
};

namespace smi_payload {

std::string vm_fault(pid_t pid, std::string_view name);
/// \param cause "" in older drivers, and of every POST_RESET.
std::string gpu_reset(std::uint32_t sequence, std::string_view cause);
std::string queue_eviction(std::int64_t nanoseconds, pid_t pid, std::uint32_t gpu_id,
                           smi_eviction_trigger trigger);
/// \param rescheduled nothing in older drivers; false is a NUL byte, which the driver prints by %c.
std::string queue_restore(std::int64_t nanoseconds, pid_t pid, std::uint32_t gpu_id,
                          std::optional<bool> rescheduled);
std::string process(pid_t pid, std::string_view name);

}  // namespace smi_payload
}  // namespace sluice::sim
