#include "rows.hpp"

#include <algorithm>

namespace sluice::core {

queue* process::find(driver_queue_id driver_id) const noexcept {
  const auto found = std::lower_bound(
      queues.begin(), queues.end(), driver_id,
      [](const queue* one, driver_queue_id wanted) { return one->driver_id < wanted; });
  return found != queues.end() && (*found)->driver_id == driver_id ? *found : nullptr;
}

}  // namespace sluice::core
