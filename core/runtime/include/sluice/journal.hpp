#pragma once
/// \file
/// The journal: what a scheduler saw, decided, told the driver and was answered, as records of
/// fixed size for another thread. For whoever shows, counts or explains what happens while it
/// happens; a recording (recording.hpp) is for playing it again.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "sluice/backend.hpp"
#include "sluice/breaker.hpp"
#include "sluice/ids.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/span_kind.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Each says which fields it has, beside `kind`, `at` and `turn`.
enum class journal_kind : std::uint8_t {
  // Processes: all of them have process, pid, start_time, group, what.
  process,       ///< Seen for the first time; or its role or its group is another one now. number:
                 ///< the group's, for people, from 1.
  process_gone,  ///< Ended. `since`: when it was first seen; count, length, longest: how often, how
                 ///< long altogether, and how long at most not all of its queues were known to run.
  process_off,   ///< Some queue of it is not known to run, from here on.
  process_on,    ///< All run again. `since`, length: of the time off.

  // Decisions: group; pid, process: of its first member; count: its members; why.
  held,    ///< To be off. `until`: when that ends by itself.
  let_go,  ///< To run. `since`: when it was held.
  forced,  ///< Off, and made to run whatever the policy says, until min_run has passed. length:
           ///< min_run; number: the group's, for people.

  // What the driver is told, and answers: process, pid, group.
  attach,    ///< Asked for; error, text: refused at once; length: until it is tried again.
  attached,  ///< error, text, length: it failed. Else count: how often that had failed before;
             ///< number: 1 where a session had ended before that was not asked to.
  detach,    ///< Asked for.
  detached,  ///< The session is over, asked for or not.
  batch,     ///< number, gpu, command, count: queues. Handed over; error, text: refused.
  done,      ///< number, gpu, command, count: queues; since, until: the driver call; error: the
             ///< call's errno; failed, invalid, gone: outcomes that are not `done`. An answer that
             ///< comes after the end of its session has no pid and no group, and changes nothing.
  reserved,  ///< gpu, number: the offline queues' share of the slots, in thousandths; error, text:
             ///< refused, or no longer kept to; length: until it is tried again, zero: it is not;
             ///< count: 0 where the driver was only asked whether it can.
  reservation_ended,  ///< As `reserved`: of one that was to end.
  quantum,  ///< gpu, length: how long it may keep the GPU once others want it; zero: the driver's
            ///< own. error, text: refused, or no longer kept to; count: 0 for a retry that the
            ///< driver refused as before.
  no_quantum,  ///< gpu alone: the policy wants one, and the driver does not support it there.

  // Online work.
  client,             ///< client, pid: of client_options; text: its name. Registered.
  client_gone,        ///< client.
  client_thrown_out,  ///< client; text: what cannot be in its page.
  begin,              ///< client, gpu, count: busy periods; since: when the oldest of them began.
  end,                ///< client, gpu, count.
  span_begin,         ///< client, span, number: the request; since: when.
  span_end,           ///< ... and length; until: when.
  span_abandoned,     ///< As span_end.
  begins_expired,     ///< client, count: no longer counted after length, which is max_busy.
  spans_expired,      ///< The same of spans; or they were more than are remembered.
  spans_left,         ///< client, count: were open when it withdrew.
  marks_dropped,      ///< client, number: marks lost, or senseless; count: that ended no open span.
  busy,               ///< gpu: online work is in flight there now, by clients or pointers. If no
                      ///< client announced any, process and pid: whose pointers.
  idle,               ///< gpu: it is not any more. `since`: when it became busy.
  off,                ///< gpu; since, until, length: from an online arrival until its last offline
                      ///< queue was off, both before `at`.

  // The rest.
  policy,          ///< text: its name, empty for none. From here on; count: 1 where the one before
                   ///< was removed for what it did.
  breaker_open,    ///< gpu, cause; until: when it closes by itself; count: 1; number: to which GPU
                   ///< of its reset domain it happened. Of one that was open before this scheduler
                   ///< began count is 0.
  breaker_closed,  ///< gpu; text: why.
  acts_by,         ///< text: the mechanism's name; count: 1 where a better way failed.
  backend_lost,    ///< error, text. Everything runs.
  backend_back,
  reattached,  ///< After backend_back. count: processes that are attached again, of number.
  overflow,    ///< count: the source; number: observations that its inbox had no room for.
  resync,      ///< count: the source, which says everything again.
  stop,        ///< The scheduler was told to stop.
};

/// Why a group is held, let go or forced.
enum class journal_rule : std::uint8_t {
  policy,          ///< The policy said so.
  expired,         ///< The policy's declaration had an end, which came.
  no_policy,       ///< The policy that wanted it was replaced, or removed.
  max_suspend,     ///< Limits of the configuration.
  offline_floor,   ///< ...
  not_manageable,  ///< Not all of it is attached, or a GPU's breaker is open.
  refused,         ///< The driver does not suspend a part of it, so the rest runs as well.
  not_offline,     ///< Its role is another one now.
  stop,            ///< The scheduler stops.
  peers,           ///< The gang's peers on other nodes: held, because one of them wants it; let go,
                   ///< because none does any more, or they do not answer, or refuse.
};

constexpr std::string_view to_string(journal_rule value) noexcept {
  switch (value) {
    case journal_rule::policy: return "policy";
    case journal_rule::expired: return "expired";
    case journal_rule::no_policy: return "no policy";
    case journal_rule::max_suspend: return "max_suspend";
    case journal_rule::offline_floor: return "offline_floor";
    case journal_rule::not_manageable: return "not manageable";
    case journal_rule::refused: return "refused by the driver";
    case journal_rule::not_offline: return "not offline";
    case journal_rule::peers: return "peers";
    case journal_rule::stop: break;
  }
  return "stop";
}

/// What a kind does not name is as it is made here.
struct journal_entry {
  static constexpr std::size_t longest_text = 39;

  journal_kind kind{};
  journal_rule why{};
  role what = role::unmatched;
  command_kind command{};
  breaker_cause cause{};
  span_kind span{};
  pid_t pid = 0;
  gpu_id gpu{};
  std::uint32_t count = 0;
  std::uint16_t failed = 0;
  std::uint16_t invalid = 0;
  std::uint16_t gone = 0;
  std::int32_t error = 0;  ///< error_code::value(), or an errno; 0: none.
  process_id process{};
  group_id group{};
  client_id client{};
  std::uint64_t start_time = 0;  ///< As observation::start_time.
  std::uint64_t number = 0;
  std::uint64_t turn = 0;  ///< Of the scheduler; entries with the same one have one cause.
  time_point at{};
  time_point since{};
  time_point until = never;
  duration length{};
  duration longest{};
  std::array<char, longest_text + 1> text{};  ///< Ends with a zero; what is longer is cut.

  void set_text(std::string_view what_it_says) noexcept {
    text[what_it_says.copy(text.data(), longest_text)] = '\0';
  }
  std::string_view words() const noexcept { return text.data(); }
};
static_assert(std::is_trivially_copyable_v<journal_entry>);

/// Where a scheduler writes its journal.
///
/// Threading: the thread that steps the scheduler. Lifetime: outlives the scheduler.
class journal_sink {
 public:
  /// Never blocks, never allocates. What there is no room for is lost, which the sink counts.
  virtual void put(const journal_entry& entry) noexcept = 0;
  /// A turn with entries in it has ended.
  virtual void pass_on() noexcept {}

 protected:
  ~journal_sink() = default;
};

/// A bounded, lock-free queue of entries from one scheduler to one reader.
///
/// Threading: put() and pass_on() from one thread; take(), sleep() and lost() from another one.
///            Schedulers may follow each other: each ends before the next begins.
/// Cost:      put() copies some 200 bytes; pass_on(), and put() where it is half full, makes a
///            system call only where the reader sleeps.
class journal final : public journal_sink {
 public:
  /// Entries that wait at most, of some 200 bytes. A turn that holds everybody makes three for each
  /// process: enough for 4096 of them, with nobody reading meanwhile.
  static constexpr std::size_t usual_capacity = 16384;

  /// \return EMFILE when no descriptor is left.
  [[nodiscard]] static result<std::unique_ptr<journal>> create(
      std::size_t capacity = usual_capacity);
  ~journal();
  journal(const journal&) = delete;
  journal& operator=(const journal&) = delete;

  void put(const journal_entry& entry) noexcept override;
  void pass_on() noexcept override;

  /// Readable once after sleep() when entries have come.
  int ready_fd() const noexcept;
  /// The oldest ones, in order; clears ready_fd(). \return how many.
  std::size_t take(std::span<journal_entry> into) noexcept;
  /// From here on ready_fd() says when there is more. A reader that lets some milliseconds pass
  /// between take() and sleep() costs the scheduler no system calls while it is busy.
  /// \return false when something is there already: then it is not asleep.
  bool sleep() noexcept;
  /// Entries lost so far because the reader was too slow.
  std::uint64_t lost() const noexcept;

 private:
  class [[gnu::visibility("hidden")]] impl;
  explicit journal(std::unique_ptr<impl> body) noexcept;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice
#pragma GCC visibility pop
