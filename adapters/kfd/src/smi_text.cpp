#include "sluice/kfd/smi_text.hpp"

#include "text_scan.hpp"

#include <algorithm>
#include <utility>

namespace sluice::kfd {

namespace {

void keep_text(smi_event& in, text_scan& scan) noexcept {
  const std::string_view rest = scan.take_rest();
  std::copy_n(rest.begin(), std::min(rest.size(), in.text.size() - 1), in.text.begin());
}

/// Takes a GPU's id in hexadecimal.
text_scan& gpu(text_scan& scan, gpu_id& into) noexcept {
  std::uint32_t number = 0;
  scan.number(number, 16);
  into = gpu_id{number};
  return scan;
}

/// The payload of one event. \return whether it has the kind's shape to its end.
bool read_payload(text_scan& scan, smi_event& into) noexcept {
  const auto when_and_who = [&] {
    scan.number(into.time_ns).literal(" -").number(into.pid).literal(" ");
  };
  const auto range = [&] {
    scan.literal("@").number(into.address, 16).literal("(").number(into.size, 16).literal(") ");
  };
  switch (into.kind) {
    case smi_kind::vm_fault:
      scan.number(into.pid, 16).literal(":");
      keep_text(into, scan);
      break;
    case smi_kind::thermal_throttle:
      scan.number(into.value, 16).literal(":").number(into.second_value, 16);
      break;
    case smi_kind::gpu_pre_reset:
      scan.number(into.value, 16);
      if (scan.take(" ")) keep_text(into, scan);
      break;
    case smi_kind::gpu_post_reset: scan.number(into.value, 16); break;
    case smi_kind::migrate_start:
    case smi_kind::migrate_end: {
      when_and_who();
      range();
      gpu(scan, into.from).literal("->");
      gpu(scan, into.to).literal(" ");
      if (into.kind == smi_kind::migrate_start) {
        std::uint32_t location = 0;
        scan.number(location, 16).literal(":").number(location, 16).literal(" ");
      }
      scan.number(into.trigger);
      std::int32_t error = 0;
      if (into.kind == smi_kind::migrate_end && scan.take(" ")) scan.number(error);
      break;
    }
    case smi_kind::page_fault_start:
    case smi_kind::page_fault_end:
      when_and_who();
      scan.literal("@").number(into.address, 16).literal("(");
      gpu(scan, into.from).literal(") ").character(into.flag);
      break;
    case smi_kind::queue_eviction:
      when_and_who();
      gpu(scan, into.from).literal(" ").number(into.trigger);
      break;
    case smi_kind::queue_restore:
      when_and_who();
      gpu(scan, into.from);
      // Newer: "R", or a NUL byte where there is nothing to say.
      if (scan.take(" ")) scan.character(into.flag);
      if (into.flag != 'R' && into.flag != '\0') scan.fail();
      break;
    case smi_kind::unmap_from_gpu:
      when_and_who();
      range();
      gpu(scan, into.from).literal(" ").number(into.trigger);
      break;
    case smi_kind::process_start:
    case smi_kind::process_end:
      scan.number(into.pid, 16).literal(" ");
      keep_text(into, scan);
      break;
    default: return false;  // of a later driver
  }
  return scan.done();
}

}  // namespace

void smi_parser::feed(std::string_view piece) {
  lines_.feed(piece, [this](const text_line& each) { line(each); });
}

smi_parser::outcome smi_parser::finish() {
  lines_.finish([this](const text_line& each) { line(each); });
  return std::exchange(*this, {}).out_;
}

void smi_parser::line(const text_line& from) {
  smi_event event;
  text_scan scan{from.text};
  std::uint32_t kind = 0;
  scan.number(kind, 16).literal(" ");
  event.kind = smi_kind{kind};
  if (from.whole && !scan.failed() && read_payload(scan, event) && out_.events.size() < most) {
    out_.events.push_back(event);
  } else {
    out_.problems.note(from.number, from.text);
  }
}

}  // namespace sluice::kfd
