/// What tests do to the resource manager: calls that fail, take long or hang (`sim/control`).

#include "rm_state.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

namespace {

constexpr std::array rm_statuses{
    named_number{"BUSY_RETRY", rm::NV_ERR_BUSY_RETRY},
    named_number{"GPU_IS_LOST", rm::NV_ERR_GPU_IS_LOST},
    named_number{"INSUFFICIENT_PERMISSIONS", rm::NV_ERR_INSUFFICIENT_PERMISSIONS},
    named_number{"INVALID_ARGUMENT", rm::NV_ERR_INVALID_ARGUMENT},
    named_number{"INVALID_CLIENT", rm::NV_ERR_INVALID_CLIENT},
    named_number{"NOT_SUPPORTED", rm::NV_ERR_NOT_SUPPORTED},
    named_number{"OBJECT_NOT_FOUND", rm::NV_ERR_OBJECT_NOT_FOUND},
    named_number{"TIMEOUT", nvidia_abi::NV_ERR_TIMEOUT},
};

/// CALL, or FIFO_DISABLE_CHANNELS with :DISABLE or :ENABLE. \return an empty string, or what is
/// wrong.
std::string read_rm_call(std::string_view text, rm_fault& fault) {
  const auto colon = std::min(text.find(':'), text.size());
  const auto number = number_of(rm_calls, text.substr(0, colon));
  if (!number) {
    return "unknown call " + quoted(text.substr(0, colon)) + "; available: " + list(rm_calls);
  }
  fault.number = *number;
  if (colon == text.size()) return {};
  const auto operation = text.substr(colon + 1);
  if (*number != rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS ||
      (operation != "DISABLE" && operation != "ENABLE")) {
    return "invalid call " + quoted(text) +
           ": only FIFO_DISABLE_CHANNELS accepts an operation, DISABLE or ENABLE";
  }
  fault.disables = operation == "DISABLE";
  return {};
}

}  // namespace

task<std::optional<rm_driver::impl::status>> rm_driver::impl::meet_fault(
    call_ptr c, std::uint32_t number, const std::vector<std::byte>* parameters) {
  ++calls_made_[number];
  const bool disables = parameters != nullptr && parameters->front() != std::byte{0};
  const auto it = std::find_if(faults_.begin(), faults_.end(), [&](const rm_fault& fault) {
    return fault.number == number && (!fault.disables || *fault.disables == disables) &&
           (fault.caller == 0 || fault.caller == c->caller->pid);
  });
  if (it == faults_.end()) co_return std::nullopt;
  const rm_fault met = *it;
  if (--it->times == 0) faults_.erase(it);
  if (met.hangs) {
    interruption none;  // No signal ends it.
    const auto generation = fault_generation_;
    while (generation == fault_generation_) co_await faults_forgotten_.wait(none);
  }
  co_await sleep_until{engine_, engine_.now() + met.delay};
  co_return met.status;
}

int rm_driver::impl::control(std::string_view line, std::string& problem) {
  const auto words = words_of(line);
  if (words.empty() || words[0].starts_with('#')) return 0;
  const auto name = words[0];
  const auto fail = [&problem](std::string why) {
    problem = std::move(why);
    return -EINVAL;
  };
  if (name == "no-faults") {
    faults_.clear();
    ++fault_generation_;
    faults_forgotten_.wake_all();
    return 0;
  }
  const bool hangs = name == "hang";
  if (!hangs && name != "answer" && name != "delay") {
    return fail("unknown command " + quoted(name) +
                "; available: answer CALL STATUS [CONDITION...], delay CALL DURATION "
                "[CONDITION...], hang CALL [CONDITION...], no-faults");
  }
  const std::size_t conditions = hangs ? 2 : 3;
  if (words.size() < conditions) {
    return fail("usage: " + std::string{name} + " CALL" +
                (hangs              ? ""
                 : name == "answer" ? " STATUS"
                                    : " DURATION") +
                " [caller=PID] [times=N]");
  }
  rm_fault fault;
  fault.hangs = hangs;
  if (auto wrong = read_rm_call(words[1], fault); !wrong.empty()) return fail(std::move(wrong));
  if (name == "answer") {
    fault.status = number_of(rm_statuses, words[2]);
    if (!fault.status)
      return fail("unknown status " + quoted(words[2]) + "; available: " + list(rm_statuses));
  } else if (name == "delay") {
    const auto time = read_duration(words[2], problem);
    if (!time) return -EINVAL;
    fault.delay = *time;
  }
  if (auto wrong = read_conditions(std::span{words}.subspan(conditions), fault,
                                   static_cast<pid_t rm_fault::*>(nullptr));
      !wrong.empty())
    return fail(std::move(wrong));
  faults_.push_back(fault);
  return 0;
}

}  // namespace sluice::sim
