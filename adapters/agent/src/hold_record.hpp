#pragma once
/// \file
/// The hold book in a file in /run, mapped by agent and guardian, so that what is written there
/// survives both.

#include "ring.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/hold_book.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// The file of holds that belongs to an owner's lock.
[[nodiscard]] inline std::string holds_beside(const std::string& owner_lock) {
  return owner_lock.empty() ? std::string{} : owner_lock + ".holds";
}

/// open() locks the file, and the lock ends with the last process that has it: as long as an agent
/// or its guardian lives, no other process gets it.
///
/// Threading: enter(), strike() and the two times any thread, else one.
/// Lifetime:  the memory and the lock go with the object and, where it was forked, with the other
///            process's.
class hold_record final : public hold_book {
 public:
  static constexpr std::size_t most_holds = 256;

  /// What stands in a file at one moment, for who has no right to act on it.
  struct content {
    bool is_there = false;  ///< The file.
    acting_choice by{};     ///< Whose holds they are.
    std::vector<hold> holds{};
    bool is_orphaned = false;    ///< As found_record::is_orphaned.
    pid_t stopped_guardian = 0;  ///< As found_record::stopped_guardian.
  };

  /// Makes the file where it is missing (0600).
  /// \param path    empty: in memory alone; nobody but agent and guardian sees it.
  /// \param patience how long to wait for an agent or a guardian that has it.
  /// \return errc::busy where one still has it then (`say` names it), errc::not_supported where
  ///         another version wrote it since the machine started, else the system's error.
  [[nodiscard]] static result<std::unique_ptr<hold_record>> open(const std::string& path,
                                                                 duration patience,
                                                                 const message_sink& say);
  /// Without the lock. \return the system's error where it cannot be read; errc::not_supported
  /// where another version wrote it; no holds where there is none, or it is of another boot.
  [[nodiscard]] static result<content> look(const std::string& path);

  ~hold_record();
  hold_record(const hold_record&) = delete;
  hold_record& operator=(const hold_record&) = delete;

  std::optional<number> enter(const hold& what) noexcept override;
  void strike(number which) noexcept override;

  /// What was left there by whoever had it before.
  acting_choice left_by() const;
  /// From now on they are this agent's. Holds that are still there stay.
  /// \return errc::full where the settings are too long.
  [[nodiscard]] result<void> begin(const acting_choice& by);
  /// Those that are there, by number.
  std::vector<std::pair<number, hold>> held() const;

  /// Whether somebody else than root or this user may have written what is there. Only root opens
  /// such a record.
  bool is_others() const noexcept { return others_; }

  // Of agent and guardian: when each last said that it lives. The agent's is the epoch until it
  // begins to act.
  void agent_lives(time_point now) noexcept;
  void guardian_lives(time_point now) noexcept;
  time_point agent_lived() const noexcept;
  time_point guardian_lived() const noexcept;
  /// From now on the agent lets go of everything, for which it has some seconds.
  void agent_ends() noexcept;
  bool agent_is_ending() const noexcept;
  /// Whether the next agent waits for the record.
  bool is_wanted() const noexcept;

  /// Of the file; to be kept open by who is forked.
  int fd() const noexcept { return file_.get(); }

 private:
  struct page;
  enum class content_kind : std::uint8_t { none, ours, another_version };
  static result<content_kind> kind_of(int file);
  hold_record(unique_fd file, page* mapped, bool others) noexcept;

  unique_fd file_;
  page* const page_;
  const bool others_;
};

}  // namespace sluice::agent
