#pragma once
/// \file
/// What acquire.hpp and client_acquire.hpp are made of; include one of those. Includes Asio, with
/// whatever of its macros the program has chosen, and nothing of sluice.

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/system_executor.hpp>
#include <boost/asio/use_awaitable.hpp>

#pragma GCC visibility push(default)
namespace sluice::detail {

/// One acquire() on its way: a handler, the token that it will get, and the work that keeps its
/// executor from running dry meanwhile.
///
/// Threading: complete() on any thread, once: by whoever took the wait off its list.
template <class Token, class Handler>
class acquire_operation {
 public:
  acquire_operation(Handler handler, Token held)
      : handler_(std::move(handler)),
        executor_(boost::asio::prefer(
            boost::asio::get_associated_executor(handler_, boost::asio::system_executor()),
            boost::asio::execution::outstanding_work.tracked)),
        token_(std::move(held)) {}

  auto cancellation_slot() const noexcept {
    return boost::asio::get_associated_cancellation_slot(handler_);
  }
  /// Posts the handler. An error gives it an empty token, and the busy period has ended.
  void complete(boost::system::error_code error, bool clear) {
    Token result;
    if (!error) {
      result = std::move(token_);
      result.clear_ = clear;
    }
    token_.end();
    // The handler moves, and a cancellation slot may keep this for long: the work ends here.
    const work_type on = *std::exchange(executor_, std::nullopt);
    boost::asio::post(on, [to = std::move(handler_), error, result = std::move(result)]() mutable {
      std::move(to)(error, std::move(result));
    });
  }

  std::uint64_t wait = 0;  ///< By which it can be stopped; 0: it cannot, yet.

 private:
  using executor_type = boost::asio::associated_executor_t<Handler, boost::asio::system_executor>;
  using work_type = std::decay_t<typename boost::asio::prefer_result<
      executor_type, boost::asio::execution::outstanding_work_t::tracked_t>::type>;

  Handler handler_;
  std::optional<work_type> executor_;
  Token token_;
};

/// \param initiate called with the handler that `token` stands for.
/// \param token    none, which means use_awaitable, or one.
template <class Token, class Initiate, class... CompletionToken>
auto initiate_acquire(const Initiate& initiate, CompletionToken&&... token) {
  namespace asio = boost::asio;
  using signature = void(boost::system::error_code, Token);
  static_assert(sizeof...(CompletionToken) <= 1, "acquire() accepts at most one completion token");
  if constexpr (sizeof...(CompletionToken) == 0) {
    return asio::async_initiate<const asio::use_awaitable_t<>, signature>(initiate,
                                                                          asio::use_awaitable);
  } else {
    return [&initiate](auto&& given) {
      return asio::async_initiate<decltype(given), signature>(initiate, given);
    }(std::forward<CompletionToken>(token)...);
  }
}

}  // namespace sluice::detail
#pragma GCC visibility pop
