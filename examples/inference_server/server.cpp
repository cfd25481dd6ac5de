#include "server.hpp"

#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>

namespace inference {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using namespace std::chrono_literals;
using sluice::error_code;
using sluice::client::span_kind;

namespace {

/// `const auto [failed, ...] = co_await operation(..., no_throw);`
constexpr auto no_throw = asio::as_tuple(asio::use_awaitable);

/// "{}" and no body at all ask for `otherwise`. Nothing when the body is wrong.
std::optional<unsigned> tokens_of(std::string_view body, unsigned otherwise, unsigned most) {
  if (body.empty()) return otherwise;
  error_code failed;
  const auto parsed = boost::json::parse({body.data(), body.size()}, failed);
  const auto* const object = failed ? nullptr : parsed.if_object();
  if (object == nullptr) return std::nullopt;
  const auto* const value = object->if_contains("tokens");
  if (value == nullptr) return otherwise;
  const auto tokens = value->to_number<unsigned>(failed);
  if (failed || tokens < 1 || tokens > most) return std::nullopt;
  return tokens;
}

/// What to answer to a head that could not be read; nothing when nobody is left to answer.
std::optional<http::status> status_for(error_code why) {
  if (why == http::error::end_of_stream || why == http::error::partial_message) return {};
  if (why == http::error::header_limit) return http::status::request_header_fields_too_large;
  if (why == http::error::body_limit) return http::status::payload_too_large;
  if (why.category() == http::make_error_code(http::error::bad_method).category()) {
    return http::status::bad_request;
  }
  return {};
}

http::response<http::string_body> text(http::status status, std::string body) {
  http::response<http::string_body> made{status, 11};
  made.set(http::field::content_type, "text/plain");
  made.body() = std::move(body);
  return made;
}

}  // namespace

server::server(asio::io_context& context, gpu& device, sluice::client::connection client,
               server_options options)
    : context_(context),
      gpu_(device),
      client_(std::move(client)),
      options_(options),
      acceptor_(context),
      room_(context, asio::steady_timer::time_point::max()) {}

sluice::result<unsigned short> server::listen(unsigned short port) {
  const tcp::endpoint at(asio::ip::address_v4::loopback(), port);
  error_code failed;
  acceptor_.open(at.protocol(), failed);
  if (!failed) acceptor_.set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor_.bind(at, failed);
  if (!failed) acceptor_.listen(tcp::acceptor::max_listen_connections, failed);
  if (failed) return failed;
  asio::co_spawn(context_, accept(), [](const std::exception_ptr& thrown) {
    if (thrown) std::rethrow_exception(thrown);
  });
  return acceptor_.local_endpoint().port();
}

void server::stop() {
  if (std::exchange(stopping_, true)) return;
  error_code ignored;
  acceptor_.close(ignored);
  room_.cancel();
  for (connection& each : connections_) {
    if (!each.answering) each.stream.close();
  }
  if (connections_.empty()) asio::post(context_, [this] { on_end(); });
}

void server::abort() {
  stop();
  for (connection& each : connections_) each.stream.close();
}

asio::awaitable<void> server::accept() {
  while (!stopping_) {
    auto [failed, socket] = co_await acceptor_.async_accept(no_throw);
    if (failed && !stopping_) {  // Out of descriptors, say.
      asio::steady_timer pause(context_, 100ms);
      co_await pause.async_wait(no_throw);
    }
    if (failed) continue;
    co_await room_for_one_more();
    if (!stopping_) begin(std::move(socket));
  }
}

/// Peers that send nothing must not keep others out: the one idle for longest goes.
asio::awaitable<void> server::room_for_one_more() {
  while (!stopping_ && connections_.size() >= options_.most_connections) {
    for (connection& each : connections_) {
      if (each.answering) continue;
      if (!each.stream.socket().is_open()) break;  // On its way out already.
      each.stream.close();
      ++counts_.evicted;
      break;
    }
    co_await room_.async_wait(no_throw);
  }
}

void server::begin(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  connections_.emplace_back(std::move(socket));
  ++counts_.connections;
  const auto which = std::prev(connections_.end());
  asio::co_spawn(context_, serve(which), [this, which](const std::exception_ptr& thrown) {
    if (thrown) std::rethrow_exception(thrown);
    connections_.erase(which);
    room_.cancel();
    if (stopping_ && connections_.empty()) on_end();
  });
}

asio::awaitable<void> server::serve(connections::iterator which) {
  connection& peer = *which;
  for (bool go_on = true; go_on && !stopping_;) {
    request_parser request;
    request.header_limit(static_cast<std::uint32_t>(options_.head_limit));
    request.body_limit(options_.body_limit);
    peer.stream.expires_after(options_.head_time);
    const auto [failed, bytes] =
        co_await http::async_read_header(peer.stream, peer.buffer, request, no_throw);
    peer.answering = true;
    if (failed) {
      go_on = co_await refuse_head(peer, failed);
    } else {
      go_on = co_await serve_request(peer, request);
    }
    peer.answering = false;
    connections_.splice(connections_.end(), connections_, which);
    room_.cancel();
  }
  co_await say_goodbye(peer);
}

server::can_go_on server::refuse_head(connection& peer, error_code why) {
  if (const auto status = status_for(why)) {
    co_await send(peer, text(*status, "This server does not support the request.\n"));
  }
  co_return false;
}

server::can_go_on server::serve_request(connection& peer, request_parser& request) {
  const auto& head = request.get();
  const http::verb method = head.method();
  const std::string target(head.target());
  if (method == http::verb::post && target == "/generate") {
    if (head.version() == 11) co_return co_await serve_generate(peer, request);
    co_await send(peer, text(http::status::http_version_not_supported,
                             "Chunked answers require HTTP/1.1.\n"));
    co_return false;
  }

  if (const auto failed = co_await read_body(peer, request)) {
    co_return co_await refuse_head(peer, failed);
  }
  response answer =
      text(http::status::not_found, "Unknown path; available: /generate, /healthz, /metrics.\n");
  if (method != http::verb::get || target == "/generate") {
    answer = text(http::status::method_not_allowed, "");  // No body: it may have been HEAD.
    answer.set(http::field::allow, target == "/generate" ? "POST" : "GET");
  } else if (target == "/healthz") {
    answer = text(http::status::ok, "ok\n");
  } else if (target == "/metrics") {
    answer = text(http::status::ok, metrics());
  }
  answer.keep_alive(request.keep_alive() && !stopping_);
  co_return co_await send(peer, std::move(answer));
}

server::can_go_on server::serve_generate(connection& peer, request_parser& request) {
  // Online work begins here, with the head: while the body is on its way, offline work already
  // makes room. It ends where this function does: the last byte was written, or the peer is gone.
  const auto busy = client_.busy();
  const std::uint64_t number = ++counts_.requests;
  const auto span = client_.span(span_kind::request, number);
  ++counts_.in_flight;
  const auto failed = co_await read_body(peer, request);
  const auto tokens =
      tokens_of(request.get().body(), options_.default_tokens, options_.most_tokens);

  bool go_on = false;
  if (failed) {
    ++counts_.broken;
    go_on = co_await refuse_head(peer, failed);
  } else if (!tokens) {
    auto answer =
        text(http::status::bad_request,
             fmt::format("Invalid body; expected JSON such as {{\"tokens\": 20}}, with 1 to {} "
                         "tokens.\n",
                         options_.most_tokens));
    answer.keep_alive(request.keep_alive() && !stopping_);
    go_on = co_await send(peer, std::move(answer));
  } else {
    const bool keep_alive = request.keep_alive() && !stopping_;
    const auto broken = co_await stream_tokens(peer, *tokens, number, keep_alive);
    ++(broken ? counts_.broken : counts_.answered);
    go_on = keep_alive && !broken;
  }
  --counts_.in_flight;
  co_return go_on;
}

/// Says "100 Continue" first to a client that waits for it.
asio::awaitable<error_code> server::read_body(connection& peer, request_parser& request) {
  peer.stream.expires_after(options_.body_time);
  if (!request.is_done() && beast::iequals(request.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_ahead{http::status::continue_, 11};
    const auto [failed, bytes] = co_await http::async_write(peer.stream, go_ahead, no_throw);
    if (failed) co_return failed;
  }
  if (request.is_done()) co_return error_code{};
  const auto [failed, bytes] =
      co_await http::async_read(peer.stream, peer.buffer, request, no_throw);
  co_return failed;
}

/// One chunk per token. The status line waits for the first token: until then there may be worse to
/// report.
asio::awaitable<error_code> server::stream_tokens(connection& peer, unsigned tokens,
                                                  std::uint64_t number, bool keep_alive) {
  auto first_token = client_.span(span_kind::ttft, number);
  sluice::client::span_token between_tokens;
  http::response<http::empty_body> head{http::status::ok, 11};
  head.set(http::field::content_type, "application/x-ndjson");
  head.chunked(true);
  head.keep_alive(keep_alive);
  http::response_serializer<http::empty_body> head_writer{head};

  for (unsigned token = 1; token <= tokens; ++token) {
    const auto failed = co_await gpu_.run(token == 1 ? options_.prefill : options_.decode);
    if (failed) {
      if (token == 1) {
        co_await send(peer, text(http::status::service_unavailable,
                                 "The GPU did not run the request; see the log of the server.\n"));
      }
      if (failed != asio::error::operation_aborted) on_gpu_failure(failed);
      co_return failed;
    }
    peer.stream.expires_after(options_.write_time);
    if (token == 1) {
      first_token.end();
      between_tokens = client_.span(span_kind::itl, number);
      const auto [cut, bytes] =
          co_await http::async_write_header(peer.stream, head_writer, no_throw);
      if (cut) co_return cut;
    } else {
      client_.begin_span(span_kind::itl, number);  // Ends the one before.
    }
    const std::string line = fmt::format("{{\"token\":{}}}\n", token);
    const auto [cut, bytes] =
        co_await asio::async_write(peer.stream, http::make_chunk(asio::buffer(line)), no_throw);
    if (cut) co_return cut;
    ++counts_.tokens;
  }
  const auto [cut, bytes] =
      co_await asio::async_write(peer.stream, http::make_chunk_last(), no_throw);
  co_return cut;
}

server::can_go_on server::send(connection& peer, response answer) {
  if (answer.result_int() >= 400) ++counts_.refused;
  answer.prepare_payload();
  peer.stream.expires_after(options_.write_time);
  const auto [failed, bytes] = co_await http::async_write(peer.stream, answer, no_throw);
  co_return !failed && answer.keep_alive();
}

/// To close while something is unread would reset the connection, and the peer might lose the
/// answer that it has not read yet.
asio::awaitable<void> server::say_goodbye(connection& peer) {
  error_code failed;
  peer.stream.socket().shutdown(tcp::socket::shutdown_send, failed);
  peer.stream.expires_after(1s);
  std::array<char, 4096> unread{};
  std::size_t total = 0;
  while (!failed && total < std::size_t{256} * 1024) {
    const auto [over, bytes] = co_await peer.stream.async_read_some(asio::buffer(unread), no_throw);
    failed = over;
    total += bytes;
  }
}

std::string server::metrics() const {
  std::string out;
  const auto line = [&out](std::string_view name, std::string_view kind, std::uint64_t value) {
    out += fmt::format("# TYPE inference_{0} {1}\ninference_{0} {2}\n", name, kind, value);
  };
  line("connections", "gauge", connections_.size());
  line("in_flight", "gauge", counts_.in_flight);
  line("connections_total", "counter", counts_.connections);
  line("evicted_total", "counter", counts_.evicted);
  line("requests_total", "counter", counts_.requests);
  line("answered_total", "counter", counts_.answered);
  line("refused_total", "counter", counts_.refused);
  line("broken_total", "counter", counts_.broken);
  line("tokens_total", "counter", counts_.tokens);
  return out + more_metrics();
}

}  // namespace inference
