#pragma once
/// \file
/// What the read and write pointers of online queues tell of their work.

#include <cstdint>

#pragma GCC visibility push(default)
namespace sluice {

/// As of the last look.
enum class online_work : std::uint8_t {
  unknown,   ///< Nobody looks, or the pointers cannot be read.
  waiting,   ///< Some packet was not consumed yet.
  consumed,  ///< Every packet was; whether the last kernels have ended is not known.
  finished,  ///< Every packet was, and completion signals or occupancy say that nothing runs.
  running,   ///< Every packet was, and one of these says that something still runs.
};

}  // namespace sluice
#pragma GCC visibility pop
