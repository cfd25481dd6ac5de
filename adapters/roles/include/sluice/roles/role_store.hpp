#pragma once
/// \file
/// Roles that operators and job managers said, in a file that outlives schedulers: what
/// `sluice role` edits and the discovery follows.

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/roles/classification.hpp"

#pragma GCC visibility push(default)
namespace sluice::roles {

/// Since the machine was started, sleep included (CLOCK_BOOTTIME): what start times count, and what
/// nobody sets. What the store says of a process ends with its boot anyway.
using boot_time = std::chrono::milliseconds;
[[nodiscard]] boot_time boot_time_now() noexcept;

struct stored_roles {
  /// Of processes that lived when the file was read.
  std::map<process_identity, role> by_process{};
  std::vector<cgroup_rule> by_cgroup{};  ///< The first that matches counts.
  /// Processes given back, until when: offline ones are unmatched meanwhile, whatever made them
  /// offline. Those whose time had come when the file was read are left out.
  std::map<process_identity, boot_time> released{};

  friend bool operator==(const stored_roles&, const stored_roles&) = default;
};

/// The file, one entry per line:
/// ```
/// sluice roles 1
/// pid 4242 8675309 6158cdd2-b23f-42ee-91e4-fd3b55488dab offline
/// cgroup offline /kubepods.slice/kubepods-besteffort.slice
/// released 4242 8675309 6158cdd2-b23f-42ee-91e4-fd3b55488dab 99123456
/// ```
/// A pid comes with its start time and the boot's id (/proc/sys/kernel/random/boot_id), so that its
/// next owner inherits nothing; entries of processes that are gone are left out when reading and
/// dropped when writing. A release ends at its boot_time, in milliseconds, likewise. Empty lines
/// and those that begin with `#` are skipped, and dropped too.
///
/// The file is replaced as a whole and made durable before a change returns. Changes of several
/// programs at once are put one after the other by a lock on the file `<path>.lock`. Both are made
/// with mode 0644 and 0600; the directory is made when it is missing.
///
/// Threading: any thread; each call is on its own.
/// Errors:    every call: errc::bad_config for a file that is not trusted or not understood, the
///            system's error for one that cannot be read or written. A file is trusted when it is a
///            regular file, root or this process's user owns it, nobody else may write it, and
///            nobody else may replace it in its directory. `message` gets one sentence then.
///            No file: no entries, no error.
/// Cost:      blocks on file operations; a change waits up to 5 s for others' changes.
class role_store {
 public:
  static constexpr boot_time longest_release = std::chrono::hours{24};
  /// More is refused, when reading and when writing.
  static constexpr std::size_t most_bytes = std::size_t{1} << 20U;

  explicit role_store(std::string path = classification_rules::default_role_store)
      : path_(std::move(path)) {}

  const std::string& path() const noexcept { return path_; }

  [[nodiscard]] result<stored_roles> read(std::string& message) const;

  /// Says a process's role, in place of what was said of it before. role::unmatched: it is not to
  /// be touched.
  /// \return also errc::unknown_target when it is gone.
  [[nodiscard]] result<void> set(const process_identity& who, role what, std::string& message);
  /// Says the role of a pattern's cgroups (see classification.hpp for patterns).
  /// \param position from 0, counted without the pattern's former entry; beyond the last one: at
  ///                 the end. Not given: where the pattern is already, else at the end.
  [[nodiscard]] result<void> set(const std::string& cgroup, role what, std::string& message,
                                 std::optional<std::size_t> position = {});

  /// Gives the process back from now on and for so long, in place of what was left of an earlier
  /// release. What schedulers suspended of it they resume, and let go of it.
  /// \return also errc::unknown_target when it is gone; errc::bad_config for no time above 0, or
  /// one
  ///         above longest_release.
  [[nodiscard]] result<void> release(const process_identity& who, boot_time how_long,
                                     std::string& message);
  /// Ends that early.
  /// \return also errc::unknown_target when it is not released.
  [[nodiscard]] result<void> end_release(const process_identity& who, std::string& message);

  /// \return also errc::unknown_target when nothing was said of it.
  [[nodiscard]] result<void> clear(const process_identity& who, std::string& message);
  [[nodiscard]] result<void> clear(const std::string& cgroup, std::string& message);

 private:
  template <class Change>
  result<void> change(std::string& message, Change apply);

  std::string path_;
};

}  // namespace sluice::roles
#pragma GCC visibility pop
