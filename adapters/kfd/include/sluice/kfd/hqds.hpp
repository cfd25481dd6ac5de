#pragma once
/// \file
/// Reads debugfs `hqds`: the registers of every hardware queue slot, live. They say which slots are
/// taken and how much work waits in them, not whose they are: join() ties them to queues.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/text_lines.hpp"

namespace sluice::kfd {

/// One compute slot (HQD) of one XCC, taken or free.
struct hqd {
  std::uint32_t node = 0;  ///< Topology's number, CPU nodes counted.
  gpu_id gpu{};
  std::uint32_t xcc = 0;
  bool hiq = false;       ///< The driver's own queue, on a micro-engine of its own.
  std::uint32_t mec = 1;  ///< Printed for the HIQ only; all others are of the first.
  std::uint32_t pipe = 0;
  std::uint32_t slot = 0;
  bool active = false;  ///< A queue is mapped here.
  std::uint32_t vmid = 0;
  std::uint32_t pipe_priority = 0;
  std::uint32_t priority = 0;
  std::uint64_t descriptor_address =
      0;  ///< cp_mqd_base_addr: see mqd::descriptor_address; each XCC has its own.
  std::uint64_t ring_base = 0;
  std::uint32_t read = 0;   ///< cp_hqd_pq_rptr, dwords.
  std::uint64_t write = 0;  ///< cp_hqd_pq_wptr, dwords.
};

/// AQL packets (16 dwords each) that wait in the slot's ring: write less read. The registers may
/// count on for ever or turn with the ring; with `ring_size` (bytes, a power of two) both are met,
/// without it (0) only a count that turns at 2^32 is. Consumed is not finished.
[[nodiscard]] constexpr std::uint32_t backlog(const hqd& of, std::uint32_t ring_size) noexcept {
  std::uint32_t dwords = static_cast<std::uint32_t>(of.write) - of.read;
  const std::uint32_t ring = ring_size / 4;
  if (ring != 0 && dwords > ring) dwords %= ring;
  return dwords / 16;
}

struct hqds {
  std::vector<hqd> slots{};       ///< In the text's order, the HIQ's included.
  std::vector<gpu_id> stopped{};  ///< "Device is stopped": nothing is known of these.
  unread problems{};
};

/// Registers are taken by position, for their addresses differ between families; a slot counts when
/// exactly its 56 registers were printed. SDMA engines are passed over. Lines of kernels before the
/// XCC number was printed are taken for XCC 0. As in mqds_parser, what is damaged is left out and
/// counted, and after a line that may have been a node's header slots are nobody's.
///
/// Threading: one thread. Cost: O(bytes); memory for `most` slots. Errors: none; see problems.
class hqds_parser {
 public:
  static constexpr std::size_t most = 65536;

  /// The next piece of the text, cut anywhere.
  void feed(std::string_view piece);
  /// The text ends. \return what was read; the parser is then as new.
  [[nodiscard]] hqds finish();

 private:
  enum class body : std::uint8_t { none, slot, passed_over };

  void line(const text_line& from);
  bool node_line(std::string_view text);
  bool part_line(const text_line& from);
  bool register_line(const text_line& from);
  void end_slot();

  line_splitter lines_{};
  hqds out_{};
  bool node_known_ = false;
  std::uint32_t node_ = 0;
  gpu_id gpu_{};
  body body_ = body::none;
  hqd slot_{};
  bool damaged_ = false;
  std::uint64_t slot_line_number_ = 0;
  std::string slot_text_{};
  std::uint64_t least_address_ = 0;  // of the next line
  std::uint32_t registers_ = 0;      // so far, kept or not
  std::array<std::uint32_t, 56> kept_{};
};

/// The whole text at once.
[[nodiscard]] hqds parse_hqds(std::string_view text);

/// How full one GPU is, all its XCCs together; the HIQ is not counted.
struct slot_use {
  gpu_id gpu{};
  std::uint32_t slots = 0;
  std::uint32_t active = 0;
};

/// One entry for each GPU that has slots, in the text's order.
[[nodiscard]] std::vector<slot_use> occupancy(const hqds& seen);

/// A queue to look for.
struct queue_in_slots {
  gpu_id gpu{};
  std::uint64_t ring_base = 0;
  std::uint32_t ring_size = 0;          ///< Bytes; 0: unknown, see backlog().
  std::optional<std::uint32_t> vmid{};  ///< Where known: ring bases are addresses of one process.
};

struct queue_load {
  std::uint32_t slots = 0;    ///< One for each XCC. 0: mapped nowhere, so nothing else is known.
  std::uint32_t backlog = 0;  ///< Packets; the most of any XCC, for each of them reads them all.
};

/// \return one entry for each of `queues`; empty where slots of several address spaces fit (other
///         vmids, none given) and so nothing can be told. O(queues x slots).
[[nodiscard]] std::vector<std::optional<queue_load>> join(const hqds& seen,
                                                          std::span<const queue_in_slots> queues);

}  // namespace sluice::kfd
