// The daemon as an operator runs it: `sluice run`, `check`, `pause`, on the simulated device.

#include "command.hpp"
#include "device_view.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr auto patience = 20s;

class Daemon : public testing::Test {
 protected:
  Daemon() {
    std::filesystem::create_directory(directory_);
    configure();
  }

  /// Writes the configuration: with fast attaches, and the given further lines.
  void configure(const std::string& daemon = "", const std::string& scheduler = "",
                 const std::string& more = "") const {
    std::ofstream{config_} << "[daemon]\ndirectory = \"" << directory_ << "\"\n"
                           << daemon << "\n[scheduler]\nattach_after = \"50ms\"\n"
                           << "attach_at_latest = \"100ms\"\nmax_suspend = \"60s\"\n"
                           << scheduler << "\n[roles]\nstore = \"\"\n"
                           << more;
  }
  std::unique_ptr<command> start(std::vector<std::string> words) const {
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + directory_ + "/breakers");
    return std::make_unique<command>(SLUICE_PROGRAM, std::move(words), std::move(environment));
  }
  std::unique_ptr<command> run(const std::string& mode) const {
    auto made = start({"run", "-c", config_, "--mode", mode});
    EXPECT_TRUE(logs(*made, "owns the node")) << made->err();
    return made;
  }
  static bool logs(command& of, const std::string& text) {
    return eventually(patience, [&] { return of.err().find(text) != std::string::npos; });
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
  bool traced(const target_process& one) const {
    std::ifstream status("/proc/" + std::to_string(one.pid()) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("TracerPid:")) return line != "TracerPid:\t0";
    return false;
  }

  simulated_device device_{{.profile = "mi300x"}};
  const device_view view_{device_.root()};
  const std::string directory_ = device_.root() + "/run";
  const std::string config_ = device_.root() + "/sluice.toml";
};

TEST_F(Daemon, ObservesByDefaultAndCountsWhatItWouldHaveDone) {
  const auto trainer = offline();
  const auto server = online();
  const auto daemon = start({"run", "-c", config_});
  ASSERT_TRUE(logs(*daemon, "observes: it attaches to nothing")) << daemon->err();
  // Until the policy has decided on a burst.
  ASSERT_TRUE(eventually(patience, [&] {
    EXPECT_EQ(server->ask("run 20000", patience), "submitted");
    std::this_thread::sleep_for(50ms);
    daemon->signal(SIGUSR1);
    return testing::Matches(ContainsRegex("would have suspended [1-9][0-9]* queues"))(
        daemon->err());
  })) << daemon->err();
  EXPECT_THAT(daemon->err(), HasSubstr("would have attached to 1 processes"));
  EXPECT_FALSE(traced(*trainer));
  EXPECT_EQ(view_.process(trainer->pid()).queue_suspends, 0U);
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_THAT(daemon->err(), Not(HasSubstr("[error]")));
}

TEST_F(Daemon, EnforcesForAnOnlineProcessThatKnowsNothingOfIt) {
  const auto trainer = offline();
  const auto server = online();
  const auto daemon = run("enforce");
  ASSERT_TRUE(eventually(patience, [&] { return traced(*trainer); })) << daemon->err();
  ASSERT_EQ(server->ask("run 500000", patience), "submitted");
  EXPECT_TRUE(eventually(patience, [&] {
    return view_.process(trainer->pid()).suspended_queues == 1;
  })) << daemon->err();
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0) << daemon->err();
  EXPECT_EQ(view_.process(trainer->pid()).suspended_queues, 0U) << "the end resumes everything";
  EXPECT_FALSE(traced(*trainer));
  EXPECT_THAT(daemon->err(), ContainsRegex(", suspended 1 queues \\(0 now\\) and resumed 1 in 2"));
  EXPECT_EQ(trainer->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

}  // namespace
}  // namespace sluice::test
