// The agent's side: what is done to one target. Threads, rings, leases, the guardian and the record
// of what is frozen are the library's (run_agent(), make_lane_side()).

#include "cgroup.hpp"
#include <sluice/agent/acting_driver.hpp>
#include <sluice/agent/lane_side.hpp>
#include <sluice/os/unique_fd.hpp>

#include <poll.h>

#include <chrono>

namespace {

namespace agent = sluice::agent;
// Each method runs on the target's own thread, and may block.
class frozen_cgroup final : public agent::lane_target {
 public:
  explicit frozen_cgroup(std::string cgroup) : cgroup_(std::move(cgroup)) {}

  sluice::result<std::vector<sluice::queue_info>> open() override {
    if (cgroup_.empty()) return sluice::errc::not_managed;
    events_.reset(::open((cgroup_ + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
    if (!events_) return sluice::last_system_error();
    return std::vector{sluice::queue_info{.id = freezer::only_queue, .gpu = freezer::only_gpu}};
  }
  std::string record() const override { return cgroup_; }
  int act(sluice::command_kind what, sluice::gpu_id, std::span<const sluice::driver_queue_id>,
          std::span<sluice::outcome> outcomes) override {
    const bool freeze = what == sluice::command_kind::suspend;
    const int error = set(freeze);
    outcomes[0] = error == 0 ? sluice::outcome::done : sluice::outcome::failed;
    return error;
  }
  bool close() noexcept override { return freezer::freeze(cgroup_, false) == 0; }

 private:
  // Writes it and waits until cgroup.events says so: then every process stands still, or runs.
  int set(bool frozen) const {
    if (const int error = freezer::freeze(cgroup_, frozen)) return error;
    const auto give_up = sluice::clock::now() + std::chrono::seconds{2};
    while (freezer::is_frozen(events_.get()) != frozen) {
      if (sluice::clock::now() >= give_up) return ETIMEDOUT;
      pollfd changed{events_.get(), POLLPRI, 0};
      (void)::poll(&changed, 1, 100);
    }
    return 0;
  }

  const std::string cgroup_;
  sluice::unique_fd events_;
};

class acting_freezer final : public agent::acting_driver {
 public:
  std::string_view name() const noexcept override { return freezer::name; }
  std::string_view help() const noexcept override { return "  root=PATH   the tree of cgroups\n"; }
  bool set(std::string_view key, std::string_view value, std::string&) override {
    return key == "root" && !(root_ = value).empty();
  }
  sluice::result<std::unique_ptr<sluice::acting_side>> open(
      const agent::acting_host& host) override {
    const auto make = [this](sluice::process_id, pid_t pid, std::uint64_t) {
      return std::make_unique<frozen_cgroup>(freezer::cgroup_of(pid, root_));
    };
    return agent::make_lane_side({.acting = {"cgroup freezer", {}}, .make_target = make}, host);
  }
  // To open cgroup.freeze for writing; files of root's need no capability of root.
  agent::confinement needs(agent::confined) const override { return {.calls = {{"openat"}}}; }

  // A cgroup stays frozen when the agent dies: then the agent's guardian calls this.
  bool outlives_agent() const noexcept override { return true; }
  sluice::result<void> release(const sluice::hold& what, const sluice::message_sink&) override {
    const int error = freezer::freeze(std::string{what.text()}, false);
    if (error == 0) return {};
    return sluice::error_code{error, boost::system::system_category()};
  }

 private:
  std::string root_;
};

}  // namespace

int main(int argc, char** argv) {
  return agent::run_agent(argc, argv, {[] { return std::make_unique<acting_freezer>(); }});
}
