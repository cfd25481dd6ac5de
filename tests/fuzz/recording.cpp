// Recordings of a scheduler's events.

#include "recording.hpp"

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto read = lab::parse_recording(fuzz::as_text(data, size), "record");
  if (!read) {
    fuzz::require(read.error().message.starts_with("record"), "what is wrong says where");
    return 0;
  }
  fuzz::require(
      read->entries.empty() || std::holds_alternative<lab::rec::turn>(read->entries.back().what),
      "what is there of a recording ends with a turn");
  time_point last = read->base;
  for (const auto& each : read->entries) {
    fuzz::require(each.at >= last, "in order of time");
    last = each.at;
  }
  return 0;
}
