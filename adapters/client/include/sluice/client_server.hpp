#pragma once
/// \file
/// The source that lets other processes register as clients, over a Unix socket. README.md beside
/// it says what is exchanged, what is bounded and what is not trusted.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/role.hpp"
#include "sluice/source.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::client {

/// The process at the other end, as the kernel says; only the name is its own word.
struct peer {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  ///< /proc/PID/stat field 22; with the pid, its identity.
  uid_t user = 0;
  gid_t group = 0;
  std::string name;  ///< Without control characters.
};

/// Threading: what it calls, it calls on the reactor thread, outside of turns; none may block.
struct server_options {
  /// Its directory is made where it is missing (0755). A socket that a dead server left is
  /// replaced.
  std::string socket = "/run/sluice/clients.sock";
  mode_t mode = 0660;
  std::optional<gid_t> group{};  ///< Of the socket; none: this process's.
  /// Further ones are refused. 1 to 4096.
  std::size_t most_clients = 256;
  /// Of one process. 1 to 4096.
  std::size_t most_of_a_process = 16;
  /// Of all processes of one user, so that none keeps the others out. 1 to 4096.
  std::size_t most_of_a_user = 192;
  /// Who has not said what it is by then is hung up on.
  duration hello_limit = std::chrono::seconds(1);
  /// Whether the process may have that role (online or offline). Empty: none may have any. May read
  /// /proc of that process, for it is known to live until after the call.
  std::function<bool(const peer&, sluice::role)> allow;
  /// The process has the role from now on, and no longer: once per process, however many clients it
  /// has; in pairs. Offline clients are registered, but nothing that they begin counts.
  std::function<void(const peer&, sluice::role)> registered;
  std::function<void(const peer&, sluice::role)> withdrawn;
  /// Takes lines for a log: what goes wrong, and whom it refused a role, once per process. Empty:
  /// standard error.
  std::function<void(std::string_view)> say;
  /// Takes lines for a log: which processes register, and which are gone with something in flight.
  /// Empty: nobody is told.
  std::function<void(std::string_view)> tell{};
};

/// What make_server() makes.
class server : public source {
 public:
  /// What `allow` says may have changed: it is asked again, on the reactor thread and soon, of
  /// every client, and those that it would refuse now are told so and hung up on. Cost there: an
  /// `allow` for each.
  ///
  /// Threading: any thread. Never blocks.
  virtual void rules_changed() noexcept = 0;
};

/// A client counts as gone, and all it had in flight as ended, when its socket hangs up, when its
/// process ends, or when the kernel writes its core, which can take seconds in which nobody ends
/// anything: looked at every 20 ms while it has something in flight. Where more than 16 clients
/// have, only those are looked at that wrote nothing in their page since, 16 at a time, in turn.
///
/// start() fails with errc::already_owned when another server answers at the socket, with
/// errc::not_supported when the host takes no clients, else with the system's error; each with a
/// sentence to `say`.
[[nodiscard]] std::unique_ptr<server> make_server(server_options options);

}  // namespace sluice::client
#pragma GCC visibility pop
