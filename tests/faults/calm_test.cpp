// No false alarms: host and agent watch each other on a machine that is busy to its last processor,
// while both get little of it, and neither takes the other for dead. For 15 s, or as many as
// SLUICE_CALM_SECONDS says (tests/faults.sh --long: 600).

#include "child_process.hpp"
#include "world.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

namespace sluice::test::calm_test {
namespace {

/// In percent, for the host and for the agent each. In short periods, so that either is held back
/// often, and no more than it has to be: at 1 ms of each 100, five of work take half a second, and
/// who is silent for so long is rightly taken for dead.
constexpr int share = 5;
constexpr int period_us = 20'000;

/// A cgroup that gives its processes so much of a processor, where one can be made: of version 1 or
/// 2. Removed at the end, once its processes are gone.
class cpu_limit {
 public:
  /// \param name of the cgroup.
  explicit cpu_limit(const std::string& name) {
    const std::string quota = std::to_string(period_us * share / 100);
    const std::string period = std::to_string(period_us);
    for (const std::string& mount :
         {std::string{"/sys/fs/cgroup/cpu"}, std::string{"/sys/fs/cgroup"}}) {
      directory_ = mount + "/sluice-test-" + std::to_string(::getpid()) + "-" + name;
      if (::mkdir(directory_.c_str(), 0755) != 0) continue;
      const bool limited = write("cpu.max", quota + " " + period) ||
                           (write("cpu.cfs_period_us", period) && write("cpu.cfs_quota_us", quota));
      if (limited) return;
      ::rmdir(directory_.c_str());
    }
    directory_.clear();
  }
  ~cpu_limit() {
    if (!directory_.empty())
      eventually(patience, [this] { return ::rmdir(directory_.c_str()) == 0; });
  }
  cpu_limit(const cpu_limit&) = delete;
  cpu_limit& operator=(const cpu_limit&) = delete;

  bool take(pid_t pid) const {
    return !directory_.empty() && write("cgroup.procs", std::to_string(pid));
  }
  /// How often the kernel held them back.
  std::string throttled() const {
    std::ifstream file{directory_ + "/cpu.stat"};
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("nr_throttled ")) return line.substr(13);
    }
    return "0";
  }

 private:
  bool write(const std::string& file, const std::string& text) const {
    const std::string path = directory_ + "/" + file;
    if (::access(path.c_str(), W_OK) != 0) return false;
    std::ofstream out{path};
    out << text << std::flush;
    return out.good();
  }
  std::string directory_;
};

constexpr std::string_view host_is_silent = "[sluice-agent] [warning] the host has been silent";
constexpr std::string_view agent_is_silent = "the agent has been silent for longer than its lease";

bool has_alarm(const std::string& log) {
  return log.find(host_is_silent) != log.npos || log.find(agent_is_silent) != log.npos;
}
/// The agent is the one of before, and the host knows of no other.
void expect_no_alarm(const world& here, const std::unique_ptr<target_process>& host, pid_t agent) {
  const std::string log = here.log();
  EXPECT_FALSE(has_alarm(log)) << log;
  EXPECT_EQ(here.agent(), agent) << log;
  EXPECT_NE(host->ask("stats", patience).find("restarts 0"), std::string::npos) << log;
}

/// Preemptions on a busy machine, until the time is over or one side takes the other for dead.
class busy_window {
 public:
  bool is_limited() const { return limited_; }
  /// \return false where it tells nothing: a side was taken for dead that did not get a processor
  /// for half of the lease. It was silent indeed. (The kernel's limit keeps a processor from a
  /// cgroup for longer than its period now and then.)
  bool run(std::chrono::seconds length) {
    const time_point until = clock::now() + length;
    time_point calm_until = clock::now();
    int bursts = 0;
    bool works = true;
    bool is_calm = true;
    while (is_calm && works && clock::now() < until) {
      const time_point before = clock::now();
      works = burst();
      ++bursts;
      std::this_thread::sleep_for(5ms);
      is_calm = !has_alarm(here_.log());
      if (is_calm) calm_until = before;
    }
    given_.look();
    print(bursts);
    if (!is_calm && is_explained(calm_until)) return false;
    EXPECT_TRUE(works) << here_.log();
    expect_no_alarm(here_, host_, agent_);
    host_->send("stop");
    EXPECT_EQ(host_->hear(patience), "stopped");
    return true;
  }

 private:
  bool burst() {
    EXPECT_EQ(client_->ask("begin", patience), "begun");
    const bool held = here_.all_held({&offline_});
    EXPECT_EQ(client_->ask("end", patience), "ended");
    return held && here_.run_again({&offline_}, clock::now());
  }
  /// Whether each side that is said to have been silent was kept from running meanwhile.
  bool is_explained(time_point calm_until) const {
    const duration lease = here_.with().lease;
    const std::string log = here_.log();
    for (const auto& [text, pid] :
         {std::pair{host_is_silent, host_->pid()}, {agent_is_silent, agent_}}) {
      if (log.find(text) != log.npos && given_.longest(pid, calm_until - 2 * lease) < lease / 2)
        return false;
    }
    return true;
  }
  void print(int bursts) const {
    const auto ms = [this](pid_t pid) {
      return std::chrono::duration<double, std::milli>(given_.longest(pid)).count();
    };
    std::printf(
        "  lease 500 ms, %ld processors, host and agent %s: %d preemptions; held back %s and %s "
        "times; waited for a processor for up to %.0f and %.0f ms\n",
        ::sysconf(_SC_NPROCESSORS_ONLN), limited_ ? "with 5 % of a processor each" : "at nice 19",
        bursts, limited_ ? for_host_.throttled().c_str() : "0",
        limited_ ? for_agent_.throttled().c_str() : "0", ms(host_->pid()), ms(agent_));
  }

  const cpu_limit for_host_{"host"};
  const cpu_limit for_agent_{"agent"};
  const world here_{{.how = mechanism_used::trap_agent}};
  const world::process offline_ = here_.gpu_process("OFFLINE_AI");
  const world::process host_ = here_.host(1);
  const world::process client_ = here_.client();
  const pid_t agent_ = here_.agent();
  const bool limited_ = for_host_.take(host_->pid()) && for_agent_.take(agent_);
  run_delay given_;
  std::optional<regular_looks> looks_;

 public:
  busy_window() {
    if (!limited_) {
      // Last in line for every processor, then.
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(host_->pid()), 19);
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(agent_), 19);
    }
    given_.add(host_->pid());
    given_.add(agent_);
    looks_.emplace(given_);
  }
};

TEST(Calm, NobodyIsTakenForDeadOnABusyMachineWithLittleOfIt) {
  const char* const given = std::getenv("SLUICE_CALM_SECONDS");  // NOLINT: nobody sets it now.
  const auto seconds = std::chrono::seconds{given != nullptr ? std::atol(given) : 15};
  const char* const which = std::getenv("SLUICE_FAULTS");  // NOLINT: as above.
  const bool whole = which != nullptr && std::string_view{which} == "all";
  std::vector<std::unique_ptr<child_process>> spinners;
  for (long i = 0; i < 2 * ::sysconf(_SC_NPROCESSORS_ONLN); ++i) {
    spinners.push_back(std::make_unique<child_process>([](channel&) {
      for (;;) {
      }
      return 0;
    }));
  }
  const int most_tries = whole ? 1 : 4;
  for (int tries = 1; tries <= most_tries; ++tries) {
    busy_window one;
    if (!one.is_limited() && whole)
      FAIL() << "not shown: without a cgroup for processors this is another test";
    if (one.run(seconds)) return;
    std::printf(
        "  try %d of %d is void: who was taken for dead had waited for a processor for half of the "
        "lease or longer\n",
        tries, most_tries);
  }
  FAIL() << "not shown: all " << most_tries << " tries are void";
}

// As a cgroup is frozen, or a whole virtual machine: who runs again first finds a lease that is
// long over, and has not been looking either.
void freeze_both(trial& once, bool agent_first) {
  const world here{{.how = mechanism_used::trap_agent}};
  const auto offline = here.gpu_process("OFFLINE_AI");
  const auto host = here.host(1);
  const auto client = here.client();
  const pid_t agent = here.agent();
  once.watch_leases(here, {host->pid(), agent});
  EXPECT_EQ(client->ask("begin", patience), "begun");
  ASSERT_TRUE(here.all_held({&offline})) << here.log();
  std::array<pid_t, 2> pids{agent, host->pid()};
  if (!agent_first) std::swap(pids[0], pids[1]);
  for (const pid_t pid : pids) ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  std::this_thread::sleep_for(2 * here.with().lease);
  for (const pid_t pid : pids) {
    ASSERT_EQ(::kill(pid, SIGCONT), 0);
    std::this_thread::sleep_for(here.with().lease / 5);
  }
  EXPECT_EQ(client->ask("end", patience), "ended");
  ASSERT_TRUE(here.run_again({&offline}, clock::now())) << here.log();
  // For as long as an alarm may take.
  std::this_thread::sleep_for(here.with().lease + own_work);
  SCOPED_TRACE(agent_first ? "the agent first" : "the host first");
  expect_no_alarm(here, host, agent);
  host->send("stop");
  EXPECT_EQ(host->hear(patience), "stopped");
}
TEST(Calm, NobodyIsTakenForDeadWhoWasFrozenTogetherWithTheOther) {
  for (const bool agent_first : {true, false})
    until_measured([&](trial& once) { freeze_both(once, agent_first); });
}

}  // namespace
}  // namespace sluice::test::calm_test
