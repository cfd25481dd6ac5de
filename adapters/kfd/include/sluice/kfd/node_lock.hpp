#pragma once
/// \file
/// One scheduler owns a node: the lock that says which.

#include <memory>
#include <string>

#include "sluice/kfd/message_sink.hpp"
#include "sluice/kfd/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

inline constexpr const char* default_owner_lock = "/run/sluice/owner";

/// Ownership of a node for as long as the object lives, or the process: an open-file-description
/// lock (F_OFD_SETLK), which the kernel gives back when the last descriptor closes, whatever kills
/// the owner. The file holds "pid command" of the owner, for messages only, and stays behind.
///
/// Threading: any thread.
class node_lock {
 public:
  /// Takes the lock, creating the file and the directories above it (0755) where they are missing.
  /// Never waits.
  /// \return errc::already_owned when somebody else has it (`say` names the owner), else the
  ///         system's error.
  [[nodiscard]] static result<std::unique_ptr<node_lock>> acquire(const std::string& path,
                                                                  const message_sink& say);

 private:
  explicit node_lock(unique_fd fd) : fd_(std::move(fd)) {}
  unique_fd fd_;
};

}  // namespace sluice::kfd
