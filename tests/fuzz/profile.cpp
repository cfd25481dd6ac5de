// Profiles of the simulated device, as TOML.

#include "fuzz.hpp"
#include "profile_file.hpp"

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
  return 0;
}
