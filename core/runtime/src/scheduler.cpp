#include "sluice/scheduler.hpp"

#include "inbox_queue.hpp"
#include "log.hpp"
#include "recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "sluice/scheduler_core.hpp"

namespace sluice {
namespace {

/// How often a backend without a descriptor is drained; a scripted one, so cost does not matter.
constexpr duration drain_interval = std::chrono::milliseconds(1);

/// Rounds without going back to the loop, so that sources get their turn under a storm of begins.
constexpr int most_rounds = 8;

class scheduler_impl final : public scheduler {
 public:
  scheduler_impl(const scheduler_config& config, const time_source& time,
                 std::unique_ptr<core::recorder> recorder, std::unique_ptr<reactor> loop,
                 std::unique_ptr<backend> driver, std::unique_ptr<scheduler_core> core,
                 std::vector<std::unique_ptr<source>> sources)
      : inbox_capacity_(config.inbox_capacity),
        time_(time),
        recorder_(std::move(recorder)),
        loop_(std::move(loop)),
        backend_(std::move(driver)),
        core_(std::move(core)) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      sources_.push_back(
          std::make_unique<hosted_source>(*this, static_cast<unsigned>(i), std::move(sources[i])));
    }
    core_->on_breaker([this](const breaker_change& what) {
      for (const auto& each : sources_) each->breaker_changed(what);
    });
    core_->on_marks([this](pid_t pid, bool so) {
      for (const auto& each : sources_) each->marks_requests(pid, so);
    });
    core_->on_gang([this](const gang_state& what) {
      for (const auto& each : sources_) each->gang_changed(what);
    });
    core_->on_look([this] { turn(); });
  }

  ~scheduler_impl() override {
    // All of it while no handler runs, and the reactor before one can run again.
    loop_->exclusive([this] {
      if (started_ && !stopped()) shut_down();
      sources_.clear();
      core_.reset();
      backend_.reset();
      loop_.reset();
    });
  }

  result<void> start() override {
    result<void> outcome = errc::stopped;
    loop_->exclusive([&] {
      if (!started_ && !stop_asked_.load(std::memory_order_acquire)) outcome = start_here();
    });
    return outcome;
  }

  void run() override {
    while (started_ && !stopped() && !loop_->hosted()) loop_->run();
  }

  bool poll_once() override { return started_ && !stopped() && loop_->poll_once(); }

  void stop() noexcept override {
    stop_asked_.store(true, std::memory_order_release);
    core_->wake();
  }

  bool stopped() const noexcept override { return stopped_.load(std::memory_order_acquire); }

  result<picture> look(duration patience) override {
    std::unique_lock held{look_mutex_};
    // Whoever comes while one is being made waits for the next.
    const std::uint64_t wanted = pictures_begun_ + 1;
    if (!started_ || stopped()) return errc::stopped;
    picture_wanted_.store(true, std::memory_order_release);
    core_->wake();
    const auto there = [&] { return pictures_made_ >= wanted || stopped(); };
    if (!picture_made_.wait_for(held, patience, there)) return errc::busy;
    if (pictures_made_ < wanted) return errc::stopped;
    const auto made = picture_;
    held.unlock();
    return *made;
  }

  result<online_client> register_client(client_options options) override {
    return core_->register_client(std::move(options));
  }
  void rearm(gpu_id which) override { core_->rearm(which); }
  void set_policy(std::unique_ptr<policy> next) override { core_->set_policy(std::move(next)); }
  result<void> set_config(const scheduler_config& next) override { return core_->set_config(next); }
  scheduler_config config() const override { return core_->config(); }
  statistics stats() const override { return core_->stats(); }

 private:
  /// One source with its inboxes.
  class hosted_source final : public source_host {
   public:
    hosted_source(scheduler_impl& owner, unsigned number, std::unique_ptr<source> what)
        : owner_(owner), number_(number), source_(std::move(what)) {}

    reactor& loop() override { return *owner_.loop_; }
    inbox_producer& claim_inbox() override {
      inboxes_.push_back(std::make_unique<inbox>(
          owner_.inbox_capacity_,
          inbox::hooks{
              [core = owner_.core_.get()] { core->ring(); },
              [loop = owner_.loop_.get()] { return loop->running_here(); },
              [core = owner_.core_.get(), number = number_](
                  const observation& seen, time_point now) { core->observe(number, seen, now); },
              &owner_.time_}));
      return inboxes_.back()->producer();
    }

    client_host* clients() noexcept override { return &owner_.core_->clients(); }

    result<void> start() { return source_->start(*this); }
    void stop() { source_->stop(); }
    void poll_pointers(duration every) { source_->poll_pointers(every); }
    void marks_requests(pid_t pid, bool so) { source_->marks_requests(pid, so); }
    std::string_view name() const noexcept { return source_->name(); }
    void breaker_changed(const breaker_change& what) { source_->breaker_changed(what); }
    void gang_changed(const gang_state& what) { source_->gang_changed(what); }
    void drain() {
      bool overflow = false;
      for (const auto& one : inboxes_) {
        // The bit first: what is dropped after this look sets it again.
        overflow |= one->take_overflow();
        owner_.core_->overflowed(number_, one->take_dropped());
        one->drain();
      }
      if (!overflow) return;
      owner_.core_->resyncing(number_);
      source_->resync();
      for (const auto& one : inboxes_) one->drain();
    }
    bool has_news() const noexcept {
      return std::any_of(inboxes_.begin(), inboxes_.end(),
                         [](const auto& one) { return one->has_news(); });
    }

   private:
    scheduler_impl& owner_;
    unsigned number_;
    std::unique_ptr<source> source_;
    std::vector<std::unique_ptr<inbox>> inboxes_;
  };

  result<void> start_here() {
    if (auto done = core_->start(); !done) return done;
    auto made = arm();
    std::size_t running = 0;
    for (; made && running < sources_.size(); ++running) {
      made = sources_[running]->start();
      if (!made) {
        log_line(log_level::error, log_part::scheduler, {{"source", sources_[running]->name()}},
                 "source {}: cannot start: {}", sources_[running]->name(), made.error().message());
        break;
      }
    }
    if (!made) {
      while (running != 0) sources_[--running]->stop();
      disarm();
      core_->finish_stop();
      return made;
    }
    started_ = true;
    core_->wake();  // The first turn.
    return {};
  }

  result<void> arm() {
    const auto watch = [this](int fd, reactor::trigger by) -> result<void> {
      auto made = loop_->watch(
          fd, [this] { turn(); }, by);
      if (!made) return made.error();
      watches_.push_back(*made);
      return {};
    };
    auto made = watch(core_->wake_fd(), reactor::trigger::edge);
    if (made && backend_->ready_fd() >= 0) {
      made = watch(backend_->ready_fd(), reactor::trigger::level);
    }
    if (!made) return made;
    auto timer = loop_->add_timer([this] { turn(); }, true);
    if (!timer) return timer.error();
    timer_ = *timer;
    return {};
  }

  void disarm() noexcept {
    for (const watch_id id : watches_) loop_->unwatch(id);
    watches_.clear();
    loop_->remove(timer_);
  }

  void turn() {
    if (!started_) return;
    time_point next = never;
    for (int round = 0; round < most_rounds; ++round) {
      core_->awake();
      // Before anything is drained: what was said before stop() is still heard.
      const bool stopping = stop_asked_.load(std::memory_order_acquire);
      for (const auto& one : sources_) one->drain();
      if (stopping) core_->begin_stop();
      next = core_->step();
      if (const duration wanted = core_->pointer_interval();
          wanted != std::exchange(pointer_interval_, wanted)) {
        for (const auto& one : sources_) one->poll_pointers(wanted);
      }
      if (picture_wanted_.load(std::memory_order_relaxed)) show();
      if (stopping && may_shut_down()) {
        shut_down();
        return;
      }
      if (stopping) next = std::min(next, stop_deadline_);
      if (backend_->ready_fd() < 0) next = std::min(next, time_.now() + drain_interval);
      const bool asleep = core_->fall_asleep();
      const bool news = std::any_of(sources_.begin(), sources_.end(),
                                    [](const auto& one) { return one->has_news(); });
      if (asleep && !news && next > time_.now()) {
        loop_->arm(timer_, next);
        return;
      }
    }
    core_->wake();  // More to do, after the others.
  }

  void show() {
    {
      const std::scoped_lock held{look_mutex_};
      picture_wanted_.store(false, std::memory_order_relaxed);
      ++pictures_begun_;
    }
    auto made = std::make_shared<const picture>(core_->look());
    {
      const std::scoped_lock held{look_mutex_};
      picture_ = std::move(made);
      pictures_made_ = pictures_begun_;
    }
    picture_made_.notify_all();
  }

  bool may_shut_down() {
    const auto now = time_.now();
    if (stop_deadline_ == never) stop_deadline_ = now + core_->config().stop_limit;
    if (core_->all_running()) return true;
    if (now < stop_deadline_) return false;
    log_line(
        log_level::warning, log_part::scheduler, {},
        "some queues were not resumed within stop_limit; stopping the backend, which resumes them");
    return true;
  }

  void shut_down() {
    for (auto one = sources_.rbegin(); one != sources_.rend(); ++one) (*one)->stop();
    disarm();
    core_->finish_stop();
    {
      const std::scoped_lock held{look_mutex_};
      stopped_.store(true, std::memory_order_release);
    }
    picture_made_.notify_all();
    loop_->stop();
  }

  const std::size_t inbox_capacity_;
  const time_source& time_;
  // In this order: the core uses the backend and the recorder, the sources use both and the loop.
  const std::unique_ptr<core::recorder> recorder_;
  std::unique_ptr<reactor> loop_;
  std::unique_ptr<backend> backend_;
  std::unique_ptr<scheduler_core> core_;
  std::vector<std::unique_ptr<hosted_source>> sources_;
  std::vector<watch_id> watches_;
  timer_id timer_{};
  time_point stop_deadline_ = never;
  duration pointer_interval_{};       // As the sources were told.
  std::atomic<bool> started_{false};  // Set once, on the reactor thread.
  std::atomic<bool> stop_asked_{false};
  std::atomic<bool> stopped_{false};

  std::atomic<bool> picture_wanted_{false};
  std::mutex look_mutex_;  // Guards what follows; held for moments only.
  std::condition_variable picture_made_;
  std::shared_ptr<const picture> picture_;
  std::uint64_t pictures_begun_ = 0;
  std::uint64_t pictures_made_ = 0;
};

}  // namespace

result<std::unique_ptr<scheduler>> scheduler::create(scheduler_config config,
                                                     std::unique_ptr<reactor> loop,
                                                     std::unique_ptr<backend> driver,
                                                     std::unique_ptr<policy> decider,
                                                     std::vector<std::unique_ptr<source>> sources,
                                                     scheduler_options options) {
  // Fewer than bits in the table's marks.
  if (sources.size() > backend_source) return errc::full;
  // Before the recorder empties its file.
  if (!config.problem().empty()) return errc::bad_config;
  std::unique_ptr<core::recorder> recorder;
  if (!options.record.file.empty()) {
    auto opened = core::recorder::create(options.record);
    if (!opened) return opened.error();
    recorder = std::move(*opened);
  }
  static const steady_time real_time;
  const time_source& time = options.time != nullptr ? *options.time : real_time;
  auto core = scheduler_core::create(config, *driver, std::move(decider),
                                     {.time = &time,
                                      .own_pid = getpid(),
                                      .fallback = std::move(options.fallback),
                                      .record_into = recorder.get(),
                                      .record = std::move(options.record),
                                      .journal = options.journal});
  if (!core) return core.error();
  return std::make_unique<scheduler_impl>(config, time, std::move(recorder), std::move(loop),
                                          std::move(driver), std::move(*core), std::move(sources));
}

}  // namespace sluice
