// The daemon's TOML file, which the rules of classification and the scheduler's settings are part
// of.

#include "sluice/config.hpp"

#include "fuzz.hpp"

#include "sluice/daemon_config.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/policies/all.hpp"
#include "sluice/roles/classification.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  static const fuzz::input_file file("sluice.toml");
  static const policy_registry known = [] {
    policy_registry made;
    for (auto& each : all_policies()) made.add(std::move(each));
    return made;
  }();
  static const driver_list drivers{[] { return kfd::make_driver(); }};
  file.write(fuzz::as_text(data, size));
  std::vector<std::string> problems;
  const auto whole = load_daemon_config(file.path(), known, drivers, problems);
  fuzz::require(whole.has_value() == problems.empty(), "an error is said, and only an error");
  for (const auto& each : problems) {
    fuzz::require(each.find(file.path()) != std::string::npos, "what is wrong says in which file");
  }
  if (whole) {
    fuzz::require(whole->node.settings.scheduler.problem().empty(),
                  "what is taken can be scheduled by");
    fuzz::require(whole->fixed_differences(*whole).empty(), "a file is like itself");
  }
  problems.clear();
  if (const auto core = load_config(file.path(), problems, {"kfd"})) {
    fuzz::require(core->problem().empty(), "what is taken can be scheduled by");
  }
  problems.clear();
  (void)roles::load_classification(file.path(), problems);
  return 0;
}
