#include "batch_lane.hpp"

#include "queue_status.hpp"
#include "quiet_thread.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

namespace sluice::kfd {

namespace {

using entry = uapi::kfd_batch_queue_entry;

constexpr std::uint32_t status_bits =
    uapi::KFD_DBG_QUEUE_INVALID_MASK | uapi::KFD_DBG_QUEUE_ERROR_MASK;

/// INVALID after a remap: we do not hold it, so that it runs, or it is gone.
outcome outcome_of(command_kind kind, std::uint32_t asked, std::uint32_t answered) noexcept {
  const outcome what = decode_status(asked, answered);
  return kind == command_kind::resume && what == outcome::invalid ? outcome::done : what;
}

/// Remaps of what the hardware failed to map are tried so often.
constexpr int most_attempts = 3;

}  // namespace

// --- The commands --------------------------------------------------------------------------------

bool batch_commands::offered() const noexcept {
  uapi::kfd_ioctl_batch_unmap_queues_args nothing{};
  return node_.call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &nothing).has_value();
}

result<int> batch_commands::unmap(std::span<entry> entries) const noexcept {
  uapi::kfd_ioctl_batch_unmap_queues_args args{};
  args.num_queues = static_cast<std::uint32_t>(entries.size());
  args.queue_array_ptr = reinterpret_cast<std::uintptr_t>(entries.data());
  return node_.call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &args);
}

result<int> batch_commands::remap(std::span<entry> entries) const noexcept {
  uapi::kfd_ioctl_fast_remap_args args{};
  args.num_queues = static_cast<std::uint32_t>(entries.size());
  args.queue_array_ptr = reinterpret_cast<std::uintptr_t>(entries.data());
  return node_.call(uapi::AMDKFD_IOC_FAST_REMAP, &args);
}

void batch_commands::give_up(const error_code& why) noexcept {
  int none = 0;
  reason_.compare_exchange_strong(none, why.value(), std::memory_order_acq_rel);
  usable_.store(false, std::memory_order_release);
  uapi::kfd_ioctl_fast_remap_args everything{};
  if (!node_.call(uapi::AMDKFD_IOC_FAST_REMAP, &everything)) {
    stranded_.store(true, std::memory_order_release);
  }
}

void batch_commands::release(target_holds& whose) noexcept {
  whose.ended.store(true);
  std::array<entry, max_batch_queues> some;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    bool again = false;
    std::size_t count = 0;
    const auto flush = [&] {
      if (count == 0) return;
      const std::span<entry> named{some.data(), std::exchange(count, 0)};
      if (const auto answered = remap(named); !answered) {
        give_up(answered.error());
        return;
      }
      // INVALID: it is gone, or was never held after all.
      for (const auto& each : named) {
        if ((each.queue_id & uapi::KFD_DBG_QUEUE_ERROR_MASK) != 0)
          again = true;
        else
          whose.clear(each.queue_id & ~status_bits);
      }
    };
    whose.for_each([&](std::uint32_t queue) {
      some[count++] = {whose.pid, queue};
      if (count == some.size()) flush();
    });
    flush();
    if (!again) return;
  }
  // The hardware will not map them. What is left is what the driver does at our end.
  stranded_.store(true, std::memory_order_release);
}

// --- The lane ------------------------------------------------------------------------------------

batch_lane::batch_lane(batch_commands& commands, gpu_id gpu, int owner_ready, unique_fd wake)
    : commands_(commands), gpu_(gpu), owner_ready_(owner_ready), wake_(std::move(wake)) {
  taken_.reserve(most_waiting);
  chosen_.reserve(most_waiting);
  entries_.reserve(uapi::KFD_BATCH_MAX_QUEUES);
}

batch_lane::~batch_lane() {
  if (!thread_.joinable()) return;
  end();
  thread_.join();
}

result<void> batch_lane::start() {
  return start_quiet_thread(thread_, [this] { run(); });
}

bool batch_lane::submit(const batch& work, std::shared_ptr<target_holds> whose) {
  // The reports of all requests must find room.
  if (requests_.write_available() == 0) return false;
  requests_.push(request{work, std::move(whose)});
  unflushed_ = true;
  return true;
}

void batch_lane::flush() noexcept {
  if (std::exchange(unflushed_, false)) ::eventfd_write(wake_.get(), 1);
}

void batch_lane::end() noexcept {
  ending_.store(true, std::memory_order_release);
  ::eventfd_write(wake_.get(), 1);
}

void batch_lane::run() {
  ::pthread_setname_np(::pthread_self(), "sluice-batch");
  while (!ending_.load(std::memory_order_acquire)) {
    pollfd wake{wake_.get(), POLLIN, 0};
    ::poll(&wake, 1, -1);
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    for (request one; taken_.size() < most_waiting && requests_.pop(one);) {
      taken_.push_back(std::move(one));
    }
    // A remap of the owner's own (number 0) mends what stands before it, not what comes after.
    for (std::span<request> left{taken_}; !left.empty();) {
      const auto own = std::find_if(left.begin(), left.end(),
                                    [](const request& each) { return each.work.id == 0; });
      const auto before = left.first(static_cast<std::size_t>(own - left.begin()));
      // Somebody waits for the suspends.
      perform(command_kind::suspend, before);
      perform(command_kind::resume, before);
      left = left.subspan(before.size());
      if (left.empty()) break;
      perform(command_kind::resume, left.first(1));
      left = left.subspan(1);
    }
    taken_.clear();
  }
  finished_.store(true, std::memory_order_release);
  ::eventfd_write(owner_ready_, 1);
}

void batch_lane::perform(command_kind kind, std::span<request> among) {
  chosen_.clear();
  std::size_t queues = 0;
  const auto send = [&] {
    if (!chosen_.empty()) call(kind, chosen_);
    chosen_.clear();
    queues = 0;
  };
  for (request& each : among) {
    if (each.work.kind != kind) continue;
    if (kind == command_kind::suspend && each.whose->ended.load()) {
      // Let go of meanwhile; its pid may be a stranger's by now.
      const time_point now = clock::now();
      answer(each, error_code{ESRCH, boost::system::system_category()}, {}, now, now);
      ::eventfd_write(owner_ready_, 1);
      continue;
    }
    if (queues + each.work.count > uapi::KFD_BATCH_MAX_QUEUES) send();
    chosen_.push_back(&each);
    queues += each.work.count;
  }
  send();
}

void batch_lane::call(command_kind kind, std::span<request*> which) {
  entries_.clear();
  for (const request* each : which) {
    for (std::size_t i = 0; i < each->work.count; ++i) {
      const auto queue = static_cast<std::uint32_t>(each->work.queues[i]);
      entries_.push_back({each->whose->pid, queue});
      if (kind == command_kind::suspend) each->whose->set(queue);
    }
  }
  error_code refused;
  const time_point started = clock::now();
  call_since_.store(started.time_since_epoch().count(), std::memory_order_release);
  if (!commands_.usable()) {
    refused = error_code{commands_.reason(), boost::system::system_category()};
  } else {
    const auto answered =
        kind == command_kind::suspend ? commands_.unmap(entries_) : commands_.remap(entries_);
    if (!answered) {
      refused = answered.error();
      commands_.give_up(refused);
    } else if (kind == command_kind::suspend && !commands_.usable()) {
      // Another GPU's lane gave the commands up meanwhile: nobody else would map these.
      refused = error_code{commands_.reason(), boost::system::system_category()};
      commands_.give_up(refused);
    }
  }
  call_since_.store(0, std::memory_order_release);
  const time_point finished = clock::now();

  std::span<const entry> rest{entries_};
  for (request* each : which) {
    const auto own = rest.first(each->work.count);
    rest = rest.subspan(each->work.count);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto queue = static_cast<std::uint32_t>(each->work.queues[i]);
      const outcome what = outcome_of(kind, queue, own[i].queue_id);
      const bool held =
          kind == command_kind::suspend ? what != outcome::invalid : what == outcome::failed;
      // Set again: an end in mid-call found nothing to map, and has cleared it.
      if (held && !refused)
        each->whose->set(queue);
      else
        each->whose->clear(queue);
    }
    // Let go of while the call went on: see target_holds.
    if (kind == command_kind::suspend && each->whose->ended.load()) commands_.release(*each->whose);
    answer(*each, refused, own, started, finished);
  }
  ::eventfd_write(owner_ready_, 1);
}

void batch_lane::answer(const request& asked, const error_code& refused,
                        std::span<const entry> entries, time_point started, time_point finished) {
  const batch& work = asked.work;
  report_ = report{};
  report_.kind = report_kind::completed;
  report_.target = work.target;
  report_.gpu = work.gpu;
  batch_result& out = report_.result;
  out.id = work.id;
  out.target = work.target;
  out.gpu = work.gpu;
  out.kind = work.kind;
  out.count = work.count;
  out.driver_errno = refused.value();
  out.started = started;
  out.finished = finished;
  for (std::size_t i = 0; i < work.count; ++i) {
    out.queues[i] = work.queues[i];
    // Refused as a whole: everything has been mapped again, so that a suspend did nothing.
    out.outcomes[i] =
        refused ? (work.kind == command_kind::suspend ? outcome::invalid : outcome::failed)
                : outcome_of(work.kind, static_cast<std::uint32_t>(work.queues[i]),
                             entries[i].queue_id);
  }
  // As many reports as requests fit, and the owner takes a report before it submits more.
  while (!reports_.push(report_) && !ending_.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace sluice::kfd
