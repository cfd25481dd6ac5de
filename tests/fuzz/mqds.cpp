// debugfs' mqds: however the text is cut, the same queues come out.

#include "sluice/kfd/mqds.hpp"

#include "fuzz.hpp"

namespace {

bool same(const sluice::kfd::mqd& a, const sluice::kfd::mqd& b) {
  return a.pid == b.pid && a.type == b.type && a.gpu == b.gpu && a.location == b.location &&
         a.queue == b.queue && a.ring_base == b.ring_base && a.priority == b.priority &&
         a.active == b.active && a.descriptor_address == b.descriptor_address &&
         a.read_pointer_address == b.read_pointer_address &&
         a.write_pointer_address == b.write_pointer_address && a.pipe_priority == b.pipe_priority &&
         a.quantum == b.quantum && a.vmid == b.vmid && a.aql == b.aql &&
         a.saved_read == b.saved_read && a.saved_write == b.saved_write &&
         a.descriptors == b.descriptors;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  const auto whole = kfd::parse_mqds(text);
  kfd::mqds_parser parser;
  fuzz::feed_in_pieces(parser, text);
  const auto pieces = parser.finish();
  fuzz::require(std::equal(whole.queues.begin(), whole.queues.end(), pieces.queues.begin(),
                           pieces.queues.end(), same),
                "the same queues, wherever the text is cut");
  fuzz::require(whole.processes == pieces.processes, "the same processes");
  fuzz::require(whole.problems.count == pieces.problems.count, "as many problems");
  fuzz::require(whole.queues.size() <= kfd::mqds_parser::most, "no more than there may be");
  for (const auto& each : whole.queues) {
    fuzz::require(each.pid > 0, "a queue belongs to a process");
    const kfd::queue_ring ring{{}, each.gpu, each.ring_base};
    (void)kfd::join(whole, each.pid, std::span{&ring, 1});
  }
  return 0;
}
