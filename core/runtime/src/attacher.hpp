#pragma once
/// \file
/// Decides which processes are traced, and when.

#include "actual_state.hpp"
#include "deadline_heap.hpp"
#include "journalist.hpp"
#include "membership.hpp"
#include "table.hpp"

#include <optional>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Attaching may delay everyone on the GPU for a moment and take the process from other tracers,
/// so: offline processes only, once they have owned a compute queue for attach_after, with no
/// online work in flight on their GPUs (but at the latest at attach_at_latest), one at a time per
/// GPU. A process that stops being offline is given back.
///
/// What was attached when the backend was lost is attached again as soon as that is back, one after
/// the other on each GPU, but whatever online work is in flight: until then nothing makes room for
/// it, which costs it more than the cycles that attaching does. A process that has no queues by
/// then is, too: the driver lets one that is about to end wait for its debugger's answer, whoever
/// that is.
///
/// Threading: reactor thread.
class attacher {
 public:
  attacher(const scheduler_config& config, table& world, membership& members, actual_state& actual,
           backend& driver, journalist& journal) noexcept
      : config_(config),
        table_(world),
        members_(members),
        actual_(actual),
        backend_(driver),
        journal_(journal) {}

  void work(time_point now);
  /// The backend's answer to attach().
  void attached(process& which, error_code error, time_point now);
  /// A session ended that we did not end, or that we did.
  void detached(process& which, time_point now);
  /// The acting side died: nobody is attached, and nothing can be until restored().
  void lost();
  /// Says so once it is known who is attached again.
  void restored();
  /// A GPU has no online work in flight any more, or an attach has ended: look again.
  void recheck() noexcept { recheck_ = true; }
  /// No attaching from now on.
  void stop() noexcept {
    up_ = false;
    returning_.reset();
  }
  time_point next() const noexcept { return deadlines_.next(); }

 private:
  enum class verdict : std::uint8_t { now, later, never };
  verdict judge(const process& which, time_point now, time_point& again) const noexcept;
  void consider(process& which, time_point now);
  /// \param asked what failed: attach or attached.
  void failed(process& which, journal_kind asked, error_code error, time_point now);
  bool wanted(const process& which) const noexcept;
  duration patience_of(const process& which) const noexcept;
  void report_returns(time_point now);

  /// Who was attached when the backend was lost, since it is back.
  struct returns {
    std::vector<process_id> awaited;  // Whose first attach has not been answered.
    std::size_t all = 0;
    std::size_t attached = 0;
  };
  const scheduler_config& config_;
  table& table_;
  membership& members_;
  actual_state& actual_;
  backend& backend_;
  journalist& journal_;
  deadline_heap deadlines_;          // By process slot.
  std::vector<process_id> waiting_;  // For a GPU to become free.
  std::vector<process_id> looking_;  // What work() goes through; kept for its memory.
  std::optional<returns> returning_;
  bool recheck_ = false;
  bool up_ = true;
};

}  // namespace sluice::core
