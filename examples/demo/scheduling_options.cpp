#include "scheduling_options.hpp"

#include "options.hpp"

namespace demo {

void scheduling_options::add_to(CLI::App& app) {
  const std::string group = "Scheduler";
  app.add_option("--config", config_file,
                 "TOML file with a [scheduler] table: max_suspend, min_run, offline_floor, ...")
      ->type_name("FILE")
      ->group(group);
  add_duration(app, "--attach-after", attach_after,
               "How long an offline process has owned a queue before it is attached")
      ->group(group);
  add_duration(app, "--slice", slice, "Shortest hold after the last online arrival")->group(group);
  app.add_option(
         "--release", release,
         "When offline runs again: client_done (slice over and no online work in flight) or "
         "slice_end")
      ->check(CLI::IsMember({"client_done", "slice_end"}))
      ->capture_default_str()
      ->group(group);
}

std::vector<std::string> scheduling_options::arguments() const {
  std::vector<std::string> made{"--slice", to_argument(slice), "--release", release};
  if (!config_file.empty()) made.insert(made.end(), {"--config", config_file});
  if (attach_after.count() != 0) {
    made.insert(made.end(), {"--attach-after", to_argument(attach_after)});
  }
  return made;
}

}  // namespace demo
