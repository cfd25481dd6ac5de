#include "sluice/kfd/driver.hpp"

#include <unistd.h>

#include <utility>

#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/survey.hpp"

namespace sluice::kfd {

namespace {

sluice::node_view shown(const node_view& seen) {
  sluice::node_view made;
  for (const auto& each : seen.gpus)
    made.gpus.push_back({.id = each.id,
                         .ordinal = each.ordinal,
                         .name = each.name,
                         .pci = each.pci,
                         .reset_domain = each.hive,
                         .vram = each.vram});
  for (const auto& each : seen.processes) {
    made.processes.push_back({.pid = each.pid,
                              .start_time = each.start_time,
                              .command = each.command,
                              .user = each.user,
                              .tracer = each.tracer,
                              .vram = each.vram,
                              .evicted_ms = each.evicted_ms,
                              .queues = {}});
  }
  return made;
}

class kfd_driver final : public driver {
 public:
  explicit kfd_driver(driver_options how) : how_(std::move(how)) {}

  std::string_view name() const noexcept override { return "kfd"; }
  bool present() const override { return ::access(how_.where.device.c_str(), F_OK) == 0; }
  bool simulated() const override { return is_simulated(how_.where); }
  std::string device_key() const override { return how_.where.other_tree(); }
  std::unique_ptr<survey> make_survey(message_sink say) const override {
    return kfd::make_survey(how_.where, std::move(say));
  }
  result<sluice::node_view> look() const override {
    const auto seen = look_at_node(how_.where);
    if (!seen) return seen.error();
    return shown(*seen);
  }
  acting_choice acting() const override { return kfd::acting(how_); }

 private:
  const driver_options how_;
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
