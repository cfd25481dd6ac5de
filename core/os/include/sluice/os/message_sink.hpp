#pragma once
/// \file
/// Where this adapter says what an error code cannot: whole sentences for the operator.

#include <functional>
#include <string_view>

#pragma GCC visibility push(default)
namespace sluice {

/// Receives one sentence without a line end: what, where, and what to do about it.
///
/// Threading: called from any thread of the library, also concurrently; must not block or throw.
/// Rare: failures of start-up and attachment, never once per batch.
using message_sink = std::function<void(std::string_view)>;

/// A warning on standard error, in the form and by the rules of log_to_standard_error(): as the
/// runtime logs where the program made no logger.
message_sink messages_to_stderr();

}  // namespace sluice
#pragma GCC visibility pop
