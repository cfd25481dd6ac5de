// The driver keeps the shares of slots that the policy wants, wherever and for as long as it can,
// and nobody is limited once nobody wants it.

#include "core_bench.hpp"

#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::tests::reservations_test {
namespace {

error_code system_error(int number) { return {number, boost::system::system_category()}; }

class Reservations : public ::testing::Test {
 protected:
  using said = std::vector<std::pair<gpu_id, double>>;

  Reservations() {
    bench_.create(100, role::offline, gpu_a, {0});
    bench_.create(200, role::offline, gpu_b, {0});
    bench_.settle();
  }
  void offer() {
    bench_.driver.act_by(testing::batched_calls);
    bench_.settle();
  }
  bool can(gpu_id id) { return bench_.core->seen().find(id)->can_reserve; }
  /// What was asked of the driver since the last call.
  said news() {
    const auto& all = bench_.driver.reservations();
    said fresh(all.begin() + static_cast<std::ptrdiff_t>(seen_), all.end());
    seen_ = all.size();
    return fresh;
  }

  std::map<gpu_id, double> wanted_;
  std::vector<std::vector<group_id>> turns_;  // What each found changed.
  core_bench bench_{[] {
                      auto config = quick_config();
                      config.breaker_after = 1;
                      return config;
                    }(),
                    make_policy([this](const snapshot& seen, decision_sink& out) {
                      turns_.emplace_back(seen.changed.begin(), seen.changed.end());
                      for (const auto& [gpu, share] : wanted_) out.reserve(gpu, share);
                    })};

 private:
  std::size_t seen_ = 0;
};

TEST_F(Reservations, AreNotAskedForByDebugTrap) {
  wanted_ = {{gpu_a, 0.5}};
  bench_.driver.act_by(testing::single_calls);
  bench_.run_for(5s);
  EXPECT_EQ(news(), said{});
  EXPECT_FALSE(can(gpu_a));
}

TEST_F(Reservations, AreKnownToBePossibleOnceTheDriverSaysSo) {
  bench_.driver.script_reservation(gpu_b, system_error(EOPNOTSUPP));
  offer();
  EXPECT_EQ(news(), (said{{gpu_a, 1}, {gpu_b, 1}})) << "which changes nothing there";
  EXPECT_TRUE(can(gpu_a));
  EXPECT_FALSE(can(gpu_b));
  bench_.run_for(60s);
  EXPECT_EQ(news(), said{}) << "such an answer is for good";
  EXPECT_EQ(bench_.stats().failed_reservations, 0U) << "nobody wanted one";
  EXPECT_TRUE(bench_.core->all_running());
}

TEST_F(Reservations, GiveThePolicyATurnInWhichItsGroupsHaveChanged) {
  turns_.clear();
  offer();
  ASSERT_FALSE(turns_.empty());
  EXPECT_EQ(turns_.back().size(), 2U);
}

TEST_F(Reservations, StandFromTheFirstMomentThatTheyCan) {
  bench_.core->set_policy(make_policy([first = true](const snapshot&, decision_sink& out) mutable {
    if (std::exchange(first, false)) out.reserve(gpu_a, 0.25);
  }));
  bench_.settle();
  offer();
  EXPECT_EQ(news(), (said{{gpu_a, 1}, {gpu_b, 1}, {gpu_a, 0.25}}));
  EXPECT_EQ(bench_.stats().reservations, 1U);
  EXPECT_FALSE(bench_.core->all_running());
}

TEST_F(Reservations, AreWithdrawnAtTheEnd) {
  wanted_ = {{gpu_a, 0.25}, {gpu_b, 0.5}};
  offer();
  (void)news();
  bench_.core->begin_stop();
  EXPECT_EQ(news(), (said{{gpu_a, 1}, {gpu_b, 1}}));
  EXPECT_FALSE(bench_.core->all_running()) << "before the driver says so";
  bench_.settle();
  EXPECT_TRUE(bench_.core->all_running());
  EXPECT_EQ(news(), said{});
}

TEST_F(Reservations, EndWithTheBreakerAndComeBackWithIt) {
  wanted_ = {{gpu_a, 0.25}, {gpu_b, 0.5}};
  offer();
  (void)news();
  bench_.driver.lose_gpu(gpu_a);
  bench_.settle();
  EXPECT_EQ(news(), (said{{gpu_a, 1}}));
  bench_.core->rearm(gpu_a);
  bench_.settle();
  EXPECT_EQ(news(), (said{{gpu_a, 0.25}}));
}

TEST_F(Reservations, ThatTheHardwareFailsOpenTheBreaker) {
  offer();
  wanted_ = {{gpu_a, 0.25}};
  bench_.driver.script_reservation(gpu_a, system_error(EIO));
  bench_.core->set_policy(
      make_policy([](const snapshot&, decision_sink& out) { out.reserve(gpu_a, 0.25); }));
  bench_.settle();
  EXPECT_EQ(bench_.stats().open_breakers, 1U);
  EXPECT_EQ(bench_.stats().failed_reservations, 1U);
  (void)news();
  bench_.run_for(60s);
  for (const auto& [gpu, share] : news()) EXPECT_EQ(share, 1) << "nothing more is tried there";
}

/// The backend tells the driver again (backend_listener::reserved()); nothing here waits for it.
TEST_F(Reservations, WhoseEndIsRefusedForGoodAreSaidAndHoldUpNothing) {
  wanted_ = {{gpu_a, 0.25}};
  offer();
  (void)news();
  bench_.driver.script_reservation(gpu_a, system_error(EPERM));
  ::testing::internal::CaptureStderr();
  bench_.core->begin_stop();
  bench_.settle();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                "GPU 10: the driver failed to end the slot reservation: Operation not permitted; "
                "retrying until it succeeds part=driver gpu=10\n"),
            std::string::npos);
  EXPECT_EQ(news(), (said{{gpu_a, 1}}));
  EXPECT_TRUE(bench_.core->all_running());
}

TEST_F(Reservations, ThatAnotherHasAreAskedForAgain) {
  for (int i = 0; i < 3; ++i) bench_.driver.script_reservation(gpu_a, system_error(EBUSY));
  wanted_ = {{gpu_a, 0.25}};
  offer();
  EXPECT_FALSE(can(gpu_a));
  bench_.run_for(60s);
  EXPECT_TRUE(can(gpu_a));
  const auto all = news();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back(), (said::value_type{gpu_a, 0.25}));
  EXPECT_EQ(all.size(), 6U) << "three refused, one of the other GPU, one granted, one made";
}

TEST_F(Reservations, ThatTheDriverEndsAreMadeAgain) {
  wanted_ = {{gpu_a, 0.25}};
  offer();
  (void)news();
  bench_.driver.end_reservation(gpu_a, system_error(EFAULT));
  bench_.step();
  EXPECT_FALSE(can(gpu_a));
  EXPECT_EQ(bench_.stats().failed_reservations, 1U);
  EXPECT_EQ(bench_.stats().open_breakers, 0U) << "the hardware did nothing wrong";
  bench_.run_for(60s);
  EXPECT_EQ(news(), (said{{gpu_a, 1}, {gpu_a, 0.25}}));
}

TEST_F(Reservations, WaitForRoomOnTheWayToTheDriver) {
  offer();
  (void)news();
  bench_.driver.refuse_reservation(errc::full);
  wanted_ = {{gpu_a, 0.25}};
  bench_.core->set_policy(
      make_policy([](const snapshot&, decision_sink& out) { out.reserve(gpu_a, 0.25); }));
  bench_.settle();
  EXPECT_EQ(news(), said{});
  bench_.run_for(5s);
  EXPECT_EQ(news(), (said{{gpu_a, 0.25}}));
}

TEST_F(Reservations, AreMadeAnewByTheNextAgent) {
  wanted_ = {{gpu_a, 0.25}};
  offer();
  (void)news();
  bench_.driver.lose();
  bench_.settle();
  EXPECT_FALSE(can(gpu_a));
  EXPECT_TRUE(bench_.core->all_running()) << "the driver ended it with the agent";
  bench_.driver.restore();
  offer();
  EXPECT_EQ(news(), (said{{gpu_a, 1}, {gpu_b, 1}, {gpu_a, 0.25}}));
}

TEST_F(Reservations, EndWithTheFallBack) {
  wanted_ = {{gpu_a, 0.25}};
  offer();
  (void)news();
  bench_.driver.act_by(testing::single_calls, true);
  bench_.run_for(5s);
  EXPECT_FALSE(can(gpu_a));
  EXPECT_TRUE(bench_.core->all_running());
  EXPECT_EQ(news(), said{}) << "the acting side has ended it";
}

}  // namespace
}  // namespace sluice::tests::reservations_test
