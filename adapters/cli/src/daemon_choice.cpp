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

std::string words_of(const daemon_config& config) {
  return fmt::format(
      "mode {}, policy {}, driver {}, files in {}, role store {}",
      config.node.mode == node_mode::enforce ? "enforce" : "observe (attaches to no process)",
      config.policy.empty() ? "from a plugin, wrapped by another policy" : config.policy,
      config.node.driver ? config.node.driver->name() : config.driver, config.node.files.directory,
      config.node.settings.roles.role_store.empty() ? "none"
                                                    : config.node.settings.roles.role_store);
}

}  // namespace sluice::cli
