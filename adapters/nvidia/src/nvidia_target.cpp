#include "nvidia_target.hpp"

#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

using namespace std::chrono_literals;

/// How often the timer asks which processes share a client.
constexpr duration tick = 100ms;
/// Ticks between two looks at the process. While the agent runs, a duplicate must not outlive the
/// target's own for longer than 1 s.
constexpr unsigned look_every = 3;
/// After a look, until a suspend is followed by another one: a look takes as much processor time as
/// a suspend.
constexpr duration least_between_looks = 50ms;
/// A look ends early when an order comes, which would wait for some 200 questions to the driver,
/// and the next one goes on. Once the last whole look is this old, it does not end early: a process
/// may make channels while it is suspended.
constexpr duration longest_without_look = look_every * tick + tick / 2;
/// How old the list of users may be on a small node: at a tick, and after a suspend. Lanes and
/// targets that are suspended together share it.
constexpr duration least_age_at_tick = tick / 2;
constexpr duration least_age_at_look = 5ms;
/// The more processes a node has, the longer a list takes. It may then be older, so that ticks take
/// 0.5 % of a core for it, and suspends 5 %.
constexpr int ticks_for_list = 200;
constexpr int looks_for_list = 20;
constexpr duration most_age = 1s;
/// Until a look that ended early goes on: orders to suspend and to resume follow each other.
constexpr duration rest_after_stop = 2ms;
/// Of a process's memory, in one look. It ends early when an order comes.
constexpr duration longest_search = 50ms;
/// Between two such looks.
constexpr duration rest_in_search = longest_search / 2;
/// After which the log has a line about it.
constexpr duration long_search = 1s;
/// Less than lane_side_options::stuck_after.
constexpr duration longest_first_search = 2s;
/// Calls to resume a client at a look, before that counts as refused.
constexpr int most_attempts = 3;

bool arm(const unique_fd& timer, duration first) {
  const auto spec = [](duration time) {
    const auto nanoseconds = std::chrono::nanoseconds{time}.count();
    return timespec{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  };
  const itimerspec when{.it_interval = spec(tick), .it_value = spec(first)};
  return ::timerfd_settime(timer.get(), 0, &when, nullptr) == 0;
}

}  // namespace

error_code nvidia_target::refuse(const std::string& why) {
  refused_ = "process " + std::to_string(pid_) + " (" + command_of(pid_) + ") " + why;
  return errc::not_managed;
}

/// The system's errors are those of a process that ended, or of a lack of rights.
error_code nvidia_target::refuse(const error_code& error) {
  if (error.category() != boost::system::system_category()) return error;
  if (start_time_of(pid_) != start_time_) return errc::unknown_target;
  const pid_t thread = visible_thread_of(pid_);
  if (thread == 0) return errc::unknown_target;
  if (thread != pid_) return refuse("has no main thread any more");
  return refuse("cannot be read: " + error.message() +
                "; the agent needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH");
}

result<std::vector<queue_info>> nvidia_target::open() {
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))};
  timer_ = unique_fd{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
  if (!timer_) return last_system_error();
  if (!pidfd || start_time_of(pid_) != start_time_) return errc::unknown_target;
  // Its channels are those of other processes.
  if (command_of(pid_).starts_with("nvidia-cuda-mps")) return refuse("is a server of CUDA's MPS");
  auto opened = process_clients::open(pid_, std::move(pidfd), users_.of(), longest_search);
  if (!opened) return refuse(opened.error());
  clients_.emplace(std::move(*opened));
  // No order can come before this returns, so none waits for the search; and an attach is expected
  // to list all queues of the process.
  const time_point give_up = clock::now() + longest_first_search;
  auto queues = read();
  while (queues && clients_->is_searching() && clock::now() < give_up) queues = read();
  return queues;
}

result<std::vector<queue_info>> nvidia_target::refresh() {
  std::uint64_t ignored = 0;
  (void)!::read(timer_.get(), &ignored, sizeof ignored);
  const bool is_behind_suspend = std::exchange(is_behind_suspend_, false);
  const bool only_sharers = std::exchange(only_sharers_, false);
  if (only_sharers && !is_behind_suspend && ticks_ % look_every != 0)
    return known_queues(age_at_look());
  const bool is_early = is_behind_suspend && clock::now() - looked_ < least_between_looks;
  if (is_early) ticks_ = look_every;  // The next tick looks.
  if (is_early || ticks_++ % look_every != 0)
    return known_queues(is_early ? age_at_look() : age_at_tick());
  auto queues = read();
  if (!refused_.empty()) host_.say(refused_ + "; sluice does not suspend it any more");
  return queues;
}

duration nvidia_target::age_at_tick() const {
  return std::clamp(ticks_for_list * users_.cost(), least_age_at_tick, most_age);
}

/// Ticks keep the list so new that suspends rarely wait for one.
duration nvidia_target::age_at_suspend() const { return tick + age_at_tick(); }

duration nvidia_target::age_at_look() const {
  return std::clamp(looks_for_list * users_.cost(), least_age_at_look, most_age);
}

/// Without a look at the process, only at who shares its clients.
result<std::vector<queue_info>> nvidia_target::known_queues(duration age) {
  see_sharers(age);
  if (acts() && !sharers_are_offline()) return errc::not_managed;
  return queues_;
}

result<std::vector<queue_info>> nvidia_target::read() {
  // Armed again by each look, so that a slow one does not follow itself at once.
  if (!arm(timer_, tick)) return last_system_error();
  ticks_ = 1;
  bool is_stopped = false;
  const bool yields = clock::now() - looked_ < longest_without_look;
  const auto looked = clients_->refresh(
      [this](const client_objects& each) { return leave(each); },
      [&] { return is_stopped = is_stopped || (yields && has_order_ && has_order_()); },
      has_order_);
  if (!looked) return refuse(looked.error());
  forget_gone();
  if (is_stopped) {
    users_seen_.reset();
    ticks_ = look_every;  // The next tick goes on.
    is_in_parts_ = true;
    if (!arm(timer_, clients_->is_searching() ? rest_in_search : rest_after_stop))
      return last_system_error();
    return known_queues(age_at_tick());
  }
  looked_ = clock::now();
  if (std::exchange(is_in_parts_, false)) ticks_ = look_every;
  if (clients_->is_searching()) {
    ticks_ = 0;
    if (!arm(timer_, rest_in_search)) return last_system_error();
    if (clients_->clients().empty() && clients_->searched_for() >= long_search &&
        !std::exchange(told_of_search_, true))
      host_.say("process " + std::to_string(pid_) + " (" + command_of(pid_) +
                ") has too much memory to find its CUDA client in 1 s; sluice does not suspend it "
                "until the search is complete");
  }
  if (const std::string why = clients_->not_understood(); !why.empty()) return refuse(why);
  users_seen_.reset();  // The process may have other descriptors than before.
  kinship_ = kinship_of(pid_);
  see_sharers(acts() ? age_at_look() : age_at_tick());
  // Whether it may be managed is asked before each suspend: the host names one process after the
  // other as offline.
  if (acts() && !sharers_are_offline()) return errc::not_managed;

  std::vector<queue_info> queues;
  std::map<gpu_id, std::size_t> counts;
  for (const client_objects& each : clients_->clients()) {
    for (const auto& [handle, one] : each.channels()) {
      const channel_group* const in = each.group_of(one);
      if (in == nullptr) continue;
      const queue_info made{.id = driver_queue_id{handle},
                            .gpu = in->gpu,
                            .type = in->computes ? queue_kind::compute : queue_kind::copy,
                            .incarnation = each.client().handle()};
      if (std::ranges::find(queues, made.id, &queue_info::id) != queues.end())
        return refuse("has two clients of the driver with equal handles");
      if (++counts[made.gpu] > max_batch_queues)
        return refuse("has more than " + std::to_string(max_batch_queues) + " channels on a GPU");
      queues.push_back(made);
    }
    for (const auto& [handle, one] : each.groups())
      if (const auto quantum = quanta_.find(one.gpu); one.computes && quantum != quanta_.end())
        if (!set_slices_.contains({each.client().handle(), handle}))
          (void)set_slice(each, handle, quantum->second);
  }
  queues_ = queues;
  return queues;
}

/// After the process closed a descriptor, its channels are out of reach: they run, if another
/// descriptor keeps them.
void nvidia_target::drop_closed() {
  clients_->drop_closed([this](const client_objects& each) { return leave(each); });
  forget_gone();
}

/// What is held of a channel that is gone is not held any more.
void nvidia_target::forget_gone() {
  const auto gone = [&](const channel_key& key, auto known) {
    return std::ranges::none_of(clients_->clients(), [&](const client_objects& each) {
      return each.client().handle() == key.first && known(each).contains(key.second);
    });
  };
  std::erase_if(disables_, [&](const auto& each) {
    return gone(
        each.first, [](const auto& in) -> const auto& { return in.channels(); });
  });
  std::erase_if(set_slices_, [&](const auto& each) {
    return gone(
        each.first, [](const auto& in) -> const auto& { return in.groups(); });
  });
}

bool nvidia_target::find_sharers(duration age, const stop_function& stops) {
  auto users = users_.now(age, stops);
  if (users == nullptr) return false;
  if (users == users_seen_) return true;
  sharers_ = clients_->sharers(*users);
  other_sharers_.clear();
  for (const remote_fd& each : sharers_)
    if (const auto start = start_time_of(each.pid); start && kinship_of(each.pid) != kinship_)
      other_sharers_.push_back({.pid = each.pid, .start_time = *start});
  users_seen_ = std::move(users);
  return true;
}

/// While something is held, it goes on soon if an order ended it.
void nvidia_target::see_sharers(duration age) {
  if (find_sharers(age, has_order_) || !acts() || !has_order_ || !has_order_()) return;
  only_sharers_ = arm(timer_, rest_after_stop);
}

/// Its channels are those of every process that has the open file: all of them have to be offline.
bool nvidia_target::sharers_are_offline() {
  for (const remote_fd& each : sharers_) {
    const auto start = start_time_of(each.pid);
    if (!start) continue;
    // An online one is never exempted: a role may also come by pid, or from a client.
    const bool online = host_.is_online && host_.is_online(each.pid, *start);
    if (!online && ((host_.is_offline && host_.is_offline(each.pid, *start)) ||
                    is_sluice(each.pid) || has_traits_of(each.pid, pid_)))
      continue;
    if (std::exchange(told_of_, each.pid) != each.pid)
      host_.say("process " + std::to_string(pid_) + " (" + command_of(pid_) +
                ") shares its connection to the driver with process " + std::to_string(each.pid) +
                " (" + command_of(each.pid) +
                "), which is not offline; sluice does not suspend them");
    return false;
  }
  return true;
}

std::optional<nvidia_target::place> nvidia_target::find(driver_queue_id id, gpu_id on) const {
  const auto handle = static_cast<uapi::NvHandle>(id);
  for (const client_objects& each : clients_->clients()) {
    const auto found = each.channels().find(handle);
    if (found == each.channels().end()) continue;
    const channel_group* const in = each.group_of(found->second);
    if (in != nullptr && in->gpu == on) return place{&each, in, handle};
  }
  return {};
}

std::string nvidia_target::record() const {
  held_process what{.sharers = other_sharers_, .kinship = kinship_};
  for (const client_objects& each : clients_->clients()) {
    // One more, for what is about to be disabled.
    std::uint32_t most = 0;
    for (const auto& [key, one] : disables_)
      if (key.first == each.client().handle()) most = std::max(most, one.count);
    what.clients.push_back({.handle = each.client().handle(),
                            .fd = clients_->descriptor_of(each),
                            .disables = most + 1,
                            .mount = mount_of(::getpid(), each.client().fd())});
    for (const auto& [handle, group] : each.groups()) {
      if (!group.computes) continue;
      std::uint64_t own = 0;
      if (!slices_.of(each.client().handle(), handle)->own(each.client(), own)) continue;
      what.slices.push_back({.client = each.client().handle(), .group = handle, .own = own});
    }
  }
  return to_text(what);
}

int nvidia_target::act(command_kind what, gpu_id gpu, std::span<const driver_queue_id> queues,
                       std::span<outcome> outcomes) {
  drop_closed();
  if (what == command_kind::resume) return resume(gpu, queues, outcomes);
  if (!find_sharers(age_at_suspend()) || !sharers_are_offline()) return EPERM;
  // Channels and sharers may have come since the last look.
  const int error = suspend(gpu, queues, outcomes);
  ticks_ = 0;
  is_behind_suspend_ = true;
  (void)arm(timer_, 1ns);
  return error;
}

rm_status nvidia_target::change_all(bool disable, std::span<const place> which,
                                    const std::function<void(std::size_t, channel_state)>& became) {
  std::vector<channel_name> names;
  names.reserve(which.size());
  for (const place& each : which) names.push_back({each.in->client().handle(), each.channel});
  if (names.empty()) return {};
  const place& first = which.front();
  return calls_.change(first.in->client(), first.group->subdevice, first.group->gpu, disable, names,
                       became);
}

int nvidia_target::suspend(gpu_id gpu, std::span<const driver_queue_id> queues,
                           std::span<outcome> outcomes) {
  std::vector<place> which;
  std::vector<std::size_t> indices;
  for (std::size_t index = 0; index < queues.size(); ++index) {
    const auto found = find(queues[index], gpu);
    if (!found) continue;
    const auto held = disables_.find({found->in->client().handle(), found->channel});
    if (held != disables_.end() && !held->second.in_doubt) {
      outcomes[index] = outcome::done;
      continue;
    }
    which.push_back(*found);
    indices.push_back(index);
  }
  const rm_status refused = change_all(true, which, [&](std::size_t at, channel_state state) {
    const channel_key key{which[at].in->client().handle(), which[at].channel};
    if (state == channel_state::gone) return;
    if (state == channel_state::refused && !disables_.contains(key)) return;
    disables& now = disables_[key];
    if (state != channel_state::refused) ++now.count;
    now.in_doubt = state != channel_state::changed;
    outcomes[indices[at]] = now.in_doubt ? outcome::failed : outcome::done;
  });
  return refused.as_errno();
}

int nvidia_target::resume(gpu_id gpu, std::span<const driver_queue_id> queues,
                          std::span<outcome> outcomes) {
  for (;;) {
    std::vector<place> which;
    for (std::size_t index = 0; index < queues.size(); ++index) {
      const auto found = find(queues[index], gpu);
      if (found && disables_.contains({found->in->client().handle(), found->channel}))
        which.push_back(*found);
      else
        outcomes[index] = outcome::done;
    }
    if (which.empty()) return 0;
    bool progress = true;
    const rm_status done = change_all(false, which, [&](std::size_t at, channel_state state) {
      if (state == channel_state::doubtful || state == channel_state::refused) {
        progress = false;
        return;
      }
      const auto count = disables_.find({which[at].in->client().handle(), which[at].channel});
      if (state == channel_state::gone || --count->second.count == 0) disables_.erase(count);
    });
    if (!progress) return done.as_errno();
  }
}

rm_status nvidia_target::set_slice(const client_objects& in, uapi::NvHandle group,
                                   std::uint64_t microseconds) {
  const auto slice = slices_.of(in.client().handle(), group);
  std::uint64_t own = 0;
  if (const rm_status read = slice->own(in.client(), own); !read) return read;
  set_slices_.insert_or_assign({in.client().handle(), group}, slice);
  return slice->set(in.client(), this, microseconds);
}

bool nvidia_target::restore_slices(const client_objects& of, gpu_id on) {
  bool done = true;
  for (const auto& [handle, group] : of.groups()) {
    const auto one = set_slices_.find({of.client().handle(), handle});
    if (one == set_slices_.end() || (on != gpu_id::none && group.gpu != on)) continue;
    const rm_status set = one->second->restore(of.client(), this);
    if (set || set.is(uapi::NV_ERR_OBJECT_NOT_FOUND) || set.is(uapi::NV_ERR_INVALID_CLIENT))
      set_slices_.erase(one);
    else
      done = false;
  }
  return done;
}

bool nvidia_target::restore_slices(gpu_id on) {
  bool done = true;
  for (const client_objects& each : clients_->clients()) done &= restore_slices(each, on);
  return done;
}

bool nvidia_target::let_go(const client_objects& of) {
  bool done = restore_slices(of, gpu_id::none);
  std::map<gpu_id, std::vector<driver_queue_id>> held;
  for (const auto& [handle, one] : of.channels())
    if (disables_.contains({of.client().handle(), handle}))
      if (const channel_group* const in = of.group_of(one); in != nullptr)
        held[in->gpu].push_back(driver_queue_id{handle});
  for (const auto& [gpu, queues] : held) {
    bool all = false;
    // The client may be out of reach afterwards.
    for (int attempt = 0; attempt < most_attempts && !all; ++attempt) {
      std::vector<outcome> outcomes(queues.size(), outcome::failed);
      (void)resume(gpu, queues, outcomes);
      all = std::ranges::all_of(outcomes, [](outcome each) { return each == outcome::done; });
    }
    done &= all;
  }
  return done;
}

bool nvidia_target::leave(const client_objects& of) {
  if (let_go(of) || !clients_->is_shared(of, sharers_)) return true;
  if (!std::exchange(told_of_refusal_, true))
    host_.say("process " + std::to_string(pid_) +
              " gave up a connection to the driver that another process shares, and the driver "
              "refuses to resume its channels; sluice keeps trying");
  return false;
}

result<void> nvidia_target::set_quantum(gpu_id gpu, duration length) {
  const auto failed = [](const rm_status& why) {
    return error_code{why.as_errno(), boost::system::system_category()};
  };
  const auto wanted = static_cast<std::uint64_t>(length / 1us);
  quanta_.erase(gpu);
  if (wanted != 0 && (!find_sharers(age_at_suspend()) || !sharers_are_offline())) {
    (void)restore_slices(gpu);  // Else the next look ends the management.
    return error_code{EPERM, boost::system::system_category()};
  }
  if (wanted == 0) return restore_slices(gpu) ? result<void>{} : error_code{errc::lost};
  for (const client_objects& each : clients_->clients()) {
    for (const auto& [handle, group] : each.groups()) {
      if (!group.computes || group.gpu != gpu) continue;
      if (const rm_status set = set_slice(each, handle, wanted); !set) {
        (void)restore_slices(gpu);
        return failed(set);
      }
    }
  }
  quanta_[gpu] = wanted;
  return {};
}

bool nvidia_target::close() noexcept {
  if (!clients_) return true;
  // The objects of a program that ended live on if its descriptor was inherited.
  const bool alive = clients_->is_alive();
  if (alive) drop_closed();
  bool done = true;
  for (const client_objects& each : clients_->clients()) done &= alive ? let_go(each) : leave(each);
  if (!done) return false;
  clients_.reset();
  return true;
}

}  // namespace sluice::nvidia
