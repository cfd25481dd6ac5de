#pragma once
/// \file
/// The world of the soak: the simulated device, the daemon with its agent, and workers that come
/// and go, with faults. It notices what must not be and what rises.

#include "books.hpp"
#include "child_process.hpp"
#include "device_view.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"
#include "trend.hpp"

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::soak {

struct plan {
  double minutes = 2;
  std::uint64_t seed = 0;
  std::string logs;      ///< A directory for what the programs print; "": it is not kept.
  bool verbose = false;  ///< Says each fault, and each suspension that exceeds max_suspend much.

  /// Else by debug sessions. Both have to be tried, and the seed says which it is.
  bool by_batch() const { return seed % 2 == 0; }
};

/// What is measured of a process: see usage_of().
inline constexpr std::size_t measures = 4;

/// How far a figure may rise: a part once, for what is allocated when it is first needed, and a
/// part with time.
struct bound {
  double once = 0;
  double per_hour = 0;
  /// As a slope over so long.
  double over(double hours) const { return per_hour + (hours > 0 ? once / hours : 0); }
};

/// One figure of one process.
struct watched {
  std::string process;
  std::string what;
  std::string unit;
  trend seen;
  double bound_per_hour = 0;
  std::vector<double> at_rest;  ///< Without any worker, in turn.
};

struct findings {
  double minutes = 0;                            ///< That it ran, rests included.
  std::map<std::string, std::uint64_t> workers;  ///< By how they ended.
  std::map<std::string, std::uint64_t> faults;

  /// Agents that died without one of our faults having ended them: where a refused resume may have,
  /// and after the daemon or they were kept from running for half of their lease.
  std::uint64_t agents_died = 0;
  std::uint64_t agents_died_starved = 0;
  std::uint64_t refused_resumes = 0;  ///< As many of the former are explained.
  duration longest_wait{};            ///< For which daemon or agent was kept from running.
  std::uint64_t looks = 0;            ///< At the device, since nobody of sluice dies;
  std::uint64_t looks_by_batch = 0;   ///< and that saw a queue held by batch commands.

  std::uint64_t submitted = 0;
  std::uint64_t executed = 0;  ///< As the device says.
  std::uint64_t dropped = 0;   ///< In flight when their owner destroyed their queue.
  std::uint64_t died = 0;      ///< In flight when their process ended.
  std::uint64_t reset = 0;     ///< In flight when their GPU was reset.
  std::uint64_t lost = 0;
  std::uint64_t repeated = 0;
  std::uint64_t out_of_order = 0;
  std::uint64_t too_short = 0;
  std::uint64_t queues = 0;

  std::uint64_t requests = 0;
  std::uint64_t every_10_ms = 0;
  duration longest_request{};

  std::uint64_t queue_suspends = 0;
  duration longest_suspension{};
  std::uint64_t stuck = 0;

  std::vector<watched> figures;
  std::vector<std::string> problems;  ///< Each fails the run.
  /// What this run could not check, because too little happened.
  std::vector<std::string> not_shown;
};

/// How long a queue may be suspended without a break while a scheduler lives, and how long after
/// the last one's end: max_suspend, and what the ways out take (lease, driver calls, a busy
/// machine).
inline constexpr duration longest_allowed_suspension = std::chrono::seconds{4};

/// It was told to stop.
struct interrupted {};

/// Threading: one thread, and no other in the process (it forks).
/// Errors:    the constructor and run() throw where there is no world to look at, run() also
///            `interrupted`; all else is in the findings.
class world {
 public:
  /// \param stop not 0: it ends at once.
  world(const plan& what, const std::atomic<int>& stop);
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  findings run();

 private:
  /// In this order; what may happen in one may happen in those before it.
  enum class act { daemons_die, agents_die, nobody_of_sluice_dies };
  enum class ending { finish, leave, be_killed };
  enum class place { offline, online, bystander, visitor };

  struct worker {
    place where{};
    std::uint32_t gpu = 0;
    std::string path;  ///< Of its books.
    mapped_books seen;
    std::unique_ptr<test::child_process> process;
    time_point started{};
    time_point ends_at{};
    ending how{};
    bool told = false;
    bool may_be_killed = false;  ///< By a fault of the device.
    bool has_page_fault = false;
    bool stuck = false;
    duration longest_said{};
    std::optional<time_point> goes_on_at;  ///< It is stopped.
  };
  struct slot {
    place where{};
    std::uint32_t queues = 0;
    std::unique_ptr<worker> who{};
    time_point again_at{};  ///< When the next one starts.
  };
  struct errand {
    std::string what;
    bool must_succeed = false;
    std::unique_ptr<test::child_process> process;
    time_point started{};
  };
  struct later {
    time_point at{};
    std::function<void()> what;
  };
  struct fault {
    const char* name;
    unsigned weight;
    act until;  ///< The last act that has it.
    std::function<bool()> inject;
  };
  struct figures_of {
    pid_t pid = 0;
    std::array<series, measures> samples;               ///< Of that process,
    std::array<std::vector<double>, measures> at_rest;  ///< and of all of that name.
  };

  // Chance.
  std::uint32_t upto(std::uint32_t n);
  duration between(duration low, duration high);

  // Processes.
  std::unique_ptr<test::child_process> start(const std::vector<std::string>& words,
                                             const std::string& tag, const std::string& log) const;
  void configure(const std::string& policy) const;
  void start_daemon();
  void watch_processors();
  pid_t agent() const;
  /// With the device; 0 for what is not there.
  std::vector<std::pair<std::string, pid_t>> sluice_processes() const;
  std::unique_ptr<worker> start_worker(const slot& where);
  void tell(worker& one);
  void settle(worker& one, int status);
  std::string state_of(const worker& one) const;
  void look_at(worker& one, const test::device_view::process_view& seen);
  void run_errand(const std::string& what, const std::vector<std::string>& words);
  void reap_orphans();

  // Acts.
  void live(act now, duration length);
  void turn();
  void mind_agent();
  void keep_slots();
  void look();
  void sample();
  void make_fault(act now);
  std::uint64_t suspended() const;
  void silence();
  void rest();
  void end_workers();
  void shut_down();
  void judge();

  // Faults.
  std::vector<fault> every_fault();
  worker* any_worker(place where);
  bool control(const std::string& line) const;
  bool stop_for_a_while(pid_t pid, duration length);
  void gpu_fails(const std::string& line);

  void problem(const std::string& what);
  /// Too little happened to check something.
  void not_shown(const std::string& what);
  void say(const std::string& what) const;

  const plan plan_;
  const std::atomic<int>& stop_;
  const time_point began_ = clock::now();
  std::mt19937_64 bits_;
  test::simulated_device device_;
  const test::device_view view_{device_.root()};
  const std::string directory_;
  const std::string config_;
  const std::string logs_;

  std::unique_ptr<test::child_process> daemon_;
  bool daemon_may_end_ = false;
  act now_{};
  time_point sluice_is_whole_at_{};  ///< Its processes die one at a time.
  pid_t agent_ = 0;                  ///< That lived when it was looked at last.
  bool agent_may_die_ = false;       ///< By our last fault of sluice's processes.
  time_point minded_agent_at_ = clock::now();
  /// What daemon and agent were given of the processors since the last turn.
  std::optional<test::run_delay> given_;
  std::optional<time_point>
      starved_at_;  ///< When one of them had been kept from running for half of the lease.
  std::optional<time_point> agent_died_at_;  ///< The last one that nobody had ended.
  std::vector<slot> slots_;
  std::vector<errand> errands_;
  std::vector<later> later_;
  std::vector<fault> faults_;
  std::vector<std::unique_ptr<worker>> visitors_;
  std::uint64_t workers_ = 0;
  std::optional<time_point> last_reset_;
  bool paused_ = false;

  time_point next_fault_{};
  time_point next_visitor_{};
  time_point next_look_{};
  time_point next_silence_{};
  bool silence_ = false;  ///< No online worker starts.
  time_point next_sample_{};
  std::map<std::string, figures_of> figures_;
  std::map<std::string, time_point> warm_at_;

  findings found_;
};

}  // namespace sluice::soak
