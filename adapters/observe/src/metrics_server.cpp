#include "sluice/observe/metrics_server.hpp"

#include "http_request.hpp"
#include "listener.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::observe {
namespace {

/// Of a request that is refused, behind what it was refused for.
constexpr std::size_t most_ignored = std::size_t{1} << 20U;

constexpr std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    default: return "Request Header Fields Too Large";
  }
}

result<unique_fd> listen_at_address(const metrics_address& at) {
  const int family = at.ip.any.sa_family;
  unique_fd made{::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!made) return last_system_error();
  const int yes = 1;
  ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (family == AF_INET6) ::setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  const socklen_t size = family == AF_INET6 ? sizeof at.ip.v6 : sizeof at.ip.v4;
  if (::bind(made.get(), &at.ip.any, size) != 0 || ::listen(made.get(), SOMAXCONN) != 0)
    return last_system_error();
  return made;
}

}  // namespace

class metrics_server::impl {
 public:
  impl(std::function<std::string(metrics_form)> page, std::string unix_path)
      : page_(std::move(page)), unix_path_(std::move(unix_path)) {}

  result<void> start(const metrics_address& at, std::string& problem) {
    ring_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    timer_ = unique_fd{::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
    if (!ring_ || !timer_) return last_system_error();
    if (unix_path_.empty()) {
      auto made = listen_at_address(at);
      if (!made) return made.error();
      port_ = std::move(*made);
    } else if (const auto opened = file_.open(unix_path_, 0660, {}, problem); !opened) {
      return opened.error();
    }
    if (!watch(listening(), EPOLLIN, &port_) || !watch(timer_.get(), EPOLLIN, &timer_))
      return last_system_error();
    return {};
  }

  int ready_fd() const { return ring_.get(); }
  bool is_in_place() const { return unix_path_.empty() || file_.is_in_place(); }

  void serve() {
    std::array<epoll_event, most_connections + 2> ready;
    const int count = ::epoll_wait(ring_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count; ++i) {
      void* const what = ready[static_cast<std::size_t>(i)].data.ptr;
      if (what == &port_) {
        take_in();
      } else if (what == &timer_) {
        std::uint64_t ignored = 0;
        (void)!::read(timer_.get(), &ignored, sizeof ignored);
      } else {
        go_on(*static_cast<connection*>(what));
      }
    }
    const time_point now = clock::now();
    connections_.remove_if([&](const connection& each) { return each.over || each.until <= now; });
    if (accept_at_ <= now && watch(listening(), EPOLLIN, &port_)) accept_at_ = never;
    set_timer();
  }

  std::uint16_t port() const {
    metrics_address at;
    socklen_t size = sizeof at.ip;
    if (!unix_path_.empty() || ::getsockname(port_.get(), &at.ip.any, &size) != 0) return 0;
    return ntohs(at.ip.any.sa_family == AF_INET6 ? at.ip.v6.sin6_port : at.ip.v4.sin_port);
  }

 private:
  struct connection {
    unique_fd fd;
    time_point until{};
    std::string in{};
    std::string out{};
    std::size_t sent = 0;
    std::size_t ignored = 0;
    bool refused = false;
    bool answered = false;  ///< What else it says is read, and nobody minds.
    bool over = false;
  };

  int listening() const { return unix_path_.empty() ? port_.get() : file_.fd(); }

  bool watch(int fd, std::uint32_t events, void* what) {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.ptr = what;
    return ::epoll_ctl(ring_.get(), EPOLL_CTL_ADD, fd, &wanted) == 0;
  }

  void take_in() {
    // As many as there may be: the others stay where they are, or are turned away.
    for (std::size_t i = 0; i < most_connections; ++i) {
      unique_fd fd{::accept4(listening(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!fd) {
        // Out of descriptors: those that wait would be announced again and again.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause();
        return;
      }
      if (connections_.size() >= most_connections) continue;
      connection& made = connections_.emplace_back();
      made.fd = std::move(fd);
      made.until = clock::now() + longest_connection;
      if (!watch(made.fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &made)) made.over = true;
    }
  }

  void pause() {
    ::epoll_ctl(ring_.get(), EPOLL_CTL_DEL, listening(), nullptr);
    accept_at_ = clock::now() + std::chrono::milliseconds(100);
  }

  void go_on(connection& with) {
    if (with.out.empty()) hear(with);
    if (!with.out.empty() && !with.answered) say(with);
    if (with.answered) ignore(with);
  }

  void hear(connection& with) {
    std::array<char, 2048> some;
    for (;;) {
      const ssize_t got = ::recv(with.fd.get(), some.data(), some.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        with.over = true;
        return;
      }
      with.in.append(some.data(), static_cast<std::size_t>(got));
      const http_request asked = read_request(with.in);
      if (asked.status == 0) continue;
      answer(with, asked);
      return;
    }
  }

  void answer(connection& to, const http_request& asked) {
    const bool good = asked.status == 200;
    const std::string body =
        good ? page_(asked.form) : fmt::format("{}; use GET /metrics\n", reason_of(asked.status));
    to.refused = !good;
    to.out = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
        asked.status, reason_of(asked.status),
        good ? content_type(asked.form) : "text/plain; charset=utf-8", body.size(),
        asked.status == 405 ? "Allow: GET, HEAD\r\n" : "");
    if (!asked.head) to.out += body;
  }

  void say(connection& to) {
    while (to.sent < to.out.size()) {
      const ssize_t sent =
          ::send(to.fd.get(), to.out.data() + to.sent, to.out.size() - to.sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) break;
      to.sent += static_cast<std::size_t>(sent);
    }
    if (to.sent == to.out.size()) ::shutdown(to.fd.get(), SHUT_WR);
    to.answered = to.refused && to.sent == to.out.size();
    to.over = !to.answered;
  }

  /// To close with bytes unread is a reset, which may overtake the answer that says what is wrong.
  void ignore(connection& of) {
    std::array<char, 2048> some;
    while (of.ignored < most_ignored) {
      const ssize_t got = ::recv(of.fd.get(), some.data(), some.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) break;
      of.ignored += static_cast<std::size_t>(got);
    }
    of.over = true;
  }

  void set_timer() {
    itimerspec when{};
    // In order of their coming, so the first is the first to end.
    const time_point next =
        std::min(accept_at_, connections_.empty() ? never : connections_.front().until);
    if (next != never) {
      const duration left = std::max(next - clock::now(), duration(1'000'000));
      const auto whole = std::chrono::floor<std::chrono::seconds>(left);
      when.it_value = {whole.count(), (left - whole).count()};
    }
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
  }

  time_point accept_at_ = never;  // Again; never: it accepts.
  std::function<std::string(metrics_form)> page_;
  std::string unix_path_;
  client::listener file_{SOCK_STREAM, "the metrics socket"};
  unique_fd ring_;
  unique_fd timer_;
  unique_fd port_;  // Unless it is a file.
  std::list<connection> connections_;
};

metrics_server::metrics_server(std::unique_ptr<impl> body) noexcept : impl_(std::move(body)) {}
metrics_server::~metrics_server() = default;

result<std::unique_ptr<metrics_server>> metrics_server::listen(
    const metrics_address& at, std::function<std::string(metrics_form)> page,
    std::string& problem) {
  auto body = std::make_unique<impl>(std::move(page), at.unix_path);
  if (const auto started = body->start(at, problem); !started) {
    if (problem.empty()) problem = started.error().message();
    return started.error();
  }
  return std::unique_ptr<metrics_server>{new metrics_server{std::move(body)}};
}

bool metrics_server::is_in_place() const noexcept { return impl_->is_in_place(); }
int metrics_server::ready_fd() const noexcept { return impl_->ready_fd(); }
void metrics_server::serve() { impl_->serve(); }
std::uint16_t metrics_server::port() const noexcept { return impl_->port(); }

}  // namespace sluice::observe
