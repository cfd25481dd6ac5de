// Jobs files, and logs that hold such lines.

#include "fuzz.hpp"
#include "job_lines.hpp"

#include <chrono>
#include <cmath>

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const std::string_view text = fuzz::as_text(data, size);
  const auto read = cli::parse_job_line(text.substr(0, text.find('\n')));
  if (read) {
    const std::string line = observe::to_json(*read);
    const auto again = cli::parse_job_line(line);
    fuzz::require(again.has_value(), "what was read can be written and read");
    // Not the first time: a file may have more decimals.
    const std::string once_more = observe::to_json(*again);
    const auto last = cli::parse_job_line(once_more);
    fuzz::require(last && observe::to_json(*last) == once_more, "and says the same then");
  }
  cli::job_book book({});
  book.read(text);
  // As far as sums of it have no end of their own.
  const auto seconds = [](const cli::job_sum& of) {
    return std::chrono::duration<double>(of.whole.suspended).count();
  };
  double all = 0;
  for (const auto& each : book.processes()) {
    all += seconds(each);
    const double share = cli::suspended_share(each.whole);
    fuzz::require(share >= 0 && share <= 1, "a share is one");
  }
  double by_group = 0;
  for (const auto& each : book.groups()) by_group += seconds(each);
  fuzz::require(all > 9e9 || std::abs(by_group - all) < 1, "groups are sums of their processes");
  return 0;
}
