#include "session.hpp"

#include "shared_page.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

namespace sluice::client {
namespace {

using namespace std::chrono_literals;

/// Messages are registrations and waits: this many in that time, then the socket is left alone for
/// as long. Their senders wait, or find it full.
constexpr int most_messages = 128;
constexpr duration message_window = 100ms;
constexpr int messages_at_once = 16;
/// A ring that is about nothing costs a turn. Threads that ring at once cause a few; after this
/// many in a row the bell is not heard for a while.
constexpr int most_idle_rings = 100;
constexpr duration bell_pause = 10ms;
constexpr duration longest_wait = 60s;
constexpr duration longest_target = 24h;
constexpr std::string_view no_message =
    "invalid message: after its registration, a client may send only waits";

/// One line, whatever it is.
std::string name_in(const sluice_wire_hello& hello) {
  std::string name(hello.name, ::strnlen(hello.name, sizeof hello.name));
  for (char& each : name) {
    if (static_cast<unsigned char>(each) < ' ' || each == '\x7f') each = '?';
  }
  return name;
}

std::uint64_t sum_of(const sluice_client_words& words) noexcept {
  const auto load = [](const std::uint64_t& word) {
    return __atomic_load_n(&word, __ATOMIC_RELAXED);
  };
  return load(words.begun) + load(words.ended) + load(words.next);
}

/// As its page says: by now it may have ended what the scheduler still counts.
std::uint64_t in_flight_of(const sluice_client_words& words) noexcept {
  const std::uint64_t ended = __atomic_load_n(&words.ended, __ATOMIC_ACQUIRE);
  const std::uint64_t begun = __atomic_load_n(&words.begun, __ATOMIC_RELAXED);
  return begun > ended ? begun - ended : 0;
}

}  // namespace

session::session(session_home& home, std::uint64_t number, foreign_fd socket, identified peer,
                 time_point hello_until)
    : home_(home),
      number_(number),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      hello_until_(hello_until) {}

session::~session() {
  for (const auto& [number, wait] : waits_) home_.clients().stop_waiting(wait);
  for (const watch_id each : {socket_watch_, life_watch_, bell_watch_}) home_.loop().unwatch(each);
  if (client_ != client_id::none) home_.clients().remove(client_);
  if (role_ != role::unmatched) home_.dismiss(peer_.who, role_);
  ::shutdown(socket_.get(), SHUT_RDWR);  // The client sees it at once, whenever it is closed.
}

bool session::start() {
  const auto watched = home_.loop().watch(peer_.life.get(), [this] { end("has exited"); });
  if (!watched) return false;
  life_watch_ = *watched;
  if (!watch_socket()) return false;
  readable();  // The hello is there already, mostly.
  return !over_;
}

bool session::watch_socket() {
  const auto watched = home_.loop().watch(socket_.get(), [this] { readable(); });
  if (watched) socket_watch_ = *watched;
  return watched.has_value();
}

bool session::watch_bell() {
  const auto watched = home_.loop().watch(
      bell_.get(), [this] { rung(); }, reactor::trigger::edge);
  if (watched) bell_watch_ = *watched;
  return watched.has_value();
}

void session::end(std::string_view how) {
  if (over_) return;
  over_ = true;
  if (const std::uint64_t left = words_ ? in_flight_of(*words_) : 0; left != 0)
    home_.has_lost(peer_.who, left, how);
  // What has ended must not go on calling until it is dropped.
  for (watch_id* const each : {&socket_watch_, &life_watch_, &bell_watch_}) {
    home_.loop().unwatch(std::exchange(*each, watch_id::none));
  }
  home_.drop(number_);
}

time_point session::due() const noexcept {
  return std::min({hello_until_, unmute_socket_, unmute_bell_});
}

void session::tick(time_point now) {
  if (over_) return;
  if (now >= hello_until_) {
    refuse(ETIMEDOUT, "the client did not register in time");
    return end("did not register in time");
  }
  if (now >= unmute_socket_) {
    unmute_socket_ = never;
    if (!watch_socket()) return end("was disconnected (the event loop cannot watch it)");
  }
  if (now >= unmute_bell_) {
    unmute_bell_ = never;
    if (!watch_bell()) return end("was disconnected (the event loop cannot watch it)");
  }
}

void session::in_flight(bool any) {
  busy_ = any;
  if (any) home_.has_begun();
}

bool session::is_silent() noexcept {
  if (!is_busy()) return false;
  const std::uint64_t sum = sum_of(*words_);
  return std::exchange(seen_, sum) == sum;
}

void session::look_for_core() {
  if (is_dumping_core(peer_.who.pid)) end("is writing a core file");
}

void session::ask_again() {
  std::string why;
  if (over_ || role_ == role::unmatched || home_.allows(peer_.who, role_, why)) return;
  refuse(EACCES, why);
  end("has lost its role");
}

void session::thrown_out(std::string_view) {
  over_ = true;
  home_.drop(number_);
}

void session::rung() {
  const std::uint64_t moved = sum_of(*words_);
  idle_rings_ = std::exchange(moved_, moved) == moved ? idle_rings_ + 1 : 0;
  if (idle_rings_ > most_idle_rings) {
    idle_rings_ = 0;
    home_.loop().unwatch(std::exchange(bell_watch_, watch_id::none));
    unmute_bell_ = clock::now() + bell_pause;
    home_.due_changed();
  }
  // Last: it is a whole turn, which may be the scheduler's last one, and then this session's end.
  home_.clients().look();
}

void session::readable() {
  const time_point now = clock::now();
  message what;
  for (int i = 0; i < messages_at_once && !over_; ++i) {
    switch (receive(socket_.get(), what)) {
      case received::none: return;
      case received::hung_up: return end("closed its connection");
      case received::one: break;
    }
    if (!take(what, now)) return end("sent an invalid message");
  }
}

bool session::take(message& what, time_point now) {
  if (now - window_ > message_window) {
    window_ = now;
    messages_ = 0;
  }
  if (++messages_ == most_messages) {
    home_.loop().unwatch(std::exchange(socket_watch_, watch_id::none));
    unmute_socket_ = now + message_window;
    home_.due_changed();
  }
  const sluice_wire_head head = what.head();
  if (hello_until_ != never) {
    if (head.type == SLUICE_WIRE_HELLO) return hello(what);
    return refuse(EPROTO, "a client's first message must be its registration");
  }
  const auto asked = what.as<sluice_wire_wait>();
  if (!asked || head.version != SLUICE_WIRE_VERSION) return refuse(EPROTO, no_message);
  if (head.type == SLUICE_WIRE_WAIT) {
    wait(*asked, now);
  } else if (head.type == SLUICE_WIRE_STOP_WAITING) {
    stop_waiting(asked->number);
  } else {
    return refuse(EPROTO, no_message);
  }
  return !over_;
}

bool session::refuse(int error, std::string_view why) {
  send_refusal(socket_.get(), error, why);
  return false;
}

bool session::hello(message& what) {
  const sluice_wire_head head = what.head();
  const auto said = what.as<sluice_wire_hello>();
  if (head.version != SLUICE_WIRE_VERSION || head.layout != SLUICE_WORDS_LAYOUT || !said) {
    return refuse(EPROTONOSUPPORT,
                  "client library and scheduler come from different versions; install both from "
                  "the same release");
  }
  if (what.sender != peer_.who.pid) {
    return refuse(EACCES, "only the process that opened a connection may use it");
  }
  const role wanted = said->role == 1 ? role::online : role::offline;
  if (said->role < 1 || said->role > 2 || said->gpu_count > SLUICE_WIRE_GPUS ||
      std::any_of(std::begin(said->targets), std::end(said->targets),
                  [](std::int64_t each) { return each < 0; })) {
    return refuse(EINVAL,
                  "invalid registration: the role, the number of GPUs or a target is out of range");
  }
  std::string why;
  auto words = map_client_page(what.fds[0].get(), why);
  if (!words) return refuse(EINVAL, why);
  if (!is_eventfd(what.fds[1].get()))
    return refuse(EINVAL, "the client's second descriptor must be an eventfd");
  peer_.who.name = name_in(*said);
  if (!home_.admit(peer_.who, wanted, why)) return refuse(EACCES, why);
  role_ = wanted;
  // What was asked of it was answered for this process, and not for one that has its pid by now.
  if (has_ended(peer_.life.get())) return false;

  if (wanted == role::online) {
    client_options options;
    options.name = peer_.who.name;
    options.pid = peer_.who.pid;
    for (std::uint32_t i = 0; i < said->gpu_count; ++i)
      options.gpus.push_back(gpu_id{said->gpus[i]});
    for (std::size_t i = 0; i < span_kinds; ++i)
      options.targets[i] = std::min(duration(said->targets[i]), longest_target);
    bell_ = std::move(what.fds[1]);
    words_ = words;
    moved_ = sum_of(*words_);
    if (!watch_bell()) return refuse(EAGAIN, "the scheduler cannot watch one more client");
    const auto unknown = std::find_if(options.gpus.begin(), options.gpus.end(),
                                      [this](gpu_id each) { return !home_.clients().knows(each); });
    if (unknown != options.gpus.end()) {
      return refuse(ENODEV, "unknown gpu_id " +
                                std::to_string(static_cast<std::uint32_t>(*unknown)) +
                                ": the scheduler has not seen this GPU on the node; 'sluice "
                                "status' lists the GPUs");
    }
    const auto added = home_.clients().add(std::move(options), std::move(words), *this);
    if (!added) return refuse(ESHUTDOWN, "the scheduler is stopping");
    client_ = *added;
  }
  sluice_wire_welcome yes{};
  yes.head = head_of(SLUICE_WIRE_WELCOME);
  yes.role = said->role;
  yes.client = static_cast<std::uint64_t>(client_);
  hello_until_ = never;
  return send_message(socket_.get(), &yes, sizeof yes, home_.clients().scheduler_page());
}

void session::wait(const sluice_wire_wait& asked, time_point now) {
  const std::uint64_t number = asked.number;
  if (client_ == client_id::none || waits_.size() >= SLUICE_WIRE_WAITS || waits_.contains(number)) {
    return answer(number, false);
  }
  const duration timeout = std::clamp(duration(asked.timeout), duration::zero(), longest_wait);
  // Inside a turn, and never in this call.
  const auto wait =
      home_.clients().wait_until_clear(client_, now + timeout, [this, number](bool clear) {
        waits_.erase(number);
        answer(number, clear);
      });
  if (wait == 0) return answer(number, false);
  waits_.emplace(number, wait);
}

void session::stop_waiting(std::uint64_t number) {
  const auto found = waits_.find(number);
  if (found == waits_.end()) return;
  if (home_.clients().stop_waiting(found->second)) waits_.erase(found);
}

void session::answer(std::uint64_t number, bool clear) {
  if (over_) return;
  sluice_wire_answer said{};
  said.head = head_of(SLUICE_WIRE_ANSWER);
  said.number = number;
  said.clear = clear ? 1 : 0;
  if (send_message(socket_.get(), &said, sizeof said, -1)) return;
  over_ = true;  // Who does not read what it asked for.
  home_.drop(number_);
}

}  // namespace sluice::client
