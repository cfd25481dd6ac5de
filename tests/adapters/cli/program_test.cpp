// The command as users run it, beside a simulated device and real processes.

#include "command.hpp"
#include "holder_link.hpp"
#include "kfd_calls.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"
#include "temporary_directory.hpp"

#include <poll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/uapi_memory.hpp"

namespace sluice::test::program_test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* program = SLUICE_PROGRAM;

struct finished {
  int code;
  std::string out;
  std::string err;
};

finished run(const simulated_device& device, std::vector<std::string> words) {
  command made{program, std::move(words), device.environment()};
  const auto code = made.ends();
  return {code.value_or(-1), made.out(), made.err()};
}

TEST(SluiceQueues, ListsAProcessWithItsQueues) {
  const simulated_device device;
  const offline_target target{device.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  const auto shown = run(device, {"queues"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("GPU 0: gpu_id 51110, 0000:01:00.0"));
  EXPECT_THAT(shown.out, ContainsRegex(pid + " +root +[a-z_]+ +- +0 +0 +compute "));
  EXPECT_THAT(shown.out, ContainsRegex(pid + " +root +[a-z_]+ +- +0 +1 +compute "));

  const auto json = run(device, {"queues", "--json", "--pid", pid, "--interval", "0s"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto value = boost::json::parse(json.out);
  ASSERT_EQ(value.at("processes").as_array().size(), 1U);
  EXPECT_EQ(value.at("processes").at(0).at("pid").to_number<pid_t>(), target.pid());
  EXPECT_EQ(value.at("processes").at(0).at("queues").as_array().size(), 2U);
  EXPECT_EQ(value.at("processes").at(0).at("queues").at(1).at("gpu_id").to_number<int>(), 51110);
}

TEST(SluiceQueues, ShowsTheRoleThatASchedulerWouldGive) {
  const simulated_device device;
  const offline_target target{device.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  const std::string rules = device.root() + "/../rules.toml";
  std::ofstream{rules} << "[roles]\nstore = \"\"\npids = [{ pid = " << pid
                       << ", role = \"offline\" }]\n";
  const auto shown = run(device, {"queues", "--config", rules});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, ContainsRegex(pid + " +root +[a-z_]+ +offline +0 "));
  const auto missing = run(device, {"queues", "--config", rules + ".not"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(shown.err, "");
  std::ofstream{rules} << "[rolls]\nstore = \"\"\n";
  EXPECT_EQ(run(device, {"queues", "--config", rules}).err,
            "sluice: warning: " + rules + ": no table [roles]; using the default rules\n");
  EXPECT_THAT(missing.err, HasSubstr("rules.toml.not"));
}

TEST(SluiceQueues, SaysWhatIsNotThere) {
  const simulated_device device;
  const auto wrong = run(device, {"queues", "--gpu", "17"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_EQ(wrong.err, "sluice: --gpu 17: no such GPU; 'sluice queues' lists the GPUs\n");
  const auto user = run(device, {"queues", "--user", "no-such-user"});
  EXPECT_EQ(user.code, 1);
  EXPECT_EQ(user.err, "sluice: --user no-such-user: no such user\n");
  const auto slots = run(device, {"hqds", "--gpu", "17"});
  EXPECT_EQ(slots.code, 1);
  EXPECT_EQ(slots.err, wrong.err);
  for (const char* const option : {"queues --interval", "hqds --watch"}) {
    const std::string words = option;
    const auto unitless =
        run(device, {words.substr(0, words.find(' ')), words.substr(words.find(' ') + 1), "10"});
    EXPECT_EQ(unitless.code, 2);
    EXPECT_THAT(unitless.err, ContainsRegex("invalid duration '10': expected [0-9]+m?s to 1h"));
  }

  command nowhere{program, {"queues", "--driver", "kfd"}, {"SLUICE_KFD_SYSFS=/nonexistent/kfd"}};
  EXPECT_EQ(nowhere.ends(), 1);
  EXPECT_THAT(nowhere.err(), HasSubstr("cannot read /nonexistent/kfd/proc: No such file"));
}

TEST(SluiceQueues, SaysWhatAFilterLeavesOut) {
  const simulated_device device;
  const offline_target target{device.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto filtered = run(device, {"queues", "--type", "sdma"});
  EXPECT_EQ(filtered.code, 0) << filtered.err;
  EXPECT_THAT(filtered.out,
              HasSubstr("1 process uses the driver, but the filter does not match it"));
  const offline_target other{device.roots()};
  ASSERT_TRUE(other.says('r'));
  EXPECT_THAT(run(device, {"queues", "--user", "nobody"}).out,
              HasSubstr("2 processes use the driver, but none matches the filter\n"));

  const auto stranger = run(device, {"queues", "--json", "--pid", std::to_string(target.pid()),
                                     "--pid", std::to_string(device.pid())});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_EQ(stranger.out, "");
  EXPECT_EQ(stranger.err, "sluice: --pid: process " + std::to_string(device.pid()) +
                              " does not use the AMD compute driver (no " + device.roots().sysfs +
                              "/proc/" + std::to_string(device.pid()) + ")\n");
  const auto nobody = run(device, {"queues", "--pid", "4194304"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_EQ(nobody.err, "sluice: --pid: there is no process 4194304\n");
}

bool untraced(pid_t pid) {
  return eventually(patience, [&] {
    return read_file("/proc/" + std::to_string(pid) + "/status").find("TracerPid:\t0") !=
           std::string::npos;
  });
}

class SluiceSuspend : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(target_.says('r')); }

  std::string pid() const { return std::to_string(target_.pid()); }
  command start(std::vector<std::string> words) const {
    return {program, std::move(words), device_.environment()};
  }
  finished run(std::vector<std::string> words) const {
    return program_test::run(device_, std::move(words));
  }

  simulated_device device_{{.profile = profile_text("",
                                                    "suspend_cost = \"1ms\"\n"
                                                    "resume_cost = \"1ms\"\n"
                                                    "cycle_cost = \"200us\"\n")}};
  static std::vector<boost::json::value> lines_of(const command& of) {
    std::vector<boost::json::value> all;
    std::istringstream text{of.out()};
    for (std::string line; std::getline(text, line);) all.push_back(boost::json::parse(line));
    return all;
  }
  offline_target target_{device_.roots(), {.queues = 2}};
};

TEST_F(SluiceSuspend, HoldsAProcessUntilItIsInterrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder.says("held by process " + std::to_string(holder.pid()))) << holder.err();
    EXPECT_THAT(holder.out(), ContainsRegex("    0 +51110 +suspended\n +1 +51110 +suspended\n"));
    EXPECT_TRUE(target_.stands_still());
    holder.signal(signal);
    EXPECT_EQ(holder.ends(), 0) << holder.err();
    EXPECT_THAT(holder.out(), HasSubstr("process " + pid() + " runs again\n"));
    EXPECT_TRUE(target_.runs());
    EXPECT_TRUE(untraced(target_.pid()));
  }
  EXPECT_EQ(target_.wrong(), 0U);
}

TEST_F(SluiceSuspend, LeavesNothingSuspendedWhenItIsKilled) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  ASSERT_TRUE(target_.stands_still());
  holder.signal(SIGKILL);
  EXPECT_EQ(holder.ends(), 128 + SIGKILL);
  EXPECT_TRUE(target_.runs());
}

TEST_F(SluiceSuspend, ResumesAfterItsTime) {
  auto holder = start({"suspend", pid(), "--for", "200ms"});
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_THAT(holder.out(), HasSubstr("for 200ms"));
  EXPECT_TRUE(target_.runs());
}

TEST_F(SluiceSuspend, LetsGoWhenAskedByResume) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const auto seen = run({"queues", "--pid", pid()});
  EXPECT_THAT(seen.out, ContainsRegex("suspended.*\n.*suspended"));
  const auto done = run({"resume", pid()});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("all of its queues run again"));
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_TRUE(target_.runs());
}

TEST_F(SluiceSuspend, ResumesSingleQueuesAndEndsWithTheLast) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_EQ(run({"resume", pid(), "0"}).code, 0);
  EXPECT_TRUE(target_.runs()) << "queue 0 does not run";
  auto seen = boost::json::parse(run({"queues", "--json", "--pid", pid()}).out);
  const auto queues = seen.at("processes").at(0).at("queues");
  EXPECT_FALSE(queues.at(0).at("suspended").as_bool());
  EXPECT_TRUE(queues.at(1).at("suspended").as_bool());
  const auto unknown = run({"resume", pid(), "99"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("has no queue 99; nothing was resumed"));
  EXPECT_FALSE(holder.ends(300ms)) << "one queue is still suspended";
  EXPECT_EQ(run({"resume", pid(), "1"}).code, 0);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
}

TEST_F(SluiceSuspend, SuspendsQueuesThatComeLater) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  ASSERT_TRUE(target_.obeys('q'));
  EXPECT_TRUE(holder.says("    2   51110  suspended")) << holder.out();
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.ends(), 0);
}

TEST_F(SluiceSuspend, NamesOnlyTheQueuesThatAreGiven) {
  auto holder = start({"suspend", "--json", pid(), "1", "42"});
  ASSERT_TRUE(holder.says("\n")) << holder.err();
  const auto line = boost::json::parse(holder.out());
  EXPECT_EQ(line.at("holder").to_number<pid_t>(), holder.pid());
  EXPECT_TRUE(line.at("queues").at(0).at("suspended").as_bool());
  EXPECT_FALSE(line.at("queues").at(1).at("suspended").as_bool());
  EXPECT_EQ(line.at("queues").at(1).at("errno").to_number<int>(), ENOENT);
  EXPECT_TRUE(target_.runs()) << "queue 0 was not named";
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 1) << "one of the two was not suspended";
  EXPECT_THAT(holder.err(), HasSubstr("the process has no such queue"));
}

TEST_F(SluiceSuspend, EndsForScriptsWhenNothingCouldBeSuspended) {
  auto refused = start({"suspend", "--json", pid(), "42"});
  EXPECT_EQ(refused.ends(), 1) << refused.err();
  const auto lines = lines_of(refused);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].at("queues").at(0).at("gpu_id").is_null());
  EXPECT_EQ(lines[1].at("event").as_string(), "end");
  EXPECT_EQ(lines[1].at("reason").as_string(), "refused");
  EXPECT_TRUE(target_.runs());
}

TEST_F(SluiceSuspend, EndsWithItsTarget) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const offline_target other{device_.roots()};
  ASSERT_TRUE(other.says('r'));
  auto scripted = start({"suspend", "--json", std::to_string(other.pid())});
  ASSERT_TRUE(scripted.says("}\n")) << scripted.err();
  ::kill(target_.pid(), SIGKILL);
  ::kill(other.pid(), SIGKILL);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_THAT(holder.out(), HasSubstr("process " + pid() + " has ended"));
  EXPECT_EQ(scripted.ends(), 0) << scripted.err();
  EXPECT_EQ(lines_of(scripted).back().at("reason").as_string(), "exit");
}

// One line for each change, and the last one says that nothing is suspended any more, and why.
TEST_F(SluiceSuspend, TellsScriptsOfEveryChange) {
  auto asked = start({"suspend", "--json", pid()});
  ASSERT_TRUE(asked.says("}\n")) << asked.err();
  EXPECT_EQ(run({"resume", pid(), "0"}).code, 0);
  EXPECT_EQ(run({"resume", pid()}).code, 0);
  EXPECT_EQ(asked.ends(), 0) << asked.err();
  const auto lines = lines_of(asked);
  ASSERT_EQ(lines.size(), 3U) << asked.out();
  const auto queues_of = [](const boost::json::value& line) {
    std::string all;
    for (const auto& each : line.at("queues").as_array()) {
      EXPECT_EQ(each.at("gpu_id").to_number<int>(), 51110);
      EXPECT_EQ(each.at("errno").to_number<int>(), 0);
      all += (each.at("suspended").as_bool() ? " -" : " +") +
             std::to_string(each.at("queue_id").to_number<int>());
    }
    return all;
  };
  for (const auto& line : lines) {
    EXPECT_EQ(line.at("version").to_number<int>(), 1);
    EXPECT_EQ(line.at("pid").to_number<pid_t>(), target_.pid());
    EXPECT_EQ(line.at("holder").to_number<pid_t>(), asked.pid());
    EXPECT_EQ(line.at("reason").is_null(), line.at("event").as_string() != "end");
  }
  EXPECT_EQ(lines[0].at("event").as_string(), "suspend");
  EXPECT_EQ(queues_of(lines[0]), " -0 -1");
  EXPECT_EQ(lines[1].at("event").as_string(), "resume");
  EXPECT_EQ(queues_of(lines[1]), " +0");
  EXPECT_EQ(lines[2].at("event").as_string(), "end");
  EXPECT_EQ(lines[2].at("reason").as_string(), "resume");
  EXPECT_EQ(queues_of(lines[2]), " +1");
  EXPECT_TRUE(target_.runs());

  auto timed = start({"suspend", "--json", pid(), "--for", "50ms"});
  EXPECT_EQ(timed.ends(), 0) << timed.err();
  EXPECT_EQ(lines_of(timed).back().at("reason").as_string(), "time");
  EXPECT_EQ(queues_of(lines_of(timed).back()), " +0 +1");
  auto interrupted = start({"suspend", "--json", pid()});
  ASSERT_TRUE(interrupted.says("}\n")) << interrupted.err();
  interrupted.signal(SIGINT);
  EXPECT_EQ(interrupted.ends(), 0) << interrupted.err();
  EXPECT_EQ(lines_of(interrupted).back().at("reason").as_string(), "signal");
}

TEST_F(SluiceSuspend, GivesOneReasonForAQueueThatIsNotThere) {
  const std::string reason = "the process has no such queue; 'sluice queues' lists its queues";
  const auto wrong = run({"suspend", pid(), "42"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out, HasSubstr("not suspended\n"));
  EXPECT_EQ(wrong.err,
            "sluice: cannot suspend queue 42 of process " + pid() + ": " + reason + "\n");
  // Of one that has no queue and no runtime the driver says only that it may not be debugged.
  const offline_target idle{device_.roots(), {.queues = 0, .runtime = false}};
  ASSERT_TRUE(idle.says('r'));
  const auto name = std::to_string(idle.pid());
  const auto none = run({"suspend", name, "0"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, HasSubstr("not suspended\n"));
  EXPECT_EQ(none.err, "sluice: cannot suspend queue 0 of process " + name + ": " + reason + "\n");
  EXPECT_EQ(run({"suspend", name}).err, "sluice: process " + name + " has no compute queue\n");
}

TEST_F(SluiceSuspend, TakesAQueueThatIsNamedTwiceOnce) {
  auto twice = start({"suspend", "--json", pid(), "1", "0", "1", "--for", "1ms"});
  EXPECT_EQ(twice.ends(), 0) << twice.err();
  EXPECT_EQ(lines_of(twice).at(0).at("queues").as_array().size(), 2U) << twice.out();
}

// Symptom: queue 1 was resumed and suspended again, and the answer spoke of 99 alone.
TEST_F(SluiceSuspend, ResumesNothingWhereOneOfTheQueuesIsNotThere) {
  auto holder = start({"suspend", "--json", pid()});
  ASSERT_TRUE(holder.says("}\n")) << holder.err();
  const auto wrong = run({"resume", pid(), "1", "99"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("process " + pid() + " has no queue 99; nothing was resumed\n"));
  EXPECT_EQ(run({"resume", pid(), "0", "1"}).code, 0);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  const auto lines = lines_of(holder);
  ASSERT_EQ(lines.size(), 3U) << holder.out();
  EXPECT_EQ(lines[1].at("queues").as_array().size(), 2U) << "the first that was resumed";
}

// Symptom: it was said to be no 'sluice suspend', and 'release' to be what helps.
TEST_F(SluiceSuspend, IsNamedWhereItDoesNotAnswer) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  holder.signal(SIGSTOP);
  auto asked = start({"resume", pid()});
  EXPECT_EQ(asked.ends(60s), 1);
  EXPECT_THAT(asked.err(), HasSubstr("process " + std::to_string(holder.pid()) +
                                     ", the 'sluice suspend' that holds process " + pid() +
                                     ", does not answer"));
  holder.signal(SIGCONT);
  EXPECT_EQ(holder.ends(), 0) << "the request was waiting: " << holder.err();
}

// Symptom: after Ctrl-Z --for passed, and the queues stood still until 'fg'.
TEST_F(SluiceSuspend, IsNotStoppedFromItsTerminal) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  std::ifstream status{"/proc/" + std::to_string(holder.pid()) + "/status"};
  std::uint64_t ignored = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigIgn:")) ignored = std::stoull(line.substr(7), nullptr, 16);
  }
  for (const int each : {SIGTSTP, SIGTTIN, SIGTTOU})
    EXPECT_NE(ignored & (std::uint64_t{1} << (each - 1)), 0U) << each;
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
}

TEST_F(SluiceSuspend, IsNamedWhereItCannotBeAsked) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  command holder{"/usr/bin/unshare", {"--net", program, "suspend", pid()}, device_.environment()};
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const auto asked = run({"resume", pid()});
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.err, HasSubstr("is held by process " + std::to_string(holder.pid()) +
                                   ", a 'sluice suspend' that cannot be reached"));
  EXPECT_TRUE(target_.stands_still());
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
}

// To attach would make it a user, whom the driver lists from then on.
TEST_F(SluiceSuspend, TouchesNoProcessThatDoesNotUseTheDriver) {
  for (const std::string& stranger : {std::string{"1"}, std::to_string(device_.pid())}) {
    const auto entry = device_.roots().sysfs + "/proc/" + stranger;
    for (const auto& words : {std::vector<std::string>{"suspend", stranger},
                              std::vector<std::string>{"suspend", stranger, "0"}}) {
      const auto refused = run(words);
      EXPECT_EQ(refused.code, 1);
      EXPECT_EQ(refused.out, "");
      EXPECT_EQ(refused.err, "sluice: process " + stranger +
                                 " does not use the AMD compute driver (no " + entry + ")\n");
    }
    EXPECT_FALSE(std::filesystem::exists(entry));
  }
}

/// A copy of the program that every user may run; the build may lie where only its owner looks.
class by_another_user {
 public:
  by_another_user() {
    std::filesystem::copy_file(program, directory_ + "/sluice");
    ::chmod(directory_.c_str(), 0755);
    ::chmod((directory_ + "/sluice").c_str(), 0755);
  }
  finished run(const std::vector<std::string>& words, std::vector<std::string> environment) const {
    std::vector<std::string> all{"--reuid=4711", "--regid=4711", "--clear-groups",
                                 directory_ + "/sluice"};
    all.insert(all.end(), words.begin(), words.end());
    command made{"/usr/bin/setpriv", std::move(all), std::move(environment)};
    const auto code = made.ends();
    return {code.value_or(-1), made.out(), made.err()};
  }
  const std::string& directory() const { return directory_; }

 private:
  const temporary_directory made_;
  const std::string directory_ = made_.path();
};

TEST_F(SluiceSuspend, TellsAnotherUserWhoMayResume) {
  const by_another_user other;
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  // Often: the answer may be there, and its writer gone, before the question.
  for (int i = 0; i < 10; ++i) {
    const auto refused = other.run({"resume", pid()}, device_.environment());
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.err, "sluice: process " + std::to_string(holder.pid()) +
                               ", which holds process " + pid() +
                               ", refused: run this command as user 0 or root\n");
  }
  EXPECT_TRUE(target_.stands_still());
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
}

TEST(SluiceRoles, SayWhoMayWriteTheStore) {
  const by_another_user other;
  const std::string self = std::to_string(::getpid());
  const std::string mine = other.directory() + "/mine";
  std::filesystem::create_directory(mine);
  const auto denied = "sluice: cannot change the role store " + mine + "/roles: cannot open " +
                      mine + "/roles.lock: Permission denied; only ";
  const auto missing = mine + "/below/roles";
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"release", self}, {"role", "set", "--pid", self, "online"}}) {
    ::chown(mine.c_str(), 0, 0);
    const auto in = [&](const std::string& store) {
      return other.run(words, {"SLUICE_ROLES=store = '" + store + "'"});
    };
    auto refused = in(mine + "/roles");
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.err, denied + "root may write in " + mine + "\n");
    refused = in(missing);
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.err, "sluice: cannot change the role store " + missing +
                               ": cannot create its directory " + mine +
                               "/below: Permission denied; run as root, or configure another "
                               "store\n");
    ::chown(mine.c_str(), 4712, 0);
    EXPECT_EQ(in(mine + "/roles").err, denied + "user 4712 or root may write in " + mine + "\n");
  }
}

// A driver that authorises the debugging process: nobody is traced, and the holder is found all the
// same.
TEST(SluiceSuspendUntraced, IsFoundByResumeAndQueues) {
  const simulated_device device{{.profile = profile_text("authority = \"debugger_process\"\n",
                                                         "suspend_cost = \"1ms\"\n"
                                                         "resume_cost = \"1ms\"\n")}};
  const offline_target target{device.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  command holder{program, {"suspend", pid}, device.environment()};
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_TRUE(untraced(target.pid()));
  EXPECT_TRUE(target.stands_still());
  EXPECT_THAT(run(device, {"queues", "--pid", pid}).out,
              ContainsRegex(" suspended .*\n.* suspended "));
  const auto seen = boost::json::parse(run(device, {"queues", "--json", "--pid", pid}).out);
  EXPECT_TRUE(seen.at("processes").at(0).at("traced_by").is_null());
  EXPECT_EQ(seen.at("processes").at(0).at("held_by").to_number<pid_t>(), holder.pid());

  command second{program, {"suspend", pid}, device.environment()};
  EXPECT_EQ(second.ends(), 1);
  EXPECT_THAT(second.err(), HasSubstr("is already held by 'sluice suspend' (process " +
                                      std::to_string(holder.pid()) + "); run 'sluice resume " +
                                      pid + "' first\n"));
  EXPECT_TRUE(target.stands_still()) << "the second one disturbed the first";

  EXPECT_EQ(run(device, {"resume", pid, "0"}).code, 0);
  EXPECT_THAT(run(device, {"queues", "--pid", pid}).out, ContainsRegex(" held .*\n.* suspended "));
  const auto done = run(device, {"resume", pid});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("(held by " + std::to_string(holder.pid()) + ")"));
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_TRUE(target.runs());
  EXPECT_EQ(run(device, {"resume", pid}).code, 1);
}

/// A listener of an abstract name, by user 4711; it accepts and answers nothing.
class impostor {
 public:
  explicit impostor(const std::string& name)
      : child_{[name](channel& line) {
          sockaddr_un address{};
          address.sun_family = AF_UNIX;
          name.copy(&address.sun_path[1], sizeof address.sun_path - 1);
          const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
          const auto length =
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
          if (::setresuid(4711, 4711, 4711) != 0 ||
              ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
              ::listen(fd, 0) != 0)
            return 1;
          line.send("there");
          line.receive(60s);
          return 0;
        }} {}
  bool there() { return child_.says("there", 20s); }

 private:
  child_process child_;
};

TEST_F(SluiceSuspend, IsFoundBesideAStrangerWhoClaimsToBeIt) {
  impostor one{"sluice-suspend." + pid()};
  impostor two{"sluice-suspend." + pid() + ".1"};
  impostor longest{"sluice-suspend." + pid() + "." + std::string(80, '9')};
  ASSERT_TRUE(one.there() && two.there() && longest.there());
  const auto nobody = run({"resume", pid()});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("is not held by a 'sluice suspend' in this network namespace"));
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_EQ(run({"resume", pid()}).code, 0);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
}

// A holder that refuses us answers and closes at once, mostly before we have asked. That it traces
// the process is why it is believed, and finding that out takes the time.
TEST_F(SluiceSuspend, IsHeardEvenWhereTheAnswerComesBeforeTheQuestion) {
  child_process holder{[target = target_.pid()](channel& line) {
    if (::ptrace(PTRACE_SEIZE, target, nullptr, nullptr) != 0 || ::setresuid(4711, 4711, 4711) != 0)
      return 1;
    const auto server = cli::holder_server::open(target);
    line.send("there");
    for (;;) {
      pollfd asked{server->ready_fd(), POLLIN, 0};
      ::poll(&asked, 1, -1);
      const unique_fd peer{::accept4(server->ready_fd(), nullptr, nullptr, SOCK_CLOEXEC)};
      (void)!::write(peer.get(), "error no\n", 9);
    }
  }};
  ASSERT_TRUE(holder.says("there", 20s));
  for (int i = 0; i < 100; ++i) {
    const auto answer = cli::ask_holder(cli::list_holders(), target_.pid(), "status");
    ASSERT_TRUE(answer) << "the question number " << i;
    EXPECT_EQ(answer->holder, holder.pid());
    EXPECT_EQ(answer->text, "error no");
  }
}

TEST_F(SluiceSuspend, IsNotWhatReleaseMakesLetGo) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const std::string store = device_.root() + "/roles";
  const auto refused = run({"release", pid(), "--store", store});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.err, "sluice: process " + pid() + " is held by 'sluice suspend' (process " +
                             std::to_string(holder.pid()) +
                             "), not by a scheduler; run 'sluice resume " + pid() + "' instead\n");
  EXPECT_FALSE(std::filesystem::exists(store));
  EXPECT_TRUE(target_.stands_still());
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 0);
}

TEST_F(SluiceSuspend, SaysWhyItCannot) {
  const auto none = run({"suspend", "4194304"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.err, "sluice: there is no process 4194304\n");
  const auto unheld = run({"resume", pid()});
  EXPECT_EQ(unheld.code, 1);
  EXPECT_THAT(unheld.err, HasSubstr("process " + pid() +
                                    " is not held by a 'sluice suspend' in this network "
                                    "namespace, and is not traced"));
  for (const char* wrong : {"soon", "0s", "86401s"}) {
    const auto refused = run({"suspend", pid(), "--for", wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_EQ(refused.err, "sluice: --for: invalid duration '" + std::string{wrong} +
                               "': expected more than 0s, up to 24h, e.g. 30s, 10min or 2h (see "
                               "--help)\n");
  }
  EXPECT_EQ(run({"suspend"}).code, 2);

  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const auto second = run({"suspend", pid()});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err,
              ContainsRegex("^sluice: process " + pid() +
                            " \\([^)]+\\) is already held by 'sluice suspend' \\(process " +
                            std::to_string(holder.pid()) + "\\); run 'sluice resume " + pid() +
                            "' first\n$"));
  EXPECT_TRUE(target_.stands_still()) << "the second one disturbed the first";
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 0);
}

TEST(SluiceDoctor, FindsThatTheSimulatedDeviceCanBePreempted) {
  const simulated_device device;
  const auto shown = run(device, {"doctor"});
  EXPECT_EQ(shown.code, 0) << shown.out << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("driver: KFD 1.17\n"));
  EXPECT_THAT(shown.out, HasSubstr("batch commands: not available (stock driver)"));
  EXPECT_THAT(shown.out, HasSubstr("nothing blocks preemption\n"));
  const auto json = run(device, {"doctor", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_FALSE(boost::json::parse(json.out).at("blocked").as_bool());

  command nowhere{program, {"doctor", "--driver", "kfd"}, {"SLUICE_KFD_DEVICE=/nonexistent/kfd"}};
  EXPECT_EQ(nowhere.ends(), 1);
  EXPECT_THAT(nowhere.out(), HasSubstr("BLOCKED  device: /nonexistent/kfd cannot be opened"));
}

// A driver's file as it was written down, whatever the simulated device offers.
TEST(SluiceHqds, ShowsTheSlotsOfTheDriversFile) {
  const temporary_directory made;
  const std::string& directory = made.path();
  const std::vector<std::string> there{"SLUICE_KFD_DEBUGFS=" + directory};
  command none{program, {"hqds"}, there};
  EXPECT_EQ(none.ends(), 1);
  EXPECT_THAT(none.err(), HasSubstr("cannot read " + directory + "/hqds: No such file"));

  std::filesystem::copy_file(SLUICE_HQDS_SAMPLE, directory + "/hqds");
  command shown{program, {"hqds"}, there};
  EXPECT_EQ(shown.ends(), 0) << shown.err();
  EXPECT_THAT(shown.out(), HasSubstr("1 of 2 compute slots in use"));
  EXPECT_EQ(shown.err(), "");

  command pictures{program, {"hqds", "--watch", "20ms"}, there};
  const auto has_head = [&] {
    const auto text = pictures.out();
    return std::regex_search(
        text, std::regex{"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}\\.[0-9]{3} [+-][0-9]{4}\nGPU "});
  };
  EXPECT_TRUE(eventually(patience, has_head)) << pictures.out();
  const auto next = "\n\n" + pictures.out().substr(0, 11);  // below a blank line, of the same day
  EXPECT_TRUE(pictures.says(next)) << pictures.out();
  pictures.signal(SIGINT);
  EXPECT_EQ(pictures.ends(), 0);

  command watch{program, {"hqds", "--json", "--watch", "20ms"}, there};
  ASSERT_TRUE(eventually(patience, [&] {
    const auto text = watch.out();
    return std::count(text.begin(), text.end(), '\n') >= 3;
  })) << watch.err();
  watch.signal(SIGINT);
  EXPECT_EQ(watch.ends(), 0);
  const auto text = watch.out();
  const auto line = boost::json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(line.at("gpus").at(0).at("gpu_id").to_number<int>(), 0x4db5);
  EXPECT_EQ(line.at("taken").as_array().size(), 1U);
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_GT(boost::json::parse(last).at("time_unix_ms").to_number<std::int64_t>(),
            line.at("time_unix_ms").to_number<std::int64_t>());

  // What the driver writes while a GPU is being reset.
  std::ofstream{directory + "/hqds"} << "Node 1, gpu_id 4db5:\n Device is stopped\n";
  command stopped{program, {"hqds", "--json"}, there};
  EXPECT_EQ(stopped.ends(), 0) << stopped.err();
  const auto gpu = boost::json::parse(stopped.out()).at("gpus").at(0);
  EXPECT_EQ(gpu.at("gpu_id").to_number<int>(), 0x4db5);
  EXPECT_TRUE(gpu.at("slots").is_null());
  EXPECT_TRUE(gpu.at("taken").is_null());
}

TEST(SluiceHqds, ShowsWhoseQueuesRunOnTheSimulatedDevice) {
  const simulated_device device{
      {.profile = profile_text("", "hqd_slots = 8\nnum_xcc = 1\nsuspend_cost = \"1ms\"\n")}};
  const offline_target one{device.roots(), {.queues = 2}};
  const offline_target two{device.roots()};
  ASSERT_TRUE(one.says('r') && two.says('r'));
  const auto shown = run(device, {"hqds"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.err, "") << "every line of the device's file is understood";
  EXPECT_THAT(shown.out, HasSubstr("GPU 0: 3 of 8 compute slots in use\n"));
  const auto rows_of = [](const std::string& text, pid_t pid) {
    int rows = 0;
    const std::string column = " " + std::to_string(pid) + "  ";
    for (auto at = text.find(column); at != std::string::npos; at = text.find(column, at + 1))
      ++rows;
    return rows;
  };
  EXPECT_EQ(rows_of(shown.out, one.pid()), 2) << shown.out;
  EXPECT_EQ(rows_of(shown.out, two.pid()), 1) << shown.out;

  // What is taken off is off the slots, in the next look of a watch.
  command watch{program, {"hqds", "--json", "--watch", "20ms"}, device.environment()};
  const auto takes = [&](std::size_t slots) {
    return eventually(patience, [&] {
      const auto text = watch.out();
      const auto end = text.rfind('\n');
      if (end == std::string::npos) return false;
      const auto begin = text.rfind('\n', end - 1);
      const auto line = boost::json::parse(
          text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin - 1));
      for (const auto& each : line.at("taken").as_array()) {
        const auto pid = each.at("pid");
        if (!pid.is_int64() || (pid.as_int64() != one.pid() && pid.as_int64() != two.pid()))
          return false;
      }
      return line.at("taken").as_array().size() == slots &&
             line.at("gpus").at(0).at("taken").to_number<std::size_t>() == slots;
    });
  };
  EXPECT_TRUE(takes(3)) << watch.out();
  command holder{program, {"suspend", std::to_string(one.pid())}, device.environment()};
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_TRUE(takes(1)) << watch.out();
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 0);
  EXPECT_TRUE(takes(3)) << watch.out();
  watch.signal(SIGINT);
  EXPECT_EQ(watch.ends(), 0);
}

TEST(SluiceQueues, ShowsMemoryAndWarnsWhenItIsNearlyAllInUse) {
  const simulated_device device{{.profile = profile_text("", "memory_mib = 1000\n")}};
  const raw_device opened{device.roots().device};
  ASSERT_EQ(acquire_vm(opened.fd(), 51110, device.root() + "/dev/dri/renderD128"), 0);
  const auto allocate = [&](std::uint64_t mib) {
    kfd::uapi::kfd_ioctl_alloc_memory_of_gpu_args args{};
    args.va_addr = 0x7f0000000000 + (mib << 32U);
    args.size = mib << 20U;
    args.gpu_id = 51110;
    args.flags = kfd::uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
    return raw_call(opened.fd(), kfd::uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, args);
  };
  ASSERT_EQ(allocate(600), 0);
  const auto pid = std::to_string(::getpid());
  const auto half = run(device, {"queues", "--pid", pid});
  EXPECT_EQ(half.code, 0);
  EXPECT_EQ(half.err, "");
  EXPECT_THAT(half.out, HasSubstr(", 1000M VRAM\n"));
  EXPECT_THAT(half.out, ContainsRegex(pid + " +root .* 600M\n"));
  ASSERT_EQ(allocate(310), 0);
  const auto full = run(device, {"queues"});
  EXPECT_EQ(full.code, 0);
  EXPECT_EQ(full.err,
            "sluice: warning: GPU 0: 910M of 1000M VRAM in use; suspending frees no memory: end a "
            "process, or reduce its memory\n");
  const auto json = boost::json::parse(run(device, {"queues", "--json"}).out);
  EXPECT_EQ(json.at("gpus").at(0).at("vram_bytes").to_number<std::uint64_t>(), 1000U << 20U);
  EXPECT_EQ(json.at("gpus").at(0).at("vram_used_bytes").to_number<std::uint64_t>(), 910U << 20U);
  EXPECT_EQ(json.at("warnings").as_array().size(), 1U);
}

TEST(SluiceQueues, WarnsOfAProcessThatTheDriverEvicts) {
  const simulated_device device;
  const offline_target target{device.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  const auto command_device = [&](const std::string& line) {
    std::ofstream control{device.root() + "/sim/control"};
    control << line << std::endl;
    return control.good();
  };
  ASSERT_TRUE(command_device("evict " + pid + " 51110"));
  EXPECT_TRUE(eventually(patience, [&] {
    return run(device, {"queues", "--interval", "50ms"})
               .err.find("the driver is evicting process " + pid) != std::string::npos;
  }));
  EXPECT_TRUE(eventually(patience, [&] {
    return std::regex_search(run(device, {"queues", "--interval", "50ms"}).out,
                             std::regex{pid + " .* evicted "});
  }));
  const auto evicted_in = [&](const std::string& interval) {
    return boost::json::parse(run(device, {"queues", "--json", "--interval", interval}).out)
        .at("processes")
        .at(0)
        .at("queues")
        .at(0)
        .at("evicted");
  };
  EXPECT_TRUE(eventually(patience, [&] { return evicted_in("50ms") == true; }));
  EXPECT_TRUE(evicted_in("0s").is_null()) << "one look does not tell";
  ASSERT_TRUE(command_device("restore " + pid + " 51110"));
  EXPECT_TRUE(target.runs(20s));
  EXPECT_EQ(run(device, {"queues", "--interval", "50ms"}).err, "");
  EXPECT_EQ(evicted_in("50ms"), false);
}

/// As they lie beside the program.
std::string profiles() {
  std::set<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator{
           std::filesystem::path{program}.parent_path() / "profiles"})
    names.insert(each.path().stem().string());
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

TEST(SluiceSim, StartsADeviceAndSaysHowToUseIt) {
  enter_private_mounts();
  std::string root = "/tmp/sluice-cli-sim-" + std::to_string(::getpid());
  command device{program, {"sim", "--root", root, "--gpus", "2"}, {}};
  ASSERT_TRUE(device.says("NVIDIA_PROC=" + root + "/proc/driver/nvidia\n")) << device.err();
  EXPECT_EQ(device.out(), "export SLUICE_SIM_ROOT=" + root + "\n" +
                              "export SLUICE_KFD_DEVICE=" + root + "/dev/kfd\n" +
                              "export SLUICE_KFD_SYSFS=" + root + "/sys/class/kfd/kfd\n" +
                              "export SLUICE_KFD_DEBUGFS=" + root + "/sys/kernel/debug/kfd\n" +
                              "export SLUICE_NVIDIA_DEVICE=" + root + "/dev/nvidiactl\n" +
                              "export SLUICE_NVIDIA_PROC=" + root + "/proc/driver/nvidia\n");
  command seen{
      program, {"queues", "--driver", "kfd"}, {"SLUICE_KFD_SYSFS=" + root + "/sys/class/kfd/kfd"}};
  EXPECT_EQ(seen.ends(), 0) << seen.err();
  EXPECT_THAT(seen.out(), HasSubstr("GPU 1: "));
  device.signal(SIGINT);
  EXPECT_EQ(device.ends(), 0) << device.err();
  EXPECT_FALSE(std::filesystem::exists(root));

  command wrong{program, {"sim", "--profile", "no-such"}, {}};
  EXPECT_EQ(wrong.ends(), 2);
  EXPECT_EQ(wrong.out(), "");
  EXPECT_THAT(wrong.err(), HasSubstr("no-such"));
  EXPECT_THAT(wrong.err(), HasSubstr(profiles()));
  command unnamed{program, {"sim", "--root", ""}, {}};
  EXPECT_EQ(unnamed.ends(), 2);
  EXPECT_THAT(unnamed.err(), HasSubstr("invalid directory '': name a directory"));
}

TEST(SluiceSim, ListsTheProfilesThatThereAre) {
  EXPECT_THAT(profiles(), HasSubstr("gfx1100, h100, mi300x, mi300x-batch"));
  for (const char* words : {"sim", ""}) {
    command help{*words != 0 ? program : SLUICE_SIM_PROGRAM,
                 *words != 0 ? std::vector<std::string>{words, "--help"}
                             : std::vector<std::string>{"--help"},
                 {}};
    EXPECT_EQ(help.ends(), 0);
    EXPECT_THAT(help.out(), HasSubstr("Profiles: " + profiles() + "\n"));
  }
}

// CLI11 would read 0x10 as 16, 1e3 as 1000, and name the range of a double.
TEST(Sluice, TakesPidsAndQueueIdsAsWholeNumbersOnly) {
  const std::vector<std::vector<std::string>> before{{"suspend"},
                                                     {"resume"},
                                                     {"release"},
                                                     {"queues", "--pid"},
                                                     {"role", "set", "online", "--pid"}};
  for (const auto& words : before) {
    for (const std::string wrong : {"0", "4194305", "0x10", "1e3", "one", "99999999999999999999"}) {
      auto all = words;
      all.push_back(wrong);
      command refused{program, all, {}};
      EXPECT_EQ(refused.ends(), 2) << words[0] << " " << wrong;
      EXPECT_THAT(refused.err(), HasSubstr("invalid process id '" + wrong +
                                           "': expected a whole number from 1 to 4194304 (see "
                                           "--help)\n"));
    }
  }
  for (const char* verb : {"suspend", "resume"}) {
    command refused{program, {verb, "1", "0x10"}, {}};
    EXPECT_EQ(refused.ends(), 2);
    EXPECT_THAT(refused.err(), HasSubstr("invalid queue id '0x10': expected "));
  }
  command gpus{program, {"sim", "--gpus", "65"}, {}};
  EXPECT_EQ(gpus.ends(), 2);
  EXPECT_EQ(
      gpus.err(),
      "sluice: --gpus: invalid number of GPUs '65': expected a whole number from 1 to 64 (see "
      "--help)\n");
}

TEST(Sluice, NamesASubcommandThatThereIsNotAndListsThem) {
  const std::string all =
      "doctor, queues, hqds, role, suspend, resume, release, rescue, breaker, run, check, status, "
      "top, fleet, "
      "why, pause, unpause, jobs, sim, policy, lab, replay, analyze, accept (see --help)\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"foo"}, "unknown subcommand 'foo'; available: " + all},
      {{"foo", "--bar", "1"}, "unknown subcommand 'foo'; available: " + all},
      {{}, "missing subcommand; available: " + all},
      {{"--foo"}, "unknown option '--foo' (see --help)\n"},
      {{"role", "foo"}, "unknown subcommand 'foo'; available: set, clear, list (see --help)\n"},
      {{"role"}, "missing subcommand; available: set, clear, list (see --help)\n"},
  };
  for (const auto& [words, sentence] : wrong) {
    command refused{program, words, {}};
    EXPECT_EQ(refused.ends(), 2);
    EXPECT_EQ(refused.err(), "sluice: " + sentence);
  }
}

// With a real sshd: tests/fleet/ssh.sh.
TEST(SluiceFleet, SaysOfEachNodeWhyItDoesNotAnswer) {
  const std::vector<std::pair<std::string, std::string>> programs{
      {"echo",
       "the answer is not the JSON of 'sluice status'; does the shell of this user print "
       "text?"},
      {"/nonexistent/ssh -v", "cannot run '/nonexistent/ssh': No such file or directory"},
      {"false", "the command exited with code 1"},
      {"ls /nonexistent", "ls: cannot access 'sluice status --json': No such file or directory"},
  };
  for (const auto& [ssh, why] : programs) {
    command fleet{program, {"fleet", "status", "--ssh", ssh, "a", "b"}, {}};
    EXPECT_EQ(fleet.ends(), 1) << ssh;
    EXPECT_THAT(fleet.out(), ContainsRegex("\na +no-answer .*\nb +no-answer ")) << ssh;
    EXPECT_EQ(fleet.err(),
              "sluice: a: no answer: " + why + "\nsluice: b: no answer: " + why + "\n");
  }
}

TEST(SluiceFleet, RefusesWhatIsNoNodeAndNoTime) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{}, "NODE is missing: name one or more nodes, or use --nodes FILE (see --help)\n"},
      {{"--timeout", "10", "a"},
       "--timeout: invalid duration '10': expected 1s to 1h (see --help)\n"},
      {{"--ssh", " ", "a"}, "--ssh: the command is empty (see --help)\n"},
      {{"--", "-oProxyCommand=touch x"}, "invalid name of a node '-oProxyCommand=touch x'\n"},
  };
  for (const auto& [words, sentence] : wrong) {
    std::vector<std::string> all{"fleet", "status"};
    all.insert(all.end(), words.begin(), words.end());
    command fleet{program, all, {}};
    EXPECT_EQ(fleet.ends(), 2) << sentence;
    EXPECT_EQ(fleet.err(), "sluice: " + sentence);
  }
}

TEST(SluiceJobs, SaysWhatToDoWhereThereIsNoFile) {
  command jobs{program, {"jobs", "/nonexistent/jobs"}, {}};
  EXPECT_EQ(jobs.ends(), 1);
  EXPECT_THAT(jobs.err(),
              HasSubstr("/nonexistent/jobs: cannot read the jobs file: No such file or directory"));
  EXPECT_THAT(jobs.err(), HasSubstr("jobs = \"/nonexistent/jobs\" in [daemon]"));
}

TEST(Sluice, ExplainsItself) {
  const std::vector<std::vector<std::string>> subcommands{{},
                                                          {"doctor"},
                                                          {"queues"},
                                                          {"hqds"},
                                                          {"suspend"},
                                                          {"resume"},
                                                          {"sim"},
                                                          {"release"},
                                                          {"rescue"},
                                                          {"role"},
                                                          {"role", "set"},
                                                          {"role", "clear"},
                                                          {"role", "list"},
                                                          {"breaker"},
                                                          {"breaker", "list"},
                                                          {"breaker", "rearm"},
                                                          {"replay"},
                                                          {"jobs"},
                                                          {"analyze"},
                                                          {"accept"},
                                                          {"run"},
                                                          {"check"},
                                                          {"status"},
                                                          {"fleet"},
                                                          {"fleet", "status"},
                                                          {"top"},
                                                          {"why"},
                                                          {"policy"},
                                                          {"pause"},
                                                          {"unpause"}};
  for (auto words : subcommands) {
    words.emplace_back("--help");
    command help{program, words, {}};
    EXPECT_EQ(help.ends(), 0);
    const auto text = help.out();
    EXPECT_THAT(text, HasSubstr("Exit code 0:"));
    const bool list = words.size() == 1;  // of all subcommands
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), list ? 36 : 24) << text;
    for (std::size_t at = 0; at < text.size();) {
      const auto end = text.find('\n', at);
      EXPECT_LE(end - at, 80U) << text.substr(at, end - at);
      at = end + 1;
    }
    words.back() = "--no-such-option";
    command wrong{program, words, {}};
    EXPECT_EQ(wrong.ends(), 2);
    EXPECT_THAT(wrong.err(), ContainsRegex("^sluice: [^\n]+\n$"));
  }
}

}  // namespace
}  // namespace sluice::test::program_test
