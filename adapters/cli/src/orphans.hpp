#pragma once
/// \file
/// Processes that no agent and no guardian will resume, because both were killed, or because the
/// guardian is stopped.

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "sluice/node_files.hpp"

namespace sluice::cli {

struct orphan {
  std::string record;          ///< The file that lists it.
  pid_t stopped_guardian = 0;  ///< 0: agent and guardian have ended.
};
/// By process that is still there. Records that this user may not read are left out.
using orphans = std::map<pid_t, orphan>;
orphans find_orphans(const node_files& files);

/// "their agent was killed together with its guardian", and what to do about it.
struct orphan_words {
  std::string why;
  std::string advice;
};
orphan_words words_of(const orphan& one, const node_files& files);
/// One sentence that says what to do.
std::string orphan_text(pid_t pid, const orphan& one, const node_files& files);
/// The same for the process, if it is one of them.
std::optional<std::string> why_orphaned(pid_t pid, const node_files& files);

}  // namespace sluice::cli
