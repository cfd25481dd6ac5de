#pragma once
/// \file
/// Reads what the driver's sysfs tree `proc/<pid>/` is made of: names of entries and contents of
/// files. Pure text; the scanner in discovery.hpp reads the tree itself.

#include <cstdint>
#include <optional>
#include <string_view>

#include "sluice/ids.hpp"

namespace sluice::kfd {

enum class proc_entry_kind : std::uint8_t {
  pasid,     ///< File.
  queues,    ///< Directory of queue directories, each named by its id.
  vram,      ///< File, gpu: bytes.
  sdma,      ///< File, gpu: microseconds of activity; reading it is not cheap.
  stats,     ///< Directory, gpu: evicted_ms, and cu_occupancy where the hardware has it.
  counters,  ///< Directory, gpu: faults, page_in, page_out.
  context,   ///< Directory, number: a secondary context, with the same entries again.
};

struct proc_entry {
  proc_entry_kind kind{};
  gpu_id gpu{};
  std::uint32_t number = 0;
};

/// What an entry of `proc/<pid>/` is, by its name. \return nothing for a name nobody knows.
[[nodiscard]] std::optional<proc_entry> parse_proc_entry(std::string_view name) noexcept;

/// The content of an attribute file: one decimal number, with a line end or (as in queues/)
/// without. \return nothing for anything else: empty, cut, signed, too large.
[[nodiscard]] std::optional<std::uint64_t> parse_sysfs_number(std::string_view text) noexcept;

/// A directory `queues/<id>`.
struct sysfs_queue {
  std::uint64_t ring_size = 0;  ///< Bytes.
  /// The driver's internal number, which differs between kernels: 0 every compute queue, PM4 or
  /// AQL; 1 SDMA; above that 3, 4 and 5 moved when DIQ was removed.
  std::uint32_t type = 0;
  gpu_id gpu{};
};

/// \param size, type, gpuid the contents of the three files. \return nothing unless all are whole.
[[nodiscard]] std::optional<sysfs_queue> parse_sysfs_queue(std::string_view size,
                                                           std::string_view type,
                                                           std::string_view gpuid) noexcept;

}  // namespace sluice::kfd
