#include "sluice/kfd/debug_session.hpp"

#include "authority.hpp"
#include "queue_ledger.hpp"
#include "queue_status.hpp"
#include "runtime_wait.hpp"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

namespace {

constexpr std::uint64_t queue_new = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
constexpr std::uint64_t queue_delete = uapi::KFD_EC_MASK(uapi::EC_DEVICE_QUEUE_DELETE);
constexpr std::uint64_t process_runtime = uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);
constexpr std::uint64_t subscription = queue_new | queue_delete | process_runtime;
static_assert(subscription == 0x00008000C0000000);

/// More events than this in one go cannot be: it is the driver repeating itself.
constexpr int most_events = 16 * static_cast<int>(uapi::KFD_MAX_NUM_OF_QUEUES_PER_PROCESS);
constexpr std::size_t most_queues = 1U << 20U;
/// What a process rarely has more of. Room for the driver's most would be 64 KiB of every target,
/// all of it touched.
constexpr std::size_t usual_queues = 64;

std::uint64_t address_of(const void* object) noexcept {
  return reinterpret_cast<std::uintptr_t>(object);
}

/// What the errno of an operation other than SUSPEND_QUEUES and RESUME_QUEUES means.
error_code meaning_of(const error_code& error) noexcept {
  if (error.category() != boost::system::system_category()) return error;
  switch (error.value()) {
    // No such process, or one without memory or without the driver: gone, or in the midst of exec.
    case ESRCH: return errc::unknown_target;
    // Another session with it, perhaps just ending.
    case EALREADY: return errc::busy;
    // Passing: this thread does not trace it (EPERM), nobody has a session any more (EINVAL from
    // all but ENABLE), it has a queue with global wave sync or is being sampled (EBUSY).
    case EPERM:
    case EBUSY:
    // For good: no hardware scheduling (EINVAL from ENABLE), a GPU before gfx9 (ENODEV), a
    // secondary context (EOPNOTSUPP).
    case EINVAL:
    case ENODEV:
    case EOPNOTSUPP: return errc::not_managed;
    default: return error;
  }
}

}  // namespace

class debug_session::impl {
 public:
  impl(const device& node, tracee& target, session_listener& listener, const message_sink& say,
       bool* without_runtime)
      : node_(node),
        target_(target),
        listener_(listener),
        say_(say),
        without_runtime_(without_runtime) {
    snapshot_.resize(usual_queues);
  }

  result<void> open() {
    // A refused ENABLE takes the session away from the debugger that has it.
    if (has_session(node_, target_.pid())) return errc::busy;
    if (const auto made = make_pipe(); !made) return made;
    uapi::kfd_runtime_info info{};
    if (const auto enabled = enable(subscription, info); !enabled) {
      const error_code why = enabled.error();
      // The one failure after which the session stands all the same (kfd_chardev.c copies
      // the runtime's info out last).
      if (why == boost::system::errc::bad_address) {
        enabled_ = true;
        end();
      }
      if (why != errc::busy && why != errc::unknown_target)
        (void)refuse("the driver refused a debug session: " + last_enable_error_.message());
      return why;
    }
    enabled_ = true;
    const auto entered = enter(info.runtime_state);
    without_runtime_ = nullptr;
    return entered;
  }

  result<void> start() {
    // A handshake that an earlier session left unanswered shows in no event. One that has just
    // begun has an event, and read_events() answers it; only the others are answered blindly.
    if (thread_waits()) {
      if (const auto read = read_events(); !read) return read;
      if (thread_waits()) send_runtime_event();
    }
    return refresh();
  }

  int event_fd() const noexcept { return events_.get(); }
  void forget_driver_end() noexcept { driver_end_ = unique_fd{}; }
  bool manageable() const noexcept { return enabled_ && state_ == uapi::DBG_RUNTIME_STATE_ENABLED; }

  result<void> read_events() {
    if (!enabled_) return errc::not_managed;
    std::array<char, 256> bytes;
    while (::read(events_.get(), bytes.data(), bytes.size()) > 0) {
    }
    bool deleted = false;
    std::uint64_t clear = queue_delete;
    for (int count = 0; count < most_events; ++count) {
      auto args = trap(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT);
      // QUEUE_NEW is not cleared here: the snapshot does, for queues that it reports.
      args.query_debug_event.exception_mask = clear;
      const auto got = call(args);
      if (!got) {
        if (got.error() != boost::system::errc::resource_unavailable_try_again)
          return meaning_of(got.error());
        return deleted ? refresh() : result<void>{};
      }
      const std::uint64_t raised = args.query_debug_event.exception_mask;
      if ((raised & process_runtime) != 0) {
        std::uint32_t next = state_;
        const bool cleared = read_runtime_state(next);
        // Read or not, the target waits for this.
        send_runtime_event();
        if (!cleared) clear |= process_runtime;
        if (const auto entered = enter(next); !entered) return entered;
        if (const auto read = refresh(); !read) return read;
      }
      if ((raised & queue_delete) != 0) deleted = true;
      if ((raised & queue_new) != 0) {
        if (const auto read = refresh(); !read) return read;
        deleted = false;
        // While the runtime is disabled refresh() clears nothing.
        if (!manageable()) clear |= queue_new;
      }
    }
    return refuse("the driver repeats the same events endlessly");
  }

  result<void> refresh() {
    if (!manageable()) return {};
    const auto removed = [this](const queue_ledger::entry& old) {
      listener_.queue_removed(driver_queue_id{old.queue_id});
    };
    for (;;) {
      auto args = trap(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
      args.queue_snapshot.exception_mask = queue_new;
      args.queue_snapshot.snapshot_buf_ptr = address_of(snapshot_.data());
      args.queue_snapshot.num_queues = static_cast<std::uint32_t>(snapshot_.size());
      args.queue_snapshot.entry_size = sizeof(snapshot_[0]);
      if (const auto got = call(args); !got) return meaning_of(got.error());
      const std::size_t existing = args.queue_snapshot.num_queues;
      if (existing <= snapshot_.size()) {
        ledger_.update({snapshot_.data(), existing}, removed,
                       [this](const queue_ledger::entry& now) { report(now); });
        return {};
      }
      // QUEUE_NEW is gone from what was written, so remember who had it before asking again.
      for (const queue_ledger::entry& seen : snapshot_)
        if ((seen.exception_status & queue_new) != 0) ledger_.forget(seen.queue_id, removed);
      if (existing > most_queues) return errc::not_managed;
      snapshot_.resize(existing + existing / 4);
    }
  }

  call_result change(uapi::kfd_dbg_trap_operations operation,
                     std::span<const driver_queue_id> queues, std::span<outcome> outcomes) {
    call_result answer;
    // The driver does not check a null array, so it never gets one here.
    if (queues.empty()) return answer;
    const std::size_t count = std::min(queues.size(), ids_.size());
    for (std::size_t index = 0; index < count; ++index)
      ids_[index] = static_cast<std::uint32_t>(queues[index]);
    auto args = trap(operation);
    if (operation == uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES) {
      args.suspend_queues.queue_array_ptr = address_of(ids_.data());
      args.suspend_queues.num_queues = static_cast<std::uint32_t>(count);
      may_be_suspended_ = true;
    } else {
      args.resume_queues.queue_array_ptr = address_of(ids_.data());
      args.resume_queues.num_queues = static_cast<std::uint32_t>(count);
    }
    const auto got = call(args);
    if (got) {
      answer.count = *got;
      for (std::size_t index = 0; index < count; ++index)
        outcomes[index] = decode_status(static_cast<std::uint32_t>(queues[index]), ids_[index]);
      return answer;
    }
    answer.driver_errno = got.error().value();
    std::fill_n(outcomes.begin(), count, meaning_of_refusal(operation, answer.driver_errno));
    return answer;
  }

  result<std::vector<driver_queue_id>> probe(std::size_t most) {
    if (may_be_suspended_) return errc::busy;
    if (!manageable()) return errc::not_managed;
    if (std::exchange(probed_, true)) return errc::not_supported;
    std::vector<std::uint32_t> ids(
        std::min<std::size_t>(most, uapi::KFD_MAX_NUM_OF_QUEUES_PER_PROCESS));
    std::vector<driver_queue_id> found;
    if (ids.empty()) return found;
    std::iota(ids.begin(), ids.end(), 0U);
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);
    args.resume_queues.queue_array_ptr = address_of(ids.data());
    args.resume_queues.num_queues = static_cast<std::uint32_t>(ids.size());
    if (const auto got = call(args); !got) return meaning_of(got.error());
    for (std::uint32_t id = 0; id < ids.size(); ++id) {
      const outcome what = decode_status(id, ids[id]);
      if (what == outcome::failed) return error_code{EIO, boost::system::system_category()};
      if (what == outcome::done) found.push_back(driver_queue_id{id});
    }
    return found;
  }

  bool close() {
    if (!enabled_) return true;
    // sluice cannot trace a target while another debugger does, or after its main thread has ended.
    // Until it can, the driver refuses each call, and logs it.
    if (taken_over_ && !ended_by_driver() &&
        (tracer_of(target_.pid()).value_or(0) != 0 || leader_is_exiting(target_.pid())))
      return false;
    if (may_be_suspended_) {
      auto args = trap(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);  // no array: every queue
      if (call(args)) may_be_suspended_ = false;
    }
    (void)read_events();
    end();
    return !may_be_suspended_ && !taken_over_;
  }

  bool may_be_suspended() const noexcept { return enabled_ && may_be_suspended_; }
  bool taken_over() const noexcept { return taken_over_; }

  result<void> announce_again() {
    forget_all();
    return refresh();
  }

  void discard() {
    forget_all();
    enabled_ = false;
  }

 private:
  /// What the errno of a whole SUSPEND_QUEUES or RESUME_QUEUES call means for each of its queues.
  outcome meaning_of_refusal(uapi::kfd_dbg_trap_operations operation, int error) const noexcept {
    // ESRCH also comes back for a process that lives (an exec, a main thread that ended alone).
    if (error == ESRCH &&
        (target_.exits_within(tracee::exit_patience) || is_exiting(target_.pid())))
      return outcome::target_gone;
    const bool suspend = operation == uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES;
    if (suspend && (error == EPERM || error == EINVAL || error == EFAULT || error == ENOMEM))
      return outcome::invalid;  // refused before any queue was looked at
    // "Did nothing" is no comfort where something had to be done: what was suspended may still be.
    return outcome::failed;
  }

  /// A pipe for the events of a new session.
  result<void> make_pipe() {
    int ends[2];
    // An eventfd would not do: the driver writes single bytes.
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return last_system_error();
    events_ = unique_fd{ends[0]};
    driver_end_ = unique_fd{ends[1]};
    return {};
  }

  /// Ends the session, if the driver has not; the driver resumes every queue.
  void end() {
    if (enabled_ && !disable()) return;
    state_ = uapi::DBG_RUNTIME_STATE_DISABLED;
    // Between the last event read and DISABLE the target may have begun a handshake: DISABLE drops
    // its event and leaves it waiting. Rare, and found by looking.
    for (int round = 0; round < 3 && thread_waits(); ++round) {
      if (!answer_anew()) break;
    }
  }

  /// A session for as long as its answer takes. \return false when the driver refuses it.
  bool answer_anew() {
    // ENABLE wants a tracer again, and DISABLE has ended what made up for one.
    return as_tracer(say_, [this] {
      uapi::kfd_runtime_info info{};
      // The old pipe has hung up.
      if (has_session(node_, target_.pid()) || !make_pipe() || !enable(process_runtime, info))
        return false;
      forget_driver_end();
      enabled_ = true;
      send_runtime_event();
      return disable_as_it_is() == 0;
    });
  }

  /// Calls `act` on a thread that traces the target. \return what it returned; false if no thread
  /// may trace the target now.
  template <class Act>
  bool as_tracer(const message_sink& say, const Act& act) {
    if (target_.traced() || tracer_of(target_.pid()) == ::gettid()) return act();
    bool done = false;
    try {
      std::thread{[&] {
        const auto started = start_time_of(target_.pid());
        if (!started) return;
        const auto seized = tracee::seize(target_.pid(), *started, say);
        done = seized && target_.alive() && act();
      }}.join();
    } catch (const std::system_error&) {
      // No thread to be had: as if the driver refused.
    }
    return done;
  }

  uapi::kfd_ioctl_dbg_trap_args trap(uapi::kfd_dbg_trap_operations operation) const noexcept {
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(target_.pid());
    args.op = operation;
    return args;
  }

  result<int> call(uapi::kfd_ioctl_dbg_trap_args& args) const {
    auto got = node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
    if (got || got.error().value() != ESRCH) return got;
    // A process whose main thread has ended goes on. The driver finds it by any thread with memory.
    const pid_t other = living_thread_of(target_.pid());
    if (other == 0) return got;
    args.pid = static_cast<std::uint32_t>(other);
    return node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
  }

  result<void> enable(std::uint64_t mask, uapi::kfd_runtime_info& info) {
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_ENABLE);
    args.enable.exception_mask = mask;
    args.enable.rinfo_ptr = address_of(&info);
    args.enable.rinfo_size = sizeof(info);
    // Without an end for the driver any descriptor will do: what it writes there is not read.
    args.enable.dbg_fd = static_cast<std::uint32_t>((driver_end_ ? driver_end_ : events_).get());
    const auto got = call(args);
    if (got) return {};
    last_enable_error_ = got.error();
    return meaning_of(got.error());
  }

  /// \return whether the driver has no session with the target any more, and so keeps nothing of
  /// it suspended.
  bool disable() {
    const int error = disable_as_it_is();
    taken_over_ = false;
    if (error != EPERM || target_.traced()) return error == 0;
    if (ended_by_driver()) return true;
    // A tracer of the target has called ENABLE: the driver refused it, and made that tracer the
    // session's owner nevertheless.
    const message_sink quiet = [](std::string_view) {};
    taken_over_ = !as_tracer(quiet, [this] {
      // Asked again, for the target may have ended it meanwhile, and begun one of its own: our
      // DISABLE of that would lower the driver's count of the sessions that end with this process.
      if (ended_by_driver()) return true;
      if (!has_session(node_, target_.pid())) return false;
      // This ENABLE fails, too, and so makes the session ours again. A DISABLE before it would
      // write to the process that took the session over, which may be gone (adapters/kfd/kernel).
      uapi::kfd_runtime_info info{};
      (void)enable(0, info);
      return disable_as_it_is() == 0;
    });
    return !taken_over_;
  }
  /// Whether the driver has ended the session, as it does for the target itself or for a tracer of
  /// it. It closes its end of the pipe when the call returns that ended the session.
  bool ended_by_driver() {
    if (driver_end_) return false;
    constexpr int returns_within_ms = 10;
    pollfd hang_up{events_.get(), 0, 0};
    if (::poll(&hang_up, 1, returns_within_ms) != 1) return false;
    enabled_ = may_be_suspended_ = taken_over_ = false;
    return true;
  }
  /// \return the errno. EINVAL counts as success: there was no session.
  int disable_as_it_is() {
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_DISABLE);
    const auto got = call(args);
    if (!got && got.error().value() != EINVAL) return got.error().value();
    enabled_ = false;
    may_be_suspended_ = false;
    return 0;
  }

  void send_runtime_event() const {
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
    args.send_runtime_event.exception_mask = process_runtime;
    (void)call(args);
  }

  /// \return whether the event was read, and with it cleared.
  bool read_runtime_state(std::uint32_t& state) const {
    uapi::kfd_runtime_info info{};
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO);
    args.query_exception_info.info_ptr = address_of(&info);
    args.query_exception_info.info_size = sizeof(info);
    args.query_exception_info.exception_code = uapi::EC_PROCESS_RUNTIME;
    args.query_exception_info.clear_exception = 1;
    if (!call(args)) return false;
    state = info.runtime_state;
    return true;
  }

  /// The target's runtime is in `state` from now on.
  result<void> enter(std::uint32_t state) {
    state_ = state;
    switch (state) {
      case uapi::DBG_RUNTIME_STATE_ENABLED: return {};
      case uapi::DBG_RUNTIME_STATE_DISABLED: {
        // The driver resumed whatever was suspended when the runtime was disabled.
        forget_all();
        auto args = trap(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);  // no room: only counts
        args.queue_snapshot.entry_size = sizeof(snapshot_[0]);
        if (const auto got = call(args); !got) return meaning_of(got.error());
        if (args.queue_snapshot.num_queues == 0) return {};
        // A runtime is enabled before its first queue or never.
        end();
        if (without_runtime_ != nullptr) {
          *without_runtime_ = true;
          return errc::not_managed;
        }
        return refuse(
            "it uses the driver without enabling the ROCm runtime's debug support; only a "
            "scheduler with criu_pause can pause it");
      }
      case uapi::DBG_RUNTIME_STATE_ENABLED_BUSY:
        forget_all();
        end();
        return refuse(
            "its GPU supports one debugged process at a time, and another process is being "
            "debugged; or the process has set a CU mask (gfx11.0)");
      default:
        forget_all();
        end();
        return refuse("the driver could not activate debugging for it (runtime state " +
                      std::to_string(state) +
                      "); see dmesg; if a preemption failed in hardware, the driver resets the GPU "
                      "and its hive, and all GPU work on this node may be lost");
    }
  }

  error_code refuse(const std::string& why) const {
    say_("cannot manage process " + std::to_string(target_.pid()) + " (" +
         command_of(target_.pid()) + "): " + why);
    return errc::not_managed;
  }

  void forget_all() {
    ledger_.clear([this](const queue_ledger::entry& old) {
      listener_.queue_removed(driver_queue_id{old.queue_id});
    });
    may_be_suspended_ = false;
  }

  void report(const queue_ledger::entry& now) {
    session_queue seen;
    seen.id = driver_queue_id{now.queue_id};
    seen.gpu = gpu_id{now.gpu_id};
    seen.type = static_cast<queue_type>(now.queue_type);
    seen.ring_base = now.ring_base_address;
    seen.write_pointer_address = now.write_pointer_address;
    seen.read_pointer_address = now.read_pointer_address;
    seen.exceptions = queue_ledger::exceptions_of(now);
    listener_.queue_added(seen);
  }

  /// Whether a thread of the target sits in RUNTIME_ENABLE. The kernel shows it to a tracer.
  bool thread_waits() const { return waits_in_runtime_enable(target_.pid()); }

  const device& node_;
  tracee& target_;
  session_listener& listener_;
  const message_sink& say_;
  bool* without_runtime_;  ///< open()'s; null afterwards.
  unique_fd events_;
  unique_fd driver_end_;
  bool enabled_ = false;
  bool taken_over_ = false;  ///< By another debugger, when close() failed.
  bool may_be_suspended_ = false;
  bool probed_ = false;
  std::uint32_t state_ = uapi::DBG_RUNTIME_STATE_DISABLED;
  error_code last_enable_error_;
  std::vector<queue_ledger::entry> snapshot_;
  queue_ledger ledger_;
  std::array<std::uint32_t, max_batch_queues> ids_{};
};

debug_session::debug_session(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
debug_session::~debug_session() = default;

result<std::unique_ptr<debug_session>> debug_session::open(const device& node, tracee& target,
                                                           session_listener& listener,
                                                           const message_sink& say,
                                                           bool* without_runtime) {
  auto state = std::make_unique<impl>(node, target, listener, say, without_runtime);
  if (const auto opened = state->open(); !opened) {
    (void)state->close();  // nothing is suspended yet
    return opened.error();
  }
  return std::unique_ptr<debug_session>{new debug_session{std::move(state)}};
}

int debug_session::event_fd() const noexcept { return impl_->event_fd(); }
bool debug_session::manageable() const noexcept { return impl_->manageable(); }
result<void> debug_session::read_events() { return impl_->read_events(); }
result<void> debug_session::refresh() { return impl_->refresh(); }
bool debug_session::close() { return impl_->close(); }
result<std::vector<driver_queue_id>> debug_session::probe(std::size_t ids) {
  return impl_->probe(ids);
}
bool debug_session::ends_with_process() const noexcept { return !impl_->taken_over(); }
bool debug_session::may_be_suspended() const noexcept { return impl_->may_be_suspended(); }
void debug_session::forget_driver_end() noexcept { impl_->forget_driver_end(); }
result<void> debug_session::announce_again() { return impl_->announce_again(); }
void debug_session::discard() { impl_->discard(); }
result<void> debug_session::start() { return impl_->start(); }

debug_session::call_result debug_session::suspend(std::span<const driver_queue_id> queues,
                                                  std::span<outcome> outcomes) {
  return impl_->change(uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, queues, outcomes);
}

debug_session::call_result debug_session::resume(std::span<const driver_queue_id> queues,
                                                 std::span<outcome> outcomes) {
  return impl_->change(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, queues, outcomes);
}

}  // namespace sluice::kfd
