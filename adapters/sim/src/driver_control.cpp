/// Faults that somebody outside commands (`sim/control`).

#include "control_text.hpp"
#include "driver_state.hpp"
#include "parse_number.hpp"

#include <array>
#include <cerrno>
#include <string_view>

namespace sluice::sim {

namespace {

/// Calls that can be told to fail or to wait: DBG_TRAP and CRIU_OP by operation as well.
constexpr std::array commands{
    named_number{"CREATE_QUEUE", uapi::AMDKFD_IOC_CREATE_QUEUE},
    named_number{"DESTROY_QUEUE", uapi::AMDKFD_IOC_DESTROY_QUEUE},
    named_number{"UPDATE_QUEUE", uapi::AMDKFD_IOC_UPDATE_QUEUE},
    named_number{"RUNTIME_ENABLE", uapi::AMDKFD_IOC_RUNTIME_ENABLE},
    named_number{"SMI_EVENTS", uapi::AMDKFD_IOC_SMI_EVENTS},
    named_number{"EXPORT_DMABUF", uapi::AMDKFD_IOC_EXPORT_DMABUF},
    named_number{"IMPORT_DMABUF", uapi::AMDKFD_IOC_IMPORT_DMABUF},
    named_number{"GET_DMABUF_INFO", uapi::AMDKFD_IOC_GET_DMABUF_INFO},
    named_number{"DBG_TRAP", uapi::AMDKFD_IOC_DBG_TRAP},
    named_number{"CRIU_OP", uapi::AMDKFD_IOC_CRIU_OP},
    named_number{"BATCH_UNMAP_QUEUES", uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES},
    named_number{"FAST_REMAP", uapi::AMDKFD_IOC_FAST_REMAP},
    named_number{"SET_HQD_RESERVATION", uapi::AMDKFD_IOC_SET_HQD_RESERVATION},
};
constexpr std::array trap_operations{
    named_number{"ENABLE", uapi::KFD_IOC_DBG_TRAP_ENABLE},
    named_number{"DISABLE", uapi::KFD_IOC_DBG_TRAP_DISABLE},
    named_number{"SEND_RUNTIME_EVENT", uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT},
    named_number{"SUSPEND_QUEUES", uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES},
    named_number{"RESUME_QUEUES", uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES},
    named_number{"QUERY_DEBUG_EVENT", uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT},
    named_number{"QUERY_EXCEPTION_INFO", uapi::KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO},
    named_number{"GET_QUEUE_SNAPSHOT", uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT},
};
constexpr std::array criu_operations{
    named_number{"PROCESS_INFO", uapi::KFD_CRIU_OP_PROCESS_INFO},
    named_number{"UNPAUSE", uapi::KFD_CRIU_OP_UNPAUSE},
};
constexpr std::array errors{
    named_number{"EAGAIN", EAGAIN}, named_number{"EALREADY", EALREADY},
    named_number{"EBADF", EBADF},   named_number{"EBUSY", EBUSY},
    named_number{"EFAULT", EFAULT}, named_number{"EINTR", EINTR},
    named_number{"EINVAL", EINVAL}, named_number{"EIO", EIO},
    named_number{"ENODEV", ENODEV}, named_number{"ENOMEM", ENOMEM},
    named_number{"ENOSPC", ENOSPC}, named_number{"ENOTTY", ENOTTY},
    named_number{"EPERM", EPERM},   named_number{"ESRCH", ESRCH},
    named_number{"ETIME", ETIME},
};

/// COMMAND or COMMAND:OPERATION. \return an empty string, or what is wrong.
std::string read_call(std::string_view text, driver::call_fault& fault) {
  const auto colon = text.find(':');
  const auto command = number_of(commands, text.substr(0, colon));
  if (!command) {
    return "unknown call " + quoted(text.substr(0, colon)) + "; available: " + list(commands);
  }
  fault.number = _IOC_NR(*command);
  if (colon == std::string_view::npos) return {};
  const auto operation = text.substr(colon + 1);
  const std::string unknown_operation = "unknown operation " + quoted(operation) + " of " +
                                        std::string{text.substr(0, colon)} + "; available: ";
  if (*command == uapi::AMDKFD_IOC_DBG_TRAP) {
    fault.op = number_of(trap_operations, operation);
    if (!fault.op) return unknown_operation + list(trap_operations);
  } else if (*command == uapi::AMDKFD_IOC_CRIU_OP) {
    fault.op = number_of(criu_operations, operation);
    if (!fault.op) return unknown_operation + list(criu_operations);
  } else {
    return "invalid call " + quoted(text) +
           ": only DBG_TRAP and CRIU_OP accept an operation; omit " + quoted(text.substr(colon));
  }
  return {};
}

constexpr std::string_view all_commands =
    "fail-cycle GPU DURATION [goes-on], reset GPU, evict PID GPU, restore PID GPU, vmfault PID "
    "GPU, activation PID busy|error, answer CALL ERRNO [CONDITION...], delay CALL DURATION "
    "[CONDITION...], kill-target DURATION [CONDITION...], no-faults";

}  // namespace

int driver::control(std::string_view line, std::string& problem) {
  return impl_->control(line, problem);
}

int driver::impl::control(std::string_view line, std::string& problem) {
  const auto words = words_of(line);
  if (words.empty() || words[0].starts_with('#')) return 0;
  const auto name = words[0];
  const auto fail = [&problem](std::string why) {
    problem = std::move(why);
    return -EINVAL;
  };
  const auto find_gpu = [&](std::string_view text) -> gpu_node* {
    const auto id = parse_number<std::uint32_t>(text);
    gpu_node* found = id ? gpu(*id) : nullptr;
    if (found == nullptr) {
      problem = "unknown GPU " + quoted(text) + "; available gpu_ids:";
      for (const auto& each : gpus_) problem += " " + std::to_string(each->shape.gpu_id);
    }
    return found;
  };
  const auto find_process = [&](std::string_view text) -> process_ptr {
    const auto pid = parse_number<pid_t>(text);
    const auto found = pid ? live_.find(*pid) : live_.end();
    if (found != live_.end()) return found->second;
    problem = "unknown process " + quoted(text) +
              ": expected the pid of a process that opened the device";
    return nullptr;
  };
  if (name == "fail-cycle") {
    const bool goes_on = words.size() == 4 && words[3] == "goes-on";
    if (words.size() != 3 && !goes_on) return fail("usage: fail-cycle GPU DURATION [goes-on]");
    gpu_node* node = find_gpu(words[1]);
    const auto lasts = node == nullptr ? std::nullopt : read_duration(words[2], problem);
    if (!lasts) return -EINVAL;
    outer_.fail_next_cycle(node->shape.gpu_id, *lasts,
                           goes_on ? after_failure::goes_on : after_failure::reset);
    return 0;
  }
  if (name == "vmfault" || name == "evict" || name == "restore") {
    if (words.size() != 3) return fail("usage: " + std::string{name} + " PID GPU");
    const auto process = find_process(words[1]);
    gpu_node* node = process ? find_gpu(words[2]) : nullptr;
    if (node == nullptr) return -EINVAL;
    if (name == "vmfault")
      scope_.start(vm_fault(process, *node));
    else
      start_on(process->pid, node->shape.gpu_id, name == "evict");
    return 0;
  }
  if (name == "reset") {
    if (words.size() != 2) return fail("usage: reset GPU");
    gpu_node* node = find_gpu(words[1]);
    if (node == nullptr) return -EINVAL;
    start_reset(*node);
    return 0;
  }
  if (name == "activation") {
    const bool busy = words.size() == 3 && words[2] == "busy";
    if (!busy && (words.size() != 3 || words[2] != "error"))
      return fail("usage: activation PID busy|error");
    const auto process = find_process(words[1]);
    if (!process) return -EINVAL;
    return outer_.set_next_activation(process->pid, busy ? uapi::DBG_RUNTIME_STATE_ENABLED_BUSY
                                                         : uapi::DBG_RUNTIME_STATE_ENABLED_ERROR);
  }
  if (name == "answer" || name == "delay") {
    if (words.size() < 3) {
      return fail("usage: " + std::string{name} +
                  (name == "answer" ? " CALL ERRNO" : " CALL DURATION") +
                  " [caller=PID] [target=PID] [times=N]");
    }
    call_fault fault;
    if (auto wrong = read_call(words[1], fault); !wrong.empty()) return fail(std::move(wrong));
    if (name == "answer") {
      const auto error = number_of(errors, words[2]);
      if (!error) return fail("unknown error " + quoted(words[2]) + "; available: " + list(errors));
      fault.error = static_cast<int>(*error);
    } else {
      const auto time = read_duration(words[2], problem);
      if (!time) return -EINVAL;
      fault.delay = *time;
    }
    if (auto wrong = read_conditions(std::span{words}.subspan(3), fault, &call_fault::target);
        !wrong.empty())
      return fail(std::move(wrong));
    outer_.inject(fault);
    return 0;
  }
  if (name == "kill-target") {
    if (words.size() < 2)
      return fail("usage: kill-target DURATION [caller=PID] [target=PID] [times=N]");
    const auto time = read_duration(words[1], problem);
    if (!time) return -EINVAL;
    call_fault fault;
    fault.number = _IOC_NR(uapi::AMDKFD_IOC_DBG_TRAP);
    fault.op = uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES;
    fault.kill_target = true;
    fault.delay = *time;
    if (auto wrong = read_conditions(std::span{words}.subspan(2), fault, &call_fault::target);
        !wrong.empty())
      return fail(std::move(wrong));
    outer_.inject(fault);
    return 0;
  }
  if (name == "no-faults") {
    outer_.forget_faults();
    return 0;
  }
  return fail("unknown command " + quoted(name) + "; available: " + std::string{all_commands});
}

}  // namespace sluice::sim
