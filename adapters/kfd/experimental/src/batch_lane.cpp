#include "batch_lane.hpp"

#include "queue_status.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

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

constexpr std::uint32_t all_slots = 100;  ///< Percent.

/// Between two attempts to end a limit. A queue that it keeps from the slots stands still.
constexpr auto end_again_after = std::chrono::milliseconds{500};

uapi::kfd_ioctl_batch_unmap_queues_args naming(std::span<entry> entries, std::uint32_t flags) {
  uapi::kfd_ioctl_batch_unmap_queues_args args{};
  args.num_queues = static_cast<std::uint32_t>(entries.size());
  args.flags = flags;
  args.queue_array_ptr = reinterpret_cast<std::uintptr_t>(entries.data());
  return args;
}

}  // namespace

// --- The commands --------------------------------------------------------------------------------

result<int> batch_commands::unmap(std::span<entry> entries) const noexcept {
  auto args = naming(entries, 0);
  return node_.call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &args);
}

result<int> batch_commands::mark(std::span<entry> entries) const noexcept {
  auto args = naming(entries, uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY);
  return node_.call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &args);
}

result<int> batch_commands::unmark(std::span<entry> entries) const noexcept {
  auto args = naming(entries, uapi::KFD_BATCH_FLAG_UNMARK);
  return node_.call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &args);
}

result<int> batch_commands::reserve(gpu_id gpu, std::uint32_t offline_percent) const noexcept {
  uapi::kfd_ioctl_set_hqd_reservation_args args{};
  args.gpu_id = static_cast<std::uint32_t>(gpu);
  args.online_percent = all_slots - offline_percent;
  args.offline_percent = offline_percent;
  return node_.call(uapi::AMDKFD_IOC_SET_HQD_RESERVATION, &args);
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
  given_up_.store(true, std::memory_order_release);
}

void batch_commands::release(target_holds& whose) noexcept {
  whose.ended.store(true);
  map_all(whose);
  std::array<entry, max_batch_queues> some;
  std::size_t count = 0;
  // Refused or INVALID: it is gone, or its mark is. What is left ends with the limit.
  const auto flush = [&] {
    if (count != 0) (void)unmark({some.data(), std::exchange(count, 0)});
  };
  whose.marked.for_each([&](std::uint32_t queue) {
    whose.marked.clear(queue);
    some[count++] = {whose.pid, queue};
    if (count == some.size()) flush();
  });
  flush();
}

void batch_commands::map_all(target_holds& whose) noexcept {
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
        if ((each.queue_id & uapi::KFD_DBG_QUEUE_ERROR_MASK) == 0) continue;
        again = true;
        whose.held.set(each.queue_id & ~status_bits);
      }
    };
    whose.held.for_each([&](std::uint32_t queue) {
      // Before the call: what a batch lane holds from now on is still to be known.
      whose.held.clear(queue);
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

batch_lane::batch_lane(batch_commands& commands, gpu_id gpu, const agent::owner_bell& owner,
                       unique_fd wake)
    : commands_(commands), gpu_(gpu), owner_(owner), wake_(std::move(wake)) {
  taken_.reserve(most_waiting);
  chosen_.reserve(most_waiting);
  entries_.reserve(uapi::KFD_BATCH_MAX_QUEUES);
  taken_marks_.reserve(most_marks);
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

bool batch_lane::reserve(std::uint32_t offline_percent) {
  if (requests_.write_available() == 0) return false;
  requests_.push(request{batch{}, nullptr, offline_percent});
  unflushed_ = true;
  return true;
}

bool batch_lane::mark(driver_queue_id queue, std::shared_ptr<target_holds> whose) {
  if (!marks_.push(mark_request{queue, std::move(whose)})) return false;
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
    ::poll(&wake, 1, end_again_ == never ? -1 : int{end_again_after.count()});
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    for (request one; taken_.size() < most_waiting && requests_.pop(one);) {
      taken_.push_back(std::move(one));
    }
    // After the requests, so that a limit finds the marks that were asked for before it.
    mark_all();
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
      if (left.front().offline_percent)
        limit(*left.front().offline_percent);
      else
        perform(command_kind::resume, left.first(1));
      left = left.subspan(1);
    }
    taken_.clear();
    end_unwanted_limit();
  }
  if (limited_) (void)set_limit(all_slots);
  finished_.store(true, std::memory_order_release);
  owner_.ring();
}

void batch_lane::mark_all() {
  for (mark_request one; taken_marks_.size() < most_marks && marks_.pop(one);) {
    // Let go of meanwhile; its pid may be a stranger's by now.
    if (one.whose->ended.load()) continue;
    one.whose->marked.set(static_cast<std::uint32_t>(one.queue));
    taken_marks_.push_back(std::move(one));
  }
  if (taken_marks_.empty()) return;
  entries_.clear();
  for (const auto& each : taken_marks_) {
    entries_.push_back({each.whose->pid, static_cast<std::uint32_t>(each.queue)});
  }
  call_since_.store(clock::now().time_since_epoch().count(), std::memory_order_release);
  const auto answered = commands_.mark(entries_);
  call_since_.store(0, std::memory_order_release);
  error_code refused;
  if (!answered) refused = answered.error();
  for (std::size_t i = 0; i < taken_marks_.size(); ++i) {
    auto& [queue, whose] = taken_marks_[i];
    const auto id = static_cast<std::uint32_t>(queue);
    whose->marked.set(id);  // Again: an end in mid-call has cleared it.
    // INVALID: gone meanwhile, named twice, or marked by another program.
    if (!refused && decode_status(id, entries_[i].queue_id) == outcome::failed)
      refused = error_code{EIO, boost::system::system_category()};
    if (whose->ended.load()) commands_.release(*whose);
  }
  taken_marks_.clear();
  // A queue that is not marked has no limit, and nobody would know.
  if (refused && limited_) {
    (void)set_limit(all_slots);
    say_reserved(all_slots, refused);
  } else if (refused) {
    not_marked_ = refused;
  }
}

void batch_lane::limit(std::uint32_t offline_percent) {
  error_code refused;
  // Given up: what is told of them last ends the limit.
  if (offline_percent != all_slots && !commands_.usable())
    refused = error_code{commands_.reason(), boost::system::system_category()};
  else if (offline_percent != all_slots && not_marked_)
    refused = std::exchange(not_marked_, {});  // The next one comes with all marks again.
  else
    refused = set_limit(offline_percent);
  // Half made, perhaps.
  if (refused && limited_) (void)set_limit(all_slots);
  say_reserved(offline_percent, refused);
}

error_code batch_lane::set_limit(std::uint32_t offline_percent) {
  call_since_.store(clock::now().time_since_epoch().count(), std::memory_order_release);
  const auto answered = commands_.reserve(gpu_, offline_percent);
  call_since_.store(0, std::memory_order_release);
  limited_ = offline_percent != all_slots || (limited_ && !answered);
  end_again_ = limited_ && offline_percent == all_slots ? clock::now() + end_again_after : never;
  if (!answered) return answered.error();
  return {};
}

void batch_lane::end_unwanted_limit() {
  const bool unwanted = end_again_ != never || !commands_.usable();
  if (limited_ && unwanted && (end_again_ == never || clock::now() >= end_again_))
    (void)set_limit(all_slots);
}

void batch_lane::say_reserved(std::uint32_t offline_percent, const error_code& refused) {
  report_ = report{};
  report_.kind = report_kind::reserved;
  report_.gpu = gpu_;
  report_.offline_share = offline_percent / double{all_slots};
  report_.error = plain_error{refused};
  say();
  owner_.report();
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
      owner_.report();
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
      if (kind == command_kind::suspend) each->whose->held.set(queue);
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
        each->whose->held.set(queue);
      else
        each->whose->held.clear(queue);
    }
    // Let go of while the call went on: see target_holds.
    if (kind == command_kind::suspend && each->whose->ended.load()) commands_.release(*each->whose);
    answer(*each, refused, own, started, finished);
  }
  owner_.report();
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
  say();
}

/// As many reports as requests fit, and the owner takes a report before it submits more.
void batch_lane::say() {
  while (!reports_.push(report_) && !ending_.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace sluice::kfd
