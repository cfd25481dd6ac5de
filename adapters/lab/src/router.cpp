#include "router.hpp"

#include <tuple>

namespace sluice::lab {

std::size_t router::choose() {
  const auto rank = [this](const server_state& of) {
    const bool asks = how_.sees_offline();
    const bool full = asks && of.requests >= how_.room;
    const std::uint32_t groups = how_.by == routing::suspended_first ? of.running : of.offline;
    return std::tuple(full, asks && !full ? groups : 0, of.requests);
  };
  std::size_t best = next_;
  if (how_.by != routing::round_robin) {
    for (std::size_t i = 1; i < known_.size(); ++i) {
      const std::size_t other = (next_ + i) % known_.size();
      if (rank(known_[other]) < rank(known_[best])) best = other;
    }
  }
  next_ = (best + 1) % known_.size();
  ++known_[best].requests;
  return best;
}

}  // namespace sluice::lab
