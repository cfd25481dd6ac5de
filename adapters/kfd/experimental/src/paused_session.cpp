#include "paused_session.hpp"

#include "criu.hpp"
#include "sysfs.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "sluice/kfd/sysfs_text.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// How often the list of queues is read.
constexpr std::chrono::milliseconds look_every{250};

}  // namespace

paused_session::paused_session(const settings& how, const tracee& target,
                               session_listener& listener, unique_fd device, unique_fd clock)
    : how_(how),
      directory_(how.sysfs + "/proc/" + std::to_string(target.pid()) + "/queues"),
      target_(target),
      listener_(listener),
      device_(std::move(device)),
      clock_(std::move(clock)) {}

result<std::unique_ptr<paused_session>> paused_session::open(const settings& how,
                                                             const tracee& target,
                                                             session_listener& listener,
                                                             const message_sink& say) {
  unique_fd clock{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
  if (!clock) return last_system_error();
  itimerspec every{};
  every.it_value.tv_nsec = every.it_interval.tv_nsec = std::chrono::nanoseconds{look_every}.count();
  if (::timerfd_settime(clock.get(), 0, &every, nullptr) != 0) return last_system_error();
  auto taken = take_device(how.device, target, say);
  if (!taken) return taken.error();
  const std::string name =
      "process " + std::to_string(target.pid()) + " (" + command_of(target.pid()) + ")";
  if (taken->was_paused)
    say(name + " was left paused by an earlier scheduler; sluice has unpaused it");
  say(name +
      " uses the driver without enabling the ROCm runtime's debug support; because of criu_pause, "
      "each suspend pauses the whole process on all its GPUs");
  return std::unique_ptr<paused_session>{
      new paused_session{how, target, listener, std::move(taken->fd), std::move(clock)}};
}

result<void> paused_session::read_events() {
  std::uint64_t ticks = 0;
  (void)!::read(clock_.get(), &ticks, sizeof(ticks));
  return refresh();
}

result<void> paused_session::refresh() {
  seen_.clear();
  // Gone: it has no queues any more.
  for_each_numbered_entry<std::uint32_t>(directory_, [this](std::uint32_t id, ino_t inode) {
    const known_queue* const old = find(driver_queue_id{id});
    if (old != nullptr && old->inode == inode) {
      seen_.push_back(*old);
      return;
    }
    const auto what = read_queue(directory_ + "/" + std::to_string(id));
    if (!what) return;  // just going, or just coming: next time
    seen_.push_back({driver_queue_id{id}, inode, what->gpu,
                     type_from_sysfs(static_cast<int>(what->type)), false});
  });
  known_.swap(seen_);  // seen_ is the old list now
  const auto has = [](const std::vector<known_queue>& list, const known_queue& one) {
    return std::ranges::any_of(list, [&one](const known_queue& each) {
      return each.id == one.id && each.inode == one.inode;
    });
  };
  for (const known_queue& old : seen_)
    if (!has(known_, old)) listener_.queue_removed(old.id);
  for (const known_queue& now : known_) {
    if (has(seen_, now)) continue;
    session_queue added;
    added.id = now.id;
    added.gpu = now.gpu;
    added.type = now.type;
    listener_.queue_added(added);
  }
  // The last one that had to stand still is gone, and nobody will resume it.
  if (paused_ && !any_held() && unpause() != 0 && paused_) return errc::not_managed;
  return {};
}

result<void> paused_session::announce_again() {
  if (paused_) (void)unpause();
  forget_all();
  if (paused_) return errc::not_managed;
  return refresh();
}

target_session::call_result paused_session::suspend(std::span<const driver_queue_id> queues,
                                                    std::span<outcome> outcomes) {
  call_result answer;
  const auto unknown = [this](driver_queue_id id) { return find(id) == nullptr; };
  if (std::ranges::any_of(queues, unknown)) (void)refresh();
  bool any = false;
  for (std::size_t index = 0; index < queues.size(); ++index) {
    known_queue* const one = find(queues[index]);
    outcomes[index] = one != nullptr ? outcome::done : outcome::invalid;
    if (one == nullptr) continue;
    one->held = any = true;
    ++answer.count;
  }
  if (!any || paused_) return answer;
  answer.driver_errno = pause();
  if (answer.driver_errno == 0) return answer;
  answer.count = 0;
  for (known_queue& each : known_) each.held = false;
  std::ranges::fill(outcomes, paused_ ? outcome::failed : refused(answer.driver_errno));
  return answer;
}

target_session::call_result paused_session::resume(std::span<const driver_queue_id> queues,
                                                   std::span<outcome> outcomes) {
  call_result answer;
  if (queues.empty()) return answer;
  for (std::size_t index = 0; index < queues.size(); ++index) {
    known_queue* const one = find(queues[index]);
    outcomes[index] = one != nullptr ? outcome::done : outcome::invalid;
    if (one == nullptr) continue;
    one->held = false;
    ++answer.count;
  }
  if (!paused_ || any_held()) return answer;
  answer.driver_errno = unpause();
  if (answer.driver_errno == 0) return answer;
  answer.count = 0;
  const bool gone = refused(answer.driver_errno) == outcome::target_gone;
  std::ranges::fill(outcomes, gone ? outcome::target_gone : outcome::failed);
  return answer;
}

bool paused_session::close() {
  if (paused_) (void)unpause();
  return !paused_;
}

void paused_session::discard() {
  forget_all();
  if (!std::exchange(paused_, false)) return;
  how_.holds.strike(entry_);
}

paused_session::known_queue* paused_session::find(driver_queue_id id) noexcept {
  const auto found = std::ranges::find(known_, id, &known_queue::id);
  return found == known_.end() ? nullptr : &*found;
}

bool paused_session::any_held() const noexcept {
  return std::ranges::any_of(known_, &known_queue::held);
}

void paused_session::forget_all() {
  for (const known_queue& each : known_) listener_.queue_removed(each.id);
  known_.clear();
}

int paused_session::pause() noexcept {
  const auto entry = how_.holds.enter(hold{.pid = target_.pid(), .start_time = how_.start_time});
  if (!entry) return ENOSPC;
  entry_ = *entry;
  paused_ = true;
  const int error = criu_pause(device_.get());
  // Refused: the driver has brought back what it had evicted, as far as we know; this makes sure.
  if (error != 0) (void)unpause();
  return error;
}

/// \return 0 when the process runs for sure; paused_ is true when it may not.
int paused_session::unpause() noexcept {
  int error = criu_unpause(device_.get());
  if (error == EINVAL) error = 0;  // somebody did it already
  // ESRCH: its queues are gone with its memory.
  if (error == 0 || error == ESRCH) {
    if (std::exchange(paused_, false)) how_.holds.strike(entry_);
  }
  return error;
}

outcome paused_session::refused(int error) const noexcept {
  return error == ESRCH && target_.exits_within(tracee::exit_patience) ? outcome::target_gone
                                                                       : outcome::invalid;
}

}  // namespace sluice::kfd
