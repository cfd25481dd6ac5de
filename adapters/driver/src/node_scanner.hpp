#pragma once
/// \file
/// One look at the node after another, and what changed between them.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
#include "sluice/survey.hpp"

namespace sluice {

/// A look is short at a process of which nothing can have changed but what is rare and harms little
/// if it is found late; in turns, processes get a whole one.
///
/// Threading: one thread. Blocks on file reads. Lifetime: the survey outlives it.
class node_scanner {
 public:
  using emit = std::function<void(const observation&)>;

  /// So many processes get a whole look at each look, as do all that are online.
  static constexpr std::size_t whole_looks = 4;
  /// Or more, so that everybody's turn comes after so many looks at the latest.
  static constexpr std::size_t longest_turn = 16;

  /// `exits` is an epoll descriptor (or -1) to which the pidfd of every known process is added,
  /// with the pid as its data. `say` hears, once, why queues cannot count.
  node_scanner(
      survey& of, roles::classification_rules rules, int exits,
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

  /// Online processes with compute queues, as of the last look.
  std::vector<work_watch::process> online() const;

  /// Whether reasons() are others than when this was last asked.
  bool take_new_reasons() noexcept { return std::exchange(new_reasons_, false); }
  /// As of the last look.
  roles::role_reasons reasons() const;

  /// Looks, and emits the differences to the look before. \return whether there were any.
  bool scan(const emit& out);
  /// Emits all that the last look saw, between resync_begin and resync_end.
  void restate(const emit& out) const;
  void restate_gpus(const emit& out) const;

 private:
  struct process {
    roles::process_traits traits;
    std::optional<roles::standing> stands{};  // as the traits were read
    roles::gang_book::settled is{};           // as last emitted
    roles::role_reason why{};
    bool emitted = false;  // `is` holds
    unique_fd pidfd;
    std::unique_ptr<surveyed_process> uses{};
    unique_fd environment;  // reads as empty once the address space it was opened on is gone
    bool empty_environment = false;
    bool missed_environment = false;  // no descriptor was left
    bool listed = false;
    bool whole = false;                        // its turn for a whole look
    std::vector<surveyed_queue> queues;        // sorted
    std::vector<surveyed_queue> fresh;         // of these, the ones not yet emitted
    std::vector<roles::queue_traits> details;  // of its compute queues, as last shown
    std::uint64_t change = 0;                  // counts changes of its queues
  };

  void begin_turns();
  bool is_as_before(const process& known) const noexcept;
  bool scan_gpus(const emit& out);
  bool scan_queues(process& of, const emit& out);
  std::optional<process> admit(pid_t pid);
  void note(const error_code& why);
  void say_no_descriptors();
  /// \return whether any are other than before.
  static bool read_traits(process& of);
  /// \return false, and nothing is changed, when there is none: an exec has begun, or the process
  /// exits.
  bool read_environment(process& of) const;
  void say_hidden_environments();
  void read_queue_traits();
  /// Whether all of its compute queues were shown, and all of them that the rules look at.
  bool details_complete(const process& of) const noexcept;
  bool settle_roles(const emit& out);
  static bool exited(const process& known) noexcept;
  static bool has_execed(const process& known) noexcept;

  static observation about(observation_kind kind, const process& of) noexcept;
  static observation about(observation_kind kind, const process& of,
                           const surveyed_queue& which) noexcept;
  static void say_gone(const process& gone, const emit& out);

  survey& survey_;
  pid_t last_turn_ = 0;
  bool settled_ = false;  // roles and gangs are those of what is known
  bool new_reasons_ = false;
  std::vector<pid_t> pids_;             // scratch
  std::vector<surveyed_queue> listed_;  // scratch
  roles::classifier rules_;
  std::set<std::string, std::less<>> variables_;
  roles::gang_book gangs_;
  const int exits_;
  const message_sink say_;
  int traits_due_ = 0;  // looks that read what rules about queues go by
  bool traits_refused_ = false;
  bool hidden_said_ = false;
  bool no_descriptors_said_ = false;
  static observation about(const surveyed_gpu& seen) noexcept;
  std::vector<surveyed_gpu> gpus_;
  std::map<pid_t, process> known_;
};

}  // namespace sluice
