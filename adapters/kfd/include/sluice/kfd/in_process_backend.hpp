#pragma once
/// \file
/// The backend whose lanes are threads of this process: for tools and tests. A serving process
/// wants the agent (sluice/agent/agent_backend.hpp) instead.

#include <memory>
#include <string>

#include "sluice/backend.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/node_lock.hpp"

#pragma GCC visibility push(default)
namespace sluice::kfd {

struct in_process_options {
  kfd::roots roots = kfd::roots::from_environment();
  std::string owner_lock = default_owner_lock;  ///< Empty: take none.
  /// Use the batch commands of a patched driver where it offers them (uapi_batch.hpp).
  bool batch_commands = true;
  message_sink say = messages_to_stderr();
};

/// What using it means: this process must not call waitpid(-1) or wait(), which would take the
/// stops of the targets; waitpid() for a target that is its child also returns when a signal stops
/// that target, or fails with ECHILD at its end; it must not hang or dump a large core, for the
/// driver resumes everything only once its memory is gone; and the privileges to trace are this
/// process's own. This process's SIGCHLD is not ours to take: where lanes do not hear_stops(), a
/// signal to a target's main thread waits up to 10 ms.
///
/// A driver that refuses to resume a target's queues and to end its session frees them only when
/// this process ends; `say` says so, batches for the target fail, and the lane keeps trying.
///
/// lost() and restored() are never called.
std::unique_ptr<backend> make_in_process_backend(in_process_options options = {});

}  // namespace sluice::kfd
#pragma GCC visibility pop
