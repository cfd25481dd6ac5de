#pragma once
/// \file
/// The scheduler of a node out of its parts: discovery, breakers, clients, the agent.

#include <functional>
#include <memory>

#include "sluice/client_server.hpp"
#include "sluice/discovery.hpp"
#include "sluice/journal.hpp"
#include "sluice/node.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/scheduler.hpp"

namespace sluice {

/// What the parts ask of the node, on the scheduler's thread.
struct node_wishes {
  /// Whether a client may say that of itself.
  std::function<bool(const client::peer& who, role what)> grants{};
  /// As agent::agent_options::owned_by_another.
  std::function<void()> owned_by_another{};
  /// As gang_link_options::alone.
  std::atomic<bool>* link_alone = nullptr;
  message_sink say{};
};

/// A scheduler, and those of its sources that the node speaks to.
struct node_scheduler {
  std::unique_ptr<scheduler> whole{};
  discovery* roles = nullptr;
  client::server* clients = nullptr;  ///< Null: it takes none.
};

/// Not started.
/// \param settings its policy is made here; none: the node is paused.
/// \param finder  has looked ahead already; null: one is made.
/// \param journal outlives it.
[[nodiscard]] result<node_scheduler> make_node_scheduler(const node_options& options,
                                                         const node_settings& settings,
                                                         std::unique_ptr<discovery> finder,
                                                         journal_sink& journal, node_wishes wishes);

}  // namespace sluice
