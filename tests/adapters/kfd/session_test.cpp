/// Lanes and their sessions against the simulated device, by way of the in-process backend.

#include "backend_loop.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <pthread.h>
#include <sys/signalfd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd::session_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::eventually;
using test::offline_target;
using test::patience;
using ::testing::ElementsAre;

constexpr process_id target_id{1};

class Session : public ::testing::Test {
 protected:
  Session() : device_({.profile = test::fast_profile()}) {}

  void start() {
    loop_ = std::make_unique<backend_loop>(make_in_process_backend(
        {.roots = device_.roots(), .owner_lock = "", .say = [this](std::string_view words) {
           message_ = words;
         }}));
    ASSERT_TRUE(loop_->start()) << message_;
  }
  error_code attach(const offline_target& target, process_id id = target_id) {
    loop_->attachments.erase(id);
    const auto begun = (*loop_)->attach(id, target.pid(), target.start_time());
    if (!begun) return begun.error();
    if (!loop_->until([&] { return loop_->attachments.contains(id); })) return errc::busy;
    return loop_->attachments.at(id);
  }
  /// A target, and a loop that has attached to it.
  offline_target& attached(offline_target::options how = offline_target::options()) {
    target_.emplace(device_.roots(), how);
    start();
    if (!target_->says('r') || attach(*target_))
      throw std::runtime_error("not attached: " + message_);
    return *target_;
  }
  bool has_queues(std::size_t count, process_id id = target_id) {
    return loop_->until([&] { return loop_->queues[id].size() == count; });
  }
  static std::vector<outcome> outcomes(const std::optional<batch_result>& answer) {
    if (!answer) return {};
    return {answer->outcomes.begin(), answer->outcomes.begin() + answer->count};
  }

  test::simulated_device device_;
  std::string message_;
  std::unique_ptr<backend_loop> loop_;
  std::optional<offline_target> target_;
};

TEST_F(Session, ReportsTheQueuesThatExist) {
  attached({.queues = 3});
  EXPECT_TRUE(has_queues(3));
  for (const queue_info& each : loop_->added) {
    EXPECT_EQ(each.target, target_id);
    EXPECT_EQ(each.type, queue_kind::compute);
    EXPECT_EQ(each.gpu, gpu_id{51110});
    EXPECT_NE(each.incarnation, 0U);
    EXPECT_EQ(each.fault, 0U);
  }
}

TEST_F(Session, SuspendsAndResumes) {
  offline_target& target = attached({.queues = 2});
  ASSERT_TRUE(has_queues(2));
  EXPECT_TRUE(target.runs());
  for (int round = 0; round < 3; ++round) {
    const auto suspended = loop_->suspend(target_id, {0, 1});
    EXPECT_THAT(outcomes(suspended), ElementsAre(outcome::done, outcome::done));
    EXPECT_EQ(suspended->driver_errno, 0);
    EXPECT_GT(suspended->finished, suspended->started);
    EXPECT_TRUE(target.stands_still());
    EXPECT_THAT(outcomes(loop_->resume(target_id, {0, 1})),
                ElementsAre(outcome::done, outcome::done));
    EXPECT_TRUE(target.runs());
  }
  EXPECT_EQ(target.wrong(), 0U);
}

TEST_F(Session, AnswersForEveryIdOfABatch) {
  attached({.queues = 2});
  ASSERT_TRUE(has_queues(2));
  EXPECT_THAT(outcomes(loop_->suspend(target_id, {1})), ElementsAre(outcome::done));
  // Suspended already, running, unknown, named twice.
  EXPECT_THAT(outcomes(loop_->suspend(target_id, {1, 0, 9, 0})),
              ElementsAre(outcome::done, outcome::done, outcome::invalid, outcome::invalid));
  EXPECT_THAT(outcomes(loop_->resume(target_id, {0, 1, 9})),
              ElementsAre(outcome::done, outcome::done, outcome::invalid));
  EXPECT_THAT(outcomes(loop_->resume(target_id, {0})), ElementsAre(outcome::done));
}

TEST_F(Session, AnswersAnEmptyBatchWithoutTheDriver) {
  offline_target& target = attached();
  for (const auto kind : {command_kind::suspend, command_kind::resume}) {
    const auto answer = loop_->act(kind, target_id, {});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->count, 0);
    EXPECT_EQ(answer->driver_errno, 0);
  }
  EXPECT_TRUE(target.runs());
}

TEST_F(Session, HearsOfQueuesThatComeAndGo) {
  offline_target& target = attached();
  ASSERT_TRUE(has_queues(1));
  ASSERT_TRUE(target.obeys('q'));
  EXPECT_TRUE(has_queues(2));
  // Registered, and so no longer new: it can be suspended.
  EXPECT_THAT(outcomes(loop_->suspend(target_id, {1})), ElementsAre(outcome::done));
  EXPECT_THAT(outcomes(loop_->resume(target_id, {1})), ElementsAre(outcome::done));
  ASSERT_TRUE(target.obeys('d'));
  EXPECT_TRUE(has_queues(1));
  EXPECT_TRUE(loop_->queues[target_id].contains(driver_queue_id{0}));
}

TEST_F(Session, TellsAReusedIdApart) {
  offline_target& target = attached();
  ASSERT_TRUE(has_queues(1));
  const std::size_t before = loop_->added.size();
  ASSERT_TRUE(target.obeys('d'));
  ASSERT_TRUE(target.obeys('q'));
  ASSERT_TRUE(loop_->until([&] { return loop_->added.size() == before + 1; }));
  EXPECT_EQ(loop_->added.back().id, driver_queue_id{0});
  EXPECT_TRUE(has_queues(1));
}

// Its start blocks in RUNTIME_ENABLE until the session answers, its end in the same call again.
TEST_F(Session, AnswersTheRuntimesHandshake) {
  offline_target& target = attached({.open_when_told = true});
  EXPECT_TRUE(has_queues(0));
  target.tell('o');
  ASSERT_TRUE(has_queues(1));
  ASSERT_TRUE(target.says('o'));
  EXPECT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::done));
  EXPECT_THAT(outcomes(loop_->resume(target_id, {0})), ElementsAre(outcome::done));
  target.tell('e');
  ASSERT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
  EXPECT_TRUE(target.says('e'));
  const auto status = target.process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 7);
}

TEST_F(Session, LetsGoOfADestroyThatWaitsForASuspendedQueue) {
  offline_target& target = attached({.queues = 2});
  ASSERT_TRUE(has_queues(2));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0, 1})),
              ElementsAre(outcome::done, outcome::done));
  target.tell('d');
  EXPECT_FALSE(target.process().heard(200ms)) << "the driver should make it wait";
  EXPECT_THAT(outcomes(loop_->resume(target_id, {0, 1})),
              ElementsAre(outcome::done, outcome::done));
  EXPECT_TRUE(target.says('d'));
  EXPECT_TRUE(has_queues(1));
  EXPECT_TRUE(target.runs());
}

TEST_F(Session, ResumesEverythingOnDetach) {
  offline_target& target = attached({.queues = 2});
  ASSERT_TRUE(has_queues(2));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0, 1})),
              ElementsAre(outcome::done, outcome::done));
  ASSERT_TRUE((*loop_)->detach(target_id));
  ASSERT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
  EXPECT_TRUE(target.runs());
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target.pid()) == 0; }));
  // And may come back.
  EXPECT_FALSE(attach(target, process_id{2}));
  EXPECT_TRUE(has_queues(2, process_id{2}));
}

TEST_F(Session, ResumesEverythingOnStop) {
  offline_target& target = attached();
  ASSERT_TRUE(has_queues(1));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::done));
  (*loop_)->stop();
  EXPECT_TRUE(target.runs());
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target.pid()) == 0; }));
}

TEST_F(Session, SurvivesATargetKilledWhileSuspended) {
  auto target = std::make_unique<offline_target>(device_.roots());
  ASSERT_TRUE(target->says('r'));
  start();
  ASSERT_FALSE(attach(*target));
  ASSERT_TRUE(has_queues(1));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::done));
  ::kill(target->pid(), SIGKILL);
  EXPECT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
  const auto status = target->process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
  EXPECT_EQ((*loop_)->detach(target_id).error(), errc::unknown_target);
}

TEST_F(Session, SurvivesATargetThatExecsWhileSuspended) {
  offline_target& target = attached();
  ASSERT_TRUE(has_queues(1));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::done));
  target.tell('x');
  EXPECT_TRUE(has_queues(0));
  EXPECT_TRUE(eventually(patience, [&] { return command_of(target.pid()) == "sleep"; }));
  // A new session with the new program: still traced, still there to be let go of.
  EXPECT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::invalid));
  EXPECT_NE(tracer_of(target.pid()), 0);
  ASSERT_TRUE((*loop_)->detach(target_id));
  EXPECT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
}

TEST_F(Session, PassesSignalsOnWhileItHoldsTheTarget) {
  offline_target& target = attached();
  ::kill(target.pid(), SIGSTOP);
  auto status = target.process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WSTOPSIG(*status), SIGSTOP);
  ::kill(target.pid(), SIGCONT);
  status = target.process().status();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFCONTINUED(*status));
  EXPECT_TRUE(target.runs());
  ::kill(target.pid(), SIGTERM);
  status = target.process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WTERMSIG(*status), SIGTERM);
  EXPECT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
}

// Linux 6.5 and later let anybody who can open the device disable anybody's session.
TEST_F(Session, EndsWhenAnotherProcessDisablesIt) {
  offline_target& target = attached();
  ASSERT_TRUE(has_queues(1));
  ASSERT_THAT(outcomes(loop_->suspend(target_id, {0})), ElementsAre(outcome::done));
  test::family stranger{[&](int said) {
    const auto node = device::open(device_.roots().device, messages_to_stderr());
    if (!node) return 1;
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(target.pid());
    args.op = uapi::KFD_IOC_DBG_TRAP_DISABLE;
    const auto called = (*node)->call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
    (void)!::write(said, called ? "y" : "n", 1);
    return 0;
  }};
  ASSERT_EQ(stranger.heard(), 'y');
  EXPECT_TRUE(target.runs());
  const auto answer = loop_->suspend(target_id, {0});
  EXPECT_THAT(outcomes(answer), ElementsAre(outcome::invalid));
  EXPECT_EQ(answer->driver_errno, EINVAL);
  EXPECT_TRUE(loop_->until([&] { return loop_->detachments.contains(target_id); }));
  EXPECT_TRUE(target.runs());
}

TEST_F(Session, KeepsTwoTargetsApart) {
  offline_target first{device_.roots()};
  offline_target second{device_.roots()};
  ASSERT_TRUE(first.says('r'));
  ASSERT_TRUE(second.says('r'));
  start();
  ASSERT_FALSE(attach(first, process_id{1}));
  ASSERT_FALSE(attach(second, process_id{2}));
  ASSERT_TRUE(has_queues(1, process_id{1}));
  ASSERT_TRUE(has_queues(1, process_id{2}));
  ASSERT_THAT(outcomes(loop_->suspend(process_id{1}, {0})), ElementsAre(outcome::done));
  EXPECT_TRUE(first.stands_still());
  EXPECT_TRUE(second.runs());
  ASSERT_THAT(outcomes(loop_->resume(process_id{1}, {0})), ElementsAre(outcome::done));
  EXPECT_TRUE(first.runs());
}

TEST_F(Session, AnswersBusyAndUnknown) {
  offline_target& target = attached();
  EXPECT_EQ((*loop_)->attach(target_id, target.pid(), target.start_time()).error(), errc::busy);
  batch work;
  work.id = 1;
  work.target = process_id{77};
  EXPECT_EQ((*loop_)->submit(work).error(), errc::unknown_target);
  EXPECT_EQ((*loop_)->detach(process_id{77}).error(), errc::unknown_target);
}

/// Who tells lanes of their targets' stops.
enum class told_by { kernel, owner };

/// With told_by::owner, one who has SIGCHLD to itself: here it comes to the test's thread.
class ToldLanes : public ::testing::TestWithParam<told_by> {
 protected:
  ToldLanes() : first_(device_.roots()), second_(device_.roots()) {}

  void SetUp() override {
    if (!watches() && !lanes::hear_stops()) GTEST_SKIP() << "needs Linux 6.7 and io_uring";
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &child, &before_), 0);
    signals_ = unique_fd{::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)};
    ASSERT_TRUE(first_.says('r'));
    ASSERT_TRUE(second_.says('r'));
    auto opened = device::open(device_.roots().device, messages_to_stderr());
    ASSERT_TRUE(opened);
    node_ = std::move(*opened);
    auto created = lanes::create(
        *node_, {.owner_watches_children = watches(), .say = [](std::string_view) {}});
    ASSERT_TRUE(created);
    lanes_ = std::move(*created);
    for (const auto& [id, target] : {std::pair{1U, &first_}, std::pair{2U, &second_}}) {
      ASSERT_TRUE(lanes_->attach(process_id{id}, target->pid(), target->start_time()));
      ASSERT_TRUE(until([&, wanted = id] { return queues_ == wanted; }));
    }
  }
  void TearDown() override {
    lanes_.reset();
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  static bool watches() { return GetParam() == told_by::owner; }
  /// The owner's loop.
  bool until(const std::function<bool()>& condition) {
    return eventually(patience, [&] {
      signalfd_siginfo info;
      while (watches() && ::read(signals_.get(), &info, sizeof(info)) > 0)
        lanes_->children_changed();
      report each;
      while (lanes_->next(each)) queues_ += each.kind == report_kind::queue_added ? 1 : 0;
      return condition();
    });
  }
  /// How often the lane of a target has slept so far; the lane's thread is the target's tracer.
  static std::uint64_t sleeps(const offline_target& target) {
    std::array<char, 4096> buffer;
    const std::string path =
        "/proc/" + std::to_string(tracer_of(target.pid()).value_or(0)) + "/status";
    const auto text = read_small_file(path.c_str(), buffer);
    return text ? status_number(*text, "voluntary_ctxt_switches").value_or(0) : 0;
  }

  test::simulated_device device_;
  offline_target first_;
  offline_target second_;
  std::unique_ptr<device> node_;
  std::unique_ptr<lanes> lanes_;
  unique_fd signals_;
  sigset_t before_{};
  unsigned queues_ = 0;
};

INSTANTIATE_TEST_SUITE_P(By, ToldLanes, ::testing::Values(told_by::kernel, told_by::owner),
                         [](const auto& of) {
                           return of.param == told_by::owner ? "owner" : "kernel";
                         });

TEST_P(ToldLanes, AreWokenForTheirOwnTargetOnly) {
  // Both lanes are past what the attach gave them to do once they stop moving.
  std::uint64_t idle = 0;
  ASSERT_TRUE(until([&] { return std::exchange(idle, sleeps(second_)) == sleeps(second_); }));
  const std::uint64_t busy = sleeps(first_);
  idle = sleeps(second_);
  ASSERT_NE(idle, 0U);
  constexpr std::uint64_t stops = 20;
  for (std::uint64_t round = 0; round < stops; ++round) {
    ::kill(first_.pid(), SIGSTOP);
    ASSERT_TRUE(until([&] { return first_.process().status(0ms).has_value(); }));
    ::kill(first_.pid(), SIGCONT);
    ASSERT_TRUE(until([&] { return first_.process().status(0ms).has_value(); }));
  }
  EXPECT_GE(sleeps(first_) - busy, stops);
  EXPECT_LE(sleeps(second_) - idle, 2U);
}

/// A GPU whose suspends take half a second: a call in flight for as long as a test needs.
class SlowLanes : public ::testing::Test {
 protected:
  SlowLanes()
      : device_({.profile = test::profile_text("",
                                               "suspend_cost = \"500ms\"\n"
                                               "resume_cost = \"1ms\"\n"
                                               "cycle_cost = \"200us\"\n")}),
        target_(device_.roots()) {}

  void SetUp() override {
    ASSERT_TRUE(target_.says('r'));
    auto opened = device::open(device_.roots().device, messages_to_stderr());
    ASSERT_TRUE(opened);
    node_ = std::move(*opened);
    auto created = lanes::create(*node_, {.stuck_after = 100ms, .say = [](std::string_view) {}});
    ASSERT_TRUE(created);
    lanes_ = std::move(*created);
    ASSERT_TRUE(lanes_->attach(target_id, target_.pid(), target_.start_time()));
    ASSERT_TRUE(hears(report_kind::queue_added));
  }

  /// Whether a report of that kind comes; others are counted and forgotten.
  bool hears(report_kind kind, duration limit = 5s) {
    return eventually(limit, [&] {
      lanes_->check(clock::now());
      while (lanes_->next(report_)) {
        if (report_.kind == report_kind::gpu_lost) ++losses_;
        if (report_.kind == kind) return true;
      }
      return false;
    });
  }
  bool submit_suspend() {
    batch work;
    work.id = 1;
    work.target = target_id;
    work.gpu = gpu_id{51110};
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    const bool taken = lanes_->submit(work).has_value();
    lanes_->flush();
    return taken;
  }

  test::simulated_device device_;
  offline_target target_;
  std::unique_ptr<device> node_;
  std::unique_ptr<lanes> lanes_;
  report report_;
  int losses_ = 0;
};

TEST_F(SlowLanes, ReportTheGpuOfAStuckCallOnce) {
  ASSERT_TRUE(submit_suspend());
  ASSERT_TRUE(hears(report_kind::gpu_lost));
  EXPECT_EQ(report_.gpu, gpu_id{51110});
  ASSERT_TRUE(hears(report_kind::completed));
  EXPECT_EQ(report_.result.outcomes[0], outcome::done);
  EXPECT_EQ(losses_, 1);
}

TEST_F(SlowLanes, TakeNoSecondBatchMeanwhile) {
  ASSERT_TRUE(submit_suspend());
  EXPECT_FALSE(submit_suspend());
  ASSERT_TRUE(hears(report_kind::completed));
  EXPECT_TRUE(submit_suspend());
}

TEST_F(SlowLanes, SayWhenTheyDoNotComeBackInTime) {
  ASSERT_TRUE(submit_suspend());
  ASSERT_TRUE(hears(report_kind::gpu_lost));  // so the call has begun
  EXPECT_FALSE(lanes_->stop(50ms));
  EXPECT_TRUE(lanes_->stop(5s));
  EXPECT_EQ(lanes_->size(), 0U);
  EXPECT_TRUE(target_.runs());
}

// The target's exit comes while its lane is in the driver, so after the batch was answered.
TEST_F(SlowLanes, AnswerABatchBeforeTheySayThatTheTargetIsGone) {
  ASSERT_TRUE(submit_suspend());
  ::kill(target_.pid(), SIGKILL);
  ASSERT_TRUE(hears(report_kind::completed));
  EXPECT_EQ(report_.result.id, 1U);
  EXPECT_TRUE(hears(report_kind::detached));
  EXPECT_EQ(lanes_->submit(batch{}).error(), errc::unknown_target);
}

// A suspend of such a target crashes some drivers (adapters/kfd/kernel/README.md).
TEST(LanesOnTwoGpus, DoNotSuspendATargetWithoutAnAddressSpaceOnEach) {
  const test::simulated_device device{{.gpus = 2}};
  backend_loop loop{make_in_process_backend({.roots = device.roots(), .owner_lock = ""})};
  ASSERT_TRUE(loop.start());

  // Before the attach: it is refused.
  const offline_target closed{device.roots()};
  ASSERT_TRUE(closed.says('r'));
  ASSERT_TRUE(closed.obeys('c'));
  ASSERT_TRUE(loop->attach(process_id{1}, closed.pid(), closed.start_time()));
  ASSERT_TRUE(loop.until([&] { return loop.attachments.contains(process_id{1}); }));
  EXPECT_EQ(loop.attachments[process_id{1}], errc::not_managed);

  // While it had no queue, nothing was to be seen: the first suspend is not performed.
  const offline_target later{device.roots(), {.queues = 0}};
  ASSERT_TRUE(later.says('r'));
  ASSERT_TRUE(loop->attach(process_id{2}, later.pid(), later.start_time()));
  ASSERT_TRUE(loop.until([&] { return loop.attachments.contains(process_id{2}); }));
  ASSERT_EQ(loop.attachments[process_id{2}], error_code{});
  ASSERT_TRUE(later.obeys('q'));
  ASSERT_TRUE(later.obeys('c'));
  ASSERT_TRUE(loop.until([&] { return !loop.queues[process_id{2}].empty(); }));
  const auto refused = loop.suspend(process_id{2}, {0});
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->outcomes[0], outcome::failed);
  EXPECT_EQ(refused->driver_errno, ECANCELED);
  EXPECT_TRUE(loop.until([&] { return loop.detachments.contains(process_id{2}); }));

  // With all of them it is managed.
  const offline_target whole{device.roots()};
  ASSERT_TRUE(whole.says('r'));
  ASSERT_TRUE(loop->attach(process_id{3}, whole.pid(), whole.start_time()));
  ASSERT_TRUE(loop.until([&] { return !loop.queues[process_id{3}].empty(); }));
  const auto done = loop.suspend(process_id{3}, {0});
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->outcomes[0], outcome::done);
}

// The driver's call for the second GPU's target waits at the first GPU while that is preempted, so
// whoever is handed over first must not go first. A busy machine may upset it now and then.
TEST(LanesOnTwoGpus, PreemptThemAtTheSameTime) {
  const test::simulated_device device{{.profile = test::profile_text("",
                                                                     "suspend_cost = \"100ms\"\n"
                                                                     "resume_cost = \"1ms\"\n"
                                                                     "cycle_cost = \"200us\"\n"),
                                       .gpus = 2}};
  backend_loop loop{make_in_process_backend({.roots = device.roots(), .owner_lock = ""})};
  ASSERT_TRUE(loop.start());
  const auto gpus = [&] {
    std::vector<std::uint32_t> ids;
    for (const char* node : {"1", "2"})
      ids.push_back(static_cast<std::uint32_t>(std::stoul(
          test::read_file(device.roots().sysfs + "/topology/nodes/" + node + "/gpu_id"))));
    return ids;
  }();
  std::vector<std::unique_ptr<offline_target>> targets;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    targets.push_back(
        std::make_unique<offline_target>(device.roots(), offline_target::options{.gpu = gpus[i]}));
    ASSERT_TRUE(targets.back()->says('r'));
    ASSERT_TRUE(
        loop->attach(process_id{i + 1}, targets.back()->pid(), targets.back()->start_time()));
    ASSERT_TRUE(loop.until([&] { return loop.added.size() == i + 1; }));
    ASSERT_EQ(loop.added[i].gpu, gpu_id{gpus[i]});
  }
  std::uint64_t id = 0;
  const auto act = [&](command_kind kind) {
    const time_point began = clock::now();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      batch work;
      work.id = ++id;
      work.target = process_id{i + 1};
      work.gpu = gpu_id{gpus[i]};
      work.kind = kind;
      work.count = 1;
      work.queues[0] = loop.added[i].id;
      EXPECT_TRUE(loop->submit(work));
    }
    loop->flush();
    EXPECT_TRUE(
        loop.until([&] { return loop.results.contains(id - 1) && loop.results.contains(id); }));
    return clock::now() - began;
  };
  bool at_once = false;
  for (int attempt = 0; attempt < 10 && !at_once; ++attempt) {
    at_once = act(command_kind::suspend) < 190ms;
    act(command_kind::resume);
  }
  EXPECT_TRUE(at_once) << "one GPU after the other, each time";
}

}  // namespace
}  // namespace sluice::kfd::session_test
