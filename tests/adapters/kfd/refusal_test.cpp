/// A driver that refuses whole calls: nothing may stay suspended for that, nor be taken for
/// running.

#include "offline_target.hpp"
#include "refusing_driver.hpp"
#include "simulated_device.hpp"

#include <cerrno>
#include <csignal>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd::refusal_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::offline_target;
using test::patience;

constexpr process_id target_id{1};

class Refusal : public ::testing::Test {
 protected:
  Refusal()
      : device_({.profile = test::fast_profile()}),
        target_(std::make_unique<offline_target>(device_.roots())),
        refusals_(device_.root() + "/refusals") {}

  void SetUp() override {
    ASSERT_TRUE(target_->says('r'));
    auto opened = device::open(device_.roots().device, messages_to_stderr());
    ASSERT_TRUE(opened);
    node_ = std::move(*opened);
    // What lanes say arrives from their threads; nothing here reads it.
    auto created = lanes::create(*node_, {.say = [](std::string_view) {}});
    ASSERT_TRUE(created);
    lanes_ = std::move(*created);
    ASSERT_TRUE(lanes_->attach(target_id, target_->pid(), target_->start_time()));
    ASSERT_TRUE(hears(report_kind::queue_added));
    ASSERT_EQ(act(command_kind::suspend), outcome::done);
    ASSERT_TRUE(target_->stands_still());
  }
  void TearDown() override {
    refusals_.lift();
    lanes_.reset();
  }

  bool hears(report_kind kind, duration limit = 5s) {
    return eventually(limit, [&] {
      while (lanes_->next(report_))
        if (report_.kind == kind) return true;
      return false;
    });
  }
  std::optional<outcome> act(command_kind kind) {
    batch work;
    work.id = ++last_batch_;
    work.target = target_id;
    work.gpu = gpu_id{51110};
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    if (!lanes_->submit(work)) return {};
    lanes_->flush();
    if (!hears(report_kind::completed)) return {};
    return report_.result.outcomes[0];
  }

  test::simulated_device device_;
  std::unique_ptr<offline_target> target_;
  test::refusals refusals_;
  std::unique_ptr<device> node_;
  std::unique_ptr<lanes> lanes_;
  report report_;
  std::uint64_t last_batch_ = 0;
};

class RefusedResume : public Refusal, public ::testing::WithParamInterface<int> {};

TEST_P(RefusedResume, IsNotTakenForRunningAndEndsTheSession) {
  refusals_.set({{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, GetParam()}});
  EXPECT_EQ(act(command_kind::resume), outcome::failed);
  EXPECT_EQ(report_.result.driver_errno, GetParam());
  EXPECT_TRUE(hears(report_kind::detached));
  EXPECT_TRUE(target_->runs());
  EXPECT_FALSE(lanes_->stranded());
}
INSTANTIATE_TEST_SUITE_P(Errors, RefusedResume,
                         ::testing::Values(EPERM, EINVAL, EFAULT, ENOMEM, EIO, ESRCH));

TEST_F(Refusal, OfAResumeIsTheTargetsEndOnlyWhenItHasExited) {
  refusals_.set({{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, ESRCH}});
  ::kill(target_->pid(), SIGKILL);
  // Until the lane has served the stop before the exit, the target has its memory, and the driver
  // does not report ESRCH.
  ASSERT_TRUE(eventually(test::patience, [&] { return leader_is_exiting(target_->pid()); }));
  // Performed and answered, or too late for the lane: target_gone either way.
  EXPECT_EQ(act(command_kind::resume).value_or(outcome::target_gone), outcome::target_gone);
}

TEST_F(Refusal, OfASuspendDidNothing) {
  ASSERT_EQ(act(command_kind::resume), outcome::done);
  refusals_.set({{uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, EPERM}});
  EXPECT_EQ(act(command_kind::suspend), outcome::invalid);
  refusals_.set({{uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, ESRCH}});
  EXPECT_EQ(act(command_kind::suspend), outcome::failed);
  EXPECT_TRUE(target_->runs());
  refusals_.lift();
  EXPECT_EQ(act(command_kind::suspend), outcome::done);
  EXPECT_EQ(act(command_kind::resume), outcome::done);
}

// Only the end of this process would help; until then the lane tries, and remains a good tracer.
TEST_F(Refusal, ToEndTheSessionStrandsTheLaneUntilTheDriverGivesIn) {
  refusals_.set(
      {{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, EPERM}, {uapi::KFD_IOC_DBG_TRAP_DISABLE, EPERM}});
  EXPECT_EQ(act(command_kind::resume), outcome::failed);
  EXPECT_TRUE(eventually(patience, [&] { return lanes_->stranded(); }));
  EXPECT_TRUE(target_->stands_still());
  EXPECT_EQ(act(command_kind::suspend), outcome::failed);
  EXPECT_FALSE(hears(report_kind::detached, 50ms)) << "its queues do not run";

  ::kill(target_->pid(), SIGSTOP);
  const auto stopped = target_->process().status();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(WSTOPSIG(*stopped), SIGSTOP);
  ::kill(target_->pid(), SIGCONT);

  refusals_.lift();
  EXPECT_TRUE(hears(report_kind::detached));
  EXPECT_FALSE(lanes_->stranded());
  EXPECT_TRUE(target_->runs());
}

TEST_F(Refusal, ToEndTheSessionDoesNotOutliveTheTarget) {
  refusals_.set(
      {{uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, EPERM}, {uapi::KFD_IOC_DBG_TRAP_DISABLE, EPERM}});
  EXPECT_EQ(act(command_kind::resume), outcome::failed);
  ASSERT_TRUE(eventually(patience, [&] { return lanes_->stranded(); }));
  ::kill(target_->pid(), SIGKILL);
  EXPECT_TRUE(hears(report_kind::detached));
  EXPECT_FALSE(lanes_->stranded());
}

}  // namespace
}  // namespace sluice::kfd::refusal_test
