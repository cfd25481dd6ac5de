#include "sluice/nvidia/acting_driver.hpp"

#include "device_users.hpp"
#include "followed_work.hpp"
#include "hold_text.hpp"
#include "nvidia_target.hpp"
#include "release.hpp"

#include <linux/capability.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "sluice/agent/lane_side.hpp"
#include "sluice/nvidia/driver_text.hpp"
#include "sluice/nvidia/roots.hpp"
#include "sluice/nvidia/uapi.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

class nvidia_acting_driver final : public agent::acting_driver {
 public:
  std::string_view name() const noexcept override { return "nvidia"; }
  std::string_view help() const noexcept override {
    return "  device=PATH            control device [/dev/nvidiactl]\n"
           "  proc=PATH              proc tree [/proc/driver/nvidia]\n"
           "  allow_untested_driver=true|false\n"
           "                         act on releases that were not tested [false]\n";
  }
  bool set(std::string_view key, std::string_view value, std::string& why) override {
    if (key == "allow_untested_driver") {
      allow_untested_ = value == "true";
      if (allow_untested_ || value == "false") return true;
      why = "expected true or false";
      return false;
    }
    if (key != "device" && key != "proc") return false;
    (key == "device" ? where_.device : where_.proc) = value;
    return true;
  }
  std::string distrust() const override {
    if (where_.are_own()) return {};
    const roots own;
    return "an agent with file capabilities only opens the default device " + own.device +
           " and proc tree " + own.proc;
  }

  result<std::unique_ptr<acting_side>> open(const agent::acting_host& host) override {
    const auto loaded = read_release(where_);
    if (!loaded) {
      host.say("cannot read " + where_.proc + "/version: " + loaded.error().message() +
               "; load NVIDIA's driver");
      return loaded.error();
    }
    if (!is_tested(*loaded) && !allow_untested_) {
      host.say("sluice was not tested with driver " + loaded->version +
               (loaded->open_modules ? "" : " (closed kernel modules)") +
               "; use release 580 with open kernel modules, or set allow_untested_driver = true in "
               "[nvidia]");
      return errc::not_supported;
    }
    auto device = device_file::at(where_.device);
    if (!device) return device.error();
    users_.emplace(std::move(*device));
    host_ = host;
    const auto make = [this](process_id, pid_t pid, std::uint64_t start_time) {
      return std::make_unique<nvidia_target>(*users_, calls_, slices_, host_, pid, start_time);
    };
    return agent::make_lane_side({.acting = {"FIFO_DISABLE_CHANNELS",
                                             {capability::set_quantum, capability::preempt_kernels,
                                              capability::read_backlog}},
                                  .make_target = make,
                                  .follow =
                                      [this](pid_t pid, std::uint64_t start_time) {
                                        return followed_work::open(where_, host_, pid, start_time);
                                      },
                                  .begins_together =
                                      [this](command_kind what, gpu_id gpu, std::size_t targets) {
                                        calls_.expect(gpu, what == command_kind::suspend, targets);
                                      }},
                                 host);
  }

  agent::confinement needs(agent::confined) const override {
    return {.capabilities = {CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH},
            .calls = {{"ioctl", {agent::argument_is(1, uapi::NV_RM_CONTROL)}},
                      {"pidfd_getfd"},
                      {"kcmp"},
                      {"statx"}}};
  }

  bool outlives_agent() const noexcept override { return true; }
  result<void> release(const hold& what, const message_sink& say) override {
    const auto held = parse_held_process(what.text());
    if (!held) {
      say("the record of process " + std::to_string(what.pid) +
          " is damaged; run 'sluice rescue --everything'");
      return errc::unknown_target;
    }
    const auto device = device_file::at(where_.device);
    if (!device) return device.error();
    // Of a process that ended, only who shared its open file is left.
    const bool ended = start_time_of(what.pid) != what.start_time;
    const auto done = release_process(ended ? 0 : what.pid, *device, *held);
    if (!done)
      say("cannot resume process " + std::to_string(what.pid) + ": " + done.error().message());
    return done;
  }

  result<void> release_everything(const message_sink& say) override {
    const auto device = device_file::at(where_.device);
    if (!device) {
      say("cannot find " + where_.device + ": " + device.error().message());
      return device.error();
    }
    result<void> done;
    std::set<pid_t> pids;
    for (const remote_fd& each : list_users(*device)) pids.insert(each.pid);
    for (const pid_t pid : pids) {
      const auto start = start_time_of(pid);
      const auto released = release_everything_of(pid, *device);
      if (released || !start || start_time_of(pid) != start) continue;
      say("cannot resume process " + std::to_string(pid) + " (" + command_of(pid) +
          "): " + released.error().message());
      done = released;
    }
    say("time slices that offline_quantum shortened are restored only from a record; without one, "
        "they stay short until the program ends");
    return done;
  }

 private:
  roots where_;
  bool allow_untested_ = false;
  std::optional<user_list> users_;
  channel_calls calls_;
  slice_book slices_;
  agent::acting_host host_;
};

}  // namespace

std::unique_ptr<agent::acting_driver> make_acting_driver() {
  return std::make_unique<nvidia_acting_driver>();
}

}  // namespace sluice::nvidia
