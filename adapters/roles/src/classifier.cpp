#include "sluice/roles/classifier.hpp"

#include "pattern.hpp"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "sluice/os/proc.hpp"
#include "sluice/roles/gangs.hpp"

namespace sluice::roles {

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

void set(role_reason& why, role_rule rule, role what, std::string detail = {}) {
  why.rule = rule;
  why.says = what;
  why.detail = std::move(detail);
}

std::string range_text(const ring_rule& rule) {
  std::ostringstream text;
  text << std::hex << "0x" << rule.first << " to 0x" << rule.last;
  return text.str();
}

}  // namespace

std::set<std::string, std::less<>> classifier::wanted_variables() const {
  auto wanted = variables_of_gangs(rules_.gangs);
  wanted.emplace(tag_variable);
  wanted.emplace(priority_variable);
  for (const environment_rule& each : rules_.by_environment) wanted.insert(each.variable);
  return wanted;
}

role_reason classifier::reason_of(const process_traits& of, std::span<const queue_traits> queues,
                                  bool all_queues_known) const {
  role_reason why;
  why.hidden_environment = of.hidden_environment;
  if (std::ranges::find(rules_.never_touch, of.who) != rules_.never_touch.end()) {
    why.rule = role_rule::never_touch;
    return why;
  }
  const bool by_word = said(of, why);
  if (!by_word && !claimed(of, why) && !mapped(of, why))
    (void)voted(of, queues, all_queues_known, why);
  why.is = why.says;
  if (why.says != role::offline) return why;
  if (of.who.pid == ::getpid()) {
    why.bar = role_bar::own;
  } else if (const auto found = stored_.released.find(of.who); found != stored_.released.end()) {
    why.bar = role_bar::released;
    why.released_until = found->second;
  } else if (!by_word && of.hidden_environment &&
             (granted(of, role::online) || rules_.gangs.across_nodes != gang_engine::none)) {
    // Its environment may say that it is online, or in a gang on several nodes.
    why.bar = role_bar::hidden_environment;
  }
  if (why.bar != role_bar::none) why.is = role::unmatched;
  return why;
}

bool classifier::may_claim(const process_traits& of) const {
  return granted(of, role::online) || granted(of, role::offline);
}

std::uint8_t classifier::priority_of(const process_traits& of) {
  return static_cast<std::uint8_t>(priority_in(of).value_or(0));
}

bool classifier::said(const process_traits& of, role_reason& why) const {
  for (const auto& [map, rule] : {std::pair{&rules_.by_process, role_rule::said},
                                  std::pair{&stored_.by_process, role_rule::store}})
    if (const auto found = map->find(of.who); found != map->end()) {
      set(why, rule, found->second);
      return true;
    }
  return false;
}

bool classifier::claimed(const process_traits& of, role_reason& why) const {
  const auto counts = [&](role_rule rule, role what, auto&& words) {
    if (granted(of, what)) {
      set(why, rule, what, words());
      return true;
    }
    if (why.ignored.empty())
      why.ignored = words() + " is ignored: may_claim_" + std::string(to_string(what)) +
                    " in [roles] does not include this process";
    return false;
  };
  if (const std::string* const tag = value_of(of, tag_variable)) {
    const auto words = [&] { return std::string(tag_variable) + "=" + *tag; };
    if (*tag == "ONLINE_AI" && counts(role_rule::tag, role::online, words)) return true;
    if (*tag == "OFFLINE_AI" && counts(role_rule::tag, role::offline, words)) return true;
    if (*tag != "ONLINE_AI" && *tag != "OFFLINE_AI")
      why.ignored = std::string(tag_variable) + " is ignored: expected ONLINE_AI or OFFLINE_AI";
  }
  if (const auto number = priority_in(of)) {
    const role what = *number >= rules_.online_priority ? role::online : role::offline;
    const auto words = [&] {
      return std::string(priority_variable) + "=" + std::to_string(*number);
    };
    if (counts(role_rule::priority, what, words)) return true;
  }
  for (const environment_rule& each : rules_.by_environment) {
    const std::string* const value = value_of(of, each.variable);
    if (value != nullptr && matches(each.value, *value) &&
        counts(role_rule::environment, each.what, [&] { return each.variable + "=" + each.value; }))
      return true;
  }
  return false;
}

bool classifier::mapped(const process_traits& of, role_reason& why) const {
  if (const auto found = rules_.by_pid.find(of.who); found != rules_.by_pid.end()) {
    set(why, role_rule::pid, found->second);
    return true;
  }
  for (const auto& [rules, rule] : {std::pair{&stored_.by_cgroup, role_rule::store_cgroup},
                                    std::pair{&rules_.by_cgroup, role_rule::cgroup}})
    for (const cgroup_rule& each : *rules)
      if (matches_cgroup(each.cgroup, of.cgroups)) {
        set(why, rule, each.what, each.cgroup);
        return true;
      }
  return false;
}

bool classifier::voted(const process_traits& of, std::span<const queue_traits> queues,
                       bool all_queues_known, role_reason& why) const {
  role_reason offline;
  for (const queue_traits& queue : queues) {
    role_reason by;
    const auto ring = std::ranges::find_if(rules_.by_ring, [&](const ring_rule& each) {
      return each.first <= queue.ring_base && queue.ring_base <= each.last;
    });
    if (ring != rules_.by_ring.end())
      set(by, role_rule::ring, ring->what, range_text(*ring));
    else if (rules_.queue_priority && queue.priority && *queue.priority >= rules_.online_priority)
      set(by, role_rule::queue_priority, role::online);
    if (by.says == role::unmatched || !granted(of, by.says)) continue;
    if (by.says == role::online) {
      set(why, by.rule, by.says, std::move(by.detail));
      return true;
    }
    offline = std::move(by);
  }
  // The one that is not known yet may be online.
  if (offline.rule == role_rule::none || !all_queues_known) return false;
  set(why, offline.rule, offline.says, std::move(offline.detail));
  return true;
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

bool may_be(const classification_rules& rules, role what, const process_identity& who,
            uid_t connected_as) {
  const claim_grant& grant =
      what == role::online ? rules.may_claim_online : rules.may_claim_offline;
  if (grants(grant, who.pid, connected_as)) return true;
  process_traits of{.who = who};
  if (!read_changing_traits(of)) return false;
  classifier by{rules};
  by.set_roles({});  // Those of its clients.
  if (!rules.role_store.empty()) {
    std::string why;  // Discovery logs it.
    if (auto stored = role_store{rules.role_store}.read(why)) by.set_stored(std::move(*stored));
  }
  return by.role_of(of, {}, false) == what;  // Without its environment: no claim counts.
}

}  // namespace sluice::roles
