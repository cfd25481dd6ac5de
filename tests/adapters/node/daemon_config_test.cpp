#include "sluice/daemon_config.hpp"

#include "stub_driver.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/driver.hpp"
#include "sluice/nvidia/driver.hpp"
#include "sluice/policies/all.hpp"

namespace sluice::daemon_config_test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class DaemonConfig : public testing::Test {
 protected:
  DaemonConfig() {
    for (policy_kind& kind : all_policies()) known_.add(std::move(kind));
  }
  ~DaemonConfig() override { std::filesystem::remove(path_); }

  result<daemon_config> load(const std::string& content) {
    std::ofstream{path_} << content;
    return load_daemon_config(path_, known_, list_, problems_);
  }
  std::string at(int line) const { return path_ + ":" + std::to_string(line) + ": "; }

  policy_registry known_;
  driver_list list_{[] { return kfd::make_driver(); }};
  const std::string path_ =
      testing::TempDir() + "sluice_daemon_" + std::to_string(::getpid()) + ".toml";
  std::vector<std::string> problems_;
};

void expect_same(const daemon_config& one, const daemon_config& another) {
  EXPECT_EQ(one.fixed_differences(another), "");
  EXPECT_EQ(one.log_level, another.log_level);
  EXPECT_EQ(one.log_levels, another.log_levels);
  EXPECT_EQ(one.statistics_interval, another.statistics_interval);
  EXPECT_EQ(one.policy, another.policy);
  EXPECT_TRUE(one.node.settings.scheduler == another.node.settings.scheduler);
  EXPECT_TRUE(one.node.settings.roles == another.node.settings.roles);
}

// It names the program that becomes the agent.
TEST_F(DaemonConfig, IsNobodyElsesToWrite) {
  ASSERT_TRUE(load(""));
  using std::filesystem::perms;
  for (const perms more : {perms::group_write, perms::others_write}) {
    std::filesystem::permissions(path_, more, std::filesystem::perm_options::add);
    EXPECT_EQ(load_daemon_config(path_, known_, list_, problems_).error(), errc::bad_config);
    EXPECT_THAT(problems_, ElementsAre(HasSubstr("writable by group or others; run chmod go-w ")));
    std::filesystem::permissions(path_, more, std::filesystem::perm_options::remove);
  }
  EXPECT_TRUE(load_daemon_config(path_, known_, list_, problems_));
  if (::geteuid() != 0) return;  // Who is not cannot give files away.
  constexpr uid_t another = 64003;
  ASSERT_EQ(::chown(path_.c_str(), another, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(load_daemon_config(path_, known_, list_, problems_).error(), errc::bad_config);
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("owned by user 64003")));
}

TEST_F(DaemonConfig, ObservesByDefaultWithTransparentDetection) {
  const auto config = load_daemon_config("", known_, list_, problems_);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->node.mode, node_mode::observe);
  EXPECT_THAT(config->policy, StartsWith("pointer_polling:"));
  EXPECT_NE(config->node.settings.make_policy(), nullptr);
  const auto empty = load("");
  ASSERT_TRUE(empty) << problems_.front();
  expect_same(*config, *empty);
}

TEST_F(DaemonConfig, IsShownWholeByTheExampleWithItsDefaults) {
  const driver_list all{[] { return kfd::make_driver(); }, [] { return nvidia::make_driver(); }};
  const auto example = load_daemon_config(SLUICE_EXAMPLE_CONFIG, known_, all, problems_);
  ASSERT_TRUE(example) << problems_.front();
  expect_same(*example, *load_daemon_config("", known_, all, problems_));
  // Each key is there once more than here: as a setting.
  std::ifstream file{SLUICE_EXAMPLE_CONFIG};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  for (const std::string key : {"mode",
                                "directory",
                                "clients",
                                "socket_group",
                                "control",
                                "control_group",
                                "record",
                                "jobs",
                                "metrics",
                                "metrics_file",
                                "trace",
                                "agent",
                                "driver",
                                "allow_untested_driver",
                                "batch_commands",
                                "criu_pause",
                                "log_level",
                                "log_levels",
                                "statistics_interval",
                                "max_suspend",
                                "min_run",
                                "offline_floor",
                                "floor_window",
                                "attach_after",
                                "attach_at_latest",
                                "max_busy",
                                "failure_backoff",
                                "breaker_after",
                                "breaker_rearm",
                                "policy_time_limit",
                                "stop_limit",
                                "inbox_capacity",
                                "suspend_copy_queues",
                                "name",
                                "store",
                                "may_claim_online",
                                "may_claim_offline",
                                "environment",
                                "pids",
                                "cgroups",
                                "rings",
                                "online_priority",
                                "queue_priority",
                                "gangs",
                                "gang_variables",
                                "gang_cgroups",
                                "allow_partial_gang"})
    EXPECT_THAT(text, HasSubstr("\n" + key + " = "));
  // What is optional has no default, and is commented out.
  for (const parameter& each : known_.find("pointer_polling")->schema)
    EXPECT_THAT(text, HasSubstr((each.optional ? "\n# " : "\n") + each.key + " = "));
}

TEST_F(DaemonConfig, ReadsItsTable) {
  const auto config = load(
      "[daemon]\nclients = false\nsocket_group = \"root\"\ncontrol = false\ncontrol_group = 4242\n"
      "record = \"/tmp/r\"\njobs = \"/tmp/j\"\n"
      "metrics = \"127.0.0.1:9464\"\nmetrics_file = \"/tmp/m\"\ntrace = \"/tmp/t\"\nmode = "
      "\"enforce\"\ndirectory = "
      "\"/tmp/x/\"\nagent = \"/opt/agent\"\ncpu_latency = \"5us\"\n"
      "driver = \"kfd\"\nlog_level = \"error\"\n"
      "log_levels = { attach = \"warning\", node = \"info\" }\n"
      "statistics_interval = \"0s\"\n[policy]\nname = \"slo\"\nrequest.p99 = \"200ms\"\n"
      "[kfd]\nbatch_commands = false\ncriu_pause = true\n");
  ASSERT_TRUE(config) << problems_.front();
  EXPECT_EQ(config->node.mode, node_mode::enforce);
  EXPECT_EQ(config->node.files.owner(), "/tmp/x/owner");
  EXPECT_EQ(config->node.files.disabled(), "/tmp/x/disabled");
  EXPECT_EQ(config->node.agent_path, "/opt/agent");
  EXPECT_EQ(config->node.cpu_latency, 5us);
  EXPECT_EQ(config->driver, "kfd");
  ASSERT_NE(config->node.driver, nullptr);
  EXPECT_EQ(config->node.driver->acting().settings.at("batch_commands"), "false");
  EXPECT_EQ(config->node.driver->acting().settings.at("criu_pause"), "true");
  EXPECT_EQ(config->node.record.file, "/tmp/r");
  EXPECT_EQ(config->node.record.policy, config->policy);
  EXPECT_EQ(config->node.observing, (observing_options{.jobs = "/tmp/j",
                                                       .metrics = "127.0.0.1:9464",
                                                       .metrics_file = "/tmp/m",
                                                       .trace = "/tmp/t"}));
  EXPECT_FALSE(config->node.clients);
  EXPECT_EQ(config->node.socket_group, gid_t{0});
  EXPECT_FALSE(config->node.control);
  EXPECT_EQ(config->node.control_group, gid_t{4242});
  EXPECT_EQ(config->log_level, daemon_log_level::error);
  for (const log_part each : all_log_parts) {
    const auto expected = each == log_part::attach ? std::optional{daemon_log_level::warning}
                          : each == log_part::node ? std::optional{daemon_log_level::info}
                                                   : std::nullopt;
    EXPECT_EQ(config->log_levels[static_cast<std::size_t>(each)], expected) << to_string(each);
  }
  EXPECT_EQ(config->statistics_interval, 0s);
  EXPECT_THAT(config->policy, StartsWith("slo:"));
  EXPECT_EQ(
      config->fixed_differences(*load_daemon_config("", known_, list_, problems_)),
      "mode, directory, clients, socket_group, control, control_group, record, jobs, metrics, "
      "metrics_file, trace, agent, cpu_latency, kfd.batch_commands, kfd.criu_pause");
  // It makes policies from what was read, whatever becomes of the file.
  std::filesystem::remove(path_);
  EXPECT_EQ(config->node.settings.make_policy()->name(),
            config->node.settings.make_policy()->name());
}

TEST_F(DaemonConfig, ListsEveryErrorWithItsLineAndKey) {
  EXPECT_FALSE(
      load("[daemon]\nmode = \"watch\"\ncolour = 1\nlog_level = 3\n[scheduler]\nmin_run = 5\n"
           "max_suspend = \"1h\"\nspeed = 1\n[policy]\nname = \"nonesuch\"\n[roles]\n"
           "online_priority = 16\n[deamon]\nx = 1\n"));
  EXPECT_THAT(problems_,
              ElementsAre(at(2) + "mode must be \"observe\" or \"enforce\"",
                          at(3) + "colour is not a setting of [daemon]",
                          at(4) + "log_level must be \"info\" or \"warning\" or \"error\"",
                          StartsWith(at(6) + "min_run must be a duration in quotes"),
                          StartsWith(at(7) + "max_suspend is 1h; it must be at most 141s: "
                                             "max_suspend plus the longest driver call (9s)"),
                          at(8) + "speed is not a setting of [scheduler]", StartsWith(at(9)),
                          StartsWith(at(12) + "online_priority is 16; it must be"),
                          at(13) + "unknown table 'deamon'; available: [scheduler], "
                                   "[policy], [roles], [daemon], [kfd]"));
}

TEST_F(DaemonConfig, ListsEveryErrorOfPolicyAndRoles) {
  EXPECT_FALSE(
      load("[policy]\nname = \"fixed_timeslice\"\nslice = 5\nspeed = 1\nmore = [1]\n"
           "release = true\n[roles]\nstore = 1\n"
           "may_claim_online = { users = [\n\"nobody-here\",\n0, 1.5], groups = [\n-1] }\n"
           "cgroups = [{ when = \"/a\", role = \"online\" },\n{ when = \"/b\" },\n{}]\n"
           "gang_cgroups = [\"x\"]\nonline_priority = 16\n"));
  EXPECT_THAT(
      problems_,
      ElementsAre(StartsWith(at(3) + "slice is 5; it must be a duration"),
                  StartsWith(at(4) + "speed is not a parameter of this policy"),
                  at(5) + "a parameter must be a string, a number, true or false",
                  StartsWith(at(6) + "release is true; it must be"),
                  StartsWith(at(8) + "store is 1; it must be a path"),
                  StartsWith(at(10) + "may_claim_online.users is 'nobody-here'; it must be"),
                  StartsWith(at(11) + "may_claim_online.users is 1.5; it must be"),
                  StartsWith(at(12) + "may_claim_online.groups is -1; it must be"),
                  StartsWith(at(14) + "cgroups is { when = '/b' }; it must be"),
                  StartsWith(at(15) + "cgroups is {}; it must be"),
                  StartsWith(at(16) + "gang_cgroups contains \"x\"; a cgroup pattern"),
                  StartsWith(at(17) + "online_priority is 16; it must be")));
  // Whose parameters these are nobody knows.
  EXPECT_FALSE(load("[policy]\nname = 1\nplugin = \"\"\nspeed = 1\n"));
  EXPECT_THAT(problems_, ElementsAre(at(2) + "name must be a policy's name in quotes",
                                     at(3) + "plugin must be a file's path in quotes"));
  // Of what a policy wraps.
  EXPECT_FALSE(
      load("[policy]\nname = \"shadow\"\nof = \"fixed_timeslice\"\nspeed = 1\nslice = 5\n"));
  EXPECT_THAT(problems_, ElementsAre(StartsWith(at(4) + "speed is not"), StartsWith(at(5))));
}

TEST_F(DaemonConfig, SaysWhereTheTextIsNoToml) {
  EXPECT_FALSE(load("[daemon]\nmode = \n"));
  ASSERT_EQ(problems_.size(), 1U);
  EXPECT_THAT(problems_.front(), StartsWith(path_ + ":2:"));
  std::filesystem::remove(path_);
  EXPECT_FALSE(load_daemon_config(path_, known_, list_, problems_));
  EXPECT_THAT(problems_, ElementsAre(path_ + ": cannot read the configuration: No such file or "
                                             "directory"));
}

// Symptom: it ended with std::__ios_failure.
TEST_F(DaemonConfig, SaysThatADirectoryIsNoConfiguration) {
  EXPECT_FALSE(load_daemon_config("/tmp", known_, list_, problems_));
  EXPECT_THAT(problems_, ElementsAre("/tmp: cannot read the configuration: not a regular file"));
}

// Symptom: the one waited for ever, the other took all memory.
TEST_F(DaemonConfig, ReadsRegularFilesOfSomeSizeOnly) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path : {path_, std::string{"/dev/zero"}}) {
    EXPECT_FALSE(load_daemon_config(path, known_, list_, problems_));
    EXPECT_THAT(problems_,
                ElementsAre(path + ": cannot read the configuration: not a regular file"));
  }
  std::filesystem::remove(path_);
  EXPECT_FALSE(load("# " + std::string(1 << 20, 'x') + "\n"));
  EXPECT_THAT(problems_, ElementsAre(path_ + ": cannot read the configuration: File too large"));
}

TEST_F(DaemonConfig, BoundsWhatWouldNotWork) {
  EXPECT_FALSE(load("[daemon]\ndirectory = \"/" + std::string(86, 'd') +
                    "\"\nstatistics_interval = \"999ms\"\n"));
  EXPECT_THAT(problems_,
              ElementsAre(at(2) + "directory has 87 bytes; use at most 86 bytes, because the paths "
                                  "of sockets start with this path",
                          at(3) + "statistics_interval must be a duration in quotes with a unit, "
                                  "1s to 24h, such as \"10min\", or \"0s\" for no interval"));
  EXPECT_TRUE(load("[daemon]\ndirectory = \"/" + std::string(85, 'd') +
                   "\"\nstatistics_interval = \"1s\"\n"));
  for (const auto* const wrong : {"\"2s\"", "\"-1us\"", "0"}) {
    EXPECT_FALSE(load("[daemon]\ncpu_latency = " + std::string{wrong} + "\n"));
    EXPECT_THAT(problems_, ElementsAre(StartsWith(at(2) + "cpu_latency must be a duration")));
  }
  const auto config = load("[daemon]\ncpu_latency = \"\"\n");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->node.cpu_latency, std::nullopt);
}

TEST_F(DaemonConfig, SaysWhatTheMachineDoesNotHave) {
  auto config = load("[daemon]\nmode = \"enforce\"\nagent = \"/nope\"\nrecord = \"/nope/x\"\n");
  ASSERT_TRUE(config);
  EXPECT_THAT(config->missing_here(),
              ElementsAre("[daemon] agent = /nope: program not found; set the path of sluice-agent",
                          "[daemon] record = /nope/x: directory /nope does not exist; create it"));
  config->node.mode = node_mode::observe;  // which needs no agent
  config->node.record.file = "/tmp";
  EXPECT_THAT(config->missing_here(),
              ElementsAre("[daemon] record = /tmp: is a directory; expected the path of a file"));
  config->node.mode = node_mode::enforce;
  config->node.agent_path = "/proc/self/exe";
  config->node.record.file = testing::TempDir() + "x.rec";
  EXPECT_THAT(config->missing_here(), ElementsAre());
  config->node.agent_path = "/proc/version";
  EXPECT_THAT(config->missing_here(),
              ElementsAre("[daemon] agent = /proc/version: not executable; run chmod a+x on it"));
}

/// Two drivers; a test says which of them are present.
class DaemonDrivers : public DaemonConfig {
 protected:
  DaemonDrivers() {
    list_ = {[this] { return std::make_unique<test::stub_driver>("one", one_); },
             [this] { return std::make_unique<test::stub_driver>("two", two_); }};
  }

  std::string one_;
  std::string two_;
};

TEST_F(DaemonDrivers, AreChosenByPresenceOrName) {
  const auto chosen = [this](const std::string& content) -> std::string {
    const auto config = load(content);
    if (!config) return "no configuration";
    return config->node.driver ? std::string{config->node.driver->name()} : config->no_driver;
  };
  one_ = "load one";
  EXPECT_EQ(chosen(""), "two");
  EXPECT_EQ(chosen("[daemon]\ndriver = \"auto\"\n"), "two");
  EXPECT_EQ(chosen("[daemon]\ndriver = \"one\"\n"), "one") << "which says itself what is missing";
  two_ = "load two";
  EXPECT_EQ(chosen(""), "no driver is present: one: load one; two: load two");
  one_ = two_ = "";
  EXPECT_THAT(chosen(""), StartsWith("several drivers are present: one, two; set driver"));
  EXPECT_EQ(chosen("[daemon]\ndriver = \"one\"\n"), "one");
  EXPECT_FALSE(load("[daemon]\ndriver = \"three\"\n"));
  EXPECT_THAT(problems_, ElementsAre(at(2) + "driver must be \"auto\" or \"one\" or \"two\""));
}

TEST_F(DaemonDrivers, HaveTablesOfTheirOwn) {
  two_ = "load two";
  const auto before = load("");
  const auto config = load("[two]\ntext = \"a\"\n[one]\ncareful = true\ntext = \"b\"\n");
  ASSERT_TRUE(before && config) << problems_.front();
  EXPECT_EQ(config->node.driver->acting().settings.at("careful"), "true");
  EXPECT_EQ(config->node.driver->acting().settings.at("text"), "b");
  EXPECT_EQ(config->fixed_differences(*before), "one.careful, one.text");
  EXPECT_FALSE(load("[one]\ncareful = \"yes\"\ntext = 1\nspeed = true\n[three]\ncareful = true\n"));
  EXPECT_THAT(problems_,
              ElementsAre(at(2) + "careful must be true or false",
                          at(3) + "text must be a string in quotes, true or false",
                          at(4) + "speed is not a setting of [one]",
                          at(5) + "unknown table 'three'; available: [scheduler], [policy], "
                                  "[roles], [daemon], [one], [two]"));
  EXPECT_FALSE(load("two = 1\n"));
  EXPECT_THAT(problems_, ElementsAre(at(1) + "two must be a table: [two]"));
  two_ = "";
  const auto other = load("[daemon]\ndriver = \"two\"\n");
  ASSERT_TRUE(other);
  EXPECT_EQ(before->fixed_differences(*other), "driver");
}

TEST_F(DaemonConfig, KnowsAPolicyByItsTable) {
  const auto before = load("[policy]\nname = \"slo\"\nrequest.p99 = \"200ms\"\n");
  const auto same =
      load("# moved down\n\n[policy]\nname = \"slo\"  # as before\nrequest.p99 = \"200ms\"\n");
  const auto other = load("[policy]\nname = \"slo\"\nrequest.p99 = \"201ms\"\n");
  ASSERT_TRUE(before && same && other);
  EXPECT_EQ(before->policy_table, same->policy_table);
  EXPECT_NE(before->policy_table, other->policy_table);
}

}  // namespace
}  // namespace sluice::daemon_config_test
