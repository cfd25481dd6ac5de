#pragma once
/// \file
/// The daemon's log: standard error, in the form of all of sluice's programs. Lines are written by
/// a thread of their own, which never waits for who reads them; of more lines than it keeps up with
/// the oldest are lost, and counted.

#include <string_view>

#include "sluice/daemon_config.hpp"

namespace sluice::cli {

/// The log from here on, the runtime's as well, which has a logger for each part. Its thread takes
/// no signals. Destruction writes what is left. One at a time.
class daemon_log {
 public:
  explicit daemon_log(const daemon_config& levels);
  ~daemon_log();
  daemon_log(const daemon_log&) = delete;
  daemon_log& operator=(const daemon_log&) = delete;
};

/// Any thread, as the others.
void set_log_levels(const daemon_config& levels);
void log_info(std::string_view sentence);
void log_warning(std::string_view sentence);

}  // namespace sluice::cli
