// Traces of arrivals.

#include "fuzz.hpp"

#include <sstream>

#include "sluice/lab/arrivals.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  std::istringstream in{std::string{fuzz::as_text(data, size)}};
  const auto read = lab::read_trace(in, "trace");
  if (!read) {
    fuzz::require(read.error().message.starts_with("trace:"), "what is wrong says where");
    fuzz::require(read.error().message.find('\n') == std::string::npos, "in one line");
    return 0;
  }
  duration last{};
  for (const auto& each : read->requests) {
    fuzz::require(each.at >= last && each.at <= read->window, "requests in order of time");
    last = each.at;
  }
  (void)lab::busiest(*read, std::chrono::seconds{1});
  return 0;
}
