#pragma once
/// \file
/// Starts an agent and connects to it.

#include "protocol.hpp"

#include <sys/mman.h>

#include <memory>
#include <string>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::agent {

struct unmap_page {
  // Not destroyed first: nothing in it owns anything, and the agent may be writing to it.
  void operator()(shared_page* page) const noexcept { ::munmap(page, sizeof(shared_page)); }
};

/// One agent, from the host's side. Closing it tells the agent to resume everything and end.
struct connection {
  std::unique_ptr<shared_page, unmap_page> page;
  unique_fd control;
  unique_fd agent_doorbell;
  unique_fd host_doorbell;
  unique_fd pidfd;     ///< Of the agent, which is no child of ours.
  unique_fd guardian;  ///< Of its guardian; none: the kernel resumes what the agent suspended.
};

/// Whether everybody may execute a program that has capabilities by its file, an agent with which
/// he could suspend anybody's queues.
bool is_everybodys(const std::string& program);

/// Whether the program has capabilities by its file that the kernel ignores when this process
/// starts it: no_new_privs is set.
bool are_capabilities_ignored(const std::string& program);

/// Starts an agent and waits until it is ready or refuses. Blocks: a few milliseconds, 5 s at most.
/// Any thread. \return the agent's error; `say` gets its sentence.
result<connection> launch(const std::string& program, const agent_options& options);

/// Has an agent resume what one left that was killed together with its guardian. Blocks: some
/// milliseconds, 12 s at most.
void rescue(const std::string& program, const std::string& owner_lock);

/// Receives one note without blocking. \return errc::lost when the other end is closed, EAGAIN when
/// there is none. `pidfd` takes the descriptor that came along.
result<void> receive(int control, note& into, unique_fd& pidfd);

}  // namespace sluice::agent
