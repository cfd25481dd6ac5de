#pragma once
/// \file
/// The router in front of a fleet: which server gets a request, by what it can know of each.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::lab {

enum class routing : std::uint8_t {
  round_robin,      ///< The next one.
  least_loaded,     ///< The fewest requests.
  least_offline,    ///< Of those with room, the fewest offline groups on the GPU.
  suspended_first,  ///< Of those with room, the fewest offline groups that run on the GPU.
};

struct router_spec {
  std::string name;  ///< As it was given.
  routing by = routing::round_robin;
  /// Requests of a server are read so often, and it counts what it has sent since; zero: it counts
  /// what is completed, too.
  duration load_delay{};
  /// Offline work is read so often; zero: it knows the moment.
  duration delay{};
  std::uint32_t room = 1;  ///< A server with fewer requests than that has room.

  /// Whether it asks which offline work a GPU has.
  bool sees_offline() const noexcept {
    return by == routing::least_offline || by == routing::suspended_first;
  }
};

/// What can be read of a server and its GPU.
struct server_state {
  std::uint32_t requests = 0;  ///< Arrived and not completed.
  std::uint32_t offline = 0;   ///< Groups of offline processes on its GPU...
  std::uint32_t running = 0;   ///< ...and those of them that are not suspended.
};

/// Where no server has room, the fewest requests decide; of equals, the next in turn.
///
/// Threading: one thread at a time. Cost: choose() is linear in the servers.
class router {
 public:
  /// \param servers at least one.
  router(const router_spec& how, std::size_t servers) : how_(how), known_(servers) {}
  void read_load(std::size_t server, const server_state& now) {
    known_[server].requests = now.requests;
  }
  void read_offline(std::size_t server, const server_state& now) {
    known_[server].offline = now.offline;
    known_[server].running = now.running;
  }
  /// The server that gets the next request.
  std::size_t choose();

 private:
  const router_spec how_;
  std::vector<server_state> known_;  ///< As read, and with what was sent there since.
  std::size_t next_ = 0;
};

}  // namespace sluice::lab
