#pragma once
/// \file
/// Gangs on several nodes: lets sluice-gangs (adapters/fleet), which speaks with the other nodes,
/// take part in the scheduler's decisions.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/source.hpp"

namespace sluice {

struct gang_link_options {
  std::string socket{};                                  ///< Only for root and this user.
  std::function<void(std::string_view)> say = nullptr;   ///< Takes lines for a log: warnings.
  std::function<void(std::string_view)> tell = nullptr;  ///< News. May be empty.
  /// Is true while it runs and no program is connected. Written on the scheduler's thread. Outlives
  /// the source. May be null.
  std::atomic<bool>* alone = nullptr;
};

/// While no program is connected, no gang on several nodes is held. Of two that connect, the later
/// one is refused.
///
/// Threading: as any source's.
[[nodiscard]] std::unique_ptr<source> make_gang_link(gang_link_options options);

}  // namespace sluice
