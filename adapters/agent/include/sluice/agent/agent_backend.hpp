#pragma once
/// \file
/// The default backend: everything that traces and suspends happens in a process of its own, the
/// agent, which this backend starts, watches and replaces. Prefer it to the in-process backend
/// wherever the host program does anything else.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sluice/acting.hpp"
#include "sluice/backend.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

struct agent_options {
  /// The driver that the agent acts on: driver::acting().
  acting_choice driver{};
  /// The program sluice-agent. Empty: SLUICE_AGENT from the environment, else beside this program's
  /// own file, else in bin of the prefix that libsluice.so lies in, where that holds this code,
  /// else in the prefix that the build was configured for, else in PATH.
  std::string agent_path{};
  /// Who holds this lock owns the node. Empty: take none (tests with devices of their own).
  std::string owner_lock = default_owner_lock;
  /// Whether it acts for a sluice::node: the lock then says so, for `sluice pause`.
  bool of_a_node = false;
  /// A configuration file whose table [roles] the agent itself applies to each process before it
  /// traces it, and again when that runs another program: what it does not call offline by the
  /// process's pid, environment, cgroup or by the role store is refused (errc::not_managed, with a
  /// sentence), whatever the scheduler says. Empty: the agent attaches to what it is told to and
  /// the kernel lets it trace. An agent with file capabilities takes /etc/sluice/sluice.toml in any
  /// case, or where there is none the defaults.
  std::string roles{};
  /// How long the agent goes on without tick() before it resumes everything and ends, and how long
  /// tick() goes on without the agent's heartbeat before it kills the agent. 50 ms to 60 s.
  duration lease = std::chrono::milliseconds{500};
  /// While a process is attached, processors do not sleep so deeply that they take longer than this
  /// to wake up: sluice reacts sooner, and processors that have nothing to do take more power. 0 to
  /// 1 s, in whole microseconds. Needs the right to write /dev/cpu_dma_latency. Empty: as the
  /// system has it.
  std::optional<duration> cpu_latency{};
  message_sink say = messages_to_stderr();
  /// Called on the reactor thread when an agent died and none can replace it, because another
  /// program owns the node by now. The backend goes on trying.
  std::function<void()> owned_by_another = nullptr;
};

/// The agent's program as agent_options::agent_path (here `option`) says. \return an empty string
/// when there is none; `tried` then lists the places. Blocks on file operations. Reads the
/// environment: not beside a thread that changes it.
[[nodiscard]] std::string find_agent(const std::string& option, std::string& tried);

/// Whatever happens to either process, everything runs again within the lease plus 200 ms plus the
/// driver calls in flight (each at most the driver's own limit, 9 s). Where one has to find out
/// that the other is silent, plus the longest time for which it was held up itself since the other
/// last said that it lives: once, so that nobody is taken for dead after both stood still. Where
/// the agent is stopped and its host dies or hangs for good, nobody is left to find out: what it
/// holds stands still until the agent goes on or is killed.
///
/// - The host exits, is killed, is stopped, hangs, or dumps core: the agent resumes everything and
///   ends.
/// - The agent ends or is killed: the driver resumes everything. lost() is called, a new agent is
///   started after a pause that grows from 100 ms to 5 s, and restored() follows.
/// - The agent hangs or is stopped: it is killed, and only it.
/// - With a driver whose holds outlive the agent (acting_driver::outlives_agent()): when the agent
///   dies, its child, the guardian, lets go of them, some milliseconds after lost() perhaps. When
///   the guardian dies the agent ends, as above. When both die the next agent does it, which is
///   started at once; without an owner lock there is no record, and they stay held.
/// - The driver refuses to resume a target and to end its session: the agent ends, as above.
/// - Either side finds what cannot be in the memory that they share: it takes the other for gone.
///
/// The host may call waitpid(-1), ignore SIGCHLD and fork: the agent is not its child (a
/// short-lived one, at each start, is). tick() must be called when it asks to be.
///
/// Threading: the backend's (see sluice/backend.hpp). `say` is called on the reactor thread and,
///            while an agent is being replaced, on the thread that starts it.
/// Lifetime:  destruction stops the agent, which resumes everything.
/// Errors:    start() fails with errc::already_owned when another scheduler owns the node; `say`
///            names it.
/// Cost:      submit() is a copy into shared memory, flush() one eventfd write.
std::unique_ptr<backend> make_agent_backend(agent_options options = {});

}  // namespace sluice::agent
#pragma GCC visibility pop
