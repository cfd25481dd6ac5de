#pragma once
/// \file
/// Names, causes and durations as users read them.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "sluice/breaker.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// The text with '?' for each byte that is not printable ASCII.
[[nodiscard]] std::string printable(std::string_view text);

/// The name of a process, printable ASCII; empty: it is gone.
[[nodiscard]] std::string command_of_process(pid_t pid);

/// "a driver call got stuck".
[[nodiscard]] std::string_view words_of_cause(breaker_cause cause);

/// "5.3 ms", "3.2 s", "2 min 5 s", "2 h 5 min".
[[nodiscard]] std::string span_text(duration value);

}  // namespace sluice
