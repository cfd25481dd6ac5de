#include "daemon_choice.hpp"

#include "output.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sluice/policies/all.hpp"

namespace sluice::cli {

policy_registry daemon_policies() {
  policy_registry known;
  for (policy_kind& kind : all_policies()) known.add(std::move(kind));
  return known;
}

std::optional<daemon_config> load_daemon(const std::string& path, const policy_registry& known,
                                         const driver_list& drivers) {
  std::vector<std::string> problems;
  auto loaded = load_daemon_config(path, known, drivers, problems);
  for (const std::string& each : problems) complain(printable(each));
  if (!loaded) return {};
  return std::move(*loaded);
}

void add_daemon(CLI::App& to, std::string& config) {
  to.add_option("--config", config, "Use directory, agent and driver of this daemon")
      ->type_name("FILE");
}

std::optional<chosen_daemon> choose_daemon(const std::string& config, const node_files& files,
                                           const std::string& driver, const driver_list& known) {
  if (config.empty()) return chosen_daemon{.files = files};
  const auto loaded = load_daemon(config, daemon_policies(), known);
  if (!loaded) return {};
  chosen_daemon made{.files = loaded->node.files, .agent = loaded->node.agent_path};
  if (const auto& on = loaded->node.driver; on && (driver == any_driver || driver == on->name()))
    made.on = on;
  return made;
}

std::string words_of(const daemon_config& config) {
  const auto& roles = config.node.settings.roles;
  return fmt::format(
      "mode {}, policy {}, driver {}, files in {}, role store {}{}",
      config.node.mode == node_mode::enforce ? "enforce" : "observe (attaches to no process)",
      config.policy.empty() ? "from a plugin, wrapped by another policy" : config.policy,
      config.node.driver ? config.node.driver->name() : config.driver, config.node.files.directory,
      roles.role_store.empty() ? "none" : roles.role_store,
      roles.gangs.across_nodes == roles::gang_engine::none ? "" : ", gangs across nodes by Slurm");
}

}  // namespace sluice::cli
