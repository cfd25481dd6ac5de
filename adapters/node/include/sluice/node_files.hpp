#pragma once
/// \file
/// The files by which programs on one node meet: who owns it, and whether it is paused.

#include <cstddef>
#include <optional>
#include <string>

#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Where they lie, and their names.
struct node_files {
  std::string directory = "/run/sluice";

  /// Who holds its lock owns the node (node_lock).
  [[nodiscard]] std::string owner() const { return directory + "/owner"; }
  /// Where whoever owns it takes clients of other processes (sluice/client.h).
  [[nodiscard]] std::string clients() const { return directory + "/clients.sock"; }
  /// Where whoever owns it answers `sluice status` and the like.
  [[nodiscard]] std::string control() const { return directory + "/control.sock"; }
  /// The socket on which the node's owner accepts sluice-gangs (adapters/fleet).
  [[nodiscard]] std::string gangs() const { return directory + "/gangs.sock"; }
  /// While it exists, everything runs.
  [[nodiscard]] std::string disabled() const { return directory + "/disabled"; }
};

/// Makes the file `disabled`, with the reason in it, so that every node that looks at it lets
/// everything run, now and when it is started anew; only a reboot forgets it. A `touch` does the
/// same. The directory is not made: no node has its files where there is none.
///
/// \param why one line: paused_why() shows no more.
///
/// Threading: any. Errors: the system's; `message` gets one sentence. Blocks on file operations.
[[nodiscard]] result<void> pause_node(const node_files& where, const std::string& why,
                                      std::string& message);
/// Removes it.
/// \return also ENOENT where it was not there.
[[nodiscard]] result<void> unpause_node(const node_files& where, std::string& message);
/// The reason, if it is paused: the first line of the file, at most 200 bytes of it, without what a
/// terminal would act on. Empty where none was given, or where it may not be read. Blocks on file
/// operations.
[[nodiscard]] std::optional<std::string> paused_why(const node_files& where);
/// Of which paused_why() shows so many bytes.
inline constexpr std::size_t longest_reason = 200;

}  // namespace sluice
#pragma GCC visibility pop
