#pragma once
/// \file
/// The open breakers of this node's scheduler, in a file: so that a restarted scheduler keeps them
/// open, operators see them, and can re-arm them. What `sluice breaker` edits;
/// make_breaker_keeper() connects it to a scheduler.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sluice/breaker.hpp"
#include "sluice/ids.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"
#include "sluice/source.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// The clock on the wall: what operators read, and what goes on while no scheduler runs. Where it
/// is set, breakers end sooner or later by as much, but in a scheduler never later than
/// breaker_rearm.
using wall_time = std::chrono::sys_time<std::chrono::milliseconds>;
[[nodiscard]] wall_time wall_time_now() noexcept;
/// "2026-11-21 20:14:05 UTC".
[[nodiscard]] std::string wall_text(wall_time when);

/// The words of the file: "preemption_failed", "reset", "stuck_call".
[[nodiscard]] std::string_view to_string(breaker_cause why) noexcept;
/// A part of a sentence: "the driver reset the GPU".
[[nodiscard]] std::string_view words_of(breaker_cause why) noexcept;

struct stored_breaker {
  breaker_cause why{};
  gpu_id first{};  ///< To which it happened: this GPU or another one of its hive.
  wall_time since{};
  std::optional<wall_time> until{};  ///< Nothing: until somebody re-arms it.

  bool over(wall_time now) const noexcept { return until && *until <= now; }
  friend bool operator==(const stored_breaker&, const stored_breaker&) = default;
};
using stored_breakers = std::map<gpu_id, stored_breaker>;

/// The file, one GPU per line; times are milliseconds of Unix time, UNTIL may be `-`:
/// ```
/// sluice breakers 1
/// open 51110 51110 reset 1795291200000 1795377600000
/// ```
/// (`open GPU_ID FIRST CAUSE SINCE UNTIL`.) Lines that begin with `#` are skipped. It lies under
/// /run, so a reboot, which is what a GPU needs at the worst, closes every breaker. Removing it
/// re-arms all.
///
/// It is replaced as a whole; changes of several programs at once are put one after the other by a
/// lock on the file `<path>.lock`. Both are made with mode 0644 and 0600; the directory is made
/// when it is missing.
///
/// Threading: any thread; each call is on its own.
/// Errors:    every call: errc::bad_config for a file that is not trusted or not understood, the
///            system's error for one that cannot be read or written; `message` gets one sentence.
///            Trusted is what role_store trusts; root also trusts whoever owns the directory, who
///            keeps what root writes. No file: no entries, no error.
/// Cost:      blocks on file operations; a change waits up to 5 s for others' changes.
class breaker_store {
 public:
  /// SLUICE_BREAKERS; else /run/sluice/breakers, with the path of the driver's tree appended where
  /// that is not the kernel's own, so that a simulated GPU's breakers are not taken for real ones.
  /// \param tree empty: the kernel's own.
  [[nodiscard]] static std::string default_path(std::string tree = {});

  explicit breaker_store(std::string path) : path_(std::move(path)) {}

  const std::string& path() const noexcept { return path_; }

  /// Those whose time is over are among them.
  [[nodiscard]] result<stored_breakers> read(std::string& message) const;
  /// Adds or replaces the one, takes the other out. What is over goes with any change.
  [[nodiscard]] result<void> change(const stored_breakers& add, std::span<const gpu_id> remove,
                                    std::string& message) const;

 private:
  std::string path_;
};

/// A source (see sluice/source.hpp) that opens, at the start, the breakers that the store says are
/// open, writes into it those that open, takes out those that close, and re-arms those that
/// somebody else takes out, at once where inotify tells. It has a thread of its own, which does all
/// that may block, but for one read at the start.
///
/// A store that cannot be read or written is said in one sentence and no error: breakers then last
/// as long as their scheduler, and the store is tried again every 10 s.
///
/// Threading: as any source's.
[[nodiscard]] std::unique_ptr<source> make_breaker_keeper(std::string path,
                                                          message_sink say = messages_to_stderr());

}  // namespace sluice
#pragma GCC visibility pop
