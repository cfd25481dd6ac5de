#pragma once
/// \file
/// online_client::acquire(): waiting, without a thread, until the GPUs are free. One of the two
/// headers that include Asio (asio.hpp is the other); link sluice::runtime or sluice::runtime_epoll
/// for its macros.

#include <memory>
#include <utility>

#include "sluice/acquire_operation.hpp"
#include "sluice/online_client.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// `busy_token busy = co_await client.acquire();`, or `client.acquire(token)` with any completion
/// token for `void(error_code, busy_token)`.
///
/// Completes exactly once, never inline, on the handler's associated executor (the system executor
/// when it has none). The busy period begins when the operation is started (for a coroutine, when
/// it is awaited), not when it completes.
///
/// Errors: operation_aborted when cancelled, with an empty token: the busy period has ended.
///         Nothing else: when acquire_limit passes first, it completes without an error and
///         was_clear() is false. So it does at once, and as soon as that becomes so, where nobody
///         makes room: the scheduler stops, has no policy (as while a node is paused), or only
///         observes (backend::acts()). Without a policy it is clear where nothing ran anyway.
/// Cost:   allocates; begin() and busy() are the hot path.
template <class... CompletionToken>
auto online_client::acquire(CompletionToken&&... token) {
  const auto initiate = [page = page_](auto handler) {
    using operation = detail::acquire_operation<busy_token, decltype(handler)>;
    const auto all = std::make_shared<operation>(std::move(handler), begin_on(page));
    if (auto slot = all->cancellation_slot(); slot.is_connected()) {
      slot.assign([all, page](boost::asio::cancellation_type) {
        if (stop_waiting(page, all->wait)) {
          all->complete(boost::asio::error::operation_aborted, false);
        }
      });
    }
    const auto wait = wait_until_clear(page, [all](bool clear) { all->complete({}, clear); });
    if (wait == 0) {
      all->complete({}, false);
    } else {
      all->wait = wait;
    }
  };
  return detail::initiate_acquire<busy_token>(initiate, std::forward<CompletionToken>(token)...);
}

}  // namespace sluice
#pragma GCC visibility pop
