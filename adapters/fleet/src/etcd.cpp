#include "etcd.hpp"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <utility>

#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "sluice/os/proc.hpp"

namespace sluice::fleet {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using boost::system::error_code;

constexpr std::size_t longest_line = std::size_t{1} << 20;
constexpr std::size_t piece_size = 4096;

error_code bad_answer() { return make_error_code(boost::system::errc::bad_message); }

error_code refused() { return make_error_code(boost::system::errc::operation_not_permitted); }

/// Where one member cannot serve, such as without a leader (503), another one may.
error_code error_of(http::status status) {
  if (status == http::status::ok) return {};
  if (status == http::status::request_timeout ||
      http::to_status_class(status) == http::status_class::server_error)
    return make_error_code(boost::system::errc::resource_unavailable_try_again);
  return refused();
}

/// POST, as all calls are.
http::request<http::string_body> post(const std::string& target, const std::string& host,
                                      std::string body) {
  http::request<http::string_body> made{http::verb::post, "/v3/" + target, 11};
  made.set(http::field::host, host);
  made.set(http::field::content_type, "application/json");
  made.body() = std::move(body);
  made.prepare_payload();
  return made;
}

bool is_closed(const error_code& why) {
  return why == boost::asio::ssl::error::stream_truncated || why == http::error::end_of_stream ||
         why == boost::asio::error::connection_reset || why == boost::asio::error::broken_pipe ||
         why == boost::asio::error::eof;
}

}  // namespace

std::optional<etcd_endpoint> parse_endpoint(std::string_view text) {
  constexpr std::string_view scheme = "https://";
  if (!text.starts_with(scheme)) return {};
  text.remove_prefix(scheme.size());
  if (text.ends_with('/')) text.remove_suffix(1);
  // "[::1]:2379": the brackets are not the address's.
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string_view port = colon == text.npos ? "2379" : text.substr(colon + 1);
  const auto number = parse_number<std::uint16_t>(port);
  if (host.empty() || !number || *number == 0 || host.find_first_of("/@[]") != host.npos) return {};
  return etcd_endpoint{std::string(host), std::string(port)};
}

std::string text_of(const etcd_endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return std::string("https://") + (brackets ? "[" : "") + endpoint.host + (brackets ? "]:" : ":") +
         endpoint.port;
}

const json::object* object_in(const json::object& from, std::string_view name) {
  const json::value* const found = from.if_contains(name);
  return found == nullptr ? nullptr : found->if_object();
}

std::string text_in(const json::object& from, std::string_view name) {
  const json::value* const found = from.if_contains(name);
  const json::string* const text = found == nullptr ? nullptr : found->if_string();
  return text == nullptr ? std::string() : std::string(*text);
}

std::string to_base64(std::string_view text) {
  std::string made(4 * ((text.size() + 2) / 3) + 1, '\0');  // the end that EVP_EncodeBlock() writes
  const int size = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(made.data()),  // NOLINT: C
                                     reinterpret_cast<const unsigned char*>(text.data()),  // NOLINT
                                     static_cast<int>(text.size()));
  made.resize(static_cast<std::size_t>(size));
  return made;
}

std::string from_base64(std::string_view text) {
  std::string made(3 * (text.size() / 4) + 3, '\0');
  const int size = ::EVP_DecodeBlock(reinterpret_cast<unsigned char*>(made.data()),  // NOLINT: C
                                     reinterpret_cast<const unsigned char*>(text.data()),  // NOLINT
                                     static_cast<int>(text.size()));
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  made.resize(size < 0 ? 0 : static_cast<std::size_t>(size) - padding);
  return made;
}

std::string end_of_prefix(std::string prefix) {
  ++prefix.back();  // what ends with '/' never ends with the last of all bytes
  return prefix;
}

std::string words_of(const error_code& why) {
  if (why == beast::error::timeout) return "no answer in time";
  if (is_closed(why)) return "it closed the connection";
  if (why.category() == boost::asio::error::get_ssl_category()) {
    switch (ERR_GET_REASON(static_cast<unsigned long>(why.value()))) {
      case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "it refused the certificate of --cert; was it made by etcd's --trusted-ca-file, is "
               "it still valid, and is it for clients (clientAuth)?";
      case SSL_R_WRONG_VERSION_NUMBER: return "it does not speak TLS";
      default: break;
    }
  }
  return why.message();
}

// etcd_connection -------------------------------------------------------------------------------

etcd_connection::etcd_connection(const etcd_access& access)
    : access_(access), resolver_(access.loop) {}

void etcd_connection::open(handler done) {
  ready_ = false;
  problem_.clear();
  used_ = access_.current;
  stream_ = std::make_shared<stream>(access_.loop, access_.tls);
  const auto made = stream_;
  std::string name = endpoint().host;
  error_code is_no_address;
  (void)boost::asio::ip::make_address(name, is_no_address);
  // As SSL_set_tlsext_host_name(), for servers of several names.
  if (is_no_address)
    (void)::SSL_ctrl(made->native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                     name.data());
  const auto refusal = std::make_shared<std::string>();
  made->set_verify_callback([name, refusal](bool valid, boost::asio::ssl::verify_context& seen) {
    if (!valid)
      *refusal = ::X509_verify_cert_error_string(::X509_STORE_CTX_get_error(seen.native_handle()));
    else if (!boost::asio::ssl::host_name_verification(name)(valid, seen))
      *refusal = "it does not name " + name + " in subjectAltName";
    return refusal->empty();
  });
  // A name server that does not answer has a limit of its own, which is too long.
  const auto limit = std::make_shared<boost::asio::steady_timer>(access_.loop, access_.patience);
  const auto resolved = std::make_shared<bool>(false);
  limit->async_wait([made, resolved, limit, done](error_code) {
    if (!std::exchange(*resolved, true)) done(beast::error::timeout);
  });
  resolver_.async_resolve(
      name, endpoint().port,
      [this, made, resolved, limit, refusal, done](error_code why, const auto& found) {
        if (std::exchange(*resolved, true)) return;
        limit->cancel();
        if (why) return done(why);
        connect(made, found, refusal, done);
      });
}

void etcd_connection::connect(const std::shared_ptr<stream>& made,
                              const boost::asio::ip::tcp::resolver::results_type& found,
                              const std::shared_ptr<std::string>& refusal, const handler& done) {
  beast::get_lowest_layer(*made).expires_after(access_.patience);
  beast::get_lowest_layer(*made).async_connect(
      found, [this, made, refusal, done](error_code why, const auto&) {
        if (why) return done(why);
        // A hold is not to wait for the answer to the one before.
        error_code ignored;
        beast::get_lowest_layer(*made).socket().set_option(boost::asio::ip::tcp::no_delay(true),
                                                           ignored);
        beast::get_lowest_layer(*made).expires_after(access_.patience);
        // Called when etcd asks for this client's certificate.
        const auto asked = std::make_shared<bool>(false);
        ::SSL_set_cert_cb(
            made->native_handle(),
            [](SSL*, void* that) {
              *static_cast<bool*>(that) = true;
              return 1;
            },
            asked.get());
        made->async_handshake(boost::asio::ssl::stream_base::client, [this, made, refusal, asked,
                                                                      done](error_code failed) {
          ::SSL_set_cert_cb(made->native_handle(), nullptr, nullptr);
          if (made == stream_) {
            if (!refusal->empty()) problem_ = "its certificate is not accepted: " + *refusal;
            if (!failed && !*asked) {
              problem_ =
                  "it asks for no certificate, so everybody who reaches it could hold jobs; "
                  "start it with --client-cert-auth";
              failed = make_error_code(boost::system::errc::permission_denied);
            }
            ready_ = refused_ = !failed;
          }
          done(failed);
        });
      });
}

/// In TLS 1.3, the handshake ends before etcd looks at the certificate, and its alert may be lost.
void etcd_connection::failed(const error_code& why) {
  if (refused_ && is_closed(why))
    problem_ = "it closed the connection; perhaps it refused the certificate of --cert";
}

void etcd_connection::drop(bool failed) {
  resolver_.cancel();
  if (failed && used_ == access_.current) ++access_.current;
  ready_ = false;
  if (stream_) beast::get_lowest_layer(*stream_).close();
  stream_.reset();
}

// etcd_caller -----------------------------------------------------------------------------------

void etcd_caller::call(std::string_view what, const json::object& body, handler done) {
  waiting_.push_back({std::string(what), json::serialize(body), std::move(done)});
  pump();
}

void etcd_caller::pump() {
  if (busy_ || waiting_.empty()) return;
  busy_ = true;
  if (connection_.is_open()) return write();
  connection_.open([this](error_code why) {
    if (why) return end(why, {});
    write();
  });
}

void etcd_caller::write() {
  message_ = post(waiting_.front().target, connection_.endpoint().host, waiting_.front().body);
  connection_.expect();
  http::async_write(*connection_.get(), message_,
                    [this, kept = connection_.get()](error_code why, std::size_t) {
                      if (why) return end(why, {});
                      read();
                    });
}

void etcd_caller::read() {
  answer_ = {};
  http::async_read(*connection_.get(), buffer_, answer_,
                   [this, kept = connection_.get()](error_code why, std::size_t) {
                     if (why) return end(why, {});
                     json::value parsed = json::parse(answer_.body(), why);
                     if (why || !parsed.is_object()) return end(bad_answer(), {});
                     connection_.works();
                     // What etcd refuses, it explains.
                     end(error_of(answer_.result()), parsed.get_object());
                   });
}

void etcd_caller::end(error_code why, const json::object& answer) {
  const request done = std::move(waiting_.front());
  waiting_.pop_front();
  busy_ = false;
  if (why && why != refused()) {
    connection_.failed(why);
    connection_.drop(true);
    buffer_.clear();
  }
  done.done(why, answer);
  pump();
}

// etcd_watch ------------------------------------------------------------------------------------

etcd_watch::etcd_watch(const etcd_access& access, std::string prefix, std::int64_t revision,
                       handlers tell)
    : connection_(access),
      prefix_(std::move(prefix)),
      revision_(revision),
      tell_(std::move(tell)),
      piece_(piece_size) {}

void etcd_watch::start() {
  connection_.open([self = shared_from_this()](error_code why) {
    if (why) return self->fail(why);
    self->write();
  });
}

void etcd_watch::stop() {
  stopped_ = true;
  connection_.drop(false);
}

void etcd_watch::write() {
  if (stopped_) return;
  message_ =
      post("watch", connection_.endpoint().host,
           json::serialize(json::object{
               {"create_request", json::object{{"key", to_base64(prefix_)},
                                               {"range_end", to_base64(end_of_prefix(prefix_))},
                                               {"start_revision", std::to_string(revision_)}}}}));
  connection_.expect();
  http::async_write(
      *connection_.get(), message_,
      [self = shared_from_this(), kept = connection_.get()](error_code why, std::size_t) {
        if (why) return self->fail(why);
        self->parser_.emplace();
        self->parser_->body_limit(boost::none);
        self->read();
      });
}

void etcd_watch::read() {
  if (stopped_) return;
  auto& body = parser_->get().body();
  body.data = piece_.data();
  body.size = piece_.size();
  connection_.expect();
  http::async_read_some(
      *connection_.get(), buffer_, *parser_,
      [self = shared_from_this(), kept = connection_.get()](error_code why, std::size_t) {
        if (self->stopped_) return;
        if (why && why != http::error::need_buffer) return self->fail(why);
        if (self->parser_->is_header_done() && self->parser_->get().result() != http::status::ok)
          return self->fail(bad_answer(),
                            "HTTP status " + std::to_string(self->parser_->get().result_int()));
        self->text_.append(self->piece_.data(),
                           self->piece_.size() - self->parser_->get().body().size);
        if (self->text_.size() > longest_line) return self->fail(bad_answer());
        std::size_t end = 0;
        while (!self->stopped_ && (end = self->text_.find('\n')) != std::string::npos) {
          const std::string line = self->text_.substr(0, end);
          self->text_.erase(0, end + 1);
          self->take(line);
        }
        if (self->stopped_) return;
        if (self->parser_->is_done()) return self->fail(http::error::end_of_stream);
        self->read();
      });
}

void etcd_watch::take(std::string_view line) {
  if (line.empty()) return;
  error_code why;
  const json::value parsed = json::parse(line, why);
  const json::object* const whole = why ? nullptr : parsed.if_object();
  const json::object* const result = whole == nullptr ? nullptr : object_in(*whole, "result");
  if (result == nullptr) {
    const json::object* const error = whole == nullptr ? nullptr : object_in(*whole, "error");
    return fail(bad_answer(), error == nullptr ? std::string() : text_in(*error, "message"));
  }
  // Also where the revision is too old: compacted.
  if (result->contains("canceled")) return fail(bad_answer(), text_in(*result, "cancel_reason"));
  const json::value* const events = result->if_contains("events");
  if (events == nullptr || !events->is_array()) return;
  for (const json::value& each : events->get_array()) {
    const json::object* const event = each.if_object();
    const json::object* const pair = event == nullptr ? nullptr : object_in(*event, "kv");
    if (pair == nullptr) continue;
    const std::string key = from_base64(text_in(*pair, "key"));
    if (!key.starts_with(prefix_)) continue;
    if (text_in(*event, "type") == "DELETE")
      tell_.changed(key.substr(prefix_.size()), {});
    else
      tell_.changed(key.substr(prefix_.size()), from_base64(text_in(*pair, "value")));
    if (stopped_) return;
  }
}

void etcd_watch::fail(error_code why, std::string_view said) {
  if (std::exchange(stopped_, true)) return;
  connection_.drop(true);
  tell_.failed(why, said);
}

}  // namespace sluice::fleet
