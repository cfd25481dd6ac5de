#pragma once
/// \file
/// Looks of a scanner in words, and processes with a tag to look at.

#include "family.hpp"
#include "node_scanner.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace sluice::test {

inline std::string text(const observation& seen) {
  const std::string queue = "queue " + std::to_string(static_cast<std::uint32_t>(seen.queue));
  switch (seen.kind) {
    case observation_kind::process_seen: return "process " + std::string{to_string(seen.what)};
    case observation_kind::process_gone: return "process gone";
    case observation_kind::queue_seen:
      return queue + " on " + std::to_string(static_cast<std::uint32_t>(seen.gpu)) +
             (seen.type == queue_kind::compute ? " compute" : " other");
    case observation_kind::queue_gone: return queue + " gone";
    case observation_kind::gpu_seen:
      return "gpu " + std::to_string(static_cast<std::uint32_t>(seen.gpu));
    case observation_kind::pointers_seen: return "pointers";
    case observation_kind::gpu_lost: return "gpu lost";
    case observation_kind::breaker_kept:
    case observation_kind::breaker_rearmed: return "a breaker's";
    case observation_kind::gang_heard: return "peers of a gang";
    case observation_kind::resync_begin: return "begin";
    case observation_kind::resync_end: return "end";
  }
  return "?";
}
inline std::vector<std::string> look(node_scanner& scanner) {
  std::vector<std::string> seen;
  scanner.scan([&](const observation& each) { seen.push_back(text(each)); });
  return seen;
}
inline std::vector<std::string> all(const node_scanner& scanner) {
  std::vector<std::string> seen;
  scanner.restate([&](const observation& each) { seen.push_back(text(each)); });
  return seen;
}

/// Execs a program that waits, with `tag` as its AMD_QUEUE_TAG (empty: none).
inline std::function<int(int)> tagged(const std::string& tag) {
  return [tag](int said) {
    // The descriptor closes with the exec, which so says that it has happened.
    ::fcntl(said, F_SETFD, FD_CLOEXEC);
    if (tag.empty())
      ::unsetenv("AMD_QUEUE_TAG");
    else
      ::setenv("AMD_QUEUE_TAG", tag.c_str(), 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  };
}
inline void wait_for_exec(const family& target) { wait_for_exec(target, "sleep"); }

/// Execs such a program, with the tag OFFLINE_AI, when it is told to.
inline int execs_when_told(int said, int told) {
  (void)!::write(said, "r", 1);
  char go = 0;
  if (::read(told, &go, 1) != 1) return 1;
  ::setenv("AMD_QUEUE_TAG", "OFFLINE_AI", 1);
  ::execl("/bin/sleep", "sleep", "60", nullptr);
  return 1;
}

/// Lives until the test ends it.
inline int wait_here(int said) {
  (void)!::write(said, "r", 1);
  for (;;) ::pause();
}

}  // namespace sluice::test
