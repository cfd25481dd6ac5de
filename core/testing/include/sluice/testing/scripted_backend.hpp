#pragma once
/// \file
/// A backend that does what the test says, when the test says it, and remembers what it was asked.

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/time.hpp"

namespace sluice::testing {

/// What the drivers of tests can do: one call for each target, or for all targets on a GPU.
inline constexpr capabilities single_calls{"single calls", {capability::holds_end_with_maker}};
inline constexpr capabilities batched_calls{
    "batched calls",
    {capability::batch_targets, capability::reserve_slots, capability::holds_end_with_maker}};

/// By default it is a perfect driver: every attach succeeds and reports the queues the test gave
/// the process, every batch is done by the next drain(). Scripts change that, one call at a time.
///
/// It also keeps the truth: which queues are suspended. A batch for a process that is not attached,
/// a second one while one is in flight, or an empty one counts in misuses().
///
/// Threading: one thread. Lifetime: outlives the scheduler_core under test.
class scripted_backend : public backend {
 public:
  struct attach_call {
    process_id target{};
    pid_t pid = 0;
    std::uint64_t start_time = 0;
  };

  explicit scripted_backend(const time_source& time) : time_(time) {}

  // The script --------------------------------------------------------------------------------

  /// A queue that attaching to `pid` will report, or that is reported now when it is attached.
  void add_queue(pid_t pid, driver_queue_id id, gpu_id gpu, queue_kind type = queue_kind::compute,
                 std::uint64_t incarnation = 0);
  void remove_queue(pid_t pid, driver_queue_id id);
  /// Reports a queue again that is there already.
  void repeat_queue(pid_t pid, driver_queue_id id);
  /// Batches are held back until complete(), instead of being answered by the next drain().
  void hold_answers(bool on) noexcept;
  /// Time between a submit and its answer, and so the driver time of a call.
  void set_delay(duration delay) noexcept { delay_ = delay; }
  /// The outcome of a queue in the next `times` batches that name it.
  void script_outcome(pid_t pid, driver_queue_id id, outcome what, int times = 1);
  /// What the next answer has as batch_result::driver_errno.
  void script_errno(int driver_errno) noexcept { driver_errno_ = driver_errno; }
  /// The answer to the next attach of this process.
  void script_attach(pid_t pid, error_code error) { attach_errors_[pid].push_back(error); }
  /// Attaches are held back until finish_attaches().
  void hold_attaches(bool on) noexcept { hold_attaches_ = on; }
  void finish_attaches();
  /// The next submit is refused with this.
  void refuse_submit(error_code error) { submit_errors_.push_back(error); }
  /// The next detach is refused with this, and the session stays as it is.
  void refuse_detach(error_code error) { detach_errors_.push_back(error); }
  /// Answers the oldest batch that is held back; false when there is none.
  bool complete();
  /// The target's session ends by itself.
  void end_session(pid_t pid);
  void lose_gpu(gpu_id gpu);
  /// Reports how it acts from now on. reserve() works only with capability::reserve_slots.
  void act_by(const capabilities& what, bool fell_back = false);
  /// The answer to the next reserve() for this GPU.
  void script_reservation(gpu_id gpu, error_code error) { reserve_errors_[gpu].push_back(error); }
  /// The next reserve() is not accepted.
  void refuse_reservation(error_code error) { reserve_refusals_.push_back(error); }
  /// The driver ends a reservation by itself.
  void end_reservation(gpu_id gpu, error_code why);
  /// From now on set_quantum() is accepted for queues on this GPU. Before, it is not supported.
  void offer_quanta(gpu_id gpu);
  /// The answer to the next set_quantum() that is accepted.
  void script_quantum(error_code error) { quantum_errors_.push_back(error); }
  /// The next set_quantum() is not accepted.
  void refuse_quantum(error_code error) { quantum_refusals_.push_back(error); }
  /// The driver ends a quantum by itself.
  void end_quantum(pid_t pid, gpu_id gpu, error_code why);
  /// The acting side reports this.
  void see(const observation& what);
  /// Ends the process that acts: all queues run, batches in flight get no answer, and the loss is
  /// reported.
  void lose();
  void restore();
  /// What start() will return.
  void fail_start(error_code error) { start_error_ = error; }
  /// ready_fd() becomes a descriptor, and tick() asks for no further call: the scheduler sleeps
  /// until drain() has something. Not for use with set_delay(). Call it before start().
  void wake_by_descriptor();
  /// Called with each batch that submit() accepts.
  void on_submit(std::function<void(const batch&)> what) { on_submit_ = std::move(what); }
  /// Called with each observation that the scheduler has taken in, and the number of its source.
  void on_observed(std::function<void(unsigned, const observation&)> what) {
    on_observed_ = std::move(what);
  }
  /// Called at the end of stop(), for tests of a backend that ends with its scheduler.
  void on_stop(std::function<void()> what) { on_stop_ = std::move(what); }

  // The record --------------------------------------------------------------------------------

  const std::vector<batch>& batches() const noexcept { return batches_; }
  const std::vector<attach_call>& attaches() const noexcept { return attaches_; }
  const std::vector<process_id>& detaches() const noexcept { return detaches_; }
  void forget_batches() noexcept { batches_.clear(); }
  /// Batches are counted but not kept: nothing in submit() allocates then.
  void keep_batches(bool on) noexcept { keep_batches_ = on; }
  std::uint64_t submitted() const noexcept { return submitted_; }
  bool attached(pid_t pid) const;
  bool suspended(pid_t pid, driver_queue_id id) const;
  std::size_t suspended_count() const;
  std::size_t in_flight() const noexcept { return in_flight_.size(); }
  std::size_t misuses() const noexcept { return misuses_; }
  /// Every call of reserve() that was accepted.
  const std::vector<std::pair<gpu_id, double>>& reservations() const noexcept {
    return reservations_;
  }
  struct quantum_call {
    pid_t pid = 0;
    gpu_id gpu{};
    duration length{};
    bool operator==(const quantum_call&) const = default;
  };
  /// Every call of set_quantum() that was accepted.
  const std::vector<quantum_call>& quanta() const noexcept { return quanta_; }
  /// As poll_work() said last.
  duration work_interval() const noexcept { return work_interval_; }
  /// As marks_requests() said last.
  bool marks_requests_of(pid_t pid) const { return marking_.contains(pid); }
  /// What the driver keeps to: zero is its default.
  duration quantum(pid_t pid, gpu_id gpu) const;
  /// Calls of set_quantum(), whatever came of them.
  std::size_t quanta_asked() const noexcept { return quanta_asked_; }
  bool stopped() const noexcept { return stopped_; }
  /// Calls of expect().
  std::uint64_t expectations() const noexcept { return expectations_; }
  /// When the next held-back answer is due, for tests that advance a clock; never when none is.
  time_point next_answer() const noexcept;

  // backend -----------------------------------------------------------------------------------

  std::string_view name() const noexcept override { return "scripted"; }
  result<void> start(backend_listener& listener) override;
  int ready_fd() const noexcept override { return ready_.get(); }
  void drain() override;
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override;
  result<void> detach(process_id target) override;
  void expect() override { ++expectations_; }
  result<void> submit(const batch& work) override;
  result<void> reserve(gpu_id gpu, double offline_share) override;
  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override;
  void observed(unsigned source, const observation& seen) override;
  void poll_work(duration every) override { work_interval_ = every; }
  void marks_requests(pid_t pid, bool so) override {
    so ? void(marking_.insert(pid)) : void(marking_.erase(pid));
  }
  time_point tick(time_point now) override;
  void stop() override;

 private:
  struct fake_queue {
    queue_info info;
    bool suspended = false;
  };
  struct fake_process {
    process_id target{};
    bool attached = false;
    std::map<driver_queue_id, fake_queue> queues;
    std::map<gpu_id, duration> quanta;
    std::map<driver_queue_id, std::deque<outcome>> script;
  };
  struct flight {
    flight(const batch& what, time_point from, time_point until) : submitted(from), due(until) {
      work.assign(what);
    }
    batch work;
    time_point submitted;
    time_point due;
  };

  fake_process* find(process_id target);
  void report(std::function<void()> event);
  void ring() noexcept;
  void answer(const flight& one);
  void release(fake_process& one);

  const time_source& time_;
  unique_fd ready_;
  backend_listener* listener_ = nullptr;
  std::map<pid_t, fake_process> processes_;
  std::map<pid_t, std::deque<error_code>> attach_errors_;
  std::map<gpu_id, std::deque<error_code>> reserve_errors_;
  std::deque<error_code> reserve_refusals_;
  capabilities acts_by_ = single_calls;
  std::set<gpu_id> offers_quanta_;
  std::deque<error_code> quantum_errors_;
  std::deque<error_code> quantum_refusals_;
  std::deque<error_code> submit_errors_;
  std::deque<error_code> detach_errors_;
  error_code start_error_;
  std::function<void(const batch&)> on_submit_;
  std::function<void(unsigned, const observation&)> on_observed_;
  std::function<void()> on_stop_;
  std::vector<flight> in_flight_;
  std::vector<process_id> held_attaches_;
  std::deque<std::function<void()>> events_;  // For the next drain().
  std::vector<batch> batches_;
  std::vector<attach_call> attaches_;
  std::vector<process_id> detaches_;
  std::vector<std::pair<gpu_id, double>> reservations_;
  std::vector<quantum_call> quanta_;
  std::size_t quanta_asked_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t expectations_ = 0;
  std::uint64_t next_ring_ = 0x1000;
  std::size_t misuses_ = 0;
  duration delay_{};
  duration work_interval_{};
  std::set<pid_t> marking_;
  int driver_errno_ = 0;
  bool rung_ = false;  // ready_ is readable.
  bool hold_answers_ = false;
  bool hold_attaches_ = false;
  bool keep_batches_ = true;
  bool up_ = true;
  bool stopped_ = false;
};

}  // namespace sluice::testing
