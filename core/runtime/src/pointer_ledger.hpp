#pragma once
/// \file
/// What sources and the acting side see of online queues' pointers, as work on GPUs and as events.

#include "table.hpp"

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/online_work.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Threading: reactor thread.
/// Cost:      look() costs a comparison for each GPU when nothing was seen, else one pass over the
///            online processes; allocates only when one appears on another GPU.
class pointer_ledger {
 public:
  explicit pointer_ledger(table& world) noexcept : table_(world) {}

  /// As backend_listener::acts_by().
  void acts_by(const capabilities& what) noexcept {
    acting_shows_ = what.has(capability::read_backlog);
  }
  /// \param seen of kind pointers_seen.
  void observe(const observation& seen);
  /// Brings the GPUs' `can_see_work`, `work` and `last_move` up to date and appends the events.
  /// Work on one member of an online gang counts on every GPU of that gang.
  void look(time_point now, std::vector<event>& events);
  /// Nobody looks any more: nothing is known.
  void forget() noexcept;
  /// Nobody looks at that process any more: what was seen of it no longer counts.
  void forget(pid_t pid) noexcept;

 private:
  /// One process on one GPU.
  struct entry {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    gpu_id gpu{};
    online_work work{};
    time_point since{};         // When `work` became what it is.
    std::uint32_t packets = 0;  // Since the last look.
    time_point at{};
    std::uint32_t waiting = 0;
  };
  struct sum {
    int rank = 0;
    const process* owner = nullptr;  // The one whose work has this rank.
    std::uint32_t packets = 0;
    std::uint32_t waiting = 0;
    time_point waiting_since = never;
    time_point running_since = never;
    time_point at{};
  };
  void look_who_shows() noexcept;
  void add(gpu_id where, const entry& one, const process& owner);

  table& table_;
  // By identity, not by process_id: it may come before its process does, by another inbox. Queues
  // that are gone have no work, whatever was said of them last.
  std::vector<entry> entries_;
  std::vector<sum> sums_;  // By GPU; scratch.
  bool news_ = false;
  bool acting_shows_ = false;
  std::uint64_t shape_ = 0;
};

}  // namespace sluice::core
