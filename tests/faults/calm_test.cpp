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

/// The agent's of the host, and the host's of the agent.
std::size_t alarms_in(const std::string& log) {
  std::size_t alarms = 0;
  for (const std::string_view alarm : {"[sluice-agent] [warning] the host has been silent",
                                       "the agent has been silent for longer than its lease"}) {
    for (auto found = log.find(alarm); found != log.npos; found = log.find(alarm, found + 1))
      ++alarms;
  }
  return alarms;
}
/// The agent is the one of before, and the host knows of no other.
void expect_no_alarm(const world& here, const std::unique_ptr<target_process>& host, pid_t agent) {
  const std::string log = here.log();
  EXPECT_EQ(alarms_in(log), 0U) << log;
  EXPECT_EQ(here.agent(), agent) << log;
  EXPECT_NE(host->ask("stats", patience).find("restarts 0"), std::string::npos) << log;
}

TEST(Calm, NobodyIsTakenForDeadOnABusyMachineWithLittleOfIt) {
  const char* const given = std::getenv("SLUICE_CALM_SECONDS");  // NOLINT: nobody sets it now.
  const auto seconds = std::chrono::seconds{given != nullptr ? std::atol(given) : 15};
  const cpu_limit for_host{"host"};
  const cpu_limit for_agent{"agent"};
  std::vector<std::unique_ptr<child_process>> spinners;
  for (long i = 0; i < 2 * ::sysconf(_SC_NPROCESSORS_ONLN); ++i) {
    spinners.push_back(std::make_unique<child_process>([](channel&) {
      for (;;) {
      }
      return 0;
    }));
  }
  world here{{.how = mechanism_used::trap_agent}};
  const auto offline = here.gpu_process("OFFLINE_AI");
  const auto host = here.host(1);
  const auto client = here.client();
  const pid_t agent = here.agent();
  const bool limited = for_host.take(host->pid()) && for_agent.take(agent);
  if (!limited) {
    // Last in line for every processor, then.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(host->pid()), 19);
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(agent), 19);
  }
  run_delay shares;
  shares.add(host->pid());
  shares.add(agent);
  const regular_looks looks{shares};
  int bursts = 0;
  const time_point until = clock::now() + seconds;
  while (clock::now() < until) {
    EXPECT_EQ(client->ask("begin", patience), "begun");
    ASSERT_TRUE(here.all_held({&offline})) << here.log();
    EXPECT_EQ(client->ask("end", patience), "ended");
    ASSERT_TRUE(here.run_again({&offline}, clock::now())) << here.log();
    ++bursts;
    std::this_thread::sleep_for(5ms);
  }
  const std::size_t alarms = alarms_in(here.log());
  std::printf(
      "  %ld s, %zu processes that spin on %ld processors, lease 500 ms, host and agent %s: "
      "%zu alarms in %d preemptions; held back %s and %s times; a thread of them that was ready "
      "waited for up to %.0f ms\n",
      static_cast<long>(seconds.count()), spinners.size(), ::sysconf(_SC_NPROCESSORS_ONLN),
      limited ? "with 5 % of a processor each" : "at nice 19", alarms, bursts,
      limited ? for_host.throttled().c_str() : "0", limited ? for_agent.throttled().c_str() : "0",
      std::chrono::duration<double, std::milli>(shares.longest()).count());
  const char* const which = std::getenv("SLUICE_FAULTS");  // NOLINT: as above.
  const bool whole = which != nullptr && std::string_view{which} == "all";
  if (!limited && whole)
    FAIL() << "not shown: without a cgroup for processors this is another test";
  // The kernel's limit keeps a processor from a cgroup for longer than its period now and then. A
  // process that did not run for half of the lease was silent indeed.
  if (alarms == 0 || shares.longest() < here.with().lease / 2) expect_no_alarm(here, host, agent);
  host->send("stop");
  EXPECT_EQ(host->hear(patience), "stopped");
}

// As a cgroup is frozen, or a whole virtual machine: who runs again first finds a lease that is
// long over, and has not been looking either.
TEST(Calm, NobodyIsTakenForDeadWhoWasFrozenTogetherWithTheOther) {
  for (const bool agent_first : {true, false}) {
    world here{{.how = mechanism_used::trap_agent}};
    const auto offline = here.gpu_process("OFFLINE_AI");
    const auto host = here.host(1);
    const auto client = here.client();
    const pid_t agent = here.agent();
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
}

}  // namespace
}  // namespace sluice::test::calm_test
