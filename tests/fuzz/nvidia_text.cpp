// What NVIDIA's driver shows in /proc, and the record of what the agent holds.

#include "fuzz.hpp"
#include "hold_text.hpp"

#include "sluice/nvidia/driver_text.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  if (const auto loaded = nvidia::parse_version(text))
    fuzz::require(loaded->version.starts_with(std::to_string(loaded->branch) + '.') ||
                      loaded->version.starts_with('0'),
                  "a version begins with its branch");
  if (const auto gpu = nvidia::gpu_at(text))
    fuzz::require(*gpu != gpu_id::none, "a GPU has a number");
  if (const auto gpu = nvidia::parse_gpu("0000:01:00.0", text))
    fuzz::require(gpu->model.find('\n') == std::string::npos, "a model is one line");
  if (const auto held = nvidia::parse_held_process(text)) {
    const auto again = nvidia::parse_held_process(nvidia::to_text(*held));
    fuzz::require(again && again->clients == held->clients && again->slices == held->slices,
                  "a record that is written again is the same");
  }
  return 0;
}
