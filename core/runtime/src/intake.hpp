#pragma once
/// \file
/// Takes the observations of the sources into the table. A row exists as long as a source sees it;
/// what one source says is kept apart from what the others say.

#include "journalist.hpp"
#include "membership.hpp"
#include "table.hpp"

#include <cstdint>

#include "sluice/observation.hpp"
#include "sluice/role.hpp"

namespace sluice::core {

/// Threading: reactor thread.
/// Lifetime:  as the table's.
/// Cost:      an observation allocates for what is new. The end of a resync: O(queues).
class intake {
 public:
  intake(table& world, membership& members, journalist& journal) noexcept
      : table_(world), members_(members), journal_(journal) {}

  /// \param source its number, below backend_source.
  void observe(unsigned source, const observation& seen);

 private:
  void vote(process& which, std::uint32_t bit, role what);
  void forget(process& which, std::uint32_t bit);
  void forget(queue& which, std::uint32_t bit);
  void sweep(std::uint32_t bit);
  /// What the journal says of the process, where that is news.
  void tell(process& which);
  void tell_gone(process& which);

  table& table_;
  membership& members_;
  journalist& journal_;
};

}  // namespace sluice::core
