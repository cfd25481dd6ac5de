// The daemon as an operator runs it: `sluice run`, `check`, `pause`, on the simulated device.

#include "command.hpp"
#include "device_view.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/client.h"
#include "sluice/time.hpp"

namespace sluice::test::daemon_test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Matches;
using testing::Not;

std::chrono::milliseconds since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               then);
}

/// This test as a model server: a client in another process than the scheduler's.
class online_client {
 public:
  explicit online_client(const std::string& socket) {
    sluice_client_options with{};
    with.size = sizeof with;
    with.socket = socket.c_str();
    with.name = "test";
    if (sluice_client_open(&with, &client_) != 0) throw std::runtime_error{"sluice_client_open"};
  }
  ~online_client() { sluice_client_close(client_); }
  online_client(const online_client&) = delete;
  online_client& operator=(const online_client&) = delete;

  void begin() const { sluice_client_begin(client_); }
  void end() const { sluice_client_end(client_); }
  std::uint64_t connections() const {
    const auto now = status();
    return now.connected != 0 ? now.connections : 0;
  }
  std::string why() const { return status().why; }
  sluice_client_status status() const {
    sluice_client_status now{};
    now.size = sizeof now;
    sluice_client_get_status(client_, &now);
    return now;
  }

 private:
  sluice_connection* client_ = nullptr;
};

/// What a service manager hears.
class manager_socket {
 public:
  explicit manager_socket(std::string path)
      : path_(std::move(path)), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un here = address();
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0)
      throw std::runtime_error{"bind " + path_};
  }
  ~manager_socket() { ::close(fd_); }
  manager_socket(const manager_socket&) = delete;
  manager_socket& operator=(const manager_socket&) = delete;

  const std::string& path() const { return path_; }
  /// Until nobody can send anything more before it hears.
  void fill() const {
    const int other = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_un to = address();
    while (::sendto(other, "x", 1, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 1) {
    }
    EXPECT_EQ(errno, EAGAIN);
    ::close(other);
  }
  /// Whether a message that begins so comes; others are skipped.
  bool hears(const std::string& beginning) const {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < end) {
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 100) != 1) continue;
      std::array<char, 1024> text{};
      const auto got = ::recv(fd_, text.data(), text.size(), 0);
      if (got > 0 && std::string(text.data(), static_cast<std::size_t>(got)).starts_with(beginning))
        return true;
    }
    return false;
  }

 private:
  sockaddr_un address() const {
    sockaddr_un made{};
    made.sun_family = AF_UNIX;
    path_.copy(made.sun_path, sizeof made.sun_path - 1);
    return made;
  }

  std::string path_;
  int fd_;
};

class Daemon : public testing::Test {
 protected:
  Daemon() {
    std::filesystem::create_directory(directory_);
    configure();
  }

  /// Writes the configuration: with fast attaches, and the given further lines.
  void configure(const std::string& daemon = "", const std::string& scheduler = "",
                 const std::string& policy = "", const std::string& roles = "") const {
    std::ofstream{config_}
        << "[daemon]\ndirectory = \"" << directory_ << "\"\n"
        << daemon << "\n[scheduler]\nattach_after = \"50ms\"\n"
        << (scheduler.find("attach_at_latest") == scheduler.npos ? "attach_at_latest = \"100ms\"\n"
                                                                 : "")
        << "offline_floor = 0\n"
        << (scheduler.find("max_suspend") == scheduler.npos ? "max_suspend = \"60s\"\n" : "")
        << scheduler << policy << "[roles]\nstore = \"\"\n"
        << roles;
  }
  std::unique_ptr<command> start(std::vector<std::string> words) const {
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + directory_ + "/breakers");
    environment.insert(environment.end(), daemon_environment_.begin(), daemon_environment_.end());
    return std::make_unique<command>(program_, std::move(words), std::move(environment));
  }
  /// The daemon, once it owns the node.
  std::unique_ptr<command> run() const {
    auto made = start({"run", "-c", config_});
    EXPECT_TRUE(logs(*made, "owns the node")) << made->err();
    return made;
  }
  static bool logs(command& of, const std::string& text) {
    return eventually(patience, [&] { return of.err().find(text) != std::string::npos; });
  }
  /// Has it read its configuration, and waits until it says so.
  static void reload(command& daemon, const std::string& text) {
    const auto before = daemon.err().size();
    daemon.signal(SIGHUP);
    ASSERT_TRUE(eventually(patience, [&] {
      return daemon.err().find(text, before) != std::string::npos;
    })) << daemon.err();
  }
  bool becomes(const target_process& one, std::uint64_t queues) const {
    return eventually(patience,
                      [&] { return view_.process(one.pid()).suspended_queues == queues; });
  }
  bool progresses(const target_process& one) const {
    const auto before = view_.process(one.pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(one.pid()).kernels_completed > before + 2; });
  }
  std::unique_ptr<target_process> target(const std::string& tag, const std::string& kernel) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    auto made = std::make_unique<target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{"1", kernel}, environment);
    EXPECT_EQ(made->hear(patience), "ready");
    return made;
  }
  std::unique_ptr<target_process> offline() const { return target("OFFLINE_AI", "2000"); }
  std::unique_ptr<target_process> online() const { return target("ONLINE_AI", "0"); }
  /// 0: nobody.
  static pid_t tracer_of(const target_process& one) {
    std::ifstream status("/proc/" + std::to_string(one.pid()) + "/status");
    const std::string head = "TracerPid:";
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(head)) return std::stoi(line.substr(head.size()));
    return 0;
  }
  static bool traced(const target_process& one) { return tracer_of(one) != 0; }

  std::string program_ = SLUICE_PROGRAM;
  std::vector<std::string> daemon_environment_;
  simulated_device device_{{.profile = "mi300x"}};
  const device_view view_{device_.root()};
  const std::string directory_ = device_.root() + "/run";
  const std::string config_ = device_.root() + "/sluice.toml";
};

TEST_F(Daemon, BlamesTheOptionForWhatTheOptionSays) {
  const auto daemon = start({"run", "--trace-out", "/nonexistent/x"});
  EXPECT_EQ(daemon->ends(), 1);
  EXPECT_EQ(
      daemon->err(),
      "sluice: --trace-out /nonexistent/x: directory /nonexistent does not exist; create it\n");
}

TEST_F(Daemon, ObservesByDefaultAndCountsWhatItWouldHaveDone) {
  const auto trainer = offline();
  const auto server = online();
  const auto daemon = start({"run", "-c", config_});
  ASSERT_TRUE(logs(*daemon, "mode observe: it attaches to no process")) << daemon->err();
  // Until the policy has decided on a burst.
  ASSERT_TRUE(eventually(patience, [&] {
    EXPECT_EQ(server->ask("run 20000", patience), "submitted");
    std::this_thread::sleep_for(50ms);
    daemon->signal(SIGUSR1);
    return testing::Matches(ContainsRegex("not carried out: mode=observe [^\n]* suspends=[1-9]"))(
        daemon->err());
  })) << daemon->err();
  EXPECT_THAT(daemon->err(), HasSubstr(" attaches=1 "));
  const online_client client{directory_ + "/clients.sock"};
  EXPECT_TRUE(eventually(patience, [&] {
    return client.status().mode == std::uint32_t{SLUICE_CLIENT_MODE_OBSERVING};
  })) << client.why();
  EXPECT_THAT(daemon->err(), ContainsRegex(" processes=[0-9]+ queues=2 "));
  EXPECT_FALSE(traced(*trainer));
  EXPECT_EQ(view_.process(trainer->pid()).queue_suspends, 0U);
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_THAT(daemon->err(), Not(HasSubstr("[error]")));
}

TEST_F(Daemon, EnforcesForAnOnlineProcessThatKnowsNothingOfIt) {
  const auto trainer = offline();
  const auto server = online();
  configure("mode = \"enforce\"\n");
  const auto daemon = run();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  ASSERT_EQ(server->ask("run 500000", patience), "submitted");
  EXPECT_TRUE(eventually(patience, [&] {
    return view_.process(trainer->pid()).suspended_queues == 1;
  })) << daemon->err();
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_THAT(daemon->err(), HasSubstr("stopping: SIGTERM part=node\n"));
  EXPECT_EQ(view_.process(trainer->pid()).suspended_queues, 0U) << "the end resumes everything";
  EXPECT_FALSE(traced(*trainer));
  EXPECT_THAT(daemon->err(), ContainsRegex(" suspends=1 suspended_now=0 resumes=1 driver_calls=2"));
  EXPECT_EQ(trainer->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

TEST_F(Daemon, EnforcesForAClientAndFindsItAgainAfterARestart) {
  configure("mode = \"enforce\"\n", "", "[policy]\nname = \"fixed_timeslice\"\n");
  const auto trainer = offline();
  auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); }));
  client.begin();
  ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();

  // With work in flight, and offline work suspended.
  for (const int how : {SIGTERM, SIGKILL}) {
    const auto connections = client.connections();
    const auto suspends = view_.process(trainer->pid()).queue_suspends;
    const auto killed = clock::now();
    daemon->signal(how);
    ASSERT_TRUE(daemon->ends());
    ASSERT_TRUE(becomes(*trainer, 0)) << "nobody holds it";
    const auto ran = since(killed);
    const auto started = clock::now();
    daemon = run();
    const auto owns = since(started);
    ASSERT_TRUE(eventually(patience, [&] { return client.connections() > connections; }));
    const auto connected = since(started);
    ASSERT_TRUE(eventually(patience, [&] {
      const auto seen = view_.process(trainer->pid());
      return seen.queue_suspends > suspends && seen.suspended_queues == 1;
    })) << daemon->err();
    std::cout << (how == SIGTERM ? "SIGTERM" : "SIGKILL") << ": offline work ran after "
              << ran.count() << " ms; the next daemon owned the node after " << owns.count()
              << " ms, had its client back after " << connected.count()
              << " ms, and held offline work for what was in flight after "
              << since(started).count() << " ms (attach_after 50 ms)\n";
  }
  client.end();
  EXPECT_TRUE(becomes(*trainer, 0));
  daemon->signal(SIGINT);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_EQ(trainer->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

// Symptom: offline work ran beside online work for seconds after a new agent was there.
TEST_F(Daemon, HoldsOfflineWorkAgainAtOnceAfterItsAgentWasKilled) {
  configure("mode = \"enforce\"\n", "attach_at_latest = \"1h\"\n",
            "[policy]\nname = \"fixed_timeslice\"\n");
  std::vector<std::unique_ptr<target_process>> trainers;
  for (int i = 0; i < 4; ++i) trainers.push_back(offline());
  const auto all = [&](auto&& holds) {
    return eventually(patience, [&] {
      return std::all_of(trainers.begin(), trainers.end(),
                         [&](const auto& each) { return holds(*each); });
    });
  };
  std::map<pid_t, std::uint64_t> suspends;  // Before the agent was killed.
  const auto held = [&](const auto& one) {
    const auto seen = view_.process(one.pid());
    return seen.suspended_queues == 1 && seen.queue_suspends > suspends[one.pid()];
  };
  const auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  ASSERT_TRUE(all(traced)) << daemon->err();
  client.begin();
  ASSERT_TRUE(all(held)) << daemon->err();

  for (const auto& each : trainers)
    suspends[each->pid()] = view_.process(each->pid()).queue_suspends;
  const auto killed = clock::now();
  ASSERT_EQ(::kill(tracer_of(*trainers[0]), SIGKILL), 0);  // A thread's id reaches its process.
  ASSERT_TRUE(all([&](const auto& one) {
    return view_.process(one.pid()).suspended_queues == 0 || held(one);
  })) << "nobody holds them";
  const auto ran = since(killed);
  ASSERT_TRUE(all(held)) << daemon->err();
  std::cout << "the agent's SIGKILL: offline work ran after " << ran.count()
            << " ms, and all of it was held again after " << since(killed).count() << " ms\n";
  EXPECT_TRUE(logs(*daemon, "agent: restored; 4 processes attached again")) << daemon->err();
  EXPECT_EQ(client.connections(), 1U);
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  for (const auto& each : trainers)
    EXPECT_EQ(each->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

// Symptom: a process that ended while the agent hung stayed in its runtime's last call for ever.
TEST_F(Daemon, AnswersAProcessThatEndedWhileItsAgentHung) {
  configure("mode = \"enforce\"\n");
  const auto trainer = target("OFFLINE_AI", "0");
  const auto daemon = run();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  ASSERT_EQ(trainer->ask("destroy 0", patience), "destroyed");
  ASSERT_TRUE(eventually(patience, [&] {
    daemon->signal(SIGUSR1);
    return daemon->err().find(" queues=0 ") != std::string::npos;
  })) << daemon->err();
  ASSERT_EQ(::kill(tracer_of(*trainer), SIGSTOP), 0);
  trainer->finish();
  EXPECT_EQ(trainer->wait_for(patience), 0) << daemon->err();
}

// Symptom: under a policy without pointers /proc/PID/mem of ended online processes stayed open.
TEST_F(Daemon, KeepsNothingOpenOfAnOnlineProcessThatEnded) {
  const std::string enforce = "mode = \"enforce\"\n";
  configure(enforce);
  const auto trainer = offline();
  auto server = online();
  const std::string memory = "/proc/" + std::to_string(server->pid()) + "/mem";
  const auto daemon = run();
  const auto is_open = [&] {
    std::error_code gone;
    for (const auto& each : std::filesystem::directory_iterator{
             "/proc/" + std::to_string(daemon->pid()) + "/fd", gone})
      if (std::filesystem::read_symlink(each, gone) == memory) return true;
    return false;
  };
  ASSERT_TRUE(eventually(patience, is_open)) << daemon->err();
  configure(enforce, "", "[policy]\nname = \"fixed_timeslice\"\n");
  reload(*daemon, "reloaded: ");
  server.reset();
  EXPECT_TRUE(eventually(patience, [&] { return !is_open(); })) << daemon->err();
}

/// What a GET of the metrics answers, without its head.
std::string metrics_of(const std::string& socket, const std::string& accept) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  socket.copy(to.sun_path, sizeof to.sun_path - 1);
  std::string all;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string asked = "GET /metrics HTTP/1.1\r\nAccept: " + accept + "\r\n\r\n";
    EXPECT_EQ(::send(fd, asked.data(), asked.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(asked.size()));
    std::array<char, 4096> some{};
    for (ssize_t got = 0; (got = ::recv(fd, some.data(), some.size(), 0)) > 0;)
      all.append(some.data(), static_cast<std::size_t>(got));
  }
  ::close(fd);
  const auto head = all.find("\r\n\r\n");
  return head == all.npos ? "" : all.substr(head + 4);
}

// What people ask afterwards: who was kept off for how long, how often, and why.
TEST_F(Daemon, AccountsForJobsCountsAndDrawsWhatHappened) {
  const std::string jobs = directory_ + "/jobs";
  const std::string socket = directory_ + "/metrics.sock";
  const std::string file = directory_ + "/sluice.prom";
  const std::string trace = directory_ + "/trace.json";
  const std::string recording = directory_ + "/node.rec";
  configure("mode = \"enforce\"\njobs = \"" + jobs + "\"\nmetrics = \"unix:" + socket +
                "\"\nmetrics_file = \"" + file + "\"\nrecord = \"" + recording + "\"\n",
            "", "[policy]\nname = \"fixed_timeslice\"\n");
  const auto trainer = offline();
  const auto daemon = start({"run", "-c", config_, "--trace-out", trace});
  ASSERT_TRUE(logs(*daemon, "owns the node")) << daemon->err();
  {
    const online_client client{directory_ + "/clients.sock"};
    ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
    ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
    for (int i = 0; i < 3; ++i) {
      client.begin();
      ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();
      client.end();
      ASSERT_TRUE(becomes(*trainer, 0)) << daemon->err();
    }
  }
  // The picture in it is up to a second old.
  std::string page;
  EXPECT_TRUE(eventually(patience, [&] {
    page = metrics_of(socket, "text/plain");
    return testing::Matches(testing::AllOf(
        HasSubstr("\nsluice_owns_node 1\n"),
        HasSubstr("sluice_group_suspensions_total{group=\"integration_tar\"} 3\n"),
        ContainsRegex("sluice_queues.gpu=\"[0-9]+\",role=\"offline\",state=\"running\". 1\n"),
        ContainsRegex("sluice_arrival_to_off_seconds_count.gpu=\"[0-9]+\". [1-3]\n")))(page);
  })) << page;
  std::ofstream{directory_ + "/page"} << metrics_of(socket, "application/openmetrics-text");
  command parsed{SLUICE_OBSERVE_CHECK, {"metrics", directory_ + "/page"}, {}};
  const auto read = parsed.ends();
  if (read != 77) {
    EXPECT_EQ(read, 0) << parsed.err();
  }
  EXPECT_TRUE(std::filesystem::exists(file));

  const auto look = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"jobs", jobs});
    command asked{program_, std::move(words), {}};
    (void)asked.ends();
    return asked.out();
  };
  trainer->finish();
  EXPECT_EQ(trainer->wait_for(patience), 0);
  EXPECT_TRUE(eventually(patience, [&] { return look({}).find("ended") != std::string::npos; }))
      << daemon->err();
  const std::string told = look({"--since", "1h"});
  EXPECT_THAT(told,
              ContainsRegex("integration_tar \\([a-z]+\\): .* wall, suspended .*, 3 times, "));
  const std::string json = look({"--json"});
  EXPECT_THAT(json, ContainsRegex("\"gpus\":\\[[0-9]+\\]"));
  EXPECT_THAT(json, ContainsRegex("\"wall_s\":[0-9]+[.][0-9]+,")) << "as people write numbers";
  EXPECT_THAT(look({"--user", "nobody"}), HasSubstr("no job lines in the last "));

  std::filesystem::remove(socket);
  EXPECT_TRUE(eventually(patience, [&] { return !metrics_of(socket, "text/plain").empty(); }));
  EXPECT_TRUE(logs(*daemon, "metrics are now served at unix:" + socket)) << daemon->err();

  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_FALSE(std::filesystem::exists(file)) << "nobody keeps it up to date";
  EXPECT_FALSE(std::filesystem::exists(socket));
  // Whose figures these are.
  command replayed{program_, {"replay", recording}, {}};
  EXPECT_EQ(replayed.ends(), 0) << replayed.err();
  EXPECT_THAT(replayed.out(), HasSubstr("; device: simulated\n"));
  command drawn{SLUICE_OBSERVE_CHECK, {"trace", trace}, {}};
  EXPECT_EQ(drawn.ends(), 0) << drawn.err();
  std::cout << parsed.out() << drawn.out() << told;
  if (read == 77) GTEST_SKIP() << "all but the page of metrics: " << parsed.out();
}

TEST_F(Daemon, ReloadsAllOrNothingAndLosesNoState) {
  const std::string policy = "[policy]\nname = \"fixed_timeslice\"\n";
  configure("mode = \"enforce\"\n", "", policy + "may_be = 1\n");
  auto daemon = start({"run", "-c", config_});
  EXPECT_EQ(daemon->ends(), 1) << "nothing starts on a wrong configuration";
  EXPECT_THAT(daemon->err(), HasSubstr("sluice.toml:12: may_be is not a parameter"));

  const std::string nobody = "may_claim_offline = { users = [] }\n";
  configure("mode = \"enforce\"\n", "", policy, nobody);
  const auto trainer = offline();
  daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  client.begin();
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  EXPECT_FALSE(traced(*trainer));

  // Whose word counts; the process is known already.
  configure("mode = \"enforce\"\n", "", policy);
  reload(*daemon, "reloaded: ");
  ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();

  // Settings, under what is suspended.
  const auto suspends = view_.process(trainer->pid()).queue_suspends;
  configure("mode = \"observe\"\n", "min_run = \"20ms\"\ninbox_capacity = 32768\n", policy);
  reload(*daemon, "reloaded: ");
  EXPECT_THAT(daemon->err(), HasSubstr("until the daemon is restarted: mode"));
  EXPECT_THAT(daemon->err(), HasSubstr("the scheduler must be restarted to change these settings; "
                                       "current values: inbox_capacity (16384)"));
  EXPECT_THAT(daemon->err(), Not(HasSubstr("policy fixed_timeslice/client_done: recreated")));
  configure("", "min_run = 20\nfloor = 1\n", policy + "slice = \"2h\"\n", nobody + "x = 1\n");
  reload(*daemon, "reload failed: the settings are unchanged");
  for (const char* const each : {"min_run must be a duration", "floor is not a setting",
                                 "slice is 2h", "x is not a setting of [roles]"})
    EXPECT_THAT(daemon->err(), HasSubstr(each));
  EXPECT_TRUE(traced(*trainer));
  EXPECT_EQ(view_.process(trainer->pid()).queue_suspends, suspends) << "it stayed suspended";
  EXPECT_EQ(client.connections(), 1U);

  // A limit that is tighter now holds at once.
  configure("mode = \"enforce\"\n", "max_suspend = \"5ms\"\nmin_run = \"10s\"\n", policy);
  reload(*daemon, "reloaded: ");
  EXPECT_TRUE(becomes(*trainer, 0)) << daemon->err();

  configure("mode = \"enforce\"\n", "", "[policy]\nname = \"fixed_timeslice\"\nslice = \"1ms\"\n");
  reload(*daemon, "policy fixed_timeslice/client_done: recreated");
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
}

TEST_F(Daemon, LogsEachPartAtItsLevel) {
  const std::string policy = "[policy]\nname = \"fixed_timeslice\"\nslice = \"";
  const std::string replaced = "policy fixed_timeslice/client_done: recreated";
  configure("log_levels = { policy = \"error\" }\n", "", policy + "1ms\"\n");
  const auto daemon = run();
  configure("log_levels = { policy = \"error\" }\n", "", policy + "2ms\"\n");
  reload(*daemon, "reloaded: ");
  configure("", "", policy + "3ms\"\n");
  reload(*daemon, replaced);
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
  const std::string said = daemon->err();
  EXPECT_EQ(said.find(replaced), said.rfind(replaced)) << said;
  EXPECT_THAT(said, HasSubstr("recreated part=policy policy=fixed_timeslice/client_done\n"));
  EXPECT_THAT(said, HasSubstr("stopping: SIGTERM part=node\n")) << "what waits is written";
}

TEST_F(Daemon, IsPausedOverItsRestarts) {
  configure("mode = \"enforce\"\n", "", "[policy]\nname = \"fixed_timeslice\"\n");
  const auto trainer = offline();
  auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  client.begin();
  ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();

  auto paused = start({"pause", "--why", "new firmware", "--directory", directory_});
  EXPECT_EQ(paused->ends(), 0) << paused->err();
  EXPECT_THAT(paused->out(), HasSubstr("process " + std::to_string(daemon->pid()) +
                                       " (sluice), whose agent is process "));
  EXPECT_THAT(paused->out(), HasSubstr(" (sluice-agent) owns the node and obeys the pause\n"));
  EXPECT_TRUE(becomes(*trainer, 0)) << daemon->err();
  EXPECT_TRUE(logs(
      *daemon, "paused: everything runs while " + directory_ + "/disabled exists (new firmware)"));
  auto doctor = start({"doctor", "--directory", directory_});
  doctor->ends();
  EXPECT_THAT(doctor->out(), HasSubstr("paused: " + directory_ + "/disabled exists: new firmware"));
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);

  daemon = run();
  EXPECT_TRUE(logs(*daemon, "exists (new firmware)")) << daemon->err();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); }));
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 2; }));
  const auto suspends = view_.process(trainer->pid()).queue_suspends;
  EXPECT_TRUE(progresses(*trainer));
  EXPECT_EQ(view_.process(trainer->pid()).queue_suspends, suspends);

  paused = start({"unpause", "--directory", directory_});
  EXPECT_EQ(paused->ends(), 0) << paused->err();
  EXPECT_TRUE(becomes(*trainer, 1)) << daemon->err();
  std::ofstream{directory_ + "/disabled"}.flush();
  EXPECT_TRUE(becomes(*trainer, 0)) << "a touch does it as well";
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
}

TEST_F(Daemon, LeavesTheOwnersTraceAlone) {
  const std::string trace = directory_ + "/trace.json";
  const auto size = [&] {
    std::error_code error;
    const auto found = std::filesystem::file_size(trace, error);
    return error ? 0 : found;
  };
  auto owner = start({"run", "-c", config_, "--trace-out", trace});
  ASSERT_TRUE(eventually(patience, [&] { return size() != 0; })) << owner->err();
  const auto before = size();
  const auto second = start({"run", "-c", config_, "--trace-out", trace});
  ASSERT_TRUE(logs(*second, "following it")) << second->err();
  EXPECT_GE(size(), before);
  owner->signal(SIGTERM);
  EXPECT_EQ(owner->ends(), 0);
  ASSERT_TRUE(logs(*second, "mode observe: it attaches to no process")) << second->err();
  second->signal(SIGTERM);
  EXPECT_EQ(second->ends(), 0);
  std::ifstream file{trace};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_TRUE(text.starts_with("[\n{")) << text;
  EXPECT_TRUE(text.ends_with("}\n]\n")) << text;
}

TEST_F(Daemon, TellsItsServiceManagerHowItFares) {
  const manager_socket manager{directory_ + "/notify"};
  daemon_environment_ = {"NOTIFY_SOCKET=" + manager.path(), "WATCHDOG_USEC=200000"};
  const auto daemon = start({"run", "-c", config_});
  EXPECT_TRUE(manager.hears("READY=1\nSTATUS=observes the node")) << daemon->err();
  EXPECT_TRUE(manager.hears("WATCHDOG=1"));
  EXPECT_TRUE(manager.hears("WATCHDOG=1"));
  daemon->signal(SIGHUP);
  EXPECT_TRUE(manager.hears("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_TRUE(manager.hears("READY=1"));
  std::ofstream{directory_ + "/disabled"}.flush();
  EXPECT_TRUE(manager.hears("STATUS=observes the node, paused"));
  daemon->signal(SIGTERM);
  EXPECT_TRUE(manager.hears("STOPPING=1"));
  EXPECT_EQ(daemon->ends(), 0);
}

// The scheduler does not wait for a manager that reads nothing.
TEST_F(Daemon, SchedulesWhileItsServiceManagerHangs) {
  const manager_socket manager{directory_ + "/notify"};
  daemon_environment_ = {"NOTIFY_SOCKET=" + manager.path(), "WATCHDOG_USEC=20000"};
  configure("mode = \"enforce\"\n", "", "[policy]\nname = \"fixed_timeslice\"\nslice = \"1ms\"\n");
  const auto trainer = offline();
  const auto daemon = run();
  EXPECT_TRUE(manager.hears("WATCHDOG=1")) << daemon->err();
  manager.fill();
  const online_client client{directory_ + "/clients.sock"};
  for (int round = 0; round < 20; ++round) {  // some hundreds of milliseconds
    client.begin();
    ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();
    client.end();
    ASSERT_TRUE(becomes(*trainer, 0)) << daemon->err();
  }
  EXPECT_TRUE(manager.hears("WATCHDOG=1")) << "it goes on when it is heard again";
  daemon->signal(SIGTERM);
  EXPECT_TRUE(manager.hears("STOPPING=1"));
  EXPECT_EQ(daemon->ends(), 0);
}

// Then systemd kills and restarts it; what it held runs long before.
TEST_F(Daemon, DoesNotCallItselfAliveWhileItsLoopHangs) {
  const manager_socket manager{directory_ + "/notify"};
  daemon_environment_ = {"NOTIFY_SOCKET=" + manager.path(), "WATCHDOG_USEC=200000"};
  configure("mode = \"enforce\"\n", "",
            "[policy]\nplugin = \"" SLUICE_HOLD_ALL "\"\nsleep = \"1s\"\n");
  const auto trainer = offline();
  const auto daemon = start({"run", "-c", config_});
  ASSERT_TRUE(manager.hears("READY=1")) << daemon->err();
  std::chrono::milliseconds longest{};
  auto last = std::chrono::steady_clock::now();
  const auto give_up = last + patience;
  while (daemon->err().find("policy hold_all: removed") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up) << daemon->err();
    ASSERT_TRUE(manager.hears("WATCHDOG=1")) << daemon->err();
    longest = std::max(longest, since(std::exchange(last, std::chrono::steady_clock::now())));
  }
  EXPECT_GE(longest, 800ms) << "each turn of its policy takes a second";
  EXPECT_TRUE(logs(*daemon, "the host has been silent for longer than its lease"));
  EXPECT_TRUE(becomes(*trainer, 0));
  EXPECT_TRUE(progresses(*trainer));
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
}

// As a container's seccomp filter does it. Its sibling is the same process, with the same
// options.
TEST_F(Daemon, GoesOnAsItsSiblingWhereTheKernelRefusesIoUring) {
  configure("", "", "[policy]\nname = \"fixed_timeslice\"\n");
  program_ = SLUICE_WITHOUT_IO_URING;
  const auto trainer = offline();
  const auto daemon = start({SLUICE_PROGRAM, "run", "--mode", "enforce", "-c", config_});
  ASSERT_TRUE(
      logs(*daemon, "this program owns the node (lock " + directory_ + "/owner) part=node\n"))
      << daemon->err();
#ifdef SLUICE_WANTS_IO_URING
  EXPECT_THAT(daemon->err(), HasSubstr("sluice: the kernel refuses io_uring (Operation not "
                                       "permitted); continuing as sluice-epoll\n"));
  EXPECT_EQ(std::filesystem::read_symlink("/proc/" + std::to_string(daemon->pid()) + "/exe"),
            std::filesystem::canonical(SLUICE_EPOLL_SIBLING));
#endif
  const online_client client{directory_ + "/clients.sock"};
  client.begin();
  EXPECT_TRUE(becomes(*trainer, 1)) << daemon->err();
  reload(*daemon, "reloaded: mode enforce");
  client.end();
  EXPECT_TRUE(becomes(*trainer, 0)) << daemon->err();
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
}

TEST_F(Daemon, FollowsAnOwnerAndTakesOver) {
  configure("mode = \"enforce\"\n");
  const auto first = run();
  const auto second = start({"run", "-c", config_});
  ASSERT_TRUE(logs(*second, "this node is owned by process " + std::to_string(first->pid()) +
                                " (sluice), whose agent is process "))
      << second->err();
  second->signal(SIGUSR1);
  EXPECT_TRUE(logs(*second, "statistics: none, because this daemon follows the owner, process " +
                                std::to_string(first->pid())))
      << second->err();
  first->signal(SIGKILL);
  EXPECT_TRUE(logs(*second, "this program owns the node")) << second->err();
  second->signal(SIGTERM);
  EXPECT_EQ(second->ends(), 0) << second->err();
}

TEST_F(Daemon, WarnsOnceWhereItsOwnerOnlyObserves) {
  const auto first = start({"run", "-c", config_});
  ASSERT_TRUE(logs(*first, "mode observe: it attaches to no process")) << first->err();
  const auto second = start({"run", "--mode", "enforce", "-c", config_});
  const std::string warning = "[warning] the owner, process " + std::to_string(first->pid()) +
                              " (sluice), only observes: nothing will be suspended";
  ASSERT_TRUE(logs(*second, warning)) << second->err();
  auto paused = start({"pause", "--directory", directory_});
  EXPECT_EQ(paused->ends(), 0) << paused->err();
  EXPECT_THAT(paused->out(), HasSubstr("owns the node in observe mode"));
  std::filesystem::remove(directory_ + "/disabled");
  first->signal(SIGTERM);
  EXPECT_EQ(first->ends(), 0);
  EXPECT_TRUE(
      logs(*second, "this program owns the node (lock " + directory_ + "/owner) part=node\n"))
      << second->err();
  EXPECT_EQ(second->err().find(warning), second->err().rfind(warning)) << "some looks later";
  second->signal(SIGTERM);
  EXPECT_EQ(second->ends(), 0);
}

TEST_F(Daemon, ChecksAConfigurationWithoutStartingAnything) {
  auto check = start({"check", SLUICE_EXAMPLE_CONFIG});
  EXPECT_EQ(check->ends(), 0) << check->err();
  EXPECT_THAT(check->out(),
              HasSubstr("sluice.toml: ok: mode observe (attaches to no process), policy "
                        "pointer_polling:"));
  std::ofstream{config_} << "[daemon]\ndirectory = \"" << directory_
                         << "/nowhere\"\nsocket_group = \"root\"\n"
                         << "[roles]\nstore = \"\"\nmay_claim_offline = { users = [] }\n";
  check = start({"check", config_});
  EXPECT_EQ(check->ends(), 0) << check->err();
  EXPECT_THAT(
      check->out(),
      AllOf(HasSubstr("not ready here: directory " + directory_ + "/nowhere does not exist"),
            HasSubstr("socket_group of [daemon] lets gid 0 connect, but may_claim_online"),
            HasSubstr("no rule of [roles] can make a process offline")));
  std::ofstream{config_}
      << "[daemon]\nmode = \"observe\"\n[roles]\ngang_across_nodes = \"slurm\"\n";
  check = start({"check", config_});
  EXPECT_EQ(check->ends(), 0) << check->err();
  EXPECT_THAT(
      check->out(),
      AllOf(
          HasSubstr(", gangs across nodes by Slurm\n"),
          HasSubstr("not ready here: gang_across_nodes of [roles] has no effect in mode observe")));
  configure("mode = \"both\"\nspeed = 1\n", "min_run = \"2h\"\nmax_busy = 1\n");
  check = start({"check", config_});
  EXPECT_EQ(check->ends(), 1);
  EXPECT_EQ(check->out(), "");
  EXPECT_THAT(check->err(),
              ContainsRegex("^sluice: [^\n]+:3: mode must be \"observe\" or \"enforce\"\n"
                            "sluice: [^\n]+:4: speed is not a setting of \\[daemon\\]\n"
                            "sluice: [^\n]+: min_run is 2h; it must be 1ms to 1min\n"
                            "sluice: [^\n]+: max_busy must be a duration in quotes[^\n]+\n$"));
  configure("mode = \"enforce\"\nagent = \"/nope\"\nrecord = \"/nope/x.rec\"\n");
  for (const char* const word : {"check", "run"}) {
    check = word == std::string{"run"} ? start({"run", "-c", config_}) : start({"check", config_});
    EXPECT_EQ(check->ends(), 1);
    EXPECT_EQ(check->err(),
              "sluice: " + config_ +
                  ": [daemon] agent = /nope: program not found; set the path of sluice-agent\n" +
                  "sluice: " + config_ +
                  ": [daemon] record = /nope/x.rec: directory /nope does not exist; create it\n");
  }
  configure("record = \"/proc/x.rec\"\n");  // where nobody makes files
  check = start({"run", "-c", config_});
  EXPECT_EQ(check->ends(), 1);
  EXPECT_THAT(
      check->err(),
      HasSubstr("cannot write the recording /proc/x.rec: No such file or directory part=node\n"));
  check = start({"check", "/nonexistent"});
  EXPECT_EQ(check->ends(), 1);
  EXPECT_EQ(check->err(),
            "sluice: /nonexistent: cannot read the configuration: No such file or directory\n");
}

// `sluice status`, `why`, `policy --use`, `pause` and `top`, of a daemon that runs.
class DaemonShown : public Daemon {
 protected:
  DaemonShown() { configure("mode = \"enforce\"\n", "", "[policy]\nname = \"fixed_timeslice\"\n"); }

  std::unique_ptr<command> ask(std::vector<std::string> words, int code = 0) const {
    words.insert(words.end(), {"--directory", directory_});
    auto made = std::make_unique<command>(program_, std::move(words), std::vector<std::string>{});
    EXPECT_EQ(made->ends(), code) << made->out() << made->err();
    return made;
  }
  /// The answer, or why there is none: the daemon may not have looked at the process yet.
  std::string why(const target_process& one) const {
    command asked{program_,
                  {"why", std::to_string(one.pid()), "--directory", directory_},
                  std::vector<std::string>{}};
    return asked.ends() == 0 ? asked.out() : asked.err();
  }
  /// Waits: a picture is shown for twenty times as long as it took to make, and may be from before.
  void expect_why(const target_process& one, const std::string& pattern) const {
    std::string said;
    const auto matches = [&] {
      said = why(one);
      return Matches(ContainsRegex(pattern))(said);
    };
    EXPECT_TRUE(eventually(patience, matches)) << said << "is not " << pattern;
  }
};

TEST_F(DaemonShown, SaysHowItIsAndWhy) {
  const auto trainer = offline();
  const std::string pid = std::to_string(trainer->pid());
  const auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  expect_why(*trainer, "^process " + pid +
                           " \\(.*\\) is running: policy fixed_timeslice[^\n]* is "
                           "not holding it\nthe device is simulated\nrole: offline by "
                           "AMD_QUEUE_TAG=OFFLINE_AI\n[0-9:.]+ +[0-9.]+m?s ago  attach "
                           "process " +
                           pid + ": done\n");
  client.begin();
  ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();
  std::string held;
  EXPECT_TRUE(eventually(patience, [&] {
    held = why(*trainer);
    return held.find(" is held by policy ") != held.npos &&
           held.find("suspend 1 queue on GPU") != held.npos && held.find("done in") != held.npos;
  })) << held;
  EXPECT_THAT(held, ContainsRegex("^process " + pid +
                                  " \\(.*\\) is held by policy [^ ]+ since [0-9:]+ \\("));
  EXPECT_THAT(held, HasSubstr("client 'test' has been busy on GPU "));
  EXPECT_THAT(held, ContainsRegex("\n[0-9:.]+ +[0-9.]+m?s ago  policy fixed_timeslice[^ ]* "
                                  "suspended it: client 'test' began work on GPU [0-9]+"));
  std::string status;
  EXPECT_TRUE(eventually(patience, [&] {
    status = ask({"status"})->out();
    return status.find(" 1/1 ") != status.npos;
  })) << status;
  EXPECT_THAT(status, ContainsRegex("mode enforce, up [0-9.a-z]+, on a simulated device\n"));
  EXPECT_THAT(status, HasSubstr("policy fixed_timeslice:release=client_done,slice=20ms\n"));
  EXPECT_THAT(status, ContainsRegex("\ng[0-9]+ +offline +" + pid + " .* held .* 1/1 "));
  const std::string self = std::to_string(::getpid());
  EXPECT_THAT(status, ContainsRegex("clients: 1 \\(test pid " + self + " busy for [0-9.]+m?s\\)"));
  EXPECT_THAT(ask({"why", self})->out(), HasSubstr("is a client ('test'), and has no queues;"));
  EXPECT_THAT(ask({"status", "--json"})->out(), ContainsRegex("^\\{.*\"held\":true.*\\}\n$"));
  EXPECT_THAT(ask({"top", "--once", "--filter", "offline"})->out(), HasSubstr(pid));
  EXPECT_THAT(ask({"top", "--once", "--filter", "no-such"})->out(), Not(HasSubstr(pid)));

  client.end();
  ASSERT_TRUE(becomes(*trainer, 0)) << daemon->err();
  expect_why(*trainer, "is not holding it\n.*resumed.*[:;] client 'test' ended work");
  EXPECT_THAT(ask({"why", "1"}, 1)->err(), HasSubstr("process 1 is unknown to the scheduler: "));
  EXPECT_THAT(ask({"why", "g0"}, 2)->err(), HasSubstr("invalid target 'g0'"));
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_THAT(
      ask({"status"}, 1)->err(),
      "sluice: no daemon answers at " + directory_ +
          "/control.sock; start 'sluice run' or a program that embeds sluice::node, or pass "
          "the daemon's directory with --directory\n");
}

TEST_F(DaemonShown, SaysWhatKeepsAnOfflineProcessFromBeingTouched) {
  configure("mode = \"enforce\"\n");
  auto environment = device_.environment();
  for (const char* each : {"AMD_QUEUE_TAG=OFFLINE_AI", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x"})
    environment.emplace_back(each);
  target_process rank{SLUICE_INTEGRATION_TARGET, {"1", "2000"}, environment};
  ASSERT_EQ(rank.hear(patience), "ready");
  const auto daemon = run();
  expect_why(rank,
             "is running: offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang is not complete on "
             "this node \\(1 of 2 ranks\\); sluice does not suspend it\n");
  EXPECT_THAT(ask({"status"})->out(),
              ContainsRegex("\ng[0-9]+ +gang +" + std::to_string(rank.pid())));
  auto queues = start({"queues", "--interval", "0s", "--config", config_});
  EXPECT_EQ(queues->ends(), 0) << queues->err();
  EXPECT_THAT(queues->out(),
              ContainsRegex(std::to_string(rank.pid()) + " +[^ ]+ +[^ ]+ +gang +0 "));
}

TEST_F(DaemonShown, SwitchesItsPolicyUntilItReadsItsConfigurationAnew) {
  const auto trainer = offline();
  const auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  // This one goes by other things than what clients have in flight.
  const auto used = ask({"policy", "--use", "slo:request.p99=300ms"});
  EXPECT_THAT(used->out(),
              ContainsRegex("^the daemon runs slo:[^\n]*request\\.p99=300ms[^\n]* until "
                            "it reloads its configuration or exits\nslo: [^\n]+\n$"));
  EXPECT_TRUE(logs(*daemon, " selected by user ")) << daemon->err();
  EXPECT_THAT(ask({"policy"})->out(),
              ContainsRegex("\nthe daemon runs slo:[^\n]*, selected by user "));
  client.begin();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(view_.process(trainer->pid()).suspended_queues, 0U)
      << "fixed_timeslice would have suspended it";
  reload(*daemon, "reloaded: ");
  EXPECT_TRUE(becomes(*trainer, 1)) << daemon->err();
  EXPECT_THAT(ask({"policy"})->out(), HasSubstr("\nthe daemon runs fixed_timeslice:"));
  EXPECT_THAT(ask({"policy", "--use", "no_such"}, 1)->err(), HasSubstr("no_such"));
  EXPECT_THAT(ask({"policy", "--use", "fixed_timeslice:slice=99h"}, 1)->err(), HasSubstr("slice"));
  EXPECT_THAT(ask({"policy", "--use", "/tmp/some.so"}, 1)->err(), HasSubstr("/tmp/some.so"));
  EXPECT_THAT(ask({"policy", "--use", "slo:request.p99=300ms,profile=/x.toml"}, 1)->err(),
              HasSubstr("parameter profile: accepted only in a configuration file"));
  client.end();
}

TEST_F(DaemonShown, PausesAtOnce) {
  const auto trainer = offline();
  const auto daemon = run();
  const online_client client{directory_ + "/clients.sock"};
  ASSERT_TRUE(eventually(patience, [&] { return client.connections() == 1; })) << client.why();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  client.begin();
  ASSERT_TRUE(becomes(*trainer, 1)) << daemon->err();
  EXPECT_THAT(ask({"pause", "--why", "new disks"})->out(),
              HasSubstr("'sluice unpause --directory " + directory_ + "' ends the pause"));
  EXPECT_TRUE(becomes(*trainer, 0)) << daemon->err();
  EXPECT_TRUE(logs(*daemon, "paused: everything runs while " + directory_ +
                                "/disabled exists (new disks) part=node"))
      << daemon->err();
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/disabled"));
  EXPECT_THAT(ask({"status"})->out(), HasSubstr("PAUSED: everything runs (new disks)\n"));
  expect_why(*trainer, "is running: the node is paused: new disks\n");
  EXPECT_EQ(ask({"unpause"})->out(), "the pause has ended\n");
  EXPECT_EQ(ask({"unpause"})->out(), "the node was not paused\n");
  EXPECT_TRUE(becomes(*trainer, 1)) << daemon->err();
  client.end();
}

// The daemon went on saying that all was well, and so did status.
TEST_F(DaemonShown, SaysThatTheDriverIsGone) {
  const auto trainer = offline();
  const auto daemon = run();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  EXPECT_THAT(ask({"status", "--json"})->out(), HasSubstr("\"driver_gone\":false"));
  device_.stop(SIGKILL);
  ASSERT_TRUE(logs(*daemon, "the driver is gone: cannot read ")) << daemon->err();
  EXPECT_TRUE(eventually(patience, [&] {
    return testing::Matches(HasSubstr("failures: the driver is gone: "))(ask({"status"})->out());
  }));
  EXPECT_THAT(ask({"status", "--json"})->out(), HasSubstr("\"driver_gone\":true"));
}

// Who searches a log for a process finds every line about it.
TEST_F(DaemonShown, NamesWhatItsLinesAreAboutByKeys) {
  const auto trainer = offline();
  const std::string pid = std::to_string(trainer->pid());
  const auto daemon = run();
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  (void)ask({"policy", "--use", "fixed_timeslice:slice=7ms"});
  EXPECT_TRUE(logs(*daemon, " selected by user ")) << daemon->err();
  EXPECT_THAT(
      daemon->err(),
      ContainsRegex("policy fixed_timeslice:[^\n]* selected by user [^\n]* pid=[0-9]+ user=0 "
                    "part=node\n"));
  reload(*daemon, "reloaded: ");
  EXPECT_THAT(daemon->err(), ContainsRegex("policy changed to fixed_timeslice:[^\n]*; before: "
                                           "fixed_timeslice:[^\n]*slice=7ms"));
  std::istringstream lines{daemon->err()};
  int named = 0;
  for (std::string line; std::getline(lines, line);) {
    if (testing::Matches(ContainsRegex("process [0-9]+"))(line)) {
      ++named;
      EXPECT_THAT(line, ContainsRegex(" pid=[0-9]+"));
    }
    if (testing::Matches(ContainsRegex("GPU [0-9]+"))(line)) {
      EXPECT_THAT(line, ContainsRegex(" gpu=[0-9]+"));
    }
  }
  EXPECT_GE(named, 1);
}

// `sluice pause` asked the daemon first, and waited 5 s for one that hung.
TEST_F(DaemonShown, PausesAtOnceAlsoWhereTheDaemonHangs) {
  const auto daemon = run();
  daemon->signal(SIGSTOP);
  for (const auto& [verb, says] :
       {std::pair{"pause", "paused: "}, std::pair{"unpause", "the pause has ended\n"}}) {
    command asked{program_, {verb, "--directory", directory_}, {}};
    undelayed_stopwatch taken{::getpid(), asked.pid()};
    EXPECT_EQ(asked.ends(), 0);
    EXPECT_LT(taken.elapsed(), 4s);
    EXPECT_THAT(asked.out(), HasSubstr(says));
    EXPECT_EQ(std::filesystem::exists(directory_ + "/disabled"), verb == std::string{"pause"});
  }
  daemon->signal(SIGCONT);
}

/// `sluice top` in a terminal of its own.
class top_terminal {
 public:
  top_terminal(const std::string& program, const std::string& directory) {
    winsize room{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    if (::openpty(&fd_, &other_, nullptr, nullptr, &room) != 0) throw std::runtime_error{"openpty"};
    ::tcgetattr(other_, &before_);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::login_tty(other_);
      const rlimit no_core{};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::execl(program.c_str(), "sluice", "top", "--interval", "100ms", "--directory",
              directory.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~top_terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
    ::close(other_);
  }
  top_terminal(const top_terminal&) = delete;
  top_terminal& operator=(const top_terminal&) = delete;

  pid_t pid() const { return pid_; }
  void type(std::string_view keys) {
    text_.clear();
    EXPECT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void resize(unsigned short rows, unsigned short columns) {
    text_.clear();
    const winsize room{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(fd_, TIOCSWINSZ, &room), 0);
  }
  /// Whether it shows that from the last key on.
  bool shows(const std::string& what) {
    return eventually(patience, [&] {
      read();
      return text_.find(what) != text_.npos;
    });
  }
  /// The last whole page.
  std::string page() {
    std::string last;
    text_.clear();
    eventually(patience, [&] {
      read();
      const auto end = text_.rfind("\x1b[H");
      const auto begin =
          end == text_.npos || end == 0 ? text_.npos : text_.rfind("\x1b[H", end - 1);
      if (begin == text_.npos) return false;
      last = text_.substr(begin, end - begin);
      return true;
    });
    return last;
  }
  /// \return its exit code.
  int ends() {
    int status = -1;
    eventually(patience, [&] {
      read();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    pid_ = 0;
    read();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// The terminal is as it was, and the shell's page is back.
  bool restored() const {
    termios now{};
    ::tcgetattr(other_, &now);
    return now.c_lflag == before_.c_lflag && text_.ends_with("\x1b[?25h\x1b[?1049l");
  }

 private:
  void read() {
    std::array<char, 65536> room;
    for (pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
         ::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0;) {
      const auto got = ::read(fd_, room.data(), room.size());
      if (got <= 0) return;
      text_.append(room.data(), static_cast<std::size_t>(got));
    }
  }

  int fd_ = -1;
  int other_ = -1;
  termios before_{};
  pid_t pid_ = 0;
  std::string text_;
};

TEST_F(DaemonShown, IsWatchedAndSteeredInATerminal) {
  const auto trainer = offline();
  const std::string pid = std::to_string(trainer->pid());
  const auto daemon = run();
  top_terminal top{program_, directory_};
  ASSERT_TRUE(top.shows(" " + pid + " "));
  ASSERT_TRUE(top.shows("q quit"));
  top.type("fonline\r");
  ASSERT_TRUE(top.shows("(by role, online)"));
  EXPECT_THAT(top.page(), Not(HasSubstr(" " + pid + " ")));
  top.type("f\x7f\x7f\x7f\x7f\x7f\x7f\r");
  EXPECT_TRUE(top.shows(" " + pid + " "));
  top.type("?");
  EXPECT_TRUE(top.shows("end the pause; asks to confirm"));
  top.type("?s");
  EXPECT_TRUE(top.shows("(by time off)"));
  top.type("pn");
  EXPECT_TRUE(top.shows("y/n"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/disabled"));
  top.type("py");
  EXPECT_TRUE(top.shows("PAUSED: everything runs"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/disabled"));
  top.type("py");
  EXPECT_TRUE(top.shows("policy fixed_timeslice"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/disabled"));
  top.type("Pfixed_timeslice:slice=7ms\r");
  EXPECT_TRUE(top.shows("slice=7ms, selected by user 0"));
  top.type("Pnonesuch\r");
  EXPECT_TRUE(top.shows("nonesuch';"));
  top.resize(10, 40);
  EXPECT_TRUE(top.shows("more lines"));
  const std::string small = top.page();
  EXPECT_EQ(std::count(small.begin(), small.end(), '\n'), 9) << small;
  top.type("q");
  EXPECT_EQ(top.ends(), 0);
  EXPECT_TRUE(top.restored());
}

// F1 is ESC O P, and P opens the prompt for a policy.
TEST_F(DaemonShown, TakesNoFunctionKeyForACommand) {
  const auto daemon = run();
  top_terminal top{program_, directory_};
  ASSERT_TRUE(top.shows("q quit"));
  for (const std::string key :
       {"\x1bOP", "\x1b[A", "\x1b[15~", "\x1b[[A", "\x1b[1;5P", "\x1bq", "\x1b\x1b[P"}) {
    top.type(key + "s");  // the next key is one again
    EXPECT_TRUE(top.shows("(by ")) << "after ESC " << key.substr(1);
    EXPECT_THAT(top.page(), HasSubstr("q quit")) << "after ESC " << key.substr(1);
  }
  top.type("P");
  EXPECT_TRUE(top.shows("policy NAME"));
  top.type("ab\x1b[D\x1bOPc");
  EXPECT_TRUE(top.shows("]: abc_")) << "arrows are no letters";
  top.type("\x1b");
  EXPECT_TRUE(top.shows("q quit")) << "Esc alone cancels";
  top.type("q");
  EXPECT_EQ(top.ends(), 0);
}

// It waited 5 s for a daemon that hung, deaf to keys and signals.
TEST_F(DaemonShown, LetsGoOfWhoWatchesADaemonThatHangs) {
  const auto daemon = run();
  for (const std::string key : {"q", "\x03"}) {
    top_terminal top{program_, directory_};
    EXPECT_TRUE(top.shows("q quit"));
    daemon->signal(SIGSTOP);
    std::this_thread::sleep_for(300ms);  // it asks every 100 ms
    undelayed_stopwatch taken{::getpid(), top.pid()};
    top.type(key);
    EXPECT_EQ(top.ends(), 0);
    EXPECT_LT(taken.elapsed(), 3s);
    EXPECT_TRUE(top.restored());
    daemon->signal(SIGCONT);
  }
}

TEST_F(DaemonShown, GivesTheTerminalBackWhateverEndsIt) {
  const auto daemon = run();
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGSEGV}) {
    top_terminal top{program_, directory_};
    ASSERT_TRUE(top.shows("q quit"));
    ::kill(top.pid(), signal);
    EXPECT_EQ(top.ends(), signal == SIGSEGV ? 128 + SIGSEGV : 0);
    EXPECT_TRUE(top.restored()) << signal;
  }
  top_terminal top{program_, directory_};
  ASSERT_TRUE(top.shows("q quit"));
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
  EXPECT_TRUE(top.shows("no daemon answers at ")) << "and it goes on";
  top.type("\x03");
  EXPECT_EQ(top.ends(), 0);
  EXPECT_TRUE(top.restored());
}

}  // namespace
}  // namespace sluice::test::daemon_test
