#pragma once
/// \file
/// The driver and the agent before it, as far as a scheduler sees them: processes with their
/// queues, one lane per target that works through looks and batches in virtual time, and answers
/// that come late, in part, or not at all. It tells the reference all that it tells the scheduler.

#include "reference.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/testing/manual_clock.hpp"

namespace sluice::tests {

/// The ways in which it acts: both can be told quanta, on the GPUs with even numbers.
inline constexpr capabilities by_single_calls{
    "single calls", {capability::set_quantum, capability::holds_end_with_maker}};
inline constexpr capabilities by_batches{
    "batched calls",
    {capability::batch_targets, capability::reserve_slots, capability::set_quantum,
     capability::holds_end_with_maker}};

/// Threading: one thread. Lifetime: the reference outlives it.
class model_driver final : public backend {
 public:
  struct queue {
    gpu_id gpu{};
    queue_kind type{};
    std::uint64_t ring = 0;
    bool fresh = true;  ///< No snapshot has shown it: the driver does not suspend it yet.
    bool suspended = false;
    bool dying = false;  ///< Its owner waits in DESTROY until it is resumed.
  };
  /// What becomes of the next commands for a queue.
  enum class fault : std::uint8_t {
    invalid,
    failed_changed,    ///< The software state has changed, and the hardware did not follow.
    failed_unchanged,  ///< The call was refused as a whole.
  };
  /// A bug for the test's own test: what the driver would have to be blamed for.
  enum class planted : std::uint8_t {
    none,
    loses_a_resume,    ///< The third resume is never answered.
    forgets_a_removal  ///< Of the second queue that goes the scheduler is not told.
  };

  model_driver(const testing::manual_clock& time, reference& judge, planted bug);
  ~model_driver() override;
  model_driver(const model_driver&) = delete;
  model_driver& operator=(const model_driver&) = delete;

  // The truth.
  void start_process(pid_t pid, std::uint64_t start_time);
  void end_process(pid_t pid);
  void exec(pid_t pid);
  /// \return its id, as the driver chooses it; nothing when there are too many.
  std::optional<driver_queue_id> create_queue(pid_t pid, gpu_id gpu, queue_kind type);
  void destroy_queue(pid_t pid, driver_queue_id id);
  const std::map<driver_queue_id, queue>& queues_of(pid_t pid) const;
  std::size_t suspended() const;
  bool attached(pid_t pid) const;

  // What goes wrong.
  void script(pid_t pid, driver_queue_id id, fault what) { faults_[{pid, id}].push_back(what); }
  void set_latency(pid_t pid, duration latency) { latency_[pid] = latency; }
  /// The next call for it takes so long, and the agent gives its GPU up meanwhile.
  void get_stuck(pid_t pid) { stuck_[pid] = true; }
  void refuse_attach(pid_t pid, error_code error) { attach_errors_[pid].push_back(error); }
  void refuse_submit(error_code error) { submit_errors_.push_back(error); }
  void refuse_detach(error_code error) { detach_errors_.push_back(error); }
  /// What its lane has to say waits for so long.
  void mute(pid_t pid, duration span);
  /// With which lane the next drain() begins.
  void set_order(std::size_t first) noexcept { order_ = first; }
  void end_session(pid_t pid);
  void lose_gpu(gpu_id gpu);
  /// The agent dies: of what it has said, the first `heard` are still heard.
  void crash(std::size_t heard);
  void restore();
  void act_by(const capabilities& what);
  /// All of that ends, but for what is under way.
  void be_kind();

  /// When something happens by itself.
  time_point next() const noexcept;
  /// Does what is due at the present.
  void work();

  // backend
  std::string_view name() const noexcept override { return "model"; }
  result<void> start(backend_listener& listener) override;
  int ready_fd() const noexcept override { return ready_; }
  void drain() override;
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override;
  result<void> detach(process_id target) override;
  result<void> submit(const batch& work) override;
  result<void> reserve(gpu_id gpu, double offline_share) override;
  /// On GPUs with even ids only. Every seventh time the driver refuses it.
  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override;
  void observed(unsigned source, const observation& seen) override;
  time_point tick(time_point now) override;
  void stop() override;
  bool stopped() const noexcept { return stopped_; }

  /// Told of every observation that the scheduler has taken in.
  std::function<void(unsigned, const observation&)> on_observed;
  /// A queue is gone whose owner had to wait for it to run.
  std::function<void(pid_t, driver_queue_id)> on_gone;

 private:
  struct process {
    std::uint64_t start_time = 0;
    bool alive = false;
    std::map<driver_queue_id, queue> queues;
  };
  struct report {
    enum class kind : std::uint8_t { attached, added, removed, completed, detached } what{};
    error_code error{};
    queue_info info;
    batch_result result;
  };
  struct lane {
    process_id target{};
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    enum class phase : std::uint8_t { opening, open, over } now = phase::opening;
    time_point open_at{};
    error_code open_error{};
    std::map<driver_queue_id, queue> ledger;  // As it has said.
    time_point look_at = never;
    std::optional<batch> work;
    time_point work_from{};
    time_point work_at = never;
    bool leaving = false;
    std::map<gpu_id, duration> quanta;
    std::deque<report> out;
    time_point muted_until{};
  };
  struct global_report {
    enum class kind : std::uint8_t { gpu_lost, acts_by, reserved, quantum_set } what{};
    gpu_id gpu{};
    capabilities acting{};
    bool fell_back = false;
    double share = 1;
    process_id target{};
    duration length{};
    error_code error{};
  };

  lane* find(process_id target);
  process* process_of(const lane& one);
  time_point due(const lane& one) const noexcept;
  void step(lane& one);
  void open(lane& one);
  void look(lane& one);
  void perform(lane& one);
  void close(lane& one, bool gone);
  void say_all_again(lane& one);
  void run(pid_t pid, driver_queue_id id);
  void run_all(const lane& one);
  void look_soon(pid_t pid, duration in);
  void deliver(const lane& from, const report& what);
  void push(lane& one, report::kind what, driver_queue_id id = {}, const queue* about = nullptr,
            error_code error = {});
  void ring() noexcept;
  bool can_speak(const lane& one) const noexcept;

  const testing::manual_clock& time_;
  reference& judge_;
  const planted bug_;
  backend_listener* listener_ = nullptr;
  int ready_ = -1;
  bool up_ = false;
  bool stopped_ = false;
  bool lost_waits_ = false;
  bool restored_waits_ = false;
  std::size_t still_heard_ = 0;
  std::map<pid_t, process> processes_;
  std::deque<lane> lanes_;
  std::deque<global_report> global_;
  capabilities acting_ = by_single_calls;
  std::size_t order_ = 0;
  std::uint64_t last_ring_ = 0x1000;
  std::uint64_t resumes_ = 0;
  std::uint64_t removals_ = 0;
  std::uint64_t quanta_ = 0;
  time_point tick_by_ = never;
  std::map<std::pair<pid_t, driver_queue_id>, std::deque<fault>> faults_;
  std::map<pid_t, duration> latency_;
  std::map<pid_t, bool> stuck_;
  std::map<pid_t, std::deque<error_code>> attach_errors_;
  std::deque<error_code> submit_errors_;
  std::deque<error_code> detach_errors_;
  std::vector<std::pair<time_point, gpu_id>> gives_up_;
  std::vector<std::pair<time_point, batch_result>> late_;  // The agent's own answers.
};

}  // namespace sluice::tests
