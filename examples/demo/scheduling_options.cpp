#include "scheduling_options.hpp"

#include "options.hpp"

#include <chrono>

#include "sluice/duration_text.hpp"

namespace demo {

using namespace std::chrono_literals;

void scheduling_options::add_to(CLI::App& app, const std::string& attach_after_default) {
  const std::string group = "Scheduler";
  app.add_option(
         "--config", config_file,
         "TOML file with the tables [scheduler] (max_suspend, min_run, offline_floor, ...), "
         "[policy] (replaces --slice and --release) and [roles]")
      ->type_name("FILE")
      ->group(group);
  auto* const chosen = app.add_option("--policy", policy,
                                      "Policy, instead of the one in --config: a name or the path "
                                      "of a plugin, with parameters, such as "
                                      "slo:request.p99=200ms ('sluice policy' lists policies and "
                                      "parameters)")
                           ->type_name("NAME|FILE.so[:KEY=VALUE,...]")
                           ->group(group);
  add_duration(
      app, "--attach-after", attach_after,
      "Time from the first queue of an offline process until the scheduler attaches to the "
      "process; only an attached process can be suspended. The scheduler also waits for a pause in "
      "online work, but only until attach_at_latest (3 s, or the configured value) after the first "
      "queue (default: " +
          attach_after_default + ")",
      {0ns, 1h})
      ->group(group);
  add_duration(app, "--slice", slice, "Shortest hold after the last online arrival", {0ns, 1h})
      ->excludes(chosen)
      ->group(group);
  app.add_option(
         "--release", release,
         "When offline work runs again: client_done (after the slice, once no online work is in "
         "flight) or slice_end (after the slice)")
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
