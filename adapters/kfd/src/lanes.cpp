#include "sluice/kfd/lanes.hpp"

#include "authority.hpp"
#include "batch_lane.hpp"
#include "lane.hpp"
#include "stop_bell.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sluice::kfd {

namespace {

/// The driver's MAX_GPU_INSTANCE: more GPUs than that no process can use.
constexpr std::size_t most_gpus = 64;

/// For lanes that were woken to begin their driver calls. A fraction of what a preemption takes.
constexpr duration pass_limit = std::chrono::microseconds{200};

/// The host reads the queues' pointers itself. The kernel resumes what a process that ended had
/// suspended. The tracer is the debug session's, which there is either way.
constexpr capabilities by_debug_trap{
    "debug trap",
    {capability::preempt_kernels, capability::holds_end_with_maker, capability::needs_tracer}};
constexpr capabilities by_batch_commands{
    "batch commands",
    {capability::batch_targets, capability::reserve_slots, capability::preempt_kernels,
     capability::holds_end_with_maker, capability::needs_tracer}};

/// Rounded to whole percent, but never to none or all.
std::uint32_t percent_of(double share) noexcept {
  if (!(share < 1)) return 100;  // Not a number, too.
  if (share <= 0) return 0;
  return static_cast<std::uint32_t>(std::clamp(std::lround(share * 100), 1L, 99L));
}

class node_lanes final : public lanes {
 public:
  node_lanes(const device& node, lanes_options options, unique_fd ready)
      : node_(node),
        options_(std::move(options)),
        gpus_(options_.sysfs.empty() ? std::vector<gpu_node>{}
                                     : find_gpu_nodes(options_.sysfs, node.path())),
        ready_(std::move(ready)),
        commands_(node) {
    if (options_.batch_commands && node_.has_batch_commands()) {
      batching_ = true;
      commands_.use();
    }
    by_process_ = authorises_process(node_);
    say_mechanism(false);
  }

  int ready_fd() const noexcept override { return ready_.get(); }

  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    lanes_.join_finished();
    if (find(target) != nullptr || is_late(target)) return errc::busy;
    if (pid == ::getpid()) return errc::not_managed;
    unique_fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake) return last_system_error();
    auto created = std::make_unique<lane>(node_, options_, commands_, bell_, gpus_, by_process_,
                                          std::move(wake), target, pid, start_time);
    const auto added = lanes_.add(std::move(created));
    handed_.reserve(lanes_.active().size());
    return added;
  }

  result<void> detach(process_id target) override {
    lane* const found = find(target);
    if (found == nullptr && !is_late(target)) return errc::unknown_target;
    if (found != nullptr) found->leave();
    return {};
  }

  result<void> submit(const batch& work) override {
    lane* const found = find(work.target);
    if (found == nullptr) return errc::unknown_target;
    if (is_batched(work.target)) return errc::busy;
    // Given up, and everything is being mapped: fall_back() comes first.
    if (batching_ && !commands_.usable()) return errc::busy;
    if (!batching_ || found->pauses()) {
      if (!found->submit(work)) return errc::busy;
      handed_.push_back({place_of(work.gpu), work.target});
      return {};
    }
    if (!found->admitted() || found->in_flight()) return errc::busy;
    auto on = batch_lane_of(work.gpu);
    if (!on) return on.error();
    if (!(*on)->submit(work, found->holds())) return errc::full;
    batched_.push_back(work);
    return {};
  }

  result<void> reserve(gpu_id gpu, double offline_share) override {
    if (!batching_) return errc::not_supported;
    if (!commands_.usable()) return errc::busy;
    auto on = batch_lane_of(gpu);
    if (!on) return on.error();
    const std::uint32_t percent = percent_of(offline_share);
    if (percent != 100) begin_limit(gpu);
    if (!(*on)->reserve(percent)) return errc::full;
    if (percent == 100) std::erase(limited_, gpu);
    (*on)->flush();
    return {};
  }

  /// A call of the debug trap goes through all GPUs of its target in the driver's order, and waits
  /// at each while another target's queues are being preempted there. So whoever has most to pass
  /// goes first, and finds them free; who comes later waits behind its own GPU.
  void flush() noexcept override {
    std::ranges::sort(handed_, std::greater{}, &handed::place);
    for (auto from = handed_.begin(); from != handed_.end();) {
      const auto to = std::find_if(from, handed_.end(),
                                   [&](const handed& each) { return each.place != from->place; });
      const std::span<const handed> together{from, to};
      for (const handed& each : together)
        if (lane* const found = find(each.target)) found->ring();
      if (to != handed_.end()) let_pass(together);
      from = to;
    }
    handed_.clear();
    for (const auto& each : batch_lanes_) each->flush();
  }

  bool next(report& out) override {
    if (take(out)) return true;
    eventfd_t count = 0;
    ::eventfd_read(ready_.get(), &count);
    return take(out);
  }

  void children_changed() noexcept override { lanes_.children_changed(); }

  time_point check(time_point now) override {
    lanes_.join_finished();
    calls_.clear();
    for (const auto& each : lanes_.active()) {
      const auto [since, gpu] = each->seen();
      calls_.push_back({gpu, since});
    }
    for (const auto& each : batch_lanes_) calls_.push_back({each->gpu(), each->call_since()});
    for (const auto& each : stuck_.look(calls_, now)) {
      report lost;
      lost.kind = report_kind::gpu_lost;
      lost.gpu = each.gpu;
      pending_.push_back(lost);
      bell_.ring();
      options_.say(words_of(each, now));
    }
    return now + std::chrono::milliseconds{250};
  }

  bool takes_reservations() const noexcept override { return batching_; }

  bool stranded() const noexcept override { return commands_.stranded() || lanes_.stranded(); }

  std::size_t size() const noexcept override { return lanes_.size(); }

  bool stop(duration at_most) override {
    lanes_.abandon_all();
    for (const auto& each : batch_lanes_) each->end();
    const time_point give_up = clock::now() + at_most;
    for (;;) {
      lanes_.join_finished();
      std::erase_if(batch_lanes_, [](const auto& each) { return each->finished(); });
      if (lanes_.size() == 0 && batch_lanes_.empty()) break;
      const duration left = give_up - clock::now();
      if (left <= duration{}) return false;
      pollfd ready{ready_.get(), POLLIN, 0};
      ::poll(&ready, 1,
             static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      eventfd_t count = 0;
      ::eventfd_read(ready_.get(), &count);
    }
    pending_.clear();
    return true;
  }

 private:
  struct handed {
    std::size_t place = 0;  ///< Of its GPU.
    process_id target{};
  };

  void say_mechanism(bool fell_back) {
    report what;
    what.kind = report_kind::acts_by;
    what.acting = batching_ ? by_batch_commands : by_debug_trap;
    what.fell_back = fell_back ? 1 : 0;
    pending_.push_back(what);
    bell_.ring();
  }

  /// The batch commands have been given up, and all that they held runs.
  void fall_back() {
    batching_ = false;
    options_.say(
        "the driver refused a batch command: " +
        boost::system::system_category().message(commands_.reason()) +
        (commands_.stranded()
             ? "; queues suspended by batch commands stay suspended until this program exits "
               "(sluice-agent exits by itself; restart any other program)"
             : "; sluice has resumed all queues, and now suspends queues by debug trap"));
    say_mechanism(true);
    // Before anything else is done for it: the lane says its queues again, as running. But what a
    // batch lane has still to say of a target comes before that.
    for (const auto& each : lanes_.active()) {
      if (is_batched(each->target()))
        announce_later_.push_back(each->target());
      else
        each->announce_again();
    }
    remaps_.clear();
    replaced_.clear();
    queues_.clear();
    to_mark_.clear();
    for (const gpu_id gpu : std::exchange(limited_, {})) {
      // A lane that has no room is full of what will be refused; its end ends the limit.
      if (const auto on = batch_lane_of(gpu); on && (*on)->reserve(100)) (*on)->flush();
    }
  }

  bool is_limited(gpu_id gpu) const noexcept {
    return std::ranges::find(limited_, gpu) != limited_.end();
  }

  void begin_limit(gpu_id gpu) {
    if (is_limited(gpu)) return;
    limited_.push_back(gpu);
    for (const auto& each : queues_) {
      if (each.gpu == gpu) to_mark_.push_back(each);
    }
    send_marks();
  }

  void forget_queue(process_id target, driver_queue_id id) {
    for (auto* const list : {&queues_, &to_mark_}) {
      std::erase_if(
          *list, [&](const target_queue& each) { return each.target == target && each.id == id; });
    }
  }

  void forget_queues(process_id target) {
    for (auto* const list : {&queues_, &to_mark_}) {
      std::erase_if(*list, [&](const target_queue& each) { return each.target == target; });
    }
  }

  /// Keeps the books for limits: which compute queues there are, and which are still to be marked.
  void note_queue(const lane& of, const report& what) {
    if (!batching_) return;
    const queue_info& queue = what.queue;
    forget_queue(what.target, queue.id);
    if (what.kind == report_kind::queue_removed || queue.type != queue_kind::compute) return;
    queues_.push_back({what.target, queue.id, queue.gpu, of.holds()});
    if (is_limited(queue.gpu)) to_mark_.push_back(queues_.back());
  }

  void send_marks() {
    while (!to_mark_.empty()) {
      const target_queue& one = to_mark_.back();
      const auto on = batch_lane_of(one.gpu);
      if (!on || !(*on)->mark(one.id, one.whose)) break;  // Later.
      to_mark_.pop_back();
    }
    flush();
  }

  /// A queue under an id that a batch may hold: the id is used again, and the hold, if there is
  /// one, is on the new queue, which the reports say runs. So it is made to.
  void queue_appeared(const lane& of, const report& what) {
    // One with a fault is the same as before, of which there is something new to say.
    if (!batching_ || what.queue.fault != 0) return;
    const auto id = static_cast<std::uint32_t>(what.queue.id);
    const bool in_call = std::ranges::any_of(batched_, [&](const batch& one) {
      const auto end = one.queues.begin() + one.count;
      return one.target == what.target && std::find(one.queues.begin(), end, what.queue.id) != end;
    });
    if (!in_call && !of.holds()->held.test(id)) return;
    if (in_call) replaced_.push_back({what.target, what.queue.id});
    batch work;
    work.target = what.target;
    work.gpu = what.queue.gpu;
    work.kind = command_kind::resume;
    work.count = 1;
    work.queues[0] = what.queue.id;
    remaps_.push_back({work, of.holds()});
    send_remaps();
  }

  /// Ours, with the number 0, so that nobody hears of their answers.
  void send_remaps() {
    while (!remaps_.empty()) {
      auto& [work, whose] = remaps_.front();
      const auto on = batch_lane_of(work.gpu);
      if (!on || !(*on)->submit(work, whose)) return;  // Later.
      (*on)->flush();
      remaps_.pop_front();
    }
  }

  bool is_late(process_id target) const noexcept {
    return std::ranges::find(detached_, target, &report::target) != detached_.end();
  }

  bool is_batched(process_id target) const noexcept {
    return std::ranges::find(batched_, target, &batch::target) != batched_.end();
  }

  result<batch_lane*> batch_lane_of(gpu_id gpu) {
    const auto known = std::ranges::find(batch_lanes_, gpu, &batch_lane::gpu);
    if (known != batch_lanes_.end()) return known->get();
    if (batch_lanes_.size() >= most_gpus) return errc::full;
    unique_fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake) return last_system_error();
    auto created = std::make_unique<batch_lane>(commands_, gpu, bell_, std::move(wake));
    if (const auto started = created->start(); !started) return started.error();
    batch_lanes_.push_back(std::move(created));
    return batch_lanes_.back().get();
  }

  /// A batch lane has answered. \return whether it had something.
  bool take_batched(report& out) {
    for (const auto& each : batch_lanes_) {
      bool some = each->pop(out);
      while (some && out.kind == report_kind::completed && out.result.id == 0)
        some = each->pop(out);
      if (!some) continue;
      if (out.kind == report_kind::reserved) {
        if (out.error.where != plain_error::domain::none)
          std::erase(limited_, out.gpu);
        else if (out.offline_share < 1 && batching_)
          begin_limit(out.gpu);  // One that was ended, unasked, just before it was made.
        return true;
      }
      std::erase_if(batched_, [&](const batch& one) { return one.target == out.target; });
      // What it says of a number that was used again is about a queue that runs.
      std::erase_if(replaced_, [&](const auto& one) {
        if (one.first != out.target) return false;
        const auto end = out.result.queues.begin() + out.result.count;
        const auto at = std::find(out.result.queues.begin(), end, one.second);
        if (at != end && out.result.kind == command_kind::suspend)
          out.result.outcomes[static_cast<std::size_t>(at - out.result.queues.begin())] =
              outcome::invalid;
        return true;
      });
      if (std::erase(announce_later_, out.target) != 0) {
        if (lane* const told = find(out.target)) told->announce_again();
      }
      // Its lane said its last while this was under way.
      const auto late = std::ranges::find(detached_, out.target, &report::target);
      if (late != detached_.end()) {
        pending_.push_back(*late);
        detached_.erase(late);
      }
      return true;
    }
    return false;
  }

  lane* find(process_id target) const noexcept { return lanes_.find(target); }

  bool take(report& out) {
    if (batching_ && commands_.given_up()) fall_back();
    if (!remaps_.empty()) send_remaps();
    if (!to_mark_.empty()) send_marks();
    if (!pending_.empty()) {
      out = pending_.front();
      pending_.pop_front();
      return true;
    }
    if (take_batched(out)) return true;
    while (lane* const from = lanes_.next(out)) {
      if (out.kind == report_kind::queue_added) queue_appeared(*from, out);
      if (out.kind == report_kind::queue_added || out.kind == report_kind::queue_removed)
        note_queue(*from, out);
      if (!lanes_.is_last(out)) return true;
      forget_queues(out.target);
      const bool wait = is_batched(out.target);
      if (wait) detached_.push_back(out);
      if (const auto answer = lanes_.retire(*from)) {
        pending_.push_back(out);
        out = *answer;
      }
      if (!wait) return true;
    }
    return false;
  }

  /// Returns once all of them are in the driver: threads do not begin in the order in which they
  /// are woken. Who is kept from it by something else is not waited for.
  void let_pass(std::span<const handed> some) const noexcept {
    const time_point give_up = clock::now() + pass_limit;
    const auto passed = [this](const handed& each) {
      const lane* const found = find(each.target);
      return found == nullptr || !found->in_flight() || found->seen().call_since != time_point{};
    };
    while (!std::ranges::all_of(some, passed) && clock::now() < give_up) ::sched_yield();
  }

  /// In the driver's order.
  std::size_t place_of(gpu_id gpu) const noexcept {
    return static_cast<std::size_t>(std::ranges::find(gpus_, gpu, &gpu_node::gpu) - gpus_.begin());
  }

  const device& node_;
  const lanes_options options_;
  const std::vector<gpu_node> gpus_;
  const unique_fd ready_;
  const agent::owner_bell bell_{ready_.get(), options_.take_reports};
  batch_commands commands_;  // Before the lanes, whose threads use it to their end.
  agent::lane_list<lane> lanes_;
  std::deque<report> pending_;
  agent::stuck_gpus stuck_{options_.stuck_after};
  std::vector<agent::stuck_gpus::call> calls_;  ///< Scratch.
  std::vector<handed> handed_;                  ///< Batches that lanes have and do not know of.

  struct target_queue {
    process_id target{};
    driver_queue_id id{};
    gpu_id gpu{};
    std::shared_ptr<target_holds> whose;
  };

  bool batching_ = false;
  bool by_process_ = false;
  std::vector<std::unique_ptr<batch_lane>> batch_lanes_;
  std::vector<batch> batched_;    ///< At batch lanes; one of a target at most.
  std::vector<report> detached_;  ///< Said by lanes of such targets.
  std::vector<process_id> announce_later_;
  std::vector<std::pair<process_id, driver_queue_id>> replaced_;  ///< While a batch names the id.
  std::deque<std::pair<batch, std::shared_ptr<target_holds>>> remaps_;
  std::vector<target_queue> queues_;   ///< Compute queues of all targets.
  std::vector<target_queue> to_mark_;  ///< Of those, on GPUs with a limit.
  std::vector<gpu_id> limited_;
};

}  // namespace

result<std::unique_ptr<lanes>> lanes::create(const device& node, lanes_options options) {
  unique_fd ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!ready) return last_system_error();
  return std::unique_ptr<lanes>{
      std::make_unique<node_lanes>(node, std::move(options), std::move(ready))};
}

bool lanes::hear_stops() noexcept { return stop_bell::offered(); }

}  // namespace sluice::kfd
