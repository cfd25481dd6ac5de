#pragma once
/// \file
/// The HTTP side: listens, reads requests, streams answers. Where online work begins and ends for
/// the scheduler is in serve_generate(), and nowhere else.

#include "gpu_work.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "sluice/client.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace inference {

struct server_options {
  burst prefill{.kernels = 20};  ///< GPU work until the first token ...
  burst decode{};                ///< ... and for each further one.
  unsigned default_tokens = 16;
  unsigned most_tokens = 4096;

  std::size_t most_connections = 1024;
  std::size_t head_limit = std::size_t{8} * 1024;   ///< Bytes.
  std::size_t body_limit = std::size_t{64} * 1024;  ///< Bytes.
  /// From the connection, or from the last answer on it, to the end of a request's head.
  sluice::duration head_time = std::chrono::seconds(10);
  sluice::duration body_time = std::chrono::seconds(5);   ///< From the head to the body's end.
  sluice::duration write_time = std::chrono::seconds(5);  ///< For the peer to take a token.
};

/// What happened so far.
struct server_counts {
  std::uint64_t connections = 0;
  std::uint64_t evicted = 0;   ///< Idle connections that were closed to make room.
  std::uint64_t requests = 0;  ///< Heads of POST /generate.
  std::uint64_t answered = 0;  ///< To the last byte.
  std::uint64_t refused = 0;   ///< With a status of 400 or more, on any path.
  std::uint64_t broken = 0;    ///< Begun, but the peer hung up or was too slow, or the GPU failed.
  std::uint64_t tokens = 0;
  std::uint64_t in_flight = 0;
};

/// Threading: the one thread that runs the io_context.
/// Lifetime:  outlives context.run(), as `device` does.
class server {
 public:
  server(boost::asio::io_context& context, gpu& device, sluice::client::connection client,
         server_options options);

  /// Listens on 127.0.0.1. \return the port: the given one, or for 0 one that was free.
  [[nodiscard]] sluice::result<unsigned short> listen(unsigned short port);
  /// Finishes what it has begun to answer, and takes nothing new.
  void stop();
  /// Ends every connection now.
  void abort();

  const server_counts& counts() const { return counts_; }

  std::function<void()> on_end = [] {};  ///< Called once, after stop(): no connection is left.
  std::function<void(sluice::error_code)> on_gpu_failure = [](auto) {};
  std::function<std::string()> more_metrics = [] { return std::string(); };

 private:
  using request_parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using response = boost::beast::http::response<boost::beast::http::string_body>;
  struct connection {
    explicit connection(boost::asio::ip::tcp::socket socket) : stream(std::move(socket)) {}
    boost::beast::tcp_stream stream;
    boost::beast::flat_buffer buffer;
    bool answering = false;  ///< A request's head is here, and its answer not yet sent.
  };
  using connections = std::list<connection>;
  /// Whether the connection can take another request.
  using can_go_on = boost::asio::awaitable<bool>;

  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> room_for_one_more();
  void begin(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> serve(connections::iterator which);
  can_go_on refuse_head(connection& peer, sluice::error_code why);
  can_go_on serve_request(connection& peer, request_parser& request);
  can_go_on serve_generate(connection& peer, request_parser& request);
  boost::asio::awaitable<sluice::error_code> read_body(connection& peer, request_parser& request);
  boost::asio::awaitable<sluice::error_code> stream_tokens(connection& peer, unsigned tokens,
                                                           std::uint64_t number, bool keep_alive);
  can_go_on send(connection& peer, response answer);
  boost::asio::awaitable<void> say_goodbye(connection& peer);
  std::string metrics() const;

  boost::asio::io_context& context_;
  gpu& gpu_;
  sluice::client::connection client_;
  server_options options_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer room_;  // Never expires; cancelled when a connection has ended.
  connections connections_;         // Those that answer nothing: longest idle first.
  server_counts counts_;
  bool stopping_ = false;
};

}  // namespace inference
