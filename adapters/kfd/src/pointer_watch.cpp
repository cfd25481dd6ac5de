#include "pointer_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// The inbox is not to fill with what a look more or less would say as well.
constexpr duration least_apart = std::chrono::milliseconds(1);

}  // namespace

pointer_watch::pointer_watch(const roots& where, inbox_producer& inbox, message_sink say)
    : sysfs_(where.sysfs),
      say_(std::move(say)),
      finder_(where, say_),
      follower_({.thread = "sluice-pointers",
                 .apart = least_apart,
                 // What is refused makes for a resync, too, which restates everything.
                 .report = [&inbox](const observation& seen) { return inbox.push(seen); }}) {}

void pointer_watch::pace(duration every) noexcept {
  const bool begins = every_.exchange(every.count()) == 0;
  follower_.pace(every);
  // Last: what set() hands over from now on is kept.
  if (begins) anew_.store(true);
}

void pointer_watch::follow(std::span<const process> online) {
  const bool wanted = every_.load() != 0;
  finder_.want(wanted);
  auto found = finder_.find(online);
  set(wanted ? std::move(found) : std::vector<online_process>{});
}

void pointer_watch::set(std::vector<online_process> who) {
  // The scheduler has forgotten what it heard.
  const bool anew = anew_.exchange(false);
  std::erase_if(known_, [&](const online_process& each) {
    if (!anew && std::ranges::find(who, each) != who.end()) return false;
    follower_.leave(each.who);
    return true;
  });
  for (online_process& each : who) {
    if (std::ranges::find(known_, each) != known_.end()) continue;
    auto made = pointer_view::make(each, sysfs_);
    if (!made) {
      if (made.error() != errc::unknown_target)
        complain(each.who, "cannot be read: " + made.error().message());
      continue;
    }
    if (const std::size_t hidden = (*made)->unreadable(); hidden != 0)
      complain(each.who, "cannot be read for " + std::to_string(hidden) + " of " +
                             std::to_string(each.queues.size()) + " queues");
    const auto followed = follower_.follow(each.who, std::move(*made));
    if (followed) {
      refused_ = false;
      known_.push_back(std::move(each));
      continue;
    }
    if (!std::exchange(refused_, true))
      say_("cannot start the thread that reads queue pointers: " + followed.error().message() +
           "; sluice detects online work only if a client announces it");
    return;
  }
}

void pointer_watch::complain(const process_identity& of, const std::string& why) {
  std::erase_if(complained_, [](const process_identity& each) {
    return start_time_of(each.pid) != each.start_time;
  });
  if (std::ranges::find(complained_, of) != complained_.end()) return;
  complained_.push_back(of);
  say_("queue pointers of online process " + std::to_string(of.pid) + " (" + command_of(of.pid) +
       ") " + why +
       "; sluice detects its work only if a client announces it; mount debugfs and run as root; "
       "see 'sluice doctor' pid=" +
       std::to_string(of.pid));
}

}  // namespace sluice::kfd
