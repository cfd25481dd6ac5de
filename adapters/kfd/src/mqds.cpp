#include "sluice/kfd/mqds.hpp"

#include "text_scan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace sluice::kfd {

namespace {

// Dword positions in a compute descriptor (gfx9's v9_mqd).
constexpr std::uint32_t mqd_base_lo = 128;
constexpr std::uint32_t mqd_base_hi = 129;
constexpr std::uint32_t hqd_active = 130;
constexpr std::uint32_t hqd_vmid = 131;
constexpr std::uint32_t hqd_pipe_priority = 133;
constexpr std::uint32_t hqd_queue_priority = 134;
constexpr std::uint32_t hqd_quantum = 135;
constexpr std::uint32_t hqd_pq_base_lo = 136;
constexpr std::uint32_t hqd_pq_base_hi = 137;
constexpr std::uint32_t hqd_pq_rptr = 138;
constexpr std::uint32_t rptr_report_lo = 139;
constexpr std::uint32_t rptr_report_hi = 140;
constexpr std::uint32_t wptr_poll_lo = 141;
constexpr std::uint32_t wptr_poll_hi = 142;
constexpr std::uint32_t aql_control = 181;
constexpr std::uint32_t hqd_pq_wptr_lo = 182;
constexpr std::uint32_t hqd_pq_wptr_hi = 183;

constexpr std::uint32_t compute_size = 512 * 4;
constexpr std::uint32_t sdma_gfx9_size = 130 * 4;
constexpr std::uint32_t sdma_least_size = 128 * 4;
constexpr std::uint32_t line_size = 8 * 4;
/// "    00000000:" and eight times " 00000000".
constexpr std::size_t full_line = 4 + 8 + 1 + std::size_t{8} * 9;

/// Sixteen bytes at once: one register on x86-64 and on AArch64, plain code elsewhere.
using byte_vector [[gnu::vector_size(16)]] = unsigned char;
using signed_vector [[gnu::vector_size(16)]] = signed char;
using vector_bytes = std::array<unsigned char, sizeof(byte_vector)>;

/// Where in a full line its vectors begin; the last repeats some bytes.
constexpr std::array<std::size_t, 6> vectors{0, 16, 32, 48, 64, full_line - 16};

/// What stands in such a vector: bytes of one of two ranges, each by what is taken off a byte so
/// that the range begins at -128, and where it then ends. Signed comparisons of what is too high
/// take the fewest instructions.
struct vector_shape {
  vector_bytes decimal{};  ///< '0' to '9', or the one character that stands there.
  vector_bytes decimal_end{};
  vector_bytes letter{};  ///< 'a' to 'f', or that character.
  vector_bytes letter_end{};
};
constexpr auto shape = [] {
  std::array<vector_shape, vectors.size()> made;
  for (std::size_t index = 0; index < vectors.size(); ++index) {
    for (std::size_t byte = 0; byte < sizeof(byte_vector); ++byte) {
      const std::size_t at = vectors[index] + byte;
      const bool digit = at < 13 ? at - 4 < 8 : (at - 13) % 9 != 0;
      const char other = at == 12 ? ':' : ' ';
      made[index].decimal[byte] = static_cast<unsigned char>((digit ? '0' : other) + 128);
      made[index].decimal_end[byte] = digit ? 128 + 9 : 128;
      made[index].letter[byte] = static_cast<unsigned char>((digit ? 'a' : other) + 128);
      made[index].letter_end[byte] = digit ? 128 + 5 : 128;
    }
  }
  return made;
}();

template <class Vector>
Vector load(const void* from) noexcept {
  Vector loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

/// Nearly every byte of the text is of such lines. \return whether all of its 85 bytes fit.
bool is_full_line(const char* text) noexcept {
  signed_vector wrong{};
  for (std::size_t index = 0; index < vectors.size(); ++index) {
    const vector_shape& wanted = shape[index];
    const auto bytes = load<byte_vector>(text + vectors[index]);
    const byte_vector decimal = bytes - load<byte_vector>(wanted.decimal.data());
    const byte_vector letter = bytes - load<byte_vector>(wanted.letter.data());
    wrong |=
        (std::bit_cast<signed_vector>(decimal) > load<signed_vector>(wanted.decimal_end.data())) &
        (std::bit_cast<signed_vector>(letter) > load<signed_vector>(wanted.letter_end.data()));
  }
  const auto halves = std::bit_cast<std::array<std::uint64_t, 2>>(wrong);
  return (halves[0] | halves[1]) == 0;
}

/// Eight digits of a full line, all at once: a digit is in each byte, the first in the lowest.
std::uint32_t full_line_word(const char* digits) noexcept {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t all = 0;
  std::memcpy(&all, digits, sizeof all);
  // '0' to '9' are 0x30 to 0x39, 'a' to 'f' 0x61 to 0x66.
  all = (all & 0x0f0f0f0f0f0f0f0f) + (all >> 6U & 0x0101010101010101) * 9;
  all = (all << 4U | all >> 8U) & 0x00ff00ff00ff00ff;
  all = (all << 8U | all >> 16U) & 0x0000ffff0000ffff;
  return static_cast<std::uint32_t>(all << 16U | all >> 32U);
}

std::array<std::uint32_t, 8> full_line_words(const char* text) noexcept {
  std::array<std::uint32_t, 8> words;
  for (std::size_t at = 0; at < words.size(); ++at)
    words[at] = full_line_word(text + full_line - 9 * (words.size() - at) + 1);
  return words;
}

/// The eight digits of the offset in each line of a compute descriptor.
constexpr auto offsets = [] {
  std::array<std::array<char, 8>, compute_size / line_size> made{};
  for (std::uint32_t line = 0; line < made.size(); ++line) {
    for (std::uint32_t at = 0; at < 8; ++at)
      made[line][at] = "0123456789abcdef"[line * line_size >> (28 - 4 * at) & 15U];
  }
  return made;
}();

/// A line of a dump.
struct dumped {
  std::uint32_t offset = 0;
  std::uint32_t count = 0;  ///< Of words; 0: they are not what they should be.
  std::array<std::uint32_t, 8> words{};
};

/// \return whether it is one at all.
bool read_dump(std::string_view text, dumped& into) noexcept {
  if (text.size() == full_line && is_full_line(text.data())) {
    into = {full_line_word(text.data() + 4), 8, full_line_words(text.data())};
    return true;
  }
  text_scan scan{text};
  if (scan.literal("    ").word(into.offset).literal(":").failed()) return false;
  while (into.count < into.words.size() && !scan.failed() && !scan.rest().empty())
    scan.literal(" ").word(into.words[into.count++]);
  if (!scan.done()) into.count = 0;
  return true;
}

/// Whether of the full line that begins with this dword anything is looked at.
constexpr bool is_kept(std::uint32_t first) noexcept {
  return first == mqd_base_lo || first == hqd_pq_base_lo || first == aql_control / 8 * 8;
}

/// "0001:01:00.0"
bool read_location(std::string_view text, pci_location& into) noexcept {
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t function = 0;
  text_scan scan{text};
  scan.number(into.domain, 16).literal(":").number(bus, 16).literal(":").number(device, 16);
  scan.literal(".").number(function, 16);
  if (!scan.done() || bus > 0xff || device > 0x1f || function > 7) return false;
  into.location_id = bus << 8U | device << 3U | function;
  return true;
}

/// Whether a line that fits nothing may hide a header in it: two lines run together, say.
bool may_hide_header(std::string_view text) noexcept {
  return !text.starts_with("    ") || text.find("Process ") != std::string_view::npos ||
         text.find(" on device ") != std::string_view::npos;
}

}  // namespace

void mqds_parser::feed(std::string_view piece) {
  while (!piece.empty()) {
    piece.remove_prefix(take_full_lines(piece));
    // One line, or what is there of it.
    const std::string_view next = piece.substr(0, piece.find('\n') + 1);
    lines_.feed(next.empty() ? piece : next, [this](const text_line& each) { line(each); });
    piece.remove_prefix(next.empty() ? piece.size() : next.size());
  }
}

/// What dump_line() would make of them, sooner: nearly every line of the text is one that goes on
/// with a descriptor as it should.
/// \return how many bytes they have.
std::size_t mqds_parser::take_full_lines(std::string_view piece) {
  constexpr std::size_t with_end = full_line + 1;
  if (body_ != body::dump || next_offset_ == 0 || next_offset_ % line_size != 0 ||
      lines_.within_line())
    return 0;
  std::size_t taken = 0;
  for (std::uint32_t line = next_offset_ / line_size;
       line < offsets.size() && piece.size() - taken >= with_end; ++line, taken += with_end) {
    const char* const text = piece.data() + taken;
    if (text[full_line] != '\n' || std::memcmp(text + 4, offsets[line].data(), 8) != 0 ||
        !is_full_line(text))
      break;
    lines_.pass_line();
    if (is_kept(line * 8)) keep({{text, full_line}, lines_.number(), true}, full_line_words(text));
    next_offset_ += line_size;
  }
  return taken;
}

mqds mqds_parser::finish() {
  lines_.finish([this](const text_line& each) { line(each); });
  end_queue();
  return std::exchange(*this, {}).out_;
}

mqds parse_mqds(std::string_view text) {
  mqds_parser parser;
  parser.feed(text);
  return parser.finish();
}

void mqds_parser::line(const text_line& from) {
  if (from.whole) {
    if (dump_line(from) || queue_line(from) || process_line(from.text) || label_line(from.text))
      return;
    if (from.text.empty()) {
      end_queue();
      return;
    }
  }
  out_.problems.note(from.number, from.text);
  if (!may_hide_header(from.text)) return;
  end_queue();
  process_ = 0;
}

bool mqds_parser::process_line(std::string_view text) {
  pid_t pid = 0;
  text_scan scan{text};
  scan.literal("Process ").number(pid).literal(" PASID ");
  // The second number is a PASID in hexadecimal, or in newer kernels the pid once more.
  std::uint32_t pasid = 0;
  const int base = scan.take("0x") ? 16 : 10;
  if (!scan.number(pasid, base).literal(":").done() || pid <= 0) return false;
  end_queue();
  process_ = pid;
  if (out_.processes.size() < most) out_.processes.push_back(pid);
  return true;
}

bool mqds_parser::queue_line(const text_line& from) {
  constexpr std::string_view on_device = " on device ";
  text_scan scan{from.text};
  const bool indented = scan.take("  ");
  const std::string_view what = scan.until(on_device);
  if (scan.failed() || what.empty() || what.front() == ' ') return false;
  mqd found;
  if (what == "Compute queue") {
    found.type = mqd_type::compute;
  } else if (what == "SDMA queue") {
    found.type = mqd_type::sdma;
  } else if (what == "DIQ") {
    found.type = mqd_type::diq;
  } else if (what.starts_with("Bad user queue type ") || what.ends_with(" queue")) {
    found.type = mqd_type::other;
  } else {
    return false;
  }
  scan.literal(on_device);
  pci_location location;
  if (read_location(scan.rest(), location)) {
    found.location = location;
  } else {
    std::uint32_t gpu = 0;
    if (!scan.number(gpu, 16).done()) return false;
    found.gpu = gpu_id{gpu};
  }
  end_queue();
  // Labelled queues stand outside of any process's part, and end it.
  if (!indented) process_ = 0;
  found.pid = process_;
  queue_ = found;
  queue_line_number_ = from.number;
  queue_text_ = from.text;
  damaged_ = false;
  next_offset_ = 0;
  first_size_ = 0;
  body_ = body::open;
  return true;
}

bool mqds_parser::dump_line(const text_line& from) {
  dumped read;
  if (!read_dump(from.text, read)) return false;
  const std::uint32_t offset = read.offset;
  if (body_ == body::none || body_ == body::labels) return false;
  body_ = body::dump;
  if (queue_.descriptors == 0 || (offset == 0 && next_offset_ != 0)) {
    end_descriptor();
    begin_descriptor();
  }
  if (offset != next_offset_ || offset % line_size != 0) {
    out_.problems.note(from.number, from.text);
    lose_queue();
  }
  if (read.count == 0) {
    out_.problems.note(from.number, from.text);
    // In its place and of its length: only this queue is spoilt.
    damaged_ = true;
    if (from.text.size() != full_line) lose_queue();
    next_offset_ = offset + line_size;
    return true;
  }
  keep(from, read.words);
  next_offset_ = offset + 4 * read.count;
  return true;
}

/// Of the line at next_offset_.
void mqds_parser::keep(const text_line& from, std::span<const std::uint32_t, 8> words) {
  for (std::size_t index = 0; index < words.size() && queue_.descriptors == 1; ++index) {
    const std::size_t at = next_offset_ / 4 + index;
    if (at == 1 || at == 2) head_[at - 1] = words[index];
    if (at >= first_dword && at <= last_dword) kept_[at - first_dword] = words[index];
  }
  if (queue_.type == mqd_type::compute && queue_.descriptors > 1) check_ring(from, words);
}

bool mqds_parser::label_line(std::string_view text) {
  text_scan scan{text};
  if (body_ == body::none || body_ == body::dump || scan.literal("    ").failed()) return false;
  std::uint32_t number = 0;
  std::uint32_t again = 0;
  if (scan.take("Queue ID: ")) {
    if (!scan.number(number).literal(" (0x").number(again, 16).literal(")").done()) return false;
    if (number != again) return false;
    queue_.queue = driver_queue_id{number};
  } else if (scan.take("Address: 0x")) {
    if (!scan.number(queue_.ring_base, 16).done()) {
      queue_.ring_base = 0;
      return false;
    }
  } else if (scan.take("Process: pid ")) {
    pid_t pid = 0;
    const bool fits = scan.number(pid).literal(" pasid 0x").number(number, 16).done();
    if (!fits || pid <= 0) return false;
    // A labelled queue below another process's header would be a contradiction.
    if (queue_.pid != 0 && queue_.pid != pid) damaged_ = true;
    queue_.pid = pid;
  } else if (scan.take("is active: ")) {
    if (scan.rest() != "yes" && scan.rest() != "no") return false;
    queue_.active = scan.rest() == "yes";
  } else if (scan.take("priority: ")) {
    if (!scan.number(number).done()) return false;
    queue_.priority = number;
  } else if (scan.take("queue count: ")) {
    if (!scan.number(number).done()) return false;
  } else {
    return false;
  }
  body_ = body::labels;
  return true;
}

void mqds_parser::begin_descriptor() {
  ++queue_.descriptors;
  next_offset_ = 0;
}

void mqds_parser::end_descriptor() {
  if (queue_.descriptors == 0) return;
  if (queue_.descriptors == 1) first_size_ = next_offset_;
  const bool all = queue_.type == mqd_type::compute ? next_offset_ == compute_size
                   : queue_.type == mqd_type::sdma  ? next_offset_ >= sdma_least_size
                                                    : true;
  if (!all) lose_queue();
}

/// Every XCC of a partition works on the queue's one ring (assumed: its owner gave but one), so
/// another ring is another queue's, whose header is lost.
void mqds_parser::check_ring(const text_line& from, std::span<const std::uint32_t, 8> words) {
  if (next_offset_ != hqd_pq_base_lo * 4) return;
  if (words[0] == dword(hqd_pq_base_lo) && words[1] == dword(hqd_pq_base_hi)) return;
  out_.problems.note(from.number, from.text);
  lose_queue();
}

void mqds_parser::end_queue() {
  const body had = std::exchange(body_, body::none);
  if (had == body::none) return;
  end_descriptor();
  if (had == body::open && queue_.type != mqd_type::other) lose_queue();
  bool complete = !damaged_ && queue_.pid != 0;
  if (had == body::labels) {
    complete = complete && queue_.queue && queue_.ring_base != 0;
  } else if (queue_.type == mqd_type::compute) {
    if (complete) {
      queue_.ring_base = wide(dword(hqd_pq_base_lo), dword(hqd_pq_base_hi)) << 8U;
      queue_.descriptor_address = wide(dword(mqd_base_lo), dword(mqd_base_hi));
      queue_.active = (dword(hqd_active) & 1U) != 0;
      queue_.vmid = dword(hqd_vmid);
      queue_.pipe_priority = dword(hqd_pipe_priority);
      queue_.priority = dword(hqd_queue_priority);
      queue_.quantum = dword(hqd_quantum);
      queue_.saved_read = dword(hqd_pq_rptr);
      queue_.saved_write = wide(dword(hqd_pq_wptr_lo), dword(hqd_pq_wptr_hi));
      queue_.read_pointer_address = wide(dword(rptr_report_lo), dword(rptr_report_hi));
      queue_.write_pointer_address = wide(dword(wptr_poll_lo), dword(wptr_poll_hi));
      queue_.aql = dword(aql_control) == 1;
    }
  } else if (queue_.type == mqd_type::sdma && queue_.descriptors == 1 &&
             first_size_ == sdma_gfx9_size) {
    queue_.ring_base = wide(head_[0], head_[1]) << 8U;
  }
  if (complete && out_.queues.size() < most) {
    out_.queues.push_back(queue_);
  } else {
    out_.problems.note(queue_line_number_, queue_text_);
  }
}

/// Lines are missing, and with them perhaps the header of another queue, or of another process.
void mqds_parser::lose_queue() {
  damaged_ = true;
  process_ = 0;
}

std::vector<const mqd*> join(const mqds& seen, pid_t pid, std::span<const queue_ring> queues) {
  std::vector<const mqd*> found(queues.size(), nullptr);
  for (std::size_t index = 0; index < queues.size(); ++index) {
    const queue_ring& wanted = queues[index];
    bool ambiguous = false;
    for (const mqd& each : seen.queues) {
      if (each.pid != pid || each.ring_base == 0 || each.ring_base != wanted.ring_base) continue;
      if (each.gpu != gpu_id::none && each.gpu != wanted.gpu) continue;
      if (each.queue && *each.queue != wanted.id) continue;
      ambiguous = found[index] != nullptr;
      if (ambiguous) break;
      found[index] = &each;
    }
    if (ambiguous) found[index] = nullptr;
  }
  return found;
}

}  // namespace sluice::kfd
