#include "control_server.hpp"

#include "message.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr int accepted_at_once = 8;
constexpr int events_at_once = 16;
constexpr int requests_at_once = 4;
/// While somebody else still has the socket: an owner that has just ended, say.
constexpr duration retry_every = 100ms;
/// After it could not be had for another reason.
constexpr duration open_again = 10s;
/// Whether its file is still there.
constexpr duration file_look_every = 1s;
/// What peers passed and was not closed yet; then nobody is accepted.
constexpr std::size_t most_closes = 64;

std::string refusal(std::string_view code, std::string_view sentence) {
  std::string line = R"({"error":{"code":")";
  line.append(code).append(R"(","sentence":")").append(sentence);
  return line.append(R"("},"version":1})"
                     "\n");
}

}  // namespace

control_server::control_server(control_server_options options, reactor& loop, answerer answer)
    : options_(std::move(options)),
      loop_(loop),
      answer_(std::move(answer)),
      listener_(SOCK_STREAM, "the control socket") {}

control_server::~control_server() {
  loop_.exclusive([this] { close(); });
}

bool control_server::is_own(uid_t user) const noexcept { return user == 0 || user == ::geteuid(); }

void control_server::owns(bool does) {
  wanted_ = does;
  complained_ = failed_ = lost_ = false;
  next_look_ = {};
  does ? open() : close();
}

void control_server::open() {
  if (!wanted_) return;
  if (opened_) return accept_again();
  const auto failed = [&](const std::string& problem) {
    close();
    failed_ = true;
    next_look_ = clock::now() + open_again;
    if (options_.say && !std::exchange(complained_, true))
      options_.say(problem + "; commands such as 'sluice status' cannot reach this daemon");
  };
  if (again_ == timer_id::none) {
    const auto timer = loop_.add_timer([this] { open(); });
    if (!timer) return failed("cannot create the control socket: " + timer.error().message());
    again_ = *timer;
  }
  std::string problem;
  if (const auto made = listener_.open(options_.socket, options_.mode, options_.group, problem);
      !made) {
    if (made.error() != errc::already_owned || lost_) return failed(problem);
    loop_.arm(again_, clock::now() + retry_every);
    return;
  }
  events_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!events_) return failed("cannot create the control socket: " + last_system_error().message());
  const auto accepting = loop_.watch(listener_.fd(), [this] { accept_some(); });
  if (!accepting) return failed("cannot create the control socket: " + accepting.error().message());
  accepting_ = *accepting;
  const auto looking = loop_.watch(events_.get(), [this] { look_at_connections(); });
  if (!looking) return failed("cannot create the control socket: " + looking.error().message());
  looking_ = *looking;
  opened_ = true;
  if (options_.say && (failed_ || lost_))
    options_.say("the control socket " + options_.socket + " is now served");
  complained_ = failed_ = lost_ = false;
}

void control_server::look_after_file(time_point now) {
  if (!wanted_ || now < next_look_) return;
  next_look_ = now + file_look_every;
  if (opened_ && !listener_.is_in_place()) {
    if (options_.say)
      options_.say("the control socket " + options_.socket +
                   " was removed or replaced; creating it again");
    close();
    lost_ = true;
  }
  // Where somebody else has it, the timer looks.
  if (!opened_ && (failed_ || lost_)) open();
}

void control_server::accept_again() {
  if (accepting_ != watch_id::none) return;
  if (const auto made = loop_.watch(listener_.fd(), [this] { accept_some(); }))
    accepting_ = *made;
  else
    loop_.arm(again_, clock::now() + retry_every);
}

void control_server::pause() {
  loop_.unwatch(std::exchange(accepting_, watch_id::none));
  loop_.arm(again_, clock::now() + retry_every);
}

void control_server::close() {
  loop_.unwatch(std::exchange(accepting_, watch_id::none));
  loop_.unwatch(std::exchange(looking_, watch_id::none));
  loop_.remove(std::exchange(again_, timer_id::none));
  connections_.clear();
  events_ = {};
  listener_.close();
  opened_ = false;
}

bool control_server::admit(const asker& who) const {
  if (is_own(who.user)) return connections_.size() < options_.most_connections;
  std::size_t others = 0;
  std::size_t of_user = 0;
  for (const auto& [id, each] : connections_) {
    if (!is_own(each.who.user)) ++others;
    if (each.who.user == who.user) ++of_user;
  }
  return connections_.size() < options_.most_connections && of_user < options_.most_of_a_user &&
         others + options_.kept_for_own < options_.most_connections;
}

void control_server::accept_some() {
  if (client::closes_waiting() >= most_closes) return pause();
  for (int i = 0; i < accepted_at_once; ++i) {
    client::foreign_fd socket(
        ::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Out of descriptors: those that wait would be announced again and again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause();
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    const asker who{.pid = peer.pid, .user = peer.uid};
    if (!admit(who)) {
      const std::string line =
          refusal("busy", "too many connections to the daemon; try again later");
      (void)::send(socket.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      continue;
    }
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = next_;
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket.get(), &wanted) != 0) continue;
    connections_.emplace(
        next_++, connection{.socket = std::move(socket), .who = who, .since = clock::now()});
  }
}

void control_server::look_at_connections() {
  std::array<epoll_event, events_at_once> events;
  const int count = ::epoll_wait(events_.get(), events.data(), events_at_once, 0);
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t number = event.data.u64;  // the struct is packed: no reference to it
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    if ((event.events & ~(EPOLLIN | EPOLLOUT)) != 0 || !serve(found)) drop(found);
  }
}

bool control_server::serve(handle which) {
  connection& one = which->second;
  for (int i = 0; i < requests_at_once; ++i) {
    if (!flush(one)) return false;
    if (!one.out.empty()) return listen_to(which);
    if (one.last) return false;
    auto end = one.in.find('\n');
    if (end == one.in.npos) {
      if (!receive_from(one)) return false;
      end = one.in.find('\n');
    }
    if (std::min(end, one.in.size()) > control_desk::longest_request) {
      one.out = refusal("bad_request", "request too long: expected one line of at most 4096 bytes");
      one.last = true;
      continue;
    }
    if (end == one.in.npos) return listen_to(which);
    one.out = answer_(std::string_view(one.in).substr(0, end), one.who);
    one.in.erase(0, end + 1);
    one.since = clock::now();
  }
  return flush(one) && listen_to(which);
}

/// What is there, up to a little more than a request. \return false: it has hung up.
bool control_server::receive_from(connection& from) {
  const bool had_none = from.in.empty();
  while (from.in.size() <= control_desk::longest_request) {
    client::message piece;
    switch (client::receive(from.socket.get(), piece)) {
      case client::received::hung_up: return false;
      case client::received::none: return true;
      case client::received::one: break;
    }
    if (had_none) from.since = clock::now();
    const auto* const bytes = reinterpret_cast<const char*>(piece.bytes.data());
    from.in.append(bytes, piece.size);
    if (from.in.find('\n') != from.in.npos) return true;
  }
  return true;
}

bool control_server::flush(connection& to) {
  while (to.sent < to.out.size()) {
    const ssize_t sent = ::send(to.socket.get(), to.out.data() + to.sent, to.out.size() - to.sent,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    to.sent += static_cast<std::size_t>(sent);
  }
  to.out.clear();
  to.sent = 0;
  return true;
}

bool control_server::listen_to(handle which) {
  connection& one = which->second;
  epoll_event wanted{};
  wanted.data.u64 = which->first;
  // Nothing more is heard until the answer is taken. What is here already waits for no event of its
  // own: a socket can be written to.
  const bool goes_on = !one.out.empty() || one.last || one.in.find('\n') != one.in.npos;
  wanted.events = goes_on ? EPOLLOUT : EPOLLIN;
  return ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, one.socket.get(), &wanted) == 0;
}

void control_server::drop(handle which) {
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, which->second.socket.get(), nullptr);
  connections_.erase(which);
}

void control_server::tick(time_point now) {
  look_after_file(now);
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto which = next++;
    const connection& one = which->second;
    const duration limit = !one.out.empty()  ? options_.answer_limit
                           : !one.in.empty() ? options_.request_limit
                                             : options_.idle_limit;
    if (now - one.since > limit) drop(which);
  }
}

}  // namespace sluice
