#pragma once
/// \file
/// What the driver is told of slots: which share of each GPU's offline queues may have.

#include "journalist.hpp"
#include "table.hpp"

#include <cstdint>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Brings what the driver keeps to what the policy wants, as the reconciler does for queues: one
/// command per GPU at a time, the last wish only. Nothing is kept on a GPU whose breaker is open,
/// and nothing after forget(). Sets gpu_view::can_reserve, by asking the driver for each GPU once
/// the backend acts by batch commands: without them no driver takes a reservation.
///
/// Threading: reactor thread. Cost: O(GPUs) with batch commands, else nothing.
class reservations {
 public:
  reservations(const scheduler_config& config, table& world, backend& driver, journalist& journal)
      : config_(config), table_(world), backend_(driver), journal_(journal) {}

  /// As backend_listener::acts_by(): no reservation stands.
  void acts_by(const capabilities& what);
  /// The acting side died: no reservation stands, and none is made until acts_by().
  void lost() { begin(false); }
  /// \return whether the hardware failed.
  bool answered(gpu_id gpu, double share, error_code error, time_point now);

  /// The policy's wish, which stands until forget(); not a number takes it back.
  void want(gpu_id gpu, double share);
  void forget();
  /// Sends what differs. Before the backend's flush().
  void work(time_point now);
  /// Whether the driver is not known to limit anybody.
  bool none() const noexcept;
  time_point next() const noexcept { return next_; }

 private:
  struct entry {
    double wanted = 1;
    double asked = 1;   ///< Last.
    double stands = 1;  ///< As the driver answered.
    bool in_flight = false;
    bool known = false;   ///< It answered whether it can.
    bool failed = false;  ///< When last asked; said.
    std::uint8_t failures = 0;
    time_point again{};  ///< Not asked before.
  };

  void begin(bool offered);
  void set_can(entry& one, bool can);
  std::size_t index_of(const entry& one) const noexcept {
    return static_cast<std::size_t>(&one - entries_.data());
  }

  const scheduler_config& config_;
  table& table_;
  backend& backend_;
  journalist& journal_;
  bool offered_ = false;
  std::vector<entry> entries_;  ///< By gpu::index.
  time_point next_ = never;
};

}  // namespace sluice::core
