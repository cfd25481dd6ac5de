// The whole path for a process that no debug session can suspend: discovery, scheduler, agent, real
// ioctls. Such a process is paused as a whole where that is configured, and only there.

#include "device_view.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::test::process_pause_test {
namespace {

using namespace std::chrono_literals;

class ProcessPausePath : public ::testing::Test {
 protected:
  void begin(bool criu_pause) {
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(make_discovery(kfd::make_survey(device_.roots())));
    auto loop = reactor::create();
    ASSERT_TRUE(loop);
    scheduler_config config;
    config.attach_after = 50ms;
    config.max_suspend = 60s;  // What ends a pause here is what the test does.
    auto made = scheduler::create(
        config, std::move(*loop),
        agent::make_agent_backend(
            {.driver = kfd::acting({.where = device_.roots(), .criu_pause = criu_pause}),
             .agent_path = SLUICE_AGENT_PROGRAM,
             .owner_lock = device_.root() + "/owner"}),
        make_fixed_timeslice({.slice = 20ms, .release = release_on::client_done}),
        std::move(sources));
    ASSERT_TRUE(made);
    scheduler_ = std::move(*made);
    ASSERT_TRUE(scheduler_->start());
    thread_ = std::thread([this] { scheduler_->run(); });
    auto environment = device_.environment();
    environment.emplace_back("AMD_QUEUE_TAG=OFFLINE_AI");
    offline_ = std::make_unique<target_process>(SLUICE_INTEGRATION_TARGET,
                                                std::vector<std::string>{"2", "2000", "no-runtime"},
                                                environment);
    ASSERT_EQ(offline_->hear(patience), "ready");
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    scheduler_->stop();
    thread_.join();
  }

  std::uint64_t kernels() const { return view_.process(offline_->pid()).kernels_completed; }
  bool progresses() const {
    const auto before = kernels();
    return eventually(patience, [&] { return kernels() > before + 4; });
  }
  bool stands_still() const {
    return eventually(patience, [&] {
      const auto before = kernels();
      std::this_thread::sleep_for(100ms);
      return kernels() == before;
    });
  }
  bool attached() const {
    return eventually(patience, [&] { return scheduler_->stats().attaches.value() > 0; });
  }

  simulated_device device_;
  device_view view_{device_.root()};
  std::unique_ptr<scheduler> scheduler_;
  std::thread thread_;
  std::unique_ptr<target_process> offline_;
};

TEST_F(ProcessPausePath, PausesOfflineWhileOnlineIsBusyAndLosesNoKernel) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  ASSERT_TRUE(attached());
  auto client = scheduler_->register_client({.name = "test", .gpus = {}});
  ASSERT_TRUE(client);
  for (int round = 0; round < 3; ++round) {
    {
      const auto busy = client->busy();
      EXPECT_TRUE(stands_still());
    }
    EXPECT_TRUE(progresses());
  }
  EXPECT_EQ(view_.process(offline_->pid()).queue_suspends, 0u) << "not by a session";
  EXPECT_EQ(scheduler_->stats().failed_outcomes.value(), 0u);
  EXPECT_EQ(offline_->ask("drain", 30s), "0") << "kernels lost, repeated, reordered or cut short";
}

TEST_F(ProcessPausePath, IsTakenUpAgainAfterTheAgentWasKilled) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  ASSERT_TRUE(attached());
  auto client = scheduler_->register_client({.name = "test", .gpus = {}});
  ASSERT_TRUE(client);
  const auto busy = client->busy();
  ASSERT_TRUE(stands_still());
  std::ifstream owner{device_.root() + "/owner"};
  std::string host;
  pid_t agent = 0;
  std::getline(owner, host);
  owner >> agent;
  ASSERT_GT(agent, 0);
  const auto before = kernels();
  kill(agent, SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return kernels() > before; }));
  EXPECT_TRUE(eventually(patience, [&] { return scheduler_->stats().attaches.value() > 1; }));
  EXPECT_TRUE(stands_still()) << "online work is still there, and so is a new agent";
}

TEST_F(ProcessPausePath, LeavesItAloneUnlessConfigured) {
  ASSERT_NO_FATAL_FAILURE(begin(false));
  ASSERT_TRUE(
      eventually(patience, [&] { return scheduler_->stats().attach_failures.value() > 0; }));
  auto client = scheduler_->register_client({.name = "test", .gpus = {}});
  ASSERT_TRUE(client);
  const auto busy = client->busy();
  EXPECT_TRUE(progresses());
  EXPECT_EQ(scheduler_->stats().attaches.value(), 0u);
}

}  // namespace
}  // namespace sluice::test::process_pause_test
