/// The blocking calls beside hardware and a driver that fail: everything that can run runs, the
/// error says what and where, and nothing takes longer than its deadline and the driver's answer.

#include "sluice/kfd/queue_holder.hpp"

#include "device_view.hpp"
#include "offline_target.hpp"
#include "refusing_driver.hpp"
#include "simulated_device.hpp"

#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd::queue_holder_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::offline_target;
using test::patience;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr driver_queue_id queue_0{0};
constexpr driver_queue_id queue_1{1};

/// Two GPUs that are reset apart from each other, with a process on each, both held.
class HolderBench : public ::testing::Test {
 protected:
  explicit HolderBench(const std::string& scheduler)
      : device_({.profile = test::fast_profile("", "scheduler = \"" + scheduler +
                                                       "\"\n"
                                                       "reset_time = \"50ms\"\n"
                                                       "hive_id = 0\n"),
                 .gpus = 2}),
        refusals_(device_.root() + "/refusals") {}

  void SetUp() override {
    const auto node = look_at_node(device_.roots());
    ASSERT_TRUE(node);
    ASSERT_EQ(node->gpus.size(), 2U);
    for (const std::size_t each : {0U, 1U}) {
      gpu_[each] = static_cast<std::uint32_t>(node->gpus[each].id);
      target_[each] = std::make_unique<offline_target>(device_.roots(),
                                                       offline_target::options{.gpu = gpu_[each]});
      ASSERT_TRUE(target_[each]->says('r'));
    }
    hold_failure why;
    holder_ = queue_holder::open(device_.roots(), why);
    ASSERT_TRUE(holder_) << why.what;
  }
  void hold_both() {
    for (const auto& each : target_) {
      const auto no = holder_->attach(each->pid(), soon());
      ASSERT_FALSE(no) << no.what;
    }
  }

  static time_point soon() { return clock::now() + patience; }
  void command(const std::string& line) const {
    std::ofstream control{device_.root() + "/sim/control"};
    control << line << std::endl;
    ASSERT_TRUE(control.good());
  }
  void fail_next_cycle(const std::string& lasts) const {
    command("fail-cycle " + std::to_string(gpu_[0]) + " " + lasts);
  }
  queue_order order(std::size_t whose, driver_queue_id queue = queue_0) const {
    return {.pid = target_[whose]->pid(), .queue = queue};
  }
  int act(command_kind kind, const queue_order& one, duration limit = patience) {
    std::array<queue_order, 1> orders{one};
    why_ = holder_->change(kind, orders, clock::now() + limit);
    return orders[0].error;
  }
  bool suspended(std::size_t whose) const {
    return view_.process(target_[whose]->pid()).suspended_queues != 0;
  }
  bool untraced(std::size_t whose) const {
    return eventually(patience, [&] {
      return test::read_file("/proc/" + std::to_string(target_[whose]->pid()) + "/status")
                 .find("TracerPid:\t0") != std::string::npos;
    });
  }
  std::string name(std::size_t whose) const {
    return "process " + std::to_string(target_[whose]->pid());
  }
  ::testing::AssertionResult reports_reset(const hold_failure& no) const {
    const std::string reset =
        "GPU " + std::to_string(gpu_[0]) + " was reset while the process was held";
    if (no.error == EIO && no.what.find(reset) != std::string::npos)
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "error " << no.error << ": " << no.what;
  }
  void reset_gpu_0() const {
    command("reset " + std::to_string(gpu_[0]));
    ASSERT_TRUE(eventually(patience, [&] { return view_.gpu_count("resets") == 1; }));
  }
  /// Resets GPU 0 while its queues run. The process then destroys the newest, and the holder learns
  /// of it.
  void reset_and_destroy(driver_queue_id newest = queue_0) {
    ASSERT_NO_FATAL_FAILURE(reset_gpu_0());
    ASSERT_TRUE(target_[0]->obeys('d'));
    // An unknown id makes the lane read the list of queues again.
    ASSERT_EQ(act(command_kind::resume, order(0, driver_queue_id{99})), ENOENT);
    ASSERT_THAT(holder_->buried(target_[0]->pid()), ElementsAre(newest));
  }
  /// A reset stops all processes for good. The driver answers them, and a new process runs.
  void gpu_runs_after_its_reset() {
    EXPECT_TRUE(eventually(patience, [&] { return view_.gpu_count("resets") == 1; }));
    EXPECT_FALSE(suspended(0));
    EXPECT_TRUE(target_[0]->obeys('q')) << "something still keeps its driver calls waiting";
    const offline_target next{device_.roots(), {.gpu = gpu_[0]}};
    ASSERT_TRUE(next.says('r'));
    EXPECT_TRUE(next.runs());
  }

  test::simulated_device device_;
  test::device_view view_{device_.root()};
  test::refusals refusals_;
  std::array<std::uint32_t, 2> gpu_{};
  std::array<std::unique_ptr<offline_target>, 2> target_;
  std::unique_ptr<queue_holder> holder_;
  hold_failure why_;
};

class HolderFaults : public HolderBench, public ::testing::WithParamInterface<const char*> {
 protected:
  HolderFaults() : HolderBench{GetParam()} {}
};

INSTANTIATE_TEST_SUITE_P(Schedulers, HolderFaults, ::testing::Values("runlist", "mes"),
                         [](const auto& each) { return std::string{each.param}; });

TEST_P(HolderFaults, UndoASuspendThatFailsAndTouchNobodyElse) {
  hold_both();
  fail_next_cycle("20ms");
  std::array<queue_order, 2> orders{order(0), order(1)};
  const auto no = holder_->change(command_kind::suspend, orders, soon());
  EXPECT_EQ(no.error, EIO);
  EXPECT_THAT(no.what, HasSubstr("cannot suspend queue 0 of " + name(0) +
                                 ": the preemption failed in hardware; the driver resets GPU " +
                                 std::to_string(gpu_[0]) + " and its hive"));
  EXPECT_EQ(orders[0].hardware, breaker_cause::preemption_failed);
  EXPECT_FALSE(orders[1].hardware);
  EXPECT_EQ(orders[0].error, EIO);
  EXPECT_EQ(orders[0].gpu, gpu_id{gpu_[0]});
  EXPECT_EQ(orders[1].error, 0);
  EXPECT_TRUE(suspended(1));
  gpu_runs_after_its_reset();
  ASSERT_EQ(holder_->queues(target_[0]->pid()).size(), 2U) << "it is still held";
  EXPECT_FALSE(holder_->queues(target_[0]->pid())[0].suspended);

  EXPECT_EQ(act(command_kind::suspend, order(0, driver_queue_id{1})), 0) << why_.what;
  EXPECT_TRUE(suspended(0));
  EXPECT_EQ(act(command_kind::resume, order(0, driver_queue_id{1})), 0) << why_.what;
  EXPECT_EQ(act(command_kind::resume, order(1)), 0) << why_.what;
  EXPECT_FALSE(suspended(0));
  EXPECT_FALSE(suspended(1));
}

TEST_P(HolderFaults, EndTheSessionWhereAResumeFails) {
  hold_both();
  ASSERT_EQ(act(command_kind::suspend, order(0)), 0) << why_.what;
  ASSERT_EQ(act(command_kind::suspend, order(1)), 0) << why_.what;
  fail_next_cycle("20ms");
  EXPECT_EQ(act(command_kind::resume, order(0)), EIO);
  EXPECT_THAT(why_.what, HasSubstr("cannot resume queue 0 of " + name(0) +
                                   ": the preemption failed in hardware; the driver resets GPU " +
                                   std::to_string(gpu_[0])));
  EXPECT_TRUE(untraced(0));
  EXPECT_TRUE(eventually(patience, [&] { return !holder_->holds(target_[0]->pid()); }));
  gpu_runs_after_its_reset();
  EXPECT_TRUE(suspended(1)) << "the other one is none of it";
  EXPECT_FALSE(holder_->stranded());
  EXPECT_FALSE(holder_->attach(target_[0]->pid(), soon())) << "it can be held again";
}

// Of the resume that ends a session the driver does not say what became of it.
TEST_P(HolderFaults, TellOfAResumeThatFailsInARelease) {
  hold_both();
  ASSERT_EQ(act(command_kind::suspend, order(0)), 0) << why_.what;
  ASSERT_EQ(act(command_kind::suspend, order(1)), 0) << why_.what;
  EXPECT_TRUE(holder_->take_gpu_failures().empty());
  fail_next_cycle("20ms goes-on");
  const auto no = holder_->release(target_[0]->pid(), soon());
  EXPECT_EQ(no.error, EIO);
  EXPECT_THAT(no.what, HasSubstr("failed in hardware"));
  EXPECT_TRUE(untraced(0));
  EXPECT_FALSE(holder_->stranded());
  const auto failed = holder_->take_gpu_failures();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].gpu, gpu_id{gpu_[0]});
  EXPECT_EQ(failed[0].why, breaker_cause::preemption_failed);
  const auto other = holder_->release(target_[1]->pid(), soon());
  EXPECT_FALSE(other) << other.what;
}

TEST_P(HolderFaults, TellOfAResetBetweenASuspendAndItsResume) {
  hold_both();
  ASSERT_EQ(act(command_kind::suspend, order(0)), 0) << why_.what;
  ASSERT_EQ(act(command_kind::suspend, order(1)), 0) << why_.what;
  command("reset " + std::to_string(gpu_[0]));
  EXPECT_TRUE(eventually(patience, [&] { return view_.gpu_count("resets") == 1; }));
  std::array<queue_order, 2> orders{order(0), order(1)};
  const auto no = holder_->change(command_kind::resume, orders, soon());
  EXPECT_EQ(orders[0].error, EIO);
  EXPECT_EQ(orders[0].hardware, breaker_cause::reset);
  EXPECT_THAT(no.what, HasSubstr("GPU " + std::to_string(gpu_[0]) +
                                 " was reset while the process was held"));
  EXPECT_EQ(orders[1].error, 0) << "the other GPU's";
  EXPECT_FALSE(suspended(0)) << "dead or not, its owner must be able to destroy it";
  EXPECT_TRUE(holder_->holds(target_[0]->pid()));
  EXPECT_EQ(holder_->take_gpu_failures().size(), 1U) << "its end is not another one";
  gpu_runs_after_its_reset();
  EXPECT_EQ(act(command_kind::suspend, order(0, driver_queue_id{1})), 0)
      << "what came later: " << why_.what;
}

// Symptom: the suspend failed with EIO, and the whole process was released.
TEST_P(HolderFaults, FindNoQueueToSuspendWhereADeadOneWasDestroyed) {
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_and_destroy());
  EXPECT_EQ(act(command_kind::suspend, order(0)), ENOENT);
  EXPECT_TRUE(holder_->holds(target_[0]->pid()));
  EXPECT_EQ(act(command_kind::resume, order(0)), EIO) << "still to be reported";
  EXPECT_TRUE(reports_reset(why_));
}

TEST_P(HolderFaults, TellEveryOrderOfAResumeThatItsQueueDiedAndWasDestroyed) {
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_and_destroy());
  std::array<queue_order, 3> orders{order(0), order(1), order(0)};
  const auto no = holder_->change(command_kind::resume, orders, soon());
  EXPECT_EQ(no.error, EIO);
  for (const std::size_t each : {0U, 2U}) {
    EXPECT_EQ(orders[each].error, EIO);
    EXPECT_EQ(orders[each].hardware, breaker_cause::reset);
    EXPECT_EQ(orders[each].gpu, gpu_id{gpu_[0]});
  }
  EXPECT_EQ(orders[1].error, 0) << "the other GPU's";
  EXPECT_THAT(holder_->buried(target_[0]->pid()), IsEmpty());
  EXPECT_EQ(act(command_kind::resume, order(0)), ENOENT) << "a second call";
  EXPECT_TRUE(holder_->holds(target_[0]->pid()));
}

// The queue ran, so that the release needs no driver call for it.
TEST_P(HolderFaults, TellInAReleaseOfAResetThatNoCallReported) {
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_gpu_0());
  EXPECT_TRUE(reports_reset(holder_->release(target_[0]->pid(), soon())));
  EXPECT_FALSE(holder_->holds(target_[0]->pid()));
  const auto no = holder_->release(target_[1]->pid(), soon());
  EXPECT_FALSE(no) << "the other GPU's: " << no.what;
}

TEST_P(HolderFaults, TellInAReleaseOfDeadQueuesThatWereDestroyed) {
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_and_destroy());
  EXPECT_TRUE(reports_reset(holder_->release(target_[0]->pid(), soon())));
  EXPECT_TRUE(untraced(0));
}

// Beside the queue that the resume names, the process has another dead one.
TEST_P(HolderFaults, TellOfAResetInAResumeAndNotAgainInTheRelease) {
  ASSERT_TRUE(target_[0]->obeys('q'));
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_gpu_0());
  ASSERT_EQ(act(command_kind::resume, order(0)), EIO);
  EXPECT_TRUE(reports_reset(why_));
  const auto no = holder_->release(target_[0]->pid(), soon());
  EXPECT_FALSE(no) << no.what;
}

TEST_P(HolderFaults, TellOfADestroyedDeadQueueInAResumeAndNotAgainInTheRelease) {
  ASSERT_TRUE(target_[0]->obeys('q'));
  hold_both();
  ASSERT_NO_FATAL_FAILURE(reset_and_destroy(queue_1));
  ASSERT_EQ(act(command_kind::resume, order(0, queue_1)), EIO);
  EXPECT_TRUE(reports_reset(why_));
  const auto no = holder_->release(target_[0]->pid(), soon());
  EXPECT_FALSE(no) << no.what;
}

// Nobody can interrupt the driver's call; whoever waits for it is not kept.
TEST_P(HolderFaults, KeepNobodyBeyondTheDeadline) {
  hold_both();
  const time_point began = clock::now();
  fail_next_cycle("4s");
  EXPECT_EQ(act(command_kind::suspend, order(0), 200ms), ETIMEDOUT);
  EXPECT_THAT(why_.what, HasSubstr(name(0) + ": the driver did not answer in time"));
  EXPECT_EQ(act(command_kind::suspend, order(1)), 0) << "processes of other GPUs go on";
  EXPECT_EQ(act(command_kind::resume, order(1)), 0);
  const auto no = holder_->release(target_[0]->pid(), clock::now() + 200ms);
  const time_point until = clock::now();
  if (until < began + 4s) {
    EXPECT_EQ(no.error, ETIMEDOUT);
    EXPECT_THAT(no.what, HasSubstr("is not released yet"));
  }
  EXPECT_TRUE(untraced(0)) << "it is released once the driver answers";
  EXPECT_TRUE(eventually(patience, [&] { return !holder_->holds(target_[0]->pid()); }));
  gpu_runs_after_its_reset();
  EXPECT_FALSE(suspended(1));
}

// The kernel opens the session all the same, and says what failed beside it.
TEST_P(HolderFaults, ResumeEvenWhereTheOrderComesTooLateBehindAnother) {
  hold_both();
  ASSERT_EQ(act(command_kind::suspend, order(0)), 0) << why_.what;
  command("delay DBG_TRAP:SUSPEND_QUEUES 1s");
  std::thread slow{[&] {
    std::array<queue_order, 1> orders{order(0)};
    (void)holder_->change(command_kind::suspend, orders, soon());
  }};
  std::this_thread::sleep_for(200ms);  // Into the call; both orders must end the same.
  const int answer = act(command_kind::resume, order(0), 100ms);
  EXPECT_TRUE(answer == ETIMEDOUT || answer == 0) << why_.what;
  slow.join();
  if (answer == ETIMEDOUT) {
    EXPECT_TRUE(target_[0]->runs()) << "told that everything is resumed";
  }
}

TEST_P(HolderFaults, HoldNobodyWhoseSessionTheHardwareRefuses) {
  fail_next_cycle("20ms");
  const auto no = holder_->attach(target_[0]->pid(), soon());
  EXPECT_TRUE(no);
  EXPECT_THAT(no.what, HasSubstr(name(0)));
  EXPECT_TRUE(untraced(0));
  EXPECT_FALSE(holder_->holds(target_[0]->pid()));
  gpu_runs_after_its_reset();
  EXPECT_FALSE(holder_->attach(target_[0]->pid(), soon())) << "it can be held later";
}

class HolderRefusals : public HolderBench {
 protected:
  HolderRefusals() : HolderBench{"runlist"} {}
};

TEST_F(HolderRefusals, OfAResumeEndTheSessionAndOfItsEndStrandItsHolder) {
  hold_both();
  ASSERT_EQ(act(command_kind::suspend, order(0)), 0) << why_.what;
  refusals_.set({{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, EPERM}});
  EXPECT_NE(act(command_kind::resume, order(0)), 0);
  EXPECT_THAT(why_.what, HasSubstr(name(0)));
  EXPECT_TRUE(target_[0]->runs(patience)) << "the end of the session resumed it";
  EXPECT_TRUE(untraced(0));
  EXPECT_FALSE(holder_->stranded());

  refusals_.lift();
  ASSERT_TRUE(eventually(patience, [&] { return !holder_->holds(target_[0]->pid()); }));
  // Until the release is complete, the answer is to try again.
  int refused = 0;
  ASSERT_TRUE(eventually(patience, [&] {
    refused = act(command_kind::suspend, order(0));
    return refused != EBUSY;
  }));
  ASSERT_EQ(refused, 0) << why_.what;
  refusals_.set(
      {{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, EPERM}, {uapi::KFD_IOC_DBG_TRAP_DISABLE, EPERM}});
  const auto no = holder_->release(target_[0]->pid(), clock::now() + 5s);
  EXPECT_EQ(no.error, EIO);
  EXPECT_THAT(no.what, HasSubstr("the queues resume when this program exits"));
  EXPECT_TRUE(holder_->stranded());
  refusals_.lift();
  EXPECT_TRUE(target_[0]->runs(patience));
  EXPECT_TRUE(eventually(patience, [&] { return !holder_->stranded(); }));
}

}  // namespace
}  // namespace sluice::kfd::queue_holder_test
