#include "sluice/null_backend.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {
namespace {

class null_backend final : public backend {
 public:
  explicit null_backend(null_backend_options options) : options_(options) {}
  ~null_backend() override {
    if (timer_ >= 0) ::close(timer_);
  }
  null_backend(const null_backend&) = delete;
  null_backend& operator=(const null_backend&) = delete;

  std::string_view name() const noexcept override { return "none, observing"; }
  bool acts() const noexcept override { return false; }

  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    if (timer_ < 0) timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer_ < 0) return last_system_error();
    return {};
  }
  int ready_fd() const noexcept override { return timer_; }

  void drain() override {
    std::uint64_t times = 0;
    (void)!::read(timer_, &times, sizeof times);
    const time_point now = clock::now();
    // The calls below may ask for more, which then waits for its own turn.
    news_.swap(telling_);
    for (const news& each : telling_) tell(each);
    telling_.clear();
    while (!flying_.empty() && flying_.front().due <= now) {
      const flight done = flying_.front();
      flying_.pop_front();
      answer(done);
    }
    arm();
  }

  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    const auto found = seen_.find({pid, start_time});
    if (found == seen_.end()) return errc::unknown_target;
    if (found->second.target) return errc::busy;
    found->second.target = target;
    targets_[target] = found->first;
    say({.what = news::kind::attached, .info = {.target = target}});
    for (const auto& each : found->second.queues) say(added(target, each.second));
    return {};
  }

  result<void> detach(process_id target) override {
    const auto found = targets_.find(target);
    if (found == targets_.end()) return errc::unknown_target;
    end_session(target);
    return {};
  }

  result<void> submit(const batch& work) override {
    if (!targets_.contains(work.target)) return errc::unknown_target;
    if (std::any_of(flying_.begin(), flying_.end(),
                    [&](const flight& each) { return each.work.target == work.target; })) {
      return errc::busy;
    }
    const time_point now = clock::now();
    const duration cost =
        work.kind == command_kind::suspend ? options_.suspend_cost : options_.resume_cost;
    const auto later = std::find_if(flying_.begin(), flying_.end(),
                                    [&](const flight& each) { return each.due > now + cost; });
    flying_.insert(later, {now, now + cost, work});
    arm();
    return {};
  }

  void observed(unsigned source, const observation& seen) override {
    const key who{seen.pid, seen.start_time};
    switch (seen.kind) {
      case observation_kind::process_seen: mark(source, seen_[who]); break;
      case observation_kind::process_gone: forget(who); break;
      case observation_kind::queue_seen: queue_seen(source, who, seen); break;
      case observation_kind::queue_gone: {
        const auto found = seen_.find(who);
        if (found != seen_.end()) drop(found->second, seen.queue);
        break;
      }
      case observation_kind::resync_begin:
        for (auto& [id, one] : seen_) {
          if (one.source != source) continue;
          one.marked = false;
          for (auto& [number, each] : one.queues) each.marked = false;
        }
        break;
      case observation_kind::resync_end: sweep(source); break;
      default: break;
    }
    arm();
  }

  time_point tick(time_point) override { return never; }

  void stop() override {
    flying_.clear();
    news_.clear();
    targets_.clear();
    for (auto& [who, one] : seen_) one.target.reset();
  }

 private:
  using key = std::pair<pid_t, std::uint64_t>;
  struct queue {
    driver_queue_id id{};
    gpu_id gpu{};
    queue_kind type{};
    bool marked = true;  // named since the source's resync_begin, as a process
  };
  struct process {
    unsigned source = 0;
    bool marked = true;
    std::optional<process_id> target;  // there is a session, as far as the scheduler knows
    std::map<driver_queue_id, queue> queues;
  };
  struct news {
    enum class kind : std::uint8_t { attached, detached, queue_added, queue_removed };
    kind what{};
    queue_info info{};
  };
  struct flight {
    time_point submitted{};
    time_point due{};
    batch work;
  };

  static void mark(unsigned source, process& one) {
    one.source = source;
    one.marked = true;
  }

  void queue_seen(unsigned source, const key& who, const observation& seen) {
    process& owner = seen_[who];
    mark(source, owner);
    const auto [place, fresh] = owner.queues.try_emplace(seen.queue);
    queue& one = place->second;
    const bool same = !fresh && one.gpu == seen.gpu && one.type == seen.type;
    one = {seen.queue, seen.gpu, seen.type, true};
    if (!same && owner.target) say(added(*owner.target, one));
  }

  void drop(process& owner, driver_queue_id id) {
    if (owner.queues.erase(id) == 0 || !owner.target) return;
    say({.what = news::kind::queue_removed, .info = {.target = *owner.target, .id = id}});
  }

  void forget(const key& who) {
    const auto found = seen_.find(who);
    if (found == seen_.end()) return;
    if (found->second.target) end_session(*found->second.target);
    seen_.erase(found);
  }

  void sweep(unsigned source) {
    std::vector<key> gone;
    for (auto& [who, one] : seen_) {
      if (one.source != source) continue;
      if (!one.marked) {
        gone.push_back(who);
        continue;
      }
      std::vector<driver_queue_id> without;
      for (const auto& [number, each] : one.queues)
        if (!each.marked) without.push_back(number);
      for (const driver_queue_id each : without) drop(one, each);
    }
    for (const key& each : gone) forget(each);
  }

  /// What is in flight for it is answered all the same, as a driver does.
  void end_session(process_id target) {
    const auto found = targets_.find(target);
    if (const auto who = seen_.find(found->second); who != seen_.end()) who->second.target.reset();
    targets_.erase(found);
    std::erase_if(flying_, [&](const flight& each) {
      if (each.work.target != target) return false;
      ended_.push_back(each);
      return true;
    });
    say({.what = news::kind::detached, .info = {.target = target}});
  }

  static news added(process_id target, const queue& which) {
    return {.what = news::kind::queue_added,
            .info = {.target = target, .id = which.id, .gpu = which.gpu, .type = which.type}};
  }

  void say(const news& what) {
    news_.push_back(what);
    arm();
  }

  void tell(const news& what) {
    switch (what.what) {
      case news::kind::attached: listener_->attached(what.info.target, {}); break;
      case news::kind::queue_added: listener_->queue_added(what.info); break;
      case news::kind::queue_removed:
        listener_->queue_removed(what.info.target, what.info.id);
        break;
      case news::kind::detached:
        for (const flight& each : ended_)
          if (each.work.target == what.info.target) answer(each);
        std::erase_if(ended_,
                      [&](const flight& each) { return each.work.target == what.info.target; });
        listener_->detached(what.info.target);
        break;
    }
  }

  void answer(const flight& done) {
    result_.id = done.work.id;
    result_.target = done.work.target;
    result_.gpu = done.work.gpu;
    result_.kind = done.work.kind;
    result_.count = done.work.count;
    result_.started = done.submitted;
    result_.finished = done.due;
    result_.queues = done.work.queues;
    result_.outcomes.fill(outcome::done);
    listener_->completed(result_);
  }

  /// Makes the timer readable when there is something to tell.
  void arm() {
    time_point next = never;
    if (!news_.empty()) {
      next = clock::now();
    } else if (!flying_.empty()) {
      next = flying_.front().due;
    }
    if (next == std::exchange(armed_, next)) return;
    itimerspec when{};  // of zeros: not at all
    if (next != never) {
      const auto since = std::max<duration>(next.time_since_epoch(), duration(1));
      const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
      when.it_value = {seconds.count(), (since - seconds).count()};
    }
    ::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
  }

  const null_backend_options options_;
  backend_listener* listener_ = nullptr;
  int timer_ = -1;
  time_point armed_ = never;
  std::map<key, process> seen_;
  std::map<process_id, key> targets_;  // those with a session
  std::vector<news> news_;
  std::vector<news> telling_;  // scratch
  std::deque<flight> flying_;  // by `due`
  std::vector<flight> ended_;  // of sessions that end before they were answered
  batch_result result_{};
};

}  // namespace

std::unique_ptr<backend> make_null_backend(null_backend_options options) {
  return std::make_unique<null_backend>(options);
}

}  // namespace sluice
