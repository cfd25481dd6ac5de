#pragma once
/// \file
/// The readers of the journal that write down and show what happens: jobs' accounts, metrics, a
/// timeline (adapters/observe).

#include "observer.hpp"

#include <functional>

#include "sluice/node.hpp"
#include "sluice/observe/span_targets.hpp"
#include "sluice/os/message_sink.hpp"

namespace sluice {

struct observing {
  observing_options what{};
  bool enforces = false;
  std::function<bool()> paused{};
  std::function<bool()> simulated{};    ///< Whether the device is, known while something is heard.
  std::function<bool()> driver_gone{};  ///< As discovery::driver_gone().
  std::function<bool()> without_gangs{};             ///< As node_facts::without_gangs.
  std::function<observe::span_targets()> targets{};  ///< Those in force.
  message_sink warn{};
  message_sink tell{};
};

/// Those that are asked for. \param from outlives the observer.
void add_readers(observer& to, observed_node& from, const observing& how);

}  // namespace sluice
