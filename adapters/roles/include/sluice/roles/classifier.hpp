#pragma once
/// \file
/// The rules applied: a process's traits in, its role out. Reads nothing.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sluice/role.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/process_traits.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::roles {

/// Of AMD_QUEUE_PRIORITY.
inline constexpr unsigned highest_priority = 15;

bool grants(const claim_grant& grant, const process_traits& to);

/// As load_classification(), without the environment's say.
result<classification_rules> read_classification(const std::string& path,
                                                 std::vector<std::string>& problems);

/// Threading: one thread.
class classifier {
 public:
  explicit classifier(classification_rules rules) : rules_(std::move(rules)) {}

  const classification_rules& rules() const noexcept { return rules_; }
  /// Replaces classification_rules::by_process.
  void set_roles(std::map<process_identity, role> said) { rules_.by_process = std::move(said); }
  void set_stored(stored_roles stored) { stored_ = std::move(stored); }

  /// Whether queues count: without that `queues` need not be known.
  bool wants_queues() const noexcept { return rules_.queue_priority || !rules_.by_ring.empty(); }
  /// The variables that the rules and gangs look at.
  std::set<std::string, std::less<>> wanted_variables() const;

  /// \param queues the compute queues as far as they are known, and whether these are all.
  role_reason reason_of(const process_traits& of, std::span<const queue_traits> queues,
                        bool all_queues_known) const;
  role role_of(const process_traits& of, std::span<const queue_traits> queues,
               bool all_queues_known) const {
    return reason_of(of, queues, all_queues_known).is;
  }
  /// Whether its word counts at all, for one role or the other.
  bool may_claim(const process_traits& of) const;
  /// AMD_QUEUE_PRIORITY, 0 to 15; 0 where it says nothing else. It orders offline groups among
  /// themselves, so nobody need be granted it.
  static std::uint8_t priority_of(const process_traits& of);

 private:
  // Each: whether its rule applies; then the reason's rule, says and detail are set.
  bool said(const process_traits& of, role_reason& why) const;
  bool claimed(const process_traits& of, role_reason& why) const;
  bool mapped(const process_traits& of, role_reason& why) const;
  bool voted(const process_traits& of, std::span<const queue_traits> queues, bool all_queues_known,
             role_reason& why) const;
  bool granted(const process_traits& to, role what) const;

  classification_rules rules_;
  stored_roles stored_;
};

}  // namespace sluice::roles
