#include "lane.hpp"

#include "authority.hpp"
#include "paused_session.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// How often a lane looks for stops of its target where nobody tells it.
constexpr duration look_for_stops = 10ms;
/// A session of a scheduler that has just died may still be there: the driver ends it with the
/// last reference to that process's memory. Also covers a target in the middle of an exec.
constexpr duration open_patience = 500ms;
constexpr duration open_retry = 10ms;
/// For the driver to let a session go before the lane says that it will not.
constexpr duration close_patience = 300ms;
constexpr duration close_retry = 10ms;
constexpr duration stranded_retry = 500ms;

int milliseconds(duration span) noexcept {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(span).count());
}

}  // namespace

lane::lane(const device& node, const lanes_options& options, batch_commands& commands,
           const agent::owner_bell& owner, const std::vector<gpu_node>& gpus, bool by_process,
           unique_fd wake, process_id target, pid_t pid, std::uint64_t start_time)
    : agent::lane(owner, std::move(wake), target),
      node_(node),
      options_(options),
      commands_(commands),
      gpus_(gpus),
      by_process_(by_process),
      pid_(pid),
      start_time_(start_time),
      say_([&options, about = " pid=" + std::to_string(pid)](std::string_view sentence) {
        options.say(std::string(sentence) + about);
      }),
      holds_(std::make_shared<target_holds>(pid)) {}

result<void> lane::start() {
  sources_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
  if (!sources_) return last_system_error();
  // By edges: a bell that nobody reads costs no call.
  if (const auto added = listen_to(wake_fd(), heard::bell, EPOLLET); !added) return added;
  return agent::lane::start();
}

result<void> lane::listen_to(int fd, heard what, std::uint32_t how) const noexcept {
  epoll_event event{};
  event.events = EPOLLIN | how;
  event.data.u32 = static_cast<std::uint32_t>(what);
  if (::epoll_ctl(sources_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
  return {};
}

void lane::announce_again() noexcept {
  announce_again_.store(true, std::memory_order_release);
  ring();
}

// Without __WNOTHREAD a wait call of any thread sees the tracees of all threads of its process, and
// WNOWAIT leaves the status to the one that has to act on it. The kernel sets the status before it
// sends SIGCHLD, so what a signal announces is seen here, unless the lane has taken it already. By
// pid: P_ALL would always show the same one of several. An error (ECHILD: not yet or no longer
// traced) is for the lane to find out about.
bool lane::child_changed() const noexcept {
  if (only_watches()) return false;
  siginfo_t info{};
  const int error = ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                             WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL);
  return error != 0 || info.si_pid != 0;
}

void lane::run() {
  auto seized = find_target();
  if (seized) {
    admitted_.store(true, std::memory_order_release);
    follow(std::move(*seized));
    if (!options_.owner_watches_children) bell_ = stop_bell::hang(wake_fd(), options_.bells);
    open_until_ = clock::now() + open_patience;
    live();
    {
      const call_scope inside{*this};
      commands_.release(*holds_);
    }
    close_session();
    if (state_ == state::attached) {
      say_detached();
    } else if (state_ == state::unanswered) {
      answer_attach(errc::stopped);  // asked to leave before it came to anything
    }
  } else {
    answer_attach(seized.error());
  }
  bell_.reset();
  // With the end of this thread the kernel lets go of the target.
}

/// The life of a session. Returns when the thread has nothing left to do for the target; an error
/// has then been said.
void lane::live() {
  for (;;) {
    // Read before in_flight_, so that a batch submitted before leave() is performed.
    const bool leave_now = leaving();
    // Whoever waits for a batch waits for nothing else where the target has given no sign.
    if (target_is_quiet_ && !leave_now && in_flight() &&
        !announce_again_.load(std::memory_order_acquire) && !perform())
      return;
    // First of all else, for until then a stopped target stands still.
    if (!serve_target()) return;
    if (opening_ && !leave_now && !open_session()) return;
    if (!read_events()) return;
    if (list_again_ && session_ && !list_queues()) return;
    // In this order: whoever submits after announce_again() finds its batch performed after it.
    const bool wanted = in_flight() && !abandoned();
    if (announce_again_.exchange(false, std::memory_order_acq_rel) && session_) {
      const call_scope inside{*this};
      if (!goes_on(session_->announce_again())) return;
    }
    if (wanted && !perform()) return;
    if (leave_now) return;
    wait();
  }
}

tracee::change lane::look_at_target() noexcept {
  using enum tracee::change;
  if (pending_change_ == exited || pending_change_ == lost) return pending_change_;
  if (const auto seen = traced_->service(); seen != none) pending_change_ = seen;
  return pending_change_;
}

/// \return false when the target is gone.
bool lane::serve_target() {
  const auto change = look_at_target();
  if (change == tracee::change::none) return true;
  say_what_was_suspended(change);
  if (change == tracee::change::exited) {
    lose_address_space();
    if (state_ == state::unanswered) answer_attach(errc::unknown_target);
    return false;
  }
  pending_change_ = tracee::change::none;
  lose_address_space();
  if (change == tracee::change::exec && !is_admitted()) {
    if (state_ == state::unanswered) answer_attach(errc::not_managed);
    return false;
  }
  if (change == tracee::change::lost) {
    auto again = find_target();
    if (!again) {
      if (state_ == state::unanswered) answer_attach(again.error());
      return false;
    }
    follow(std::move(*again));
  }
  opening_ = true;
  open_until_ = clock::now() + open_patience;
  return true;
}

void lane::say_what_was_suspended(tracee::change how) {
  if (suspended_.none() && !holds_->held.any()) return;
  // One that is not traced has lost its memory either way.
  const bool ends =
      how == tracee::change::exited ||
      (how == tracee::change::lost && (is_exiting(pid_) || traced_->exits_within(duration{})));
  say_("process " + std::to_string(pid_) + (ends ? " has ended" : " has executed another program") +
       " while some of its queues were suspended; these queues no longer exist");
}

/// With the one before, its descriptor is closed, and so no longer listened to.
void lane::follow(std::unique_ptr<tracee> target) {
  traced_ = std::move(target);
  deaf_ = !listen_to(traced_->pidfd(), heard::target);
}

void lane::lose_address_space() {
  has_address_spaces_ = false;
  if (!session_) return;
  // The driver may have it open, too.
  if (session_->event_fd() >= 0)
    (void)::epoll_ctl(sources_.get(), EPOLL_CTL_DEL, session_->event_fd(), nullptr);
  session_->discard();
  session_.reset();
  suspended_.reset();
  holds_->marked.clear_all();
  // Not for nothing: the target goes on before this thread comes here, and has queues of the same
  // numbers again, perhaps, which a batch lane may have been faster to hold.
  if (!holds_->held.any()) return;
  const call_scope inside{*this};
  commands_.map_all(*holds_);
}

/// As sysfs lists them.
bool lane::has_queues() const {
  bool any = false;
  if (gpus_.size() > 1)
    (void)for_each_numbered_entry<std::uint32_t>(
        options_.sysfs + "/proc/" + std::to_string(pid_) + "/queues",
        [&any](std::uint32_t) { any = true; });
  return any;
}

bool lane::is_admitted() const { return !options_.admits || options_.admits(pid_, start_time_); }

result<std::unique_ptr<tracee>> lane::find_target() const {
  if (!is_admitted()) return errc::not_managed;
  return only_watches() ? tracee::watch(pid_, start_time_) : tracee::seize(pid_, start_time_, say_);
}

/// Only ENABLE asks for a tracer. With the end of the thread that was it the kernel lets go of the
/// target, without a stop, and the session stays.
result<std::unique_ptr<target_session>> lane::open_by_helper(bool* without_runtime) {
  result<std::unique_ptr<target_session>> opened = errc::busy;
  try {
    std::thread{[&] {
      const auto seized = tracee::seize(pid_, start_time_, say_);
      if (!seized) {
        opened = seized.error();
        return;
      }
      auto session = debug_session::open(node_, *traced_, *this, say_, without_runtime);
      if (session) (*session)->forget_driver_end();
      opened = std::move(session);
    }}.join();
  } catch (const std::system_error& error) {
    return error_code{error.code().value(), boost::system::system_category()};
  }
  return opened;
}

/// Only this thread may pause the target, and only while it traces it.
result<std::unique_ptr<target_session>> lane::open_pause() {
  pauses_.store(true, std::memory_order_release);
  if (!traced_->traced()) {
    auto seized = tracee::seize(pid_, start_time_, say_);
    if (!seized) return seized.error();
    follow(std::move(*seized));
  }
  return paused_session::open({.device = node_.path(),
                               .sysfs = options_.sysfs,
                               .start_time = start_time_,
                               .holds = *options_.pauses},
                              *traced_, *this, say_);
}

/// \return false when the target cannot be managed.
bool lane::open_session() {
  result<std::unique_ptr<target_session>> opened = errc::busy;
  {
    const call_scope inside{*this};
    bool without_runtime = false;
    bool* const ask = options_.pauses != nullptr ? &without_runtime : nullptr;
    if (only_watches())
      opened = open_by_helper(ask);
    else
      opened = debug_session::open(node_, *traced_, *this, say_, ask);
    if (!opened && without_runtime) opened = open_pause();
  }
  // Nobody holds up who is not traced: if it runs another program since serve_target() looked, this
  // is that one's session, which would be forgotten with the memory of the one before.
  if (opened && only_watches() && look_at_target() != tracee::change::none) {
    const call_scope inside{*this};
    (void)(*opened)->close();  // Nothing is suspended yet.
    return true;
  }
  if (!opened) {
    const error_code error = opened.error();
    const bool may_pass = error == errc::busy || error == errc::unknown_target;
    if (may_pass && clock::now() < open_until_) return true;
    if (error == errc::busy)
      say_("cannot manage process " + std::to_string(pid_) +
           ": another program has a debug session with it; if that program is 'sluice suspend', "
           "run 'sluice resume " +
           std::to_string(pid_) + "'; if it is a scheduler, run 'sluice release " +
           std::to_string(pid_) + "'");
    if (state_ == state::unanswered)
      answer_attach(error == errc::busy ? error_code{errc::not_managed} : error);
    return false;
  }
  // One without queues may still be opening its GPUs.
  if (!pauses() && has_queues() && !has_address_spaces()) {
    const call_scope inside{*this};
    (void)(*opened)->close();  // Nothing is suspended yet.
    if (state_ == state::unanswered) answer_attach(errc::not_managed);
    return false;
  }
  session_ = std::move(*opened);
  if (session_->event_fd() >= 0) deaf_ |= !listen_to(session_->event_fd(), heard::session);
  opening_ = false;
  if (state_ == state::unanswered) answer_attach({});
  const call_scope inside{*this};
  // A target that is gone shows in serve_target().
  const auto started = session_->start();
  list_again_ = !started;
  return started || started.error() != errc::not_managed;
}

/// Whether the session stands after this answer. Where nobody is traced, an exec may have been
/// faster than our look at the target.
bool lane::goes_on(const result<void>& answered) {
  if (!answered) list_again_ = true;
  return answered || answered.error() != errc::not_managed ||
         (only_watches() && look_at_target() != tracee::change::none);
}

/// What was refused before: queues that nobody knows of are never suspended.
bool lane::list_queues() {
  const call_scope inside{*this};
  list_again_ = false;
  const auto read = session_->refresh();
  if (!read && read.error() != errc::not_managed && !is_exiting(pid_) &&
      !std::exchange(said_unlisted_, true))
    say_("cannot list the queues of process " + std::to_string(pid_) + ": " +
         read.error().message() + "; retrying");
  return goes_on(read);
}

/// \return false when the session is over and the target lives on.
bool lane::read_events() {
  if (!session_ || !std::exchange(may_have_events_, true)) return true;
  pollfd event{session_->event_fd(), POLLIN, 0};
  if (::poll(&event, 1, 0) == 0) return true;
  const call_scope inside{*this};
  const auto read = session_->read_events();
  return goes_on(read);
}

/// Ends the session, so that the target runs. A driver that refuses even that leaves one way, the
/// end of this process, which is the owner's to go: it is told by stranded(). Until it does, the
/// lane goes on trying, and goes on being the target's tracer, without which that would freeze.
void lane::close_session() {
  const time_point give_up = clock::now() + close_patience;
  time_point next_try{};
  bool said = false;
  while (session_) {
    if (clock::now() >= next_try) {
      const call_scope inside{*this};
      if (session_->close()) break;
      // The driver writes a line to the kernel's log for each.
      next_try = clock::now() + (stranded() || said ? stranded_retry : close_retry);
    }
    if (const auto change = look_at_target(); change != tracee::change::none) {
      say_what_was_suspended(change);
      lose_address_space();  // and with it the queues
      break;
    }
    // Its queues went with its memory: there is nothing that this process could hold back. Whoever
    // waits for a batch is answered with its end.
    const bool exits = (in_flight() || clock::now() >= give_up) && is_exiting(pid_);
    if (in_flight() && !exits) answer_batch(false);
    if (clock::now() >= give_up && !exits) {
      if (abandoned()) {
        if (!session_->ends_with_process() && session_->may_be_suspended() && !pauses())
          say_("process " + std::to_string(pid_) + " stays suspended until it ends: " +
               debugger_of(pid_) + " has taken its debug session over");
        return;
      }
      if (session_->ends_with_process()) {
        if (!strand(true)) {
          say_(
              "cannot resume process " + std::to_string(pid_) +
              ": the driver refused the resume and the end of the debug session; the queues resume "
              "when this program exits");
          owner().ring();
        }
      } else if (!std::exchange(said, true)) {
        say_((session_->may_be_suspended() ? "cannot resume process "
                                           : "cannot end the debug session with process ") +
             std::to_string(pid_) + ": " +
             (pauses() ? "the driver refuses; retrying until it succeeds"
                       : debugger_of(pid_) + " has taken its debug session over; retrying until "
                                             "that debugger detaches"));
      }
    }
    wait(close_retry);
  }
  (void)strand(false);
}

/// \return false when the session is over, or has to be, and the target lives on: somebody else has
/// disabled it, or the driver refused to resume.
bool lane::perform() {
  if (last_batch().kind == command_kind::suspend && !pauses() && !has_address_spaces()) {
    (void)answer_batch(false);
    return false;
  }
  if (const int refused = answer_batch(true); refused != 0) return explain_refused_resume(refused);
  if (!look_again_) return true;
  // New or deleted: the list of queues tells, and makes a new one suspendable.
  const call_scope inside{*this};
  const auto read = session_->refresh();
  return goes_on(read);
}

/// Whether a suspend is safe (gpu_nodes.hpp); says it once where it is not.
bool lane::has_address_spaces() {
  if (has_address_spaces_) return true;
  const call_scope inside{*this};  // The driver prints what it knows of a render node.
  const auto missing = gpu_without_address_space(pid_, gpus_, options_.sysfs);
  if (!missing) return has_address_spaces_ = true;
  say_("cannot manage process " + std::to_string(pid_) + " (" + command_of(pid_) + "): it " +
       text_without_address_space(*missing));
  return false;
}

/// The driver refused a resume as a whole, so that queues may be suspended that should run.
/// \return true when there is nothing to it: the target is gone or runs another program, or its
/// runtime was disabled in between, all of which end every suspension. Else the session must end.
bool lane::explain_refused_resume(int error) {
  if (look_at_target() != tracee::change::none) return true;
  if (error == ESRCH && is_exiting(pid_)) return true;
  const call_scope inside{*this};
  const auto read = session_->read_events();
  if (!session_->may_be_suspended()) return goes_on(read);
  say_("the driver refuses to resume queues of process " + std::to_string(pid_) + ": " +
       boost::system::system_category().message(error) +
       "; sluice ends the debug session with the process, which resumes all its queues");
  return false;
}

/// Performs the batch in flight, or only says that it was not (`call` false), and reports.
/// \return the errno of a refused resume, else 0.
int lane::answer_batch(bool call) {
  const batch& work = last_batch();
  const std::size_t count = std::min<std::size_t>(work.count, max_batch_queues);
  report& done = scratch_;
  batch_result& said = done.result;
  const std::span<const driver_queue_id> queues{work.queues.data(), count};
  const std::span<outcome> outcomes{said.outcomes.data(), count};
  std::ranges::fill(outcomes, call ? outcome::invalid : outcome::failed);
  // Not performed, which says nothing of the hardware.
  said.driver_errno = call ? 0 : ECANCELED;
  said.started = clock::now();
  if (call && session_) {
    const call_scope inside{*this, work.gpu};
    const auto called = work.kind == command_kind::suspend ? session_->suspend(queues, outcomes)
                                                           : session_->resume(queues, outcomes);
    said.driver_errno = called.driver_errno;
  }
  said.finished = clock::now();
  for (std::size_t index = 0; index < count; ++index) {
    const auto id = static_cast<std::uint32_t>(queues[index]);
    if (outcomes[index] == outcome::done && id < suspended_.size())
      suspended_[id] = work.kind == command_kind::suspend;
  }
  // Of a queue that failed, the list tells what the driver has against it.
  look_again_ = call && session_ && std::ranges::any_of(outcomes, [](outcome each) {
                  return each == outcome::invalid || each == outcome::failed;
                });
  const int refused = call && work.kind == command_kind::resume ? said.driver_errno : 0;
  // The rest of the answer after the call, which somebody waits for.
  answer(done);
  return refused;
}

void lane::wait(std::optional<duration> retry) {
  target_is_quiet_ = false;
  if (pending_change_ != tracee::change::none) return;  // seen while a report had to wait
  const bool hears_stops =
      options_.owner_watches_children || !traced_->traced() || (bell_ && bell_->arm());
  int at_most = -1;
  if (retry)
    at_most = milliseconds(*retry);
  else if (opening_)
    at_most = milliseconds(open_retry);
  else if (deaf_ || !hears_stops)
    at_most = milliseconds(look_for_stops);
  else if (list_again_)
    at_most = milliseconds(stranded_retry);
  std::array<epoll_event, 3> events;
  const int count =
      ::epoll_wait(sources_.get(), events.data(), static_cast<int>(events.size()), at_most);
  may_have_events_ = !session_ || deaf_;
  // Where stops do not ring a bell of their own, any ring may be for one.
  bool sign = deaf_ || (traced_->traced() && (!bell_ || bell_->has_rung()));
  for (int index = 0; index < count; ++index) {
    const auto what = static_cast<heard>(events[static_cast<std::size_t>(index)].data.u32);
    may_have_events_ |= what == heard::session;
    sign |= what != heard::bell;
  }
  target_is_quiet_ = session_ && !sign;
}

void lane::answer_attach(const error_code& error) {
  state_ = error ? state::refused : state::attached;
  say_attached(error);
}

void lane::queue_added(const session_queue& queue) {
  say_queue({.target = target(),
             .id = queue.id,
             .gpu = queue.gpu,
             .type = kind_of(queue.type),
             .incarnation = queue.ring_base,
             .fault = queue.exceptions});
}

void lane::queue_removed(driver_queue_id queue) { say_removed(queue); }

}  // namespace sluice::kfd
