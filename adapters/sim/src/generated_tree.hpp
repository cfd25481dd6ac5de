#pragma once
/// \file
/// The part of the tree that comes and goes with the driver's processes and queues.

#include "driver.hpp"
#include "tree.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::sim {

enum generated_kind : std::uint8_t {
  process_directory = 1,
  pasid_file,
  vram_file,
  sdma_file,
  queues_directory,
  queue_directory,
  queue_size_file,
  queue_type_file,
  queue_gpuid_file,
  stats_directory,
  evicted_file,
  occupancy_file,
  handed_directory,
  handed_file,  // Its item: the file's number.
};

/// A generated node: what it is, whose, and which one.
struct generated {
  std::uint8_t kind = 0;
  std::uint32_t process = 0;  ///< Serial number, never reused.
  std::uint32_t item = 0;     ///< gpu_id, or the queue's serial number.
};

/// Its inode number; those of the static tree are below.
std::uint64_t pack(generated node) noexcept;
generated unpack(std::uint64_t id) noexcept;
inline bool is_generated(std::uint64_t id) noexcept { return (id >> 56U) != 0; }
bool is_directory(generated node) noexcept;

struct tree_entry {
  std::string name;
  std::uint64_t id = 0;
  bool directory = false;
};

/// Threading: the loop's thread, but for what says otherwise.
/// Lifetime:  driver and names outlive it.
class generated_tree {
 public:
  /// \param kfd null: no node of `names` is generated but sim/stats.json.
  generated_tree(const device_driver& device, const driver* kfd, const static_tree& names)
      : device_{device}, kfd_{kfd}, names_{names} {}

  /// The driver's process came or went: gives it a new number, so that a pid that comes back is
  /// another directory.
  void process_changed(pid_t pid, bool appeared);
  /// nullopt: no process of the driver has that pid.
  std::optional<std::uint32_t> process_of(pid_t pid) const;
  std::vector<tree_entry> list(std::uint64_t directory) const;
  /// Any thread's for a directory whose names never change.
  std::size_t directories_in(std::uint64_t directory) const;
  std::optional<tree_entry> look_up(std::uint64_t directory, std::string_view name) const;
  /// Of a file of the static tree, too. nullopt: what the file speaks of is gone.
  std::optional<std::string> content(std::uint64_t file) const;

 private:
  std::optional<pid_t> pid_of(std::uint32_t process) const;

  const device_driver& device_;
  const driver* kfd_;
  const static_tree& names_;
  std::uint32_t last_process_ = 0;
  std::map<pid_t, std::uint32_t> process_numbers_;
  std::unordered_map<std::uint32_t, pid_t> process_pids_;
};

}  // namespace sluice::sim
