#pragma once
/// \file
/// Reads debugfs `mqds`: the queue descriptors of all processes, which show what sysfs does not:
/// ring, priority and pointer addresses. Pure text in, values out; who reads the file is free.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/text_lines.hpp"

namespace sluice::kfd {

/// A device as a patched driver names it ("0001:01:00.0"), in the form of topology's properties
/// `domain` and `location_id`.
struct pci_location {
  std::uint32_t domain = 0;
  std::uint32_t location_id = 0;  ///< bus << 8 | device << 3 | function

  friend bool operator==(const pci_location&, const pci_location&) = default;
};

enum class mqd_type : std::uint8_t { compute, sdma, diq, other };

/// One queue as `mqds` shows it. What the text does not say is 0, or empty.
struct mqd {
  pid_t pid = 0;
  mqd_type type{};
  gpu_id gpu{};                             ///< none where the text names the device by address.
  std::optional<pci_location> location{};   ///< Only there.
  std::optional<driver_queue_id> queue{};   ///< The patched grammar alone prints it.
  std::uint64_t ring_base = 0;              ///< The queue's ring, as given at its creation.
  std::optional<std::uint32_t> priority{};  ///< cp_hqd_queue_priority: 0 to 15.
  std::optional<bool> active{};  ///< cp_hqd_active, as of the last save: stale while mapped.
  // Compute queues of the mainline grammar only:
  /// Of its (first) descriptor itself, as cp_mqd_base_addr says: no two queues of a GPU share it.
  std::uint64_t descriptor_address = 0;
  std::uint64_t read_pointer_address = 0;
  std::uint64_t write_pointer_address = 0;
  std::optional<std::uint32_t> pipe_priority{};
  std::optional<std::uint32_t> quantum{};
  std::uint32_t vmid = 0;         ///< cp_hqd_vmid, as of the last save; 0: none.
  std::optional<bool> aql{};      ///< Else PM4.
  std::uint32_t saved_read = 0;   ///< cp_hqd_pq_rptr in dwords, as of the last save.
  std::uint64_t saved_write = 0;  ///< cp_hqd_pq_wptr in dwords, as of the last save.
  std::uint32_t descriptors = 0;  ///< How many were printed: one for each XCC of a partition.
};

struct mqds {
  std::vector<mqd> queues{};       ///< In the text's order: each process's newest first.
  std::vector<pid_t> processes{};  ///< Whom the text named, those without queues included.
  unread problems{};
};

/// Reads both grammars, also within one text:
///
/// - mainline's: "Process %d PASID ...:", then per queue "  Compute queue on device %x" and a dump.
///   The positions are those of the gfx9 descriptor; that gfx10 to gfx12 keep them is assumed from
///   what their registers show (they too have 512 dwords). An SDMA descriptor has a ring base only
///   in its gfx9 form of 130 dwords, printed once: mainline repeats and over-reads it on
///   partitions of several XCCs.
/// - a patched driver's: "Compute queue on device <PCI address>", then labelled lines, which name
/// the
///   process. That its "Address" is the ring's base is assumed.
///
/// What is damaged is left out and counted in mqds::problems. A line that is lost or damaged where
/// a process's header may have been makes the following queues nobody's, up to the next header: a
/// queue is never given to a process that the text does not show it under. A line inside a queue
/// that fits nothing is only skipped.
///
/// Threading: one thread. Cost: O(bytes); memory for `most` queues and as many processes, those
/// beyond are counted as problems. Errors: none; see problems.
class mqds_parser {
 public:
  static constexpr std::size_t most = 65536;

  /// The next piece of the text, cut anywhere.
  void feed(std::string_view piece);
  /// The text ends. \return what was read; the parser is then as new.
  [[nodiscard]] mqds finish();

 private:
  enum class body : std::uint8_t { none, open, dump, labels };
  static constexpr std::uint32_t first_dword = 128;  // what is kept: cp_mqd_base_addr...
  static constexpr std::uint32_t last_dword = 183;   // ...cp_hqd_pq_wptr_hi

  std::size_t take_full_lines(std::string_view piece);
  void line(const text_line& from);
  bool process_line(std::string_view text);
  bool queue_line(const text_line& from);
  bool dump_line(const text_line& from);
  void keep(const text_line& from, std::span<const std::uint32_t, 8> words);
  bool label_line(std::string_view text);
  void begin_descriptor();
  void end_descriptor();
  void end_queue();
  void lose_queue();
  void check_ring(const text_line& from, std::span<const std::uint32_t, 8> words);
  std::uint32_t dword(std::uint32_t index) const noexcept { return kept_[index - first_dword]; }

  line_splitter lines_{};
  mqds out_{};
  pid_t process_ = 0;  // of the last header; 0: nobody knows
  body body_ = body::none;
  mqd queue_{};
  std::uint64_t queue_line_number_ = 0;
  std::string queue_text_{};
  bool damaged_ = false;                 // queue_ is not to be kept
  std::uint32_t next_offset_ = 0;        // bytes; of the descriptor that is being read
  std::uint32_t first_size_ = 0;         // bytes of the first descriptor, once it ended
  std::array<std::uint32_t, 2> head_{};  // dwords 1 and 2
  std::array<std::uint32_t, last_dword - first_dword + 1> kept_{};
};

/// The whole text at once.
[[nodiscard]] mqds parse_mqds(std::string_view text);

/// What ties a queue, as a session's snapshot lists it, to its descriptor.
struct queue_ring {
  driver_queue_id id{};
  gpu_id gpu{};
  std::uint64_t ring_base = 0;
};

/// Finds the descriptor of each of a process's queues: by ring base, and by GPU and id where the
/// text says them.
/// \return one entry for each of `queues`, into seen.queues; null where there is none, or where
///         more than one fits. O(queues x seen.queues).
[[nodiscard]] std::vector<const mqd*> join(const mqds& seen, pid_t pid,
                                           std::span<const queue_ring> queues);

}  // namespace sluice::kfd
