#pragma once
/// \file
/// Which processes are suspended as one, and which of those gangs reach beyond the node.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "sluice/role.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/process_traits.hpp"
#include "sluice/roles/role_reason.hpp"

namespace sluice::roles {

std::set<std::string, std::less<>> variables_of_gangs(const gang_rules& rules);

/// What a process's own traits say of its gang.
struct gang_membership {
  std::string name{};  ///< The same for all members and for nobody else; empty: no gang.
  bool whole = false;  ///< All members count, whatever their roles.
  bool far = false;    ///< Its environment says that there are members elsewhere.
  std::uint64_t rank = 0;
  std::uint64_t size = 0;  ///< Ranks in all; 0: not numbered.
  /// Of a gang whose nodes agree on holds (gang_rules::across_nodes), else 0. The key is the same
  /// on all of them.
  std::uint32_t nodes = 0;
  std::uint64_t key_across = 0;

  friend bool operator==(const gang_membership&, const gang_membership&) = default;
};
gang_membership gang_of(const gang_rules& rules, const process_traits& process);

/// A Slurm job, as gang_membership::key_across.
struct slurm_job {
  std::uint32_t user = 0;
  std::uint32_t number = 0;

  constexpr std::uint64_t key() const noexcept { return std::uint64_t{user} << 32 | number; }
  static constexpr slurm_job of(std::uint64_t key) noexcept {
    return {static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key)};
  }
};

/// Gives gangs their keys. One look at the node after another: begin(), see() for every process,
/// then settle() for every process.
///
/// Threading: one thread.
class gang_book {
 public:
  explicit gang_book(bool allow_partial) : allow_partial_(allow_partial) {}

  struct settled {
    role what = role::unmatched;
    std::uint64_t key = 0;
    std::uint32_t nodes = 0;  ///< 2 or more: the key is gang_membership::key_across.

    friend bool operator==(const settled&, const settled&) = default;
  };

  /// As the constructor's, from the next look on.
  void allow_partial(bool allowed) noexcept { allow_partial_ = allowed; }

  void begin();
  void see(const gang_membership& member);
  /// \param what its role without regard to the gang.
  settled settle(const gang_membership& member, role what);
  /// The same, and puts the role and what the gang keeps from it into the reason.
  settled settle(const gang_membership& member, role_reason& why);

 private:
  struct gang {
    std::set<std::uint64_t> ranks{};
    bool seen = false;
    bool far = false;
    std::uint64_t key = 0;          ///< Of whole gangs; else of the online members.
    std::uint64_t offline_key = 0;  ///< Of the offline ones, where these are a gang of their own.
  };

  std::uint64_t key_of(std::uint64_t& place) {
    if (place == 0) place = ++last_key_;
    return place;
  }

  bool allow_partial_;
  std::map<std::string, gang> gangs_;
  // Never given twice. Keys of gangs across nodes begin with a user, which is never so high.
  std::uint64_t last_key_ = 0xffff'ffff'0000'0000;
};

}  // namespace sluice::roles
