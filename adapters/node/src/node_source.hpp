#pragma once
/// \file
/// What a node does on its scheduler's loop: it takes its place, and says that it lives.

#include <functional>
#include <memory>
#include <string>

#include "sluice/source.hpp"
#include "sluice/time.hpp"

namespace sluice {

struct node_source_options {
  /// A socket that is this node's from now on: what a former owner left there goes. Its forked
  /// children may keep it alive. Empty: none.
  std::string socket;
  std::function<void()> alive;  ///< May be empty.
  duration alive_every{};
};

/// Threading: as any source's; calls `alive` on the reactor thread.
[[nodiscard]] std::unique_ptr<source> make_node_source(node_source_options options);

}  // namespace sluice
