#pragma once
/// \file
/// connection::acquire(): waiting, without a thread, until the GPUs are free. Includes Asio, with
/// whatever of its macros the program has chosen.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/system_executor.hpp>
#include <boost/asio/use_awaitable.hpp>

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
///         registered the client yet or refused it, or it only observes.
/// Cost:   allocates, and goes over the socket; begin() and busy() are the hot path.
template <class... CompletionToken>
auto connection::acquire(std::chrono::nanoseconds limit, CompletionToken&&... token) {
  namespace asio = boost::asio;
  using boost::system::error_code;
  static_assert(sizeof...(CompletionToken) <= 1, "acquire() takes one completion token, or none");
  const auto initiate = [client = client_, limit](auto handler) {
    using handler_type = decltype(handler);
    using executor_type = asio::associated_executor_t<handler_type, asio::system_executor>;
    using work_type = std::decay_t<typename asio::prefer_result<
        executor_type, asio::execution::outstanding_work_t::tracked_t>::type>;
    struct operation {
      operation(handler_type from, busy_token held)
          : handler(std::move(from)),
            executor(asio::prefer(asio::get_associated_executor(handler, asio::system_executor()),
                                  asio::execution::outstanding_work.tracked)),
            token(std::move(held)) {}
      /// Called once: by whoever took the wait off the library's list.
      void complete(error_code error, bool clear) {
        busy_token result = error ? busy_token{} : acquired(std::move(token), clear);
        token.end();
        // The handler moves, and a cancellation slot may keep this for long: the work ends here.
        const work_type on = *std::exchange(executor, std::nullopt);
        asio::post(on, [to = std::move(handler), error, result = std::move(result)]() mutable {
          std::move(to)(error, std::move(result));
        });
      }
      handler_type handler;
      // Tracks work, so that the context does not run dry meanwhile.
      std::optional<work_type> executor;
      busy_token token;
      std::int64_t wait = 0;
    };
    using shared_operation = std::shared_ptr<operation>;
    const auto all = std::make_shared<operation>(std::move(handler), busy_token(client));
    if (!client) return all->complete({}, false);
    auto* const context = new shared_operation(all);  // The callback's, or who stops it.
    auto slot = asio::get_associated_cancellation_slot(all->handler);
    if (slot.is_connected()) {
      slot.assign([all, client, context](asio::cancellation_type) {
        if (all->wait == 0 || sluice_client_stop_waiting(client.get(), all->wait) != 1) return;
        const std::unique_ptr<shared_operation> owned(context);
        all->complete(asio::error::operation_aborted, false);
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
      all->wait = number;
    }
  };
  if constexpr (sizeof...(CompletionToken) == 0) {
    return asio::async_initiate<const asio::use_awaitable_t<>, void(error_code, busy_token)>(
        initiate, asio::use_awaitable);
  } else {
    return [&initiate](auto&& given) {
      return asio::async_initiate<decltype(given), void(error_code, busy_token)>(initiate, given);
    }(std::forward<CompletionToken>(token)...);
  }
}

}  // namespace sluice::client
