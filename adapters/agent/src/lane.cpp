#include "sluice/agent/lane.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::agent {

namespace {

/// How often a lane looks whether its reports are being taken again.
constexpr duration report_retry = std::chrono::milliseconds{1};

}  // namespace

result<void> lane::start() {
  return start_quiet_thread(thread_, [this] {
    ::pthread_setname_np(::pthread_self(), "sluice-lane");
    run();
    finished_.store(true, std::memory_order_release);
    owner_.ring();
  });
}

void lane::end() noexcept {
  if (!thread_.joinable()) return;
  abandon();
  thread_.join();
}

bool lane::submit(const batch& work) noexcept {
  if (in_flight()) return false;
  slot_.assign(work);
  in_flight_.store(true, std::memory_order_release);
  return true;
}

void lane::leave() noexcept {
  leaving_.store(true, std::memory_order_release);
  ring();
}

void lane::abandon() noexcept {
  abandoned_.store(true, std::memory_order_release);
  leave();
}

lane::progress lane::seen() const noexcept {
  const duration since{call_since_.load(std::memory_order_acquire)};
  return {time_point{since}, gpu_id{call_gpu_.load(std::memory_order_relaxed)}};
}

lane::call_scope::call_scope(lane& owner, gpu_id gpu) noexcept : owner_(owner) {
  owner_.call_gpu_.store(static_cast<std::uint32_t>(gpu), std::memory_order_relaxed);
  owner_.call_since_.store(clock::now().time_since_epoch().count(), std::memory_order_release);
}

void lane::say(const report& what) {
  while (!reports_.push(what)) {
    if (abandoned()) return;
    while_full();
    std::this_thread::sleep_for(report_retry);
  }
  owner_.report();
}

void lane::say_attached(const error_code& error, std::string_view why) {
  report what;
  what.kind = report_kind::attached;
  what.target = target_;
  what.error = plain_error{error};
  what.set_why(why);
  say(what);
}

void lane::say_detached() {
  report what;
  what.kind = report_kind::detached;
  what.target = target_;
  say(what);
}

void lane::say_queue(const queue_info& added) {
  report what;
  what.kind = report_kind::queue_added;
  what.target = target_;
  what.gpu = added.gpu;
  what.queue = added;
  what.queue.target = target_;
  say(what);
}

void lane::say_removed(driver_queue_id queue) {
  report what;
  what.kind = report_kind::queue_removed;
  what.target = target_;
  what.queue.target = target_;
  what.queue.id = queue;
  say(what);
}

void lane::answer(report& what) {
  const std::uint16_t count = std::min<std::uint16_t>(slot_.count, max_batch_queues);
  batch_result& result = what.result;
  what.kind = report_kind::completed;
  what.error = {};
  what.target = target_;
  what.gpu = slot_.gpu;
  result.id = slot_.id;
  result.target = slot_.target;
  result.gpu = slot_.gpu;
  result.kind = slot_.kind;
  result.count = count;
  std::copy_n(slot_.queues.begin(), count, result.queues.begin());
  // Before the report, so that its reader may submit the next one at once.
  in_flight_.store(false, std::memory_order_release);
  say(what);
}

std::vector<stuck_gpus::call> stuck_gpus::look(const std::vector<call>& calls, time_point now) {
  std::erase_if(lost_, [&](gpu_id gpu) {
    return std::ranges::none_of(
        calls, [&](const call& each) { return each.gpu == gpu && is_stuck(each, now); });
  });
  std::vector<call> fresh;
  for (const call& each : calls) {
    if (!is_stuck(each, now) || std::ranges::find(lost_, each.gpu) != lost_.end()) continue;
    lost_.push_back(each.gpu);
    fresh.push_back(each);
  }
  return fresh;
}

std::string words_of(const stuck_gpus::call& lost, time_point now) {
  const auto id = std::to_string(static_cast<std::uint32_t>(lost.gpu));
  return "GPU " + id + ": driver call timed out after " +
         std::to_string(std::chrono::ceil<std::chrono::milliseconds>(now - lost.since).count()) +
         " ms; sluice suspends no more queues on this GPU; see dmesg for a reset gpu=" + id;
}

}  // namespace sluice::agent
