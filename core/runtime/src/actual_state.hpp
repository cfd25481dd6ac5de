#pragma once
/// \file
/// The actual state of processes, queues and GPUs, as the backend and the reconciler's commands
/// make it known. holds.hpp decides what is wanted of them.

#include "membership.hpp"
#include "table.hpp"

#include <cstddef>
#include <cstdint>

#include "sluice/backend.hpp"
#include "sluice/ids.hpp"

namespace sluice::core {

/// Threading: reactor thread.
/// Lifetime:  as the table's.
/// Cost:      a queue that no source has seen yet allocates, nothing else does. lose() and
///            find_again(): O(queues).
class actual_state {
 public:
  actual_state(table& world, membership& members) noexcept : table_(world), members_(members) {}

  // Of an attached process.
  void queue_added(process& owner, const queue_info& info);
  void queue_removed(process& owner, driver_queue_id driver_id);
  /// The session is over: none of its queues is managed, all count as running.
  void release(process& owner);

  void set_state(queue& which, queue_state state) noexcept;
  /// \param refused whether the driver did not suspend it; then it is asked again at its hold_off.
  void set_refused(queue& which, bool refused) noexcept;
  void set_attach(process& which, attach_state state);
  /// \param batch the one handed to the backend; 0: it came back, or never will.
  void set_in_flight(process& which, std::uint64_t batch) noexcept;
  std::size_t batches_in_flight() const noexcept { return batches_in_flight_; }

  /// Nothing on the GPU is anyone's to suspend; and the way back.
  void lose(gpu& which);
  void find_again(gpu& which);

 private:
  table& table_;
  membership& members_;
  std::size_t batches_in_flight_ = 0;
};

}  // namespace sluice::core
