#pragma once
/// \file
/// Reads the lines that the driver writes to an SMI events descriptor, in the shapes of older and
/// of newer drivers. Who opens the descriptor: see smi_events.hpp.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/text_lines.hpp"

namespace sluice::kfd {

enum class smi_kind : std::uint32_t {
  vm_fault = 1,          ///< pid, text: its name.
  thermal_throttle = 2,  ///< value, second value.
  gpu_pre_reset = 3,     ///< value: sequence number; text: cause, from newer drivers.
  gpu_post_reset = 4,    ///< value: sequence number.
  migrate_start = 5,     ///< time, pid, address, size, from, to, trigger.
  migrate_end = 6,       ///< The same.
  page_fault_start = 7,  ///< time, pid, address, from (the GPU), flag.
  page_fault_end = 8,    ///< The same.
  queue_eviction = 9,    ///< time, pid, from (the GPU), trigger.
  queue_restore = 10,    ///< time, pid, from (the GPU), flag: 'R' when put off.
  unmap_from_gpu = 11,   ///< time, pid, address, size, from (the GPU), trigger.
  process_start = 12,    ///< pid (perhaps of a thread), text: its name.
  process_end = 13,      ///< The same.
};

/// Bit of a kind in the mask that an SMI descriptor takes.
[[nodiscard]] constexpr std::uint64_t smi_bit(smi_kind kind) noexcept {
  return std::uint64_t{1} << (static_cast<std::uint32_t>(kind) - 1);
}

struct smi_event {
  smi_kind kind{};
  pid_t pid = 0;              ///< In the target's own pid namespace with drivers from mid-2026.
  std::uint64_t time_ns = 0;  ///< CLOCK_BOOTTIME.
  gpu_id from{};
  gpu_id to{};
  std::uint64_t address = 0;  ///< As printed: migrations count pages.
  std::uint64_t size = 0;
  std::uint64_t value = 0;
  std::uint64_t second_value = 0;
  std::int32_t trigger = 0;
  char flag = 0;
  std::array<char, 32> text{};  ///< NUL-terminated; not to be trusted, the process chose it.
};

/// Puts lines together that reads have cut. A process's name may hold a line end, and what follows
/// it then looks like an event: believe an event only from a descriptor whose mask leaves out
/// vm_fault, process_start and process_end, which alone carry names.
///
/// Threading: one thread. Cost: O(bytes); memory for `most` events not yet taken, those beyond
/// count as unread. feed() allocates only when more events wait than ever did. Errors: none; see
/// problems().
class smi_parser {
 public:
  static constexpr std::size_t most = 65536;
  struct outcome {
    std::vector<smi_event> events{};
    unread problems{};
  };

  /// The next piece of the text, cut anywhere.
  void feed(std::string_view piece);
  /// The events read so far; clear them by forget().
  const std::vector<smi_event>& events() const noexcept { return out_.events; }
  void forget() noexcept { out_.events.clear(); }
  const unread& problems() const noexcept { return out_.problems; }
  /// The text ends. \return all not forgotten; the parser is then as new.
  [[nodiscard]] outcome finish();

 private:
  void line(const text_line& from);

  line_splitter lines_{};
  outcome out_{};
};

}  // namespace sluice::kfd
