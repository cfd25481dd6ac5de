#pragma once
/// \file
/// Writes what happens in the scheduler to the log, for who reads sentences.

#include <chrono>
#include <cstdint>
#include <string_view>

#include "sluice/backend.hpp"
#include "sluice/journal.hpp"
#include "sluice/os/log_limiter.hpp"
#include "sluice/result.hpp"

namespace sluice::core {

/// What belongs to an entry and has no room in it, or only cut short. Valid during the call.
struct entry_words {
  error_code error{};       ///< The entry's `error` and `text` are made of it...
  std::string_view text{};  ///< ... or `text` of this; of a failed attach, for the log alone.
  std::string_view name{};  ///< Of the client; of the policy before.
  std::string_view why{};   ///< A policy was removed.
  bool again = false;       ///< The last entry said so too: no line.
};
inline constexpr entry_words no_words{};

/// Threading: reactor thread. Cost: lines allocate; entries without one cost a switch.
class event_log {
 public:
  /// \param quiet says nothing of what is usual.
  event_log(const backend& driver, bool quiet) noexcept : backend_(driver), quiet_(quiet) {}

  void hear(const journal_entry& entry, const entry_words& words) noexcept;

 private:
  void write(const journal_entry& entry, const entry_words& words);
  void write_attach_failure(const journal_entry& entry, const entry_words& words);
  void write_policy(const journal_entry& entry, const entry_words& words);
  void write_reservation(const journal_entry& entry, const entry_words& words);
  void write_quantum(const journal_entry& entry, const entry_words& words);

  const backend& backend_;
  const bool quiet_;
  log_limiter commands_;
  log_limiter attaches_{16};
  log_limiter online_gone_{8};
  log_limiter thrown_out_{8};
  log_limiter expired_spans_{8};
  log_limiter expired_begins_{8};
  log_limiter reservations_{8};
  log_limiter quanta_{8};
  // A client that stays busy forces each second.
  log_limiter forced_{1, std::chrono::minutes(1)};
};

}  // namespace sluice::core
