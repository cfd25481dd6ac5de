#pragma once
/// \file
/// One scheduler owns a node: the lock that says which.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

inline constexpr const char* default_owner_lock = "/run/sluice/owner";

/// How many may hold processes by hand at the same time, beside the owner of the node.
inline constexpr unsigned most_hand_locks = 8;
/// The lock of one of them, from 1 on, beside the owner's: "/run/sluice/owner.1".
[[nodiscard]] inline std::string hand_lock(const std::string& owner_lock, unsigned which) {
  return owner_lock + "." + std::to_string(which);
}

/// Ownership of a node for as long as the object lives, or the process: an open-file-description
/// lock (F_OFD_SETLK), which the kernel gives back when the last descriptor closes, whatever kills
/// the owner. The file stays behind. It holds, for messages only, a line "pid command" of the
/// program that owns the node and, when another process holds the lock for it, a second one of that
/// process: whoever only stops the holder gets another holder. A last line says what a sluice::node
/// does: "node enforces" or "node observes".
///
/// Threading: any thread.
class node_lock {
 public:
  enum class kind : std::uint8_t {
    scheduler,  ///< Some program with a scheduler.
    node,       ///< A sluice::node, which lets everything run while the node is paused.
    observing,  ///< One that acts on nothing.
  };
  struct claim {
    pid_t on_behalf_of = 0;  ///< The program that owns the node by it; 0: the calling process.
    kind what = kind::scheduler;
  };
  struct holder {
    std::string words;   ///< "process 12 (serve), whose agent is process 13 (sluice-agent)"
    pid_t program = 0;   ///< 0: unknown.
    pid_t agent = 0;     ///< Holds the lock for the program. 0: none does, or unknown.
    bool ended = false;  ///< That program has; who holds the lock for it is about to.
    kind what = kind::scheduler;
  };

  /// Takes the lock, creating the file (0600) and the directories above it (0755) where they are
  /// missing. Never waits. Of a file of this user's, what others may do is taken away: who may read
  /// it may lock it against everybody. Whom to trust so far, the file's group says (0660).
  /// \return errc::already_owned when somebody else has it (`say` names the owner), else the
  ///         system's error.
  [[nodiscard]] static result<std::unique_ptr<node_lock>> acquire(const std::string& path,
                                                                  const message_sink& say,
                                                                  claim as);
  [[nodiscard]] static result<std::unique_ptr<node_lock>> acquire(const std::string& path,
                                                                  const message_sink& say) {
    return acquire(path, say, claim{});
  }

  /// Who owns the node by that lock at this moment. Changes nothing, blocks nowhere: some system
  /// calls.
  /// \return nothing where nobody does. Errors: the system's, where the file cannot be opened but
  ///         for ENOENT; EACCES for who is neither its owner nor of its group.
  [[nodiscard]] static result<std::optional<holder>> look(const std::string& path);
  /// Its words. \return nothing where nobody does, or where the file cannot be opened.
  [[nodiscard]] static std::optional<std::string> owner(const std::string& path);

 private:
  explicit node_lock(unique_fd fd) : fd_(std::move(fd)) {}
  unique_fd fd_;
};

}  // namespace sluice
#pragma GCC visibility pop
