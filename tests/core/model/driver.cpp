#include "driver.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>

namespace sluice::tests {
namespace {

using namespace std::chrono_literals;

constexpr duration usual_latency = 2ms;
constexpr duration open_time = 3ms;
constexpr duration look_time = 100us;
/// The driver's own patience with a preemption, and the agent's with a call.
constexpr duration stuck_time = 9s;
constexpr duration stuck_after = 4s;
constexpr duration lease = 500ms;
/// When the target may have another session, and a batch in it.
constexpr duration late_by = 30ms;
constexpr std::size_t most_queues = 6;

}  // namespace

model_driver::model_driver(const testing::manual_clock& time, reference& judge, planted bug)
    : time_(time), judge_(judge), bug_(bug), ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

model_driver::~model_driver() { ::close(ready_); }

// The truth --------------------------------------------------------------------------------------

void model_driver::start_process(pid_t pid, std::uint64_t start_time) {
  processes_[pid] = {.start_time = start_time, .alive = true, .queues = {}};
}

void model_driver::end_process(pid_t pid) {
  processes_[pid].alive = false;
  processes_[pid].queues.clear();
  look_soon(pid, look_time);
}

void model_driver::exec(pid_t pid) {
  processes_[pid].queues.clear();
  look_soon(pid, look_time);
}

std::optional<driver_queue_id> model_driver::create_queue(pid_t pid, gpu_id gpu, queue_kind type) {
  auto& queues = processes_[pid].queues;
  driver_queue_id id{0};
  while (queues.contains(id)) id = driver_queue_id{static_cast<std::uint32_t>(id) + 1};
  if (static_cast<std::size_t>(id) >= most_queues) return std::nullopt;
  queues[id] = {.gpu = gpu, .type = type, .ring = last_ring_ += 0x1000};
  look_soon(pid, look_time);
  return id;
}

void model_driver::destroy_queue(pid_t pid, driver_queue_id id) {
  auto& queues = processes_[pid].queues;
  const auto found = queues.find(id);
  if (found == queues.end()) return;
  found->second.dying = true;
  if (found->second.suspended) return;
  queues.erase(found);
  if (bug_ == planted::forgets_a_removal && ++removals_ == 2) {
    for (lane& one : lanes_) {
      if (one.pid == pid) one.ledger.erase(id);
    }
    return;
  }
  look_soon(pid, look_time);
}

auto model_driver::queues_of(pid_t pid) const -> const std::map<driver_queue_id, queue>& {
  return processes_.at(pid).queues;
}

std::size_t model_driver::suspended() const {
  std::size_t count = 0;
  for (const auto& [pid, one] : processes_) {
    for (const auto& [id, each] : one.queues) count += each.suspended ? 1 : 0;
  }
  return count;
}

bool model_driver::attached(pid_t pid) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const lane& one) {
    return one.pid == pid && one.now == lane::phase::open;
  });
}

void model_driver::look_soon(pid_t pid, duration in) {
  for (lane& one : lanes_) {
    if (one.pid == pid && one.now == lane::phase::open) {
      one.look_at = std::min(one.look_at, time_.now() + in);
    }
  }
}

/// One that its owner wants to destroy goes as soon as it runs.
void model_driver::run(pid_t pid, driver_queue_id id) {
  auto& queues = processes_[pid].queues;
  const auto found = queues.find(id);
  if (found == queues.end()) return;
  found->second.suspended = false;
  if (!found->second.dying) return;
  queues.erase(found);
  if (!stopped_) on_gone(pid, id);
}

void model_driver::run_all(const lane& one) {
  process* const owner = process_of(one);
  if (owner == nullptr) return;
  std::vector<driver_queue_id> all;
  for (const auto& [id, each] : owner->queues) {
    if (each.suspended) all.push_back(id);
  }
  for (const auto id : all) run(one.pid, id);
}

// What goes wrong --------------------------------------------------------------------------------

void model_driver::mute(pid_t pid, duration span) {
  for (lane& one : lanes_) {
    if (one.pid == pid) one.muted_until = time_.now() + span;
  }
}

void model_driver::end_session(pid_t pid) {
  for (lane& one : lanes_) {
    if (one.pid == pid && one.now == lane::phase::open && !one.work) close(one, false);
  }
  ring();
}

void model_driver::lose_gpu(gpu_id gpu) {
  if (!up_) return;
  global_.push_back({.what = global_report::kind::gpu_lost, .gpu = gpu});
  ring();
}

void model_driver::crash(std::size_t heard) {
  if (!up_) return;
  for (const lane& one : lanes_) run_all(one);
  for (lane& one : lanes_) {
    one.now = lane::phase::over;
    one.muted_until = {};
  }
  gives_up_.clear();
  late_.clear();
  up_ = false;
  lost_waits_ = true;
  still_heard_ = heard;
  tick_by_ = never;
  ring();
}

void model_driver::restore() {
  if (up_ || stopped_) return;
  restored_waits_ = true;
  ring();
}

void model_driver::act_by(const capabilities& what) {
  if (!up_) return;
  const bool fell_back = acting_ == by_batches && what != acting_;
  if (!fell_back) return;  // A driver does not get better while the agent lives.
  acting_ = what;
  global_.push_back({.what = global_report::kind::acts_by, .acting = what, .fell_back = fell_back});
  for (lane& one : lanes_) {
    if (one.now != lane::phase::open) continue;
    // What was under way is answered before everything runs and is said again.
    if (one.work) perform(one);
    run_all(one);
    say_all_again(one);
  }
  ring();
}

void model_driver::be_kind() {
  faults_.clear();
  latency_.clear();
  stuck_.clear();
  attach_errors_.clear();
  submit_errors_.clear();
  detach_errors_.clear();
  for (lane& one : lanes_) one.muted_until = {};
  ring();
}

// Lanes ------------------------------------------------------------------------------------------

auto model_driver::find(process_id target) -> lane* {
  for (lane& one : lanes_) {
    if (one.target == target) return &one;
  }
  return nullptr;
}

/// Null: it is gone.
auto model_driver::process_of(const lane& one) -> process* {
  const auto found = processes_.find(one.pid);
  if (found == processes_.end()) return nullptr;
  process& owner = found->second;
  return owner.alive && owner.start_time == one.start_time ? &owner : nullptr;
}

time_point model_driver::due(const lane& one) const noexcept {
  switch (one.now) {
    case lane::phase::opening: return one.open_at;
    case lane::phase::open: return one.work ? one.work_at : one.look_at;
    case lane::phase::over: break;
  }
  return never;
}

time_point model_driver::next() const noexcept {
  time_point first = never;
  for (const lane& one : lanes_) {
    if (up_) first = std::min(first, due(one));
    if (!one.out.empty() && one.muted_until > time_.now()) {
      first = std::min(first, one.muted_until);
    }
  }
  for (const auto& [at, gpu] : gives_up_) first = std::min(first, at);
  for (const auto& [at, said] : late_) first = std::min(first, at);
  return first;
}

void model_driver::work() {
  const time_point now = time_.now();
  for (lane& one : lanes_) {
    while (up_ && due(one) <= now) step(one);
  }
  for (const auto& [at, gpu] : gives_up_) {
    if (at <= now) global_.push_back({.what = global_report::kind::gpu_lost, .gpu = gpu});
  }
  std::erase_if(gives_up_, [&](const auto& one) { return one.first <= now; });
  ring();
}

void model_driver::step(lane& one) {
  if (one.now == lane::phase::opening) return open(one);
  if (one.work) return perform(one);
  if (process_of(one) == nullptr) return close(one, true);
  if (one.leaving) return close(one, false);
  look(one);
}

void model_driver::open(lane& one) {
  const bool taken = std::any_of(lanes_.begin(), lanes_.end(), [&](const lane& other) {
    return &other != &one && other.pid == one.pid && other.start_time == one.start_time &&
           other.now == lane::phase::open;
  });
  if (process_of(one) == nullptr) one.open_error = errc::unknown_target;
  if (taken) one.open_error = errc::not_managed;
  if (one.leaving) one.open_error = errc::stopped;
  push(one, report::kind::attached, {}, nullptr, one.open_error);
  if (one.open_error) {
    one.now = lane::phase::over;
    return;
  }
  one.now = lane::phase::open;
  look(one);
}

/// Compares what there is with what it has said.
void model_driver::look(lane& one) {
  one.look_at = never;
  process* const owner = process_of(one);
  if (owner == nullptr) return close(one, true);
  std::vector<driver_queue_id> gone;
  for (const auto& [id, each] : one.ledger) {
    const auto found = owner->queues.find(id);
    if (found == owner->queues.end() || found->second.fresh || found->second.ring != each.ring) {
      gone.push_back(id);
    }
  }
  for (const auto id : gone) {
    one.ledger.erase(id);
    push(one, report::kind::removed, id);
  }
  for (auto& [id, each] : owner->queues) {
    each.fresh = false;
    if (one.ledger.contains(id)) continue;
    one.ledger[id] = each;
    push(one, report::kind::added, id, &each);
  }
}

void model_driver::say_all_again(lane& one) {
  for (const auto& [id, each] : one.ledger) push(one, report::kind::removed, id);
  one.ledger.clear();
  one.look_at = time_.now();
}

void model_driver::perform(lane& one) {
  const batch work = *std::exchange(one.work, std::nullopt);
  const bool suspend = work.kind == command_kind::suspend;
  process* const owner = process_of(one);
  report said;
  said.what = report::kind::completed;
  batch_result& result = said.result;
  result.id = work.id;
  result.target = work.target;
  result.gpu = work.gpu;
  result.kind = work.kind;
  result.count = work.count;
  result.started = one.work_from;
  result.finished = time_.now();
  bool again = false;
  bool refused_call = false;
  for (std::size_t i = 0; i < work.count; ++i) {
    const auto script = faults_.find({one.pid, work.queues[i]});
    refused_call |= script != faults_.end() && !script->second.empty() &&
                    script->second.front() == fault::failed_unchanged;
  }
  if (refused_call) result.driver_errno = EINTR;
  for (std::size_t i = 0; i < work.count; ++i) {
    const driver_queue_id id = work.queues[i];
    result.queues[i] = id;
    outcome& got = result.outcomes[i];
    if (owner == nullptr) {
      got = outcome::target_gone;
      continue;
    }
    std::optional<fault> wrong;
    if (const auto script = faults_.find({one.pid, id});
        script != faults_.end() && !script->second.empty()) {
      wrong = script->second.front();
      script->second.pop_front();
    }
    const auto found = owner->queues.find(id);
    if (refused_call) {
      got = outcome::failed;
    } else if (found == owner->queues.end() || wrong == fault::invalid ||
               (suspend && (found->second.fresh || found->second.dying) &&
                !found->second.suspended)) {
      got = outcome::invalid;
    } else {
      got = wrong == fault::failed_changed ? outcome::failed : outcome::done;
      if (suspend) {
        found->second.suspended = true;
      } else {
        run(one.pid, id);
      }
    }
    again |= got != outcome::done;
  }
  const bool lose = bug_ == planted::loses_a_resume && !suspend && ++resumes_ == 3;
  if (!lose) one.out.push_back(said);
  if (owner == nullptr || one.leaving || again) {
    one.look_at = time_.now();
  } else if (one.look_at != never || one.ledger.size() != owner->queues.size()) {
    one.look_at = std::max(time_.now(), std::min(one.look_at, time_.now() + look_time));
  }
}

/// Says its last. Everything of it runs.
void model_driver::close(lane& one, bool gone) {
  if (!gone) run_all(one);
  one.now = lane::phase::over;
  one.look_at = never;
  push(one, report::kind::detached);
}

void model_driver::push(lane& one, report::kind what, driver_queue_id id, const queue* about,
                        error_code error) {
  report said;
  said.what = what;
  said.error = error;
  said.info.target = one.target;
  said.info.id = id;
  if (about != nullptr) {
    said.info.gpu = about->gpu;
    said.info.type = about->type;
    said.info.incarnation = about->ring;
  }
  one.out.push_back(said);
}

// backend ----------------------------------------------------------------------------------------

result<void> model_driver::start(backend_listener& listener) {
  listener_ = &listener;
  up_ = true;
  return {};
}

bool model_driver::can_speak(const lane& one) const noexcept {
  return !one.out.empty() && one.muted_until <= time_.now();
}

void model_driver::ring() noexcept {
  const bool late = std::any_of(late_.begin(), late_.end(),
                                [this](const auto& one) { return one.first <= time_.now(); });
  const bool some =
      late || lost_waits_ || restored_waits_ || !global_.empty() ||
      std::any_of(lanes_.begin(), lanes_.end(), [this](const lane& one) { return can_speak(one); });
  if (some) ::eventfd_write(ready_, 1);
}

void model_driver::deliver(const lane& from, const report& what) {
  switch (what.what) {
    case report::kind::attached:
      judge_.attached(from.target, !what.error);
      listener_->attached(from.target, what.error);
      break;
    case report::kind::added:
      judge_.queue_added(from.target, what.info);
      listener_->queue_added(what.info);
      break;
    case report::kind::removed:
      judge_.queue_removed(from.target, what.info.id);
      listener_->queue_removed(from.target, what.info.id);
      break;
    case report::kind::completed:
      judge_.completed(what.result);
      listener_->completed(what.result);
      break;
    case report::kind::detached:
      judge_.detached(from.target);
      listener_->detached(from.target);
      break;
  }
}

void model_driver::drain() {
  eventfd_t value = 0;
  ::eventfd_read(ready_, &value);
  std::size_t left = lost_waits_ ? still_heard_ : SIZE_MAX;
  while (!global_.empty() && left != 0) {
    const global_report one = global_.front();
    global_.pop_front();
    --left;
    switch (one.what) {
      case global_report::kind::gpu_lost:
        judge_.gpu_lost(one.gpu);
        listener_->gpu_lost(one.gpu);
        break;
      case global_report::kind::acts_by: listener_->acts_by(one.acting, one.fell_back); break;
      case global_report::kind::reserved: listener_->reserved(one.gpu, one.share, one.error); break;
      case global_report::kind::quantum_set:
        listener_->quantum_set(one.target, one.gpu, one.length, one.error);
        break;
    }
  }
  // One of each lane in turn, beginning anywhere: the order of two lanes' reports says nothing.
  for (bool some = true; some && left != 0;) {
    some = false;
    for (std::size_t i = 0; i < lanes_.size() && left != 0; ++i) {
      lane& one = lanes_[(i + order_) % lanes_.size()];
      if (!can_speak(one)) continue;
      const report what = one.out.front();
      one.out.pop_front();
      deliver(one, what);
      some = true;
      --left;
    }
  }
  std::erase_if(late_, [this](const auto& one) {
    if (one.first > time_.now()) return false;
    judge_.completed(one.second);
    listener_->completed(one.second);
    return true;
  });
  std::erase_if(lanes_,
                [](const lane& one) { return one.now == lane::phase::over && one.out.empty(); });
  if (std::exchange(lost_waits_, false)) {
    lanes_.clear();
    global_.clear();
    judge_.lost();
    listener_->lost(errc::lost);
  }
  if (!lost_waits_ && std::exchange(restored_waits_, false)) {
    up_ = true;
    listener_->restored();
    listener_->acts_by(acting_ = by_batches, false);
  }
  judge_.drained();
}

result<void> model_driver::attach(process_id target, pid_t pid, std::uint64_t start_time) {
  if (!up_) {
    judge_.attach_called(target, pid, start_time, false);
    return errc::lost;
  }
  judge_.attach_called(target, pid, start_time, true);
  lane one;
  one.target = target;
  one.pid = pid;
  one.start_time = start_time;
  const auto latency = latency_.find(pid);
  one.open_at = time_.now() + open_time + (latency != latency_.end() ? latency->second : 0ms);
  if (auto& errors = attach_errors_[pid]; !errors.empty()) {
    one.open_error = errors.front();
    errors.pop_front();
  }
  lanes_.push_back(std::move(one));
  return {};
}

result<void> model_driver::detach(process_id target) {
  lane* const one = find(target);
  result<void> answer;
  if (!up_) {
    answer = errc::lost;
  } else if (one == nullptr) {
    judge_.complain("detach: of a target that the backend does not know");
    answer = errc::unknown_target;
  } else if (!detach_errors_.empty()) {
    answer = detach_errors_.front();
    detach_errors_.pop_front();
  }
  judge_.detach_called(target, answer);
  if (answer) {
    one->leaving = true;
    if (one->now == lane::phase::open) one->look_at = time_.now();
  }
  return answer;
}

result<void> model_driver::submit(const batch& work) {
  lane* const one = find(work.target);
  result<void> answer;
  if (!up_) {
    answer = errc::lost;
  } else if (one == nullptr) {
    judge_.complain("submit: to a target that the backend does not know");
    answer = errc::unknown_target;
  } else if (one->work) {
    judge_.complain("submit: to a lane that is busy");
    answer = errc::busy;
  } else if (!submit_errors_.empty()) {
    answer = submit_errors_.front();
    submit_errors_.pop_front();
  }
  judge_.submit_called(work, answer);
  if (!answer) return answer;
  if (one->now == lane::phase::over) {
    // It came too late for the lane, which has said its last.
    report said;
    said.what = report::kind::completed;
    said.result.id = work.id;
    said.result.target = work.target;
    said.result.gpu = work.gpu;
    said.result.kind = work.kind;
    said.result.count = work.count;
    said.result.queues = work.queues;
    said.result.outcomes.fill(outcome::target_gone);
    said.result.started = said.result.finished = time_.now();
    if (order_ % 2 == 0) {
      one->out.insert(one->out.end() - 1, said);
    } else {
      // Nor has the agent such a lane any more: its own answers come after all that lanes say.
      late_.emplace_back(time_.now() + late_by, said.result);
    }
    return {};
  }
  const auto latency = latency_.find(one->pid);
  duration takes = latency != latency_.end() ? latency->second : usual_latency;
  if (std::exchange(stuck_[one->pid], false)) {
    takes = stuck_time;
    gives_up_.emplace_back(time_.now() + stuck_after, work.gpu);
  }
  one->work.emplace().assign(work);
  one->work_from = time_.now();
  one->work_at = time_.now() + takes;
  return {};
}

result<void> model_driver::reserve(gpu_id gpu, double offline_share) {
  if (!up_) return errc::lost;
  if (acting_ != by_batches) return errc::not_supported;
  global_.push_back(
      {.what = global_report::kind::reserved, .gpu = gpu, .share = offline_share, .error = {}});
  ring();
  return {};
}

result<void> model_driver::set_quantum(process_id target, gpu_id gpu, duration length) {
  if (!up_) return errc::lost;
  judge_.quantum_called(target, length);
  lane* const one = find(target);
  if (one == nullptr) return errc::unknown_target;
  global_report said{.what = global_report::kind::quantum_set,
                     .gpu = gpu,
                     .target = target,
                     .length = length,
                     .error = {}};
  if (static_cast<std::uint32_t>(gpu) % 2 != 0) {
    said.error = errc::not_supported;
  } else if (++quanta_ % 7 == 0) {
    said.error = {EBUSY, boost::system::system_category()};
  }
  one->quanta[gpu] = said.error ? duration::zero() : length;
  global_.push_back(said);
  ring();
  return {};
}

void model_driver::observed(unsigned source, const observation& seen) {
  judge_.observed(source, seen);
  if (on_observed) on_observed(source, seen);
}

time_point model_driver::tick(time_point now) {
  if (now > tick_by_) judge_.complain("turn: the lease was not renewed in time");
  tick_by_ = up_ ? now + lease : never;
  return now + lease / 2;
}

void model_driver::stop() {
  stopped_ = true;
  up_ = false;
  for (const lane& one : lanes_) {
    run_all(one);
    for (const auto& [on, length] : one.quanta) {
      if (length != duration::zero()) judge_.complain("stop: a quantum is left");
    }
  }
  lanes_.clear();
  global_.clear();
}

}  // namespace sluice::tests
