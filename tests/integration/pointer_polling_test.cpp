// The whole path for an online process that knows nothing of sluice: its queue's pointers are read
// from its memory, and offline work makes room for its kernels until they have ended.

#include "sluice/policies/pointer_polling.hpp"

#include "device_view.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::test::pointer_polling_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class node {
 public:
  explicit node(const std::string& profile, bool debugfs = true)
      : device_{{.profile = profile}}, view_{device_.root()} {
    kfd::roots where = device_.roots();
    if (!debugfs) where.debugfs = device_.root() + "/nothing";
    std::vector<std::unique_ptr<source>> sources;
    const message_sink say = [this](std::string_view line) {
      const std::scoped_lock held{said_mutex_};
      said_ += std::string(line) + "\n";
    };
    sources.push_back(make_discovery(kfd::make_survey(where, say), {}, say));
    auto loop = reactor::create();
    if (!loop) throw std::runtime_error("reactor: " + loop.error().message());
    scheduler_config config;
    config.attach_after = 50ms;
    config.max_suspend = 60s;  // What ends a hold here is the end of online work.
    auto made =
        scheduler::create(config, std::move(*loop),
                          agent::make_agent_backend({.driver = kfd::acting({.where = where}),
                                                     .agent_path = SLUICE_AGENT_PROGRAM,
                                                     .owner_lock = device_.root() + "/o"}),
                          make_pointer_polling(), std::move(sources));
    if (!made) throw std::runtime_error("scheduler: " + made.error().message());
    scheduler_ = std::move(*made);
    if (const auto started = scheduler_->start(); !started) {
      throw std::runtime_error("start: " + started.error().message());
    }
    thread_ = std::thread([this] { scheduler_->run(); });
    online = start("ONLINE_AI", "0");
    offline = start("OFFLINE_AI", "2000");
    if (!eventually(patience, [this] { return scheduler_->stats().attaches.value() > 0; })) {
      throw std::runtime_error("the offline target was not attached");
    }
  }
  ~node() {
    scheduler_->stop();
    thread_.join();
    EXPECT_EQ(view_.process(online->pid()).queue_suspends, 0u);
    online.reset();  // Before their device.
    offline.reset();
  }

  std::uint64_t suspended() const { return view_.process(offline->pid()).suspended_queues; }
  bool becomes(std::uint64_t queues) const {
    return eventually(patience, [&] { return suspended() == queues; });
  }
  bool offline_progresses() const {
    const auto before = view_.process(offline->pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(offline->pid()).kernels_completed > before + 2; });
  }
  std::uint64_t online_completed() const { return view_.process(online->pid()).kernels_completed; }
  scheduler& sluice() { return *scheduler_; }
  std::string said() {
    const std::scoped_lock held{said_mutex_};
    return said_;
  }

  /// Runs an online kernel. It is noticed, and nothing is resumed before it has ended.
  void run_online(const std::string& verb, std::chrono::microseconds length) {
    ASSERT_TRUE(offline_progresses());
    const auto before = online_completed();
    const auto resumes = scheduler_->stats().resumes.value();
    ASSERT_EQ(online->ask(verb + " " + std::to_string(length.count()), patience), "submitted");
    ASSERT_TRUE(becomes(1)) << "nobody noticed";
    const auto limit = clock::now() + patience;
    for (int looks = 0;; ++looks) {
      // In this order: what is seen running has not ended, and so had not when this was seen.
      const auto off = suspended();
      const auto resumed = scheduler_->stats().resumes.value();
      if (online_completed() != before) {
        EXPECT_GT(looks, 0) << "too short to have been looked at";
        break;
      }
      ASSERT_EQ(off, 1u) << "resumed inside the kernel";
      ASSERT_EQ(resumed, resumes);
      ASSERT_LT(clock::now(), limit);
    }
    EXPECT_TRUE(becomes(0));
    EXPECT_TRUE(offline_progresses());
  }

  std::unique_ptr<target_process> online;
  std::unique_ptr<target_process> offline;

 private:
  std::unique_ptr<target_process> start(const std::string& tag, const std::string& kernel) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    auto made = std::make_unique<target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{"1", kernel}, environment);
    if (made->hear(patience) != "ready") throw std::runtime_error("the target did not start");
    return made;
  }

  simulated_device device_;
  device_view view_;
  std::mutex said_mutex_;
  std::string said_;
  std::unique_ptr<scheduler> scheduler_;
  std::thread thread_;
};

class EveryDriver : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Drivers, EveryDriver,
                         ::testing::Values("mi300x", "mi300x-batch", "gfx1100"),
                         [](const auto& each) {
                           return each.param == "mi300x-batch" ? "mi300x_batch" : each.param;
                         });

TEST_P(EveryDriver, HoldsOfflineForOneKernelOf500MillisecondsToItsEnd) {
  node here{GetParam()};
  for (int round = 0; round < 2; ++round) {
    ASSERT_NO_FATAL_FAILURE(here.run_online("run", 500ms));
  }
  EXPECT_EQ(here.sluice().stats().begins.value(), 0u) << "no client said anything";
  EXPECT_GT(here.sluice().stats().arrival_to_off.count(), 0u);
  EXPECT_EQ(here.offline->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
  std::ifstream status("/proc/" + std::to_string(here.online->pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) {
      EXPECT_EQ(line, "TracerPid:\t0");
    }
  }
}

// No signal: that nothing of the process runs on the GPU says that it has ended.
TEST(TransparentDetection, TakesTheEndFromOccupancyWhereAPacketHasNoSignal) {
  node here{"mi300x"};
  ASSERT_NO_FATAL_FAILURE(here.run_online("run-unsignalled", 500ms));
}

// Neither: it waits, as long as it must while it has learnt nothing.
TEST(TransparentDetection, WaitsForWorkToSettleWhereNothingSaysThatItEnded) {
  node here{profile_text("", "gfx_target_version = 100300\n")};
  ASSERT_NO_FATAL_FAILURE(here.run_online("run-unsignalled", 300ms));
}

TEST(TransparentDetection, SaysWherePointersCannotBeFoundAndTakesClientsWords) {
  node here{"mi300x", false};
  ASSERT_TRUE(eventually(patience, [&] {
    return here.said().find("queue pointers of online process " +
                            std::to_string(here.online->pid())) != std::string::npos;
  })) << here.said();
  EXPECT_THAT(here.said(),
              HasSubstr("/mqds: No such file or directory; sluice detects online work only"));
  auto client = here.sluice().register_client({.name = "test", .gpus = {}});
  ASSERT_TRUE(client);
  {
    const auto busy = client->busy();
    EXPECT_TRUE(here.becomes(1));
  }
  EXPECT_TRUE(here.becomes(0));
}

}  // namespace
}  // namespace sluice::test::pointer_polling_test
