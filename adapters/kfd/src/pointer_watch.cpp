#include "pointer_watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "sluice/os/proc.hpp"
#include "sluice/os/quiet_thread.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// What goes on is told no more often than this.
constexpr duration least_report = 1ms;
/// Reading cu_occupancy touches the hardware.
constexpr duration occupancy_interval = 5ms;
constexpr int empty_enough = 2;

// amd_queue_t and an AQL packet, as offsets (kfd_facts 4.4 and 12).
constexpr std::uint64_t write_index_offset = 0x38;
constexpr std::uint64_t base_address_offset = 0x08;
constexpr std::uint64_t size_offset = 0x18;
constexpr std::uint64_t packet_size = 64;
constexpr std::uint64_t completion_signal_offset = 56;
constexpr std::uint64_t signal_value_offset = 8;

bool is_known(const online_queue& queue) noexcept {
  const auto is_address = [](std::uint64_t at) { return at != 0 && at % sizeof at == 0; };
  return is_address(queue.at.read) && is_address(queue.at.write);
}

}  // namespace

// One process -------------------------------------------------------------------------------------

result<std::unique_ptr<pointer_view>> pointer_view::make(const online_process& what,
                                                         const std::string& sysfs) {
  auto opened = queue_pointers::open(what.who);
  if (!opened) return opened.error();
  std::unique_ptr<pointer_view> made{new pointer_view{what.who, std::move(*opened)}};
  std::vector<pointer_addresses> addresses;
  for (const online_queue& each : what.queues) {
    auto at = std::ranges::find(made->places_, each.gpu, &place::gpu);
    if (at == made->places_.end()) {
      at = made->places_.insert(at, place{.gpu = each.gpu});
      made->hidden_.push_back(0);
      const std::string file = sysfs + "/proc/" + std::to_string(what.who.pid) + "/stats_" +
                               std::to_string(static_cast<std::uint32_t>(each.gpu)) +
                               "/cu_occupancy";
      if (::access(file.c_str(), R_OK) == 0) at->occupancy = file;
    }
    const auto index = static_cast<std::size_t>(at - made->places_.begin());
    if (!is_known(each)) {
      ++made->hidden_[index];
      continue;
    }
    queue& one = made->queues_.emplace_back();
    one.place = index;
    one.aql = each.aql;
    addresses.push_back(each.at);
    // Packets can be found where the pointers are those of a queue that says so itself.
    const std::uint64_t base = each.at.write - write_index_offset;
    if (!each.aql || !is_rocr_layout(each.at) ||
        made->pointers_->word_at(base + base_address_offset) != each.ring_base)
      continue;
    one.ring_base = each.ring_base;
    one.packets = made->pointers_->word_at(base + size_offset).value_or(0) &
                  std::numeric_limits<std::uint32_t>::max();
  }
  if (const auto watched = made->pointers_->watch(addresses); !watched) return watched.error();
  made->found_.resize(made->places_.size());
  made->not_shown_.resize(made->places_.size());
  return made;
}

auto pointer_view::end_of(queue& which) noexcept -> ending {
  if (which.write == which.ended) return ending::ended;
  if (which.packets == 0) return ending::not_shown;
  if (which.signal_of != which.write) {
    const std::uint64_t slot = (which.write - 1) % which.packets;
    const auto handle =
        pointers_->word_at(which.ring_base + slot * packet_size + completion_signal_offset);
    which.signal = handle && *handle % sizeof(std::uint64_t) == 0 ? *handle : 0;
    which.signal_of = which.write;
  }
  if (which.signal == 0) return ending::not_shown;
  const auto value = pointers_->word_at(which.signal + signal_value_offset);
  if (!value) return ending::not_shown;
  if (static_cast<std::int64_t>(*value) > 0) return ending::runs;
  which.ended = which.write;
  return ending::ended;
}

auto pointer_view::occupancy_of(place& where, time_point now) noexcept -> ending {
  if (where.occupancy.empty()) return ending::not_shown;
  if (now >= where.occupancy_due) {
    where.occupancy_due = now + occupancy_interval;
    std::array<char, 32> text;
    const auto read = read_small_file(where.occupancy.c_str(), text);
    const auto units = read ? parse_number<std::uint32_t>(*read) : std::nullopt;
    where.occupancy_read = units.has_value();
    where.empty_looks = units == 0U ? where.empty_looks + 1 : 0;
  }
  if (!where.occupancy_read) return ending::not_shown;
  return where.empty_looks >= empty_enough ? ending::ended : ending::runs;
}

void pointer_view::begin_anew() noexcept {
  for (queue& each : queues_) each.seen = false;
  for (place& each : places_) {
    each.packets = 0;
    each.ever_told = false;
    each.empty_looks = 0;
  }
}

void pointer_view::look(time_point now) noexcept {
  if (over_) return;
  const auto read = pointers_->read();
  over_ = !read && read.error() == errc::unknown_target;
  std::ranges::fill(found_, online_work::unknown);
  std::ranges::fill(not_shown_, 0);
  unreadable_ = 0;
  for (std::size_t index = 0; index < queues_.size(); ++index) {
    queue& one = queues_[index];
    const pointer_values& values = pointers_->values()[index];
    place& where = places_[one.place];
    if (!read || !values.known) {
      ++unreadable_;
      not_shown_[one.place] = 1;
      continue;
    }
    // Of what was there at the first look, only what still waits came for certain.
    std::uint64_t came = one.seen ? values.write - one.write : values.pending();
    if (!one.aql && came != 0) came = 1;  // Not packets, and it may begin anew at 0.
    if (came != 0) where.empty_looks = 0;
    where.packets += came;
    one.seen = true;
    one.write = values.write;
    online_work& found = found_[one.place];
    if (found == online_work::unknown) found = online_work::finished;
    if (values.pending() != 0) {
      found = online_work::waiting;
      continue;
    }
    switch (end_of(one)) {
      case ending::ended: break;
      case ending::runs:
        if (found != online_work::waiting) found = online_work::running;
        break;
      case ending::not_shown: not_shown_[one.place] = 1; break;
    }
  }
  for (std::size_t index = 0; index < places_.size(); ++index) {
    place& where = places_[index];
    unreadable_ += hidden_[index];
    where.work = found_[index];
    if (where.work == online_work::finished && (not_shown_[index] != 0 || hidden_[index] != 0)) {
      switch (occupancy_of(where, now)) {
        case ending::ended: break;
        case ending::runs: where.work = online_work::running; break;
        case ending::not_shown: where.work = online_work::consumed; break;
      }
    }
  }
}

// The thread --------------------------------------------------------------------------------------

pointer_watch::pointer_watch(std::string sysfs, inbox_producer& inbox, message_sink say)
    : sysfs_(std::move(sysfs)),
      inbox_(inbox),
      say_(std::move(say)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {}

void pointer_watch::pace(duration every) noexcept {
  // Whoever forgot what it was told begins anew, however short the pause was.
  if (every_.exchange(std::max(every, duration::zero()).count()) == 0) restate_.store(true);
  ::eventfd_write(wake_.get(), 1);
}

void pointer_watch::set(std::vector<online_process> who) {
  if (who == known_ || refused_) return;
  std::vector<change> changes;
  for (const online_process& each : who) {
    change& one = changes.emplace_back();
    one.who = each.who;
    if (std::ranges::find(known_, each) != known_.end()) continue;
    auto made = pointer_view::make(each, sysfs_);
    std::string why;
    if (made) {
      (*made)->look(clock::now());
      if (const std::size_t hidden = (*made)->unreadable(); hidden != 0) {
        why = "cannot be read for " + std::to_string(hidden) + " of " +
              std::to_string(each.queues.size()) + " queues";
      }
      one.fresh = std::move(*made);
    } else if (made.error() != errc::unknown_target) {
      why = "cannot be read: " + made.error().message();
    }
    if (why.empty() || std::ranges::find(complained_, each.who) != complained_.end()) continue;
    complained_.push_back(each.who);
    say_("queue pointers of online process " + std::to_string(each.who.pid) + " (" +
         command_of(each.who.pid) + ") " + why +
         "; sluice detects its work only if a client announces it; mount debugfs and run as root; "
         "see 'sluice doctor' pid=" +
         std::to_string(each.who.pid));
  }
  known_ = std::move(who);
  std::erase_if(complained_, [this](const process_identity& each) {
    return std::ranges::find(known_, each, &online_process::who) == known_.end();
  });
  {
    const std::scoped_lock held{mutex_};
    if (changes_) {
      // What the worker has not fetched yet is still fresh.
      for (change& old : *changes_) {
        const auto same = std::ranges::find(changes, old.who, &change::who);
        if (same != changes.end() && !same->fresh) same->fresh = std::move(old.fresh);
      }
    }
    changes_ = std::move(changes);
  }
  changed_.store(true);
  ::eventfd_write(wake_.get(), 1);
  if (worker_.joinable() || known_.empty()) return;
  if (const auto started = start_quiet_thread(worker_, [this] { run(); }); !started) {
    refused_ = true;
    say_("cannot start the thread that reads queue pointers: " + started.error().message() +
         "; sluice detects online work only if a client announces it");
  }
}

void pointer_watch::retain(const std::vector<online_process>& who) {
  auto still = known_;
  std::erase_if(still, [&](const online_process& each) {
    return std::ranges::find(who, each.who, &online_process::who) == who.end();
  });
  set(std::move(still));
}

void pointer_watch::stop() noexcept {
  if (!worker_.joinable()) return;
  stopping_.store(true);
  ::eventfd_write(wake_.get(), 1);
  worker_.join();
}

// Everything below runs on the worker's thread.

void pointer_watch::take_changes() {
  std::vector<change> changes;
  {
    const std::scoped_lock held{mutex_};
    if (!changes_) return;
    changes = std::move(*changes_);
    changes_.reset();
  }
  std::vector<std::unique_ptr<pointer_view>> views;
  for (change& each : changes) {
    if (each.fresh) {
      views.push_back(std::move(each.fresh));
      continue;
    }
    const auto goes_on = std::ranges::find_if(
        views_, [&](const auto& view) { return view && view->who() == each.who; });
    if (goes_on != views_.end()) views.push_back(std::move(*goes_on));
  }
  views_ = std::move(views);
}

void pointer_watch::run() {
  ::pthread_setname_np(::pthread_self(), "sluice-pointers");
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // The default of 50 us is jitter to us.
  duration armed{};
  std::array<pollfd, 2> waits{{{wake_.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}}};
  while (!stopping_.load()) {
    if (changed_.exchange(false)) take_changes();
    const duration wanted = views_.empty() ? duration::zero() : pace();
    if (wanted != armed) {
      if (armed == duration::zero()) {
        for (const auto& each : views_) each->begin_anew();
      }
      const auto seconds = std::chrono::floor<std::chrono::seconds>(wanted);
      itimerspec ticks{};
      ticks.it_interval = {seconds.count(), (wanted - seconds).count()};
      if (wanted != duration::zero()) ticks.it_value = {0, 1};  // The first one now.
      ::timerfd_settime(timer_.get(), 0, &ticks, nullptr);
      armed = wanted;
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    if (waits[0].revents != 0) {
      eventfd_t value = 0;
      ::eventfd_read(wake_.get(), &value);
    }
    std::uint64_t ticks = 0;
    if (waits[1].revents == 0 || ::read(timer_.get(), &ticks, sizeof ticks) != sizeof ticks)
      continue;
    look(clock::now(), restate_.exchange(false));
  }
}

void pointer_watch::look(time_point now, bool all) noexcept {
  for (const auto& view : views_) {
    view->look(now);
    for (pointer_view::place& each : view->places()) {
      const bool first = all || !each.ever_told;
      if (!first && each.work == each.told && each.packets == 0) continue;
      if (!first && now - each.told_at < least_report) continue;
      observation seen;
      seen.kind = observation_kind::pointers_seen;
      seen.pid = view->who().pid;
      seen.start_time = view->who().start_time;
      seen.gpu = each.gpu;
      seen.work = each.work;
      seen.count = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(each.packets, std::numeric_limits<std::int32_t>::max()));
      seen.at = now;
      if (!inbox_.push(seen)) return;  // A resync follows, and tells it again.
      each.told = each.work;
      each.ever_told = true;
      each.told_at = now;
      each.packets = 0;
    }
  }
}

}  // namespace sluice::kfd
