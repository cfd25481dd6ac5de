// How many observations per second a real scheduler takes from four source threads that push as
// fast as they can, whether there is room or not. Figure: what reached the core (from an inbox
// each, through run() on io_uring into the table and to the backend), in a window of wall time.
// Floor: the same threads push the same item into a boost::lockfree::spsc_queue each of the same
// size, and the consumer only pops. Checked: every observation, numbered, came in order or was
// dropped; as many were dropped as the inboxes counted; and after the last drop a whole resync
// named what was latest.

#include "instant_backend.hpp"
#include "quick_world.hpp"
#include "series.hpp"

#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t producers = 4;
constexpr std::uint32_t queues_each = 16;
constexpr std::uint8_t of_a_resync = 1;  // observation::priority, which no queue_seen has

/// Number `number` of source `source`: that one of its queues is there.
observation numbered(std::size_t source, std::uint32_t queue, std::uint32_t number) {
  observation one = queue_seen(affected_pid + static_cast<pid_t>(source), queue % queues_each,
                               gpu_id{1 + static_cast<std::uint32_t>(source)});
  one.count = number;
  return one;
}

/// Of what one source pushed, what the core has heard.
class account {
 public:
  void hear(const observation& one) {
    if (one.kind == observation_kind::resync_begin) {
      named_ = 0;
      within_ = true;
    } else if (one.kind == observation_kind::resync_end) {
      if (std::exchange(within_, false) && named_ == queues_each) told_ = latest_;
    } else if (one.kind == observation_kind::queue_seen && one.priority == of_a_resync) {
      // One of another resync, whose mark was dropped, makes this one incomplete.
      if (named_ != 0 && latest_ != one.count) within_ = false;
      latest_ = one.count;
      ++named_;
      in_order_ = in_order_ && latest_ >= last_;
    } else if (one.kind == observation_kind::queue_seen) {
      in_order_ = in_order_ && one.count > last_;
      dropped_ += one.count - last_ - 1;
      if (told_ + 1 == one.count) told_ = one.count;
      last_ = one.count;
      ++heard_;
    }
  }
  std::uint64_t heard() const noexcept { return heard_; }
  /// Whether `pushed` observations, of which `dropped` did not fit, are all accounted for.
  bool complete(std::uint32_t pushed, std::uint64_t dropped) const noexcept {
    return in_order_ && told_ == pushed && heard_ + dropped == pushed &&
           dropped_ + (pushed - last_) == dropped;
  }

 private:
  std::uint64_t heard_ = 0;
  std::uint64_t dropped_ = 0;  // between what was heard
  std::uint32_t last_ = 0;     // heard
  std::uint32_t told_ = 0;     // up to there all was heard, or named by a whole resync
  std::uint32_t latest_ = 0;   // as the resync says that is going on
  std::uint32_t named_ = 0;
  bool within_ = false;
  bool in_order_ = true;
};

/// One for each producer.
using accounts = std::array<account, producers>;

std::uint64_t heard_by(const accounts& all) noexcept {
  std::uint64_t sum = 0;
  for (const account& each : all) sum += each.heard();
  return sum;
}

/// Pushes until told to stop; then only answers resyncs.
class flood final : public source {
 public:
  explicit flood(std::size_t number) : number_(number) {}
  ~flood() override { stop(); }

  std::string_view name() const noexcept override { return "flood"; }
  result<void> start(source_host& host) override {
    inbox_ = &host.claim_inbox();
    thread_ = std::thread([this] { run(); });
    return {};
  }
  void resync() override { resync_.store(true, std::memory_order_release); }
  void stop() override {
    over_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  void cease() noexcept { ceased_.store(true); }
  bool quiet() const noexcept { return quiet_.load(std::memory_order_acquire); }
  /// Once quiet().
  std::uint32_t pushed() const noexcept { return pushed_; }
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  void run() {
    (void)inbox_->push(process_seen(affected_pid + static_cast<pid_t>(number_), role::unmatched));
    while (!over_.load(std::memory_order_relaxed)) {
      if (resync_.exchange(false, std::memory_order_acquire)) restate();
      if (ceased_.load(std::memory_order_relaxed)) {
        quiet_.store(true, std::memory_order_release);
        std::this_thread::yield();
        continue;
      }
      for (std::uint32_t i = 0; i < queues_each; ++i) {
        ++pushed_;
        if (!inbox_->push(numbered(number_, i, pushed_))) ++dropped_;
      }
    }
  }
  void restate() {
    observation mark;
    mark.kind = observation_kind::resync_begin;
    (void)inbox_->push(mark);
    (void)inbox_->push(process_seen(affected_pid + static_cast<pid_t>(number_), role::unmatched));
    for (std::uint32_t i = 0; i < queues_each; ++i) {
      observation one = numbered(number_, i, pushed_);
      one.priority = of_a_resync;
      (void)inbox_->push(one);
    }
    mark.kind = observation_kind::resync_end;
    (void)inbox_->push(mark);
  }

  const std::size_t number_;
  inbox_producer* inbox_ = nullptr;
  std::uint32_t pushed_ = 0;   // the thread's, until quiet_
  std::uint64_t dropped_ = 0;  // likewise
  std::atomic<bool> resync_{false};
  std::atomic<bool> ceased_{false};
  std::atomic<bool> quiet_{false};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

struct plan {
  duration warm_up;
  duration window;
};

/// What a round gave.
struct flow {
  double per_second = 0;
  double per_cpu_second = 0;  // of the consumer
  bool complete = false;
};

/// Counts from its construction on; on the consumer's thread.
class window_count {
 public:
  explicit window_count(std::uint64_t heard) : heard_(heard) {}
  void end(std::uint64_t heard, flow& into) const {
    const auto events = static_cast<double>(heard - heard_);
    into.per_second = events / std::chrono::duration<double>(clock::now() - began_).count();
    into.per_cpu_second = events / (cpu_seconds() - cpu_began_);
  }

 private:
  static double cpu_seconds() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }

  std::uint64_t heard_;
  time_point began_ = clock::now();
  double cpu_began_ = cpu_seconds();
};

/// On the reactor's thread, as a source: takes the time, and ends it all once everything is told.
class conductor final : public source {
 public:
  conductor(const plan& when, std::vector<flood*> floods, const accounts& kept)
      : when_(when), floods_(std::move(floods)), kept_(kept) {}

  std::string_view name() const noexcept override { return "conductor"; }
  result<void> start(source_host& host) override {
    loop_ = &host.loop();
    auto timer = loop_->add_timer([this] { next(); });
    if (!timer) return timer.error();
    timer_ = *timer;
    loop_->arm(timer_, clock::now() + when_.warm_up);
    return {};
  }
  void resync() override {}
  void stop() override { loop_->remove(timer_); }

  scheduler* all = nullptr;
  flow out;

 private:
  void next() {
    const time_point now = clock::now();
    if (!measured_) {
      measured_.emplace(heard_by(kept_));
      loop_->arm(timer_, now + when_.window);
      return;
    }
    if (ended_ == time_point{}) {
      ended_ = now;
      measured_->end(heard_by(kept_), out);
      for (flood* each : floods_) each->cease();
    }
    bool complete = true;
    for (std::size_t i = 0; i < floods_.size(); ++i) {
      complete = complete && floods_[i]->quiet() &&
                 kept_[i].complete(floods_[i]->pushed(), floods_[i]->dropped());
    }
    if (complete || now - ended_ > std::chrono::seconds(20)) {
      out.complete = complete;
      all->stop();
    } else {
      loop_->arm(timer_, now + std::chrono::milliseconds(1));
    }
  }

  const plan when_;
  const std::vector<flood*> floods_;
  const accounts& kept_;
  reactor* loop_ = nullptr;
  timer_id timer_{};
  std::optional<window_count> measured_;
  time_point ended_{};
};

flow through_the_scheduler(const plan& when) {
  accounts kept;
  auto backend = std::make_unique<test::instant_backend>();
  backend->on_observed([&kept](unsigned source, const observation& one) {
    if (source < producers) kept[source].hear(one);
  });
  std::vector<std::unique_ptr<source>> sources;
  std::vector<flood*> floods;
  for (std::size_t i = 0; i < producers; ++i) {
    auto one = std::make_unique<flood>(i);
    floods.push_back(one.get());
    sources.push_back(std::move(one));
  }
  auto last = std::make_unique<conductor>(when, floods, kept);
  conductor& conducts = *last;
  sources.push_back(std::move(last));
  auto loop = reactor::create();
  if (!loop) return {};
  auto made = scheduler::create(bench_config(), std::move(*loop), std::move(backend),
                                make_fixed_timeslice(), std::move(sources));
  if (!made) return {};
  conducts.all = made->get();
  if (!(*made)->start()) return {};
  (*made)->run();
  return conducts.out;
}

flow through_bare_queues(const plan& when) {
  struct lane {
    boost::lockfree::spsc_queue<observation> queue{scheduler_config{}.inbox_capacity};
    std::thread thread;
  };
  std::array<lane, producers> lanes;
  std::atomic<bool> over{false};
  for (std::size_t i = 0; i < producers; ++i) {
    lanes[i].thread = std::thread([&over, &to = lanes[i].queue, i] {
      std::uint32_t pushed = 0;
      while (!over.load(std::memory_order_relaxed)) {
        for (std::uint32_t queue = 0; queue < queues_each; ++queue) {
          (void)to.push(numbered(i, queue, ++pushed));
        }
      }
    });
  }
  std::uint64_t heard = 0;
  std::uint64_t sum = 0;
  const auto pop_for = [&](duration span) {
    const time_point end = clock::now() + span;
    while (clock::now() < end) {
      for (lane& each : lanes) {
        observation one;
        for (auto left = each.queue.read_available(); left != 0 && each.queue.pop(one); --left) {
          sum += one.count;
          ++heard;
        }
      }
    }
  };
  pop_for(when.warm_up);
  const window_count measured(heard);
  pop_for(when.window);
  flow out;
  measured.end(heard, out);
  out.complete = sum != 0;
  over.store(true);
  for (lane& each : lanes) each.thread.join();
  return out;
}

int measure(bool quick) {
  const plan when = quick ? plan{50ms, 150ms} : plan{200ms, 600ms};
  series taken("ingest", "per_second");
  series floor("ingest.bare_queues", "per_second");
  series taken_cpu("ingest.per_cpu_second", "per_second");
  series floor_cpu("ingest.bare_queues.per_cpu_second", "per_second");
  for (int i = 0; i < (quick ? 2 : 9); ++i) {
    const flow one = through_the_scheduler(when);
    if (!one.complete) {
      std::fprintf(stderr, "ingest: an observation is neither heard nor covered by a resync\n");
      return 1;
    }
    const flow bare = through_bare_queues(when);
    if (!bare.complete) {
      std::fprintf(stderr, "ingest: the bare queues brought nothing\n");
      return 1;
    }
    taken.add(one.per_second);
    taken_cpu.add(one.per_cpu_second);
    floor.add(bare.per_second);
    floor_cpu.add(bare.per_cpu_second);
    for (series* each : {&taken, &taken_cpu, &floor, &floor_cpu}) each->end_round();
  }
  for (series* each : {&taken, &taken_cpu, &floor, &floor_cpu}) each->print();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::measure(argc > 1 && std::string_view(argv[1]) == "--quick");
}
