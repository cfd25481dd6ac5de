#pragma once
/// \file
/// The policy port: a pure function of snapshots. It never performs I/O, reads a clock, blocks, or
/// allocates per event; the same snapshots give the same decisions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "sluice/ids.hpp"
#include "sluice/span_kind.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class event_kind : std::uint8_t {
  online_begin,  ///< `count` busy periods began on `gpu`.
  online_end,    ///< `count` busy periods ended on `gpu`.
  online_moved,  ///< Online queues on `gpu` got `count` packets, by their write pointers; 0: only
                 ///< gpu_view::work changed. Sent while decision_sink::poll_pointers() asks for it.
  span_begin,    ///< `client` began the span `span` of its request `request`; on no single GPU.
  span_end,      ///< It ended; `length` is how long it took.
  span_abandoned,  ///< It was open for `length`, and nobody will end it: its client withdrew, or it
                   ///< was open for max_busy. That says nothing of how long it would have taken.
                   ///< Of one begin comes either this or a span_end.
};

struct event {
  event_kind kind{};
  gpu_id gpu{};  ///< Not of spans.
  client_id client{};
  std::uint32_t count = 1;
  time_point at{};
  span_kind span{};           ///< Spans only, as what follows.
  std::uint64_t request = 0;  ///< The client's number of it.
  duration length{};          ///< span_end, span_abandoned: from the span's begin to `at`.
};

/// One consistent picture, taken at the start of a reactor turn.
struct snapshot {
  time_point now{};                   ///< Constant during the turn; the only clock a policy has.
  std::uint64_t turn = 0;             ///< Increases by one per call.
  std::span<const event> events;      ///< In order of arrival; may be empty (a wake-up).
  std::span<const group_id> changed;  ///< Groups that are new, changed queues, GPUs or state, or
                                      ///< whose declaration expired. Of gone groups, the offline
                                      ///< ones that shared a GPU with them are.
  const world& table;
};

/// Where a policy says what it wants. A declaration stands until the policy replaces it, until its
/// expiry, or until the policy is removed; a group without one runs.
class decision_sink {
 public:
  /// Wants every queue of the group suspended, until `until` (the configuration's max_suspend caps
  /// the time off: then the group runs for min_run, is listed in `changed`, and may be held again).
  virtual void hold(group_id group, time_point until) = 0;
  /// Wants the group to run.
  virtual void run(group_id group) = 0;
  /// Asks for a turn at or after `when`. Of several asked times the earliest is met, once; then
  /// none is pending until the policy asks again.
  virtual void wake_at(time_point when) = 0;
  /// Wants the read and write pointers of online queues looked at every `every`, until it says
  /// otherwise; zero: not at all, as at the start. It has effect where gpu_view::can_see_work is
  /// true, and not for processes whose clients mark their requests. Looking costs a system call per
  /// online process.
  virtual void poll_pointers(duration every) = 0;
  /// Wants the driver to keep at most `offline_share` (0 to 1) of the GPU's hardware slots for
  /// offline queues; 1 takes it back. It stands until the policy says otherwise, and has effect
  /// while gpu_view::can_reserve is true and the GPU not lost. Limits nobody whose process is not
  /// attached, and min_run, max_suspend and offline_floor know nothing of it.
  virtual void reserve(gpu_id gpu, double offline_share) = 0;
  /// How long the group may keep a GPU once others want it, where the driver slices time between
  /// processes; zero takes it back: the driver's own default. It stands until the policy says
  /// otherwise, for whatever of the group is attached or comes, on GPUs whose
  /// gpu_view::can_set_quantum is true and that are not lost. It has no effect on a group that is
  /// not offline, and min_run, max_suspend and offline_floor know nothing of it.
  virtual void set_quantum(group_id group, duration length) = 0;
  /// Whether marks of this kind are wanted at once, from now on. At the start those of requests and
  /// first tokens are; those of tokens wait for the next turn, for there are many.
  virtual void listen(span_kind what, bool at_once) {
    (void)what;
    (void)at_once;
  }
  /// Tells the operator something that the policy found out; not what it does all day. It is logged
  /// under the policy's name, a few lines at a time.
  /// \param text valid during the call; each `{}` in it stands for the next of `numbers`.
  virtual void note(std::string_view text, std::span<const double> numbers) {
    (void)text;
    (void)numbers;
  }

 protected:
  ~decision_sink() = default;
};

/// Threading: reactor thread only, never concurrently with itself.
/// Errors:    a policy that throws, or takes longer than the configured limit three times within a
///            minute, is removed: everything runs, the scheduler says so once, and its fallback
///            takes over where it was given one.
class policy {
 public:
  virtual ~policy() = default;
  /// Stable, changes when behaviour changes.
  virtual std::string_view name() const noexcept = 0;
  virtual void decide(const snapshot& seen, decision_sink& out) = 0;
  /// Kinds of spans of which clients must mark at least one, or it does nothing: who knows before
  /// a run that nobody marks any refuses it. Empty: it works without marks. Constant for its life;
  /// valid as long as it is.
  virtual std::span<const span_kind> needs_marks() const noexcept { return {}; }
};

}  // namespace sluice
#pragma GCC visibility pop
