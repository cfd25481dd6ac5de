#include "sluice/nvidia/driver.hpp"

#include "checks.hpp"
#include "gpu_users.hpp"
#include "nvidia_survey.hpp"
#include "process_clients.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "sluice/nvidia/driver_text.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

class nvidia_driver final : public driver {
 public:
  explicit nvidia_driver(driver_options how) : how_(std::move(how)) {}

  std::string_view name() const noexcept override { return "nvidia"; }
  std::string why_absent() const override {
    if (::access(how_.where.device.c_str(), F_OK) == 0) return {};
    const error_code error = last_system_error();
    if (error != boost::system::errc::no_such_file_or_directory)
      return "cannot find " + how_.where.device + ": " + error.message() +
             "; run as a user who may use the GPUs";
    return how_.where.device + " does not exist; load NVIDIA's driver (modprobe nvidia)";
  }
  std::string set(std::string_view key, const setting& value) override {
    if (key == "allow_untested_driver") return take_setting(value, how_.allow_untested_driver);
    return driver::set(key, value);
  }
  bool simulated() const override { return is_simulated(how_.where); }
  std::string device_key() const override {
    return how_.where.are_own() ? std::string{} : how_.where.device;
  }
  std::unique_ptr<survey> make_survey(message_sink say) const override {
    return std::make_unique<nvidia_survey>(how_.where, std::move(say));
  }
  result<node_view> look() const override { return read(false); }
  /// With the channels of processes that this process may attach to.
  result<node_view> look_closely() const override { return read(true); }
  std::string why_no_look(const error_code& error) const override {
    return "cannot read " + how_.where.proc + ": " + error.message() +
           "; load NVIDIA's driver, or set SLUICE_NVIDIA_PROC to the driver's tree in /proc";
  }
  std::string why_not_listed(pid_t pid) const override {
    const gpu_users users{how_.where};
    const bool hidden = !users.has_nvml() && process_of(pid) == pid &&
                        !open_directory("/proc/" + std::to_string(pid) + "/fd") && errno == EACCES;
    if (!hidden) return sluice::why_not_listed(pid, "NVIDIA's driver");
    return "cannot determine whether process " + std::to_string(pid) + " (" + command_of(pid) +
           ") uses NVIDIA's driver: this user may not read its descriptors; run as root";
  }
  std::vector<check> examine(const machine& here) const override {
    return nvidia::examine(here, how_);
  }
  acting_choice acting() const override {
    return {.driver = std::string{name()},
            .settings = {{"device", how_.where.device},
                         {"proc", how_.where.proc},
                         {"allow_untested_driver", how_.allow_untested_driver ? "true" : "false"}}};
  }

 private:
  result<node_view> read(bool closely) const {
    const auto loaded = read_release(how_.where);
    if (!loaded) return loaded.error();
    gpu_users users{how_.where};
    const auto listed = users.list();
    if (!listed) return listed.error();
    node_view seen;
    if (!users.sees_all())
      seen.hidden =
          "processes of other users are not listed, because this user may not read their "
          "descriptors and NVML is not in use; run as root";
    for (const gpu_information& each : users.gpus()) {
      gpu_description one{
          .id = each.id, .ordinal = each.minor, .name = each.model, .pci = each.pci};
      std::string uuid = each.uuid;
      if (users.management() != nullptr)
        for (const nvml::gpu& known : users.management()->gpus())
          if (known.id == each.id) {
            one.vram = known.memory;
            uuid = known.uuid;
          }
      one.facts.push_back({.key = "uuid", .value = uuid, .text = uuid});
      one.facts.push_back({.key = "driver", .value = loaded->version});
      seen.gpus.push_back(std::move(one));
    }
    std::map<pid_t, process_description> processes;
    const pid_t self = ::getpid();
    for (const nvml_process& each : *listed) {
      if (each.pid == self) continue;
      process_description& one = processes[each.pid];
      if (one.pid == 0 && !describe(one, each.pid)) continue;
      if (each.memory) one.vram[each.gpu] = *each.memory;
    }
    std::erase_if(processes, [](const auto& each) { return each.second.pid == 0; });
    for (auto& [pid, one] : processes) {
      if (closely) add_channels(one);
      seen.processes.push_back(std::move(one));
    }
    return seen;
  }

  static bool describe(process_description& one, pid_t pid) {
    const auto start = start_time_of(pid);
    if (!start) return false;
    one.pid = pid;
    one.start_time = *start;
    one.command = command_of(pid);
    one.user = user_of(pid);
    one.tracer = tracer_of(pid).value_or(0);
    return true;
  }

  /// Best effort: without the right to attach, a process shows no channels.
  void add_channels(process_description& of) const {
    const auto device = device_file::at(how_.where.device);
    unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, of.pid, 0))};
    if (!device || !pidfd) return;
    auto clients =
        process_clients::open(of.pid, std::move(pidfd), *device, std::chrono::seconds{5});
    if (!clients || !clients->refresh()) return;
    of.not_suspended = clients->not_understood();
    for (const client_objects& each : clients->clients()) {
      for (const auto& [handle, one] : each.channels()) {
        const channel_group* const in = each.group_of(one);
        if (in == nullptr) continue;
        of.queues.push_back({.id = driver_queue_id{handle},
                             .gpu = in->gpu,
                             .kind = in->computes ? queue_kind::compute : queue_kind::copy,
                             .type = in->computes ? "compute" : "copy"});
      }
    }
    std::ranges::sort(of.queues, {}, &queue_description::id);
  }

  driver_options how_;
};

}  // namespace

std::unique_ptr<driver> make_driver(driver_options how) {
  return std::make_unique<nvidia_driver>(std::move(how));
}

}  // namespace sluice::nvidia
