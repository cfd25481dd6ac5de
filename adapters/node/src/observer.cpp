#include "observer.hpp"

#include <cstddef>
#include <span>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// While entries come, they are fetched this often, and the scheduler makes no system call.
constexpr duration linger = 5ms;
constexpr std::size_t entries_at_once = 256;
constexpr int most_lots = 64;  // then others have their turn

}  // namespace

result<std::unique_ptr<observer>> observer::create() {
  auto from = journal::create();
  if (!from) return from.error();
  auto loop = reactor::create();
  if (!loop) return loop.error();
  return std::unique_ptr<observer>{new observer{std::move(*from), std::move(*loop)}};
}

result<void> observer::start() {
  lot_.resize(entries_at_once);
  result<void> prepared;
  loop_->exclusive([&] { prepared = prepare(); });
  if (!prepared) return prepared;
  return start_quiet_thread(thread_, [this] {
    ::pthread_setname_np(::pthread_self(), "sluice-observer");
    loop_->run();
  });
}

void observer::stop() {
  if (!thread_.joinable()) return;
  loop_->stop();
  thread_.join();
  loop_->exclusive([this] {
    drain();
    tell_owns(false);
  });
}

void observer::owns(bool does) {
  loop_->post([this, does] {
    drain();  // what was written before it is heard before it
    tell_owns(does);
  });
}

result<void> observer::prepare() {
  const auto late = loop_->add_timer([this] {
    drain();
    look_again();
  });
  if (!late) return late.error();
  linger_ = *late;
  const auto ticker = loop_->add_timer([this] { tick(); });
  if (!ticker) return ticker.error();
  ticker_ = *ticker;
  const auto watched = loop_->watch(journal_->ready_fd(), [this] {
    drain();
    look_again();
  });
  if (!watched) return watched.error();
  // Nobody rings for what was written before the first sleep().
  loop_->arm(linger_, clock::now());
  loop_->arm(ticker_, clock::now() + tick_every);
  return {};
}

void observer::drain() {
  bool any = false;
  for (int lots = 0; lots < most_lots; ++lots) {
    const std::size_t count = journal_->take(lot_);
    if (count == 0) break;
    any = true;
    hand_on(std::span{lot_}.first(count));
  }
  if (any) {
    for (const auto& each : readers_) each->tick(clock::now());
    loop_->arm(linger_, clock::now() + linger);
  } else if (!journal_->sleep()) {
    loop_->arm(linger_, clock::now());
  }
}

void observer::hand_on(std::span<const journal_entry> entries) {
  if (const std::uint64_t lost = journal_->lost(); lost != lost_) {
    for (const auto& each : readers_) each->missed(lost - lost_);
    lost_ = lost;
    look_owed_ = true;
  }
  for (const journal_entry& entry : entries) {
    const bool another = entry.turn < last_turn_;
    last_turn_ = entry.turn;
    if (another && seen_) {
      seen_.reset();
      look_owed_ = true;
    }
    if (seen_ && entry.turn > seen_->turns) mend();
    for (const auto& each : readers_) {
      if (another) each->begin_anew();
      each->hear(entry);
    }
  }
}

void observer::look_again() {
  if (!look_owed_ || !owns_ || shown_ == nullptr || clock::now() < next_look_) return;
  look_owed_ = false;
  auto looked = shown_->look();
  next_look_ = clock::now() + mend_every;
  // One of fewer turns is of a scheduler of which nothing was heard yet.
  look_owed_ = !looked || looked->turns < last_turn_;
  if (look_owed_) return;
  seen_ = std::move(*looked);
  drain();
  if (seen_) mend();
}

void observer::mend() {
  for (const auto& each : readers_) each->mend(*seen_);
  seen_.reset();
}

void observer::tick() {
  const time_point now = clock::now();
  for (const auto& each : readers_) each->tick(now);
  look_again();
  loop_->arm(ticker_, now + tick_every);
}

void observer::tell_owns(bool does) {
  if (std::exchange(owns_, does) == does) return;
  for (const auto& each : readers_) each->owns(does);
}

}  // namespace sluice
