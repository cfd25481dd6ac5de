// Requests at the control socket, one to a line.

#include "control_desk.hpp"
#include "fuzz.hpp"
#include "steered.hpp"

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "sluice/node_files.hpp"

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
    const auto line = text.substr(0, std::min(end, control_desk::longest_request));
    const std::string answer = desk.answer(line, {.pid = 1, .user = root ? uid_t{0} : uid_t{1000}});
    fuzz::require(answer.find('\n') + 1 == answer.size(), "an answer is one line");
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
