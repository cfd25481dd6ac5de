/// Host, agent and target as separate processes on the simulated device, and what becomes of the
/// target when one of the others fails.

#include "affliction.hpp"
#include "backend_loop.hpp"
#include "launch.hpp"
#include "offline_target.hpp"
#include "refusing_driver.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::agent::agent_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::channel;
using test::child_process;
using test::eventually;
using test::offline_target;
using test::patience;

constexpr duration lease_length = 500ms;
/// What is promised, with the driver calls in flight and the target's next kernels.
constexpr duration promised = lease_length + 200ms + 30ms;

constexpr process_id target_id{1};

class Agent : public ::testing::Test {
 protected:
  Agent() : Agent("") {}
  explicit Agent(const std::string& driver)
      : device_({.profile = test::fast_profile(driver)}), target_(device_.roots()) {}

  void SetUp() override { ASSERT_TRUE(target_.says('r')); }
  void TearDown() override { EXPECT_EQ(target_.wrong(), 0U); }

  agent_options options() const {
    return {.driver = kfd::acting({.where = device_.roots()}),
            .agent_path = SLUICE_AGENT_PROGRAM,
            .owner_lock = device_.root() + "/owner",
            .lease = lease_length};
  }

  /// A host program with the target attached.
  bool attach(backend_loop& loop) const {
    if (!loop->attach(target_id, target_.pid(), target_.start_time())) return false;
    return loop.until([&] { return loop.queues[target_id].size() == 1; });
  }
  static bool suspend(backend_loop& loop) { return acted(loop.suspend(target_id, {0})); }
  static bool resume(backend_loop& loop) { return acted(loop.resume(target_id, {0})); }
  static bool acted(const std::optional<batch_result>& answer) {
    return answer && answer->count == 1 && answer->outcomes[0] == outcome::done;
  }

  /// The agent's pid, from the second line of the owner's file.
  pid_t agent_pid() const {
    std::ifstream file{device_.root() + "/owner"};
    std::string host;
    std::getline(file, host);
    pid_t pid = 0;
    file >> pid;
    return pid;
  }

  /// Runs a host that suspends the target and then does `afterwards` (never to return).
  child_process host_that(const std::function<void(backend_loop&)>& afterwards) const {
    return child_process{[this, afterwards](channel& line) {
      backend_loop loop{make_agent_backend(options())};
      if (!loop.start() || !attach(loop) || !suspend(loop)) return 1;
      line.send("suspended");
      afterwards(loop);
      return 0;
    }};
  }

  /// Measures from now on for how long this process, the host, the agent, the target and the
  /// device wait for a processor.
  void measure(const std::optional<pid_t>& host = {}) {
    for (const pid_t each : {::getpid(), agent_pid(), target_.pid(), device_.pid()})
      waits_.add(each);
    if (host) waits_.add(*host);
    looks_.emplace(waits_);
  }
  void expect_running_again_in_time(time_point since) {
    const std::uint64_t before = target_.kernels();
    EXPECT_TRUE(eventually(patience, [&] { return target_.kernels() >= before + 2; }));
    expect_in_time(since);
  }
  /// Fails if what has just happened is late, also without the time for which a measured process
  /// waited for a processor.
  void expect_in_time(time_point since) {
    const time_point now = clock::now();
    waits_.look();
    const duration taken = now - since;
    EXPECT_LT(taken, promised + waits_.waited_by_any(since, now));
    RecordProperty(
        "running_again_after_ms",
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(taken).count()));
  }

  test::simulated_device device_;
  offline_target target_;

 private:
  test::run_delay waits_;
  std::optional<test::regular_looks> looks_;
};

void keep_turning(backend_loop& loop) {
  for (;;) loop.turn(50ms);
}

TEST_F(Agent, SuspendsAndResumes) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(suspend(loop));
    EXPECT_TRUE(target_.stands_still());
    ASSERT_TRUE(resume(loop));
    EXPECT_TRUE(target_.runs());
  }
}

TEST_F(Agent, StaysSuspendedForAsLongAsTheHostLives) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  const std::uint64_t before = target_.kernels();
  EXPECT_FALSE(loop.until([&] { return target_.kernels() > before + 1; }, 3 * lease_length));
  EXPECT_EQ(loop.losses, 0);
}

TEST_F(Agent, ResumesEverythingWhenTheHostStops) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  const pid_t agent = agent_pid();
  loop->stop();
  EXPECT_TRUE(target_.runs());
  EXPECT_TRUE(eventually(patience, [&] { return ::kill(agent, 0) != 0; }));
  EXPECT_EQ(tracer_of(target_.pid()), 0);
}

/// The value of a key of /proc/PID/status.
std::string status_of(pid_t pid, const std::string& key) {
  std::ifstream status{"/proc/" + std::to_string(pid) + "/status"};
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":\t")) return line.substr(key.size() + 2);
  return "?";
}

/// CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or what of it there is here.
std::string rights_of_an_agent() {
  constexpr unsigned long kept = 1UL << 19U | 1UL << 2U;
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016lx",
                std::stoul(status_of(::getpid(), "CapEff"), nullptr, 16) & kept);
  return text.data();
}

TEST_F(Agent, HasGivenUpWhatItsWorkDoesNotNeed) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  const pid_t agent = agent_pid();
  // Of every thread: the loop's and the lane's.
  int threads = 0;
  for (const auto& each :
       std::filesystem::directory_iterator{"/proc/" + std::to_string(agent) + "/task"}) {
    const auto thread = parse_number<pid_t>(each.path().filename().string()).value_or(0);
    SCOPED_TRACE(status_of(thread, "Name"));
    ++threads;
    for (const char* const set : {"CapEff", "CapPrm", "CapBnd"})
      EXPECT_EQ(status_of(thread, set), rights_of_an_agent()) << set;
    for (const char* const set : {"CapInh", "CapAmb"})
      EXPECT_EQ(status_of(thread, set), "0000000000000000") << set;
    EXPECT_EQ(status_of(thread, "NoNewPrivs"), "1");
    EXPECT_EQ(status_of(thread, "Seccomp"), SLUICE_FILTERED ? "2" : "0");
  }
  EXPECT_GE(threads, 2);
  // Its helper has nothing at all.
  for (const auto& each : std::filesystem::directory_iterator{"/proc"}) {
    const auto pid = parse_number<pid_t>(each.path().filename().string());
    if (!pid || status_of(*pid, "PPid") != std::to_string(agent)) continue;
    EXPECT_EQ(status_of(*pid, "Name"), "sluice-bells");
    EXPECT_EQ(status_of(*pid, "CapPrm"), "0000000000000000");
    EXPECT_EQ(status_of(*pid, "CapBnd"), "0000000000000000");
    EXPECT_EQ(status_of(*pid, "Seccomp"), SLUICE_FILTERED ? "2" : "0");
  }
  EXPECT_TRUE(resume(loop));
}

TEST_F(Agent, AnswersBusyAndUnknown) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  batch work;
  work.id = 1000;
  work.target = target_id;
  work.count = 1;
  work.queues[0] = driver_queue_id{0};
  ASSERT_TRUE(loop->submit(work));
  EXPECT_EQ(loop->submit(work).error(), errc::busy);
  EXPECT_TRUE(loop.until([&] { return loop.results.contains(1000); }));
  work.target = process_id{9};
  EXPECT_EQ(loop->submit(work).error(), errc::unknown_target);
  EXPECT_EQ(loop->detach(process_id{9}).error(), errc::unknown_target);
}

TEST_F(Agent, AnswersThatKfdTakesNoQuantum) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  EXPECT_EQ(loop->set_quantum(target_id, gpu_id{1}, 50us).error(), errc::unknown_target);
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(loop->set_quantum(target_id, gpu_id{1}, 50us));
  ASSERT_TRUE(loop.until([&] { return loop.quanta.contains(target_id); }));
  EXPECT_EQ(loop.quanta[target_id], errc::not_supported);
}

TEST_F(Agent, WorksForAHostThatWaitsForEverybody) {
  child_process host{[this](channel& line) {
    backend_loop loop{make_agent_backend(options())};
    std::atomic<bool> end{false};
    std::thread waiter{[&end] {
      while (!end) {
        ::waitpid(-1, nullptr, WNOHANG | __WALL);
        std::this_thread::sleep_for(100us);
      }
    }};
    bool good = loop.start() && attach(loop);
    for (int round = 0; round < 20 && good; ++round) good = suspend(loop) && resume(loop);
    line.send(good ? "good" : "bad");
    line.receive(10s);
    end = true;
    waiter.join();
    return good ? 0 : 1;
  }};
  ASSERT_TRUE(host.says("good", 20s));
  // Its stops are the agent's to take, and the agent takes them.
  ::kill(target_.pid(), SIGWINCH);
  EXPECT_TRUE(target_.runs());
  host.line().send("end");
  EXPECT_TRUE(host.succeeds(10s));
}

TEST_F(Agent, WorksForAHostThatIgnoresItsChildren) {
  child_process host{[this](channel& line) {
    std::signal(SIGCHLD, SIG_IGN);
    backend_loop loop{make_agent_backend(options())};
    bool good = loop.start() && attach(loop);
    for (int round = 0; round < 20 && good; ++round) good = suspend(loop) && resume(loop);
    line.send(good ? "good" : "bad");
    line.receive(10s);
    return good ? 0 : 1;
  }};
  ASSERT_TRUE(host.says("good", 20s));
  // An agent that had inherited the ignored SIGCHLD would never hear of this stop.
  ::kill(target_.pid(), SIGSTOP);
  const auto stopped = target_.process().status();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(WSTOPSIG(*stopped), SIGSTOP);
  ::kill(target_.pid(), SIGCONT);
  EXPECT_TRUE(target_.runs());
  host.line().send("end");
  EXPECT_TRUE(host.succeeds(10s));
}

TEST_F(Agent, ResumesInTimeWhenItsHostIsStopped) {
  child_process host = host_that(keep_turning);
  ASSERT_TRUE(host.says("suspended", 20s));
  EXPECT_TRUE(target_.stands_still());
  measure(host.pid());
  const time_point since = clock::now();
  host.signal(SIGSTOP);
  expect_running_again_in_time(since);
  // It comes back to a world without its agent, and gets a new one.
  host.signal(SIGCONT);
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target_.pid()) == 0; }));
}

TEST_F(Agent, ResumesInTimeWhenItsHostHangs) {
  child_process host = host_that([](backend_loop&) {
    for (;;) ::pause();
  });
  ASSERT_TRUE(host.says("suspended", 20s));
  measure(host.pid());
  expect_running_again_in_time(clock::now());
}

TEST_F(Agent, ResumesInTimeWhenItsHostIsKilled) {
  child_process host = host_that(keep_turning);
  ASSERT_TRUE(host.says("suspended", 20s));
  EXPECT_TRUE(target_.stands_still());
  measure(host.pid());
  const time_point since = clock::now();
  host.signal(SIGKILL);
  expect_running_again_in_time(since);
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target_.pid()) == 0; }));
}

// The dump takes seconds, during which the host's memory and descriptors are still there.
TEST_F(Agent, ResumesInTimeWhenItsHostDumpsALargeCore) {
  const std::string where = device_.root();
  child_process host = host_that([where](backend_loop&) {
    if (!test::prepare_large_core(where.c_str())) return;
    std::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  });
  ASSERT_TRUE(host.says("suspended", 20s));
  measure(host.pid());
  expect_running_again_in_time(clock::now());
  EXPECT_TRUE(host.wait(60s));
}

TEST_F(Agent, IsReplacedWhenItIsKilled) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  const pid_t first = agent_pid();
  measure();
  const time_point since = clock::now();
  ::kill(first, SIGKILL);
  ASSERT_TRUE(loop.until([&] { return loop.losses == 1; }));
  expect_running_again_in_time(since);
  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }));
  EXPECT_NE(agent_pid(), first);
  ASSERT_TRUE(attach(loop));
  EXPECT_TRUE(suspend(loop));
  EXPECT_TRUE(resume(loop));
  EXPECT_TRUE(target_.runs());
}

TEST_F(Agent, IsKilledAndReplacedWhenItIsStopped) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  measure();
  const time_point since = clock::now();
  ::kill(agent_pid(), SIGSTOP);
  const std::uint64_t before = target_.kernels();
  EXPECT_TRUE(loop.until([&] { return target_.kernels() >= before + 2; }, patience));
  expect_in_time(since);
  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }));
  EXPECT_EQ(loop.losses, 1);
  ASSERT_TRUE(attach(loop));
  EXPECT_TRUE(suspend(loop));
}

// Nothing but the agent's death makes the driver resume then; so the agent ends.
TEST_F(Agent, EndsWhenTheDriverRefusesToResumeAndToEndTheSession) {
  const test::refusals refusals{device_.root() + "/refusals"};
  const std::string wrapper = device_.root() + "/agent";
  // The agent gets no LD_PRELOAD of its host's.
  std::ofstream{wrapper}
      << "#!/bin/sh\nexec env LD_PRELOAD=" SLUICE_REFUSING_DRIVER
         " ASAN_OPTIONS=verify_asan_link_order=0:$ASAN_OPTIONS " SLUICE_AGENT_PROGRAM " \"$@\"\n";
  ASSERT_EQ(::chmod(wrapper.c_str(), 0755), 0);
  agent_options refusing = options();
  refusing.agent_path = wrapper;
  backend_loop loop{make_agent_backend(refusing)};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  refusals.set({{kfd::uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, EPERM},
                {kfd::uapi::KFD_IOC_DBG_TRAP_DISABLE, EPERM}});
  const auto answer = loop.resume(target_id, {0});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcomes[0], outcome::failed);
  ASSERT_TRUE(loop.until([&] { return loop.losses == 1; }));
  EXPECT_TRUE(target_.runs());
  refusals.lift();
  EXPECT_TRUE(loop.until([&] { return loop.restorations == 1; }));
}

/// With a driver that lets the process that enabled a session act on it, and not only a tracer.
class AgentWithoutTracing : public Agent {
 protected:
  AgentWithoutTracing() : Agent("authority = \"debugger_process\"\n") {}
};

// Whatever an offline process calls, the agent stays, and with it the suspensions of all others.
TEST_F(AgentWithoutTracing, StaysWhenTheTargetEndsItsOwnSession) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(attach(loop));
    ASSERT_TRUE(suspend(loop));
    EXPECT_TRUE(target_.stands_still());
    ASSERT_TRUE(target_.obeys('s'));
    EXPECT_TRUE(target_.runs());
    EXPECT_FALSE(resume(loop));
    ASSERT_TRUE(loop.until([&] { return loop.detachments.erase(target_id) == 1; }));
    loop.queues.clear();
  }
  EXPECT_EQ(loop.losses, 0);
  EXPECT_TRUE(target_.runs());
}

// The driver counts the sessions that end with the agent. A DISABLE of the agent for a session that
// the target began itself would make it count one too few.
TEST_F(AgentWithoutTracing, ResumesTheOthersByItsDeathAfterATargetBeganItsOwnSession) {
  const offline_target beside{device_.roots()};
  ASSERT_TRUE(beside.says('r'));
  constexpr process_id beside_id{2};
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(loop->attach(beside_id, beside.pid(), beside.start_time()));
  ASSERT_TRUE(loop.until([&] { return loop.queues[beside_id].size() == 1; }));
  ASSERT_TRUE(suspend(loop));
  ASSERT_TRUE(acted(loop.suspend(beside_id, {0})));
  ASSERT_TRUE(target_.obeys('S'));
  EXPECT_FALSE(resume(loop));
  ASSERT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  EXPECT_EQ(loop.losses, 0);
  EXPECT_TRUE(target_.runs());
  EXPECT_TRUE(beside.stands_still());
  ::kill(agent_pid(), SIGKILL);
  EXPECT_TRUE(beside.runs());
  EXPECT_TRUE(loop.until([&] { return loop.restorations == 1; }));
}

// ENABLE of a tracer fails, and takes the session over nevertheless. The agent's end would not
// resume the target then; the end of the tracer lets the agent do it.
TEST_F(AgentWithoutTracing, ResumesWhenTheTracerThatTookTheSessionOverHasEnded) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  {
    const test::family tracer{[this](int said, int told) {
      const unique_fd node{::open(device_.roots().device.c_str(), O_RDWR | O_CLOEXEC)};
      kfd::uapi::kfd_runtime_info info{};
      kfd::uapi::kfd_ioctl_dbg_trap_args args{};
      args.pid = static_cast<std::uint32_t>(target_.pid());
      args.op = kfd::uapi::KFD_IOC_DBG_TRAP_ENABLE;
      args.enable.rinfo_ptr = reinterpret_cast<std::uintptr_t>(&info);
      args.enable.rinfo_size = sizeof info;
      args.enable.dbg_fd = static_cast<std::uint32_t>(said);
      const bool taken = ::ptrace(PTRACE_SEIZE, target_.pid(), nullptr, nullptr) == 0 &&
                         ::ioctl(node.get(), kfd::uapi::AMDKFD_IOC_DBG_TRAP, &args) != 0 &&
                         errno == EALREADY;
      (void)!::write(said, taken ? "y" : "n", 1);
      char end = 0;
      return static_cast<int>(::read(told, &end, 1));
    }};
    ASSERT_EQ(tracer.heard(), 'y');
    EXPECT_FALSE(resume(loop));
    EXPECT_TRUE(target_.stands_still());
  }
  EXPECT_TRUE(target_.runs());
  EXPECT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  EXPECT_EQ(loop.losses, 0);
}

// A dump keeps every target as it is. RLIMIT_CORE 0 says nothing to a program that takes dumps by a
// pipe (core_pattern), of 1 the kernel makes none for it either.
TEST_F(Agent, MakesNoCoreForAPipeEither) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  EXPECT_THAT(test::read_file("/proc/" + std::to_string(agent_pid()) + "/limits"),
              ::testing::ContainsRegex("Max core file size +1 +1 "));
}

TEST_F(Agent, ResumesEverythingWhenToldToEnd) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  ::kill(agent_pid(), SIGTERM);
  EXPECT_TRUE(target_.runs());
  EXPECT_TRUE(loop.until([&] { return loop.restorations == 1; }));
}

TEST_F(Agent, RefusesASecondSchedulerAndServesTheFirst) {
  backend_loop first{make_agent_backend(options())};
  ASSERT_TRUE(first.start());
  std::string message;
  agent_options again = options();
  again.say = [&message](std::string_view words) { message += words; };
  backend_loop second{make_agent_backend(again)};
  const auto started = second.start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error(), errc::already_owned);
  // Whoever stops the agent gets another one: what is to be stopped is its host.
  EXPECT_NE(message.find("owned by process " + std::to_string(::getpid()) + " (" +
                         command_of(::getpid()) + "), whose agent is process " +
                         std::to_string(agent_pid()) + " (sluice-agent)"),
            std::string::npos)
      << message;
  ASSERT_TRUE(attach(first));
  EXPECT_TRUE(suspend(first));
}

TEST_F(Agent, OutlivesItsTargets) {
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop));
  ::kill(target_.pid(), SIGKILL);
  EXPECT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  const auto status = target_.process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
  EXPECT_EQ(loop.losses, 0);
}

/// An agent with rules of its own, whatever its host asks for.
class AgentsRules : public Agent {
 protected:
  void SetUp() override {
    Agent::SetUp();
    ASSERT_TRUE(online_.says('r'));
    ASSERT_TRUE(unmatched_.says('r'));
    std::ofstream{file_} << "[roles]\nstore = \"" << store_
                         << "\"\npids = [{pid = " << online_.pid() << ", role = \"online\"}]\n";
    say_offline(target_);
  }
  void say_offline(const offline_target& whom, role what = role::offline) {
    std::string message;
    ASSERT_TRUE(roles::role_store{store_}.set(process_identity{whom.pid(), whom.start_time()}, what,
                                              message))
        << message;
  }
  agent_options own_rules() {
    agent_options with = options();
    with.roles = file_;
    with.say = [this](std::string_view words) { said_ += std::string{words} + "\n"; };
    return with;
  }
  /// How an attempt to attach ends.
  static error_code answer_to(backend_loop& loop, process_id id, const offline_target& whom) {
    EXPECT_TRUE(loop->attach(id, whom.pid(), whom.start_time()));
    EXPECT_TRUE(loop.until([&] { return loop.attachments.contains(id); }));
    return loop.attachments[id];
  }
  static bool is_traced(const offline_target& whom) {
    return tracer_of(whom.pid()).value_or(-1) != 0;
  }

  offline_target online_{device_.roots()};
  offline_target unmatched_{device_.roots()};
  const std::string file_ = device_.root() + "/sluice.toml";
  const std::string store_ = device_.root() + "/roles";
  std::string said_;
};

TEST_F(AgentsRules, AllowNoHostToTouchOnlineOrUnmatchedProcesses) {
  backend_loop loop{make_agent_backend(own_rules())};
  ASSERT_TRUE(loop.start());
  EXPECT_EQ(answer_to(loop, process_id{2}, online_), errc::not_managed);
  EXPECT_EQ(answer_to(loop, process_id{3}, unmatched_), errc::not_managed);
  for (const auto* each : {&online_, &unmatched_}) {
    EXPECT_FALSE(is_traced(*each));
    EXPECT_TRUE(each->runs());
  }
  EXPECT_FALSE(acted(loop.suspend(process_id{2}, {0})));
  EXPECT_TRUE(online_.runs());
  EXPECT_TRUE(loop.until([&] { return said_.find("2 refused") != std::string::npos; })) << said_;
  const std::string words = "refused to attach to process ";
  const std::string why = " according to the agent's own rules in " + file_;
  EXPECT_THAT(said_,
              ::testing::HasSubstr(words + std::to_string(online_.pid()) + ": it is online" + why));
  EXPECT_THAT(said_, ::testing::HasSubstr(words + std::to_string(unmatched_.pid()) +
                                          ": it is not offline" + why));
  // And serve whom they call offline.
  ASSERT_TRUE(attach(loop));
  EXPECT_TRUE(suspend(loop));
  EXPECT_TRUE(resume(loop));
}

TEST_F(AgentsRules, AreAskedAgainWhenATargetRunsAnotherProgram) {
  backend_loop loop{make_agent_backend(own_rules())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop));
  say_offline(target_, role::online);
  EXPECT_TRUE(target_.obeys('x'));
  EXPECT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  EXPECT_TRUE(eventually(patience, [&] { return !is_traced(target_); }));
  EXPECT_EQ(::kill(target_.pid(), 0), 0);
  // The agent's words arrive on another pipe than the detachment.
  const std::string words =
      ": it is online according to the agent's own rules in " + file_ + " (1 refused so far)";
  EXPECT_TRUE(loop.until([&] { return said_.find(words) != std::string::npos; })) << said_;
}

// A store that is not root's has its owner looked at, which the filter took for an attack.
TEST_F(AgentsRules, AreThoseOfAHostThatIsNotRootToo) {
  if (test::read_file("/proc/sys/kernel/yama/ptrace_scope").find_first_of("123") !=
      std::string::npos)
    GTEST_SKIP() << "here no user may trace his own processes";
  constexpr uid_t user = 64003;
  const std::string own = device_.root() + "/own";
  const offline_target theirs{device_.roots(), {.user = user}};
  ASSERT_TRUE(theirs.says('r'));
  // The directory above is the test's alone.
  ASSERT_EQ(::chmod((device_.root() + "/..").c_str(), 0755), 0);
  ASSERT_TRUE(std::filesystem::create_directory(own));
  std::filesystem::copy_file(SLUICE_AGENT_PROGRAM, own + "/sluice-agent");
  ASSERT_EQ(::chown(own.c_str(), user, user), 0);
  child_process host{[&](channel& line) {
    if (::setgid(user) != 0 || ::setuid(user) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) return 2;
    std::ofstream{own + "/sluice.toml"} << "[roles]\nstore = \"" << own << "/roles\"\n";
    const process_identity who{theirs.pid(), theirs.start_time()};
    std::string message;
    if (!roles::role_store{own + "/roles"}.set(who, role::offline, message)) return 3;
    agent_options with = options();
    with.agent_path = own + "/sluice-agent";
    with.owner_lock = "";
    with.roles = own + "/sluice.toml";
    backend_loop loop{make_agent_backend(with)};
    if (!loop.start() || !loop->attach(target_id, who.pid, who.start_time)) return 4;
    if (!loop.until([&] { return loop.losses > 0 || !loop.attachments.empty(); })) return 5;
    line.send(loop.losses > 0 ? "the agent has died" : loop.attachments[target_id].message());
    return 0;
  }};
  EXPECT_EQ(host.line().receive(20s).value_or("nothing"), error_code{}.message());
  EXPECT_TRUE(host.succeeds(10s));
}

TEST_F(AgentsRules, AreToBeReadable) {
  agent_options with = own_rules();
  std::ofstream{file_} << "[roles]\nqueue_priority = 7\n";
  EXPECT_EQ(backend_loop{make_agent_backend(with)}.start().error(), errc::bad_config);
  EXPECT_THAT(said_, ::testing::HasSubstr(file_ + ":2: "));
  with.roles = device_.root() + "/nowhere";
  EXPECT_EQ(backend_loop{make_agent_backend(with)}.start().error(),
            boost::system::errc::no_such_file_or_directory);
}

/// What an agent can do that has no other capabilities than these, for a target of another user.
struct rights {
  const char* name;
  std::vector<int> capabilities;
  const char* driver;  ///< Lines of the profile.
  bool attaches = true;
  std::optional<bool> reserves{};
};

void PrintTo(const rights& what, std::ostream* to) { *to << what.name; }

class AgentsCapabilities : public ::testing::TestWithParam<rights> {};

constexpr const char* by_process = "authority = \"debugger_process\"\n";
constexpr const char* in_batches = "batch_commands = true\n";

// Each of SECURITY.md's list is needed for what is said there: with it that works, without it does
// not. (CAP_CHECKPOINT_RESTORE: the tests of process pauses, and NamesTheCapabilityThatIsMissing.)
INSTANTIATE_TEST_SUITE_P(
    Of, AgentsCapabilities,
    ::testing::Values(
        rights{"NothingTracesNobody", {}, "", false},
        rights{"SysPtraceTraces", {CAP_SYS_PTRACE}, ""},
        rights{"SysPtraceAloneCannotTellExecs", {CAP_SYS_PTRACE}, by_process, false},
        rights{"DacReadSearchTellsExecs", {CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH}, by_process},
        rights{"WithoutSysAdminNothingIsReserved", {CAP_SYS_PTRACE}, in_batches, true, false},
        rights{"SysAdminReserves", {CAP_SYS_PTRACE, CAP_SYS_ADMIN}, in_batches, true, true}),
    [](const auto& each) { return each.param.name; });

TEST_P(AgentsCapabilities, AreNeeded) {
  const rights& given = GetParam();
  const test::simulated_device device{{.profile = test::fast_profile(given.driver)}};
  const offline_target target{device.roots(), {.user = 65534}};
  ASSERT_TRUE(target.says('r'));
  child_process host{[&](channel& line) {
    // A program of root's gets by an exec what is in here.
    for (int each = 0; ::prctl(PR_CAPBSET_READ, each) >= 0; ++each) {
      if (std::ranges::find(given.capabilities, each) == given.capabilities.end() &&
          ::prctl(PR_CAPBSET_DROP, each) != 0)
        return 2;
    }
    auto made =
        launch(SLUICE_AGENT_PROGRAM,
               {.driver = kfd::acting({.where = device.roots()}), .owner_lock = "", .lease = 30s});
    if (!made) return 3;
    command_writer commands{made->page->commands};
    report_reader reports{made->page->reports};
    report heard;
    const auto answered = [&](const command& order, report_kind answer) {
      if (commands.push(order) != ring_status::done) return false;
      ::eventfd_write(made->agent_doorbell.get(), 1);
      return eventually(patience, [&] {
        while (reports.pop(heard) == ring_status::done)
          if (heard.kind == answer) return true;
        return false;
      });
    };
    command order;
    order.type = command_type::attach;
    order.target = target_id;
    order.pid = target.pid();
    order.start_time = target.start_time();
    if (!answered(order, report_kind::attached)) return 4;
    line.send(error_code{heard.error} ? "does not attach" : "attaches");
    if (!given.reserves) return 0;
    order.type = command_type::reserve;
    order.gpu = gpu_id{51110};
    order.offline_share = 0.5;
    if (!answered(order, report_kind::reserved)) return 5;
    line.send(error_code{heard.error} ? "does not reserve" : "reserves");
    return 0;
  }};
  EXPECT_EQ(host.line().receive(20s).value_or("nothing"),
            given.attaches ? "attaches" : "does not attach");
  if (given.reserves) {
    EXPECT_EQ(host.line().receive(20s).value_or("nothing"),
              *given.reserves ? "reserves" : "does not reserve");
  }
  EXPECT_TRUE(host.succeeds(10s));
}

}  // namespace
}  // namespace sluice::agent::agent_test
