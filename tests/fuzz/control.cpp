// Requests at the control socket, one to a line; each line is also a daemon's answer to the command
// line's programs.

#include "control_desk.hpp"
#include "control_link.hpp"
#include "fuzz.hpp"
#include "status_view.hpp"
#include "steered.hpp"

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "sluice/node_files.hpp"

namespace {

/// What a daemon says, as `sluice status`, `why` and `top` show it.
void show(std::string_view line, bool is_ours) {
  using namespace sluice;
  cli::control_failure failed;
  const auto answer = cli::parse_answer(line, failed);
  fuzz::require(answer.has_value() == failed.sentence.empty(), "an answer, or a sentence");
  if (is_ours)
    fuzz::require(answer || failed.what != cli::control_problem::broken, "we understand us");
  if (!answer) return;
  const auto lines = [](const std::string& text) {
    fuzz::require(!text.empty() && text.back() == '\n', "whole lines");
    for (const char each : text)
      fuzz::require(each == '\n' || static_cast<unsigned char>(each) >= ' ', "a terminal's text");
  };
  lines(cli::status_text(*answer, 80));
  lines(cli::why_text(*answer, 10));
  for (const auto order : cli::group_orders) lines(cli::group_table(*answer, "g1", order, 40));
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  static const fuzz::input_file nearby("unused");
  node_files files;
  files.directory = nearby.path().substr(0, nearby.path().rfind('/'));
  test::fake_node node;
  history past{test::name_of_test};
  test::script journal{past};
  journal.process();
  journal.begin();
  journal.held();
  control_desk desk{{.files = files, .owner = 0}, node, past};
  std::string_view text = fuzz::as_text(data, size);
  while (!text.empty()) {
    // The first letter says who asks.
    const bool root = text.front() == '!';
    if (root) text.remove_prefix(1);
    const auto end = std::min(text.find('\n'), text.size());
    show(text.substr(0, end), false);
    const auto line = text.substr(0, std::min(end, control_desk::longest_request));
    const std::string answer = desk.answer(line, {.pid = 1, .user = root ? uid_t{0} : uid_t{1000}});
    fuzz::require(answer.find('\n') + 1 == answer.size(), "an answer is one line");
    show(std::string_view(answer).substr(0, answer.find('\n')), true);
    boost::system::error_code error;
    const auto said = boost::json::parse(answer, error);
    fuzz::require(!error && said.is_object() && said.as_object().contains("version"),
                  "an answer is a JSON object with a version");
    if (!root)
      fuzz::require(node.changes == 0 && !paused_why(files), "others than root change nothing");
    node.changes = 0;
    std::string ignored;
    (void)unpause_node(files, ignored);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}
