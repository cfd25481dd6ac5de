#include "scheduling_options.hpp"

#include "options.hpp"

#include <chrono>

#include "sluice/duration_text.hpp"

namespace demo {

using namespace std::chrono_literals;

void scheduling_options::add_to(CLI::App& app, const std::string& attach_after_default) {
  const std::string group = "Scheduler";
  app.add_option("--config", config_file,
                 "TOML file with the tables [scheduler], [policy] and [roles]")
      ->type_name("FILE")
      ->group(group);
  auto* const chosen = app.add_option("--policy", policy,
                                      "Policy, instead of the one in --config: a name or the path "
                                      "of a plugin")
                           ->type_name("NAME|FILE.so[:KEY=VALUE,...]")
                           ->group(group);
  add_duration(
      app, "--attach-after", attach_after,
      "Wait before the attach to an offline process (default: " + attach_after_default + ")",
      {0ns, 1h})
      ->group(group);
  add_duration(app, "--slice", slice, "Shortest hold after the last online arrival", {0ns, 1h})
      ->excludes(chosen)
      ->group(group);
  app.add_option("--release", release, "When offline work runs again: client_done or slice_end")
      ->check(CLI::IsMember({"client_done", "slice_end"}))
      ->capture_default_str()
      ->excludes(chosen)
      ->group(group);
}

std::vector<std::string> scheduling_options::arguments() const {
  std::vector<std::string> made{"--slice", sluice::to_text(slice), "--release", release};
  if (!policy.empty()) made = {"--policy", policy};
  if (!config_file.empty()) made.insert(made.end(), {"--config", config_file});
  if (attach_after) {
    made.insert(made.end(), {"--attach-after", sluice::to_text(*attach_after)});
  }
  return made;
}

}  // namespace demo
