#pragma once
/// \file
/// The faults that the simulated device can inject (adapters/sim/README.md#inject-faults), as data:
/// when, and with what result. Tested on real processes and in virtual time.

#include "cells.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::test {

using namespace std::chrono_literals;  // NOLINT: a header of tests only.

enum class at : std::uint8_t { suspend, resume, attach, rest };

enum class then : std::uint8_t {
  served,   ///< It is held, and runs again, as if nothing had happened.
  faulted,  ///< It is held and resumed, but the driver does not run it any more.
  refused,  ///< It is not held this time.
  left,     ///< The breaker opens: it runs, and is not held any more.
  stuck,    ///< The same, but it runs once the call is over.
  dead,     ///< Its queues are gone, the breaker is open.
  killed,   ///< The process is gone, the other is served.
};

struct injection {
  std::string_view name;
  std::string_view line;  ///< "GPU" and "PID" stand for the GPU and the first process.
  at when = at::suspend;
  then what = then::served;
  std::string_view log = "";
  duration lasts = 0ns;  ///< Of the call.
  bool batch = true;     ///< Whether it can befall with batch commands.
  bool trap = true;
  bool ends_agent = false;  ///< Only the end of the acting process helps: in process there is none.
};

inline constexpr std::string_view gpu = "51110";
/// The failed cycle, and the profile's reset_time, in which calls wait.
inline constexpr duration a_reset = 1100ms;

inline constexpr std::array injections{
    injection{"fail_cycle", "fail-cycle GPU 100ms", at::suspend, then::dead,
              "no queue on this GPU is suspended any more", a_reset},
    injection{"fail_cycle_goes_on", "fail-cycle GPU 100ms goes-on", at::suspend, then::left,
              "breaker opened after a failed preemption"},
    injection{"fail_cycle_of_a_resume", "fail-cycle GPU 100ms", at::resume, then::dead,
              "is reset by the driver", a_reset},
    injection{"reset", "reset GPU", at::rest, then::dead, "is reset by the driver"},
    injection{"reset_while_held", "reset GPU", at::resume, then::dead, "is reset by the driver",
              a_reset},
    injection{"evict", "evict PID GPU", at::rest, then::served},
    injection{"evict_while_held", "evict PID GPU", at::resume, then::served},
    injection{"vmfault", "vmfault PID GPU", at::suspend, then::faulted},
    injection{"activation_busy", "activation PID busy", at::attach, then::refused,
              "attach refused"},
    injection{"activation_error", "activation PID error", at::attach, then::refused,
              "attach refused"},
    injection{"suspend_interrupted", "answer DBG_TRAP:SUSPEND_QUEUES EINTR times=3", at::suspend,
              then::served, "", 0ns, false},
    injection{"suspend_refused", "answer DBG_TRAP:SUSPEND_QUEUES EINVAL target=PID", at::suspend,
              then::served, "", 0ns, false},
    injection{"resume_interrupted", "answer DBG_TRAP:RESUME_QUEUES EINTR times=3", at::resume,
              then::served, "", 0ns, false},
    injection{"resume_refused", "answer DBG_TRAP:RESUME_QUEUES EIO target=PID", at::resume,
              then::served, "refuses to resume queues", 0ns, false},
    injection{"enable_busy", "answer DBG_TRAP:ENABLE EALREADY times=3", at::attach, then::served},
    injection{"enable_refused", "answer DBG_TRAP:ENABLE EPERM target=PID times=1000", at::attach,
              then::refused, "attach refused"},
    injection{"disable_refused", "answer DBG_TRAP:DISABLE EBUSY times=3", at::resume, then::served},
    injection{"snapshot_refused", "answer DBG_TRAP:GET_QUEUE_SNAPSHOT EFAULT target=PID times=3",
              at::attach, then::served, "cannot list the queues"},
    injection{"smi_refused", "answer SMI_EVENTS EPERM times=1000", at::attach, then::served},
    injection{"unmap_refused", "answer BATCH_UNMAP_QUEUES EIO", at::suspend, then::served,
              "the driver refused a batch command", 0ns, true, false},
    injection{"remap_refused", "answer FAST_REMAP EIO", at::resume, then::served,
              "the driver refused a batch command", 0ns, true, false},
    injection{"remap_refused_again", "answer FAST_REMAP EIO times=2", at::resume, then::served,
              "the driver refuse", 0ns, true, false, true},
    injection{"slow_suspend", "delay DBG_TRAP:SUSPEND_QUEUES 1s target=PID", at::suspend,
              then::served, "", 1s, false},
    injection{"stuck_suspend", "delay DBG_TRAP:SUSPEND_QUEUES 4s target=PID", at::suspend,
              then::stuck, "driver call timed out", 4s, false},
    injection{"stuck_resume", "delay DBG_TRAP:RESUME_QUEUES 4s target=PID", at::resume, then::stuck,
              "driver call timed out", 4s, false},
    injection{"stuck_unmap", "delay BATCH_UNMAP_QUEUES 4s", at::suspend, then::stuck,
              "driver call timed out", 4s, true, false},
    injection{"stuck_remap", "delay FAST_REMAP 4s", at::resume, then::stuck,
              "driver call timed out", 4s, true, false},
    injection{"slow_enable", "delay DBG_TRAP:ENABLE 1s", at::attach, then::served, "", 1s},
    injection{"slow_disable", "delay DBG_TRAP:DISABLE 1s", at::resume, then::served, "", 1s},
    injection{"target_killed", "kill-target 200us target=PID", at::suspend, then::killed, "", 0ns,
              false},
};

struct case_of {
  const injection* what = nullptr;
  mechanism_used how{};
};

inline std::vector<case_of> all_cases() {
  std::vector<case_of> all;
  for (const injection& what : injections) {
    for (const mechanism_used how : mechanisms) {
      if ((by_batch(how) ? what.batch : what.trap) && (in_agent(how) || !what.ends_agent))
        all.push_back({&what, how});
    }
  }
  return all;
}

}  // namespace sluice::test
