#include "sluice/kfd/driver.hpp"

#include <unistd.h>

#include <utility>
#include <vector>

#include "sluice/kfd/checks.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/queue_holder.hpp"
#include "sluice/kfd/survey.hpp"

namespace sluice::kfd {

namespace {

/// What all drivers show, without what only KFD does.
sluice::node_view shown(node_view seen) {
  return {.gpus = {seen.gpus.begin(), seen.gpus.end()}, .processes = std::move(seen.processes)};
}

class kfd_driver final : public driver {
 public:
  explicit kfd_driver(driver_options how) : how_(std::move(how)) {}

  std::string_view name() const noexcept override { return "kfd"; }
  std::string why_absent() const override {
    if (::access(how_.where.device.c_str(), F_OK) == 0) return {};
    const error_code error = last_system_error();
    if (error != boost::system::errc::no_such_file_or_directory)
      return "cannot find " + how_.where.device + ": " + error.message() +
             "; run as a user who may use the GPUs";
    return how_.where.device + " does not exist; load the amdgpu driver";
  }
  std::string set(std::string_view key, const setting& value) override {
    if (key == "batch_commands") return take_setting(value, how_.batch_commands);
    if (key == "criu_pause") return take_setting(value, how_.criu_pause);
    return driver::set(key, value);
  }
  bool simulated() const override { return is_simulated(how_.where); }
  bool survey_sees_work() const noexcept override { return true; }
  std::string device_key() const override { return how_.where.other_tree(); }
  std::unique_ptr<survey> make_survey(message_sink say) const override {
    return kfd::make_survey(how_.where, std::move(say));
  }
  result<sluice::node_view> look() const override {
    auto seen = look_at_node(how_.where);
    if (!seen) return seen.error();
    return shown(std::move(*seen));
  }
  result<sluice::node_view> look_closely() const override {
    auto seen = look_at_node(how_.where);
    if (!seen) return seen.error();
    // Best effort: only root can read it, and unknown priorities show as such.
    (void)add_priorities(*seen, how_.where);
    return shown(std::move(*seen));
  }
  std::string why_no_look(const error_code& error) const override {
    return "cannot read " + how_.where.sysfs + "/proc: " + error.message() +
           "; load the amdgpu driver, or set SLUICE_KFD_SYSFS to the driver's sysfs tree";
  }
  std::string why_not_listed(pid_t pid) const override {
    return kfd::why_not_listed(pid, how_.where);
  }
  std::vector<check> examine(const machine& here) const override {
    return kfd::examine(here, how_.where);
  }
  acting_choice acting() const override { return kfd::acting(how_); }
  std::unique_ptr<sluice::queue_holder> open_holder(hold_failure& why) const override {
    return queue_holder::open(how_.where, why);
  }

 private:
  driver_options how_;
};

}  // namespace

acting_choice acting(const driver_options& how) {
  return {.driver = "kfd",
          .settings = {{"device", how.where.device},
                       {"sysfs", how.where.sysfs},
                       {"batch_commands", how.batch_commands ? "true" : "false"},
                       {"criu_pause", how.criu_pause ? "true" : "false"}}};
}

std::unique_ptr<driver> make_driver(driver_options how) {
  return std::make_unique<kfd_driver>(std::move(how));
}

}  // namespace sluice::kfd
