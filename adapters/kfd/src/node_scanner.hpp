#pragma once
/// \file
/// One look at the node after another, and what changed between them.

#include "pointer_watch.hpp"
#include "sysfs.hpp"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/kfd/roots.hpp"
#include "sluice/observation.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/classifier.hpp"
#include "sluice/roles/gangs.hpp"
#include "sluice/roles/process_traits.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::kfd {

/// A look is short at a process of which nothing can have changed but what is rare and harms little
/// if it is found late; in turns, processes get a whole one.
///
/// Threading: one thread. Blocks on file reads.
class node_scanner {
 public:
  struct gpu_node {
    gpu_id id{};
    std::uint64_t hive = 0;
    std::uint32_t slots = 0;  // for compute queues
  };
  using emit = std::function<void(const observation&)>;

  /// So many processes get a whole look at each look, as do all that are online.
  static constexpr std::size_t whole_looks = 4;
  /// Or more, so that everybody's turn comes after so many looks at the latest.
  static constexpr std::size_t longest_turn = 16;

  /// `exits` is an epoll descriptor (or -1) to which the pidfd of every known process is added,
  /// with the pid as its data. `say` hears, once, why queues cannot count.
  node_scanner(
      const roots& where, roles::classification_rules rules, int exits,
      message_sink say = [](std::string_view) {});

  /// Other rules, as if they had been given at first; what the role store says must be set anew.
  /// The next look emits what changed by them. Gangs that fit both keep their key.
  void set_rules(roles::classification_rules rules);
  /// Replaces roles::classification_rules::by_process. The next look emits what changed by it.
  void set_roles(std::map<process_identity, role> said) {
    rules_.set_roles(std::move(said));
    settled_ = false;
  }
  /// What the role store says now. The next look emits what changed by it.
  void set_stored(roles::stored_roles stored) {
    rules_.set_stored(std::move(stored));
    settled_ = false;
  }

  /// Whether looks find out where the pointers of online queues are, for online().
  void want_pointers(bool wanted);
  /// Online processes with compute queues, as of the last look.
  std::vector<online_process> online() const;

  /// Whether reasons() are others than when this was last asked.
  bool take_new_reasons() noexcept { return std::exchange(new_reasons_, false); }
  /// As of the last look.
  roles::role_reasons reasons() const;

  /// Whether the tree is there at all.
  bool readable() const;
  /// Those that the last look saw.
  std::span<const gpu_node> gpus() const noexcept { return gpus_; }
  /// Looks, and emits the differences to the look before. \return whether there were any.
  bool scan(const emit& out);
  /// Emits all that the last look saw, between resync_begin and resync_end.
  void restate(const emit& out) const;

 private:
  struct queue {
    driver_queue_id id{};
    gpu_id gpu{};
    queue_type type{};
    ino_t inode = 0;  // of its directory: a recreated one has another (assumed of kernfs)
  };
  struct process {
    roles::process_traits traits;
    std::optional<roles::standing> stands{};  // as the traits were read
    roles::gang_book::settled is{};           // as last emitted
    roles::role_reason why{};
    bool emitted = false;  // `is` holds
    unique_fd pidfd;
    unique_fd directory;    // of its queues
    unique_fd environment;  // reads as empty once the address space it was opened on is gone
    bool empty_environment = false;
    bool missed_environment = false;  // no descriptor was left
    bool listed = false;
    bool whole = false;                        // its turn for a whole look
    std::vector<queue> queues;                 // sorted by id
    std::vector<queue> fresh;                  // of these, the ones not yet emitted
    std::vector<roles::queue_traits> details;  // of its compute queues, as mqds last showed them
    std::uint64_t change = 0;                  // counts changes of its queues
    int pointer_reads_due = 0;                 // until mqds shows the pointers of all its queues
    std::vector<online_queue> pointers;        // as mqds last showed them
  };

  void begin_turns();
  bool is_as_before(const process& known) const noexcept;
  std::optional<std::string_view> read_generation(std::span<char> into);
  bool scan_gpus(const emit& out);
  bool scan_queues(process& of, const emit& out);
  std::optional<process> admit(pid_t pid);
  void say_no_descriptors();
  /// \return whether any are other than before.
  static bool read_traits(process& of);
  /// \return false, and nothing is changed, when there is none: an exec has begun, or the process
  /// exits.
  bool read_environment(process& of) const;
  void say_hidden_environments();
  void read_mqds();
  void say_no_pointers(error_code why);
  void find_pointers();
  /// Whether mqds showed all that sysfs does, and all of it that the rules look at.
  bool details_complete(const process& of) const noexcept;
  bool settle_roles(const emit& out);
  static bool exited(const process& known) noexcept;
  static bool has_execed(const process& known) noexcept;
  void list_queues(process& of);
  static std::optional<queue> read_queue(const process& of, std::uint32_t id);

  static observation about(observation_kind kind, const process& of) noexcept;
  static observation about(observation_kind kind, const process& of, const queue& which) noexcept;
  static void say_gone(const process& gone, const emit& out);

  const roots where_;
  const std::string processes_;  // <sysfs>/proc
  const std::string topology_;   // <sysfs>/topology
  unique_fd processes_directory_;
  unique_fd generation_file_;
  pid_t last_turn_ = 0;
  bool settled_ = false;  // roles and gangs are those of what is known
  bool new_reasons_ = false;
  std::vector<std::pair<std::uint32_t, ino_t>> listed_;  // scratch
  roles::classifier rules_;
  std::set<std::string, std::less<>> variables_;
  roles::gang_book gangs_;
  const int exits_;
  const message_sink say_;
  int mqds_reads_due_ = 0;
  bool mqds_refused_ = false;
  bool pointers_wanted_ = false;
  bool pointers_refused_ = false;
  bool hidden_said_ = false;
  bool no_descriptors_said_ = false;
  std::string generation_;
  static observation about(const gpu_node& seen) noexcept;
  std::vector<gpu_node> gpus_;
  std::map<pid_t, process> known_;
};

}  // namespace sluice::kfd
