#include "history.hpp"

#include "stepped_reactor.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "sluice/policies/all.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::tests {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t slots = 8;
constexpr std::size_t own_slot = 7;  // The scheduler's own process.
constexpr std::uint32_t gpus = 3;
constexpr std::size_t most_clients = 4;
constexpr duration slice = 20ms;

/// Gangs 2 and 3 are on as many nodes, gang 1 on this one alone.
constexpr std::uint64_t gangs = 3;

gpu_id gpu(std::uint32_t number) { return gpu_id{1 + number % gpus}; }

bool same(const observation& one, const observation& other) {
  return one.kind == other.kind && one.what == other.what && one.type == other.type &&
         one.work == other.work && one.priority == other.priority && one.pid == other.pid &&
         one.gpu == other.gpu && one.queue == other.queue && one.start_time == other.start_time &&
         one.group_key == other.group_key && one.count == other.count && one.at == other.at;
}

/// Wants anything, at any time, for any group.
class holds_at_random final : public policy {
 public:
  explicit holds_at_random(std::uint32_t seed) : random_(seed) {}
  std::string_view name() const noexcept override { return "random"; }
  void decide(const snapshot& seen, decision_sink& out) override {
    const auto wish = [&](group_id id) {
      switch (random_() % 4) {
        case 0: out.hold(id, never); break;
        case 1: out.hold(id, seen.now + std::chrono::microseconds(random_() % 100'000)); break;
        case 2: out.run(id); break;
        default: break;
      }
    };
    for (const group_id id : seen.changed) wish(id);
    for (const gpu_view& on : seen.table.gpus()) {
      for (const group_id id : on.offline) wish(id);
    }
    // Of whatever role: only offline ones are to get it.
    for (const group_id id : seen.changed) out.set_quantum(id, 10us * (random_() % 3));
    if (random_() % 8 == 0) out.reserve(gpu(static_cast<std::uint32_t>(random_())), 0.5);
    if (random_() % 8 == 0) out.poll_pointers(std::chrono::milliseconds(random_() % 2));
    if (random_() % 3 == 0) out.wake_at(seen.now + std::chrono::microseconds(random_() % 50'000));
  }

 private:
  std::mt19937_64 random_;
};

/// Holds everything there is, and throws after a while.
class throws_soon final : public policy {
 public:
  explicit throws_soon(std::uint32_t turns) : left_(turns) {}
  std::string_view name() const noexcept override { return "throws"; }
  void decide(const snapshot& seen, decision_sink& out) override {
    for (const group_id id : seen.changed) out.hold(id, never);
    if (left_-- == 0) throw std::runtime_error("as planned");
  }

 private:
  std::uint32_t left_;
};

/// Shows each snapshot to the reference first.
class judged final : public policy {
 public:
  judged(reference& judge, std::unique_ptr<policy> inner)
      : judge_(judge), inner_(std::move(inner)) {}
  std::string_view name() const noexcept override { return inner_->name(); }
  void decide(const snapshot& seen, decision_sink& out) override {
    judge_.deciding(seen);
    inner_->decide(seen, out);
  }

 private:
  reference& judge_;
  std::unique_ptr<policy> inner_;
};

/// Keeps the books on what it has said: each observation comes to the table once and in its order,
/// or was dropped, and then all is asked for again.
class said final : public source {
 public:
  /// \param number the second has a thread of its own: what it says may find its inbox full, and a
  ///               resync comes when that thread gets to it.
  said(reference& judge, unsigned number) : judge_(judge), number_(number), apart_(number != 0) {}

  /// What waits to be said.
  std::deque<observation> waiting;
  /// What was said is not the truth, and the source knows.
  bool stale = false;
  bool asked = false;
  /// How it says everything.
  std::function<void()> say_all;

  std::string_view name() const noexcept override { return "said"; }
  result<void> start(source_host& host) override {
    loop_ = &host.loop();
    for (auto& one : inboxes_) one.to = &host.claim_inbox();
    return {};
  }
  void resync() override {
    ++resyncs_;
    owed_ = false;
    if (apart_) {
      asked = true;
    } else {
      say_all();
    }
  }
  void stop() override {}
  void gang_changed(const gang_state& what) override { judge_.gang_changed(number_, what); }

  void say(const observation& one) {
    const auto push = [&] {
      // GPUs are seen by another thread than processes.
      auto& box = inboxes_[one.pid != 0 || one.kind == observation_kind::resync_begin ||
                                   one.kind == observation_kind::resync_end
                               ? 0
                               : 1];
      if (box.to->push(one)) {
        box.sent.push_back(one);
      } else {
        ++dropped_;
        owed_ = true;
      }
    };
    apart_ ? push() : loop_->exclusive(push);
  }
  void heard(const observation& one) {
    for (auto& box : inboxes_) {
      if (box.sent.empty() || !same(box.sent.front(), one)) continue;
      box.sent.pop_front();
      return;
    }
    judge_.complain("inbox: an observation came that was not said, or twice, or out of order");
  }
  void idle() const {
    for (const auto& box : inboxes_) {
      if (!box.sent.empty()) judge_.complain("inbox: an observation is left there");
    }
    if (owed_) judge_.complain("inbox: something was dropped, and nobody asks for it again");
  }
  std::uint64_t dropped() const noexcept { return dropped_; }
  std::uint64_t resyncs() const noexcept { return resyncs_; }

 private:
  struct sent_box {
    inbox_producer* to = nullptr;
    std::deque<observation> sent;
  };
  reference& judge_;
  const unsigned number_;
  const bool apart_;
  reactor* loop_ = nullptr;
  std::array<sent_box, 2> inboxes_;
  std::uint64_t dropped_ = 0;
  std::uint64_t resyncs_ = 0;
  bool owed_ = false;
};

scheduler_config settings(std::uint32_t which) {
  scheduler_config made;
  made.attach_after = which % 2 == 0 ? 5ms : 300ms;
  made.attach_at_latest = made.attach_after + (which % 3 == 0 ? 0ms : 40ms);
  made.max_suspend = std::array<duration, 3>{100ms, 30ms, 1s}[which % 3];
  made.min_run = std::array<duration, 3>{10ms, 40ms, 3ms}[which / 3 % 3];
  made.offline_floor = std::array<double, 3>{0, 0.1, 0.5}[which / 9 % 3];
  made.floor_window = which % 4 == 0 ? 1s : 4s;
  made.max_busy = which % 5 == 0 ? 500ms : 60s;
  made.failure_backoff = which % 7 == 0 ? 100ms : 10ms;
  made.breaker_after = which % 4 == 1 ? 1 : 3;
  made.breaker_rearm = which % 6 == 0 ? 2s : 3600s;
  return made;
}

class player {
 public:
  player(const steps& all, model_driver::planted bug) {
    scheduler_config config = settings(0);
    for (const step& one : all) {
      if (one.what != op::world) continue;
      config.suspend_copy_queues = one.a % 2 != 0;
      config.inbox_capacity = 64 + one.b % 64;  // A resync has up to 58.
      break;
    }
    fixed_ = config;
    judge_ = std::make_unique<reference>(time_, config, ::getpid());
    auto driver = std::make_unique<model_driver>(time_, *judge_, bug);
    driver_ = driver.get();
    driver_->on_observed = [this](unsigned source, const observation& seen) {
      sources_[source]->heard(seen);
    };
    driver_->on_gone = [this](pid_t pid, driver_queue_id id) {
      for (const process& one : slot_) {
        if (one.pid == pid) tell_queue_gone(one, id, 0);
      }
    };
    auto loop = std::make_unique<stepped_reactor>(time_);
    loop_ = loop.get();
    std::vector<std::unique_ptr<source>> sources;
    for (unsigned i = 0; i < model_sources; ++i) {
      auto one = std::make_unique<said>(*judge_, i);
      one->say_all = [this, i] { say_all(i); };
      sources_[i] = one.get();
      sources.push_back(std::move(one));
    }
    auto made = scheduler::create(
        config, std::move(loop), std::move(driver),
        judged_by(make_fixed_timeslice({.slice = slice})), std::move(sources),
        {.fallback = [this] { return judged_by(make_fixed_timeslice({.slice = slice})); },
         .time = &time_});
    scheduler_ = std::move(*made);
    judge_->set_policy(policy_in_force::fixed_timeslice, slice);
    if (!scheduler_->start()) judge_->complain("it does not start");
    for (std::size_t i = 0; i < slots; ++i) slot_[i].pid = static_cast<pid_t>(100 + i);
    slot_[own_slot].pid = ::getpid();
  }

  verdict play(const steps& all) {
    verdict found;
    run_for(0us);
    for (const step& one : all) {
      ++found.at;
      apply(one);
      if (!judge_->complaint().empty()) break;
    }
    if (judge_->complaint().empty()) finish();
    found.complaint = judge_->complaint();
    const statistics seen = scheduler_->stats();
    found.commands = judge_->commands();
    found.turns = seen.turns;
    found.overflows = seen.inbox_overflows;
    found.forced = seen.forced_resumes;
    found.restarts = seen.backend_restarts;
    found.for_peers = judge_->for_peers();
    return found;
  }

 private:
  struct process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    bool alive = false;
    std::array<role, model_sources> what{};
    std::uint64_t key = 0;
    std::uint8_t priority = 0;
  };
  struct client {
    online_client handle;
    std::size_t number = 0;
    bool there = false;
  };

  std::unique_ptr<policy> judged_by(std::unique_ptr<policy> inner) {
    return std::make_unique<judged>(*judge_, std::move(inner));
  }

  // Time.

  void run_for(duration span) {
    const time_point end = time_.now() + span;
    int rounds = 0;
    for (;;) {
      driver_->work();
      while (loop_->poll_once()) {
        driver_->work();
        if (++rounds > 1000) return judge_->complain("turn: it spins");
      }
      judge_->idle();
      for (const said* one : sources_) one->idle();
      if (!judge_->complaint().empty() || time_.now() >= end) return;
      const time_point next = std::min({end, loop_->next(), driver_->next()});
      if (next > time_.now()) rounds = 0;
      time_.advance_to(next);
    }
  }

  // What is so, and how it is said.

  observation about(const process& one, observation_kind kind) const {
    observation said;
    said.kind = kind;
    said.pid = one.pid;
    said.start_time = one.start_time;
    return said;
  }
  observation seen_by(unsigned source, const process& one) const {
    observation said = about(one, observation_kind::process_seen);
    said.what = one.what[source];
    said.group_key = one.key;
    said.count = one.key < 2 ? 0 : static_cast<std::uint32_t>(one.key);
    said.priority = one.priority;
    return said;
  }
  observation queue_seen(const process& one, driver_queue_id id,
                         const model_driver::queue& which) const {
    observation said = about(one, observation_kind::queue_seen);
    said.queue = id;
    said.gpu = which.gpu;
    said.type = which.type;
    return said;
  }

  void say_all(unsigned source) {
    said& by = *sources_[source];
    by.waiting.clear();
    by.stale = by.asked = false;
    observation mark;
    mark.kind = observation_kind::resync_begin;
    by.say(mark);
    for (const process& one : slot_) {
      if (!one.alive) continue;
      by.say(seen_by(source, one));
      for (const auto& [id, each] : driver_->queues_of(one.pid)) by.say(queue_seen(one, id, each));
    }
    mark.kind = observation_kind::resync_end;
    by.say(mark);
  }

  void flush(unsigned source, std::size_t most) {
    auto& waiting = sources_[source]->waiting;
    for (; most != 0 && !waiting.empty(); --most) {
      const observation one = waiting.front();
      waiting.pop_front();
      sources_[source]->say(one);
    }
  }

  /// \param how by the first and the second source: 0: both at once; 1: both later; 2: the first at
  /// once; 3: the second not at all, until it looks again; 4: nor the first.
  template <class Make>
  void tell(std::uint32_t how, Make&& make) {
    for (unsigned source = 0; source < model_sources; ++source) {
      said& by = *sources_[source];
      if (how % 8 == (source == 0 ? 4U : 3U)) {
        by.stale = true;
        continue;
      }
      by.waiting.push_back(make(source));
      const bool now = how % 8 == 0 || how % 8 > 4 || (how % 8 == 2 && source == 0);
      if (now) flush(source, SIZE_MAX);
    }
  }

  void describe(process& one, std::uint32_t bits) {
    one.what = {static_cast<role>(bits % 3), static_cast<role>(bits / 3 % 3)};
    one.key = &one == &slot_[own_slot] ? 0 : std::array<std::uint64_t, 4>{0, 3, 1, 2}[bits / 9 % 4];
    one.priority = static_cast<std::uint8_t>(bits / 36 % 16);
  }

  void end_process(process& one, std::uint32_t how) {
    driver_->end_process(one.pid);
    one.alive = false;
    tell(how, [&](unsigned) { return about(one, observation_kind::process_gone); });
  }

  void tell_queue_gone(const process& one, driver_queue_id id, std::uint32_t how) {
    tell(how, [&](unsigned) {
      observation said = about(one, observation_kind::queue_gone);
      said.queue = id;
      return said;
    });
  }

  void say_gpu(unsigned source, observation_kind kind, gpu_id which, std::uint64_t key = 0,
               time_point at = {}) {
    observation said;
    said.kind = kind;
    said.gpu = which;
    said.group_key = key;
    said.at = at;
    sources_[source]->say(said);
  }

  void say_peers(std::uint64_t gang, time_point until, bool hold) {
    observation said;
    said.kind = observation_kind::gang_heard;
    said.group_key = gang;
    said.at = until;
    said.count = hold ? 1 : 0;
    sources_[1]->say(said);
  }

  // Steps.

  void apply(const step& one) {
    process& at = slot_[one.a % slots];
    client& by = clients_[one.a % most_clients];
    const unsigned source = one.a % model_sources;
    switch (one.what) {
      case op::world: break;
      case op::turn: run_for(0us); break;
      case op::wait: run_for(std::chrono::microseconds(one.a)); break;
      case op::start:
        if (at.alive) break;
        at.alive = true;
        ++at.start_time;
        describe(at, one.b);
        driver_->start_process(at.pid, at.start_time);
        tell(one.c, [&](unsigned each) { return seen_by(each, at); });
        break;
      case op::exit:
        if (at.alive) end_process(at, one.c);
        break;
      case op::exec: {
        if (!at.alive) break;
        const auto before = driver_->queues_of(at.pid);
        driver_->exec(at.pid);
        for (const auto& [id, each] : before) tell_queue_gone(at, id, one.c);
        break;
      }
      case op::role:
        if (!at.alive) break;
        describe(at, one.b);
        tell(one.c, [&](unsigned each) { return seen_by(each, at); });
        break;
      case op::create: {
        if (!at.alive) break;
        const auto type = one.b / gpus % 4 == 0 ? queue_kind::copy : queue_kind::compute;
        const auto id = driver_->create_queue(at.pid, gpu(one.b), type);
        if (!id) break;
        const auto made = driver_->queues_of(at.pid).at(*id);
        tell(one.c, [&](unsigned) { return queue_seen(at, *id, made); });
        break;
      }
      case op::destroy: {
        if (!at.alive || driver_->queues_of(at.pid).empty()) break;
        auto which = driver_->queues_of(at.pid).begin();
        std::advance(which, one.b % driver_->queues_of(at.pid).size());
        const driver_queue_id id = which->first;
        // One that is suspended goes when it is resumed; whoever watches sees it go then.
        const bool at_once = !which->second.suspended;
        driver_->destroy_queue(at.pid, id);
        if (at_once) tell_queue_gone(at, id, one.c);
        break;
      }
      case op::gpu: say_gpu(1, observation_kind::gpu_seen, gpu(one.a), one.b % 3); break;
      case op::tell: {
        auto& waiting = sources_[source]->waiting;
        if (one.c == 1 && waiting.size() > 1) {
          const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(
                                                 std::min<std::size_t>(waiting.size(), one.b));
          std::reverse(waiting.begin(), end);
          sources_[source]->stale = true;
        }
        flush(source, one.b);
        break;
      }
      case op::repeat:
        if (!at.alive) break;
        for (std::uint32_t i = 0; i < one.b % 64; ++i) {
          for (unsigned each = 0; each < model_sources; ++each) {
            if (sources_[each]->stale || !sources_[each]->waiting.empty()) continue;
            sources_[each]->say(seen_by(each, at));
            for (const auto& [id, queue] : driver_->queues_of(at.pid)) {
              sources_[each]->say(queue_seen(at, id, queue));
            }
          }
        }
        break;
      case op::resync: say_all(source); break;
      case op::begin:
        if (!by.there) break;
        by.handle.begin();
        judge_->begin(by.number);
        break;
      case op::end:
        if (!by.there || judge_->in_flight(by.number) == 0) break;
        by.handle.end();
        judge_->end(by.number);
        break;
      case op::enlist: {
        if (by.there) break;
        std::vector<gpu_id> where;
        for (std::uint32_t i = 0; i < gpus; ++i) {
          if ((one.b >> i & 1) != 0) where.push_back(gpu(i));
        }
        auto made = scheduler_->register_client({"client", where, 100ms});
        if (!made) return judge_->complain("no client is taken");
        by = {std::move(*made), judge_->add_client(where), true};
        break;
      }
      case op::withdraw:
        if (!by.there) break;
        judge_->withdraw(by.number);
        by = {};
        break;
      case op::pointers: {
        observation said = about(at, observation_kind::pointers_seen);
        said.gpu = gpu(one.b);
        said.work = static_cast<online_work>(one.c % 5);
        said.count = one.c / 5 % 3;
        said.at = time_.now();
        sources_[0]->say(said);
        break;
      }
      case op::peers:
        say_peers(1 + one.a % gangs, one.b == 1 ? never : time_.now() + one.b * 1ms,
                  one.c % 2 != 0);
        break;
      case op::fault:
        driver_->script(at.pid, driver_queue_id{one.b % 6},
                        static_cast<model_driver::fault>(one.c % 3));
        break;
      case op::latency: driver_->set_latency(at.pid, std::chrono::microseconds(one.b)); break;
      case op::stuck: driver_->get_stuck(at.pid); break;
      case op::no_attach:
        driver_->refuse_attach(at.pid, one.b % 3 == 0 ? error_code(errc::not_managed)
                                       : one.b % 3 == 1
                                           ? error_code(errc::busy)
                                           : error_code(EIO, boost::system::system_category()));
        break;
      case op::no_submit:
        driver_->refuse_submit(one.a % 3 == 0 ? error_code(errc::busy)
                               : one.a % 3 == 1
                                   ? error_code(errc::full)
                                   : error_code(EAGAIN, boost::system::system_category()));
        break;
      case op::no_detach: driver_->refuse_detach(errc::full); break;
      case op::mute: driver_->mute(at.pid, std::chrono::microseconds(one.b)); break;
      case op::order: driver_->set_order(one.a); break;
      case op::hang_up:
        driver_->end_session(at.pid);
        driver_->mute(at.pid, std::chrono::microseconds(one.b % 16'384));
        break;
      case op::lose_gpu:
        if (one.b % 2 == 0) {
          driver_->lose_gpu(gpu(one.a));
        } else {
          say_gpu(1, observation_kind::gpu_lost, gpu(one.a), 0, time_.now() - one.b / 2 * 1ms);
        }
        break;
      case op::rearm:
        if (one.b % 2 == 0) {
          rearm(gpu(one.a));
        } else {
          say_gpu(1, observation_kind::breaker_rearmed, gpu(one.a));
        }
        break;
      case op::keep:
        say_gpu(0, observation_kind::breaker_kept, gpu(one.a), 0,
                time_.now() + one.b * std::chrono::milliseconds(1));
        break;
      case op::fall_back: driver_->act_by(by_single_calls); break;
      case op::crash: driver_->crash(one.a); break;
      case op::restore: driver_->restore(); break;
      case op::configure: {
        scheduler_config next = settings(one.a);
        (void)next.keep_fixed(fixed_);
        if (!scheduler_->set_config(next)) return judge_->complain("the settings are refused");
        judge_->set_config(next);
        break;
      }
      case op::policy: set_policy(one.a, one.b); break;
      case op::rest: rest(one.a); break;
    }
  }

  void rearm(gpu_id which) {
    scheduler_->rearm(which);
    judge_->rearm(which);
  }

  void set_policy(std::uint32_t which, std::uint32_t seed) {
    std::unique_ptr<policy> next;
    auto in_force = policy_in_force::some;
    const auto all = all_policies();
    constexpr std::uint32_t own = 5;
    switch (which % (own + static_cast<std::uint32_t>(all.size()))) {
      case 0: in_force = policy_in_force::none; break;
      case 1:
        next = make_fixed_timeslice({.slice = slice});
        in_force = policy_in_force::fixed_timeslice;
        break;
      case 2:
      case 3: next = std::make_unique<holds_at_random>(seed); break;
      case 4: next = std::make_unique<throws_soon>(seed % 8); break;
      default: {
        const policy_kind& kind = all[which % (own + all.size()) - own];
        std::string problem;
        if (kind.make) {
          if (auto made = make_policy(kind, {}, problem)) next = std::move(*made);
        }
        // One that cannot do without what it is told: another one.
        if (!next) next = std::make_unique<holds_at_random>(seed);
      }
    }
    scheduler_->set_policy(next ? judged_by(std::move(next)) : nullptr);
    judge_->set_policy(in_force, slice);
  }

  /// All that was late comes, nothing goes wrong any more, and time passes.
  void come_to_rest() {
    driver_->be_kind();
    driver_->restore();
    for (client& one : clients_) {
      while (one.there && judge_->in_flight(one.number) != 0) {
        one.handle.end();
        judge_->end(one.number);
      }
    }
    // Stuck calls end, and what they cost is given back.
    run_for(15s);
    for (std::uint32_t i = 0; i < gpus; ++i) rearm(gpu(i));
    for (int i = 0; i < 100 && is_behind(); ++i) {
      for (unsigned source = 0; source < model_sources; ++source) {
        said& by = *sources_[source];
        if (by.stale || by.asked) {
          // A source of its own thread that knows how much fits.
          say_all(source);
        } else {
          flush(source, 8);
        }
      }
      run_for(1ms);
    }
    if (is_behind()) judge_->complain("inbox: what is dropped comes again and again");
  }
  bool is_behind() const {
    return std::any_of(sources_.begin(), sources_.end(), [](const said* one) {
      return one->stale || one->asked || !one->waiting.empty();
    });
  }

  void rest(std::uint32_t whose) {
    come_to_rest();
    if (!judge_->complaint().empty()) return;
    const bool everything_runs = whose % 3 != 2;
    if (everything_runs) {
      set_policy(whose % 3, 0);
      for (std::uint64_t gang = 1; gang <= gangs; ++gang) say_peers(gang, {}, false);
    }
    // The longest wait: for a process that could not be managed.
    run_for(everything_runs ? 75s : 62s);
    if (!judge_->complaint().empty()) return;
    judge_->at_rest(everything_runs);
    compare(everything_runs);
    // Something has to decide, so that the table is looked at.
    set_policy(whose / 3, whose);
    run_for(0us);
  }

  /// The table and the truth.
  void compare(bool everything_runs) {
    std::map<std::pair<pid_t, std::uint64_t>, reference::source_view> truth;
    std::size_t queues = 0;
    for (const process& one : slot_) {
      if (!one.alive) continue;
      auto& view = truth[{one.pid, one.start_time}];
      view.key = one.key;
      view.priority = one.priority;
      for (const auto& [id, each] : driver_->queues_of(one.pid)) view.queues.insert(id);
      queues += view.queues.size();
    }
    for (unsigned source = 0; source < model_sources; ++source) {
      for (const process& one : slot_) {
        if (one.alive) truth[{one.pid, one.start_time}].what = one.what[source];
      }
      if (judge_->told_by(source) != truth) {
        judge_->complain("rest: source " + std::to_string(source) + " has not said what is so");
      }
    }
    const statistics seen = scheduler_->stats();
    const auto check = [&](const char* what, std::uint64_t is, std::uint64_t wanted) {
      if (is == wanted) return;
      judge_->complain("rest: " + std::string(what) + ": " + std::to_string(is) + ", not " +
                       std::to_string(wanted));
    };
    check("processes", seen.processes, truth.size());
    check("queues", seen.queues, queues);
    check("begins", seen.begins, judge_->begins());
    std::uint64_t dropped = 0;
    std::uint64_t resyncs = 0;
    for (const said* one : sources_) {
      dropped += one->dropped();
      resyncs += one->resyncs();
    }
    check("inbox_overflows", seen.inbox_overflows, dropped);
    check("resyncs", seen.resyncs, resyncs);
    if (!everything_runs) return;
    check("suspended_now", seen.suspended_now, 0);
    check("suspended in the driver", driver_->suspended(), 0);
  }

  void finish() {
    come_to_rest();
    if (!judge_->complaint().empty()) return;
    scheduler_->stop();
    judge_->stopping();
    for (int i = 0; i < 100 && !scheduler_->stopped(); ++i) run_for(100ms);
    if (!judge_->complaint().empty()) return;
    if (!scheduler_->stopped()) judge_->complain("stop: it does not end");
    if (driver_->suspended() != 0) judge_->complain("stop: something is left suspended");
    if (!driver_->stopped()) judge_->complain("stop: the backend was not stopped");
  }

  testing::manual_clock time_;
  std::unique_ptr<reference> judge_;
  model_driver* driver_ = nullptr;
  stepped_reactor* loop_ = nullptr;
  std::array<said*, model_sources> sources_{};
  scheduler_config fixed_;
  std::unique_ptr<scheduler> scheduler_;
  std::array<process, slots> slot_;
  std::array<client, most_clients> clients_;
};

}  // namespace

steps make_steps(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(random() % limit);
  };
  struct kind {
    op what;
    std::uint32_t weight;
  };
  // And how often.
  constexpr kind kinds[] = {
      {op::turn, 150},    {op::wait, 200},    {op::start, 40},    {op::exit, 12},
      {op::exec, 4},      {op::role, 25},     {op::create, 90},   {op::destroy, 45},
      {op::gpu, 6},       {op::tell, 50},     {op::repeat, 12},   {op::resync, 8},
      {op::begin, 90},    {op::end, 90},      {op::enlist, 20},   {op::withdraw, 6},
      {op::pointers, 12}, {op::peers, 90},    {op::fault, 25},    {op::latency, 12},
      {op::stuck, 1},     {op::no_attach, 5}, {op::no_submit, 6}, {op::no_detach, 4},
      {op::mute, 10},     {op::order, 10},    {op::hang_up, 6},   {op::lose_gpu, 4},
      {op::rearm, 12},    {op::keep, 1},      {op::fall_back, 3}, {op::crash, 4},
      {op::restore, 15},  {op::configure, 6}, {op::policy, 12},   {op::rest, 3}};
  std::uint32_t sum = 0;
  for (const kind& one : kinds) sum += one.weight;
  steps all{{op::world, below(2), below(64)}};
  // Some of the lesser disturbances are left out of a history, so that others have time to work.
  const std::uint32_t calm = below(4);
  while (all.size() < count) {
    std::uint32_t at = below(sum);
    const kind* which = kinds;
    while (at >= which->weight) at -= (which++)->weight;
    const bool disturbs = which->what >= op::fault && which->what <= op::restore &&
                          which->what != op::rearm && which->what != op::restore;
    if (disturbs && below(4) < calm) continue;
    step next{which->what, below(slots), below(1U << 16), below(1U << 8)};
    switch (next.what) {
      // Often briefly, sometimes long.
      case op::wait:
        next.a = below(10) == 0 ? below(2'000'000) : below(30'000);
        next.b = next.c = 0;
        break;
      case op::begin:
      case op::end:
      case op::enlist: next.a = below(3); break;
      case op::start:
      case op::role:
        // Mostly offline, and by one source alone.
        if (below(3) == 0) break;
        next.b = 2 + 36 * below(16);
        if (below(3) == 0) next.b += 9 * below(4);
        break;
      case op::peers:
        next.a = below(8) == 0 ? 0 : 1 + below(2);
        next.b = below(4) == 0 ? below(2) : below(2000);
        break;
      case op::latency: next.b = below(30'000); break;
      case op::mute: next.b = below(60'000); break;
      case op::tell:
        next.b = below(12);
        next.c = below(8) == 0 ? 1 : 0;
        break;
      case op::crash: next.a = below(6); break;
      case op::repeat: next.b = below(3) == 0 ? below(64) : below(4); break;
      default: break;
    }
    all.push_back(next);
  }
  return all;
}

verdict play(const steps& all, model_driver::planted bug) { return player(all, bug).play(all); }

}  // namespace sluice::tests
