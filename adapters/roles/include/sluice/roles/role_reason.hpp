#pragma once
/// \file
/// Why a process has its role, or has none: for people who ask.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "sluice/os/process_identity.hpp"
#include "sluice/role.hpp"
#include "sluice/roles/role_store.hpp"

#pragma GCC visibility push(default)
namespace sluice::roles {

/// The rule that applied: see classification_rules.
enum class role_rule : std::uint8_t {
  none,
  never_touch,
  said,  ///< set_role(): its client said it; or classification_rules::by_process.
  store,
  tag,       ///< AMD_QUEUE_TAG.
  priority,  ///< AMD_QUEUE_PRIORITY.
  environment,
  pid,
  store_cgroup,
  cgroup,
  ring,
  queue_priority,
};
std::string_view to_string(role_rule value) noexcept;

/// Why a process that the rule says is offline is unmatched all the same.
enum class role_bar : std::uint8_t {
  none,
  own,                 ///< It is the program that asks.
  released,            ///< See stored_roles::released.
  hidden_environment,  ///< It might say there that it is online, or in a gang on several nodes.
  gang_incomplete,     ///< Not all ranks are among the processes seen on this node.
  gang_beyond,         ///< Its environment says that its gang is on several nodes.
};
std::string_view to_string(role_bar value) noexcept;

struct role_reason {
  role is = role::unmatched;
  role_rule rule = role_rule::none;
  role says = role::unmatched;  ///< The rule.
  role_bar bar = role_bar::none;
  bool hidden_environment = false;  ///< It may not be read.
  std::string detail{};             ///< Of the rule, as the configuration or the variable has it.
  std::string ignored{};            ///< A claim that does not count, and why; empty: none.
  boot_time released_until{};
  std::uint64_t ranks_seen = 0;  ///< gang_incomplete.
  std::uint64_t ranks = 0;

  friend bool operator==(const role_reason&, const role_reason&) = default;
};
/// "offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang is not complete on this node (1 of 2 ranks)".
/// One line, without an end; times of day are this machine's.
std::string to_text(const role_reason& value);

using role_reasons = std::map<process_identity, role_reason>;

}  // namespace sluice::roles
#pragma GCC visibility pop
