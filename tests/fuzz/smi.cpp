// SMI events: however the text is cut, the same events come out.

#include "fuzz.hpp"

#include "sluice/kfd/smi_text.hpp"

namespace {

bool same(const sluice::kfd::smi_event& a, const sluice::kfd::smi_event& b) {
  return a.kind == b.kind && a.pid == b.pid && a.time_ns == b.time_ns && a.from == b.from &&
         a.to == b.to && a.address == b.address && a.size == b.size && a.value == b.value &&
         a.second_value == b.second_value && a.trigger == b.trigger && a.flag == b.flag &&
         a.text == b.text;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  kfd::smi_parser parser;
  parser.feed(text);
  const auto whole = parser.finish();
  fuzz::feed_in_pieces(parser, text);
  const auto pieces = parser.finish();
  fuzz::require(std::equal(whole.events.begin(), whole.events.end(), pieces.events.begin(),
                           pieces.events.end(), same),
                "the same events, wherever the text is cut");
  fuzz::require(whole.problems.count == pieces.problems.count, "as many problems");
  for (const auto& each : whole.events) {
    fuzz::require(each.text.back() == '\0', "its text ends");
  }
  return 0;
}
