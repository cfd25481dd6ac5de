#include "sluice/kfd/acting_driver.hpp"

#include "criu.hpp"
#include <asm/termbits.h>

#include <linux/capability.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "sluice/kfd/bell_maker.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/roots.hpp"

namespace sluice::kfd {

namespace {

using agent::argument_is;
using agent::confined;
using agent::confinement;

/// IORING_REGISTER_EVENTFD and IORING_REGISTER_ENABLE_RINGS.
constexpr std::array<unsigned, 2> ring_registrations{4, 12};
/// The type of all commands of the driver: 'K', in the second byte.
constexpr std::uint64_t ioctl_type = _IOC_TYPEMASK << _IOC_TYPESHIFT;
constexpr std::uint64_t driver_type = std::uint64_t{'K'} << _IOC_TYPESHIFT;
/// A console's commands have that type, too (linux/kd.h), but no direction, which all that are used
/// here have.
constexpr std::uint64_t ioctl_direction = std::uint64_t{_IOC_DIRMASK} << _IOC_DIRSHIFT;
constexpr std::array<std::uint64_t, 3> directions{_IOC_READ, _IOC_WRITE, _IOC_READ | _IOC_WRITE};

/// To trace without reading or writing registers and memory.
void let_trace(confinement& made) {
  for (const auto request : {PTRACE_SEIZE, PTRACE_CONT, PTRACE_LISTEN})
    made.calls.push_back({"ptrace", {argument_is(0, request)}});
  made.calls.push_back({"wait4"});
  made.calls.push_back({"waitid"});
  for (const std::uint64_t each : directions)
    made.calls.push_back(
        {"ioctl", {{1, ioctl_type | ioctl_direction, driver_type | each << _IOC_DIRSHIFT}}});
}

/// Gives the pidfd of the maker of bells the highest number that there is, which nothing else can
/// then come to have. The others are enough for some thousand targets.
bool set_apart(bell_maker& bells) {
  constexpr rlim_t most = 16384;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  const rlim_t highest = std::min(files.rlim_cur, most) - 1;
  if (!bells.move_pidfd(static_cast<int>(highest))) return false;
  const rlimit below{highest, highest};
  return ::setrlimit(RLIMIT_NOFILE, &below) == 0;
}

class kfd_acting_driver final : public agent::acting_driver {
 public:
  std::string_view name() const noexcept override { return "kfd"; }
  std::string_view help() const noexcept override {
    return "  device=PATH            KFD device node\n"
           "  sysfs=PATH             the driver's sysfs tree\n"
           "  batch_commands=false   suspend with the debug trap, not with batch commands\n"
           "  criu_pause=true        pause a process as a whole if its queues cannot be\n"
           "                         suspended because it does not use the ROCm runtime's\n"
           "                         debug support\n";
  }
  bool set(std::string_view key, std::string_view value, std::string& why) override {
    const auto flag = [&](bool& into) {
      into = value == "true";
      if (into || value == "false") return true;
      why = "expected true or false";
      return false;
    };
    if (key == "batch_commands") return flag(batch_commands_);
    if (key == "criu_pause") return flag(criu_pause_);
    if (key != "device" && key != "sysfs") return false;
    (key == "device" ? device_path_ : sysfs_) = value;
    return true;
  }
  std::string distrust() const override {
    const roots own;
    if (device_path_ == own.device && sysfs_ == own.sysfs) return {};
    return "an agent with file capabilities only opens the default device " + own.device +
           " and sysfs tree " + own.sysfs;
  }

  /// Lanes hear of stops by rings, and no filter sees what goes through those: so this process
  /// makes none.
  result<void> prepare(std::string&) override {
    if (!lanes::hear_stops()) return {};
    auto started =
        bell_maker::start([] { return agent::confine(bell_maker_confinement()).has_value(); });
    if (started && set_apart(**started)) bells_ = std::move(*started);
    return {};
  }
  /// SIGCHLD is sent for stops only where lanes do not hear of them in a better way: to all of the
  /// process, it wakes the loop.
  bool watches_children() const noexcept override { return bells_ == nullptr; }

  result<std::unique_ptr<acting_side>> open(const agent::acting_host& host) override {
    auto opened = device::open(device_path_, host.say);
    if (!opened) return opened.error();
    device_ = std::move(*opened);
    auto made = lanes::create(*device_, {.owner_watches_children = bells_ == nullptr,
                                         .bells = bells_.get(),
                                         .take_reports = host.take_reports,
                                         .batch_commands = batch_commands_,
                                         .pauses = host.holds,
                                         .admits = host.admits,
                                         .sysfs = sysfs_,
                                         .say = host.say});
    if (!made) return made.error();
    reserves_ = (*made)->takes_reservations();
    return std::unique_ptr<acting_side>{std::move(*made)};
  }
  confinement needs(confined who) const override {
    if (who == confined::agent)
      return agent_confinement({.criu_pause = criu_pause_,
                                .reservations = reserves_,
                                .bells = bells_ ? bells_->pidfd() : -1});
    return agent_confinement({.criu_pause = criu_pause_});
  }

  bool outlives_agent() const noexcept override { return criu_pause_; }
  result<void> release(const hold& what, const message_sink& say) override {
    return release_pause(device_path_, sysfs_, what, say);
  }
  result<void> release_everything(const message_sink& say) override {
    if (::access(device_path_.c_str(), F_OK) != 0) {
      const error_code error = last_system_error();
      say("cannot find " + device_path_ + ": " + error.message());
      return error;
    }
    say("the kernel resumed all queues when their agents ended; processes that criu_pause paused "
        "as a whole are resumed only from a record");
    return {};
  }

 private:
  std::string device_path_ = roots{}.device;
  std::string sysfs_ = roots{}.sysfs;
  bool batch_commands_ = true;
  bool criu_pause_ = false;
  std::unique_ptr<bell_maker> bells_;
  std::unique_ptr<device> device_;
  bool reserves_ = false;
};

}  // namespace

confinement agent_confinement(const agent_needs& how) {
  confinement made{.capabilities = {CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH}};
  if (how.criu_pause) made.capabilities.push_back(CAP_CHECKPOINT_RESTORE);
  if (how.reservations) made.capabilities.push_back(CAP_SYS_ADMIN);
  let_trace(made);
  made.calls.push_back({"process_vm_readv"});
  if (how.criu_pause) made.calls.push_back({"pidfd_getfd"});
  if (how.bells < 0) return made;
  // The highest number that there is, which nothing else may come to have.
  made.kept_fd = how.bells;
  if (!how.criu_pause)
    made.calls.push_back({"pidfd_getfd", {argument_is(0, static_cast<std::uint64_t>(how.bells))}});
  made.calls.push_back({"io_uring_enter"});
  for (const unsigned each : ring_registrations)
    made.calls.push_back({"io_uring_register", {argument_is(1, each)}});
  return made;
}

confinement bell_maker_confinement() {
  return {.who = confined::helper,
          .calls = {{"io_uring_setup"}, {"io_uring_register"}, {"sendto"}, {"recvfrom"}}};
}

std::unique_ptr<agent::acting_driver> make_acting_driver() {
  return std::make_unique<kfd_acting_driver>();
}

}  // namespace sluice::kfd
