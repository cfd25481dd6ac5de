#pragma once
/// \file
/// etcd's JSON interface (version 3 of its API, over HTTPS), as far as gangs need it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <boost/json/object.hpp>

namespace sluice::fleet {

/// Where etcd listens. Every part of a program uses the same, and TLS context.
struct etcd_endpoint {
  std::string host{};
  std::string port{};
};
// Threading of the functions here: any thread.

/// "https://HOST[:PORT]"; the port is 2379 where none is given. \return nothing where it is not so.
std::optional<etcd_endpoint> parse_endpoint(std::string_view text);
/// "https://HOST:PORT".
std::string text_of(const etcd_endpoint& endpoint);

struct etcd_access {
  boost::asio::io_context& loop;
  boost::asio::ssl::context& tls;
  const std::vector<etcd_endpoint>& endpoints;
  std::size_t& current;               ///< The endpoint that worked last, or is to be tried next.
  std::chrono::nanoseconds patience;  ///< For each answer; and between two events of a watch.
};

/// What an operator can do something about, where the error's own words do not say it.
std::string words_of(const boost::system::error_code& why);

/// A key or value as etcd's JSON has it, and back.
std::string to_base64(std::string_view text);
std::string from_base64(std::string_view text);
/// The key after all that begin with the prefix.
std::string end_of_prefix(std::string prefix);

/// A member of an object of etcd's JSON, if it is there and of that type.
const boost::json::object* object_in(const boost::json::object& from, std::string_view name);
/// \return empty, if not.
std::string text_in(const boost::json::object& from, std::string_view name);

/// One connection, made when it is needed, to one endpoint after the other.
///
/// Threading: the loop's. Errors: to the handler.
class etcd_connection {
 public:
  using handler = std::function<void(boost::system::error_code)>;
  using stream = boost::beast::ssl_stream<boost::beast::tcp_stream>;

  explicit etcd_connection(const etcd_access& access);
  void open(handler done);
  /// \param failed the next one, of whatever connection, goes to the next endpoint.
  void drop(bool failed);
  /// It has answered: what ends it now is no refusal of this client's certificate.
  void works() noexcept { refused_ = false; }
  /// It ended with this error.
  void failed(const boost::system::error_code& why);
  bool is_open() const noexcept { return stream_ != nullptr && ready_; }
  /// What is called with it keeps it until then: drop() may be called meanwhile.
  const std::shared_ptr<stream>& get() const noexcept { return stream_; }
  /// Why it could not be made, if more is known than the error's words.
  const std::string& problem() const noexcept { return problem_; }
  /// The endpoint of the newest attempt.
  const etcd_endpoint& endpoint() const noexcept {
    return access_.endpoints[used_ % access_.endpoints.size()];
  }
  void expect() { boost::beast::get_lowest_layer(*stream_).expires_after(access_.patience); }

 private:
  void connect(const std::shared_ptr<stream>& made,
               const boost::asio::ip::tcp::resolver::results_type& found,
               const std::shared_ptr<std::string>& refusal, const handler& done);

  etcd_access access_;
  boost::asio::ip::tcp::resolver resolver_;
  std::shared_ptr<stream> stream_;
  std::size_t used_ = 0;
  std::string problem_;
  bool ready_ = false;
  bool refused_ = false;  ///< Perhaps.
};

/// Calls, one after the other.
///
/// Threading: the loop's. Lifetime: outlives the loop's last handler.
/// Errors:    to the handler; a call is not repeated. If etcd refuses it, the answer's "error" says
///            why.
class etcd_caller {
 public:
  using handler = std::function<void(boost::system::error_code, const boost::json::object&)>;

  explicit etcd_caller(const etcd_access& access) : connection_(access) {}
  /// \param what "kv/put".
  void call(std::string_view what, const boost::json::object& body, handler done);
  /// In a handler: where its call went.
  const etcd_connection& connection() const noexcept { return connection_; }

 private:
  struct request {
    std::string target;
    std::string body;
    handler done;
  };
  void pump();
  void write();
  void read();
  void end(boost::system::error_code why, const boost::json::object& answer);

  etcd_connection connection_;
  std::deque<request> waiting_;
  bool busy_ = false;
  boost::beast::http::request<boost::beast::http::string_body> message_;
  boost::beast::http::response<boost::beast::http::string_body> answer_;
  boost::beast::flat_buffer buffer_;
};

/// Tells of every change below a prefix, in order, from a revision on.
///
/// Threading: the loop's. Lifetime: as its shared pointer says; no handler is called after stop().
class etcd_watch : public std::enable_shared_from_this<etcd_watch> {
 public:
  struct handlers {
    /// \param value nothing: deleted.
    std::function<void(const std::string& key, const std::optional<std::string>& value)> changed;
    /// It is over. \param said by etcd, or empty.
    std::function<void(boost::system::error_code, std::string_view said)> failed;
  };

  etcd_watch(const etcd_access& access, std::string prefix, std::int64_t revision, handlers tell);
  void start();
  void stop();
  const etcd_connection& connection() const noexcept { return connection_; }

 private:
  void write();
  void read();
  void take(std::string_view line);
  void fail(boost::system::error_code why, std::string_view said = {});

  etcd_connection connection_;
  const std::string prefix_;
  const std::int64_t revision_;
  handlers tell_;
  boost::beast::http::request<boost::beast::http::string_body> message_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::buffer_body>> parser_;
  boost::beast::flat_buffer buffer_;
  std::string text_;  // Of the line that is not whole.
  std::vector<char> piece_;
  bool stopped_ = false;
};

}  // namespace sluice::fleet
