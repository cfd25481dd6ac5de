#pragma once
/// \file
/// Looks into the driver's trees once, for tools and for who wants no more than a look. To follow
/// what changes, see discovery.hpp.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/kfd/hqds.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/sysfs_text.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// How much of debugfs is read at a time, in bytes.
inline constexpr std::size_t tree_read_size = 16384;

/// One queue of one process, as sysfs shows it to everybody.
struct listed_queue {
  pid_t pid = 0;  ///< In the initial pid namespace.
  driver_queue_id id{};
  sysfs_queue what{};
  /// Of its directory. The same id with another inode is another queue (assumed of kernfs, which
  /// numbers what it makes anew).
  ino_t inode = 0;
};

/// Threading: any thread; all of these block while the driver generates the text: a process that is
///            in a long driver call delays `mqds`, and `hqds` wakes the GPUs.
/// Errors:    the system's when the file or directory cannot be read (debugfs is for root). What is
///            there and cannot be understood is in the result's problems; a queue that goes while
///            it is looked at is left out.
[[nodiscard]] result<std::vector<listed_queue>> list_queues(const roots& where);
/// debugfs/mqds.
[[nodiscard]] result<mqds> read_mqds(const roots& where);
/// debugfs/hqds.
[[nodiscard]] result<hqds> read_hqds(const roots& where);

}  // namespace sluice::kfd
