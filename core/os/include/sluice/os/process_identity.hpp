#pragma once
/// \file
/// One process and no other, though its pid is given to a stranger later.

#include <sys/types.h>

#include <compare>
#include <cstdint>

#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A pid may be given to a stranger; its start time comes with that pid only once until the machine
/// is started again.
struct process_identity {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  ///< Clock ticks from boot; observation::start_time.

  friend auto operator<=>(const process_identity&, const process_identity&) =
      default;  // NOLINT: clang-tidy 14 takes its 0 for a pointer.
};

/// Who has this pid now. Ask while the process cannot have been replaced: as its parent before
/// waitpid(), in the process itself, or holding a pidfd that is not readable afterwards.
///
/// Threading: any thread.
/// Errors:    errc::unknown_target when there is no such process.
/// Cost:      one read of /proc.
[[nodiscard]] result<process_identity> identity_of(pid_t pid);

}  // namespace sluice
#pragma GCC visibility pop
