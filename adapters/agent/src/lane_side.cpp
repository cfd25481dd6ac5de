#include "sluice/agent/lane_side.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "sluice/agent/lane.hpp"
#include "sluice/agent/work_follower.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

constexpr duration check_every = 250ms;
constexpr duration close_retry = 10ms;
/// Between two looks at a process's work, however often the host asks for one.
constexpr duration least_interval = 50us;
/// The same of a process that had no work for a second.
constexpr duration resting_interval = 2ms;
/// Until it is tried again to follow a process: what refused it may have passed.
constexpr duration retry_follow = 5s;
/// After which the owner is told that a target will not be let go of.
constexpr duration refusal_time = 300ms;

struct quantum_order {
  gpu_id gpu{};
  duration length{};
};

class target_lane final : public lane {
 public:
  target_lane(const owner_bell& owner, unique_fd wake, const lane_side_options& options,
              const acting_host& host, process_id target, pid_t pid, std::uint64_t start_time)
      : lane(owner, std::move(wake), target),
        options_(options),
        host_(host),
        pid_(pid),
        start_time_(start_time) {}

  bool set_quantum(gpu_id gpu, duration length) { return quanta_.push({gpu, length}); }

 private:
  enum class heard : std::uint32_t { bell, exit, events };

  void run() override {
    if (const auto opened = open(); !opened) {
      const std::string why = target_ ? target_->why_refused() : why_not_admitted_;
      target_.reset();
      say_attached(opened.error(), why);
      return;
    }
    say_attached({});
    take(*first_);
    live();
    close();
    target_.reset();
    say_detached();
  }

  result<void> open() {
    pidfd_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))};
    sources_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    if (!sources_) return last_system_error();
    // Its own, and not that of the pid's next owner.
    if (!pidfd_ || start_time_of(pid_) != start_time_) return errc::unknown_target;
    if (host_.admits && !host_.admits(pid_, start_time_)) {
      why_not_admitted_ =
          "by the agent's own rules it is not offline, or an earlier agent's hold of it has not "
          "ended; see the log";
      return errc::not_managed;
    }
    target_ = options_.make_target(target(), pid_, start_time_);
    target_->yield_to([this] { return in_flight(); });
    const call_scope inside{*this};
    auto queues = target_->open();
    if (!queues) return queues.error();
    first_ = std::move(*queues);
    for (const auto& [fd, what] : {std::pair{wake_fd(), heard::bell},
                                   {pidfd_.get(), heard::exit},
                                   {target_->event_fd(), heard::events}}) {
      if (fd < 0) continue;
      epoll_event event{};
      event.events = EPOLLIN | (what == heard::bell ? EPOLLET : 0U);
      event.data.u32 = static_cast<std::uint32_t>(what);
      if (::epoll_ctl(sources_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
    }
    return {};
  }

  void live() {
    for (;;) {
      // Read before in_flight(), so that a batch submitted before leave() is performed.
      const bool leave_now = leaving();
      if (in_flight()) perform();
      for (quantum_order order; quanta_.pop(order);) set(order);
      if (leave_now) return;
      std::array<epoll_event, 3> events;
      const int count =
          ::epoll_wait(sources_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int index = 0; index < count; ++index) {
        const auto what = static_cast<heard>(events[static_cast<std::size_t>(index)].data.u32);
        if (what == heard::exit) return;
        if (what == heard::events && !refresh()) return;
      }
    }
  }

  bool refresh() {
    auto queues = [this] {
      // A look asks the driver, too: where that hangs, this GPU is as good as any of them.
      const call_scope inside{*this, known_.empty() ? gpu_id::none : known_.front().gpu};
      return target_->refresh();
    }();
    if (queues) take(*queues);
    return queues.has_value();
  }

  void take(const std::vector<queue_info>& now) {
    const auto same = [](const queue_info& one, const queue_info& other) {
      return one.id == other.id && one.gpu == other.gpu && one.incarnation == other.incarnation &&
             one.fault == other.fault && one.type == other.type;
    };
    const auto has = [&](const std::vector<queue_info>& list, const queue_info& one) {
      return std::ranges::any_of(list, [&](const auto& each) { return same(each, one); });
    };
    std::vector<driver_queue_id> gone;
    for (const queue_info& each : known_) {
      if (has(now, each)) continue;
      // One that only shows in another way now stays held.
      const auto still = [&](const queue_info& one) {
        return one.id == each.id && one.gpu == each.gpu && one.incarnation == each.incarnation;
      };
      if (std::ranges::none_of(now, still)) held_.erase({each.gpu, each.id});
      gone.push_back(each.id);
    }
    // Before the reports: what the host knows to be gone is not in the book any more.
    if (nothing_is_held()) strike();
    for (const driver_queue_id each : gone) say_removed(each);
    for (const queue_info& each : now)
      if (!has(known_, each)) say_queue(each);
    known_ = now;
  }

  void perform() {
    const batch& work = last_batch();
    const std::size_t count = std::min<std::size_t>(work.count, max_batch_queues);
    batch_result& result = done_.result;
    const std::span<outcome> outcomes{result.outcomes.data(), count};
    const bool suspends = work.kind == command_kind::suspend;
    std::ranges::fill(outcomes, suspends ? outcome::invalid : outcome::failed);
    result.started = clock::now();
    if (count == 0) {
      // It asks only for the reports before it.
    } else {
      // The record may ask the driver, too.
      const call_scope inside{*this, work.gpu};
      result.driver_errno =
          suspends && !enter()
              ? ENOSPC
              : target_->act(work.kind, work.gpu, {work.queues.data(), count}, outcomes);
    }
    result.finished = clock::now();
    for (std::size_t index = 0; index < count; ++index) {
      const auto key = std::pair{work.gpu, work.queues[index]};
      // In doubt is as good as held.
      if (suspends && outcomes[index] != outcome::invalid)
        held_.insert(key);
      else if (!suspends && outcomes[index] != outcome::failed)
        held_.erase(key);
    }
    if (nothing_is_held()) strike();
    answer(done_);
  }

  /// The record of now is there before the one of before goes: what is held is always in the book.
  /// \return false where there is no room: then nothing may be held.
  bool enter() {
    if (host_.holds == nullptr) return true;
    hold what{.pid = pid_, .start_time = start_time_};
    std::string about = target_->record();
    if (entry_ && about == about_) return true;
    if (about.size() > what.about.size()) return false;
    what.bytes = static_cast<std::uint32_t>(about.copy(what.about.data(), about.size()));
    const auto fresh = host_.holds->enter(what);
    if (!fresh) return false;
    strike();
    entry_ = fresh;
    about_ = std::move(about);
    return true;
  }
  bool nothing_is_held() const noexcept { return held_.empty() && quanta_set_.empty(); }
  void strike() {
    if (entry_) host_.holds->strike(*std::exchange(entry_, std::nullopt));
  }

  void set(const quantum_order& order) {
    report what;
    what.kind = report_kind::quantum_set;
    what.target = target();
    what.gpu = order.gpu;
    what.quantum = order.length;
    const bool begins = order.length != duration::zero();
    {
      const call_scope inside{*this, order.gpu};
      // It stays after who set it.
      const auto set = begins && !enter() ? result<void>{errc::full}
                                          : target_->set_quantum(order.gpu, order.length);
      if (!set)
        what.error = plain_error{set.error()};
      else if (begins)
        quanta_set_.insert(order.gpu);
      else
        quanta_set_.erase(order.gpu);
    }
    if (nothing_is_held()) strike();
    say(what);
  }

  /// The owner ends where the driver refuses for long: the guardian, or the kernel, does the rest.
  void close() {
    const time_point give_up = clock::now() + refusal_time;
    for (;;) {
      {
        const call_scope inside{*this};
        if (target_->close()) {
          strike();
          break;
        }
      }
      pollfd exit{pidfd_.get(), POLLIN, 0};
      if (::poll(&exit, 1, static_cast<int>(close_retry / 1ms)) > 0) {
        if (!target_->outlives_process()) {
          strike();
          break;
        }
        std::this_thread::sleep_for(close_retry);
      }
      if (clock::now() < give_up) continue;
      if (abandoned()) return;
      if (!strand(true)) {
        host_.say("cannot resume process " + std::to_string(pid_) +
                  ": the driver refuses; sluice keeps trying, also after the agent exits");
        owner().ring();
      }
    }
    (void)strand(false);
  }

  const lane_side_options& options_;
  const acting_host& host_;
  const pid_t pid_;
  const std::uint64_t start_time_;
  boost::lockfree::spsc_queue<quantum_order, boost::lockfree::capacity<64>> quanta_;

  // The lane's thread only.
  unique_fd pidfd_;
  unique_fd sources_;
  std::unique_ptr<lane_target> target_;
  std::string why_not_admitted_;
  std::optional<std::vector<queue_info>> first_;
  std::vector<queue_info> known_;
  report done_;
  std::set<std::pair<gpu_id, driver_queue_id>> held_;  ///< Or may be.
  std::set<gpu_id> quanta_set_;
  std::optional<hold_book::number> entry_;
  std::string about_;  ///< What stands there.
};

class lane_side final : public acting_side {
 public:
  lane_side(lane_side_options options, const acting_host& host, unique_fd ready)
      : options_(std::move(options)), host_(host), ready_(std::move(ready)) {
    report what;
    what.kind = report_kind::acts_by;
    what.acting = options_.acting;
    pending_.push_back(what);
    bell_.ring();
  }

  int ready_fd() const noexcept override { return ready_.get(); }

  bool next(report& out) override {
    if (take(out)) return true;
    eventfd_t count = 0;
    ::eventfd_read(ready_.get(), &count);
    return take(out);
  }

  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    lanes_.join_finished();
    if (lanes_.find(target) != nullptr) return errc::busy;
    if (pid == ::getpid()) return errc::not_managed;
    unique_fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake) return last_system_error();
    const auto added = lanes_.add(std::make_unique<target_lane>(bell_, std::move(wake), options_,
                                                                host_, target, pid, start_time));
    handed_.reserve(lanes_.active().size());
    return added;
  }

  result<void> detach(process_id target) override {
    lane* const found = lanes_.find(target);
    if (found == nullptr) return errc::unknown_target;
    found->leave();
    return {};
  }

  result<void> submit(const batch& work) override {
    lane* const found = lanes_.find(work.target);
    if (found == nullptr) return errc::unknown_target;
    if (!found->submit(work)) return errc::busy;
    std::erase_if(handed_, [&](const handed& each) { return each.to == found; });
    handed_.push_back({found, work.kind, work.gpu, work.count != 0});
    return {};
  }
  void flush() noexcept override {
    if (options_.begins_together && handed_.size() > 1) announce();
    for (const handed& each : handed_) each.to->ring();
    handed_.clear();
  }

  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override {
    if (!options_.acting.has(capability::set_quantum)) return errc::not_supported;
    target_lane* const found = lanes_.find(target);
    if (found == nullptr) return errc::unknown_target;
    if (!found->set_quantum(gpu, length)) return errc::full;
    found->ring();
    return {};
  }

  result<void> follow(pid_t pid, std::uint64_t start_time, duration every) override {
    if (!options_.follow) return errc::not_supported;
    const process_identity who{pid, start_time};
    const auto asked = std::ranges::find(asked_, who, &asked_for::who);
    if (every <= duration::zero()) {
      if (asked == asked_.end()) return {};
      asked_.erase(asked);
      follower_.leave(who);
      return {};
    }
    follower_.pace(std::max(every, least_interval));
    if (asked != asked_.end()) return asked->answer;
    if (asked_.size() >= most_followed) return errc::full;
    asked_.push_back({who});
    begin_to_follow(asked_.back());
    return asked_.back().answer;
  }

  time_point check(time_point now) override {
    lanes_.join_finished();
    std::vector<stuck_gpus::call> calls;
    for (const auto& each : lanes_.active()) {
      const auto [since, gpu] = each->seen();
      calls.push_back({gpu, since});
    }
    for (const auto& each : stuck_.look(calls, now)) {
      report lost;
      lost.kind = report_kind::gpu_lost;
      lost.gpu = each.gpu;
      pending_.push_back(lost);
      bell_.ring();
      host_.say(words_of(each, now));
    }
    for (asked_for& each : asked_)
      if (each.retry <= now) begin_to_follow(each);
    return now + check_every;
  }

  bool stranded() const noexcept override { return lanes_.stranded(); }

  bool stop(duration at_most) override {
    handed_.clear();
    lanes_.abandon_all();
    for (const time_point give_up = clock::now() + at_most;;) {
      lanes_.join_finished();
      if (lanes_.size() == 0) return true;
      const duration left = give_up - clock::now();
      if (left <= duration{}) return false;
      pollfd ready{ready_.get(), POLLIN, 0};
      ::poll(&ready, 1,
             static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      eventfd_t count = 0;
      ::eventfd_read(ready_.get(), &count);
    }
  }

 private:
  /// A lane has a batch and does not know of it.
  struct handed {
    lane* to = nullptr;
    command_kind what{};
    gpu_id gpu{};
    bool has_queues = false;
  };
  /// That fails only for lack of memory: then each of them calls by itself.
  void announce() noexcept try {
    for (auto first = handed_.begin(); first != handed_.end(); ++first) {
      const auto same = [&](const handed& each) {
        return each.has_queues && each.what == first->what && each.gpu == first->gpu;
      };
      if (std::any_of(handed_.begin(), first, same)) continue;
      const auto count = std::count_if(first, handed_.end(), same);
      if (count > 1)
        options_.begins_together(first->what, first->gpu, static_cast<std::size_t>(count));
    }
  } catch (const std::bad_alloc&) {
  }

  struct asked_for {
    process_identity who{};
    result<void> answer{};
    time_point retry = never;
    bool said = false;
  };

  void begin_to_follow(asked_for& which) {
    const process_identity& who = which.who;
    which.answer = may_be_followed(who) ? follow(who) : result<void>{errc::not_managed};
    const bool for_good = which.answer || which.answer.error() == errc::unknown_target;
    which.retry = for_good ? never : clock::now() + retry_follow;
    // The agent's rules state their reason themselves.
    if (for_good || which.answer.error() == errc::not_managed || std::exchange(which.said, true))
      return;
    host_.say("cannot look at the work of online process " + std::to_string(who.pid) + " (" +
              command_of(who.pid) + "): " + which.answer.error().message() +
              "; sluice detects its work only if a client announces it");
  }
  bool may_be_followed(const process_identity& who) const {
    return !host_.may_follow || host_.may_follow(who.pid, who.start_time);
  }
  result<void> follow(const process_identity& who) {
    auto made = options_.follow(who.pid, who.start_time);
    if (!made) return made.error();
    return follower_.follow(who, std::move(*made));
  }

  bool take(report& out) {
    if (!pending_.empty()) {
      out = pending_.front();
      pending_.pop_front();
      return true;
    }
    target_lane* const from = lanes_.next(out);
    if (from == nullptr) return take_seen(out);
    if (!lanes_.is_last(out)) return true;
    std::erase_if(handed_, [&](const handed& each) { return each.to == from; });
    if (const auto answer = lanes_.retire(*from)) {
      pending_.push_back(out);
      out = *answer;
    }
    return true;
  }

  bool take_seen(report& out) {
    // Its holder reports when it is done.
    const std::unique_lock held{seen_mutex_, std::try_to_lock};
    if (!held || seen_.empty()) return false;
    out = {};
    out.kind = report_kind::observed;
    out.seen = seen_.front();
    seen_.pop_front();
    return true;
  }
  /// On the follower's thread. What is not taken yet is replaced, and its count added.
  bool collect(observation seen) {
    const std::scoped_lock held{seen_mutex_};
    const auto old = std::ranges::find_if(seen_, [&](const observation& one) {
      return one.pid == seen.pid && one.start_time == seen.start_time && one.gpu == seen.gpu;
    });
    if (old == seen_.end()) {
      seen_.push_back(seen);
    } else {
      constexpr std::uint32_t most = std::numeric_limits<std::int32_t>::max();
      seen.count = std::min(seen.count + old->count, most);
      *old = seen;
    }
    return true;
  }

  const lane_side_options options_;
  const acting_host host_;
  const unique_fd ready_;
  const owner_bell bell_{ready_.get(), host_.take_reports};
  lane_list<target_lane> lanes_;
  std::vector<handed> handed_;
  std::deque<report> pending_;
  stuck_gpus stuck_{options_.stuck_after};
  std::vector<asked_for> asked_;  ///< Processes that the host has it follow.
  std::mutex seen_mutex_;
  std::deque<observation> seen_;  ///< One of each process and GPU, at most.
  work_follower follower_{{.thread = "sluice-follow",
                           .rest = resting_interval,
                           .report = [this](const observation& seen) { return collect(seen); },
                           .reported = [this] { bell_.report(); }}};
};

}  // namespace

result<std::unique_ptr<acting_side>> make_lane_side(lane_side_options options,
                                                    const acting_host& host) {
  unique_fd ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!ready) return last_system_error();
  return std::unique_ptr<acting_side>{
      std::make_unique<lane_side>(std::move(options), host, std::move(ready))};
}

}  // namespace sluice::agent
