#include "agent_loop.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "sluice/os/standard_error.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// While the host does not take reports.
constexpr duration full_ring_retry = 1ms;
/// How long the targets may take to be let go of before the kernel, or the guardian, has to do it.
constexpr duration close_patience = 2s;

constexpr std::string_view host_is_gone = "the host has exited";
constexpr std::string_view host_has_closed = "the host has closed the connection";
constexpr std::string_view host_is_silent = "the host has been silent for longer than its lease";
constexpr std::string_view guardian_is_silent =
    "its guardian has been silent for longer than its lease";

/// Full: it has been rung for, and has not looked.
void ring_host() noexcept { (void)::send(host_doorbell_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

}  // namespace

agent_loop::agent_loop(shared_page& page, std::unique_ptr<acting_side> acting, duration length,
                       descriptors own, host_roles& roles, hold_record* holds)
    : page_(page),
      commands_(page.commands),
      reports_(page.reports),
      acting_(std::move(acting)),
      heartbeat_interval_(std::min<duration>(100ms, length / 5)),
      lease_(length, heartbeat_interval_, clock::now()),
      guardians_life_(length, heartbeat_interval_, clock::now()),
      roles_(roles),
      holds_(holds),
      guardian_(std::move(own.guardian)),
      latency_(std::move(own.latency)),
      signals_(std::move(own.signals)),
      events_(std::move(own.events)),
      timer_(std::move(own.timer)) {}

result<void> agent_loop::prepare() const {
  for (const int fd : {int{control_fd}, int{agent_doorbell_fd}, int{host_pidfd}, signals_.get(),
                       acting_->ready_fd(), guardian_.get(), timer_.get()}) {
    if (fd < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    // The doorbell by edges: nobody has to read it.
    if (fd == agent_doorbell_fd) event.events |= EPOLLET;
    // Of the connection only its end, which is told in any case: nothing is received from it.
    if (fd == control_fd) event.events = 0;
    event.data.fd = fd;
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
  }
  return {};
}

std::string_view agent_loop::run() {
  constexpr std::string_view damaged =
      "the memory shared with the host is damaged; the agent treats the host as dead";
  bool only_rung = false;
  for (;;) {
    const time_point now = clock::now();
    page_.heartbeat.store(now.time_since_epoch().count(), std::memory_order_release);
    if (holds_ != nullptr) holds_->agent_lives(now);
    bool again = false;  // soon, without anybody ringing
    if (!take_commands(again)) return damaged;
    acting_->flush();
    // The lanes begin, and may need this processor for it: what else there is to do announces
    // itself, or has its time.
    if (!only_rung || again || !own_reports_.empty()) {
      bool pushed = false;
      if (!pass_reports_on(again, pushed)) return damaged;
      if (pushed) ring_host();
      if (latency_) latency_->set(roles_.has_targets());
      // Nothing but this process's death resumes what the driver refuses to. The host is told,
      // takes it for lost, which is the truth, and starts another.
      if (acting_->stranded())
        return "the driver refused to resume a process; the process resumes when the agent "
               "ends";
      // A little early rather than by a wake-up of its own.
      if (now + heartbeat_interval_ / 2 >= next_check_) next_check_ = acting_->check(now);
      lease_.renew(time_point{duration{page_.lease_renewed.load(std::memory_order_acquire)}}, now);
      if (lease_.lapsed(now)) return host_is_silent;
      if (holds_ != nullptr) {
        guardians_life_.renew(holds_->guardian_lived(), now);
        if (guardians_life_.lapsed(now)) return guardian_is_silent;
      }
      wake_by(std::min({lease_.deadline(), now + heartbeat_interval_, next_check_,
                        again ? now + full_ring_retry : never}),
              now);
    }

    std::array<epoll_event, 8> events;
    turn_.unlock();
    const int count =
        ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), -1);
    turn_.lock();
    only_rung = true;
    for (int index = 0; index < count; ++index) {
      const int fd = events[static_cast<std::size_t>(index)].data.fd;
      if (fd == host_pidfd) return host_is_gone;
      // Nothing may stay held without it. The next agent has another one.
      if (fd == guardian_.get()) return "its guardian has exited";
      if (fd == control_fd) return host_has_closed;
      if (fd == signals_.get() && told_to_end()) return "it received a signal";
      only_rung &= fd == agent_doorbell_fd;
    }
  }
}

bool agent_loop::take_reports() {
  std::unique_lock turn{mutex_, std::try_to_lock};
  if (!turn) return false;
  bool again = false;
  bool pushed = false;
  const bool intact = pass_reports_on(again, pushed);
  const bool all = intact && !again && !acting_->stranded();
  turn.unlock();  // Before somebody is woken in this thread's place.
  if (pushed) ring_host();
  return all;
}

bool agent_loop::close() {
  if (holds_ != nullptr) holds_->agent_ends();
  return acting_->stop(close_patience);
}

bool agent_loop::take_commands(bool& again) {
  for (std::uint32_t count = 0; count < most_commands; ++count) {
    // A host that takes no answers gets no more of them; they would fill the memory.
    if (own_reports_.size() >= most_reports) break;
    switch (commands_.pop(command_)) {
      case ring_status::done: break;
      case ring_status::would_wait: return true;
      case ring_status::broken: return false;
    }
    switch (command_.type) {
      case command_type::attach: attach(); break;
      case command_type::detach:
        roles_.given_back(command_.target);
        // Unknown: it has ended by itself, and its report is on its way.
        (void)acting_->detach(command_.target);
        break;
      case command_type::submit: submit(); break;
      case command_type::reserve: reserve(); break;
      case command_type::quantum: set_quantum(); break;
      case command_type::follow:
        // An error is not reported: nothing is seen of that process then.
        if (command_.pid > 0)
          (void)acting_->follow(command_.pid, command_.start_time,
                                std::max(command_.every, duration::zero()));
        break;
      case command_type::online:
      case command_type::not_online:
        roles_.named(command_.pid, command_.start_time, command_.type == command_type::online);
        break;
    }
  }
  again = true;
  return true;
}

void agent_loop::wake_by(time_point when, time_point now) {
  if (timer_at_ > now && timer_at_ <= when) return;
  timer_at_ = when;
  const auto since = std::max(when.time_since_epoch(), duration{1});  // 0 would be none
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  itimerspec at{};
  at.it_value = {seconds.count(), (since - seconds).count()};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

void agent_loop::attach() {
  // Before the acting side may ask.
  roles_.asked(command_.target, command_.pid, command_.start_time);
  const auto started = command_.pid > 0
                           ? acting_->attach(command_.target, command_.pid, command_.start_time)
                           : result<void>{errc::unknown_target};
  if (started) return;
  report refused;
  refused.kind = report_kind::attached;
  refused.target = command_.target;
  refused.error = plain_error{started.error()};
  own_reports_.push_back(refused);
}

void agent_loop::submit() {
  batch& work = command_.work;
  work.count = std::min<std::uint16_t>(work.count, max_batch_queues);
  const auto taken = acting_->submit(work);
  if (taken) return;
  const bool gone = taken.error() == errc::unknown_target;
  // Not performed: that leaves everything as it was after a suspend, and in doubt after a resume.
  const outcome refused = work.kind == command_kind::suspend ? outcome::invalid : outcome::failed;
  own_reports_.push_back(
      unperformed(work, gone ? outcome::target_gone : refused, gone ? ESRCH : EBUSY));
}

void agent_loop::reserve() {
  const auto taken = acting_->reserve(command_.gpu, command_.offline_share);
  if (taken) return;
  report answer;
  answer.kind = report_kind::reserved;
  answer.gpu = command_.gpu;
  answer.offline_share = command_.offline_share;
  answer.error = plain_error{taken.error()};
  own_reports_.push_back(answer);
}

void agent_loop::set_quantum() {
  const auto taken = acting_->set_quantum(command_.target, command_.gpu, command_.quantum);
  if (taken) return;
  report answer;
  answer.kind = report_kind::quantum_set;
  answer.target = command_.target;
  answer.gpu = command_.gpu;
  answer.quantum = command_.quantum;
  answer.error = plain_error{taken.error()};
  own_reports_.push_back(answer);
}

bool agent_loop::pass_reports_on(bool& again, bool& pushed) {
  ring_status last = ring_status::done;
  for (;;) {
    if (!held_) {
      if (acting_->next(report_)) {
        roles_.reported(report_);
        held_ = true;
      } else if (!own_reports_.empty()) {
        report_ = own_reports_.front();
        roles_.reported(report_);
        own_reports_.pop_front();
        held_ = true;
      } else {
        break;
      }
    }
    last = reports_.push(report_);
    if (last != ring_status::done) break;
    held_ = false;
    pushed = true;
  }
  if (last == ring_status::would_wait) again = true;
  return last != ring_status::broken;
}

bool agent_loop::told_to_end() {
  bool end = false;
  bool children = false;
  std::array<signalfd_siginfo, 8> infos;
  for (;;) {
    const ssize_t got = ::read(signals_.get(), infos.data(), sizeof(infos));
    if (got <= 0) break;
    for (std::size_t index = 0; index < static_cast<std::size_t>(got) / sizeof(infos[0]); ++index)
      (infos[index].ssi_signo == SIGCHLD ? children : end) = true;
  }
  // One signal may stand for many children, whatever its siginfo says.
  if (children) acting_->children_changed();
  return end;
}

void agent_loop::say_if_the_host_failed(std::string_view why) const {
  if (page_.goodbye.load(std::memory_order_acquire) != 0) return;
  pollfd gone{host_pidfd, POLLIN, 0};
  if (::poll(&gone, 1, 0) > 0) why = host_is_gone;
  if (why != host_is_gone && why != host_is_silent && why != host_has_closed) return;
  log_to_standard_error("sluice-agent", "warning",
                        std::string{why} + "; the agent resumes everything and exits");
}

}  // namespace sluice::agent
