#include "sluice/config.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::config_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

class LoadConfig : public testing::Test {
 protected:
  result<scheduler_config> load(const std::string& content) {
    std::ofstream(path_) << content;
    return load_config(path_, message_);
  }
  ~LoadConfig() override { std::filesystem::remove(path_); }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("sluice_config_" + std::to_string(getpid()) + ".toml"))
                                .string();
  std::string message_;
};

TEST(SchedulerConfig, HasDefaultsWithoutAProblem) { EXPECT_EQ(scheduler_config{}.problem(), ""); }

TEST(SchedulerConfig, NamesKeyValueAndRangeOfAProblem) {
  scheduler_config config;
  config.min_run = 90s;
  EXPECT_EQ(config.problem(), "min_run is 90s; it must be 1ms to 1min");
}

TEST(SchedulerConfig, RefusesToLetOfflineWorkStandStillTooLongWithTheArithmetic) {
  scheduler_config config;
  config.max_suspend = 141s;
  EXPECT_EQ(config.problem(), "");
  config.max_suspend = 200s;
  EXPECT_EQ(
      config.problem(),
      "max_suspend is 200s; it must be at most 141s: max_suspend plus the longest driver call (9s) "
      "must not exceed 150s, because frameworks drop a worker after 5min");
  config.max_suspend = duration::max();
  EXPECT_NE(config.problem(), "");
  config.max_suspend = 1us;
  EXPECT_EQ(config.problem(), "max_suspend is 1us; it must be 1ms to 141s");
}

TEST(SchedulerConfig, RefusesEveryFieldOutOfRange) {
  const auto broken = [](auto change) {
    scheduler_config config;
    change(config);
    return config.problem();
  };
  EXPECT_THAT(broken([](auto& c) { c.max_suspend = 0ns; }), StartsWith("max_suspend"));
  EXPECT_THAT(broken([](auto& c) { c.offline_floor = 0.95; }), StartsWith("offline_floor"));
  EXPECT_THAT(broken([](auto& c) { c.offline_floor = std::numeric_limits<double>::quiet_NaN(); }),
              StartsWith("offline_floor"));
  EXPECT_THAT(broken([](auto& c) { c.floor_window = 1ms; }), StartsWith("floor_window"));
  EXPECT_THAT(broken([](auto& c) { c.attach_after = -1s; }), StartsWith("attach_after"));
  EXPECT_THAT(broken([](auto& c) { c.attach_at_latest = 1s; }), StartsWith("attach_at_latest"));
  EXPECT_THAT(broken([](auto& c) { c.max_busy = 0s; }), StartsWith("max_busy"));
  EXPECT_THAT(broken([](auto& c) { c.failure_backoff = 1h; }), StartsWith("failure_backoff"));
  EXPECT_THAT(broken([](auto& c) { c.policy_time_limit = 0s; }), StartsWith("policy_time_limit"));
  EXPECT_THAT(broken([](auto& c) { c.stop_limit = 2min; }), StartsWith("stop_limit"));
  EXPECT_THAT(broken([](auto& c) { c.breaker_after = 0; }), StartsWith("breaker_after"));
  EXPECT_THAT(broken([](auto& c) { c.breaker_rearm = -1s; }), StartsWith("breaker_rearm"));
  EXPECT_THAT(broken([](auto& c) { c.inbox_capacity = 1; }), StartsWith("inbox_capacity"));
  EXPECT_THAT(broken([](auto& c) { c.floor_window = 101ms; }), StartsWith("floor_window"));
}

TEST_F(LoadConfig, ReadsWhatIsNamedAndKeepsTheOtherDefaults) {
  const auto config = load(
      "[scheduler]\n"
      "max_suspend = \"250ms\"\n"
      "min_run = '1.5 ms'\n"
      "offline_floor = 0\n"
      "inbox_capacity = 512\n"
      "suspend_copy_queues = true\n"
      "[roles]\nstore = ''\n");
  ASSERT_TRUE(config) << message_;
  EXPECT_EQ(config->max_suspend, 250ms);
  EXPECT_EQ(config->min_run, 1500us);
  EXPECT_EQ(config->offline_floor, 0.0);
  EXPECT_EQ(config->inbox_capacity, 512U);
  EXPECT_TRUE(config->suspend_copy_queues);
  EXPECT_EQ(config->max_busy, scheduler_config{}.max_busy);
}

TEST_F(LoadConfig, RefusesWhatNoReaderOfTheFileKnows) {
  EXPECT_EQ(load("[policy]\nname = 'slo'\n[schedular]\nmin_run = '1s'\n").error(),
            errc::bad_config);
  EXPECT_THAT(message_, StartsWith(path_ + ":3: unknown table 'schedular'; available: "));
  EXPECT_FALSE(load("[gpus]\nx = 1\n[gpsu]\nx = 1\n"));
  EXPECT_THAT(message_, StartsWith(path_ + ":1: unknown table 'gpus'"));
  EXPECT_FALSE(load_config(path_, message_, {"gpus"}));
  EXPECT_THAT(message_, StartsWith(path_ + ":3: unknown table 'gpsu'"));
  EXPECT_TRUE(load_config(path_, message_, {"gpus", "gpsu"})) << message_;
}

TEST_F(LoadConfig, TakesAFileWithoutTheTable) { EXPECT_TRUE(load("# nothing\n")) << message_; }

TEST_F(LoadConfig, NamesFileLineAndKeyOfAValueOutOfRange) {
  const auto config = load("[scheduler]\n\nmin_run = '2h'\n");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error(), errc::bad_config);
  EXPECT_EQ(message_, path_ + ":3: min_run is 2h; it must be 1ms to 1min");
}

TEST_F(LoadConfig, RefusesAKeyItDoesNotKnow) {
  ASSERT_FALSE(load("[scheduler]\nmax_suspent = '1s'\n"));
  EXPECT_EQ(message_, path_ + ":2: max_suspent is not a setting of [scheduler]");
}

TEST_F(LoadConfig, RefusesADurationWithoutAUnit) {
  for (const char* const wrong : {"5", "'5'", "'5 parsecs'", "''", "'ms'", "true", "'1e300h'"}) {
    ASSERT_FALSE(load(std::string("[scheduler]\nmax_busy = ") + wrong + "\n")) << wrong;
    EXPECT_THAT(message_, HasSubstr(":2: max_busy must be a duration in quotes")) << wrong;
  }
}

TEST_F(LoadConfig, RefusesANumberOfTheWrongKind) {
  ASSERT_FALSE(load("[scheduler]\ninbox_capacity = -1\n"));
  EXPECT_THAT(message_, HasSubstr(":2: inbox_capacity must be a number"));
  ASSERT_FALSE(load("[scheduler]\noffline_floor = 'much'\n"));
  EXPECT_THAT(message_, HasSubstr(":2: offline_floor must be a number"));
}

TEST_F(LoadConfig, RefusesAFlagThatIsNone) {
  ASSERT_FALSE(load("[scheduler]\nsuspend_copy_queues = 1\n"));
  EXPECT_EQ(message_, path_ + ":2: suspend_copy_queues must be true or false");
}

TEST_F(LoadConfig, PointsAtASyntaxError) {
  ASSERT_FALSE(load("[scheduler]\nmax_busy = = 3\n"));
  EXPECT_THAT(message_, StartsWith(path_ + ":2:"));
}

// Symptom: an assertion of the TOML library ended programs that are built with assertions.
TEST_F(LoadConfig, PointsAtAMissingValue) {
  for (const char* const instead : {",", "]", "}", "#", "\n", ""}) {
    ASSERT_FALSE(load(std::string("[scheduler]\nmax_busy = ") + instead)) << instead;
    EXPECT_THAT(message_, StartsWith(path_ + ":2:")) << instead;
  }
}

TEST_F(LoadConfig, SaysWhichFileCannotBeRead) {
  std::string message;
  const auto config = load_config("/nonexistent/sluice.toml", message);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error(), boost::system::errc::no_such_file_or_directory);
  EXPECT_THAT(message, HasSubstr("/nonexistent/sluice.toml"));
}

// Symptom: both can be opened, and reading them ended the program with std::__ios_failure.
TEST_F(LoadConfig, SaysWhyAFileThatOpensCannotBeRead) {
  for (const auto& [path, why] :
       {std::pair{"/tmp", "not a regular file"}, {"/proc/self/mem", "Input/output error"}}) {
    std::string message;
    ASSERT_FALSE(load_config(path, message)) << path;
    EXPECT_EQ(message, std::string(path) + ": cannot read the configuration: " + why);
  }
}

/// The README's table of settings names all of them, with their defaults.
TEST_F(LoadConfig, ReadsTheReadmesDefaults) {
  std::ifstream readme(SLUICE_README);
  std::string block;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "```") inside = false;
    if (inside) block += line + "\n";
    if (line == "```toml") inside = true;
  }
  ASSERT_THAT(block, StartsWith("[scheduler]\n"));
  const auto config = load(block);
  ASSERT_TRUE(config) << message_;
  const scheduler_config defaults;
  EXPECT_TRUE(*config == defaults);
  for (const auto* key :
       {"max_suspend", "min_run", "offline_floor", "floor_window", "attach_after",
        "attach_at_latest", "max_busy", "failure_backoff", "breaker_after", "breaker_rearm",
        "policy_time_limit", "stop_limit", "inbox_capacity", "suspend_copy_queues"}) {
    EXPECT_THAT(block, HasSubstr("\n" + std::string(key) + " = "));
  }
}

}  // namespace
}  // namespace sluice::config_test
