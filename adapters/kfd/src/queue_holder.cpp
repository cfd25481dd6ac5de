#include "sluice/kfd/queue_holder.hpp"

#include "failure_listener.hpp"
#include "lane_sentences.hpp"
#include "queue_orders.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/quiet_thread.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// Longer than a driver call in flight may last.
constexpr duration stop_patience = 10s;
constexpr duration check_interval = 250ms;

int errno_of(const error_code& error) noexcept {
  if (error.category() != sluice_category()) return error.value();
  switch (static_cast<errc>(error.value())) {
    case errc::busy:
    case errc::already_owned: return EBUSY;
    case errc::full: return EAGAIN;
    case errc::not_supported: return EOPNOTSUPP;
    case errc::unknown_target: return ESRCH;
    case errc::lost: return EIO;
    case errc::stopped: return ECANCELED;
    case errc::bad_config:
    case errc::no_file: return EINVAL;
    case errc::not_managed: return EPERM;
  }
  return EIO;
}

constexpr std::array exceptions_by_name{
    std::pair{uapi::EC_QUEUE_WAVE_ABORT, "QUEUE_WAVE_ABORT"},
    std::pair{uapi::EC_QUEUE_WAVE_TRAP, "QUEUE_WAVE_TRAP"},
    std::pair{uapi::EC_QUEUE_WAVE_MATH_ERROR, "QUEUE_WAVE_MATH_ERROR"},
    std::pair{uapi::EC_QUEUE_WAVE_ILLEGAL_INSTRUCTION, "QUEUE_WAVE_ILLEGAL_INSTRUCTION"},
    std::pair{uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION, "QUEUE_WAVE_MEMORY_VIOLATION"},
    std::pair{uapi::EC_QUEUE_WAVE_APERTURE_VIOLATION, "QUEUE_WAVE_APERTURE_VIOLATION"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_DIM_INVALID, "QUEUE_PACKET_DISPATCH_DIM_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID,
              "QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_CODE_INVALID, "QUEUE_PACKET_DISPATCH_CODE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_RESERVED, "QUEUE_PACKET_RESERVED"},
    std::pair{uapi::EC_QUEUE_PACKET_UNSUPPORTED, "QUEUE_PACKET_UNSUPPORTED"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID,
              "QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_REGISTER_INVALID,
              "QUEUE_PACKET_DISPATCH_REGISTER_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_VENDOR_UNSUPPORTED, "QUEUE_PACKET_VENDOR_UNSUPPORTED"},
    std::pair{uapi::EC_QUEUE_PREEMPTION_ERROR, "QUEUE_PREEMPTION_ERROR"},
};

}  // namespace

class queue_holder::impl {
 public:
  static std::unique_ptr<impl> open(const roots& where, hold_failure& why) {
    const auto said = std::make_shared<lane_sentences>();
    const message_sink say = [said](std::string_view sentence) { said->add(sentence); };
    auto node = device::open(where.device, say);
    if (!node) {
      why = {errno_of(node.error()), said->last()};
      return {};
    }
    // Its callers name the mechanism: batch commands are calls of their own.
    auto acting =
        lanes::create(**node, {.batch_commands = false, .sysfs = where.sysfs, .say = say});
    unique_fd stop{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!acting || !stop) {
      why = {EMFILE, "out of file descriptors; close some, or raise the limit (ulimit -n)"};
      return {};
    }
    std::unique_ptr<impl> made{
        new impl{where, std::move(*node), std::move(*acting), std::move(stop), said}};
    if (!made->start()) {
      why = {EAGAIN, "cannot start a thread; raise the limit on processes (ulimit -u)"};
      return {};
    }
    return made;
  }

  ~impl() {
    ::eventfd_write(stop_.get(), 1);
    if (pump_.joinable()) pump_.join();
    lanes_->stop(stop_patience);
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  hold_failure attach(pid_t pid, time_point deadline) {
    std::unique_lock lock{mutex_};
    std::shared_ptr<held_process> who;
    if (auto refused = begin_attach(pid, who)) return refused;
    return end_attach(lock, *who, deadline);
  }

  std::vector<held_queue> queues(pid_t pid) const {
    const std::scoped_lock lock{mutex_};
    std::vector<held_queue> all;
    if (const auto found = targets_.find(pid); found != targets_.end())
      for (const auto& [id, queue] : found->second->queues) all.push_back(queue);
    return all;
  }

  std::vector<driver_queue_id> buried(pid_t pid) const {
    const std::scoped_lock lock{mutex_};
    std::vector<driver_queue_id> all;
    if (const auto found = targets_.find(pid); found != targets_.end())
      for (const auto& [id, gpu] : found->second->buried) all.push_back(id);
    return all;
  }

  bool holds(pid_t pid) const {
    const std::scoped_lock lock{mutex_};
    const auto found = targets_.find(pid);
    return found != targets_.end() && found->second->now == hold_phase::attached;
  }

  std::vector<pid_t> held() const {
    const std::scoped_lock lock{mutex_};
    std::vector<pid_t> all;
    for (const auto& [pid, who] : targets_)
      if (who->now == hold_phase::attached) all.push_back(pid);
    return all;
  }

  hold_failure change(command_kind kind, std::span<queue_order> orders, time_point deadline) {
    std::unique_lock lock{mutex_};
    // What one driver call each will do, in the order of first mention.
    std::vector<std::shared_ptr<held_process>> whom;
    std::map<pid_t, hold_failure> refused;
    for (queue_order& order : orders) {
      order.gpu = gpu_id::none;
      order.error = EINPROGRESS;
      order.hardware.reset();
      if (refused.contains(order.pid) || find(whom, order.pid) != nullptr) continue;
      std::shared_ptr<held_process> who;
      hold_failure no;
      if (kind == command_kind::suspend) {
        no = begin_attach(order.pid, who);
      } else if (const auto found = targets_.find(order.pid);
                 found != targets_.end() && found->second->now == hold_phase::attached) {
        who = found->second;
      } else {
        no = {ESRCH, name_of(order.pid) + " is not held by the caller; nothing was changed"};
      }
      if (no)
        refused.emplace(order.pid, std::move(no));
      else
        whom.push_back(std::move(who));
    }
    std::erase_if(whom, [&](const auto& who) {
      auto no = end_attach(lock, *who, deadline);
      if (!no) return false;
      refused.emplace(who->pid, std::move(no));
      return true;
    });
    for (queue_order& order : orders)
      if (const auto no = refused.find(order.pid); no != refused.end())
        order.error = no->second.error;

    for (const auto& who : whom)
      for (const auto& [id, queue] : who->queues) failures_.listen(queue.about.gpu);
    if (kind == command_kind::resume) settle_buried(orders, whom);
    perform(lock, kind, orders, whom, deadline);
    // An id may name a queue so new that it was not registered yet. The lane has read the list
    // again because of it; what is registered now gets its turn.
    bool again = false;
    for (const auto& who : whom) {
      if (std::ranges::none_of(orders, [&](const auto& order) {
            return order.pid == who->pid && order.error == ENOENT;
          }))
        continue;
      (void)barrier(lock, *who, deadline);
      for (queue_order& order : orders) {
        if (order.pid != who->pid || order.error != ENOENT) continue;
        if (!who->queues.contains(order.queue)) continue;
        order.error = EINPROGRESS;
        again = true;
      }
    }
    if (again) perform(lock, kind, orders, whom, deadline);
    mend(lock, kind, orders, whom, deadline);

    for (const queue_order& order : orders) {
      if (order.error == 0) continue;
      if (const auto no = refused.find(order.pid); no != refused.end()) return no->second;
      return {order.error, sentence_for(kind, order)};
    }
    return {};
  }

  hold_failure release(pid_t pid, time_point deadline) {
    std::unique_lock lock{mutex_};
    const auto found = targets_.find(pid);
    if (found == targets_.end())
      return {ESRCH, name_of(pid) + " is not held by the caller; nothing was changed"};
    const auto who = found->second;
    hear();
    // By name: of a resume of everything, as the end of the session is, the driver does not say
    // whether the hardware did it.
    std::vector<queue_order> orders;
    std::map<gpu_id, unsigned> before;
    for (const auto& [id, queue] : who->queues) {
      before[queue.about.gpu] = failures_.times(queue.about.gpu);
      if (queue.suspended)
        orders.push_back({.pid = pid, .queue = id, .error = EINPROGRESS});
      else if (queue.lost && !who->reported.contains(queue.about.gpu))
        orders.push_back(order_of_dead(pid, id, queue.about.gpu));
    }
    for (const auto& [id, gpu] : who->buried)
      if (!who->reported.contains(gpu)) orders.push_back(order_of_dead(pid, id, gpu));
    perform(lock, command_kind::resume, orders, {who}, deadline);
    leave(*who);
    if (wait(lock, deadline, [&] { return who->now == hold_phase::gone; })) {
      hear();
      for (const auto& order : orders)
        if (order.hardware) return {EIO, sentence_for(command_kind::resume, order)};
      for (const auto& [gpu, times] : before)
        if (failures_.times(gpu) != times)
          return {
              EIO,
              name_of(pid) + " was released, but GPU " +
                  std::to_string(static_cast<std::uint32_t>(gpu)) +
                  " was reset while the process was held: the work of the process on that GPU is "
                  "lost; see dmesg"};
      return {};
    }
    if (lanes_->stranded())
      return {EIO,
              "cannot resume " + name_of(pid) +
                  ": the driver refused the resume and the end of the debug session; the queues "
                  "resume when this program exits"};
    if (const pid_t tracer = tracer_of(pid).value_or(0);
        tracer != 0 && process_of(tracer) != ::getpid())
      return {ETIMEDOUT, "cannot resume " + name_of(pid) + " yet: " + debugger_of(pid) +
                             " has taken its debug session over; detach that debugger"};
    return {ETIMEDOUT, name_of(pid) +
                           " is not released yet: a driver call does not return; the release "
                           "completes when it returns; see dmesg"};
  }

  std::vector<gpu_failure> take_gpu_failures() {
    const std::scoped_lock lock{mutex_};
    hear();
    return failures_.take();
  }

  bool stranded() const {
    const std::scoped_lock lock{mutex_};
    return lanes_->stranded();
  }

  const device& node() const noexcept { return *device_; }

 private:
  impl(roots where, std::unique_ptr<device> node, std::unique_ptr<lanes> acting, unique_fd stop,
       std::shared_ptr<lane_sentences> said)
      : where_(std::move(where)),
        device_(std::move(node)),
        lanes_(std::move(acting)),
        stop_(std::move(stop)),
        said_(std::move(said)) {}

  bool start() {
    return start_quiet_thread(pump_, [this] { pump(); }).has_value();
  }

  /// Takes the lanes' reports. They must be taken at once, whoever waits or not: a target's start
  /// waits for a lane that may wait for us.
  void pump() {
    ::pthread_setname_np(::pthread_self(), "sluice-holder");
    for (;;) {
      std::array<pollfd, 2> sources{{{lanes_->ready_fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      ::poll(sources.data(), sources.size(), static_cast<int>(check_interval / 1ms));
      if (sources[1].revents != 0) return;
      const std::scoped_lock lock{mutex_};
      hear();
      while (lanes_->next(report_)) take(report_);
      lanes_->check(clock::now());
      changed_.notify_all();
    }
  }

  void take(const report& what) {
    const auto found = std::ranges::find_if(
        targets_, [&](const auto& each) { return each.second->id == what.target; });
    if (found == targets_.end()) return;
    const std::shared_ptr<held_process> who = found->second;
    switch (what.kind) {
      case report_kind::attached:
        who->why = error_code{what.error};
        if (who->why) {
          who->now = hold_phase::gone;
          targets_.erase(found);
        } else if (who->now == hold_phase::attaching) {
          who->now = hold_phase::attached;
        }
        break;
      case report_kind::queue_added:
        hear();  // first: a reset before it is not its own
        who->queues[what.queue.id].about = what.queue;
        who->buried.erase(what.queue.id);
        break;
      case report_kind::queue_removed:
        hear();
        if (const auto gone = who->queues.find(what.queue.id); gone != who->queues.end()) {
          if (gone->second.lost) who->buried[what.queue.id] = gone->second.about.gpu;
          who->queues.erase(gone);
        }
        break;
      case report_kind::completed: complete(*who, what.result); break;
      case report_kind::detached:
        who->now = hold_phase::gone;
        who->queues.clear();
        targets_.erase(found);
        break;
      case report_kind::acts_by:
      case report_kind::reserved:
      case report_kind::quantum_set:
      case report_kind::observed:
      case report_kind::gpu_lost: break;  // said by the lanes; a call in flight has its deadline
    }
  }

  void complete(held_process& who, const batch_result& answer) {
    who.in_flight = 0;
    for (std::size_t i = 0; i < answer.count; ++i) {
      const auto queue = who.queues.find(answer.queues[i]);
      if (queue == who.queues.end() || answer.outcomes[i] != outcome::done) continue;
      queue->second.suspended = answer.kind == command_kind::suspend;
    }
    // Whoever asked was told that it runs.
    if (who.overdue)
      leave(who);
    else
      who.answers.emplace(answer.id, answer);
  }

  void hear() {
    for (const gpu_id gpu : failures_.hear())
      for (const auto& [pid, who] : targets_)
        for (auto& [id, queue] : who->queues)
          if (queue.about.gpu == gpu) queue.lost = true;
  }

  void leave(held_process& who) {
    if (who.now == hold_phase::gone || who.now == hold_phase::leaving) return;
    who.now = hold_phase::leaving;
    (void)lanes_->detach(who.id);
  }

  template <class Condition>
  bool wait(std::unique_lock<std::mutex>& lock, time_point deadline, Condition condition) {
    return changed_.wait_until(lock, deadline, condition);
  }

  hold_failure begin_attach(pid_t pid, std::shared_ptr<held_process>& who) {
    if (pid == ::getpid())
      return {EINVAL, name_of(pid) + " is this program itself; a process cannot trace itself"};
    if (const auto found = targets_.find(pid); found != targets_.end()) {
      who = found->second;
      return {};
    }
    const auto start = pid > 0 ? start_time_of(pid) : std::nullopt;
    if (!start) return {ESRCH, "there is no " + name_of(pid)};
    // To attach would make it a user, whom the driver lists from then on.
    if (!may_be_listed(pid, where_)) return {ESRCH, why_not_listed(pid, where_)};
    // Before the attach, whose runlist cycle may be what fails.
    if (const auto node = look_at_node(where_))
      for (const auto& process : node->processes)
        if (process.pid == pid)
          for (const auto& queue : process.queues) failures_.listen(queue.gpu);
    auto made = std::make_shared<held_process>();
    made->id = process_id{++last_id_};
    made->pid = pid;
    if (const auto began = lanes_->attach(made->id, pid, *start); !began)
      return {errno_of(began.error()),
              "cannot hold " + name_of(pid) + ": " + began.error().message()};
    targets_.emplace(pid, made);
    who = std::move(made);
    return {};
  }

  hold_failure end_attach(std::unique_lock<std::mutex>& lock, held_process& who,
                          time_point deadline) {
    if (!wait(lock, deadline, [&] { return who.now != hold_phase::attaching; })) {
      leave(who);
      return {ETIMEDOUT,
              "cannot attach to " + name_of(who.pid) +
                  ": the driver did not answer in time; the process stays unmanaged; see dmesg"};
    }
    if (who.now == hold_phase::attached) {
      if (who.listed) return {};
      // Reports come in order, so that an empty batch is answered after the first list of queues.
      if (auto late = barrier(lock, who, deadline)) return late;
      who.listed = who.now == hold_phase::attached;
      if (who.listed) return {};
    }
    if (who.now == hold_phase::leaving)
      return {EBUSY, name_of(who.pid) + " is being released; try again"};
    std::string reason = said_->about(who.pid);
    if (reason.empty()) reason = name_of(who.pid) + " has ended";
    return {who.why ? errno_of(who.why) : ESRCH, std::move(reason)};
  }

  hold_failure barrier(std::unique_lock<std::mutex>& lock, held_process& who, time_point deadline) {
    batch nothing;
    nothing.kind = command_kind::resume;
    if (submit(lock, who, nothing, deadline) && answered(lock, who, nothing.id, deadline))
      return {};
    if (who.now == hold_phase::gone) return {};
    return {ETIMEDOUT, "the driver did not answer in time for " + name_of(who.pid) + "; see dmesg"};
  }

  /// Waits for the lane to be free. \return false when the target is gone or the deadline passes.
  bool submit(std::unique_lock<std::mutex>& lock, held_process& who, batch& work,
              time_point deadline) {
    if (!wait(lock, deadline,
              [&] { return who.in_flight == 0 || who.now != hold_phase::attached; }) ||
        who.now != hold_phase::attached)
      return false;
    work.id = ++last_batch_;
    work.target = who.id;
    if (!lanes_->submit(work)) return false;
    lanes_->flush();
    who.in_flight = work.id;
    who.overdue = false;
    return true;
  }

  /// Waits for the answer. After a late one the target is released, which resumes everything.
  std::optional<batch_result> answered(std::unique_lock<std::mutex>& lock, held_process& who,
                                       std::uint64_t id, time_point deadline) {
    if (wait(lock, deadline, [&] { return who.answers.contains(id); }))
      return who.answers.extract(id).mapped();
    who.overdue = true;
    return {};
  }

  /// One driver call for each process and GPU with orders in progress; processes in parallel.
  void perform(std::unique_lock<std::mutex>& lock, command_kind kind, std::span<queue_order> orders,
               const std::vector<std::shared_ptr<held_process>>& whom, time_point deadline) {
    for (bool more = true; more;) {
      more = false;
      std::vector<std::pair<std::shared_ptr<held_process>, batch>> sent;
      for (const auto& who : whom) {
        batch work = next_batch(kind, orders, *who);
        if (work.count == 0) continue;
        more = true;
        if (submit(lock, *who, work, deadline)) {
          sent.emplace_back(who, work);
          continue;
        }
        const bool late = who->now == hold_phase::attached;
        // Another caller's batch is under way. Its answer is then the last, as for a late resume of
        // one's own: everything of the process is resumed with it.
        if (late && kind == command_kind::resume && who->in_flight != 0) who->overdue = true;
        settle(orders, *who, work, late ? ETIMEDOUT : ESRCH);
      }
      for (auto& [who, work] : sent) {
        const auto answer = answered(lock, *who, work.id, deadline);
        if (!answer) {
          settle(orders, *who, work, ETIMEDOUT);
          continue;
        }
        hear();
        bool failed = false;
        for (std::size_t i = 0; i < work.count; ++i) {
          const int error = error_of(*who, *answer, i);
          const auto known = who->queues.find(work.queues[i]);
          // A suspend of a destroyed queue fails with ENOENT. A resume reports that it was lost.
          const bool lost = known != who->queues.end() ? known->second.lost
                                                       : kind == command_kind::resume &&
                                                             who->buried.erase(work.queues[i]) > 0;
          std::optional<breaker_cause> hardware;
          if (error == EIO && answer->driver_errno == 0) {
            failed = true;
            hardware = breaker_cause::preemption_failed;
          } else if (lost && (error == 0 || error == EIO || error == ENOENT)) {
            hardware = breaker_cause::reset;
          }
          if (hardware) who->reported.insert(work.gpu);
          settle(orders, *who, work.queues[i], hardware ? EIO : error, hardware);
        }
        if (failed) failures_.note({work.gpu, breaker_cause::preemption_failed});
      }
    }
  }

  /// Resumes what failed to suspend: the driver takes it for suspended, dead or not. Where even
  /// that fails, the end of the session resumes it.
  void mend(std::unique_lock<std::mutex>& lock, command_kind kind, std::span<queue_order> orders,
            const std::vector<std::shared_ptr<held_process>>& whom, time_point deadline) {
    for (const auto& who : whom) {
      std::vector<queue_order> failed;
      for (const queue_order& order : orders)
        if (order.pid == who->pid && order.error == EIO &&
            (kind == command_kind::suspend || order.hardware != breaker_cause::reset))
          failed.push_back({.pid = order.pid, .queue = order.queue, .error = EINPROGRESS});
      if (failed.empty()) continue;
      if (kind == command_kind::suspend) {
        perform(lock, command_kind::resume, failed, {who}, deadline);
        if (std::ranges::all_of(failed, [](const auto& each) {
              return each.error == 0 || each.hardware == breaker_cause::reset;
            }))
          continue;
      }
      leave(*who);
    }
  }

  const roots where_;
  const std::unique_ptr<device> device_;
  const std::unique_ptr<lanes> lanes_;  // guarded by mutex_, but for ready_fd()
  const unique_fd stop_;
  const std::shared_ptr<lane_sentences> said_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pid_t, std::shared_ptr<held_process>> targets_;  // guarded by mutex_, as all below
  failure_listener failures_{*device_};
  std::uint64_t last_id_ = 0;
  std::uint64_t last_batch_ = 0;
  report report_;
  std::thread pump_;  // but for this
};

queue_holder::queue_holder(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
queue_holder::~queue_holder() = default;

std::unique_ptr<queue_holder> queue_holder::open(const roots& where, hold_failure& why) {
  auto state = impl::open(where, why);
  if (!state) return {};
  return std::unique_ptr<queue_holder>{new queue_holder{std::move(state)}};
}

hold_failure queue_holder::attach(pid_t pid, time_point deadline) {
  return impl_->attach(pid, deadline);
}
std::vector<held_queue> queue_holder::queues(pid_t pid) const { return impl_->queues(pid); }
std::vector<driver_queue_id> queue_holder::buried(pid_t pid) const { return impl_->buried(pid); }
bool queue_holder::holds(pid_t pid) const { return impl_->holds(pid); }
std::vector<pid_t> queue_holder::held() const { return impl_->held(); }
hold_failure queue_holder::change(command_kind kind, std::span<queue_order> orders,
                                  time_point deadline) {
  return impl_->change(kind, orders, deadline);
}
hold_failure queue_holder::release(pid_t pid, time_point deadline) {
  return impl_->release(pid, deadline);
}
std::vector<gpu_failure> queue_holder::take_gpu_failures() { return impl_->take_gpu_failures(); }
bool queue_holder::stranded() const { return impl_->stranded(); }
const device& queue_holder::node() const noexcept { return impl_->node(); }

std::string queue_holder::reason_of(command_kind kind, const queue_order& order) const {
  return kfd::reason_of(kind, order);
}
std::string queue_holder::why_ended(pid_t pid) const {
  return "the debug session with " + name_of(pid) +
         " has ended: the process closed its GPU runtime, or it or a debugger ended the session; "
         "its "
         "queues are running";
}
std::string queue_holder::words_of_fault(std::uint64_t fault) const {
  std::string text;
  for (unsigned code = 1; code <= 64; ++code) {
    if ((fault >> (code - 1) & 1U) == 0) continue;
    const auto known = std::ranges::find(exceptions_by_name, code,
                                         [](const auto& each) { return unsigned{each.first}; });
    text += text.empty() ? "" : ", ";
    text += known != exceptions_by_name.end() ? known->second : "exception " + std::to_string(code);
  }
  return text;
}

}  // namespace sluice::kfd
