// The command as users run it, beside a simulated device and real processes.

#include "command.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test {
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
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("rules.toml.not"));
}

TEST(SluiceQueues, SaysWhatIsNotThere) {
  const simulated_device device;
  const auto wrong = run(device, {"queues", "--gpu", "17"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "sluice: --gpu 17: no such GPU; 'sluice queues' lists them\n");

  command nowhere{program, {"queues"}, {"SLUICE_KFD_SYSFS=/nonexistent/kfd"}};
  EXPECT_EQ(nowhere.ends(), 1);
  EXPECT_THAT(nowhere.err(), HasSubstr("cannot read /nonexistent/kfd/proc: No such file"));
}

bool untraced(pid_t pid) {
  return within(10s, [&] {
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
    return test::run(device_, std::move(words));
  }

  simulated_device device_{{.profile = profile_text("",
                                                    "suspend_cost = \"1ms\"\n"
                                                    "resume_cost = \"1ms\"\n"
                                                    "cycle_cost = \"200us\"\n")}};
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
  EXPECT_THAT(done.out, HasSubstr("everything of it runs again"));
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
  EXPECT_THAT(unknown.err, HasSubstr("it has no such queue"));
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
  EXPECT_THAT(holder.err(), HasSubstr("it has no such queue"));
}

TEST_F(SluiceSuspend, EndsWithItsTarget) {
  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  ::kill(target_.pid(), SIGKILL);
  EXPECT_EQ(holder.ends(), 0) << holder.err();
  EXPECT_THAT(holder.out(), HasSubstr("process " + pid() + " has ended"));
}

TEST_F(SluiceSuspend, SaysWhyItCannot) {
  const auto none = run({"suspend", "2147483646"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.err, "sluice: there is no process 2147483646\n");
  const auto unheld = run({"resume", pid()});
  EXPECT_EQ(unheld.code, 1);
  EXPECT_THAT(unheld.err, HasSubstr("no 'sluice suspend' holds process " + pid()));
  EXPECT_EQ(run({"suspend", pid(), "--for", "soon"}).code, 2);
  EXPECT_EQ(run({"suspend"}).code, 2);

  auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  const auto second = run({"suspend", pid()});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("process " + pid()));
  EXPECT_TRUE(target_.stands_still()) << "the second one disturbed the first";
  holder.signal(SIGINT);
  EXPECT_EQ(holder.ends(), 0);
}

TEST(SluiceDoctor, FindsThatTheSimulatedDeviceCanBePreempted) {
  const simulated_device device;
  const auto shown = run(device, {"doctor"});
  EXPECT_EQ(shown.code, 0) << shown.out << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("driver: KFD 1.17\n"));
  EXPECT_THAT(shown.out, HasSubstr("batch commands: not offered: a stock driver"));
  EXPECT_THAT(shown.out, HasSubstr("nothing blocks preemption\n"));
  const auto json = run(device, {"doctor", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_FALSE(boost::json::parse(json.out).at("blocked").as_bool());

  command nowhere{program, {"doctor"}, {"SLUICE_KFD_DEVICE=/nonexistent/kfd"}};
  EXPECT_EQ(nowhere.ends(), 1);
  EXPECT_THAT(nowhere.out(), HasSubstr("BLOCKED  device: /nonexistent/kfd cannot be opened"));
}

// A driver's file as it was written down, whatever the simulated device offers.
TEST(SluiceHqds, ShowsTheSlotsOfTheDriversFile) {
  std::string directory = "/tmp/sluice-hqds-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::vector<std::string> there{"SLUICE_KFD_DEBUGFS=" + directory};
  command none{program, {"hqds"}, there};
  EXPECT_EQ(none.ends(), 1);
  EXPECT_THAT(none.err(), HasSubstr("cannot read " + directory + "/hqds: No such file"));

  std::filesystem::copy_file(SLUICE_HQDS_SAMPLE, directory + "/hqds");
  command shown{program, {"hqds"}, there};
  EXPECT_EQ(shown.ends(), 0) << shown.err();
  EXPECT_THAT(shown.out(), HasSubstr("1 of 2 compute slots taken"));
  EXPECT_EQ(shown.err(), "");

  command watch{program, {"hqds", "--json", "--watch", "20ms"}, there};
  ASSERT_TRUE(eventually(20s, [&] {
    const auto text = watch.out();
    return std::count(text.begin(), text.end(), '\n') >= 3;
  })) << watch.err();
  watch.signal(SIGINT);
  EXPECT_EQ(watch.ends(), 0);
  const auto text = watch.out();
  const auto line = boost::json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(line.at("gpus").at(0).at("gpu_id").to_number<int>(), 0x4db5);
  EXPECT_EQ(line.at("taken").as_array().size(), 1U);
  std::filesystem::remove_all(directory);
}

TEST(SluiceSim, StartsADeviceAndSaysHowToUseIt) {
  enter_private_mounts();
  std::string root = "/tmp/sluice-cli-sim-" + std::to_string(::getpid());
  command device{program, {"sim", "--root", root, "--gpus", "2"}, {}};
  ASSERT_TRUE(device.says("DEBUGFS=" + root + "/sys/kernel/debug/kfd\n")) << device.err();
  EXPECT_EQ(device.out(), "export SLUICE_KFD_DEVICE=" + root + "/dev/kfd\n" +
                              "export SLUICE_KFD_SYSFS=" + root + "/sys/class/kfd/kfd\n" +
                              "export SLUICE_KFD_DEBUGFS=" + root + "/sys/kernel/debug/kfd\n");
  command seen{program, {"queues"}, {"SLUICE_KFD_SYSFS=" + root + "/sys/class/kfd/kfd"}};
  EXPECT_EQ(seen.ends(), 0) << seen.err();
  EXPECT_THAT(seen.out(), HasSubstr("GPU 1: "));
  device.signal(SIGINT);
  EXPECT_EQ(device.ends(), 0) << device.err();
  EXPECT_FALSE(std::filesystem::exists(root));

  command wrong{program, {"sim", "--profile", "no-such"}, {}};
  EXPECT_EQ(wrong.ends(), 2);
  EXPECT_EQ(wrong.out(), "");
  EXPECT_THAT(wrong.err(), HasSubstr("no-such"));
}

TEST(Sluice, ExplainsItself) {
  const std::vector<std::vector<std::string>> subcommands{
      {},      {"doctor"}, {"queues"},      {"hqds"},          {"suspend"},     {"resume"},
      {"sim"}, {"role"},   {"role", "set"}, {"role", "clear"}, {"role", "list"}};
  for (auto words : subcommands) {
    words.emplace_back("--help");
    command help{program, words, {}};
    EXPECT_EQ(help.ends(), 0);
    const auto text = help.out();
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24) << text;
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
}  // namespace sluice::test
