/// Files that calls open in their callers: of SMI events, and dma-bufs. A call promises the file to
/// its thread, and the machine (os::hand_over_file) has the thread open it.

#include "driver_state.hpp"

#include <cerrno>

namespace sluice::sim {

std::uint64_t driver::impl::promise_file(pid_t tid) {
  promises_.emplace(++last_promise_, tid);
  return last_promise_;
}

task<int> driver::impl::hand_over(call_ptr c, std::uint64_t number, os::file_place where) {
  // The caller gets its descriptor on the way back from this very call.
  struct progress {
    explicit progress(engine& planned) : changed{planned} {}
    wait_queue changed;
    std::optional<int> refused;
  };
  const auto state = std::make_shared<progress>(engine_);
  os_.hand_over_file(c->tid, number, where,
                     {.ready =
                          [state](int error) {
                            state->refused = error;
                            state->changed.wake_all();
                          },
                      .done =
                          [number, weak = std::weak_ptr{alive_}](int error) {
                            const auto alive = weak.lock();
                            if (alive && error != 0) (*alive)->file_release(number);
                          }});
  // Not interruptible, as on hardware, where this takes no time; and the stop that the caller is
  // asked for shows as a signal.
  interruption none;
  while (!state->refused) co_await state->changed.wait(none);
  if (*state->refused != 0) file_release(number);
  co_return -*state->refused;
}

bool driver::impl::file_promised(std::uint64_t number, pid_t tid) const {
  const auto found = promises_.find(number);
  return found != promises_.end() && found->second == tid;
}

int driver::impl::file_open(std::uint64_t number, pid_t tid) {
  if (!file_promised(number, tid)) return -ENOENT;
  promises_.erase(number);
  return 0;
}

void driver::impl::file_release(std::uint64_t number) {
  promises_.erase(number);
  smi_clients_.erase(number);
  dmabufs_.erase(number);
}

std::uint64_t driver::impl::file_size(std::uint64_t number) const {
  const auto found = dmabufs_.find(number);
  return found == dmabufs_.end() ? 0 : found->second->size;
}

}  // namespace sluice::sim
