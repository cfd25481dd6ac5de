#pragma once
/// \file
/// Writes the journal for the parts of the scheduler.

#include <array>
#include <cstdint>
#include <utility>

#include "sluice/journal.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Threading: reactor thread. Cost: nothing without a sink.
class journalist {
 public:
  /// \param into nullptr: nobody hears.
  explicit journalist(journal_sink* into) noexcept : sink_(into) {}

  bool on() const noexcept { return sink_ != nullptr; }
  /// Of the entries from here on.
  void set_turn(std::uint64_t turn) noexcept { turn_ = turn; }
  void put(journal_entry entry, time_point at) noexcept {
    if (sink_ == nullptr) return;
    entry.at = at;
    entry.turn = turn_;
    sink_->put(entry);
    news_ = true;
  }
  /// The turn has ended.
  void pass_on() noexcept {
    if (std::exchange(news_, false)) sink_->pass_on();
  }

 private:
  journal_sink* const sink_;
  std::uint64_t turn_ = 0;
  bool news_ = false;
};

/// Code and words; nothing where there is no error.
inline void set_error(journal_entry& into, error_code error) noexcept {
  into.error = error.value();
  if (!error) return;
  std::array<char, 128> room;
  into.set_text(error.message(room.data(), room.size()));
}

}  // namespace sluice::core
