#pragma once
/// \file
/// The daemon's log: standard error, in the form of all of sluice's programs, never waiting for who
/// reads it.

#include <string_view>

#include "sluice/daemon_config.hpp"

namespace sluice::cli {

/// Makes the logger that the runtime writes to as well. Once, before any thread.
void start_log(daemon_log_level least);
/// Any thread, as the others.
void set_log_level(daemon_log_level least);
void log_info(std::string_view sentence);
void log_warning(std::string_view sentence);

}  // namespace sluice::cli
