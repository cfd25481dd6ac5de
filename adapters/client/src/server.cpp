#include "listener.hpp"
#include "peer_process.hpp"
#include "session.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sluice/client_server.hpp"
#include "sluice/os/log_limiter.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::client {
namespace {

constexpr int accepted_at_once = 16;
constexpr std::size_t highest_limit = 4096;
/// Connections that have not said what they are. Mostly none: a hello comes with its connection.
constexpr std::size_t most_strangers = 64;
/// What peers passed and was not closed yet; then nobody is accepted.
constexpr std::size_t most_closes = 64;
/// Of those that were refused, so many are remembered.
constexpr std::size_t most_refused = 1024;
/// Lines about clients at once; then one a second.
constexpr int lines_at_once = 32;

/// Whether busy clients' cores are being written is looked at so often, at so many at a time.
constexpr duration core_interval = std::chrono::milliseconds(20);
constexpr std::ptrdiff_t cores_at_once = 16;

class server_impl final : public server, public session_home {
 public:
  explicit server_impl(server_options options) : options_(std::move(options)) {}

  std::string_view name() const noexcept override { return "clients"; }

  result<void> start(source_host& host) override {
    for (const std::size_t each :
         {options_.most_clients, options_.most_of_a_process, options_.most_of_a_user}) {
      if (each == 0 || each > highest_limit) {
        say("the clients' socket " + options_.socket + ": invalid limit of " +
            std::to_string(each) + " clients: expected 1 to " + std::to_string(highest_limit));
        return errc::bad_config;
      }
    }
    clients_ = host.clients();
    if (clients_ == nullptr || clients_->scheduler_page() < 0) {
      say("the clients' socket " + options_.socket +
          ": this scheduler does not support clients in other processes");
      return errc::not_supported;
    }
    if (!rules_bell_) {
      say("the clients' socket " + options_.socket +
          ": out of file descriptors; increase RLIMIT_NOFILE");
      return error_code{EMFILE, boost::system::system_category()};
    }
    std::string problem;
    if (auto opened = listener_.open(options_.socket, options_.mode, options_.group, problem);
        !opened) {
      say(problem);
      return opened;
    }
    loop_ = &host.loop();
    auto timer = loop_->add_timer([this] { tick(); });
    if (!timer) {
      stop();
      return timer.error();
    }
    timer_ = *timer;
    auto watched = loop_->watch(listener_.fd(), [this] { accept_some(); });
    if (!watched) {
      stop();
      return watched.error();
    }
    watch_ = *watched;
    auto rules = loop_->watch(rules_bell_.get(), [this] { ask_again(); });
    if (!rules) {
      stop();
      return rules.error();
    }
    rules_watch_ = *rules;
    return {};
  }

  void resync() override {}

  void rules_changed() noexcept override { (void)::eventfd_write(rules_bell_.get(), 1); }

  void stop() override {
    if (loop_ == nullptr) return;
    loop_->unwatch(std::exchange(watch_, watch_id::none));
    loop_->unwatch(std::exchange(rules_watch_, watch_id::none));
    sessions_.clear();
    dropped_.clear();
    loop_->remove(std::exchange(timer_, timer_id::none));
    listener_.close();
    loop_ = nullptr;
  }

 private:
  struct known_process {
    role what{};
    std::size_t clients = 0;
  };
  using identity = std::pair<pid_t, std::uint64_t>;

  // session_home
  client_host& clients() override { return *clients_; }
  reactor& loop() override { return *loop_; }

  bool admit(const peer& who, role what, std::string& why) override {
    if (may_enter(who, what, why)) return true;
    // Who is refused asks again and again.
    if (refused_.size() == most_refused) refused_.clear();
    if (refused_.insert({who.pid, who.start_time}).second && allow_line())
      say("refused client " + words_of(who) + ": " + why + line_end_ + keys_of(who));
    return false;
  }

  bool may_enter(const peer& who, role what, std::string& why) {
    const auto found = processes_.find({who.pid, who.start_time});
    if (found != processes_.end() && found->second.what != what) {
      why = "the process is already registered as " + std::string(to_string(found->second.what)) +
            "; use one role for all clients of a process";
      return false;
    }
    if (found != processes_.end() && found->second.clients >= options_.most_of_a_process) {
      why = "limit reached: the process has " + std::to_string(found->second.clients) +
            " clients; close a client, or share one between threads";
      return false;
    }
    if (const auto of_user = users_.find(who.user);
        of_user != users_.end() && of_user->second >= options_.most_of_a_user) {
      why = "limit reached: user " + std::to_string(who.user) + " has " +
            std::to_string(of_user->second) + " clients";
      return false;
    }
    if (admitted_ >= options_.most_clients) {
      why = "limit reached: the scheduler has " + std::to_string(admitted_) + " clients";
      return false;
    }
    // Asked each time: the process may have moved to another cgroup.
    if (!allows(who, what, why)) return false;
    ++admitted_;
    ++users_[who.user];
    if (found != processes_.end()) {
      ++found->second.clients;
      return true;
    }
    processes_.emplace(identity{who.pid, who.start_time}, known_process{what, 1});
    refused_.erase({who.pid, who.start_time});
    if (options_.tell && allow_line())
      options_.tell(words_of(who) + " registered as " + std::string(to_string(what)) + line_end_ +
                    keys_of(who));
    if (options_.registered) options_.registered(who, what);
    return true;
  }

  bool allows(const peer& who, role what, std::string& why) override {
    if (options_.allow && options_.allow(who, what)) return true;
    why = "process " + std::to_string(who.pid) + " of user " + std::to_string(who.user) +
          " may not be " + std::string(to_string(what)) +
          ": the scheduler's configuration does not grant this role to its user, groups or "
          "cgroup; see may_claim_" +
          std::string(to_string(what)) + " in [roles], and sluice role set";
    return false;
  }

  void dismiss(const peer& who, role what) override {
    --admitted_;
    if (const auto of_user = users_.find(who.user); --of_user->second == 0) users_.erase(of_user);
    const auto found = processes_.find({who.pid, who.start_time});
    if (--found->second.clients != 0) return;
    processes_.erase(found);
    if (options_.withdrawn) options_.withdrawn(who, what);
  }

  void drop(std::uint64_t session) override {
    dropped_.push_back(session);
    loop_->arm(timer_, clock::now());
  }

  void due_changed() override {
    if (!ticking_) rearm();
  }

  void has_begun() override {
    if (core_look_ != never) return;
    core_look_ = clock::now() + core_interval;
    due_changed();
  }

  void has_lost(const peer& who, std::uint64_t in_flight, std::string_view how) override {
    if (options_.tell && allow_line())
      options_.tell(words_of(who) + " " + std::string(how) + " with " + std::to_string(in_flight) +
                    (in_flight == 1 ? " request" : " requests") + " in flight, counted as ended" +
                    line_end_ + keys_of(who));
  }

  void ask_again() {
    eventfd_t ignored = 0;
    (void)::eventfd_read(rules_bell_.get(), &ignored);
    for (const auto& [number, each] : sessions_) each->ask_again();
  }

  void accept_some() {
    for (int i = 0; i < accepted_at_once; ++i) {
      if (closes_waiting() > most_closes) return pause();
      foreign_fd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        // Out of descriptors: those that wait would be announced again and again.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause();
        return;
      }
      take(std::move(socket));
    }
  }

  void take(foreign_fd socket) {
    std::string why;
    auto found = identify(socket.get(), why);
    if (!found) {
      send_refusal(socket.get(), EAGAIN, why);
      ::shutdown(socket.get(), SHUT_RDWR);
      return;
    }
    const std::uint64_t number = ++last_session_;
    const auto made = sessions_.emplace(
        number, std::make_unique<session>(*this, number, std::move(socket), std::move(*found),
                                          clock::now() + options_.hello_limit));
    session& fresh = *made.first->second;
    // Its hello is read first: however many say nothing, who does is heard.
    if (!fresh.start()) {
      sessions_.erase(number);
    } else if (fresh.is_stranger() && sessions_.size() - admitted_ > most_strangers) {
      fresh.refuse(EAGAIN, "too many connections wait to register; try again later");
      sessions_.erase(number);
    }
    rearm();
  }

  void pause() {
    loop_->unwatch(std::exchange(watch_, watch_id::none));
    resume_at_ = clock::now() + std::chrono::milliseconds(100);
    rearm();
  }

  void tick() {
    ticking_ = true;
    const time_point now = clock::now();
    for (const auto& [number, each] : sessions_) {
      if (each->due() <= now) each->tick(now);
    }
    if (now >= core_look_) look_for_cores(now);
    for (std::uint64_t number : std::exchange(dropped_, {})) sessions_.erase(number);
    if (now >= resume_at_) {
      resume_at_ = never;
      if (auto watched = loop_->watch(listener_.fd(), [this] { accept_some(); })) watch_ = *watched;
    }
    ticking_ = false;
    rearm();
  }

  /// Few are all looked at. Of many, those that are silent, in turn, from the first on that the
  /// last call did not come to.
  void look_for_cores(time_point now) {
    looked_at_.clear();
    const auto busy = std::count_if(sessions_.begin(), sessions_.end(),
                                    [](const auto& each) { return each.second->is_busy(); });
    for (const auto& [number, each] : sessions_) {
      const bool silent = each->is_silent();
      if (each->is_busy() && (silent || busy <= cores_at_once)) looked_at_.push_back(each.get());
    }
    if (std::ssize(looked_at_) > cores_at_once) {
      const auto first =
          std::partition_point(looked_at_.begin(), looked_at_.end(),
                               [&](session* each) { return each->number() <= last_looked_at_; });
      std::rotate(looked_at_.begin(), first, looked_at_.end());
      looked_at_.resize(std::size_t{cores_at_once});
    }
    for (session* const each : looked_at_) {
      last_looked_at_ = each->number();
      each->look_for_core();
    }
    core_look_ = busy == 0 ? never : now + core_interval;
  }

  void rearm() {
    time_point next = dropped_.empty() ? std::min(resume_at_, core_look_) : time_point{};
    for (const auto& [number, each] : sessions_) next = std::min(next, each->due());
    loop_->arm(timer_, next);
  }

  static std::string words_of(const peer& who) {
    return "process " + std::to_string(who.pid) + " (" + who.name + ") of user " +
           std::to_string(who.user);
  }

  static std::string keys_of(const peer& who) {
    return " pid=" + std::to_string(who.pid) + " user=" + std::to_string(who.user);
  }

  /// Whether the log takes a line about a client now, which then ends in line_end_.
  bool allow_line() {
    std::uint64_t suppressed = 0;
    if (!lines_.allow(clock::now(), suppressed)) return false;
    line_end_ = core::left_out(suppressed);
    return true;
  }

  void say(const std::string& line) const {
    if (options_.say) {
      options_.say(line);
    } else {
      std::fprintf(stderr, "sluice: %s\n", line.c_str());
    }
  }

  const server_options options_;
  const unique_fd rules_bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  client_host* clients_ = nullptr;
  reactor* loop_ = nullptr;  // Null while stopped.
  listener listener_{SOCK_SEQPACKET, "the clients' socket"};
  watch_id watch_{};
  watch_id rules_watch_{};
  timer_id timer_{};
  time_point resume_at_ = never;
  time_point core_look_ = never;
  std::uint64_t last_looked_at_ = 0;  // The session.
  std::vector<session*> looked_at_;   // Of one look_for_cores().
  std::map<identity, known_process> processes_;
  std::map<uid_t, std::size_t> users_;  // Clients of each that has any.
  std::map<std::uint64_t, std::unique_ptr<session>> sessions_;
  std::vector<std::uint64_t> dropped_;
  std::size_t admitted_ = 0;
  std::set<identity> refused_;  // And said so.
  core::log_limiter lines_{lines_at_once};
  std::string line_end_;
  std::uint64_t last_session_ = 0;
  bool ticking_ = false;
};

}  // namespace

std::unique_ptr<server> make_server(server_options options) {
  return std::make_unique<server_impl>(std::move(options));
}

}  // namespace sluice::client
