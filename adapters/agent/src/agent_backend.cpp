#include "sluice/agent/agent_backend.hpp"

#include "hold_record.hpp"
#include "launch.hpp"
#include "lease.hpp"
#include "online_processes.hpp"
#include "protocol.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

constexpr duration least_lease = 50ms;
constexpr duration longest_lease = 60s;
constexpr duration longest_cpu_latency = 1s;
constexpr duration first_pause = 100ms;
constexpr duration longest_pause = 5s;
/// An agent that lived this long has earned a quick replacement.
constexpr duration long_life = 10s;
/// For the agent to close its sessions by itself; it gives itself 2 s.
constexpr duration stop_patience = 3s;
/// For it to be gone after SIGKILL. A driver call in flight delays that; the kernel goes on alone.
constexpr duration kill_patience = 1s;

bool readable_within(int fd, duration at_most) noexcept {
  pollfd waiting{fd, POLLIN, 0};
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  return ::poll(&waiting, 1, static_cast<int>(milliseconds)) > 0;
}

/// The kernel keeps a dozen; the agent sends no more while they are there.
void take_rings(int bell) noexcept {
  std::array<char, 8> nothing;
  while (::recv(bell, nothing.data(), nothing.size(), MSG_DONTWAIT) >= 0) {
  }
}

class agent_backend final : public backend {
 public:
  explicit agent_backend(agent_options options) : options_(std::move(options)) {}
  ~agent_backend() override { stop(); }

  std::string_view name() const noexcept override { return name_; }

  result<void> start(backend_listener& listener) override {
    if (phase_ != phase::idle) return {};
    if (options_.lease < least_lease || options_.lease > longest_lease) {
      options_.say(
          "invalid lease of " +
          std::to_string(std::chrono::ceil<std::chrono::milliseconds>(options_.lease).count()) +
          " ms for the agent: expected 50 ms to 60 s");
      return errc::bad_config;
    }
    if (options_.cpu_latency &&
        (*options_.cpu_latency < 0s || *options_.cpu_latency > longest_cpu_latency)) {
      options_.say("invalid cpu_latency for the agent: expected 0 to 1 s");
      return errc::bad_config;
    }
    std::string tried;
    program_ = find_agent(options_.agent_path, tried);
    if (program_.empty()) {
      options_.say("program sluice-agent not found (tried " + tried +
                   "); set SLUICE_AGENT, or the key agent in [daemon], to its path");
      return error_code{ENOENT, boost::system::system_category()};
    }
    if (is_everybodys(program_))
      options_.say(program_ +
                   " has file capabilities, and every user may execute it, so any user can suspend "
                   "the work of other users; run chmod o-x " +
                   program_ +
                   ", and chgrp it to a group that contains the user who starts the agent");
    if (are_capabilities_ignored(program_))
      options_.say(
          "no_new_privs is set, so the kernel ignores the capabilities of " + program_ +
          "; set allowPrivilegeEscalation: true for a container, or NoNewPrivileges=no for "
          "a systemd unit");
    events_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    launched_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!events_ || !launched_) return last_system_error();
    if (const auto added = add(launched_.get()); !added) return added;
    auto made = launch(program_, options_);
    if (!made) return made.error();
    listener_ = &listener;
    return adopt(std::move(*made));
  }

  int ready_fd() const noexcept override { return events_.get(); }

  void drain() override {
    if (guardian_) see_guardian();
    if (phase_ == phase::restarting) take_launched();
    if (phase_ != phase::running && phase_ != phase::dying) return;
    flush();  // For whoever submits without it.
    bool gone = false;
    bool notes = false;
    // Before the reports are taken: what the agent pushed before it ended is taken after. One call,
    // for most turns have nothing to do with the agent, and begin with this.
    std::array<epoll_event, 4> events;
    const int count =
        ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int index = 0; index < count; ++index) {
      const int fd = events[static_cast<std::size_t>(index)].data.fd;
      if (fd == agent_.host_doorbell.get()) take_rings(fd);
      gone |= fd == agent_.pidfd.get();
      notes |= fd == agent_.control.get();
    }
    take_reports();
    send_news();
    flush();
    // What it said last is still to be read, though the hang-up is no longer listened to.
    if (notes || gone) read_notes();
    if (gone) lose();
  }

  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    if (const auto ready = ready_for_commands(); !ready) return ready;
    const auto [entry, fresh] = targets_.try_emplace(target);
    if (!fresh) return errc::busy;
    send_news();
    command_.type = command_type::attach;
    command_.target = target;
    command_.pid = pid;
    command_.start_time = start_time;
    const auto sent = send();
    flush();
    if (!sent) targets_.erase(entry);
    return sent;
  }

  result<void> detach(process_id target) override {
    if (const auto ready = ready_for_commands(); !ready) return ready;
    if (!targets_.contains(target)) return errc::unknown_target;
    command_.type = command_type::detach;
    command_.target = target;
    const auto sent = send();
    flush();
    return sent;
  }

  void expect() override {
    if (phase_ == phase::running) ::eventfd_write(agent_.agent_doorbell.get(), 1);
  }

  result<void> submit(const batch& work) override {
    if (const auto ready = ready_for_commands(); !ready) return ready;
    const auto found = targets_.find(work.target);
    if (found == targets_.end()) return errc::unknown_target;
    if (found->second) return errc::busy;
    send_news();
    command_.type = command_type::submit;
    command_.target = work.target;
    command_.work.assign(work);
    const auto sent = send();
    if (sent) found->second = true;
    return sent;
  }

  result<void> reserve(gpu_id gpu, double offline_share) override {
    if (const auto ready = ready_for_commands(); !ready) return ready;
    command_.type = command_type::reserve;
    command_.gpu = gpu;
    command_.offline_share = offline_share;
    const auto sent = send();
    flush();
    return sent;
  }

  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override {
    if (const auto ready = ready_for_commands(); !ready) return ready;
    if (!targets_.contains(target)) return errc::unknown_target;
    send_news();
    command_.type = command_type::quantum;
    command_.target = target;
    command_.gpu = gpu;
    command_.quantum = length;
    const auto sent = send();
    flush();
    return sent;
  }

  void observed(unsigned source, const observation& seen) override {
    online_.observe(source, seen);
  }

  void poll_work(duration every) override {
    online_.pace(every);
    if (phase_ != phase::running) return;
    send_news();
    flush();
  }

  void marks_requests(pid_t pid, bool so) override { online_.marks_requests(pid, so); }

  void flush() override {
    if (std::exchange(unflushed_, false)) ::eventfd_write(agent_.agent_doorbell.get(), 1);
  }

  time_point tick(time_point now) override {
    switch (phase_) {
      case phase::running: {
        agent_.page->lease_renewed.store(now.time_since_epoch().count(), std::memory_order_release);
        heartbeat_->renew(
            time_point{duration{agent_.page->heartbeat.load(std::memory_order_acquire)}}, now);
        if (!heartbeat_->lapsed(now))
          return std::min(now + tick_interval(), heartbeat_->deadline());
        options_.say(
            "the agent has been silent for longer than its lease; the host kills the agent, "
            "which resumes everything");
        kill_agent();
        break;
      }
      case phase::restarting:
        if (now < restart_at_) return restart_at_;
        if (!starter_.joinable()) start_launch();  // launched_ wakes drain()
        break;
      case phase::dying: break;
      case phase::idle:
      case phase::stopped: return never;
    }
    return now + tick_interval();
  }

  void stop() override {
    if (starter_.joinable()) {
      starter_.join();
      if (launch_result_ && *launch_result_) agent_ = std::move(**launch_result_);
    }
    if (agent_.pidfd) {
      // A host that ends, crashes or execs does not say so.
      agent_.page->goodbye.store(1, std::memory_order_release);
      // Its end of the connection says so at once, even if a forked child has a copy of ours.
      ::shutdown(agent_.control.get(), SHUT_RDWR);
      if (!readable_within(agent_.pidfd.get(), stop_patience)) {
        kill_agent();
        (void)readable_within(agent_.pidfd.get(), kill_patience);
      }
    }
    if (agent_.guardian) guardian_ = std::move(agent_.guardian);
    if (guardian_) rescue_at_end();
    commands_.reset();
    reports_.reset();
    agent_ = connection{};
    targets_.clear();
    phase_ = phase::stopped;
  }

 private:
  enum class phase : std::uint8_t { idle, running, dying, restarting, stopped };

  duration tick_interval() const noexcept { return options_.lease / 4; }

  result<void> ready_for_commands() const noexcept {
    if (phase_ == phase::running) return {};
    return phase_ == phase::stopped ? errc::stopped : errc::lost;
  }

  result<void> add(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
    return {};
  }

  result<void> adopt(connection made) {
    for (const int fd : {made.control.get(), made.host_doorbell.get(), made.pidfd.get()})
      if (const auto added = add(fd); !added) return added;
    agent_ = std::move(made);
    commands_.emplace(agent_.page->commands);
    reports_.emplace(agent_.page->reports);
    started_at_ = clock::now();
    agent_.page->lease_renewed.store(started_at_.time_since_epoch().count(),
                                     std::memory_order_release);
    heartbeat_.emplace(options_.lease, tick_interval(), started_at_);
    phase_ = phase::running;
    return {};
  }

  static command_type type_of(online_processes::order::kind what) noexcept {
    using kind = online_processes::order::kind;
    return what == kind::follow   ? command_type::follow
           : what == kind::online ? command_type::online
                                  : command_type::not_online;
  }

  result<void> send() {
    switch (commands_->push(command_)) {
      case ring_status::done: break;
      case ring_status::would_wait: return errc::full;
      case ring_status::broken: distrust_agent(); return errc::lost;
    }
    unflushed_ = true;
    return {};
  }

  /// What finds no room goes with a later call. Before each order to act, which the agent then
  /// performs with that knowledge.
  void send_news() {
    const bool some_wait = online_.send_news([this](const online_processes::order& next) {
      if (phase_ != phase::running) return false;
      command_.type = type_of(next.what);
      command_.pid = next.pid;
      command_.start_time = next.start_time;
      command_.every = next.every;
      return send().has_value();
    });
    if (some_wait)
      options_.say("more than " + std::to_string(most_followed) +
                   " online processes use GPUs; the agent does not watch the work of the rest");
  }

  void take_reports() {
    for (;;) {
      switch (reports_->pop(report_)) {
        case ring_status::done: break;
        case ring_status::would_wait: return;
        case ring_status::broken: distrust_agent(); return;
      }
      bound_count(report_);
      note_report();
      deliver(report_, *listener_);
    }
  }

  /// The memory shared with it says what cannot be. A healthy agent comes to the same conclusion of
  /// us when it was our doing.
  void distrust_agent() {
    if (phase_ != phase::running) return;  // killed already
    options_.say(
        "the memory shared with the agent is damaged; the host kills the agent, which "
        "resumes everything");
    kill_agent();
  }

  void note_report() {
    switch (report_.kind) {
      case report_kind::completed:
        if (const auto found = targets_.find(report_.target); found != targets_.end())
          found->second = false;
        break;
      case report_kind::attached:
        if (report_.error.where != plain_error::domain::none) targets_.erase(report_.target);
        break;
      case report_kind::detached: targets_.erase(report_.target); break;
      case report_kind::acts_by:
        online_.can_follow(report_.acting.has(capability::read_backlog));
        break;
      case report_kind::queue_added:
      case report_kind::queue_removed:
      case report_kind::gpu_lost:
      case report_kind::reserved:
      case report_kind::quantum_set:
      case report_kind::observed: break;
    }
  }

  void read_notes() {
    for (;;) {
      note heard;
      unique_fd unexpected;
      const auto received = receive(agent_.control.get(), heard, unexpected);
      if (!received) {
        // A closed connection stays readable until the agent is gone, which its pidfd says.
        if (received.error() == errc::lost)
          (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, agent_.control.get(), nullptr);
        return;
      }
      if (heard.kind == note_kind::message || heard.kind == note_kind::farewell)
        options_.say(heard.kind == note_kind::farewell
                         ? "the agent exits: " + std::string{heard.get_text()}
                         : std::string{heard.get_text()});
    }
  }

  void lose() {
    const time_point now = clock::now();
    pause_ = now - started_at_ >= long_life ? first_pause : std::min(pause_ * 2, longest_pause);
    restart_at_ = now + pause_;
    commands_.reset();
    reports_.reset();
    guardian_ = std::move(agent_.guardian);
    if (guardian_) (void)add(guardian_.get());
    agent_ = connection{};
    targets_.clear();
    online_.lost();
    phase_ = phase::restarting;
    see_guardian();
    listener_->lost(errc::lost);
  }

  /// The guardian of an agent that is gone. Where it has ended without resuming everything, the
  /// next agent does that first of all, at once.
  void see_guardian() {
    if (!guardian_ || !readable_within(guardian_.get(), duration::zero())) return;
    guardian_.reset();
    if (phase_ == phase::restarting && !starter_.joinable() && holds_left()) start_launch();
  }

  /// The driver does not resume by itself what this guardian may still have to.
  void rescue_at_end() {
    (void)readable_within(guardian_.get(), stop_patience);
    guardian_.reset();
    if (!holds_left()) return;
    rescue(program_, options_.owner_lock);
    if (holds_left())
      options_.say("some processes are still suspended; run 'sluice rescue' as root");
  }

  bool holds_left() const {
    const std::string path = holds_beside(options_.owner_lock);
    const auto seen = path.empty() ? hold_record::content{} : hold_record::look(path);
    return seen && !seen->holds.empty();
  }

  void kill_agent() noexcept {
    (void)::syscall(SYS_pidfd_send_signal, agent_.pidfd.get(), SIGKILL, nullptr, 0);
    phase_ = phase::dying;  // its pidfd wakes drain()
  }

  /// Spawning and the agent's start take milliseconds that the reactor does not have.
  void start_launch() {
    launch_result_.reset();
    const auto started = start_quiet_thread(starter_, [this] {
      ::pthread_setname_np(::pthread_self(), "sluice-start");
      launch_result_.emplace(launch(program_, options_));
      ::eventfd_write(launched_.get(), 1);  // join() orders launch_result_
    });
    if (started) return;
    launch_result_.emplace(errc::lost);
    ::eventfd_write(launched_.get(), 1);
  }

  void take_launched() {
    eventfd_t value = 0;
    if (::eventfd_read(launched_.get(), &value) != 0) return;
    if (starter_.joinable()) starter_.join();
    bool adopted = false;
    const bool owned_by_another = launch_result_ && launch_result_->has_error() &&
                                  launch_result_->error() == errc::already_owned;
    if (launch_result_ && *launch_result_) adopted = adopt(std::move(**launch_result_)).has_value();
    launch_result_.reset();
    if (adopted) {
      listener_->restored();
      return;
    }
    pause_ = std::min(pause_ * 2, longest_pause);
    restart_at_ = clock::now() + pause_;
    if (owned_by_another && options_.owned_by_another) options_.owned_by_another();
  }

  const agent_options options_;
  const std::string name_ = options_.driver.driver + ", agent";
  std::string program_;
  backend_listener* listener_ = nullptr;
  phase phase_ = phase::idle;
  unique_fd events_;
  unique_fd launched_;  // the starter thread is done
  connection agent_;
  unique_fd guardian_;  // of the agent before, while it resumes what that one held
  std::optional<command_writer> commands_;  // these two: of agent_.page
  std::optional<report_reader> reports_;
  std::optional<lease> heartbeat_;
  std::unordered_map<process_id, bool> targets_;  // whether a batch is in flight
  online_processes online_;
  time_point started_at_{};
  time_point restart_at_{};
  duration pause_ = first_pause / 2;
  std::thread starter_;
  std::optional<result<connection>> launch_result_;
  bool unflushed_ = false;
  command command_;
  report report_;
};

}  // namespace

std::unique_ptr<backend> make_agent_backend(agent_options options) {
  return std::make_unique<agent_backend>(std::move(options));
}

}  // namespace sluice::agent
