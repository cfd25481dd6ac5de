// Profiles of the simulated device, as TOML; and the measured costs in one, which the policy slo
// reads by itself.

#include "fuzz.hpp"
#include "profile_file.hpp"

#include <memory>

#include "sluice/policies/all.hpp"
#include "sluice/policy_registry.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  static const fuzz::input_file file("profile.toml");
  file.write(fuzz::as_text(data, size));
  try {
    const auto node = sim::load_profile(file.path());
    fuzz::require(!node.gpus.empty(), "a node has a GPU");
  } catch (const sim::profile_error& error) {
    fuzz::require(std::string_view{error.what()}.find(file.path()) != std::string_view::npos,
                  "what is wrong says in which file");
  }
  static const policy_registry known = [] {
    policy_registry made;
    for (auto& each : all_policies()) made.add(std::move(each));
    return made;
  }();
  parameters values;
  values.set("request.p99", duration{std::chrono::seconds{1}});
  values.set("profile", file.path());
  std::string message;
  const auto made = known.make("slo", values, message);
  fuzz::require(made.has_value() == message.empty(), "an error is said, and only an error");
  fuzz::require(made || message.find(file.path()) != std::string::npos,
                "what is wrong says in which file");
  return 0;
}
