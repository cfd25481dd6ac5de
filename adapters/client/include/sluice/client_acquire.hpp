#pragma once
/// \file
/// connection::acquire(): waiting, without a thread, until the GPUs are free. Includes Asio, with
/// whatever of its macros the program has chosen.

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "sluice/acquire_operation.hpp"
#include "sluice/client.hpp"

namespace sluice::client {

/// `busy_token busy = co_await client.acquire(100ms);`, or `client.acquire(100ms, token)` with any
/// completion token for `void(boost::system::error_code, busy_token)`.
///
/// Completes exactly once, never inline, on the handler's associated executor (the system executor
/// when it has none). The busy period begins when the operation is started, not when it completes.
/// Errors: operation_aborted when cancelled, with an empty token. Nothing else: when `limit` passes
///         first, it completes without an error and was_clear() is false. So it does at once, and
///         whenever that becomes so, where nobody makes room: there is no scheduler, it has not
///         registered the client yet or refused it, or it only observes, is paused or stops.
/// Cost:   allocates, and goes over the socket; begin() and busy() are the hot path.
template <class... CompletionToken>
auto connection::acquire(std::chrono::nanoseconds limit, CompletionToken&&... token) {
  const auto initiate = [client = client_, limit](auto handler) {
    using operation = sluice::detail::acquire_operation<busy_token, decltype(handler)>;
    using shared_operation = std::shared_ptr<operation>;
    const auto all = std::make_shared<operation>(std::move(handler), busy_token(client));
    if (!client) return all->complete({}, false);
    auto* const context = new shared_operation(all);  // The callback's, or who stops it.
    if (auto slot = all->cancellation_slot(); slot.is_connected()) {
      slot.assign([all, client, context](boost::asio::cancellation_type) {
        const auto number = static_cast<std::int64_t>(all->wait);
        if (number == 0 || sluice_client_stop_waiting(client.get(), number) != 1) return;
        const std::unique_ptr<shared_operation> owned(context);
        all->complete(boost::asio::error::operation_aborted, false);
      });
    }
    const auto number = sluice_client_wait(
        client.get(), limit.count() < 0 ? 0 : limit.count(),
        [](void* to, std::int32_t clear) {
          const std::unique_ptr<shared_operation> owned(static_cast<shared_operation*>(to));
          (*owned)->complete({}, clear != 0);
        },
        context);
    if (number < 1) {
      const std::unique_ptr<shared_operation> owned(context);
      all->complete({}, false);
    } else {
      all->wait = static_cast<std::uint64_t>(number);
    }
  };
  return sluice::detail::initiate_acquire<busy_token>(initiate,
                                                      std::forward<CompletionToken>(token)...);
}

}  // namespace sluice::client
