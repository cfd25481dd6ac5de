#include "gang_link.hpp"

#include "gang_packets.hpp"
#include "listener.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>

#include "sluice/os/unique_fd.hpp"

namespace sluice {
namespace {

/// The longest time for which a word of the peers counts.
constexpr duration longest_word = std::chrono::minutes(1);
constexpr int packets_at_once = 64;
/// Whether the socket is still there.
constexpr duration socket_look_every = std::chrono::seconds(1);
/// Looks with a gang, but without sluice-gangs, until that is said: it may be starting.
constexpr int looks_alone = 10;

class gang_link final : public source {
 public:
  explicit gang_link(gang_link_options options) : options_(std::move(options)) {}

  std::string_view name() const noexcept override { return "gangs"; }

  result<void> start(source_host& host) override {
    inbox_ = &host.claim_inbox();
    loop_ = &host.loop();
    for (const auto& [timer, expired] : {std::pair{&looking_, &gang_link::look_after_socket},
                                         std::pair{&losing_, &gang_link::lose_deaf_peer}}) {
      const auto made = loop_->add_timer([this, call = expired] { (this->*call)(); });
      if (!made) {
        stop();
        return made.error();
      }
      *timer = *made;
    }
    be_alone(true);
    look_after_socket();
    return {};
  }

  /// What was dropped is sent again, soon.
  void resync() override {
    for (const auto& [key, state] : gangs_) forget(key);
  }

  void stop() override {
    if (loop_ == nullptr) return;
    stop_accepting();
    for (timer_id* const each : {&looking_, &losing_})
      loop_->remove(std::exchange(*each, timer_id::none));
    disconnect();
    be_alone(false);
    listener_.close();
    loop_ = nullptr;
  }

  void gang_changed(const gang_state& what) override {
    if (what.wish == gang_wish::gone)
      gangs_.erase(what.key);
    else
      gangs_.insert_or_assign(what.key, what);
    if (peer_) tell(what);
  }

 private:
  /// Makes the socket, again if it was removed, and accepts. Without it, the scheduler does its
  /// other work.
  void look_after_socket() {
    loop_->arm(looking_, clock::now() + socket_look_every);
    alone_ = peer_ || gangs_.empty() ? 0 : alone_ + 1;
    if (alone_ == looks_alone)
      options_.say("gangs on several nodes are not held: sluice-gangs is not connected to " +
                   options_.socket + "; start it");
    if (!listener_.is_in_place()) {
      stop_accepting();
      listener_.close();
      std::string problem;
      const auto opened = listener_.open(options_.socket, 0600, {}, problem);
      if (!opened && problem != said_)
        options_.say(problem + "; gangs on several nodes are not held");
      said_ = problem;
      if (!opened) return;
    }
    if (accepting_ != watch_id::none) return;
    if (const auto watched = loop_->watch(listener_.fd(), [this] { accept_one(); }))
      accepting_ = *watched;
  }

  void be_alone(bool is) {
    if (options_.alone != nullptr) options_.alone->store(is);
  }

  void stop_accepting() { loop_->unwatch(std::exchange(accepting_, watch_id::none)); }

  void lose_deaf_peer() {
    if (peer_) lose("sluice-gangs does not take what is sent to it");
  }

  void accept_one() {
    unique_fd made(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Without free descriptors, the connection would wake the loop again at once.
    if (!made) return stop_accepting();
    if (peer_) {
      if (!std::exchange(refused_, true))
        options_.say(options_.socket +
                     ": refused a second program: one connects already; stop one of them");
      return;
    }
    refused_ = false;
    const auto watched = loop_->watch(made.get(), [this] { receive(); });
    if (!watched) return;
    peer_ = std::move(made);
    receiving_ = *watched;
    be_alone(false);
    if (options_.tell) options_.tell("gangs on several nodes: sluice-gangs is connected");
    for (const auto& [key, state] : gangs_) {
      if (peer_) tell(state);
    }
  }

  void disconnect() {
    if (!peer_) return;
    loop_->unwatch(std::exchange(receiving_, watch_id::none));
    peer_.reset();
    be_alone(true);
    for (const auto& [key, state] : gangs_) forget(key);
  }

  void lose(std::string_view why) {
    disconnect();
    options_.say("gangs on several nodes are not held: " + std::string(why));
  }

  void receive() {
    for (int i = 0; peer_ && i < packets_at_once; ++i) {
      gang_packet got;
      const ssize_t size = ::recv(peer_.get(), &got, sizeof got, MSG_TRUNC);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (size <= 0) return lose("sluice-gangs ended");
      if (size != sizeof got || got.version != gang_packets_version)
        return lose("sluice-gangs is of another release; install both from the same package");
      if (got.kind == gang_packet_kind::ask) {
        send({.kind = gang_packet_kind::alive, .number = got.number});
      } else if (got.kind == gang_packet_kind::heard) {
        const time_point now = clock::now();
        push({.kind = observation_kind::gang_heard,
              .group_key = got.key,
              .count = got.hold ? 1U : 0U,
              .at = std::min(time_point(std::chrono::nanoseconds(got.until_ns)),
                             now + longest_word)});
      }
    }
  }

  void forget(std::uint64_t key) { push({.kind = observation_kind::gang_heard, .group_key = key}); }
  void push(const observation& seen) { (void)inbox_->push(seen); }

  void tell(const gang_state& what) {
    send(
        {.kind = gang_packet_kind::state, .key = what.key, .nodes = what.nodes, .wish = what.wish});
  }

  /// If the other end does not take it at once, the connection ends.
  void send(const gang_packet& packet) {
    if (::send(peer_.get(), &packet, sizeof packet, MSG_NOSIGNAL) == sizeof packet) return;
    loop_->arm(losing_, clock::now());  // not within the scheduler's turn, which may have led here
  }

  const gang_link_options options_;
  inbox_producer* inbox_ = nullptr;
  reactor* loop_ = nullptr;
  client::listener listener_{SOCK_SEQPACKET, "the socket of sluice-gangs"};
  watch_id accepting_{};
  watch_id receiving_{};
  unique_fd peer_;
  timer_id looking_{};
  timer_id losing_{};
  int alone_ = 0;                              // Looks.
  bool refused_ = false;                       // Said that a second program connected.
  std::string said_{};                         // What is wrong with the socket.
  std::map<std::uint64_t, gang_state> gangs_;  // As the scheduler said last.
};

}  // namespace

std::unique_ptr<source> make_gang_link(gang_link_options options) {
  return std::make_unique<gang_link>(std::move(options));
}

}  // namespace sluice
