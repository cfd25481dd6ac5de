// Logs of the HIP runtime, and ftrace's text.

#include "runtime_log.hpp"

#include "analyze.hpp"
#include "fuzz.hpp"

#include <numeric>

#include <boost/json.hpp>

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  cli::runtime_log_parser parser;
  parser.feed(text);
  cli::analyzed_file whole{"log", parser.finish()};
  fuzz::feed_in_pieces(parser, text);  // as new after finish()
  const cli::analyzed_file pieces{"log", parser.finish()};
  fuzz::require(cli::analysis_json({whole}) == cli::analysis_json({pieces}),
                "the same result, wherever the text is cut");

  const auto lines = static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n')) +
                     (text.empty() || text.back() == '\n' ? 0 : 1);
  const auto& usage = whole.usage;
  fuzz::require(usage.lines == lines, "as many lines as there are");
  fuzz::require(
      std::accumulate(usage.of_kind.begin(), usage.of_kind.end(), std::uint64_t{}) == lines,
      "every line counts once");
  fuzz::require((usage.first_unknown == 0) == (usage.count(cli::line_kind::unknown) == 0),
                "the first of the unknown lines is named");
  std::uint64_t packets = 0, calls = 0;
  for (const auto& each : usage.queues) {
    packets += each.dispatches + each.barriers;
    fuzz::require(
        each.behind_others <= each.backlog.count() && each.backlog.count() <= each.dispatches,
        "a backlog is a dispatch's");
  }
  for (const auto& each : usage.tasks)
    calls += std::accumulate(each.calls.begin(), each.calls.end(), std::uint64_t{});
  const auto counted = usage.count(cli::line_kind::dispatch) +
                       usage.count(cli::line_kind::barrier) +
                       usage.count(cli::line_kind::driver_call);
  fuzz::require(packets + calls <= counted && counted <= packets + calls + usage.left_out,
                "every packet is some queue's, or left out");
  for (const auto& each : cli::compare(usage, pieces.usage))
    fuzz::require(each.differs.empty(), "a log does not differ from itself");
  const auto shown = cli::analysis_text({whole, pieces}, 80);
  fuzz::require(std::all_of(shown.begin(), shown.end(),
                            [](char each) { return each == '\n' || (each >= ' ' && each <= '~'); }),
                "nothing that a terminal acts on");
  return 0;
}
