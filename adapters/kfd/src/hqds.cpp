#include "sluice/kfd/hqds.hpp"

#include "text_scan.hpp"

#include <algorithm>
#include <utility>

namespace sluice::kfd {

namespace {

// Positions within a slot's dump, which begins at CP_MQD_BASE_ADDR.
constexpr std::size_t at_mqd_lo = 0;
constexpr std::size_t at_mqd_hi = 1;
constexpr std::size_t at_active = 2;
constexpr std::size_t at_vmid = 3;
constexpr std::size_t at_pipe_priority = 5;
constexpr std::size_t at_priority = 6;
constexpr std::size_t at_base_lo = 8;
constexpr std::size_t at_base_hi = 9;
constexpr std::size_t at_read = 10;
constexpr std::size_t at_write_lo = 54;
constexpr std::size_t at_write_hi = 55;

}  // namespace

void hqds_parser::feed(std::string_view piece) {
  lines_.feed(piece, [this](const text_line& each) { line(each); });
}

hqds hqds_parser::finish() {
  lines_.finish([this](const text_line& each) { line(each); });
  end_slot();
  return std::exchange(*this, {}).out_;
}

hqds parse_hqds(std::string_view text) {
  hqds_parser parser;
  parser.feed(text);
  return parser.finish();
}

void hqds_parser::line(const text_line& from) {
  if (from.whole && (register_line(from) || part_line(from) || node_line(from.text))) return;
  out_.problems.note(from.number, from.text);
  // What is indented as registers are can have been no header, unless lines ran together.
  if (from.text.starts_with("    ") && from.text.find("Node ") == std::string_view::npos &&
      from.text.find("Inst ") == std::string_view::npos)
    return;
  end_slot();
  node_known_ = false;
}

bool hqds_parser::node_line(std::string_view text) {
  if (text == " Device is stopped") {
    if (!node_known_) return false;
    end_slot();
    if (out_.stopped.size() < most) out_.stopped.push_back(gpu_);
    return true;
  }
  std::uint32_t node = 0;
  std::uint32_t gpu = 0;
  text_scan scan{text};
  if (!scan.literal("Node ").number(node).literal(", gpu_id ").number(gpu, 16).literal(":").done())
    return false;
  end_slot();
  node_known_ = true;
  node_ = node;
  gpu_ = gpu_id{gpu};
  return true;
}

bool hqds_parser::part_line(const text_line& from) {
  hqd found;
  text_scan scan{from.text};
  if (!scan.take(" ")) return false;
  scan.blanks();
  bool compute = true;
  if (scan.take("SDMA Engine ")) {
    compute = false;
    scan.number(found.pipe).literal(", RLC ").number(found.slot);
  } else {
    if (scan.take("Inst ")) scan.number(found.xcc).literal(",").blanks();
    if (scan.take("HIQ on MEC ")) {
      found.hiq = true;
      scan.number(found.mec).literal(" Pipe ").number(found.pipe);
      scan.literal(" Queue ").number(found.slot);
    } else {
      scan.literal("CP Pipe ").number(found.pipe).literal(", Queue ").number(found.slot);
    }
  }
  if (!scan.done()) return false;
  end_slot();
  body_ = compute ? body::slot : body::passed_over;
  found.node = node_;
  found.gpu = gpu_;
  slot_ = found;
  damaged_ = !node_known_;
  slot_line_number_ = from.number;
  slot_text_ = from.text;
  least_address_ = 0;
  registers_ = 0;
  return true;
}

bool hqds_parser::register_line(const text_line& from) {
  std::uint32_t address = 0;
  text_scan scan{from.text};
  if (scan.literal("    ").word(address).literal(":").failed()) return false;
  if (body_ == body::none) return false;
  std::uint32_t count = 0;
  while (count < 8 && !scan.failed() && !scan.rest().empty()) {
    std::uint32_t value = 0;
    scan.literal(" ").word(value);
    if (registers_ < kept_.size()) kept_[registers_] = value;
    ++registers_;
    ++count;
  }
  if (!scan.done() || count == 0) {
    out_.problems.note(from.number, from.text);
    damaged_ = true;
  }
  if (address < least_address_) damaged_ = true;  // another slot's, whose header is lost
  least_address_ = std::uint64_t{address} + std::uint64_t{4} * count;
  return true;
}

void hqds_parser::end_slot() {
  if (std::exchange(body_, body::none) != body::slot) return;
  if (damaged_ || registers_ != kept_.size() || out_.slots.size() >= most) {
    out_.problems.note(slot_line_number_, slot_text_);
    return;
  }
  slot_.descriptor_address = wide(kept_[at_mqd_lo], kept_[at_mqd_hi]);
  slot_.active = (kept_[at_active] & 1U) != 0;
  slot_.vmid = kept_[at_vmid];
  slot_.pipe_priority = kept_[at_pipe_priority];
  slot_.priority = kept_[at_priority];
  slot_.ring_base = wide(kept_[at_base_lo], kept_[at_base_hi]) << 8U;
  slot_.read = kept_[at_read];
  slot_.write = wide(kept_[at_write_lo], kept_[at_write_hi]);
  out_.slots.push_back(slot_);
}

std::vector<slot_use> occupancy(const hqds& seen) {
  std::vector<slot_use> uses;
  for (const hqd& each : seen.slots) {
    if (each.hiq) continue;
    auto use = std::ranges::find(uses, each.gpu, &slot_use::gpu);
    if (use == uses.end()) use = uses.insert(uses.end(), slot_use{each.gpu});
    ++use->slots;
    if (each.active) ++use->active;
  }
  return uses;
}

std::vector<std::optional<queue_load>> join(const hqds& seen,
                                            std::span<const queue_in_slots> queues) {
  std::vector<std::optional<queue_load>> loads;
  loads.reserve(queues.size());
  for (const queue_in_slots& wanted : queues) {
    std::optional<queue_load> load{queue_load{}};
    std::optional<std::uint32_t> vmid = wanted.vmid;
    for (const hqd& each : seen.slots) {
      if (each.hiq || !each.active || each.gpu != wanted.gpu) continue;
      if (wanted.ring_base == 0 || each.ring_base != wanted.ring_base) continue;
      if (wanted.vmid && each.vmid != *wanted.vmid) continue;
      if (vmid && each.vmid != *vmid) {
        load.reset();
        break;
      }
      vmid = each.vmid;
      ++load->slots;
      load->backlog = std::max(load->backlog, backlog(each, wanted.ring_size));
    }
    loads.push_back(load);
  }
  return loads;
}

}  // namespace sluice::kfd
