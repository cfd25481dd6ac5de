#pragma once
/// \file
/// Processes that no agent and no guardian will resume, because both were killed.

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "sluice/node_files.hpp"

namespace sluice::cli {

/// By process that is still there, the record that lists it. Records that this user may not read
/// are left out.
using orphans = std::map<pid_t, std::string>;
orphans find_orphans(const node_files& files);

/// One sentence that says what to do.
std::string orphan_text(pid_t pid, const std::string& record, const node_files& files);
/// The same for the process, if it is one of them.
std::optional<std::string> why_orphaned(pid_t pid, const node_files& files);

}  // namespace sluice::cli
