#include "sluice/roles/role_reason.hpp"

#include <chrono>
#include <ctime>

namespace sluice::roles {

namespace {

/// "12:00:01" here.
std::string clock_text(boot_time at) {
  const auto wall = std::chrono::system_clock::now() + (at - boot_time_now());
  const std::time_t seconds = std::chrono::system_clock::to_time_t(wall);
  std::tm parts{};
  std::string text(8, '\0');
  if (::localtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size() + 1, "%H:%M:%S", &parts) != text.size())
    return "?";
  return text;
}

std::string rule_text(const role_reason& value) {
  switch (value.rule) {
    case role_rule::none: break;
    case role_rule::never_touch: return "excluded by the scheduler's program (never_touch)";
    case role_rule::said: return "its client or the scheduler's program";
    case role_rule::store: return "'sluice role set'";
    case role_rule::store_cgroup: return "'sluice role set' for cgroup " + value.detail;
    case role_rule::pid: return "[roles] pids";
    case role_rule::environment: return "[roles] environment, " + value.detail;
    case role_rule::cgroup: return "[roles] cgroups, " + value.detail;
    case role_rule::ring: return "[roles] rings, " + value.detail;
    case role_rule::queue_priority: return "the priority of its queues ([roles] queue_priority)";
    case role_rule::tag:
    case role_rule::priority: return value.detail;
  }
  return {};
}

std::string bar_text(const role_reason& value) {
  switch (value.bar) {
    case role_bar::none: break;
    case role_bar::own: return ", but this program does not suspend itself";
    case role_bar::released:
      return ", but released by 'sluice release' until " + clock_text(value.released_until);
    case role_bar::hidden_environment:
      return ", but sluice cannot read its environment, which may claim the role online or name a "
             "gang on several nodes";
    case role_bar::gang_incomplete:
      return ", but its gang is not complete on this node (" + std::to_string(value.ranks_seen) +
             " of " + std::to_string(value.ranks) + " ranks)";
    case role_bar::gang_beyond:
      return ", but its gang spans several nodes (SLURM_NNODES or SLURM_JOB_NUM_NODES)";
  }
  return {};
}

}  // namespace

std::string_view to_string(role_rule value) noexcept {
  switch (value) {
    case role_rule::none: break;
    case role_rule::never_touch: return "never_touch";
    case role_rule::said: return "client";
    case role_rule::store: return "store";
    case role_rule::tag: return "tag";
    case role_rule::priority: return "priority";
    case role_rule::environment: return "environment";
    case role_rule::pid: return "pid";
    case role_rule::store_cgroup: return "store_cgroup";
    case role_rule::cgroup: return "cgroup";
    case role_rule::ring: return "ring";
    case role_rule::queue_priority: return "queue_priority";
  }
  return "none";
}

std::string_view to_string(role_bar value) noexcept {
  switch (value) {
    case role_bar::none: break;
    case role_bar::own: return "own";
    case role_bar::released: return "released";
    case role_bar::hidden_environment: return "hidden_environment";
    case role_bar::gang_incomplete: return "gang_incomplete";
    case role_bar::gang_beyond: return "gang_beyond";
  }
  return "none";
}

std::string to_text(const role_reason& value) {
  if (value.rule == role_rule::never_touch) return rule_text(value);
  if (value.rule == role_rule::none) {
    std::string text = "no rule and no client assigns a role to it";
    if (!value.ignored.empty()) return text + " (" + value.ignored + ")";
    if (value.hidden_environment) text += " (sluice cannot read its environment)";
    return text;
  }
  return std::string(to_string(value.says)) + " by " + rule_text(value) + bar_text(value);
}

}  // namespace sluice::roles
