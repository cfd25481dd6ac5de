// The whole path of a reservation: real processes with more queues than slots, a driver with the
// proposed batch commands (simulated), the agent, the scheduler with the policy. The driver's own
// debugfs says who is mapped.

#include "sluice/policies/hqd_reservation.hpp"

#include "child_process.hpp"
#include "device_view.hpp"
#include "eventually.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/hqds.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::test::hqd_reservation_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t slots = 24;  // Of the profile.
constexpr std::size_t share = 6;   // 25 % of them.

enum class acting { in_agent, in_process };

class Reservation : public ::testing::TestWithParam<acting> {
 protected:
  struct look {
    std::size_t mapped = 0;  ///< Queues, of whomever.
    bool named = false;      ///< The queue asked for is among them.
  };

  std::unique_ptr<target_process> start(const std::string& tag, const std::string& queues,
                                        const std::string& kernel) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    auto made = std::make_unique<target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{queues, kernel}, environment);
    if (made->hear(patience) != "ready") throw std::runtime_error("the target did not start");
    return made;
  }

  /// A scheduler in a process of its own, until it is killed.
  child_process start_host() const {
    return child_process{[this](channel& line) {
      const std::string lock = device_.root() + "/owner";
      std::string message;
      parameters values;
      values.set("offline_percent", std::int64_t{25});
      auto decider = make_policy(hqd_reservation_kind(), std::move(values), message);
      auto loop = reactor::create();
      if (!decider || !loop) return 1;
      std::vector<std::unique_ptr<source>> sources;
      sources.push_back(make_discovery(kfd::make_survey(device_.roots())));
      scheduler_config config;
      config.attach_after = 50ms;
      std::unique_ptr<backend> driver;
      if (GetParam() == acting::in_agent) {
        driver = agent::make_agent_backend({.driver = kfd::acting({.where = device_.roots()}),
                                            .agent_path = SLUICE_AGENT_PROGRAM,
                                            .owner_lock = lock});
      } else {
        driver = kfd::make_in_process_backend({.roots = device_.roots(), .owner_lock = lock});
      }
      auto made = scheduler::create(config, std::move(*loop), std::move(driver),
                                    std::move(*decider), std::move(sources));
      if (!made || !(*made)->start()) return 2;
      line.send("started");
      (*made)->run();
      return 0;
    }};
  }

  look at_slots(std::uint64_t ring = 0) const {
    const auto seen = kfd::parse_hqds(read_file(device_.roots().debugfs + "/hqds"));
    look now;
    for (const auto& each : seen.slots) {
      if (each.hiq || each.xcc != 0 || !each.active) continue;
      ++now.mapped;
      now.named = now.named || each.ring_base == ring;
    }
    return now;
  }
  /// No look in a row of so many shows more; one inside a runlist cycle, which shows none, does not
  /// count.
  bool stays_within(std::size_t most, int looks = 20) const {
    while (looks > 0) {
      const auto now = at_slots().mapped;
      if (now > most) return false;
      if (now != 0) --looks;
    }
    return true;
  }
  bool comes_within(std::size_t most) const {
    return eventually(patience, [&] { return stays_within(most); });
  }
  std::uint64_t ring_of(pid_t pid) const {
    for (const auto& each : kfd::parse_mqds(read_file(device_.roots().debugfs + "/mqds")).queues) {
      if (each.pid == pid) return each.ring_base;
    }
    return 0;
  }
  bool progresses(const target_process& who) const {
    const auto before = view_.process(who.pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(who.pid()).kernels_completed > before + 2; });
  }

  simulated_device device_{{.profile = "mi300x-batch"}};
  device_view view_{device_.root()};
};

INSTANTIATE_TEST_SUITE_P(Hosts, Reservation,
                         ::testing::Values(acting::in_agent, acting::in_process),
                         [](const auto& each) {
                           return each.param == acting::in_agent ? "InAgent" : "InProcess";
                         });

TEST_P(Reservation, KeepsTheShareForWhoeverComesAndEndsWithItsHost) {
  std::vector<std::unique_ptr<target_process>> offline;
  // Idle queues take slots like others.
  for (int i = 0; i < 2; ++i) offline.push_back(start("OFFLINE_AI", "14", "0"));
  offline.push_back(start("OFFLINE_AI", "2", "2000"));
  const auto& busy = *offline.back();
  ASSERT_TRUE(eventually(patience, [&] { return at_slots().mapped == slots; }))
      << "they are more than the slots";

  auto host = start_host();
  ASSERT_TRUE(host.says("started", patience));
  ASSERT_TRUE(comes_within(share));
  EXPECT_TRUE(progresses(busy)) << "they take turns in the share";

  // Mapped at its creation, and at every look: nobody else's turn takes its slot.
  const auto online = start("ONLINE_AI", "1", "0");
  const auto ring = ring_of(online->pid());
  ASSERT_NE(ring, 0u);
  for (int looks = 0; looks < 30;) {
    const auto now = at_slots(ring);
    if (now.mapped == 0) continue;  // In a cycle.
    ++looks;
    ASSERT_TRUE(now.named) << "it waits for a turn";
    ASSERT_LE(now.mapped, share + 1);
  }

  // Its queues are marked once it is attached.
  offline.push_back(start("OFFLINE_AI", "5", "0"));
  EXPECT_TRUE(comes_within(share + 1));
  EXPECT_TRUE(progresses(busy));
  for (const auto& each : offline) {
    EXPECT_EQ(view_.process(each->pid()).queue_suspends, 0u) << "by the driver alone";
  }

  host.signal(SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return at_slots().mapped == slots; }))
      << "the reservation outlives its host";
  EXPECT_TRUE(progresses(busy));
  EXPECT_EQ(offline[2]->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

TEST_P(Reservation, IsMadeAnewByTheNextHost) {
  const auto offline = start("OFFLINE_AI", "10", "0");
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(eventually(patience, [&] { return at_slots().mapped == 10; })) << round;
    // The agent of the host before owns the node until it has ended.
    std::unique_ptr<child_process> host;
    ASSERT_TRUE(eventually(patience, [&] {
      host.reset();
      host.reset(new child_process{start_host()});
      return host->says("started", patience);
    })) << round;
    ASSERT_TRUE(comes_within(share)) << round;
  }
}

}  // namespace
}  // namespace sluice::test::hqd_reservation_test
