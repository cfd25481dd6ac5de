#include "sluice/inbox.hpp"

#include "inbox_queue.hpp"

#include <utility>

namespace sluice {

bool inbox_producer::push(const observation& seen) noexcept {
  inbox& to = *inbox_;
  bool fits = to.queue_.push(seen);
  if (!fits && to.hooks_.on_reactor_thread()) {
    // Nobody else drains while we are here, so make room ourselves.
    to.drain();
    fits = to.queue_.push(seen);
  }
  if (!fits) {
    to.dropped_.fetch_add(1, std::memory_order_relaxed);
    to.overflow_.store(true, std::memory_order_release);
  }
  to.hooks_.wake();
  return fits;
}

}  // namespace sluice
