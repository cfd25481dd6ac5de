#include "reference.hpp"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace sluice::tests {
namespace {

using namespace std::chrono_literals;

/// The runtime's reckoning is in doubles here and there.
constexpr duration rounding = 2us;
/// What is left of an allowance below this is not worth a turn (holds.hpp).
constexpr duration negligible = 10us;
/// How soon a lane that was busy is tried again.
constexpr duration busy_retry = 1ms;

std::string number(driver_queue_id id) { return std::to_string(static_cast<std::uint32_t>(id)); }
std::string number(gpu_id id) { return std::to_string(static_cast<std::uint32_t>(id)); }

}  // namespace

void reference::complain(const std::string& what) {
  if (!complaint_.empty()) return;
  complaint_ = what + " (at " +
               std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(
                                  time_.now().time_since_epoch() - 1h)
                                  .count()) +
               " us)";
}

std::string reference::name(const process& which) const {
  return "process " + std::to_string(which.pid) + "/" + std::to_string(which.start_time);
}

role reference::process::what() const noexcept {
  const auto says = [this](role wanted) {
    return std::any_of(by.begin(), by.end(), [&](const claim& one) { return one.what == wanted; });
  };
  return says(role::online) ? role::online : says(role::offline) ? role::offline : role::unmatched;
}

std::size_t reference::process::compute_queues() const noexcept {
  return static_cast<std::size_t>(std::count_if(queues.begin(), queues.end(), [](const auto& one) {
    return one.second.type == queue_kind::compute;
  }));
}

// What the scheduler is told ---------------------------------------------------------------------

reference::process* reference::find(pid_t pid, std::uint64_t start_time) {
  for (process& one : known_) {
    if (!one.gone && one.pid == pid && one.start_time == start_time) return &one;
  }
  return nullptr;
}

reference::process* reference::find(process_id target) {
  for (process& one : known_) {
    if (one.target == target) return &one;
  }
  return nullptr;
}

reference::gpu& reference::known(gpu_id id) {
  return gpus_.try_emplace(id, gpu{.known_since = time_.now()}).first->second;
}

reference::process& reference::at(const observation& seen) {
  if (process* const known = find(seen.pid, seen.start_time)) return *known;
  process& one = known_.emplace_back();
  one.pid = seen.pid;
  one.start_time = seen.start_time;
  join(one, seen.group_key);
  return one;
}

void reference::join(process& which, std::uint64_t key) {
  std::shared_ptr<books> to = key != 0 ? by_key_[key].lock() : nullptr;
  if (!to) {
    to = std::make_shared<books>();
    to->key = key;
    if (key != 0) by_key_[key] = to;
  }
  to->members.insert(&which);
  which.in = to;
  update(*to);
}

void reference::leave(process& which) {
  const auto from = std::exchange(which.in, nullptr);
  from->members.erase(&which);
  update(*from);
}

void reference::observed(unsigned source, const observation& seen) {
  switch (seen.kind) {
    case observation_kind::process_seen: {
      process& one = at(seen);
      one.by[source].seen = one.by[source].marked = true;
      if (one.in->key != seen.group_key) {
        leave(one);
        join(one, seen.group_key);
        // What is off runs before it is held with others.
        const bool off = std::any_of(one.queues.begin(), one.queues.end(), [](const auto& each) {
          return each.second.managed && is_off(each.second.is);
        });
        if (off) {
          one.in->forced = true;
          one.in->forced_until = never;
        }
      }
      one.in->nodes = std::max(one.in->nodes, seen.count);
      one.priority = seen.priority;
      one.by[source].what = seen.what;
      break;
    }
    case observation_kind::process_gone:
      if (process* const one = find(seen.pid, seen.start_time)) forget(*one, source);
      break;
    case observation_kind::queue_seen: {
      known(seen.gpu);
      process& one = at(seen);
      one.by[source].seen = one.by[source].marked = true;
      one.by[source].queues.insert(seen.queue);
      const auto found = one.queues.find(seen.queue);
      const bool same = found != one.queues.end() &&
                        (found->second.managed ||
                         (found->second.gpu == seen.gpu && found->second.type == seen.type));
      if (!same) {
        // The number was used again. Who saw the other one will say that it is gone.
        const known_queue before = one.queues[seen.queue];
        one.queues[seen.queue] = {
            .gpu = seen.gpu, .type = seen.type, .seen = before.seen, .marked = before.marked};
      }
      known_queue& queue = one.queues[seen.queue];
      queue.seen[source] = queue.marked[source] = true;
      break;
    }
    case observation_kind::queue_gone:
      if (process* const one = find(seen.pid, seen.start_time)) forget(*one, seen.queue, source);
      break;
    case observation_kind::gpu_seen: known(seen.gpu).reset_domain = seen.group_key; break;
    case observation_kind::gpu_lost: {
      gpu& one = known(seen.gpu);
      if (seen.at >= one.rearmed) open_breaker(seen.gpu);
      break;
    }
    case observation_kind::breaker_kept: {
      gpu& one = known(seen.gpu);
      const time_point until = config_.breaker_rearm == duration::zero()
                                   ? seen.at
                                   : std::min(seen.at, time_.now() + config_.breaker_rearm);
      if (one.lost || until <= time_.now()) break;
      one.lost = true;
      one.rearm_at = until;
      break;
    }
    case observation_kind::breaker_rearmed:
      if (gpus_.contains(seen.gpu)) close_breaker(known(seen.gpu));
      break;
    case observation_kind::gang_heard: {
      const auto found = by_key_.find(seen.group_key);
      const auto gang = found != by_key_.end() ? found->second.lock() : nullptr;
      if (!gang || gang->nodes < 2) break;
      gang->answered_until = seen.at;
      gang->peers_hold = seen.count != 0;
      break;
    }
    case observation_kind::pointers_seen: break;
    case observation_kind::resync_begin:
      for (process& one : known_) {
        one.by[source].marked = false;
        for (auto& [id, queue] : one.queues) queue.marked[source] = false;
      }
      break;
    case observation_kind::resync_end:
      for (auto each = known_.begin(); each != known_.end();) {
        process& one = *each++;
        if (one.gone) continue;
        std::vector<driver_queue_id> unmarked;
        for (auto& [id, queue] : one.queues) {
          if (queue.seen[source] && !queue.marked[source]) unmarked.push_back(id);
        }
        for (const auto id : unmarked) forget(one, id, source);
        if (one.by[source].seen && !one.by[source].marked) forget(one, source);
      }
      break;
  }
  update_all();
}

void reference::forget(process& which, driver_queue_id id, unsigned source) {
  which.by[source].queues.erase(id);
  const auto found = which.queues.find(id);
  if (found == which.queues.end()) return;
  found->second.seen[source] = false;
  const bool seen = std::any_of(found->second.seen.begin(), found->second.seen.end(),
                                [](bool one) { return one; });
  if (!seen && !found->second.managed) which.queues.erase(found);
}

void reference::forget(process& which, unsigned source) {
  which.by[source] = {};
  const bool seen = std::any_of(which.by.begin(), which.by.end(),
                                [](const process::claim& one) { return one.seen; });
  if (seen) {
    std::vector<driver_queue_id> all;
    for (const auto& [id, queue] : which.queues) all.push_back(id);
    for (const auto id : all) forget(which, id, source);
    return;
  }
  which.gone = true;
  if (which.has == session::none) erase(which);
}

void reference::erase(process& which) {
  leave(which);
  known_.remove_if([&](const process& one) { return &one == &which; });
}

void reference::attached(process_id target, bool well) {
  process* const one = find(target);
  if (one == nullptr || one->has != session::attaching) return;
  one->has = well ? session::attached : session::none;
  if (well) one->returns = false;
  if (!well && one->gone) erase(*one);
}

void reference::queue_added(process_id target, const queue_info& info) {
  process* const one = find(target);
  if (one == nullptr) return;
  known(info.gpu);
  known_queue& known = one->queues[info.id];
  const bool another = (known.managed && known.ring != info.incarnation) || known.gpu != info.gpu ||
                       known.type != info.type;
  if (another) known = {.seen = known.seen, .marked = known.marked};
  known.gpu = info.gpu;
  known.type = info.type;
  known.ring = info.incarnation;
  known.managed = true;
  known.not_before = {};
  known.refused = false;
  update_all();
}

void reference::queue_removed(process_id target, driver_queue_id id) {
  process* const one = find(target);
  if (one == nullptr) return;
  const auto found = one->queues.find(id);
  if (found == one->queues.end()) return;
  known_queue& known = found->second;
  known.managed = false;
  known.is = state::running;
  if (std::none_of(known.seen.begin(), known.seen.end(), [](bool seen) { return seen; })) {
    one->queues.erase(found);
  }
  update_all();
}

void reference::release(process& which) {
  std::vector<driver_queue_id> managed;
  for (auto& [id, queue] : which.queues) managed.push_back(id);
  for (const auto id : managed) queue_removed(which.target, id);
  which.in_flight.reset();
  which.lane_from = which.detach_from = {};
}

/// The longer the more often it did not work.
void reference::put_off(known_queue& which) const {
  which.not_before = time_.now() + config_.failure_backoff * (1 << std::min(which.failures++, 6));
}

void reference::completed(const batch_result& result) {
  process* const one = find(result.target);
  bool failed = false;
  for (std::size_t i = 0; i < result.count; ++i) failed |= result.outcomes[i] == outcome::failed;
  if (one != nullptr && one->in_flight && one->in_flight->id == result.id) {
    one->in_flight.reset();
    const bool suspend = result.kind == command_kind::suspend;
    for (std::size_t i = 0; i < result.count; ++i) {
      const auto found = one->queues.find(result.queues[i]);
      if (found == one->queues.end() || !found->second.managed) continue;
      known_queue& queue = found->second;
      const bool was_off = is_off(queue.is);
      if (suspend) {
        queue.refused =
            result.outcomes[i] == outcome::invalid || result.outcomes[i] == outcome::failed;
      }
      switch (result.outcomes[i]) {
        case outcome::done:
          queue.is = suspend ? state::suspended : state::running;
          if (suspend) queue.failures = 0;
          break;
        case outcome::invalid:
          queue.is = suspend ? state::running : state::doubt;
          put_off(queue);
          break;
        case outcome::failed:
          queue.is = state::doubt;
          put_off(queue);
          break;
        case outcome::target_gone: queue.is = state::running; break;
      }
      if (!was_off && is_off(queue.is)) queue.off_since = time_.now();
    }
  }
  if (failed && result.driver_errno == 0) {
    gpu& on = known(result.gpu);
    if (!on.lost && ++on.failures >= config_.breaker_after) open_breaker(result.gpu);
  }
  update_all();
}

void reference::detached(process_id target) {
  process* const one = find(target);
  if (one == nullptr) return;
  release(*one);
  one->has = session::none;
  if (one->gone) erase(*one);
  update_all();
}

void reference::lost() {
  for (auto each = known_.begin(); each != known_.end();) {
    process& one = *each++;
    const bool had = one.has == session::attached || one.has == session::attaching;
    one.returns = one.what() == role::offline && !one.gone && (one.returns || had);
    if (one.has == session::none) continue;
    release(one);
    one.has = session::none;
    if (one.gone) erase(one);
  }
  update_all();
}

void reference::open_breaker(gpu_id id) {
  gpu& which = known(id);
  if (which.lost) return;
  const auto until =
      config_.breaker_rearm == duration::zero() ? never : time_.now() + config_.breaker_rearm;
  for (auto& [other, one] : gpus_) {
    if (one.lost ||
        (other != id && (which.reset_domain == 0 || one.reset_domain != which.reset_domain)))
      continue;
    one.lost = true;
    one.rearm_at = until;
  }
}

void reference::close_breaker(gpu& which) {
  if (!which.lost) return;
  which.lost = false;
  which.failures = 0;
  which.rearm_at = never;
  which.rearmed = time_.now();
}

bool reference::is_lost(gpu_id id) const {
  const auto found = gpus_.find(id);
  return found != gpus_.end() && found->second.lost;
}

void reference::drained() {
  const time_point now = time_.now();
  for (const gpu_id id : std::exchange(rearms_, {})) {
    if (gpus_.contains(id)) close_breaker(gpus_[id]);
  }
  for (auto& [id, one] : gpus_) {
    if (one.lost && one.rearm_at <= now) close_breaker(one);
  }
  if (next_config_) {
    if (next_config_->floor_window != config_.floor_window ||
        next_config_->offline_floor != config_.offline_floor) {
      config_since_ = now;
    }
    config_ = *std::exchange(next_config_, std::nullopt);
  }
  for (client& one : clients_) {
    // What was written off stays so until a turn sees that nothing is left.
    if (one.out == 0) {
      one.vague = false;
    } else if (now >= one.out_since + config_.max_busy) {
      one.vague = true;
    }
  }
  update_all();
  for (books* const group : all_books()) {
    if (!group->forced && group->off && now >= must_run_at(*group)) {
      group->forced = true;
      group->forced_until = never;
      ++forced_;
    } else if (group->forced && !group->off) {
      if (group->forced_until == never) group->forced_until = now + config_.min_run;
      if (group->forced_until <= now) group->forced = false;
    }
  }
}

void reference::set_policy(policy_in_force what, duration slice) {
  policy_ = what;
  slice_ = slice;
  counts_known_ = false;
}

// Online work ------------------------------------------------------------------------------------

std::size_t reference::add_client(std::vector<gpu_id> gpus) {
  for (const gpu_id id : gpus) known(id);
  clients_.push_back({.gpus = std::move(gpus)});
  return clients_.size() - 1;
}

void reference::begin(std::size_t which) {
  client& one = clients_[which];
  if (one.out++ == 0) one.out_since = time_.now();
  one.last_begin = time_.now();
  ++begins_;
}

void reference::end(std::size_t which) {
  client& one = clients_[which];
  if (one.out != 0) --one.out;
}

void reference::withdraw(std::size_t which) {
  clients_[which].out = 0;
  clients_[which].vague = false;
  clients_[which].withdrawn = true;
}

bool reference::covers(const client& one, gpu_id id) {
  return one.gpus.empty() || std::find(one.gpus.begin(), one.gpus.end(), id) != one.gpus.end();
}

std::uint64_t reference::count_on(gpu_id id) const {
  std::uint64_t count = 0;
  for (const client& one : clients_) {
    if (covers(one, id)) count += one.out;
  }
  return count;
}

bool reference::vague_on(gpu_id id) const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [&](const client& one) { return one.vague && covers(one, id); });
}

// Groups and their limits ------------------------------------------------------------------------

role reference::role_of(const books& group) const noexcept {
  bool online = false;
  bool offline = !group.members.empty();
  for (const process* const one : group.members) {
    online |= one->what() == role::online;
    offline &= one->what() == role::offline;
  }
  return online ? role::online : offline ? role::offline : role::unmatched;
}

std::set<gpu_id> reference::gpus_of(const books& group) const {
  std::set<gpu_id> all;
  for (const process* const one : group.members) {
    for (const auto& [id, queue] : one->queues) {
      if (suspends(queue.type)) all.insert(queue.gpu);
    }
  }
  return all;
}

bool reference::manageable(const books& group) const {
  if (role_of(group) != role::offline) return false;
  bool some = false;
  for (const process* const one : group.members) {
    if (one->compute_queues() == 0 || one->gone) continue;
    if (one->has != session::attached) return false;
    some = true;
  }
  const auto gpus = gpus_of(group);
  return some && std::none_of(gpus.begin(), gpus.end(), [&](gpu_id id) { return is_lost(id); });
}

gang_wish reference::wish_of(const books& group) const {
  const auto found = told_[0].find(group.key);
  return found != told_[0].end() ? found->second.wish : gang_wish::gone;
}

/// The driver did not suspend all of it, and is not asked again yet.
bool reference::is_refused(const books& group) const {
  for (const process* const one : group.members) {
    for (const auto& [id, queue] : one->queues) {
      if (queue.managed && suspends(queue.type) && queue.refused &&
          queue.not_before > time_.now()) {
        return true;
      }
    }
  }
  return false;
}

std::set<reference::books*> reference::all_books() const {
  std::set<books*> all;
  for (const process& one : known_) all.insert(one.in.get());
  return all;
}

void reference::update_all() {
  for (books* const each : all_books()) update(*each);
}

void reference::update(books& group) {
  bool off = false;
  for (const process* const one : group.members) {
    for (const auto& [id, queue] : one->queues) {
      off |= queue.managed && suspends(queue.type) && is_off(queue.is);
    }
  }
  if (off == group.off) return;
  group.off = off;
  const time_point now = time_.now();
  if (!off) {
    group.debt += now - group.off_since;
    group.on_since = now;
    group.stretches.emplace_back(group.off_since, now);
    return;
  }
  // Running pays back max_suspend in min_run.
  const double paid = std::chrono::duration<double>(now - group.on_since) /
                      std::chrono::duration<double>(config_.min_run);
  const auto back =
      std::chrono::duration<double, std::nano>(config_.max_suspend) * std::min(paid, 1.0);
  group.debt = paid >= 1 ? duration::zero()
                         : std::max(duration::zero(),
                                    group.debt - std::chrono::duration_cast<duration>(back));
  group.off_since = now;
  while (group.stretches.size() > 1 && group.stretches.front().second < now - 2 * 3600s) {
    group.stretches.pop_front();
  }
}

duration reference::off_within(const books& group, duration window) const {
  const time_point now = time_.now();
  const time_point from = now - window;
  duration sum{};
  for (const auto& [begin, end] : group.stretches) {
    if (end > from) sum += end - std::max(begin, from);
  }
  if (group.off) sum += now - std::max(group.off_since, from);
  return sum;
}

duration reference::most_off() const {
  return std::chrono::duration_cast<duration>(
      std::chrono::duration<double, std::nano>(config_.floor_window) * (1 - config_.offline_floor));
}

bool reference::floor_is_near(const books& group) const {
  if (config_.offline_floor <= 0) return false;
  const duration step = config_.floor_window / 32;
  return time_.now() - config_since_ < 2 * (config_.floor_window + step) ||
         off_within(group, config_.floor_window + 2 * step) + 2 * step + config_.min_run >=
             most_off();
}

bool reference::works(gpu_id id) const {
  if (count_on(id) != 0) return true;
  // On a GPU that is seen for the first time, what is in flight begins then.
  const auto earned = [&](time_point begun) { return begun + slice_ > time_.now(); };
  return earned(gpus_.at(id).known_since) ||
         std::any_of(clients_.begin(), clients_.end(),
                     [&](const client& one) { return covers(one, id) && earned(one.last_begin); });
}

bool reference::online_waits(const books& group) const {
  const auto gpus = gpus_of(group);
  return std::any_of(gpus.begin(), gpus.end(),
                     [&](gpu_id id) { return count_on(id) != 0 && !vague_on(id); });
}

// What the scheduler does ------------------------------------------------------------------------

void reference::attach_called(process_id target, pid_t pid, std::uint64_t start_time,
                              bool accepted) {
  if (pid == own_pid_) return complain("attach: to its own process");
  process* const one = find(pid, start_time);
  if (one == nullptr) {
    return complain("attach: to process " + std::to_string(pid) + "/" + std::to_string(start_time) +
                    ", which nobody sees");
  }
  const auto [known, fresh] = targets_.emplace(target, std::pair(pid, start_time));
  if (!fresh && known->second != std::pair(pid, start_time)) {
    return complain("attach: " + name(*one) + " has the id of another process");
  }
  if (one->what() != role::offline) complain("attach: " + name(*one) + " is not offline");
  if (one->has != session::none) complain("attach: " + name(*one) + " has a session");
  if (one->compute_queues() == 0 && !one->returns) {
    complain("attach: " + name(*one) + " has no compute queue");
  }
  if (stopping_) complain("attach: " + name(*one) + " after the stop");
  for (const auto& [id, queue] : one->queues) {
    if (queue.type == queue_kind::compute && is_lost(queue.gpu)) {
      complain("attach: " + name(*one) + " is on a GPU that is lost");
    }
  }
  if (!accepted) return;
  one->target = target;
  one->has = session::attaching;
}

void reference::detach_called(process_id target, const result<void>& answer) {
  process* const one = find(target);
  if (one == nullptr || one->has == session::none) {
    return complain("detach: of a process that has no session");
  }
  if (one->has != session::attached) complain("detach: " + name(*one) + " is not attached");
  if (answer) {
    one->has = session::detaching;
  } else if (answer.error() == errc::lost && one->what() != role::offline) {
    detached(target);  // With everything else.
  } else {
    one->detach_from = time_.now() + config_.failure_backoff;
  }
}

void reference::quantum_called(process_id target, duration length) {
  const process* const one = find(target);
  if (one == nullptr || one->has != session::attached) {
    return complain("quantum: of a process that is not attached");
  }
  if (length == duration::zero()) return;
  if (stopping_) complain("quantum: " + name(*one) + ": after the stop");
  if (one->what() != role::offline || role_of(*one->in) != role::offline) {
    complain("quantum: " + name(*one) + " is not offline, nor is its group");
  }
}

void reference::gang_changed(unsigned source, const gang_state& what) {
  gang_state& last = told_[source][what.key];
  const std::string which = "gang: " + std::to_string(what.key) + " ";
  if (what.wish == last.wish && what.nodes == last.nodes) complain(which + "is told again");
  if (what.wish != gang_wish::gone && what.nodes < 2) complain(which + "is of one node");
  last = what;
}

void reference::submit_called(const batch& work, const result<void>& answer) {
  const bool suspend = work.kind == command_kind::suspend;
  const std::string what = suspend ? "suspend: " : "resume: ";
  const time_point now = time_.now();
  ++commands_;
  process* const one = find(work.target);
  if (one == nullptr || one->has != session::attached) {
    return complain(what + "of a process that is not attached");
  }
  if (one->in_flight) complain(what + name(*one) + " has a batch in flight");
  if (now < one->lane_from) complain(what + name(*one) + ": it was refused just now");
  if (work.id <= last_batch_) complain(what + "the number of a batch comes again");
  last_batch_ = work.id;
  if (work.count == 0 || work.count > max_batch_queues) return complain(what + "an empty batch");
  std::set<driver_queue_id> named;
  for (std::size_t i = 0; i < work.count; ++i) {
    const driver_queue_id id = work.queues[i];
    const std::string which = what + "queue " + number(id) + " of " + name(*one) + " ";
    if (!named.insert(id).second) complain(which + "is named twice");
    const auto found = one->queues.find(id);
    if (found == one->queues.end() || !found->second.managed) {
      complain(which + "is unknown to the driver");
      continue;
    }
    const known_queue& queue = found->second;
    if (queue.gpu != work.gpu) complain(which + "is not on GPU " + number(work.gpu));
    if (!suspends(queue.type)) complain(which + "is none to suspend");
    if (!suspend) {
      if (queue.is == state::running) complain(which + "runs");
      continue;
    }
    if (queue.is != state::running) complain(which + "does not run");
    if (queue.not_before > now) complain(which + "was refused just now");
  }
  if (suspend) {
    if (one->what() != role::offline || one->gone) complain(what + name(*one) + " is not offline");
    if (role_of(*one->in) != role::offline) complain(what + name(*one) + "'s gang is not offline");
    if (!manageable(*one->in)) complain(what + name(*one) + ": only part of its gang can be");
    if (is_lost(work.gpu)) complain(what + name(*one) + ": the GPU is lost");
    if (one->in->forced) complain(what + name(*one) + ": it has not run for min_run yet");
    if (stopping_) complain(what + name(*one) + " after the stop");
    if (policy_ == policy_in_force::none) complain(what + name(*one) + ", and nobody wants it");
    if (!has_answer(*one->in)) complain(what + name(*one) + ": its peers do not answer");
    if (!is_wanted(*one->in)) complain(what + name(*one) + ": neither policy nor peers want it");
    for_peers_ += one->in->nodes >= 2 && wish_of(*one->in) == gang_wish::run ? 1U : 0U;
  }
  if (!answer) {
    const bool busy = answer.error() == errc::busy || answer.error() == errc::full;
    one->lane_from = now + (busy ? busy_retry : config_.failure_backoff);
    return;
  }
  one->in_flight.emplace().assign(work);
  for (const driver_queue_id id : named) {
    const auto found = one->queues.find(id);
    if (found == one->queues.end()) continue;
    if (!is_off(found->second.is)) found->second.off_since = now;
    found->second.is = suspend ? state::suspending : state::resuming;
  }
  update(*one->in);
}

void reference::deciding(const snapshot& seen) {
  // The groups on each GPU.
  using group_shape = std::tuple<bool, bool, std::uint32_t, unsigned, std::vector<gpu_id>,
                                 std::vector<std::uint32_t>>;
  std::map<gpu_id, std::vector<group_shape>> expected;
  for (const books* const group : all_books()) {
    if (role_of(*group) != role::offline) continue;
    const auto gpus = gpus_of(*group);
    std::uint32_t managed = 0;
    unsigned priority = 0;
    std::vector<std::uint32_t> counts;
    for (const gpu_id id : gpus) {
      std::uint32_t count = 0;
      for (const process* const one : group->members) {
        for (const auto& [number, queue] : one->queues) {
          count += queue.gpu == id && suspends(queue.type) ? 1U : 0U;
        }
      }
      counts.push_back(count);
    }
    for (const process* const one : group->members) {
      priority = std::max<unsigned>(priority, one->priority);
      for (const auto& [number, queue] : one->queues) {
        managed += queue.managed && suspends(queue.type) ? 1U : 0U;
      }
    }
    for (const gpu_id id : gpus) {
      expected[id].emplace_back(group->off, manageable(*group) && has_answer(*group), managed,
                                priority, std::vector<gpu_id>(gpus.begin(), gpus.end()), counts);
    }
  }
  for (const gpu_view& on : seen.table.gpus()) {
    const std::string where = "snapshot: GPU " + number(on.id) + ": ";
    std::vector<group_shape> found;
    for (const group_id id : on.offline) {
      const group_view* const group = seen.table.find(id);
      if (group == nullptr) return complain(where + "names a group that is not there");
      if (group->what != role::offline) complain(where + "lists a group that is not offline");
      found.emplace_back(
          group->actual != run_state::running, group->manageable, group->queues, group->priority,
          std::vector<gpu_id>(group->gpus.begin(), group->gpus.end()),
          std::vector<std::uint32_t>(group->queues_on.begin(), group->queues_on.end()));
    }
    std::sort(found.begin(), found.end());
    auto& wanted = expected[on.id];
    std::sort(wanted.begin(), wanted.end());
    if (found != wanted) {
      complain(where + "its offline groups are other ones than was said (" +
               std::to_string(found.size()) + " for " + std::to_string(wanted.size()) + ")");
    }
    if (!gpus_.contains(on.id)) return complain(where + "nobody spoke of it");
    gpu& known = gpus_[on.id];
    if (on.lost != known.lost) complain(where + (on.lost ? "is lost" : "is not lost"));
    if (vague_on(on.id)) {
      if (on.online_in_flight > count_on(on.id)) complain(where + "counts too much in flight");
    } else if (on.online_in_flight != count_on(on.id)) {
      complain(where + "counts " + std::to_string(on.online_in_flight) + " in flight, not " +
               std::to_string(count_on(on.id)));
    }
    std::uint64_t balance = known.last_in_flight;
    for (const event& one : seen.events) {
      if (one.gpu != on.id) continue;
      if (one.kind == event_kind::online_begin) balance += one.count;
      if (one.kind == event_kind::online_end) balance -= one.count;
    }
    if (counts_known_ && balance != on.online_in_flight) {
      complain(where + "its begins and ends do not add up to what is in flight");
    }
    known.last_in_flight = on.online_in_flight;
  }
  for (const auto& [id, groups] : expected) {
    if (!groups.empty() && seen.table.find(id) == nullptr) {
      complain("snapshot: GPU " + number(id) + " is missing");
    }
  }
  counts_known_ = true;
}

// The whole --------------------------------------------------------------------------------------

std::size_t reference::queues() const noexcept {
  std::size_t count = 0;
  for (const process& one : known_) count += one.queues.size();
  return count;
}

auto reference::told_by(unsigned source) const
    -> std::map<std::pair<pid_t, std::uint64_t>, source_view> {
  std::map<std::pair<pid_t, std::uint64_t>, source_view> all;
  for (const process& one : known_) {
    const auto& claim = one.by[source];
    if (one.gone || !claim.seen) continue;
    all[{one.pid, one.start_time}] = {claim.what, one.in->key, one.priority, claim.queues};
  }
  return all;
}

void reference::idle() {
  if (!complaint_.empty()) return;
  const time_point now = time_.now();
  for (const process& one : known_) {
    if (one.has != session::attached) continue;
    if ((one.what() != role::offline || one.gone) && now >= one.detach_from) {
      complain("turn: " + name(one) + " is not offline any more, and still traced");
    }
    if (one.in_flight || now < one.lane_from) continue;
    const books& group = *one.in;
    const auto gpus = gpus_of(group);
    for (const auto& [id, queue] : one.queues) {
      if (!queue.managed || queue.is != state::suspended) continue;
      const std::string which =
          "turn: queue " + number(id) + " of " + name(one) + " is left suspended";
      if (one.what() != role::offline || role_of(group) != role::offline) {
        complain(which + " though it is not offline");
      }
      if (is_lost(queue.gpu)) complain(which + " on a GPU that is lost");
      if (!manageable(group)) complain(which + " though part of its gang cannot be");
      if (stopping_) complain(which + " after the stop");
      if (policy_ == policy_in_force::none) complain(which + ", and nobody wants it");
      if (now > queue.off_since + config_.max_suspend + rounding) {
        complain(which + " for longer than max_suspend");
      }
      if (now > must_run_at(group) + rounding)
        complain(which + " beyond what max_suspend leaves it");
      if (group.forced) complain(which + " though its group has to run");
      if (config_.offline_floor > 0 && now - config_since_ > 2 * config_.floor_window &&
          off_within(group, config_.floor_window) > most_off() + negligible + rounding) {
        complain(which + " below offline_floor");
      }
      if (!has_answer(group)) complain(which + " though its peers do not answer");
      if (!is_wanted(group)) complain(which + " though neither policy nor peers want it");
      if (policy_ == policy_in_force::fixed_timeslice && !peers_want(group) &&
          std::none_of(gpus.begin(), gpus.end(), [&](gpu_id on) { return works(on); })) {
        complain(which + " without online work");
      }
    }
  }
  judge_wishes();
  if (policy_ == policy_in_force::none || stopping_) return;
  // The other way round: what has to make room does.
  for (const books* const group : all_books()) {
    if (!manageable(*group) || group->forced || floor_is_near(*group)) continue;
    const bool peers = peers_want(*group);
    if (!peers && !(has_answer(*group) && policy_ == policy_in_force::fixed_timeslice &&
                    online_waits(*group))) {
      continue;
    }
    const auto all_queues = [&](auto&& holds) {
      for (const process* const one : group->members) {
        for (const auto& [id, queue] : one->queues) {
          if (queue.managed && suspends(queue.type) && !holds(*one, queue)) return false;
        }
      }
      return true;
    };
    if (!all_queues([&](const process&, const known_queue& queue) {
          return queue.not_before <= now && queue.is != state::doubt;
        })) {
      continue;
    }
    if (!all_queues([&](const process& one, const known_queue& queue) {
          return queue.is != state::running || one.in_flight || now < one.lane_from;
        })) {
      complain("turn: " + name(**group->members.begin()) +
               (peers ? "'s gang runs although its peers want it held"
                      : "'s group runs although online work waits for its GPU"));
    }
  }
}

/// What was told last of each gang on several nodes is so.
void reference::judge_wishes() {
  if (told_[0] != told_[1]) complain("gang: sources are told different things");
  for (const auto& [key, what] : told_[0]) {
    const auto gang = by_key_[key].lock();
    const bool there = gang != nullptr && gang->nodes >= 2;
    if (there != (what.wish != gang_wish::gone)) {
      complain("gang: " + std::to_string(key) + (there ? " is told to be gone" : " is gone"));
    }
  }
  for (const books* const group : all_books()) {
    if (group->nodes >= 2) judge_wish(*group);
  }
}

void reference::judge_wish(const books& group) {
  const time_point now = time_.now();
  const auto told = told_[0].find(group.key);
  const std::string which = "gang: " + std::to_string(group.key) + " ";
  if (told == told_[0].end()) return complain(which + "is not told of");
  if (told->second.nodes != group.nodes) complain(which + "has another number of nodes");
  const gang_wish wish = told->second.wish;
  if (policy_ == policy_in_force::none || stopping_ || !manageable(group) || group.forced ||
      is_refused(group)) {
    if (wish != gang_wish::refused) complain(which + "cannot be held, and is not refused");
    return;
  }
  // A limit may be reached in the other account, and not in this one.
  if (floor_is_near(group) || (group.off && now + rounding >= must_run_at(group))) return;
  if (wish == gang_wish::refused) return complain(which + "is refused, and can be held");
  if (policy_ != policy_in_force::fixed_timeslice) return;
  if (online_waits(group) && wish != gang_wish::hold) {
    complain(which + "is not to be held, and online work waits for its GPU");
  }
  const auto gpus = gpus_of(group);
  if (wish == gang_wish::hold &&
      std::none_of(gpus.begin(), gpus.end(), [&](gpu_id on) { return works(on); })) {
    complain(which + "is to be held without online work");
  }
}

void reference::at_rest(bool everything_runs) {
  const time_point now = time_.now();
  for (const process& one : known_) {
    if (one.gone) complain("rest: " + name(one) + " is gone, and still known");
    if (one.has == session::detaching || one.has == session::attaching) {
      complain("rest: " + name(one) + " is neither attached nor not");
    }
    if (one.in_flight && everything_runs) complain("rest: " + name(one) + " has a batch in flight");
    bool on_lost = false;
    for (const auto& [id, queue] : one.queues) {
      on_lost |= queue.type == queue_kind::compute && is_lost(queue.gpu);
      if (!queue.managed || queue.is == state::running) continue;
      if (everything_runs || queue.is == state::doubt) {
        complain("rest: queue " + number(id) + " of " + name(one) + " does not run");
      } else if (now > queue.off_since + config_.max_suspend + 1s) {
        complain("rest: queue " + number(id) + " of " + name(one) + " is off for too long");
      }
    }
    if (one.what() == role::offline && one.compute_queues() != 0 && one.pid != own_pid_ &&
        one.has != session::attached && !on_lost && !stopping_) {
      complain("rest: " + name(one) + " is offline, and not attached");
    }
  }
}

}  // namespace sluice::tests
