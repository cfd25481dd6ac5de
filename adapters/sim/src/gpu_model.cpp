#include "gpu_model.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace sluice::sim {

namespace {

/// amdgpu's pipe_priority_map: low, medium, high.
constexpr int pipe_priority(std::uint32_t priority) {
  return priority < 7 ? 0 : priority < 11 ? 1 : 2;
}

}  // namespace

gpu_model::gpu_model(engine& events, const gpu_profile& shape, started on_start,
                     completed on_complete)
    : engine_{events},
      shape_{shape},
      on_start_{std::move(on_start)},
      on_complete_{std::move(on_complete)},
      free_waves_{shape.wave_slots()},
      vmids_{shape.vmids} {}

gpu_model::~gpu_model() {
  engine_.cancel(turn_);
  if (slice_end_) engine_.cancel(*slice_end_);
  for (auto& [id, q] : queues_) engine_.cancel(q.end);
}

void gpu_model::meters::note(time_point now) {
  const bool waits = unfinished.on() && !busy.on();
  if (waits == waits_since.has_value()) return;
  if (waits) {
    waits_since = now;
  } else {
    longest_wait = std::max(longest_wait, now - *waits_since);
    waits_since.reset();
  }
}

account gpu_model::meters::at(time_point now) const {
  const duration waiting = waits_since ? now - *waits_since : duration{};
  return {busy.at(now), unfinished.at(now), disturbed.at(now), std::max(longest_wait, waiting),
          started,      completed};
}

gpu_model::queue* gpu_model::find(model_queue id) {
  const auto it = queues_.find(id);
  return it == queues_.end() ? nullptr : &it->second;
}

const gpu_model::queue* gpu_model::find(model_queue id) const {
  const auto it = queues_.find(id);
  return it == queues_.end() ? nullptr : &it->second;
}

model_queue gpu_model::add_queue(model_process owner, std::uint32_t priority) {
  const auto id = static_cast<model_queue>(++last_id_);
  queue& q = queues_[id];
  q.owner = owner;
  q.priority = priority;
  processes_.try_emplace(owner);
  return id;
}

void gpu_model::remove_queue(model_queue id) {
  const auto it = queues_.find(id);
  if (it == queues_.end()) return;
  queue& q = it->second;
  meters& process = processes_[q.owner];
  const auto now = engine_.now();
  if (q.running) {
    engine_.cancel(q.end);
    free_waves_ += waves_of(q);
    process.busy.down(now);
  }
  if (!q.waiting.empty()) process.unfinished.down(now);
  process.note(now);
  if (q.disturbed) process.disturbed.down(now);
  const bool freed_room = q.running;
  std::erase(mapped_, &*it);
  queues_.erase(it);
  if (freed_room) dispatch(false);
}

void gpu_model::set_priority(model_queue id, std::uint32_t priority) {
  if (queue* q = find(id)) q->priority = priority;
}

void gpu_model::set_active(model_queue id, bool active) {
  if (queue* q = find(id)) q->active = active;
}

void gpu_model::submit(model_queue id, const model_kernel& work) {
  queue* q = find(id);
  if (q == nullptr) return;
  q->waiting.push_back(work);
  if (q->waiting.size() > 1) return;
  meters& process = processes_[q->owner];
  for (meters* const each : {&q->sums, &process}) {
    each->unfinished.up(engine_.now());
    each->note(engine_.now());
  }
  became_head(*q);
  count_disturbed(*q);
  if (q->mapped) dispatch(false);
}

void gpu_model::drop_waiting(model_queue id) {
  queue* q = find(id);
  if (q == nullptr || q->waiting.empty()) return;
  q->waiting.resize(q->begun ? 1 : 0);
  if (!q->waiting.empty()) return;
  for (meters* const each : {&q->sums, &processes_[q->owner]}) {
    each->unfinished.down(engine_.now());
    each->note(engine_.now());
  }
  count_disturbed(*q);
  dispatch(false);  // Others may have waited behind it.
}

void gpu_model::lose_kernels(model_queue id) {
  const auto it = queues_.find(id);
  if (it == queues_.end()) return;
  queue& q = it->second;
  const auto now = engine_.now();
  meters& process = processes_[q.owner];
  if (q.running) {
    engine_.cancel(q.end);
    q.end = {};
    q.running = false;
    free_waves_ += waves_of(q);
    q.sums.busy.down(now);
    process.busy.down(now);
  }
  if (q.waiting.empty()) return;
  q.waiting.clear();
  q.begun = false;
  q.sums.unfinished.down(now);
  process.unfinished.down(now);
  q.sums.note(now);
  process.note(now);
  count_disturbed(q);
  dispatch(false);
}

void gpu_model::finish_within(model_queue id, duration left) {
  const auto it = queues_.find(id);
  if (it == queues_.end() || !it->second.begun) return;
  queue& q = it->second;
  q.left = std::max(left, duration::zero());
  if (!q.running) return;
  engine_.cancel(q.end);
  q.stretch = engine_.now();
  plan_end(*it);
}

void gpu_model::set_marked(model_queue id, bool marked) {
  if (queue* q = find(id)) q->marked = marked;
}

duration gpu_model::begin_drain(duration grace) {
  engine_.cancel(turn_);
  turn_ = {};
  draining_ = true;
  duration longest{};
  for (const entry* e : mapped_) {
    const queue& q = e->second;
    if (q.running) longest = std::max(longest, q.left - (engine_.now() - q.stretch));
  }
  return std::min(longest, grace);
}

void gpu_model::begin_cycle(cycle_kind kind) {
  engine_.cancel(turn_);
  turn_ = {};
  draining_ = false;
  // Interrupted between two sets: the next set has its turn as soon as the cycle is over.
  if (oversubscribed_ && !switching_) quantum_left_ -= engine_.now() - quantum_began_;
  switching_ = false;
  preempt_all();
  in_cycle_ = true;
  debug_cycle_ = kind == cycle_kind::debug;
  ++cycles_;
  if (debug_cycle_) ++debug_cycles_;
  cycle_meter_.up(engine_.now());
  for (auto& [id, q] : queues_) count_disturbed(q);
}

void gpu_model::end_cycle(bool apply_changes) {
  in_cycle_ = false;
  debug_cycle_ = false;
  cycle_meter_.down(engine_.now());
  for (auto& [id, q] : queues_) {
    count_disturbed(q);
    if (apply_changes) q.on_runlist = q.active;
  }
  put_up();
}

bool gpu_model::runlist_in_use() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const auto& e) { return e.second.active || e.second.on_runlist; });
}

std::optional<gpu_model::seat> gpu_model::seat_of(model_queue id) const {
  const queue* q = find(id);
  return q != nullptr && q->mapped ? std::optional{q->place} : std::nullopt;
}

bool gpu_model::on_runlist(model_queue id) const {
  const queue* q = find(id);
  return q != nullptr && q->on_runlist;
}

bool gpu_model::running(model_queue id) const {
  const queue* q = find(id);
  return q != nullptr && q->running;
}

std::size_t gpu_model::backlog(model_queue id) const {
  const queue* q = find(id);
  return q == nullptr ? 0 : q->waiting.size();
}

std::uint32_t gpu_model::running_waves(model_process id) const {
  std::uint32_t sum = 0;
  for (const entry* e : mapped_) {
    if (e->second.owner == id && e->second.running) sum += waves_of(e->second);
  }
  return sum;
}

account gpu_model::queue_account(model_queue id) const {
  const queue* q = find(id);
  return q == nullptr ? account{} : q->sums.at(engine_.now());
}

account gpu_model::process_account(model_process id) const {
  const auto it = processes_.find(id);
  return it == processes_.end() ? account{} : it->second.at(engine_.now());
}

void gpu_model::forget(model_process id) {
  processes_.erase(id);
  quanta_.erase(id);
}

duration gpu_model::cycle_time() const { return cycle_meter_.at(engine_.now()); }

std::uint32_t gpu_model::waves_of(const queue& q) const {
  return std::clamp(q.waiting.front().waves, 1U, shape_.wave_slots());
}

void gpu_model::became_head(queue& q) {
  q.begun = false;
  q.left = std::max(q.waiting.front().length, duration::zero());
  q.ready_since = engine_.now();
}

/// Keeps the `disturbed` meters in step with "unfinished work while in a debug cycle".
void gpu_model::count_disturbed(queue& q) {
  const bool disturbed = debug_cycle_ && !q.waiting.empty();
  if (disturbed == q.disturbed) return;
  q.disturbed = disturbed;
  const auto now = engine_.now();
  meters& process = processes_[q.owner];
  if (disturbed) {
    q.sums.disturbed.up(now);
    process.disturbed.up(now);
  } else {
    q.sums.disturbed.down(now);
    process.disturbed.down(now);
  }
}

void gpu_model::start(entry& e) {
  queue& q = e.second;
  meters& process = processes_[q.owner];
  const auto now = engine_.now();
  q.running = true;
  q.stretch = now;
  q.sums.busy.up(now);
  process.busy.up(now);
  q.sums.note(now);
  process.note(now);
  free_waves_ -= waves_of(q);
  plan_end(e);
  if (q.begun) return;
  q.begun = true;
  q.first_start = now;
  ++q.sums.started;
  ++process.started;
  on_start_(e.first, q.waiting.front().cookie, now);
}

void gpu_model::plan_end(entry& e) {
  queue& q = e.second;
  q.end = engine_.at(engine_.now() + q.left, [this, id = e.first] {
    const auto it = queues_.find(id);
    finish(*it);
    dispatch(false);
  });
}

void gpu_model::finish(entry& e) {
  queue& q = e.second;
  meters& process = processes_[q.owner];
  const auto now = engine_.now();
  free_waves_ += waves_of(q);
  q.running = false;
  q.begun = false;
  q.end = {};
  q.sums.busy.down(now);
  process.busy.down(now);
  ++q.sums.completed;
  ++process.completed;
  const std::uint64_t cookie = q.waiting.front().cookie;
  q.waiting.pop_front();
  if (q.waiting.empty()) {
    q.sums.unfinished.down(now);
    process.unfinished.down(now);
    count_disturbed(q);
  } else {
    became_head(q);
  }
  q.sums.note(now);
  process.note(now);
  on_complete_(e.first, cookie, q.first_start, now);
}

void gpu_model::preempt(entry& e) {
  queue& q = e.second;
  if (std::exchange(q.mapped, false) && on_unmapped) on_unmapped(e.first, q.place);
  if (q.running) save(q, e);
}

void gpu_model::save(queue& q, entry& e) {
  const auto now = engine_.now();
  engine_.cancel(q.end);
  if (now - q.stretch >= q.left) {  // Its end is planned for this very moment: it is done.
    finish(e);
    return;
  }
  q.left -= now - q.stretch;
  q.running = false;
  q.end = {};
  free_waves_ += waves_of(q);
  meters& process = processes_[q.owner];
  q.sums.busy.down(now);
  process.busy.down(now);
  q.sums.note(now);
  process.note(now);
}

void gpu_model::preempt_all() {
  for (entry* e : mapped_) preempt(*e);
  mapped_.clear();
}

void gpu_model::set_listed(model_queue id, bool listed, cycle_kind kind) {
  ++cycles_;
  if (kind == cycle_kind::debug) ++debug_cycles_;
  queue* q = find(id);
  if (q == nullptr || q->on_runlist == listed) return;
  q->on_runlist = listed;
  if (switching_) return;  // The next set is chosen at its end.
  engine_.cancel(turn_);
  turn_ = {};
  if (oversubscribed_) quantum_left_ -= engine_.now() - quantum_began_;
  put_up();
}

/// Those who are mapped stay where they are.
void gpu_model::seat_all(const std::vector<entry*>& arriving) {
  if (arriving.empty()) return;
  std::vector<bool> slots(shape_.hqd_slots);
  std::vector<bool> vmids(shape_.vmids);
  std::map<model_process, std::uint32_t> vmid_of;
  const auto take = [&](const queue& q) {
    slots[q.place.slot] = true;
    vmids[q.place.vmid] = true;
    vmid_of[q.owner] = q.place.vmid;
  };
  for (const entry* e : mapped_) take(e->second);
  const auto lowest_free = [](const std::vector<bool>& taken) {
    const auto found = std::find(taken.begin(), taken.end(), false);
    return static_cast<std::uint32_t>(found - taken.begin());
  };
  for (entry* const e : arriving) {
    queue& q = e->second;
    const auto known = vmid_of.find(q.owner);
    q.place = {lowest_free(slots), known != vmid_of.end() ? known->second : lowest_free(vmids)};
    q.mapped = true;
    take(q);
    mapped_.push_back(e);
  }
  std::sort(mapped_.begin(), mapped_.end(), is_older);
}

bool gpu_model::choose(ring& turns, const std::vector<entry*>& runlist, std::size_t slots,
                       std::vector<model_process>& processes) {
  const auto place_of = [](const entry* e) { return place{e->second.owner, e->first}; };
  // From first_of_set on, round and round, as many as there is room for.
  const auto size = runlist.size();
  std::size_t first = 0;
  while (first < size && place_of(runlist[first]) < turns.first_of_set) ++first;
  if (first == size) first = 0;
  std::size_t taken = 0;
  for (; taken < size && taken < slots; ++taken) {
    entry& e = *runlist[(first + taken) % size];
    const auto known = std::find(processes.begin(), processes.end(), e.second.owner);
    if (known == processes.end()) {
      if (processes.size() == vmids_) break;
      processes.push_back(e.second.owner);
    }
    e.second.chosen = true;
  }
  const bool some_wait = taken < size && taken > 0;
  if (!some_wait) {
    turns = {};
    return false;
  }
  const auto begins = place_of(runlist[first]);
  if (begins != turns.first_of_set) quantum_left_ = shape_.quantum;
  turns = {begins, place_of(runlist[(first + taken) % size])};
  return true;
}

void gpu_model::put_up() {
  const auto place_of = [](const entry* e) { return place{e->second.owner, e->first}; };
  std::vector<entry*> others;
  std::vector<entry*> marked;
  for (entry& e : queues_) {
    if (!e.second.on_runlist) continue;
    (marked_slots_ && e.second.marked ? marked : others).push_back(&e);
  }
  for (auto* list : {&others, &marked}) {
    std::sort(list->begin(), list->end(),
              [&](const entry* a, const entry* b) { return place_of(a) < place_of(b); });
  }
  const std::size_t for_marked = std::min<std::size_t>(marked_slots_.value_or(0), marked.size());
  std::vector<model_process> processes;
  const bool others_wait =
      choose(others_, others,
             shape_.hqd_slots - std::min<std::size_t>(for_marked, shape_.hqd_slots), processes);
  const bool marked_wait = choose(marked_, marked, for_marked, processes);
  for (entry* e : mapped_) {
    if (!e->second.chosen) preempt(*e);
  }
  std::erase_if(mapped_, [](const entry* e) { return !e->second.mapped; });
  std::vector<entry*> arriving;
  for (const auto* list : {&others, &marked}) {
    for (entry* e : *list) {
      if (std::exchange(e->second.chosen, false) && !e->second.mapped) arriving.push_back(e);
    }
  }
  std::sort(arriving.begin(), arriving.end(), is_older);
  seat_all(arriving);

  const auto now = engine_.now();
  oversubscribed_ = others_wait || marked_wait;
  if (oversubscribed_) {
    if (quantum_left_ <= duration::zero()) quantum_left_ = shape_.quantum;
    quantum_began_ = now;
    turn_ = engine_.at(now + quantum_left_, [this] { change_set(); });
  } else {
    quantum_left_ = {};
  }
  dispatch(true);
  dispatch(false);
}

void gpu_model::change_set() {
  ++switches_;
  preempt_all();
  others_.first_of_set = others_.first_of_next;
  marked_.first_of_set = marked_.first_of_next;
  quantum_left_ = shape_.quantum;
  switching_ = true;
  turn_ = engine_.at(engine_.now() + shape_.switch_cost, [this] {
    switching_ = false;
    put_up();
  });
}

void gpu_model::dispatch(bool saved_only) {
  if (in_cycle_ || switching_ || draining_) return;
  if (shape_.time_sliced && !see_to_turn()) return;
  order_.clear();
  for (entry* e : mapped_) {
    const queue& q = e->second;
    if (shape_.time_sliced && q.owner != turn_of_) continue;
    if (q.mapped && !q.running && !q.waiting.empty() && (q.begun || !saved_only)) {
      order_.push_back(e);
    }
  }
  const auto rank = [](const entry* e) {
    const queue& q = e->second;
    return std::tuple{-pipe_priority(q.priority), -static_cast<int>(q.priority), q.ready_since,
                      e->first};
  };
  std::sort(order_.begin(), order_.end(),
            [&rank](const entry* a, const entry* b) { return rank(a) < rank(b); });
  for (entry* e : order_) {
    if (waves_of(e->second) > free_waves_) break;
    start(*e);
  }
}

void gpu_model::set_quantum(model_process who, duration length) {
  if (length > duration::zero()) {
    quanta_[who] = length;
  } else {
    quanta_.erase(who);
  }
  if (who != turn_of_ || passing_ || !slice_end_) return;
  engine_.cancel(*std::exchange(slice_end_, std::nullopt));
  dispatch(false);
}

model_process gpu_model::next_in_turn() const {
  std::optional<model_process> first;
  std::optional<model_process> later;
  for (const entry* e : mapped_) {
    const model_process owner = e->second.owner;
    if (owner == turn_of_ || e->second.waiting.empty()) continue;
    auto& least = owner > turn_of_ ? later : first;
    if (!least || owner < *least) least = owner;
  }
  return later ? *later : first.value_or(model_process::none);
}

/// \return whether somebody has the GPU.
bool gpu_model::see_to_turn() {
  if (passing_) return false;
  const model_process next = next_in_turn();
  if (next == model_process::none) {
    if (slice_end_) engine_.cancel(*std::exchange(slice_end_, std::nullopt));
    return true;
  }
  const bool in_use = std::any_of(mapped_.begin(), mapped_.end(), [this](const entry* e) {
    return e->second.owner == turn_of_ && !e->second.waiting.empty();
  });
  if (!in_use) {
    pass_turn(next);
    return !passing_;
  }
  if (slice_end_) return true;
  const auto own = quanta_.find(turn_of_);
  const duration slice = own == quanta_.end() ? shape_.time_slice : own->second;
  const auto slices = (engine_.now() - turn_began_) / slice + 1;
  slice_end_ = engine_.at(turn_began_ + slices * slice, [this] {
    slice_end_.reset();
    const model_process to = next_in_turn();
    if (to == model_process::none || in_cycle_ || switching_ || draining_) return;
    pass_turn(to);
    dispatch(true);
    dispatch(false);
  });
  return true;
}

void gpu_model::pass_turn(model_process to) {
  if (slice_end_) engine_.cancel(*std::exchange(slice_end_, std::nullopt));
  passing_ = true;
  bool moves = false;
  for (entry* e : mapped_) {
    queue& q = e->second;
    if (q.owner == turn_of_ && q.running) save(q, *e);
    moves = moves || (q.begun && (q.owner == turn_of_ || q.owner == to));
  }
  const auto begin = [this, to] {
    passing_ = false;
    turn_of_ = to;
    turn_began_ = engine_.now();
  };
  if (!moves) {
    begin();
    return;
  }
  slice_end_ = engine_.at(engine_.now() + shape_.slice_switch_cost, [this, begin] {
    slice_end_.reset();
    begin();
    dispatch(true);
    dispatch(false);
  });
}

}  // namespace sluice::sim
