// `sluice suspend` with a driver that acts in an agent: the command, its agent and the guardian as
// users run them, and a real process that stops and runs (stopper.cpp).

#include "command.hpp"
#include "family.hpp"
#include "temporary_directory.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::test::holder_test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* program = STOPPER_PROGRAM;

struct finished {
  int code;
  std::string out;
  std::string err;
};

class AgentHolder : public testing::Test {
 protected:
  void SetUp() override { describe("compute copy"); }
  void TearDown() override { target_.signal(SIGCONT); }

  void describe(const std::string& queues) const { describe(queues, pid()); }
  void describe(const std::string& queues, const std::string& process) const {
    std::filesystem::create_directories(made_.path() + "/processes");
    std::ofstream{made_.path() + "/processes/" + process} << queues;
  }
  std::string pid() const { return std::to_string(target_.pid()); }
  std::string directory() const { return made_.path() + "/run"; }
  std::vector<std::string> environment() const {
    return {"SLUICE_AGENT=" + std::string{program}, "STOPPER_DIR=" + made_.path() + "/processes",
            "SLUICE_BREAKERS=" + made_.path() + "/breakers"};
  }
  command start(std::vector<std::string> words) const {
    words.insert(words.end(), {"--directory", directory()});
    return {program, std::move(words), environment()};
  }
  finished run(std::vector<std::string> words) const {
    command made = start(std::move(words));
    const auto code = made.ends();
    return {code.value_or(-1), made.out(), made.err()};
  }

  /// Whether the daemon attaches to a process.
  bool attaches() const {
    return eventually(patience, [&] {
      return run({"status", "--json"}).out.find("\"attach\":\"attached\"") != std::string::npos;
    });
  }
  bool stopped() const {
    return eventually(patience, [&] { return state_of(target_.pid()) == 'T'; });
  }
  bool runs() const {
    return eventually(patience, [&] { return state_of(target_.pid()) == 'S'; });
  }
  /// Returns the agent of the lock's owner: the second process that the lock's text names.
  pid_t agent_of(const std::string& lock) const {
    std::ifstream file{directory() + "/" + lock};
    std::string first;
    std::getline(file, first);
    pid_t found = 0;
    file >> found;
    return found;
  }
  static pid_t guardian_of(pid_t agent) {
    std::ifstream file{"/proc/" + std::to_string(agent) + "/task/" + std::to_string(agent) +
                       "/children"};
    pid_t found = 0;
    file >> found;
    return found;
  }

  const temporary_directory made_;
  const command target_{"/bin/sleep", {"600"}, {}};
};

TEST_F(AgentHolder, HoldsAProcessUntilItIsAskedOrInterrupted) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_THAT(holder.out(), ContainsRegex("    0 +1 +suspended\nheld by process"))
      << "only the compute queue";
  EXPECT_TRUE(stopped());
  const auto resumed = run({"resume", pid()});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_TRUE(runs());
  EXPECT_THAT(holder.out(), HasSubstr("process " + pid() + " runs again\n"));

  for (const int signal : {SIGINT, SIGTERM}) {
    auto again = start({"suspend", pid(), "0", "1"});
    ASSERT_TRUE(again.says("held by process")) << again.err();
    EXPECT_THAT(again.out(), ContainsRegex("    0 +1 +suspended\n +1 +1 +suspended\n"));
    EXPECT_TRUE(stopped());
    again.signal(signal);
    EXPECT_EQ(again.ends(), 0) << again.err();
    EXPECT_TRUE(runs());
    EXPECT_EQ(again.err(), "");
  }
  EXPECT_EQ(run({"suspend", pid(), "--for", "50ms"}).code, 0);
  EXPECT_TRUE(runs());
}

TEST_F(AgentHolder, ResumesSomeOfTheQueues) {
  auto holder = start({"suspend", pid(), "0", "1"});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_EQ(run({"resume", pid(), "0"}).code, 0);
  EXPECT_EQ(state_of(target_.pid()), 'T');
  EXPECT_EQ(run({"resume", pid(), "1"}).code, 0);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_TRUE(runs());
}

TEST_F(AgentHolder, EndsWithTheProcess) {
  command other{"/bin/sleep", {"600"}, {}};
  describe("compute", std::to_string(other.pid()));
  auto holder = start({"suspend", std::to_string(other.pid())});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  other.signal(SIGKILL);
  EXPECT_TRUE(other.ends().has_value());
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_THAT(holder.out(), HasSubstr("process " + std::to_string(other.pid()) + " has ended\n"));
}

TEST_F(AgentHolder, SeveralHaveALockEach) {
  command other{"/bin/sleep", {"600"}, {}};
  const auto name = std::to_string(other.pid());
  describe("compute", name);
  auto one = start({"suspend", pid()});
  ASSERT_TRUE(one.says("held by process")) << one.err();
  auto two = start({"suspend", name});
  ASSERT_TRUE(two.says("held by process")) << two.err();
  EXPECT_TRUE(node_lock::owner(directory() + "/owner.1"));
  EXPECT_TRUE(node_lock::owner(directory() + "/owner.2"));
  EXPECT_FALSE(node_lock::owner(directory() + "/owner"));
  const auto third = run({"suspend", pid()});
  EXPECT_EQ(third.code, 1);
  EXPECT_THAT(third.err, HasSubstr("is already held by 'sluice suspend' (process " +
                                   std::to_string(one.pid()) + ")"));
}

TEST_F(AgentHolder, ItsEndInAnyWayResumesTheProcess) {
  {
    auto killed = start({"suspend", pid()});
    ASSERT_TRUE(killed.says("held by process")) << killed.err();
    ASSERT_TRUE(stopped());
    killed.signal(SIGKILL);
    EXPECT_TRUE(runs()) << "the agent resumes it";
  }
  ASSERT_TRUE(eventually(patience, [&] { return !node_lock::owner(directory() + "/owner.1"); }));
  {
    auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder.says("held by process")) << holder.err();
    ASSERT_TRUE(stopped());
    const pid_t agent = agent_of("owner.1");
    ASSERT_GT(agent, 1);
    ::kill(agent, SIGKILL);
    EXPECT_TRUE(runs()) << "the guardian resumes it";
    EXPECT_EQ(holder.ends(), 1);
    EXPECT_THAT(holder.err(), HasSubstr("the agent of this command has exited; process " + pid() +
                                        " was resumed\n"));
  }
  {
    auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder.says("held by process")) << holder.err();
    ASSERT_TRUE(stopped());
    const pid_t agent = agent_of("owner.1");
    ASSERT_GT(agent, 1);
    holder.signal(SIGSTOP);  // so that it starts nothing
    ::kill(agent, SIGKILL);
    holder.signal(SIGKILL);
    EXPECT_TRUE(runs()) << "the guardian resumes it";
  }
}

TEST_F(AgentHolder, IsRescuedWhereNoProcessIsLeftToResumeIt) {
  const auto kill_all = [&](command& holder) {
    const pid_t agent = agent_of("owner.1");
    const pid_t guardian = guardian_of(agent);
    ASSERT_GT(agent, 1);
    ASSERT_GT(guardian, 1);
    // None of them can act while it is stopped, nor on the way from that to its death.
    holder.signal(SIGSTOP);
    ::kill(guardian, SIGSTOP);
    ::kill(agent, SIGKILL);
    ASSERT_TRUE(eventually(patience, [&] { return !node_lock::owner(directory() + "/owner.1"); }));
    ::kill(guardian, SIGKILL);
    holder.signal(SIGKILL);
    ASSERT_TRUE(eventually(patience, [&] { return state_of(guardian) == '?'; }));
  };
  {
    auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder.says("held by process")) << holder.err();
    ASSERT_TRUE(stopped());
    const auto early = run({"rescue"});
    EXPECT_EQ(early.code, 0) << early.err;
    EXPECT_THAT(early.out,
                ContainsRegex("owner.1 is owned by process [0-9]+ .*; that agent resumes"));
    EXPECT_EQ(state_of(target_.pid()), 'T');
    EXPECT_EQ(run({"rescue", "--everything"}).code, 1);
    kill_all(holder);
    EXPECT_EQ(state_of(target_.pid()), 'T');
  }
  const auto rescued = run({"rescue"});
  EXPECT_EQ(rescued.out, "resumed: 1 of 1\n  process " + pid() + " (sleep)\n") << rescued.err;
  EXPECT_EQ(rescued.code, 0);
  EXPECT_TRUE(runs());
  EXPECT_EQ(run({"rescue"}).out, "nothing is held\n");
  std::filesystem::remove(directory() + "/owner.1.holds");
  const auto lost = run({"rescue"});
  EXPECT_EQ(lost.code, 0) << lost.err;
  EXPECT_EQ(lost.out, "nothing is known to be held: " + directory() +
                          " has no record; if a record was lost, run 'sluice rescue "
                          "--everything --directory " +
                          directory() + "'\n");

  // Of which no record is left.
  target_.signal(SIGSTOP);
  ASSERT_TRUE(stopped());
  const std::string config = made_.path() + "/sluice.toml";
  std::ofstream{config} << "[daemon]\ndirectory = \"" << directory() << "\"\nagent = \"" << program
                        << "\"\n";
  command all{program, {"rescue", "--everything", "--config", config}, environment()};
  EXPECT_EQ(all.ends(), 0) << all.err();
  EXPECT_EQ(all.out(), "everything that uses the driver stopper runs\n");
  EXPECT_TRUE(runs());
}

TEST_F(AgentHolder, SaysWhyAProcessIsNotHeld) {
  describe("refused");
  const auto refused = run({"suspend", pid()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.err, "sluice: cannot suspend process " + pid() +
                             ": it is marked as refused; remove the mark\n");
  const auto stranger = run({"suspend", std::to_string(::getpid())});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_EQ(stranger.err,
            "sluice: process " + std::to_string(::getpid()) + " does not use the driver stopper\n");
  EXPECT_EQ(run({"suspend", "4194304"}).err, "sluice: there is no process 4194304\n");
  describe("copy");
  EXPECT_EQ(run({"suspend", pid()}).err, "sluice: process " + pid() + " has no compute queue\n");
  EXPECT_THAT(run({"suspend", pid(), "7"}).err, HasSubstr("the process has no such queue"));
  EXPECT_TRUE(runs());
}

TEST_F(AgentHolder, LeavesToADaemonWhatThatManages) {
  command other{"/bin/sleep", {"600"}, {}};
  const auto name = std::to_string(other.pid());
  describe("refused", name);
  const std::string config = made_.path() + "/sluice.toml";
  std::ofstream{config} << "[daemon]\nmode = \"enforce\"\ndirectory = \"" << directory()
                        << "\"\ndriver = \"stopper\"\nclients = false\nagent = \"" << program
                        << "\"\n[policy]\nname = \"fixed_timeslice\"\n[scheduler]\nattach_after = "
                           "\"10ms\"\n[roles]\nstore = \"\"\npids = [{ pid = "
                        << pid() << ", role = \"offline\" }, { pid = " << name
                        << ", role = \"offline\" }]\n";
  command daemon{program, {"run", "--config", config}, environment()};
  ASSERT_TRUE(attaches()) << daemon.err();
  // Symptom: the advice was 'sluice release', though this daemon reads no store.
  const auto refused = run({"suspend", pid()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, ContainsRegex("process " + pid() +
                                         " is managed by process [0-9]+ .*; run 'sluice pause "
                                         "--directory [^']*' first \\('sluice release' has no "
                                         "effect"));
  std::ifstream file{config};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  const std::string store = made_.path() + "/roles";
  text.replace(text.find("store = \"\""), 10, "store = \"" + store + "\"");
  std::ofstream{config} << text;
  daemon.signal(SIGHUP);
  EXPECT_TRUE(eventually(patience, [&] {
    return run({"suspend", pid(), "--for", "10ms"})
               .err.find("run 'sluice release " + pid() + " --store " + store + "', ") !=
           std::string::npos;
  })) << daemon.err();
  std::string why;
  EXPECT_TRUE(eventually(patience, [&] {
    why = run({"why", name}).out;
    return why.find("sluice cannot attach to process " + name +
                    ": it is marked as refused; remove the mark") != std::string::npos;
  })) << why;
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.ends(), 0) << daemon.err();
  EXPECT_THAT(daemon.err(),
              HasSubstr("process " + name + ": attach refused: it is marked as refused"));
  auto holder = start({"suspend", pid()});
  EXPECT_TRUE(holder.says("held by process")) << holder.err();
}

// Symptom: directly after 'sluice release', 'sluice suspend' was refused: it advised 'sluice
// release' until the daemon had detached.
TEST_F(AgentHolder, WaitsUntilADaemonHasDetachedFromAReleasedProcess) {
  describe("compute slow");
  const std::string store = made_.path() + "/roles";
  const std::string config = made_.path() + "/sluice.toml";
  std::ofstream{config} << "[daemon]\nmode = \"enforce\"\ndirectory = \"" << directory()
                        << "\"\ndriver = \"stopper\"\nclients = false\nagent = \"" << program
                        << "\"\n[policy]\nname = \"fixed_timeslice\"\n[scheduler]\nattach_after = "
                           "\"10ms\"\n[roles]\nstore = \""
                        << store << "\"\npids = [{ pid = " << pid() << ", role = \"offline\" }]\n";
  command daemon{program, {"run", "--config", config}, environment()};
  ASSERT_TRUE(attaches()) << daemon.err();
  command release{program, {"release", pid(), "--store", store}, environment()};
  ASSERT_EQ(release.ends(), 0) << release.err();
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_TRUE(stopped());
  EXPECT_THAT(run({"status", "--json"}).out, HasSubstr("\"attach\":\"none\""));
}

}  // namespace
}  // namespace sluice::test::holder_test
