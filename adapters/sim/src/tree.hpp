#pragma once
/// \file
/// The names of the mounted file system that never change: the device nodes, the topology, and the
/// places where generated files stand. Pure: made from a profile, performs no I/O.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::sim {

struct profile;

enum class node_kind : std::uint8_t {
  directory,
  text,       ///< A file whose content is static_node::text.
  device,     ///< dev/kfd; dev/nvidiactl, dev/nvidia0, ...
  processes,  ///< sys/class/kfd/kfd/proc, listed by the driver.
  mqds,       ///< debug/mqds
  hqds,       ///< debug/hqds
  rls,        ///< debug/rls
  hang_hws,   ///< debug/hang_hws
  mem_limit,  ///< debug/mem_limit
  stats,      ///< sim/stats.json
  control,    ///< sim/control
};

struct static_node {
  node_kind kind{};
  std::uint32_t mode = 0;    ///< Permission bits.
  std::uint32_t device = 0;  ///< Which of the driver's nodes (device_driver::open).
  std::string text;
  std::vector<std::uint64_t> children;  ///< Ids, in order of creation.
  std::string name;
};

inline bool is_directory(const static_node& node) {
  return node.kind == node_kind::directory || node.kind == node_kind::processes;
}

/// Node ids are 1 (the root) to size().
class static_tree {
 public:
  explicit static_tree(const profile& node);

  const static_node* find(std::uint64_t id) const noexcept {
    return id >= 1 && id <= nodes_.size() ? &nodes_[id - 1] : nullptr;
  }
  /// The one node of that kind; 0: this driver has none.
  std::uint64_t processes() const noexcept { return processes_; }
  /// \return 0 when there is no such child.
  std::uint64_t child(std::uint64_t parent, std::string_view name) const noexcept;

 private:
  std::uint64_t add(std::uint64_t parent, std::string name, node_kind kind, std::uint32_t mode,
                    std::string text = {});
  std::uint64_t add_directory(std::uint64_t parent, std::string name, std::uint32_t mode = 0555);
  void add_kfd(std::uint64_t root, const profile& node);
  void add_nvidia(std::uint64_t root, const profile& node);

  std::vector<static_node> nodes_;
  std::uint64_t processes_ = 0;
};

}  // namespace sluice::sim
