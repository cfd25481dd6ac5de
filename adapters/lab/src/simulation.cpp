#include "experiment.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/scheduler_core.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// Anything but the clock's zero, which means "never" to policies.
constexpr time_point engine_start{1000s};

/// Two turns of the scheduler are at least so far apart.
constexpr duration turn_time = 1us;

class at_once final : public policy {
 public:
  std::string_view name() const noexcept override { return "at_once"; }
  void decide(const snapshot& seen, decision_sink& out) override {
    for (const group_id id : seen.changed) declare(seen, id, out);
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      for (const group_id id : on->offline) declare(seen, id, out);
    }
  }

 private:
  static void declare(const snapshot& seen, group_id id, decision_sink& out) {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    const bool busy = std::any_of(group->gpus.begin(), group->gpus.end(), [&](gpu_id where) {
      const gpu_view* const on = seen.table.find(where);
      return on != nullptr && on->online_in_flight != 0;
    });
    busy && group->what == role::offline ? out.hold(id, never) : out.run(id);
  }
};

/// The scheduler's turns as events: at what it asked for, and when somebody rang.
class turns {
 public:
  turns(sim::engine& events, scheduler_core& core) : events_(events), core_(core) {}
  void ring(duration after) { plan(events_.now() + after); }
  /// Called after each turn.
  void then(std::function<void()> what) { then_ = std::move(what); }
  void stop() { events_.cancel(timer_); }

 private:
  void plan(time_point when) {
    if (when >= planned_) return;
    events_.cancel(timer_);
    planned_ = when;
    timer_ = events_.at(when, [this] { turn(); });
  }
  void turn() {
    planned_ = never;
    timer_ = {};
    const time_point next = core_.step();
    if (next != never) plan(std::max(next, events_.now() + turn_time));
    if (then_) then_();
  }

  sim::engine& events_;
  scheduler_core& core_;
  std::function<void()> then_;
  time_point planned_ = never;
  sim::timer_id timer_;
};

/// A process that looks at the pointers of the servers' queues whenever the policy's interval says
/// so, and tells what changed, as adapters/kfd's pointer watch does. Looks that would find nothing
/// new are left out.
class pointer_looks {
 public:
  pointer_looks(sim::engine& events, scheduler_core& core, std::function<void()> told)
      : events_(events), core_(core), told_(std::move(told)) {}
  ~pointer_looks() { events_.cancel(timer_); }
  pointer_looks(const pointer_looks&) = delete;
  pointer_looks& operator=(const pointer_looks&) = delete;

  void add(online_server& server, pid_t pid, gpu_id on) { watched_.push_back({&server, pid, on}); }

  /// After a turn of the scheduler: the interval may be another.
  void follow() {
    const duration wanted = core_.pointer_interval();
    if (wanted == interval_) return;
    if (interval_ == duration::zero()) {
      for (watched& each : watched_) {
        each.server->show_pointers([this] { plan(events_.now()); });
        each.ever_told = false;
        each.written = each.server->seen_from_outside().written;
      }
    }
    interval_ = wanted;
    first_ = events_.now();
    events_.cancel(std::exchange(timer_, {}));
    planned_ = never;
    plan(first_);
  }

 private:
  /// For each process and GPU.
  static constexpr duration least_report = 1ms;

  struct watched {
    online_server* server;
    pid_t pid;
    gpu_id on;
    std::uint64_t written = 0;  ///< As told.
    online_work work = online_work::unknown;
    bool ever_told = false;
    time_point told_at{};
  };

  /// The first look at or after then.
  void plan(time_point from) {
    if (interval_ == duration::zero() || planned_ != never) return;
    const auto intervals = (from - first_ + interval_ - 1ns) / interval_;
    planned_ = first_ + intervals * interval_;
    timer_ = events_.at(planned_, [this] { look(); });
  }

  void look() {
    const time_point now = events_.now();
    planned_ = never;
    timer_ = {};
    bool told = false;
    time_point again = never;
    for (watched& each : watched_) {
      const auto& seen = each.server->seen_from_outside();
      const online_work work = seen.read != seen.written       ? online_work::waiting
                               : seen.finished != seen.written ? online_work::running
                                                               : online_work::finished;
      if (each.ever_told && work == each.work && seen.written == each.written) continue;
      if (each.ever_told && now - each.told_at < least_report) {
        again = std::min(again, each.told_at + least_report);
        continue;
      }
      core_.observe(0, {.kind = observation_kind::pointers_seen,
                        .work = work,
                        .pid = each.pid,
                        .gpu = each.on,
                        .start_time = 1,
                        .count = static_cast<std::uint32_t>(seen.written - each.written),
                        .at = now});
      each.written = seen.written;
      each.work = work;
      each.ever_told = told = true;
      each.told_at = now;
    }
    if (again != never) plan(again);
    if (told) told_();
  }

  sim::engine& events_;
  scheduler_core& core_;
  const std::function<void()> told_;
  std::vector<watched> watched_;
  duration interval_{};
  time_point first_{};  ///< Look with this interval.
  time_point planned_ = never;
  sim::timer_id timer_;
};

/// What is counted over a stretch of time.
struct sums {
  duration offline_work{};
  std::uint64_t offline_kernels = 0;
  duration switching{};
  duration disturbed{};
  std::uint64_t disturbing_cycles = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t suspends = 0;
  std::uint64_t resumes = 0;
};

/// One node: its GPUs, what runs there, and who schedules that.
class simulated_node {
 public:
  simulated_node(sim::engine& events, const scenario& what, const contender& who,
                 const run_options& options)
      : what_(what), who_(who), events_(events), time_(events_) {
    const bool online = who.how != arrangement::offline_alone;
    const bool offline = who.how != arrangement::online_alone;
    const bool split = who.how == arrangement::static_split;
    dealt_ = deal(what.work, what.servers());
    for (const auto& shape : what.machine.gpus) {
      parts_.push_back(std::make_unique<gpu>(events_, shape, split ? who.online_share : 1.0));
      if (split) parts_.push_back(std::make_unique<gpu>(events_, shape, 1 - who.online_share));
    }
    if (online) make_servers();
    if (offline) make_offline();
    if (who.how == arrangement::scheduled) make_scheduler(options);
  }

  /// Calls `hear` whenever what state_of() returns may have changed.
  void on_change(std::function<void()> hear) { listeners_.push_back(std::move(hear)); }
  void begin(time_point zero) {
    for (const auto& each : offline_) each->begin();
    for (const auto& each : servers_) each->begin(zero);
  }
  std::size_t servers() const noexcept { return servers_.size(); }
  server_state state_of(std::size_t server) const;
  /// A request that arrives now.
  void accept(std::size_t server, const request& one) {
    dealt_[server].requests.push_back(one);
    servers_[server]->accept();
  }
  bool all_served() const {
    return std::all_of(servers_.begin(), servers_.end(),
                       [](const auto& one) { return one->done(); });
  }
  void add_to(sums& all) const;
  /// \param first number of its first server.
  void take_results(run_result& into, std::size_t first);
  void begin_stop();
  bool stopped() const { return !core_ || core_->all_running(); }
  void finish_stop(run_result& into);

 private:
  std::size_t gpu_count() const { return what_.machine.gpus.size(); }
  gpu& online_part(std::size_t i) const {
    return *parts_[who_.how == arrangement::static_split ? 2 * i : i];
  }
  gpu& offline_part(std::size_t i) const {
    return *parts_[who_.how == arrangement::static_split ? 2 * i + 1 : i];
  }
  sim::model_process next_process() { return sim::model_process{++processes_}; }
  void make_servers();
  void make_offline();
  void make_scheduler(const run_options& options);
  void changed() const {
    for (const auto& hear : listeners_) hear();
  }
  void busy_changed();
  void stop_or_go_on();

  const scenario& what_;
  const contender& who_;
  sim::engine& events_;
  const virtual_time time_;
  std::vector<arrivals> dealt_;
  std::vector<std::unique_ptr<gpu>> parts_;
  std::uint64_t processes_ = 0;
  std::vector<sim::model_process> online_processes_;
  std::vector<std::unique_ptr<online_server>> servers_;
  std::vector<std::unique_ptr<offline_process>> offline_;
  std::vector<std::vector<offline_process*>> groups_;  ///< What is stopped together.
  std::vector<std::unique_ptr<collective>> gangs_;
  std::unique_ptr<virtual_backend> backend_;
  policy_faults faults_;
  std::unique_ptr<scheduler_core> core_;
  std::unique_ptr<turns> turns_;
  std::unique_ptr<pointer_looks> looks_;
  std::vector<driver_decision> decisions_;
  std::vector<std::function<void()>> listeners_;
  bool stop_planned_ = false;
};

void simulated_node::make_servers() {
  const online_server::options how{what_.service,     what_.serving, what_.costs,
                                   what_.decode_step, what_.wake_up, what_.whole_kernels};
  for (std::size_t i = 0; i < what_.servers(); ++i) {
    online_processes_.push_back(next_process());
    servers_.push_back(std::make_unique<online_server>(events_, online_part(i),
                                                       online_processes_.back(), dealt_[i], how,
                                                       [this] { busy_changed(); }));
  }
}

void simulated_node::make_offline() {
  const offline_spec& spec = what_.offline;
  std::uint64_t number = 0;
  for (std::uint32_t p = 0; p < spec.processes; ++p) {
    collective* gang = nullptr;
    if (spec.gang) {
      gangs_.push_back(std::make_unique<collective>(spec.all_reduce, spec.all_reduce_occupancy));
      gang = gangs_.back().get();
      groups_.emplace_back();
    }
    for (std::size_t i = 0; i < gpu_count(); ++i) {
      offline_.push_back(std::make_unique<offline_process>(
          events_, offline_part(i), next_process(),
          kernel_stream(spec.shape, kernel_seed(what_.offline_seed, number++)), what_.wake_up));
      if (gang != nullptr) {
        gang->add(*offline_.back());
        offline_.back()->join(*gang);
      } else {
        groups_.emplace_back();
      }
      groups_.back().push_back(offline_.back().get());
    }
  }
}

void simulated_node::make_scheduler(const run_options& options) {
  backend_ = std::make_unique<virtual_backend>(events_, what_.by(),
                                               [this] { turns_->ring(what_.reaction); });
  if (options.keep_decisions) {
    backend_->record_decisions(&decisions_, [this](gpu_id id) {
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        if (online_part(i).id() == id) return servers_[i]->in_flight();
      }
      return 0u;
    });
  }
  auto made = scheduler_core::create(what_.limits, *backend_,
                                     std::make_unique<policy_watch>(who_.make(), faults_),
                                     {.time = &time_,
                                      .quiet = true,
                                      .record_into = options.record_into,
                                      .record = {.device = "lab"}});
  core_ =
      std::move(made.value());  // Throws when the limits have a problem, or descriptors are out.
  core_->awake();               // Nobody sleeps here: no client has to write the eventfd.
  turns_ = std::make_unique<turns>(events_, *core_);
  core_->start().value();

  const time_point now = events_.now();
  const auto see = [&](observation one) {
    one.at = now;
    core_->observe(0, one);
  };
  for (const auto& shape : what_.machine.gpus) {
    see({.kind = observation_kind::gpu_seen,
         .shows_work = true,
         .gpu = gpu_id{shape.gpu_id},
         .group_key = shape.hive_id,
         .count = shape.hqd_slots});
  }
  std::uint32_t number = 0;
  std::uint64_t key = 0;
  for (const auto& group : groups_) {
    ++key;
    for (offline_process* const each : group) {
      const auto pid = static_cast<pid_t>(1000 + number);
      virtual_backend::target target{number++, {}};
      see({.kind = observation_kind::process_seen,
           .what = role::offline,
           .pid = pid,
           .start_time = 1,
           .group_key = what_.offline.gang ? key : 0});
      for (const auto& lane : each->lanes()) {
        see({.kind = observation_kind::queue_seen,
             .type = queue_kind::compute,
             .pid = pid,
             .gpu = each->on().id(),
             .queue = driver_queue_id{static_cast<std::uint32_t>(target.queues.size())},
             .start_time = 1});
        target.queues.push_back({&each->on(), lane.queue});
      }
      backend_->add_target(pid, std::move(target));
    }
  }
  looks_ =
      std::make_unique<pointer_looks>(events_, *core_, [this] { turns_->ring(what_.reaction); });
  turns_->then([this] {
    looks_->follow();
    changed();
  });
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    const gpu_id on = online_part(i).id();
    const auto pid = static_cast<pid_t>(1000 + number++);
    see({.kind = observation_kind::process_seen,
         .what = role::online,
         .pid = pid,
         .start_time = 1});
    see({.kind = observation_kind::queue_seen,
         .type = queue_kind::compute,
         .pid = pid,
         .gpu = on,
         .start_time = 1});
    looks_->add(*servers_[i], pid, on);
    if (!what_.clients) continue;
    servers_[i]->register_as(core_->register_client({.name = "server", .gpus = {on}}).value());
  }
  turns_->ring({});
}

void simulated_node::busy_changed() {
  changed();
  if (turns_) turns_->ring(what_.reaction);
  if (who_.how == arrangement::stopped && !std::exchange(stop_planned_, true)) {
    events_.at(events_.now() + what_.reaction, [this] { stop_or_go_on(); });
  }
}

void simulated_node::stop_or_go_on() {
  stop_planned_ = false;
  for (const auto& group : groups_) {
    const bool busy = std::any_of(group.begin(), group.end(), [&](offline_process* each) {
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        if (&online_part(i) == &each->on()) return servers_[i]->in_flight() != 0;
      }
      return false;
    });
    for (offline_process* const each : group) busy ? each->stop() : each->go_on();
  }
}

server_state simulated_node::state_of(std::size_t server) const {
  server_state now{.requests = servers_[server]->open_requests()};
  const gpu& on = online_part(server);
  if (!core_) {
    now.offline = now.running = static_cast<std::uint32_t>(std::count_if(
        offline_.begin(), offline_.end(), [&](const auto& each) { return &each->on() == &on; }));
    return now;
  }
  const world& seen = core_->seen();
  const gpu_view* const seen_on = seen.find(on.id());
  if (seen_on == nullptr) return now;
  now.offline = static_cast<std::uint32_t>(seen_on->offline.size());
  for (const group_id id : seen_on->offline) {
    const group_view* const group = seen.find(id);
    const bool off = group != nullptr && (group->actual == run_state::suspending ||
                                          group->actual == run_state::suspended);
    if (!off) ++now.running;
  }
  return now;
}

void simulated_node::add_to(sums& all) const {
  for (const auto& each : offline_) {
    all.offline_work += each->work();
    all.offline_kernels += each->kernels();
  }
  for (const auto& part : parts_) {
    all.switching += part->model().cycle_time();
    all.disturbing_cycles += part->disturbing_cycles();
    for (const auto process : online_processes_) {
      all.disturbed += part->model().process_account(process).disturbed;
    }
  }
  if (core_) {
    all.driver_calls += backend_->calls();
    const statistics& seen = core_->live_stats();
    all.suspends += seen.suspends;
    all.resumes += seen.resumes;
  }
}

void simulated_node::take_results(run_result& into, std::size_t first) {
  for (const auto& each : offline_) {
    into.longest_starvation = std::max(
        into.longest_starvation, each->on().model().process_account(each->self()).longest_wait);
    into.conserved = into.conserved && each->conserved();
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    for (served_request& each : servers_[i]->take_results(events_.now())) {
      into.requests.push_back({static_cast<std::uint32_t>(first + i), each});
    }
    const auto gaps = servers_[i]->take_gaps();
    into.gaps.insert(into.gaps.end(), gaps.begin(), gaps.end());
    into.steps += servers_[i]->steps();
  }
}

void simulated_node::begin_stop() {
  if (!core_) return;
  core_->begin_stop();
  turns_->ring({});
}

void simulated_node::finish_stop(run_result& into) {
  if (!core_) return;
  core_->finish_stop();
  turns_->stop();
  const statistics& seen = core_->live_stats();
  into.forced_resumes += seen.forced_resumes;
  into.turns += seen.turns;
  into.faults.add(faults_);
  into.left_suspended += backend_->suspended_queues();
  into.decisions = std::move(decisions_);
}

/// One node, or a fleet behind its router, on one clock.
class simulation {
 public:
  simulation(const scenario& what, const contender& who, const run_options& options);
  run_result run();

 private:
  /// A server of the fleet.
  struct place {
    simulated_node* node;
    std::size_t server;
  };
  bool is_fleet() const noexcept { return what_.nodes > 1; }
  void add_node(const scenario& what, const contender& who, const run_options& options) {
    nodes_.push_back(std::make_unique<simulated_node>(events_, what, who, options));
  }
  void make_fleet();
  server_state state_of(std::size_t number) const {
    return places_[number].node->state_of(places_[number].server);
  }
  void watch();
  void again(time_point first, duration interval, const std::function<void()>& what);
  void route(std::size_t number);
  sums now_summed() const {
    sums all;
    for (const auto& each : nodes_) each->add_to(all);
    return all;
  }
  /// When there is something new to look at: of a fleet, some events later.
  time_point later(time_point limit) const {
    return std::min(is_fleet() ? events_.now() + 10ms : events_.next().value_or(limit), limit);
  }

  const scenario& what_;
  const contender& who_;
  const contender online_only_, offline_only_;
  sim::engine events_;
  std::vector<scenario> shapes_;  ///< Of a fleet, by node.
  std::vector<std::unique_ptr<simulated_node>> nodes_;
  std::unique_ptr<router> router_;  ///< Of a fleet.
  std::vector<place> places_;       ///< By the router's numbers.
  std::size_t routed_ = 0;          ///< So many requests have arrived.
  time_point zero_{};
};

simulation::simulation(const scenario& what, const contender& who, const run_options& options)
    : what_(what),
      who_(who),
      online_only_{who.name, arrangement::online_alone, {}, 1},
      offline_only_{who.name, arrangement::offline_alone, {}, 1},
      events_(engine_start),
      zero_(engine_start + what.warm_up) {
  if (is_fleet()) {
    make_fleet();
  } else {
    add_node(what, who, options);
  }
}

void simulation::make_fleet() {
  scenario bare = what_;
  bare.work.requests.clear();
  bare.nodes = 1;
  shapes_.assign(what_.nodes, bare);
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (!what_.mix.empty()) shapes_[i].offline = what_.mix[i % what_.mix.size()];
    // Each node has its own kernels.
    shapes_[i].offline_seed = kernel_seed(what_.offline_seed, std::uint64_t{i} << 32U);
  }
  if (who_.how == arrangement::exclusive) {
    // An operator sets those aside that have the least offline work to lose.
    std::stable_sort(shapes_.begin(), shapes_.end(), [](const scenario& a, const scenario& b) {
      return a.offline.processes < b.offline.processes;
    });
  }
  const auto online_nodes = static_cast<std::size_t>(
      std::clamp(std::lround(who_.online_share * what_.nodes), 1L, what_.nodes - 1L));
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const bool shared = who_.how != arrangement::exclusive;
    add_node(shapes_[i], shared ? who_ : i < online_nodes ? online_only_ : offline_only_, {});
  }
  for (const auto& node : nodes_) {
    for (std::size_t i = 0; i < node->servers(); ++i) places_.push_back({node.get(), i});
  }
  if (places_.empty()) return;  // Offline work alone.
  router_ = std::make_unique<router>(who_.router, places_.size());
  watch();
  if (!what_.work.requests.empty()) {
    events_.at(zero_ + what_.work.requests.front().at, [this] { route(0); });
  }
}

/// Has the router read each server at its times.
void simulation::watch() {
  const auto watch_one = [this](duration every, auto read) {
    if (every == duration::zero()) {
      for (std::size_t i = 0; i < places_.size(); ++i) {
        read(i);
        places_[i].node->on_change([i, read] { read(i); });
      }
      return;
    }
    // Not all at once: as monitoring does, spread over the interval.
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const duration part =
          every * static_cast<duration::rep>(i) / static_cast<duration::rep>(places_.size());
      again(engine_start + part, every, [i, read] { read(i); });
    }
  };
  if (who_.router.by == routing::round_robin) return;
  watch_one(who_.router.load_delay, [this](std::size_t i) { router_->read_load(i, state_of(i)); });
  if (!who_.router.sees_offline()) return;
  watch_one(who_.router.delay, [this](std::size_t i) { router_->read_offline(i, state_of(i)); });
}

/// Calls `what` at `first` and each interval after that.
void simulation::again(time_point first, duration interval, const std::function<void()>& what) {
  events_.at(first, [this, first, interval, what] {
    what();
    again(first + interval, interval, what);
  });
}

void simulation::route(std::size_t number) {
  const place& to = places_[router_->choose()];
  to.node->accept(to.server, what_.work.requests[number]);
  routed_ = number + 1;
  if (routed_ == what_.work.requests.size()) return;
  events_.at(zero_ + what_.work.requests[routed_].at, [this] { route(routed_); });
}

run_result simulation::run() {
  run_result result;
  const time_point window_end = zero_ + what_.work.window;
  const time_point give_up = window_end + what_.serving.drain_limit;
  result.zero = zero_;
  sums before, after;
  // The first of what happens at that moment.
  events_.at(zero_, [&] { before = now_summed(); });
  if (is_fleet()) events_.at(window_end, [&] { after = now_summed(); });
  for (const auto& each : nodes_) each->begin(zero_);
  events_.run_until(zero_);
  const auto all_served = [&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& one) { return one->all_served(); });
  };
  const bool online = who_.how != arrangement::offline_alone;
  if (is_fleet() || !online || what_.work.requests.empty()) events_.run_until(window_end);
  while (!all_served() && events_.now() < give_up) events_.run_until(later(give_up));
  if (!is_fleet()) after = now_summed();
  result.stretch = (is_fleet() ? window_end : events_.now()) - zero_;
  result.offline_work = after.offline_work - before.offline_work;
  result.offline_kernels = after.offline_kernels - before.offline_kernels;
  result.switching = after.switching - before.switching;
  result.disturbed = after.disturbed - before.disturbed;
  result.disturbing_cycles = after.disturbing_cycles - before.disturbing_cycles;
  result.driver_calls = after.driver_calls - before.driver_calls;
  result.suspends = after.suspends - before.suspends;
  result.resumes = after.resumes - before.resumes;
  result.conserved = true;
  std::size_t first = 0;
  for (const auto& each : nodes_) {
    each->take_results(result, first);
    first += each->servers();
  }
  std::stable_sort(
      result.requests.begin(), result.requests.end(),
      [](const served& a, const served& b) { return a.what.arrived < b.what.arrived; });
  std::sort(result.gaps.begin(), result.gaps.end());
  for (const auto& each : nodes_) each->begin_stop();
  const auto all_stopped = [&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& one) { return one->stopped(); });
  };
  const time_point limit = events_.now() + what_.limits.stop_limit + 60s;
  if (who_.how == arrangement::scheduled) {
    do {
      events_.run_until(later(limit));
    } while (!all_stopped() && events_.now() < limit);
  }
  for (const auto& each : nodes_) each->finish_stop(result);
  return result;
}

}  // namespace

std::unique_ptr<policy> make_at_once() { return std::make_unique<at_once>(); }

run_result simulate(const scenario& what, const contender& who, const run_options& options) {
  return simulation(what, who, options).run();
}

}  // namespace sluice::lab
