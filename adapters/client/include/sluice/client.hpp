#pragma once
/// \file
/// sluice/client.h with C++'s manners: tokens that end what they began. Headers only, over the C
/// library. To wait for free GPUs without a thread, see client_acquire.hpp.

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/client.h"

namespace sluice::detail {
template <class Token, class Handler>
class acquire_operation;
}

namespace sluice::client {

enum class role : std::uint32_t { online = SLUICE_CLIENT_ONLINE, offline = SLUICE_CLIENT_OFFLINE };
enum class span_kind : std::uint32_t {
  request = SLUICE_CLIENT_REQUEST,
  ttft = SLUICE_CLIENT_TTFT,
  itl = SLUICE_CLIENT_ITL,
};

/// As sluice_client_options.
struct options {
  role what = role::online;
  std::string socket{};  ///< Empty: the default.
  std::string name{};    ///< Empty: the program's.
  std::vector<std::uint32_t> gpus{};
  std::array<std::chrono::nanoseconds, 3> targets{};  ///< By span_kind; zero: not said.
};

namespace detail {
struct closer {
  void operator()(sluice_connection* one) const noexcept { sluice_client_close(one); }
};
using shared = std::shared_ptr<sluice_connection>;
}  // namespace detail

/// "Online work is in flight", for as long as it lives. Move it to where the work ends.
///
/// Threading: any thread may destroy it, not two at once.
/// Lifetime:  keeps its connection open.
class busy_token {
 public:
  busy_token() noexcept = default;  ///< Holds nothing.
  busy_token(busy_token&& other) noexcept
      : client_(std::move(other.client_)), clear_(std::exchange(other.clear_, false)) {}
  busy_token& operator=(busy_token&& other) noexcept {
    if (this != &other) {
      end();
      client_ = std::move(other.client_);
      clear_ = std::exchange(other.clear_, false);
    }
    return *this;
  }
  ~busy_token() { end(); }

  /// Ends the busy period before the token's life does.
  void end() noexcept {
    if (const auto client = std::move(client_)) sluice_client_end(client.get());
  }
  explicit operator bool() const noexcept { return client_ != nullptr; }
  /// From acquire() only: whether every offline queue that could be suspended was.
  bool was_clear() const noexcept { return clear_; }

 private:
  friend class connection;
  template <class Token, class Handler>
  friend class sluice::detail::acquire_operation;
  explicit busy_token(detail::shared client) noexcept : client_(std::move(client)) {
    if (client_ && sluice_client_begin(client_.get()) != 0) client_.reset();
  }
  detail::shared client_;
  bool clear_ = false;
};

/// A span of a request, which ends with its life. As busy_token.
class span_token {
 public:
  span_token() noexcept = default;  ///< Holds nothing.
  span_token(span_token&& other) noexcept = default;
  span_token& operator=(span_token&& other) noexcept {
    if (this != &other) {
      end();
      client_ = std::move(other.client_);
      kind_ = other.kind_;
      request_ = other.request_;
    }
    return *this;
  }
  ~span_token() { end(); }

  void end() noexcept {
    if (const auto client = std::move(client_)) {
      sluice_client_end_span(client.get(), static_cast<std::uint32_t>(kind_), request_);
    }
  }
  explicit operator bool() const noexcept { return client_ != nullptr; }

 private:
  friend class connection;
  span_token(detail::shared client, span_kind kind, std::uint64_t request) noexcept
      : client_(std::move(client)), kind_(kind), request_(request) {
    if (client_) {
      sluice_client_begin_span(client_.get(), static_cast<std::uint32_t>(kind), request);
    }
  }
  detail::shared client_;
  span_kind kind_{};
  std::uint64_t request_ = 0;
};

/// One client; works whether a scheduler is there or not.
///
/// Threading: any thread, any number at once; moving and destroying it from one.
/// Lifetime:  the client is withdrawn when the connection and all its tokens have gone. Not from
///            within acquire()'s completion on the library's own thread.
/// Errors:    open() says by its error code, and throws std::bad_alloc alone; nothing else fails.
class connection {
 public:
  connection() noexcept = default;  ///< Registered nowhere: every call does nothing.

  /// \param error the system's, where it gave no memory, descriptor or thread, or for options that
  ///              are refused; sluice_client_last_error() has a sentence then.
  [[nodiscard]] static connection open(const options& with, std::error_code& error) {
    sluice_client_options plain{};
    plain.size = sizeof plain;
    plain.role = static_cast<std::uint32_t>(with.what);
    plain.socket = with.socket.empty() ? nullptr : with.socket.c_str();
    plain.name = with.name.empty() ? nullptr : with.name.c_str();
    plain.gpus = with.gpus.data();
    plain.gpu_count = with.gpus.size();
    for (std::size_t i = 0; i < with.targets.size(); ++i)
      plain.targets[i] = with.targets[i].count();
    sluice_connection* made = nullptr;
    const int outcome = sluice_client_open(&plain, &made);
    error.assign(-outcome, std::generic_category());
    return connection(made);
  }
  explicit operator bool() const noexcept { return client_ != nullptr; }

  void begin() noexcept {
    if (client_) sluice_client_begin(client_.get());
  }
  void end() noexcept {
    if (client_) sluice_client_end(client_.get());
  }
  /// begin() now, end() when the token goes.
  [[nodiscard]] busy_token busy() noexcept { return busy_token(client_); }

  void begin_span(span_kind kind, std::uint64_t request) noexcept {
    if (client_) sluice_client_begin_span(client_.get(), static_cast<std::uint32_t>(kind), request);
  }
  /// \param since not later than now.
  void begin_span(span_kind kind, std::uint64_t request,
                  std::chrono::steady_clock::time_point since) noexcept {
    if (!client_) return;
    const std::chrono::nanoseconds at = since.time_since_epoch();
    sluice_client_begin_span_since(client_.get(), static_cast<std::uint32_t>(kind), request,
                                   at.count());
  }
  void end_span(span_kind kind, std::uint64_t request) noexcept {
    if (client_) sluice_client_end_span(client_.get(), static_cast<std::uint32_t>(kind), request);
  }
  /// begin_span() now, end_span() when the token goes.
  [[nodiscard]] span_token span(span_kind kind, std::uint64_t request) noexcept {
    return {client_, kind, request};
  }

  [[nodiscard]] sluice_client_status status() const noexcept {
    sluice_client_status seen{};
    seen.size = sizeof seen;
    if (client_) sluice_client_get_status(client_.get(), &seen);
    return seen;
  }

  /// Begins, then completes when every offline queue on its GPUs that can be suspended is, after
  /// `limit`, or at once where nobody makes room (as sluice_client_wait() says): without a
  /// scheduler it delays nothing. Include client_acquire.hpp to use it.
  template <class... CompletionToken>
  auto acquire(std::chrono::nanoseconds limit, CompletionToken&&... token);

 private:
  explicit connection(sluice_connection* made) : client_(made, detail::closer{}) {}
  detail::shared client_;
};

}  // namespace sluice::client
