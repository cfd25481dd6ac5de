// The driver keeps the quanta that the policy wants of offline groups, wherever and for as long as
// it can, and has its own default for everybody else.

#include "core_bench.hpp"

#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::tests::quanta_test {
namespace {

error_code system_error(int number) { return {number, boost::system::system_category()}; }

class Quanta : public ::testing::Test {
 protected:
  using call = testing::scripted_backend::quantum_call;
  using said = std::vector<call>;

  Quanta() {
    bench_.driver.offer_quanta(gpu_a);
    bench_.create(100, role::offline, gpu_a, {0, 1});
    bench_.run_for(3s);
  }
  bool can(gpu_id id) { return bench_.core->seen().find(id)->can_set_quantum; }
  duration kept(pid_t pid, gpu_id id = gpu_a) { return bench_.driver.quantum(pid, id); }
  /// What was asked of the driver since the last call, and accepted.
  said news() {
    const auto& all = bench_.driver.quanta();
    said fresh(all.begin() + static_cast<std::ptrdiff_t>(seen_), all.end());
    seen_ = all.size();
    return fresh;
  }
  /// A policy that wants this of every group that it hears of.
  void want(duration length) {
    bench_.core->set_policy(make_policy([length](const snapshot& seen, decision_sink& out) {
      for (const group_id id : seen.changed) out.set_quantum(id, length);
    }));
    bench_.settle();
  }

  std::vector<std::vector<group_id>> turns_;  // What each found changed.
  core_bench bench_{quick_config(), make_policy([this](const snapshot& seen, decision_sink&) {
                      turns_.emplace_back(seen.changed.begin(), seen.changed.end());
                    })};

 private:
  std::size_t seen_ = 0;
};

TEST_F(Quanta, AreKnownToBePossibleOnceSomethingIsAttached) {
  EXPECT_EQ(news(), (said{{100, gpu_a, {}}})) << "which changes nothing there";
  EXPECT_TRUE(can(gpu_a));
  ASSERT_FALSE(turns_.empty());
  EXPECT_EQ(turns_.back().size(), 1U) << "the policy hears that";
  bench_.create(200, role::offline, gpu_a, {0});
  bench_.run_for(60s);
  EXPECT_EQ(news(), said{}) << "for all of the GPU";
  EXPECT_EQ(bench_.stats().quanta, 0U);
  EXPECT_TRUE(bench_.core->all_running());
}

TEST_F(Quanta, AreNotAskedForTwiceWhereTheyAreNotSupported) {
  bench_.create(300, role::offline, gpu_b, {0});
  bench_.run_for(3s);
  EXPECT_FALSE(can(gpu_b));
  const auto before = bench_.driver.quanta_asked();
  ::testing::internal::CaptureStderr();
  want(50us);
  bench_.create(400, role::offline, gpu_b, {0});
  bench_.run_for(60s);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                "GPU 11: the driver does not support a quantum; the policy's quantum has no effect "
                "part=driver gpu=11\n"),
            std::string::npos);
  EXPECT_EQ(bench_.driver.quanta_asked(), before + 1) << "that of the other GPU";
  EXPECT_EQ(bench_.stats().failed_quanta, 1U);

  bench_.driver.offer_quanta(gpu_b);
  bench_.settle();
  EXPECT_TRUE(can(gpu_b));
  EXPECT_EQ(kept(300, gpu_b), 50us);
  EXPECT_EQ(kept(400, gpu_b), 50us);
}

/// The scripted driver keeps what act_by() said in the same turn.
TEST_F(Quanta, AreOfferedBesideReservations) {
  bench_.driver.act_by(testing::batched_calls);
  bench_.driver.offer_quanta(gpu_a);
  bench_.run_for(3s);
  EXPECT_TRUE(can(gpu_a));
  EXPECT_TRUE(bench_.core->seen().find(gpu_a)->can_reserve);
}

TEST_F(Quanta, ReachWhoComesLater) {
  want(50us);
  EXPECT_EQ(kept(100), 50us);
  EXPECT_EQ(bench_.stats().quanta, 1U);
  bench_.create(200, role::offline, gpu_a, {0});
  bench_.run_for(3s);
  EXPECT_EQ(kept(200), 50us);
}

TEST_F(Quanta, ReachAGangOnAllItsGpus) {
  bench_.driver.offer_quanta(gpu_b);
  bench_.create(200, role::offline, gpu_a, {0}, 7);
  bench_.create(201, role::offline, gpu_b, {0}, 7);
  want(50us);
  bench_.run_for(3s);
  EXPECT_EQ(kept(200), 50us);
  EXPECT_EQ(kept(201, gpu_b), 50us);
  bench_.create_queue(200, q(1), gpu_b);
  bench_.run_for(1s);
  EXPECT_EQ(kept(200, gpu_b), 50us);
}

TEST_F(Quanta, AreOfferedToNobodyButOfflineGroups) {
  bench_.create(500, role::online, gpu_a, {0});
  bench_.create(600, role::unmatched, gpu_a, {0});
  // One online member makes the gang online.
  bench_.create(701, role::offline, gpu_a, {0}, 9);
  bench_.run_for(3s);
  bench_.create(702, role::online, gpu_a, {0}, 9);
  want(50us);
  bench_.run_for(20s);
  for (const pid_t pid : {500, 600, 701, 702}) EXPECT_EQ(kept(pid), 0s) << pid;
  EXPECT_EQ(kept(100), 50us);
  EXPECT_EQ(bench_.driver.misuses(), 0U);
}

TEST_F(Quanta, AreTakenBackFromWhoLeavesTheOfflineRole) {
  want(50us);
  (void)news();
  bench_.see(100, role::online);
  bench_.settle();
  EXPECT_EQ(news(), (said{{100, gpu_a, {}}})) << "before its session ends";
  EXPECT_FALSE(bench_.driver.attached(100));
}

TEST_F(Quanta, AreTakenBackWithThePolicy) {
  want(50us);
  (void)news();
  bench_.core->set_policy(nullptr);
  bench_.settle();
  EXPECT_EQ(news(), (said{{100, gpu_a, {}}}));
}

TEST_F(Quanta, StandWhenTheNextPolicyWantsTheSame) {
  want(50us);
  (void)news();
  want(50us);
  EXPECT_EQ(news(), said{});
  want(100us);
  EXPECT_EQ(news(), (said{{100, gpu_a, 100us}}));
}

TEST_F(Quanta, AreTakenBackFromAPolicyThatIsRemoved) {
  bench_.core->set_policy(
      make_policy([turns = 0](const snapshot& seen, decision_sink& out) mutable {
        for (const group_id id : seen.changed) out.set_quantum(id, 50us);
        if (++turns == 2) throw std::runtime_error("enough");
        out.wake_at(seen.now + 1s);
      }));
  bench_.settle();
  EXPECT_EQ(kept(100), 50us);
  bench_.run_for(2s);
  EXPECT_EQ(kept(100), 0s);
}

TEST_F(Quanta, AreTakenBackAtTheEnd) {
  want(50us);
  (void)news();
  bench_.core->begin_stop();
  EXPECT_EQ(news(), (said{{100, gpu_a, {}}}));
  EXPECT_FALSE(bench_.core->all_running()) << "before the driver says so";
  bench_.settle();
  EXPECT_TRUE(bench_.core->all_running());
  EXPECT_EQ(news(), said{});
}

TEST_F(Quanta, EndWithTheBreakerAndComeBackWithIt) {
  want(50us);
  (void)news();
  bench_.driver.lose_gpu(gpu_a);
  bench_.settle();
  EXPECT_EQ(news(), (said{{100, gpu_a, {}}}));
  bench_.core->rearm(gpu_a);
  bench_.settle();
  EXPECT_EQ(kept(100), 50us);
}

TEST_F(Quanta, AreSetAnewByTheNextAgent) {
  want(50us);
  bench_.driver.lose();
  bench_.settle();
  EXPECT_FALSE(can(gpu_a));
  EXPECT_EQ(kept(100), 0s);
  EXPECT_TRUE(bench_.core->all_running()) << "it ended with the agent";
  bench_.driver.restore();
  bench_.run_for(3s);
  EXPECT_TRUE(can(gpu_a));
  EXPECT_EQ(kept(100), 50us);
}

TEST_F(Quanta, AreForgottenWithTheSession) {
  want(50us);
  (void)news();
  bench_.driver.end_session(100);
  bench_.settle();
  EXPECT_TRUE(bench_.core->all_running());
  bench_.run_for(10s);
  ASSERT_TRUE(bench_.driver.attached(100));
  EXPECT_EQ(news(), (said{{100, gpu_a, 50us}})) << "told again";
}

TEST_F(Quanta, ThatTheDriverRefusesAreAskedForAgain) {
  for (int i = 0; i < 3; ++i) bench_.driver.script_quantum(system_error(EBUSY));
  ::testing::internal::CaptureStderr();
  want(50us);
  EXPECT_EQ(kept(100), 0s);
  bench_.run_for(60s);
  EXPECT_EQ(kept(100), 50us);
  EXPECT_EQ(bench_.stats().failed_quanta, 3U);
  EXPECT_EQ(bench_.stats().quanta, 1U);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto first = log.find("process 100: the driver refused the quantum: Device or resource");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("refused the quantum", first + 60), std::string::npos) << "said once";
  EXPECT_NE(log.find("process 100: the driver accepts a quantum again"), std::string::npos);
}

// Symptom: a target without permission raised the counter with each retry, for hours.
TEST_F(Quanta, ThatMayNotBeSetCountOnceForEachLength) {
  for (int i = 0; i < 100; ++i) bench_.driver.script_quantum(system_error(EPERM));
  want(50us);
  const auto before = bench_.driver.quanta_asked();
  bench_.run_for(60s);
  EXPECT_GT(bench_.driver.quanta_asked(), before) << "it may be allowed later";
  EXPECT_EQ(bench_.stats().failed_quanta, 1U);
  want(60us);
  bench_.run_for(60s);
  EXPECT_EQ(bench_.stats().failed_quanta, 2U) << "another length";
  bench_.create(200, role::offline, gpu_a, {0});
  bench_.run_for(60s);
  EXPECT_EQ(bench_.stats().failed_quanta, 3U) << "another target";
}

TEST_F(Quanta, ThatTheDriverEndsAreSetAgain) {
  want(50us);
  bench_.driver.end_quantum(100, gpu_a, system_error(EFAULT));
  bench_.step();
  EXPECT_EQ(kept(100), 0s);
  bench_.run_for(60s);
  EXPECT_EQ(kept(100), 50us);
}

TEST_F(Quanta, WaitForRoomOnTheWayToTheDriver) {
  bench_.driver.refuse_quantum(errc::full);
  want(50us);
  EXPECT_EQ(kept(100), 0s);
  bench_.run_for(5s);
  EXPECT_EQ(kept(100), 50us);
}

TEST_F(Quanta, OfWhichOnlyTheLastWishIsSent) {
  want(50us);
  (void)news();
  for (const duration each : {60us, 70us, 80us}) {
    bench_.core->set_policy(make_policy([each](const snapshot& seen, decision_sink& out) {
      for (const group_id id : seen.changed) out.set_quantum(id, each);
    }));
  }
  bench_.settle();
  EXPECT_EQ(news(), (said{{100, gpu_a, 80us}}));
}

}  // namespace
}  // namespace sluice::tests::quanta_test
