#include "agent_holder.hpp"

#include "control_link.hpp"
#include "holder_link.hpp"
#include "output.hpp"

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
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/os/quiet_thread.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

/// Longer than a scheduler's: nothing hangs on a quick end of this hold.
constexpr duration hand_lease = 2s;
/// For another 'sluice suspend' to say that it holds the process.
constexpr duration other_holder_look = 1s;
/// How often to look whether the scheduler has detached from a process that was released.
constexpr duration detach_look = 20ms;

/// Whether the answer to "status" has the process as one that the scheduler attaches to.
bool is_managed(const json::object& status, pid_t pid) {
  const auto* const groups = status.if_contains("groups");
  if (groups == nullptr || !groups->is_array()) return false;
  for (const auto& group : groups->get_array())
    for (const auto& process : group.at("processes").as_array())
      if (process.at("pid").to_number<pid_t>() == pid && process.at("attach").as_string() != "none")
        return true;
  return false;
}

/// The role store that the scheduler reads. Empty: none.
std::string role_store_of(const json::object& status) {
  const auto* const node = status.if_contains("node");
  const auto* const facts = node != nullptr ? node->if_object() : nullptr;
  const auto* const store = facts != nullptr ? facts->if_contains("role_store") : nullptr;
  return store != nullptr && store->is_string() ? std::string(store->get_string()) : std::string();
}

/// Whether a 'sluice release' of the process is in effect.
bool is_released(const process_identity& target, const std::string& store) {
  std::string ignored;
  const auto stored = roles::role_store{store}.read(ignored);
  return stored && stored->released.contains(target);
}

/// Whether the user wants the command to end: its signals are blocked, and read later.
bool is_interrupted() {
  sigset_t pending;
  sigemptyset(&pending);
  ::sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

/// Why a scheduler is in the way: one sentence. Empty: none is. If the process is released, waits
/// until the scheduler has detached from it, or until the deadline.
std::string why_managed(const process_identity& target, const node_files& files,
                        time_point deadline) {
  using kind = node_lock::kind;
  const pid_t pid = target.pid;
  const std::string pause = "'sluice pause" + directory_words(files) + "'";
  control_link link{files};
  for (;;) {
    const auto owner = node_lock::look(files.owner());
    if (!owner || !*owner || (*owner)->ended || (*owner)->what == kind::observing) return {};
    const std::string who = printable((*owner)->words);
    const bool obeys = (*owner)->what == kind::node;
    if (obeys && paused_why(files)) return {};
    control_failure failed;
    const auto status = link.ask({{"ask", "status"}}, failed);
    if (!status)
      return fmt::format(
          "{} owns the node, and does not report whether it manages process {} ({}); {} first", who,
          pid, failed.sentence, obeys ? "run " + pause : "end that program");
    if (!is_managed(*status, pid)) return {};
    const std::string store = role_store_of(*status);
    if (store.empty())
      return fmt::format(
          "process {} is managed by {}; run {} first ('sluice release' has no effect, because that "
          "program reads no role store)",
          pid, who, pause);
    if (!is_released(target, store)) {
      const bool usual = store == roles::classification_rules::default_role_store;
      return fmt::format(
          "process {} is managed by {}; run 'sluice release {}{}', which makes it leave the "
          "process alone, or {} first",
          pid, who, pid, usual ? "" : " --store " + printable(store), pause);
    }
    if (clock::now() >= deadline || is_interrupted())
      return fmt::format(
          "process {} is released, but {} has not detached from it yet; run {} first", pid, who,
          pause);
    std::this_thread::sleep_for(detach_look);
  }
}

struct hand_target {
  enum class phase : std::uint8_t { attaching, attached, leaving, gone };

  process_id id{};
  pid_t pid = 0;
  phase now = phase::attaching;
  std::string reason;         // the driver's
  error_code why;             // of a refused attach
  std::uint64_t in_flight{};  // batch, 0: none
  bool overdue = false;       // no caller waits for that batch any more
  std::optional<batch_result> answer;
  std::map<driver_queue_id, held_queue> queues;
};

class agent_holder final : public queue_holder, private backend_listener {
 public:
  agent_holder(std::shared_ptr<const driver> on, node_files files, std::string agent)
      : driver_(std::move(on)), files_(std::move(files)), agent_(std::move(agent)) {}

  ~agent_holder() override {
    ::eventfd_write(stop_.get(), 1);
    if (pump_.joinable()) pump_.join();
    if (backend_) backend_->stop();
  }

  hold_failure attach(pid_t pid, time_point deadline) override {
    if (holds(pid)) return {};
    if (pid == ::getpid()) return {EINVAL, fmt::format("process {} is this program itself", pid)};
    const auto start = start_time_of(pid);
    if (!start) return {ESRCH, fmt::format("there is no process {}", pid)};
    if (const auto seen = driver_->look();
        seen &&
        std::ranges::find(seen->processes, pid, &process_description::pid) == seen->processes.end())
      return {ESRCH, driver_->why_not_listed(pid)};
    // The driver lets several hold a process, and the first that resumes it would end all holds.
    if (const auto other = ask_holder(list_holders(), pid, "status", other_holder_look))
      return {EBUSY, fmt::format("process {} is already held by process {}", pid, other->holder)};
    // The rest of the time is for the attach.
    const time_point detached_by = clock::now() + (deadline - clock::now()) / 2;
    if (auto why = why_managed({pid, *start}, files_, detached_by); !why.empty())
      return {EBUSY, std::move(why)};
    std::unique_lock lock{mutex_};
    if (auto no = start_agent()) return no;
    hand_target& who = targets_[pid];
    who = {};
    who.id = process_id{++last_id_};
    who.pid = pid;
    if (const auto begun = backend_->attach(who.id, pid, *start); !begun) {
      who.now = phase::gone;
      return {EIO, fmt::format("cannot attach to process {}: {}", pid, begun.error().message())};
    }
    return finish_attach(lock, who, deadline);
  }

  std::vector<held_queue> queues(pid_t pid) const override {
    const std::scoped_lock lock{mutex_};
    std::vector<held_queue> all;
    if (const auto* const who = find(pid); who != nullptr)
      for (const auto& [id, queue] : who->queues) all.push_back(queue);
    return all;
  }

  bool holds(pid_t pid) const override {
    const std::scoped_lock lock{mutex_};
    const auto* const who = find(pid);
    return who != nullptr && who->now == phase::attached;
  }

  hold_failure change(command_kind kind, std::span<queue_order> orders,
                      time_point deadline) override {
    std::unique_lock lock{mutex_};
    for (queue_order& order : orders) {
      order.gpu = gpu_id::none;
      order.hardware.reset();
      const auto* const who = find(order.pid);
      order.error = ESRCH;
      if (who == nullptr || who->now != phase::attached) continue;
      const auto queue = who->queues.find(order.queue);
      order.error = queue == who->queues.end() ? ENOENT : EINPROGRESS;
      if (order.error == EINPROGRESS) order.gpu = queue->second.about.gpu;
    }
    perform_all(lock, kind, orders, deadline);
    mend(lock, kind, orders, deadline);
    for (const queue_order& order : orders)
      if (order.error != 0)
        return {order.error, fmt::format("cannot {} queue {} of process {}: {}",
                                         kind == command_kind::suspend ? "suspend" : "resume",
                                         number(order.queue), order.pid, reason_of(kind, order))};
    return {};
  }

  hold_failure release(pid_t pid, time_point deadline) override {
    std::unique_lock lock{mutex_};
    hand_target* const who = find(pid);
    if (who == nullptr || who->now == phase::gone)
      return {ESRCH, fmt::format("process {} is not held by the caller; nothing was changed", pid)};
    leave(*who);
    if (!changed_.wait_until(lock, deadline, [&] { return who->now == phase::gone; }))
      return {ETIMEDOUT,
              fmt::format("process {} is not released yet: a driver call does not return; the "
                          "release completes when it returns; see dmesg",
                          pid)};
    if (lost_ && !resumed_) return {EIO, why_lost(pid)};
    return {};
  }

  std::string reason_of(command_kind kind, const queue_order& order) const override {
    switch (order.error) {
      case ENOENT: return "the process has no such queue; 'sluice queues' lists its queues";
      case EBUSY: return "the process is creating or destroying the queue";
      case EIO:
        return kind == command_kind::suspend
                   ? "the driver call failed; no queue of the process stays suspended; see dmesg"
                   : "the driver refused to resume the queue; sluice resumes the whole process; "
                     "see dmesg";
      case ESRCH: return "the process has ended, or its agent has";
      case ETIMEDOUT:
        return "the driver did not answer in time; when it answers, all queues of the process are "
               "resumed; see dmesg";
      default: return error_text(order.error);
    }
  }

  std::string why_ended(pid_t pid) const override {
    const std::scoped_lock lock{mutex_};
    if (lost_) return why_lost(pid);
    return fmt::format("the driver ended the hold of process {}; its queues are running", pid);
  }

  std::string words_of_fault(std::uint64_t fault) const override {
    return fmt::format("fault {:#x} of driver {}", fault, driver_->name());
  }

 private:
  using phase = hand_target::phase;

  const hand_target* find(pid_t pid) const {
    const auto found = targets_.find(pid);
    return found != targets_.end() ? &found->second : nullptr;
  }
  hand_target* find(pid_t pid) {
    const auto found = targets_.find(pid);
    return found != targets_.end() ? &found->second : nullptr;
  }
  hand_target* find(process_id id) {
    for (auto& [pid, who] : targets_)
      if (who.id == id) return &who;
    return nullptr;
  }

  std::string why_lost(pid_t pid) const {
    return fmt::format("the agent of this command has exited; {}",
                       resumed_
                           ? fmt::format("process {} was resumed", pid)
                           : fmt::format("if process {} stays suspended, run 'sluice rescue{}'",
                                         pid, directory_words(files_)));
  }

  /// With the first lock that is free. What an earlier agent with that lock left is resumed by it.
  hold_failure start_agent() {
    if (backend_) return {};
    hold_failure first{EIO, {}};
    for (unsigned which = 1; which <= most_hand_locks; ++which) {
      said_.clear();
      auto made = agent::make_agent_backend(
          {.driver = driver_->acting(),
           .agent_path = agent_,
           .owner_lock = hand_lock(files_.owner(), which),
           .lease = hand_lease,
           .say = [this](std::string_view words) { said_.emplace_back(printable(words)); }});
      const auto started = made->start(*this);
      if (started) {
        backend_ = std::move(made);
        break;
      }
      std::string reason = said_.empty() ? started.error().message() : said_.back();
      const bool taken = started.error() == errc::already_owned || started.error() == errc::busy;
      if (first.what.empty() || !taken) first.what = std::move(reason);
      if (!taken) return first;
    }
    if (!backend_) {
      first.what =
          fmt::format("{} processes are held by hand already: {}", most_hand_locks, first.what);
      return first;
    }
    pass_sentences_on();
    if (const auto begun = start_quiet_thread(pump_, [this] { pump(); }); !begun)
      return {EAGAIN, "cannot start a thread; raise the limit on processes (ulimit -u)"};
    return {};
  }

  void pass_sentences_on() {
    for (const auto& each : std::exchange(said_, {})) complain(each);
  }

  /// Takes what the agent reports, and keeps its lease.
  void pump() {
    ::pthread_setname_np(::pthread_self(), "sluice-holder");
    for (;;) {
      time_point next;
      {
        const std::scoped_lock lock{mutex_};
        backend_->drain();
        if (lost_) {
          end_lost();
          return;
        }
        pass_sentences_on();
        next = backend_->tick(clock::now());
      }
      changed_.notify_all();
      std::array<pollfd, 2> sources{{{backend_->ready_fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - clock::now());
      ::poll(sources.data(), sources.size(),
             static_cast<int>(std::clamp(wait, 0ms, 1000ms).count()));
      if (sources[1].revents != 0) return;
    }
  }

  /// The guardian resumes what the agent held. Another agent is not started.
  void end_lost() {
    pass_sentences_on();
    backend_->stop();
    resumed_ = said_.empty();
    pass_sentences_on();
    for (auto& [pid, who] : targets_) {
      who.now = phase::gone;
      who.queues.clear();
    }
    changed_.notify_all();
  }

  hold_failure finish_attach(std::unique_lock<std::mutex>& lock, hand_target& who,
                             time_point deadline) {
    const bool answered =
        changed_.wait_until(lock, deadline, [&] { return who.now != phase::attaching; });
    hold_failure no;
    if (!answered) {
      leave(who);
      no = {ETIMEDOUT, fmt::format("cannot attach to process {}: the driver did not answer in "
                                   "time; the process stays unmanaged; see dmesg",
                                   who.pid)};
    } else if (who.now == phase::attached) {
      // Reports come in order, so that an empty batch is answered after the first list of queues.
      batch nothing;
      nothing.kind = command_kind::resume;
      (void)perform(lock, who, nothing, deadline);
    }
    if (!no && who.now != phase::attached) no = refusal(who);
    return no;
  }

  hold_failure refusal(const hand_target& who) const {
    if (lost_) return {EIO, why_lost(who.pid)};
    if (!who.why || who.why == errc::unknown_target)
      return {ESRCH, fmt::format("process {} has ended", who.pid)};
    if (!who.reason.empty())
      return {EOPNOTSUPP, fmt::format("cannot suspend process {}: {}", who.pid, who.reason)};
    if (who.why == errc::not_managed)
      return {EOPNOTSUPP,
              fmt::format("the driver {} cannot suspend process {}", driver_->name(), who.pid)};
    return {EIO, fmt::format("cannot attach to process {}: {}", who.pid, who.why.message())};
  }

  void leave(hand_target& who) {
    if (who.now == phase::gone || who.now == phase::leaving) return;
    who.now = phase::leaving;
    (void)backend_->detach(who.id);
  }

  /// \return nothing when the target is gone or the deadline passes. A late answer ends its hold.
  std::optional<batch_result> perform(std::unique_lock<std::mutex>& lock, hand_target& who,
                                      batch& work, time_point deadline) {
    const auto free = [&] { return who.in_flight == 0 || who.now != phase::attached; };
    if (!changed_.wait_until(lock, deadline, free) || who.now != phase::attached) return {};
    work.id = ++last_batch_;
    work.target = who.id;
    who.answer.reset();
    if (!backend_->submit(work)) return {};
    backend_->flush();
    who.in_flight = work.id;
    const auto answered = [&] {
      return who.answer.has_value() || (who.now != phase::attached && who.now != phase::leaving);
    };
    if (changed_.wait_until(lock, deadline, answered)) return std::exchange(who.answer, {});
    who.overdue = true;
    return {};
  }

  /// One batch for each process and GPU.
  void perform_all(std::unique_lock<std::mutex>& lock, command_kind kind,
                   std::span<queue_order> orders, time_point deadline) {
    for (;;) {
      const auto first = std::ranges::find(orders, EINPROGRESS, &queue_order::error);
      if (first == orders.end()) return;
      batch work;
      work.kind = kind;
      work.gpu = first->gpu;
      const auto meant = [&](const queue_order& order) {
        return order.error == EINPROGRESS && order.pid == first->pid && order.gpu == work.gpu;
      };
      const auto listed = [&] { return std::span{work.queues}.first(work.count); };
      for (const queue_order& order : orders)
        if (meant(order) && work.count < max_batch_queues &&
            std::ranges::find(listed(), order.queue) == listed().end())
          work.queues[work.count++] = order.queue;
      hand_target& who = targets_.at(first->pid);
      const pid_t pid = first->pid;
      const auto answer = perform(lock, who, work, deadline);
      for (queue_order& order : orders) {
        if (order.error != EINPROGRESS || order.pid != pid || order.gpu != work.gpu) continue;
        const auto at = std::ranges::find(listed(), order.queue);
        if (at == listed().end()) continue;
        if (answer)
          order.error = error_of(*answer, static_cast<std::size_t>(at - listed().begin()));
        else
          order.error = who.now == phase::attached ? ETIMEDOUT : ESRCH;
      }
    }
  }

  static int error_of(const batch_result& answer, std::size_t index) {
    switch (answer.outcomes[index]) {
      case outcome::done: return 0;
      case outcome::target_gone: return ESRCH;
      case outcome::failed: return EIO;
      case outcome::invalid: break;
    }
    return answer.driver_errno != 0 ? answer.driver_errno : EBUSY;
  }

  /// Resumes what failed to suspend; where that fails, the end of the hold resumes it.
  void mend(std::unique_lock<std::mutex>& lock, command_kind kind, std::span<queue_order> orders,
            time_point deadline) {
    std::vector<queue_order> failed;
    for (const queue_order& order : orders)
      if (order.error == EIO)
        failed.push_back(
            {.pid = order.pid, .queue = order.queue, .gpu = order.gpu, .error = EINPROGRESS});
    if (kind == command_kind::suspend) perform_all(lock, command_kind::resume, failed, deadline);
    for (const auto& each : failed)
      if (each.error != 0) leave(targets_.at(each.pid));
  }

  // From drain(), with the mutex.
  void attach_refused(process_id target, std::string_view why) override {
    if (hand_target* const who = find(target); who != nullptr) who->reason = printable(why);
  }
  void attached(process_id target, error_code error) override {
    hand_target* const who = find(target);
    if (who == nullptr) return;
    who->why = error;
    if (error)
      who->now = phase::gone;
    else if (who->now == phase::attaching)
      who->now = phase::attached;
  }
  void queue_added(const queue_info& queue) override {
    if (hand_target* const who = find(queue.target); who != nullptr)
      who->queues[queue.id].about = queue;
  }
  void queue_removed(process_id target, driver_queue_id queue) override {
    if (hand_target* const who = find(target); who != nullptr) who->queues.erase(queue);
  }
  void completed(const batch_result& result) override {
    hand_target* const who = find(result.target);
    if (who == nullptr) return;
    who->in_flight = 0;
    for (std::size_t i = 0; i < result.count; ++i) {
      const auto queue = who->queues.find(result.queues[i]);
      if (queue == who->queues.end() || result.outcomes[i] != outcome::done) continue;
      queue->second.suspended = result.kind == command_kind::suspend;
    }
    if (std::exchange(who->overdue, false))
      leave(*who);  // the caller was told that it runs
    else
      who->answer = result;
  }
  void detached(process_id target) override {
    hand_target* const who = find(target);
    if (who == nullptr) return;
    who->now = phase::gone;
    who->queues.clear();
  }
  void gpu_lost(gpu_id) override {}  // the agent says so; a call in flight has its deadline
  void lost(error_code) override { lost_ = true; }
  void restored() override {}

  const std::shared_ptr<const driver> driver_;
  const node_files files_;
  const std::string agent_;
  const unique_fd stop_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<backend> backend_;  // guarded by mutex_, as all below, but for ready_fd()
  std::map<pid_t, hand_target> targets_;
  std::vector<std::string> said_;  // by the agent, and not passed on yet
  bool lost_ = false;              // the agent
  bool resumed_ = false;           // what it held
  std::uint64_t last_id_ = 0;
  std::uint64_t last_batch_ = 0;
  std::thread pump_;
};

}  // namespace

std::unique_ptr<queue_holder> make_agent_holder(std::shared_ptr<const driver> on, node_files files,
                                                std::string agent) {
  return std::make_unique<agent_holder>(std::move(on), std::move(files), std::move(agent));
}

}  // namespace sluice::cli
