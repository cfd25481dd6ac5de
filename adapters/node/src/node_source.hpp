#pragma once
/// \file
/// What a node does on its scheduler's loop: it takes its place, and says that it lives.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/source.hpp"
#include "sluice/time.hpp"

namespace sluice {

struct node_source_options {
  /// Sockets that are this node's from now on: what a former owner left there goes. Its forked
  /// children may keep one alive, and a script may take one as the sign of a daemon.
  std::vector<std::string> sockets;
  std::function<void()> alive;  ///< May be empty.
  duration alive_every{};
};

/// Threading: as any source's; calls `alive` on the reactor thread.
[[nodiscard]] std::unique_ptr<source> make_node_source(node_source_options options);

}  // namespace sluice
