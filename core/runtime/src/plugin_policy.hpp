#pragma once
/// \file
/// A plugin's state as a policy: the C++ snapshot made flat, the flat answers made C++.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/plugin.h"
#include "sluice/policy.hpp"

namespace sluice::core {

/// Threading: as policy. Lifetime: keeps the library loaded.
/// Errors:    decide() throws std::runtime_error when the plugin's says that it failed.
/// Cost:      a turn costs its events and the node's GPUs on top of the plugin's; it allocates
///            while there are more of either than ever before.
class plugin_policy final : public policy {
 public:
  /// \param plugin with NULL for each member that the library's descriptor does not have.
  /// \param state  from the plugin's create(); destroyed with this.
  plugin_policy(const sluice_policy_plugin& plugin, void* state,
                std::shared_ptr<const void> library);
  ~plugin_policy() override { plugin_.destroy(state_); }
  plugin_policy(const plugin_policy&) = delete;
  plugin_policy& operator=(const plugin_policy&) = delete;

  std::string_view name() const noexcept override { return name_; }
  std::span<const span_kind> needs_marks() const noexcept override { return needs_; }
  void decide(const snapshot& seen, decision_sink& out) override;

 private:
  static std::int32_t find_group(const sluice_snapshot* self, std::uint64_t id,
                                 sluice_group* group);
  static std::int32_t find_client(const sluice_snapshot* self, std::uint64_t id,
                                  sluice_client* client);

  const std::shared_ptr<const void> library_;
  const sluice_policy_plugin plugin_;
  void* const state_;
  std::string name_;
  std::vector<span_kind> needs_;
  std::vector<sluice_event> events_;
  std::vector<sluice_gpu> gpus_;
};

/// A plugin's sentence: one line, whatever it is.
std::string one_line(std::string_view text);

}  // namespace sluice::core
