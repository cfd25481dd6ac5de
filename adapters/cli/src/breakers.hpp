#pragma once
/// \file
/// What the command says of open breakers. They are a scheduler's, which tells of them by the
/// store, or were opened by a `sluice suspend`.

#include <string>
#include <vector>

#include <boost/json/value.hpp>

#include "sluice/breaker_store.hpp"
#include "sluice/driver.hpp"
#include "sluice/node_view.hpp"

namespace sluice::cli {

/// Without those whose time is over.
void drop_over(stored_breakers& all);

/// "GPU 0 (gpu_id 51110)", or the gpu_id alone where the node has no such GPU.
std::string gpu_name(const node_view& node, gpu_id id);

/// "the driver reset it (GPU 0 of its hive), since ..., until ..."
std::string breaker_text(gpu_id gpu, const stored_breaker& which, const node_view& node);

/// An array of objects.
boost::json::value breakers_json(const stored_breakers& all);

/// A sentence for each: what it means for processes that began before it opened, of which the
/// driver does not show whether their queues are alive.
std::vector<std::string> breaker_warnings(const node_view& node, const stored_breakers& all);

/// Where the daemon that acts on the driver keeps them.
breaker_store default_breaker_store(const driver& of);

/// What `queues` and `suspend` read: none, after a complaint, where the store cannot be read.
stored_breakers open_breakers(const driver& of);

}  // namespace sluice::cli
