#pragma once
/// \file
/// Reads the clients' counters and turns what moved into events.

#include "front_desk.hpp"
#include "journalist.hpp"
#include "open_spans.hpp"
#include "record_stream.hpp"
#include "seen_requests.hpp"
#include "table.hpp"

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/config.hpp"
#include "sluice/policy.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Threading: reactor thread. Cost: look() is two loads per client that did nothing, and allocates
/// only when a client arrives.
class client_ledger {
 public:
  /// \param record nullptr: there is none.
  client_ledger(const scheduler_config& config, table& world, statistics& stats, front_desk& desk,
                seen_requests& seen, pid_t own_pid, journalist& journal,
                record_stream* record) noexcept
      : config_(config),
        table_(world),
        stats_(stats),
        desk_(desk),
        seen_(seen),
        own_pid_(own_pid),
        journal_(journal),
        record_(record) {}

  /// Brings the GPUs' in-flight counts up to date and appends the events.
  void look(time_point now, std::vector<event>& events);
  /// Whether a counter moved, or somebody came, since the last look; no lock.
  bool has_news() const noexcept;
  /// Whether somebody has begun since the last look for whom something would have to make room.
  bool wants_room() const noexcept;
  /// When the next begin stops counting.
  time_point next() const noexcept { return next_; }

 private:
  struct client {
    std::shared_ptr<client_page> page;
    std::uint64_t base = 0;     // As client_page::base: those below are without it.
    std::uint64_t read = 0;     // Marks taken.
    std::vector<gpu_id> named;  // Empty: all of them.
    std::vector<gpu_id> gpus;   // What it counts on: those, and those of its gang.
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    std::uint64_t excess_ends = 0;  // Ends without a begin: a caller's mistake that must not stick.
    std::uint64_t written_off = 0;
    std::uint64_t counted = 0;
    // Begins and ends are matched in order: once `mark` of them have ended, nothing is left that
    // had begun by mark_at.
    std::uint64_t mark = 0;
    time_point mark_at{};
    open_spans open;
    std::uint64_t lost_marks = 0;
    bool said_expired = false;  // That spans expired.
  };
  /// \return why that cannot be, of a client that is not trusted; nullptr when it can.
  static const char* impossible(const client& one, std::uint64_t begun,
                                std::uint64_t ended) noexcept;
  void throw_out(client& one, const char* why, time_point now);
  /// \return false when the client has left.
  bool look_at(client& one, time_point now, std::vector<event>& events);
  /// \return false: it is not to be believed, or more than is remembered.
  bool check_mark(const client& one, sluice_mark& mark, time_point now) const;
  void take_marks(client& one, bool withdrawn, time_point now, std::vector<event>& events);
  /// How many marks of that client are looked at in this turn.
  std::size_t share_of(const client& one, bool withdrawn) noexcept;
  /// The policy forgets its open spans that have begun by then. \return how many.
  static std::uint64_t abandon_spans(client& one, time_point begun_by, duration grain,
                                     time_point now, std::vector<event>& events);
  void settle_spans(client& one, bool withdrawn, time_point now, std::vector<event>& events);
  static client_view view_of(const client& one) noexcept;
  /// The scheduler made it of what it sees: a recording has that instead.
  static bool is_seen(const client& one) noexcept;
  pid_t pid_of(const client& one) const noexcept;
  void tell(const client& one, journal_kind kind, time_point now) noexcept;
  /// Begins or spans that nobody will end. \param again as entry_words::again.
  void tell_lost(const client& one, journal_kind kind, std::uint64_t count, time_point now,
                 bool again) noexcept;
  template <class Function>
  void for_each_gpu(const client& one, Function&& call);
  /// What counts on every GPU counts on those that came since, as arrived now.
  /// Work on one member of an online gang counts on every GPU of that gang.
  void follow_gang(client& one, time_point now, std::vector<event>& events);
  void count_on_new_gpus(time_point now, std::vector<event>& events);

  const scheduler_config& config_;
  table& table_;
  statistics& stats_;
  front_desk& desk_;
  seen_requests& seen_;
  const pid_t own_pid_;
  journalist& journal_;
  record_stream* const record_;
  std::vector<client> clients_;
  std::vector<client> withdrawn_;  // In the last look: its events still name them.
  // Of one look(): what is left of its marks for clients that are not trusted, and how many of
  // those that have some were not come to.
  std::size_t marks_left_ = 0;
  std::size_t with_marks_ = 0;
  time_point last_look_{};
  time_point next_ = never;
};

}  // namespace sluice::core
