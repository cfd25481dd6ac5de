#pragma once
/// \file
/// One GPU node's scheduler, whole: discovery, breakers, agent and policy, in the program that owns
/// the node; in every other one that embeds it, whoever takes over when the owner is gone. What
/// the daemon (`sluice run`) is made of. To wire the parts otherwise, use sluice/scheduler.hpp.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "sluice/client.hpp"
#include "sluice/config.hpp"
#include "sluice/driver.hpp"
#include "sluice/node_files.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/standard_error.hpp"
#include "sluice/policy.hpp"
#include "sluice/reactor.hpp"
#include "sluice/recording.hpp"
#include "sluice/result.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class node_mode : std::uint8_t {
  observe,  ///< Discovers, decides, and counts what it would have done; attaches to nothing.
  enforce,
};

using policy_maker = std::function<std::unique_ptr<policy>()>;

struct named_policy {
  policy_maker make;
  std::string text;  ///< As a command line would name it, with every parameter.
};

/// What a reload changes.
struct node_settings {
  scheduler_config scheduler{};
  roles::classification_rules roles{};
  /// Called from any thread each time a policy is needed: when this program becomes the owner, and
  /// after a pause. It may take its time: no lock is held, and the loop turns meanwhile. Empty:
  /// make_fixed_timeslice() in node_options, the policy stays in change().
  policy_maker make_policy = nullptr;
  /// As named_policy::text, for who asks which one decides; empty: not known.
  std::string policy_text{};
};

/// What is written down and shown of what happens while this program owns the node. A thread of the
/// node's own does that, at no cost to the scheduler's but for its journal.
struct observing_options {
  static constexpr std::string_view jobs_to_log = "log";

  /// A file that gets a JSON line for each process when it ends (sluice/observe/job_record.hpp);
  /// jobs_to_log: `tell` hears them, of those that were suspended; empty: nobody.
  std::string jobs{};
  /// Where metrics are asked for: "unix:/PATH", "ADDRESS:PORT"; empty: nowhere.
  std::string metrics{};
  /// A file for node_exporter's textfile collector, written every 15 s; empty: none.
  std::string metrics_file{};
  /// A timeline for ui.perfetto.dev, written anew by each node, of 1 GiB at most; empty: none.
  std::string trace{};

  friend bool operator==(const observing_options&, const observing_options&) = default;
};

struct node_options {
  node_mode mode = node_mode::enforce;
  node_settings settings{};
  /// Whose GPUs they are. Never null.
  std::shared_ptr<const sluice::driver> driver{};
  node_files files{};
  /// The file of open breakers; empty: breaker_store::default_path(driver->device_key()).
  std::string breakers{};
  /// Whether clients of other processes are taken, at files.clients(), while this program is the
  /// owner. Which of them may say that they are online or offline: roles::may_be().
  bool clients = true;
  /// Whether whoever may open the socket files.control() is shown the node while this program is
  /// the owner, and root and this program's user may pause it there and switch its policy.
  bool control = true;
  /// Of files.clients(), whose mode is 0660; none: this process's.
  std::optional<gid_t> socket_group{};
  /// Of files.control(), likewise. Not the clients': who may connect sees everybody's processes,
  /// and root of a container may be root here.
  std::optional<gid_t> control_group{};
  /// Finds the policy that somebody names at the control socket (NAME[:KEY=VALUE,...]). On a thread
  /// of the node's own; may take its time. Where it fails, `message` gets one sentence. Empty: the
  /// policy cannot be switched.
  std::function<result<named_policy>(const std::string& text, std::string& message)> find_policy =
      nullptr;
  /// As scheduler_options::record; written anew each time this program becomes the owner. An empty
  /// `device` is filled in: "simulated", or the machine's name.
  record_options record{};
  observing_options observing{};
  /// As agent::agent_options.
  std::string agent_path{};
  std::optional<duration> cpu_latency{};
  /// Makes the loop that the scheduler runs on, each time this program becomes the owner. Empty: a
  /// loop and a thread of the node's own. For a host's io_context:
  /// `[&context] { return make_reactor(context); }` (sluice/asio.hpp).
  std::function<result<std::unique_ptr<reactor>>()> make_loop = nullptr;
  /// Called every `alive_every` for as long as the node's loop turns: for a watchdog. Of several
  /// threads, one at a time.
  std::function<void()> alive = nullptr;
  duration alive_every = std::chrono::seconds(1);
  /// What goes wrong, and what the node does. Any thread, also concurrently; must not block.
  message_sink warn = messages_to_stderr();
  message_sink tell = [](std::string_view sentence) {
    log_to_standard_error("sluice", "info", sentence);
  };
};

enum class node_state : std::uint8_t {
  idle,       ///< Not started.
  following,  ///< Another program owns the node.
  owning,
  stopped,
};

/// Owns the node, or follows whoever does.
///
/// The lock files.owner() says who owns it; in enforce its agent holds the lock, in observe this
/// process does (and children that it forks without exec, as long as they live). A follower looks
/// every 100 ms whether the lock is free and takes over then: within 200 ms, and the calls in
/// flight, of an owner's death. An owner whose agent died while somebody else took the lock
/// follows. All clients go over the socket, the owner's own included (connect()).
///
/// The files are those of the user who made them: a program of another user may follow, where it
/// may read the lock, and its clients count as far as they are granted a role, but it cannot own
/// the node, which `warn` hears once.
///
/// While files.disabled() exists, no policy decides and everything runs; processes stay known and
/// attached.
///
/// Threading: every call from any thread, but start(), stop() and destruction from one, and not
///            from inside the node's own calls. It has three threads of its own, which with a
///            hosted loop do no more than wait, make policies, take the node over and show it.
/// Lifetime:  destruction stops it. With a hosted loop destroy it before the host's io_context, and
///            while no thread runs that one or while others do.
/// Errors:    result<T>; nothing here throws.
class node {
 public:
  /// \param message on failure, one sentence.
  /// \return errc::bad_config for settings out of their range.
  [[nodiscard]] static result<std::unique_ptr<node>> create(node_options options,
                                                            std::string& message);
  virtual ~node() = default;
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  /// Becomes the owner, or a follower where there is one. Blocks for up to a few hundred
  /// milliseconds. \return why neither: nothing is started then, and `warn` has heard more.
  [[nodiscard]] virtual result<void> start() = 0;
  /// Everything is resumed; waits for that (with a hosted loop: while others run it). Idempotent.
  virtual void stop() = 0;

  /// A client of whoever owns the node, now and later: this program or another. It is the same
  /// object in both cases, and comes back to the next owner by itself, with what is in flight.
  /// \param with  its `socket` is the node's, whatever it says.
  /// \param error as client::connection::open().
  [[nodiscard]] virtual client::connection connect(client::options with,
                                                   std::error_code& error) const = 0;

  virtual node_state state() const noexcept = 0;
  /// Of whoever owns the node, as words for people; empty: nobody, or this program.
  virtual std::string owner() const = 0;
  /// Whether files.disabled() exists; also of a node that follows. False before start().
  virtual bool paused() const noexcept = 0;
  virtual node_mode mode() const noexcept = 0;
  /// Of this program's own scheduler: while it follows, of the one that ran last, zeros before
  /// there was one. Not the owner's, which its clients' status has some of.
  virtual std::unique_ptr<statistics> stats() const = 0;

  /// Other settings, all of them or none; processes, queues and holds stay known. A policy that was
  /// chosen at the control socket ends. What cannot change while a scheduler runs stays until the
  /// next start, which `warn` hears. Clients that the new roles would refuse are told so and lose
  /// theirs. Blocks on file operations where the role store is another one; the loop turns
  /// meanwhile. \param message on failure, one sentence; the old settings stay.
  [[nodiscard]] virtual result<void> change(node_settings next, std::string& message) = 0;

 protected:
  node() = default;
};

}  // namespace sluice
#pragma GCC visibility pop
