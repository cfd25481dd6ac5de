#pragma once
/// \file
/// One look at the node after another, and what changed between them.

#include "sysfs.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/kfd/discovery.hpp"
#include "sluice/kfd/unique_fd.hpp"
#include "sluice/observation.hpp"

namespace sluice::kfd {

/// The role a process's environment (NUL-separated, as in /proc/PID/environ) claims.
role role_of_environment(std::string_view environment) noexcept;

/// Threading: one thread. Blocks on file reads.
class node_scanner {
 public:
  using emit = std::function<void(const observation&)>;

  /// `exits` is an epoll descriptor (or -1) to which the pidfd of every known process is added,
  /// with the pid as its data.
  node_scanner(const roots& where, classification_rules rules, int exits);

  /// Replaces classification_rules::by_process. The next look emits what changed by it.
  void set_roles(std::map<process_identity, role> said);

  /// Whether the tree is there at all.
  bool readable() const;
  /// Looks, and emits the differences to the look before. \return whether there were any.
  bool scan(const emit& out);
  /// Emits all that the last look saw, between resync_begin and resync_end.
  void restate(const emit& out) const;

 private:
  struct queue {
    driver_queue_id id{};
    gpu_id gpu{};
    queue_type type{};
  };
  struct process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    role claimed = role::unmatched;  // by its environment, where that counts
    role what = role::unmatched;
    unique_fd pidfd;
    unique_fd environment;  // reads as empty once the address space it was opened on is gone
    bool empty_environment = false;
    bool listed = false;
    std::vector<queue> queues;  // sorted by id
  };

  bool scan_gpus(const emit& out);
  bool scan_queues(process& of, const emit& out);
  std::optional<process> admit(pid_t pid) const;
  void read_environment(process& of) const;
  role role_of(const process& of) const;
  static bool exited(const process& known) noexcept;
  static bool has_execed(const process& known) noexcept;
  std::optional<queue> read_queue(pid_t pid, std::uint32_t id) const;

  static observation about(observation_kind kind, const process& of) noexcept;
  static observation about(observation_kind kind, const process& of, const queue& which) noexcept;
  static void say_gone(const process& gone, const emit& out);

  const std::string processes_;  // <sysfs>/proc
  const std::string topology_;   // <sysfs>/topology
  classification_rules rules_;
  const int exits_;
  std::string generation_;
  std::vector<gpu_id> gpus_;
  std::map<pid_t, process> known_;
};

}  // namespace sluice::kfd
