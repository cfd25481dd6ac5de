#pragma once
/// \file
/// online_client::acquire(): waiting, without a thread, until the GPUs are free. One of the two
/// headers that include Asio (asio.hpp is the other); link sluice::runtime or sluice::runtime_epoll
/// for its macros.

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

#include "sluice/online_client.hpp"
#include "sluice/result.hpp"

namespace sluice {

/// `busy_token busy = co_await client.acquire();`, or `client.acquire(token)` with any completion
/// token for `void(error_code, busy_token)`.
///
/// Completes exactly once, never inline, on the handler's associated executor (the system executor
/// when it has none). The busy period begins when the operation is started (for a coroutine, when
/// it is awaited), not when it completes.
///
/// Errors: operation_aborted when cancelled, with an empty token: the busy period has ended.
///         Nothing else: when acquire_limit passes first, or the scheduler stops, it completes
///         without an error and was_clear() is false; at once where the scheduler has stopped
///         already or only observes (backend::acts()), for then nobody makes room.
/// Cost:   allocates; begin() and busy() are the hot path.
template <class... CompletionToken>
auto online_client::acquire(CompletionToken&&... token) {
  namespace asio = boost::asio;
  static_assert(sizeof...(CompletionToken) <= 1, "acquire() takes one completion token, or none");
  const auto initiate = [page = page_](auto handler) {
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
      /// Called once: by whoever took the wait off the scheduler's list.
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
      std::uint64_t wait = 0;
    };
    const auto all = std::make_shared<operation>(std::move(handler), begin_on(page));
    auto slot = asio::get_associated_cancellation_slot(all->handler);
    if (slot.is_connected()) {
      slot.assign([all, page](asio::cancellation_type) {
        if (stop_waiting(page, all->wait)) all->complete(asio::error::operation_aborted, false);
      });
    }
    const auto wait = wait_until_clear(page, [all](bool clear) { all->complete({}, clear); });
    if (wait == 0) {
      all->complete({}, false);
    } else {
      all->wait = wait;
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

}  // namespace sluice
