#include "classifier.hpp"

#include "gangs.hpp"
#include "pattern.hpp"
#include "proc.hpp"

#include <unistd.h>

#include <algorithm>

namespace sluice::kfd {

namespace {

constexpr std::string_view tag_variable = "AMD_QUEUE_TAG";
constexpr std::string_view priority_variable = "AMD_QUEUE_PRIORITY";

const std::string* value_of(const process_traits& of, std::string_view variable) {
  const auto found = of.variables.find(variable);
  return found == of.variables.end() ? nullptr : &found->second;
}

std::optional<unsigned> priority_in(const process_traits& of) {
  const std::string* const text = value_of(of, priority_variable);
  if (text == nullptr) return {};
  const auto number = parse_number<unsigned>(*text);
  return number && *number <= highest_priority ? number : std::nullopt;
}

}  // namespace

std::set<std::string, std::less<>> classifier::wanted_variables() const {
  auto wanted = variables_of_gangs(rules_.gangs);
  wanted.emplace(tag_variable);
  wanted.emplace(priority_variable);
  for (const environment_rule& each : rules_.by_environment) wanted.insert(each.variable);
  return wanted;
}

role classifier::role_of(const process_traits& of, std::span<const queue_traits> queues,
                         bool all_queues_known) const {
  if (std::ranges::find(rules_.never_touch, of.who) != rules_.never_touch.end())
    return role::unmatched;
  std::optional<role> what = said(of);
  if (!what) {
    what = claimed(of);
    if (!what) what = mapped(of);
    if (!what) what = voted(of, queues, all_queues_known);
    // What it claims where nobody sees it may be that it is online.
    if (*what == role::offline && of.hidden_environment && granted(of, role::online))
      what = role::unmatched;
  }
  const bool spared = of.who.pid == ::getpid() || stored_.released.contains(of.who);
  return spared && *what == role::offline ? role::unmatched : *what;
}

bool classifier::may_claim(const process_traits& of) const {
  return granted(of, role::online) || granted(of, role::offline);
}

std::uint8_t classifier::priority_of(const process_traits& of) {
  return static_cast<std::uint8_t>(priority_in(of).value_or(0));
}

std::optional<role> classifier::said(const process_traits& of) const {
  for (const auto* const map : {&rules_.by_process, &stored_.by_process})
    if (const auto found = map->find(of.who); found != map->end()) return found->second;
  return {};
}

std::optional<role> classifier::claimed(const process_traits& of) const {
  if (const std::string* const tag = value_of(of, tag_variable)) {
    if (*tag == "ONLINE_AI" && granted(of, role::online)) return role::online;
    if (*tag == "OFFLINE_AI" && granted(of, role::offline)) return role::offline;
  }
  if (const auto number = priority_in(of)) {
    const role what = *number >= rules_.online_priority ? role::online : role::offline;
    if (granted(of, what)) return what;
  }
  for (const environment_rule& each : rules_.by_environment) {
    const std::string* const value = value_of(of, each.variable);
    if (value != nullptr && matches(each.value, *value) && granted(of, each.what)) return each.what;
  }
  return {};
}

std::optional<role> classifier::mapped(const process_traits& of) const {
  if (const auto found = rules_.by_pid.find(of.who); found != rules_.by_pid.end())
    return found->second;
  for (const auto* const map : {&stored_.by_cgroup, &rules_.by_cgroup})
    for (const cgroup_rule& each : *map)
      if (matches_cgroup(each.cgroup, of.cgroups)) return each.what;
  return {};
}

role classifier::voted(const process_traits& of, std::span<const queue_traits> queues,
                       bool all_queues_known) const {
  bool offline = false;
  for (const queue_traits& queue : queues) {
    role what = role::unmatched;
    const auto ring = std::ranges::find_if(rules_.by_ring, [&](const ring_rule& each) {
      return each.first <= queue.ring_base && queue.ring_base <= each.last;
    });
    if (ring != rules_.by_ring.end())
      what = ring->what;
    else if (rules_.queue_priority && queue.priority && *queue.priority >= rules_.online_priority)
      what = role::online;
    if (what == role::unmatched || !granted(of, what)) continue;
    if (what == role::online) return role::online;
    offline = true;
  }
  // The one that is not known yet may be online.
  return offline && all_queues_known ? role::offline : role::unmatched;
}

bool classifier::granted(const process_traits& to, role what) const {
  return grants(what == role::online ? rules_.may_claim_online : rules_.may_claim_offline, to);
}

bool grants(const claim_grant& grant, pid_t pid, uid_t connected_as) {
  process_traits of{.who = {pid, 0}};
  (void)read_changing_traits(of);
  if (of.as && of.as->user != connected_as) of.as.reset();
  return grants(grant, of);
}

bool grants(const claim_grant& grant, const process_traits& to) {
  if (grant.everyone) return true;
  if (to.as) {
    if (std::ranges::find(grant.users, to.as->user) != grant.users.end()) return true;
    if (std::ranges::find_first_of(to.as->groups, grant.groups) != to.as->groups.end()) return true;
  }
  return std::ranges::any_of(grant.cgroups, [&](const std::string& pattern) {
    return matches_cgroup(pattern, to.cgroups);
  });
}

}  // namespace sluice::kfd
