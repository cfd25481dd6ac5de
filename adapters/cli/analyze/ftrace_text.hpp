#pragma once
/// \file
/// Lines of ftrace's text (trace, trace_pipe) that say which functions of the KFD ran.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace sluice::cli {

/// Functions of the driver that make, end and move queues.
inline constexpr std::array<std::string_view, 23> driver_functions{
    "kfd_ioctl_create_queue",
    "kfd_ioctl_destroy_queue",
    "kfd_ioctl_update_queue",
    "kfd_create_queue",
    "pqm_create_queue",
    "pqm_destroy_queue",
    "pqm_update_queue_properties",
    "create_queue_cpsch",
    "create_queue_nocpsch",
    "destroy_queue_cpsch",
    "destroy_queue_nocpsch",
    "add_queue_mes",
    "remove_queue_mes",
    "evict_process_queues_cpsch",
    "evict_process_queues_nocpsch",
    "restore_process_queues_cpsch",
    "restore_process_queues_nocpsch",
    "suspend_queues",
    "resume_queues",
    "suspend_all_queues_mes",
    "resume_all_queues_mes",
    "kfd_process_evict_queues",
    "kfd_process_restore_queues",
};
/// Of these, which tell how many queues were made, the surest first: one call goes through several.
inline constexpr std::array<std::string_view, 5> creating_functions{
    "kfd_ioctl_create_queue", "pqm_create_queue", "create_queue_cpsch", "create_queue_nocpsch",
    "kfd_create_queue"};

struct trace_line {
  enum class is {
    nothing,  ///< No line of ftrace.
    other,    ///< One, but of nothing in driver_functions.
    call,     ///< The begin of a call.
  };
  is what = is::nothing;
  std::size_t function = 0;  ///< Of a call: index in driver_functions.
  pid_t pid = 0;  ///< The process where the line has it (TGID), else the thread; 0: not said.
  std::string_view task{};  ///< The name of the thread, part of the line; may be empty.
};

/// What a line says: of the tracers `function` and `function_graph`, and kprobe events that were
/// set on a function's begin. Cost: O(length), no allocation.
trace_line read_trace_line(std::string_view line) noexcept;

}  // namespace sluice::cli
