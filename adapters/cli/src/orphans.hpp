#pragma once
/// \file
/// Processes that no agent and no guardian will resume, because both were killed, or because the
/// guardian is stopped.

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json/object.hpp>

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

/// "orphaned" or "guardian-stopped".
std::string_view orphan_state(const orphan& one);
/// The first such process of a group, and so why it may be suspended though its scheduler does not
/// know that. \param group as in a daemon's answer to `status`. \return all.end(): it has none.
orphans::const_iterator find_orphan(const boost::json::object& group, const orphans& all);
/// Puts that in place of the state of each group that has such a process.
void mark_orphans(boost::json::object& status, const orphans& all);

}  // namespace sluice::cli
