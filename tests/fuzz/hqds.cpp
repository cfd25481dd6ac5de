// debugfs' hqds: however the text is cut, the same slots come out.

#include "sluice/kfd/hqds.hpp"

#include "fuzz.hpp"

namespace {

bool same(const sluice::kfd::hqd& a, const sluice::kfd::hqd& b) {
  return a.node == b.node && a.gpu == b.gpu && a.xcc == b.xcc && a.hiq == b.hiq && a.mec == b.mec &&
         a.pipe == b.pipe && a.slot == b.slot && a.active == b.active && a.vmid == b.vmid &&
         a.pipe_priority == b.pipe_priority && a.priority == b.priority &&
         a.descriptor_address == b.descriptor_address && a.ring_base == b.ring_base &&
         a.read == b.read && a.write == b.write;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  const auto whole = kfd::parse_hqds(text);
  kfd::hqds_parser parser;
  fuzz::feed_in_pieces(parser, text);
  const auto pieces = parser.finish();
  fuzz::require(std::equal(whole.slots.begin(), whole.slots.end(), pieces.slots.begin(),
                           pieces.slots.end(), same),
                "the same slots, wherever the text is cut");
  fuzz::require(whole.stopped == pieces.stopped, "the same stopped devices");
  fuzz::require(whole.problems.count == pieces.problems.count, "as many problems");
  for (const auto& use : kfd::occupancy(whole)) {
    fuzz::require(use.active <= use.slots, "no more slots taken than there are");
  }
  std::vector<kfd::queue_in_slots> queues;
  for (const auto& each : whole.slots) queues.push_back({each.gpu, each.ring_base, 4096, {}});
  fuzz::require(kfd::join(whole, queues).size() == queues.size(), "an answer for each");
  return 0;
}
