#pragma once
/// \file
/// What the scheduler has been told, and what follows from it: a slow, plain model of the queue
/// table and of the limits, written without a look at how the runtime does it. It judges each
/// command as it comes to the driver, each snapshot as it goes to a policy, and the whole after
/// each turn.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/gang_state.hpp"
#include "sluice/observation.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::tests {

inline constexpr std::size_t model_sources = 2;

/// What is known of the policy that decides.
enum class policy_in_force : std::uint8_t {
  none,  ///< Everything runs.
  fixed_timeslice,
  some,  ///< It may want anything.
};

/// Time comes from outside: nothing here reads a clock.
class reference {
 public:
  reference(const time_source& time, const scheduler_config& config, pid_t own_pid)
      : time_(time), config_(config), own_pid_(own_pid) {}

  /// The first thing that was wrong; empty while nothing was.
  const std::string& complaint() const noexcept { return complaint_; }
  void complain(const std::string& what);

  // What the scheduler is told, as it is told.
  void observed(unsigned source, const observation& seen);
  void attached(process_id target, bool well);
  void queue_added(process_id target, const queue_info& info);
  void queue_removed(process_id target, driver_queue_id id);
  void completed(const batch_result& result);
  void detached(process_id target);
  void gpu_lost(gpu_id id) { open_breaker(id); }
  void lost();
  /// All of that was delivered: a turn decides now.
  void drained();
  void set_policy(policy_in_force what, duration slice);
  void set_config(const scheduler_config& next) { next_config_ = next; }
  void rearm(gpu_id id) { rearms_.push_back(id); }
  void stopping() noexcept { stopping_ = true; }

  // Online work.
  std::size_t add_client(std::vector<gpu_id> gpus);
  void begin(std::size_t which);
  void end(std::size_t which);
  void withdraw(std::size_t which);
  std::uint64_t in_flight(std::size_t which) const { return clients_[which].out; }

  // What the scheduler does.
  void attach_called(process_id target, pid_t pid, std::uint64_t start_time, bool accepted);
  void detach_called(process_id target, const result<void>& answer);
  void submit_called(const batch& work, const result<void>& answer);
  void quantum_called(process_id target, duration length);
  void gang_changed(unsigned source, const gang_state& what);
  void deciding(const snapshot& seen);

  /// Nothing is left to be done at this time.
  void idle();
  /// Nothing has happened for long: what must have come to rest by then has.
  /// \param everything_runs nobody wants anything held.
  void at_rest(bool everything_runs);

  /// For comparing with the truth: known processes and queues.
  std::size_t processes() const noexcept { return known_.size(); }
  std::size_t queues() const noexcept;
  struct source_view {
    role what{};
    std::uint64_t key = 0;
    std::uint8_t priority = 0;
    std::set<driver_queue_id> queues;
    bool operator==(const source_view&) const = default;
  };
  std::map<std::pair<pid_t, std::uint64_t>, source_view> told_by(unsigned source) const;
  bool is_lost(gpu_id id) const;
  const scheduler_config& config() const noexcept { return config_; }
  std::uint64_t commands() const noexcept { return commands_; }
  std::uint64_t begins() const noexcept { return begins_; }
  std::uint64_t forced() const noexcept { return forced_; }
  /// Suspends that only peers on other nodes wanted.
  std::uint64_t for_peers() const noexcept { return for_peers_; }

 private:
  enum class state : std::uint8_t { running, suspending, suspended, resuming, doubt };
  struct process;
  struct known_queue {
    gpu_id gpu{};
    queue_kind type{};
    std::uint64_t ring = 0;
    std::array<bool, model_sources> seen{};
    std::array<bool, model_sources> marked{};
    bool managed = false;
    state is = state::running;
    time_point off_since{};   // When it left "running".
    time_point not_before{};  // The driver refused to suspend it.
    int failures = 0;         // In a row.
    bool refused = false;     // Did not suspend when last asked to.
  };
  /// What is held together.
  struct books {
    std::uint64_t key = 0;
    std::set<process*> members;
    bool off = false;
    time_point off_since{};
    time_point on_since{};
    duration debt{};
    bool forced = false;
    time_point forced_until = never;
    std::deque<std::pair<time_point, time_point>> stretches;  // Off, ended ones.
    std::uint32_t nodes = 0;  // 2 or more: it has peers on other nodes, which...
    time_point answered_until{};
    bool peers_hold = false;
  };
  enum class session : std::uint8_t { none, attaching, attached, detaching };
  struct process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    std::uint8_t priority = 0;
    struct claim {
      bool seen = false;
      bool marked = false;
      role what = role::unmatched;
      std::set<driver_queue_id> queues;
    };
    std::array<claim, model_sources> by;
    std::map<driver_queue_id, known_queue> queues;
    bool gone = false;
    process_id target{};
    session has = session::none;
    bool returns = false;  // Had one, or one under way, when the agent died, and not since.
    std::optional<batch> in_flight;
    time_point lane_from{};    // A command was refused.
    time_point detach_from{};  // So was a detach.
    std::shared_ptr<books> in;

    role what() const noexcept;
    std::size_t compute_queues() const noexcept;
  };
  struct gpu {
    std::uint64_t reset_domain = 0;
    bool lost = false;
    std::size_t failures = 0;
    time_point rearm_at = never;
    time_point rearmed{};
    std::uint64_t last_in_flight = 0;  // In the last snapshot.
    time_point known_since{};
  };
  struct client {
    std::vector<gpu_id> gpus;
    std::uint64_t out = 0;
    time_point out_since{};  // Since when some of it is out without a pause.
    time_point last_begin{};
    bool vague = false;  // max_busy may have written some of it off.
    bool withdrawn = false;
  };

  process* find(pid_t pid, std::uint64_t start_time);
  process* find(process_id target);
  process& at(const observation& seen);
  gpu& known(gpu_id id);
  static bool covers(const client& one, gpu_id id);
  void join(process& which, std::uint64_t key);
  void leave(process& which);
  void forget(process& which, unsigned source);
  void forget(process& which, driver_queue_id id, unsigned source);
  void erase(process& which);
  void release(process& which);
  void open_breaker(gpu_id id);
  void close_breaker(gpu& which);

  bool suspends(queue_kind type) const {
    return config_.suspend_copy_queues || type == queue_kind::compute;
  }
  void put_off(known_queue& which) const;
  static bool is_off(const state& one) noexcept { return one != state::running; }
  role role_of(const books& group) const noexcept;
  bool manageable(const books& group) const;
  bool has_answer(const books& group) const {
    return group.nodes < 2 || group.answered_until > time_.now();
  }
  bool peers_want(const books& group) const {
    return group.nodes >= 2 && group.peers_hold && has_answer(group);
  }
  /// What was told last.
  gang_wish wish_of(const books& group) const;
  /// As was told, and as peers want it; of a gang on several nodes.
  bool is_wanted(const books& group) const {
    const gang_wish wish = wish_of(group);
    return group.nodes < 2 || wish == gang_wish::hold ||
           (wish == gang_wish::run && peers_want(group));
  }
  bool is_refused(const books& group) const;
  std::set<gpu_id> gpus_of(const books& group) const;
  void update(books& group);
  void update_all();
  std::set<books*> all_books() const;
  time_point must_run_at(const books& group) const {
    return group.off_since + (config_.max_suspend - group.debt);
  }
  duration off_within(const books& group, duration window) const;
  duration most_off() const;
  /// Whether offline_floor may have forced it, by an account that is coarser than this one.
  bool floor_is_near(const books& group) const;
  void judge_wish(const books& group);
  void judge_wishes();
  bool works(gpu_id id) const;
  bool online_waits(const books& group) const;
  std::uint64_t count_on(gpu_id id) const;
  bool vague_on(gpu_id id) const;
  std::string name(const process& which) const;

  const time_source& time_;
  scheduler_config config_;
  std::optional<scheduler_config> next_config_;
  time_point config_since_{};
  const pid_t own_pid_;
  std::string complaint_;
  std::list<process> known_;
  std::map<gpu_id, gpu> gpus_;
  std::map<std::uint64_t, std::weak_ptr<books>> by_key_;
  std::array<std::map<std::uint64_t, gang_state>, model_sources> told_;
  std::map<process_id, std::pair<pid_t, std::uint64_t>> targets_;  // All there ever were.
  std::vector<client> clients_;
  std::vector<gpu_id> rearms_;
  policy_in_force policy_ = policy_in_force::none;
  duration slice_{};
  bool counts_known_ = false;  // Every snapshot was seen since the last one.
  bool stopping_ = false;
  std::uint64_t last_batch_ = 0;
  std::uint64_t commands_ = 0;
  std::uint64_t begins_ = 0;
  std::uint64_t forced_ = 0;
  std::uint64_t for_peers_ = 0;
};

}  // namespace sluice::tests
