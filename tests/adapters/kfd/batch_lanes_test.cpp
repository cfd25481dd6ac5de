// Lanes on a driver with batch commands, and on one that authorises the debugging process, when
// things happen at the same time: nothing may stay held, and nobody may wait for ever.

#include "batch_lane.hpp"
#include "driver_call.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/lanes.hpp"

namespace sluice::kfd::batch_lanes_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::offline_target;
using test::patience;
using ::testing::HasSubstr;

/// A device with lanes, and what they reported.
class acting_lanes {
 public:
  explicit acting_lanes(const std::string& profile, std::uint32_t gpus = 0)
      : device_({.profile = profile, .gpus = gpus}) {}

  void open(std::function<bool(pid_t, std::uint64_t)> admits = {}) {
    node_ = *device::open(device_.roots().device, messages_to_stderr());
    lanes_ = *lanes::create(*node_, {.admits = std::move(admits), .say = [this](auto sentence) {
                                       const std::scoped_lock held{mutex_};
                                       said_.append(sentence) += '\n';
                                       to_stderr_(sentence);
                                     }});
  }
  std::string said() {
    const std::scoped_lock held{mutex_};
    return said_;
  }
  void command(const std::string& line) const {
    std::ofstream control{device_.root() + "/sim/control"};
    control << line << std::endl;
    ASSERT_TRUE(control.good()) << line;
  }
  void kill_device() const { ::kill(device_.pid(), SIGKILL); }
  roots where() const { return device_.roots(); }
  lanes& operator*() { return *lanes_; }
  lanes* operator->() { return lanes_.get(); }

  void attach(std::uint64_t target, const offline_target& to) {
    ASSERT_TRUE(lanes_->attach(process_id{target}, to.pid(), to.start_time()));
    ASSERT_TRUE(hears(report_kind::queue_added, target));
  }
  bool hears(report_kind kind, std::uint64_t target) {
    return eventually(patience, [&] {
      lanes_->check(clock::now());
      while (lanes_->next(last)) {
        if (last.kind == kind && last.target == process_id{target}) return true;
      }
      return false;
    });
  }
  result<void> submit(std::uint64_t target, command_kind kind) {
    batch work;
    work.id = ++last_id_;
    work.target = process_id{target};
    work.gpu = gpu_id{51110};
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    auto answer = lanes_->submit(work);
    lanes_->flush();
    return answer;
  }

  report last;

 private:
  test::simulated_device device_;
  std::mutex mutex_;
  std::string said_;
  const message_sink to_stderr_ = messages_to_stderr();
  std::unique_ptr<device> node_;
  std::unique_ptr<lanes> lanes_;
  std::uint64_t last_id_ = 0;
};

/// By batch commands or without.
class LanesWithoutTheOwner : public ::testing::TestWithParam<bool> {};

TEST_P(LanesWithoutTheOwner, ReportsAreTakenOnTheLanesThreadOrElseRungFor) {
  const test::simulated_device device({.profile = "mi300x-batch"});
  offline_target target(device.roots());
  ASSERT_TRUE(target.says('r'));
  std::mutex mutex;
  bool takes = true;
  std::vector<report> answers;
  std::set<std::thread::id> takers;
  std::size_t queues = 0;
  const auto node = *device::open(device.roots().device, messages_to_stderr());
  std::unique_ptr<lanes> acting;  // To go first, for its threads use the others.
  const auto take = [&] {
    for (report one; acting->next(one);) {
      if (one.kind == report_kind::queue_added) ++queues;
      if (one.kind == report_kind::completed) answers.push_back(one);
    }
  };
  acting = *lanes::create(*node, {.take_reports =
                                      [&] {
                                        const std::scoped_lock held(mutex);
                                        if (takes) take();
                                        takers.insert(std::this_thread::get_id());
                                        return takes;
                                      },
                                  .batch_commands = GetParam()});
  const auto holds = [&](auto condition) {
    return eventually(patience, [&] {
      const std::scoped_lock held(mutex);
      return condition();
    });
  };
  const auto submit = [&](command_kind kind) {
    batch work;
    work.id = 1;
    work.target = process_id{1};
    work.gpu = gpu_id{51110};
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    const std::scoped_lock held(mutex);
    ASSERT_TRUE(acting->submit(work));
    acting->flush();
  };
  {
    const std::scoped_lock held(mutex);
    take();  // How it acts.
    ASSERT_TRUE(acting->attach(process_id{1}, target.pid(), target.start_time()));
  }
  ASSERT_TRUE(holds([&] { return queues == 1; }));
  for (const auto kind : {command_kind::suspend, command_kind::resume, command_kind::suspend}) {
    const std::size_t before = answers.size();
    submit(kind);
    ASSERT_TRUE(holds([&] { return answers.size() == before + 1; }));
    EXPECT_EQ(answers.back().result.kind, kind);
    EXPECT_EQ(answers.back().result.outcomes[0], outcome::done);
  }
  EXPECT_EQ(takers.count(std::this_thread::get_id()), 0U);
  pollfd ready{acting->ready_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0) << "the owner was woken as well";

  // Its thread is at it already, say.
  {
    const std::scoped_lock held(mutex);
    takes = false;
  }
  submit(command_kind::resume);
  ASSERT_EQ(::poll(&ready, 1, static_cast<int>(patience / 1ms)), 1);
  const std::scoped_lock held(mutex);
  take();
  ASSERT_EQ(answers.size(), 4U);
  EXPECT_EQ(answers.back().result.kind, command_kind::resume);
}

INSTANTIATE_TEST_SUITE_P(ByEitherMechanism, LanesWithoutTheOwner, ::testing::Bool());

// A host that did not wait for the answer had queues of anybody held, whom the rules then refused,
// for as long as the agent lived.
TEST(BatchLanes, HoldNothingOfWhoIsNotAdmittedYetOrEver) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  std::promise<bool> verdict;
  acting.open([&](pid_t, std::uint64_t) { return verdict.get_future().get(); });
  ASSERT_TRUE(acting->attach(process_id{1}, target.pid(), target.start_time()));
  const auto early = acting.submit(1, command_kind::suspend);
  verdict.set_value(false);
  EXPECT_EQ(early.error(), errc::busy);
  ASSERT_TRUE(acting.hears(report_kind::attached, 1));
  EXPECT_NE(acting.last.error.where, plain_error::domain::none);
  EXPECT_TRUE(target.runs(patience));
}

TEST(BatchLanes, ADetachWhileAnUnmapIsOnItsWayLeavesNothingHeld) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  acting.attach(1, target);
  acting.command("delay BATCH_UNMAP_QUEUES 300ms");
  ASSERT_TRUE(acting.submit(1, command_kind::suspend));
  std::this_thread::sleep_for(100ms);  // Into the call; sooner or later must do as well.
  ASSERT_TRUE(acting->detach(process_id{1}));
  ASSERT_TRUE(acting.hears(report_kind::detached, 1));
  EXPECT_TRUE(target.runs(patience));
}

// Invariant: whenever the detach comes, the target runs afterwards.
TEST(BatchLanes, ManyDetachesAtAnyMomentLeaveNothingHeld) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  const auto end = clock::now() + 3s;
  std::uint64_t round = 0;
  for (; round < 6 || clock::now() < end; ++round) {
    acting.attach(round + 1, target);
    ASSERT_TRUE(acting.submit(round + 1, command_kind::suspend));
    const auto until = clock::now() + std::chrono::microseconds{round * 7 % 300};
    while (clock::now() < until) {
    }
    ASSERT_TRUE(acting->detach(process_id{round + 1}));
    ASSERT_TRUE(acting.hears(report_kind::detached, round + 1));
    ASSERT_TRUE(target.runs(patience)) << "in round " << round;
  }
}

// More than one call's worth of queues, of which the first call is refused.
TEST(BatchLanes, ARefusedReleaseOfManyQueuesMapsThemAll) {
  constexpr std::size_t queues = 300;
  acting_lanes acting("mi300x-batch", 2);
  offline_target target(acting.where(), {.queues = queues, .every_gpu = true});
  ASSERT_TRUE(target.says('r'));
  acting.open();
  ASSERT_TRUE(acting->attach(process_id{1}, target.pid(), target.start_time()));
  std::map<gpu_id, batch> all;
  for (std::size_t seen = 0; seen < queues; ++seen) {
    ASSERT_TRUE(acting.hears(report_kind::queue_added, 1));
    batch& work = all[acting.last.queue.gpu];
    work.queues[work.count++] = acting.last.queue.id;
  }
  for (auto& [gpu, work] : all) {
    work.id = static_cast<std::uint64_t>(gpu);
    work.target = process_id{1};
    work.gpu = gpu;
    work.kind = command_kind::suspend;
    ASSERT_TRUE(acting->submit(work));
    acting->flush();
    ASSERT_TRUE(acting.hears(report_kind::completed, 1));
  }
  acting.command("answer FAST_REMAP EIO");
  ASSERT_TRUE(acting->detach(process_id{1}));
  ASSERT_TRUE(acting.hears(report_kind::detached, 1));
  EXPECT_FALSE(acting->stranded());
  EXPECT_TRUE(target.runs(patience));
}

TEST(BatchLanes, WhatComesWhileTheyAreGivenUpWaitsForTheFallBack) {
  acting_lanes acting("mi300x-batch");
  offline_target first(acting.where());
  offline_target second(acting.where());
  ASSERT_TRUE(first.says('r'));
  ASSERT_TRUE(second.says('r'));
  acting.open();
  acting.attach(1, first);
  acting.attach(2, second);
  acting.command("answer BATCH_UNMAP_QUEUES EIO");
  acting.command("delay FAST_REMAP 2s");
  ASSERT_TRUE(acting.submit(1, command_kind::suspend));
  ASSERT_TRUE(eventually(patience, [] {
    return test::any_thread_is_in_ioctl(::getpid(), uapi::AMDKFD_IOC_FAST_REMAP);
  }));
  const auto meanwhile = acting.submit(2, command_kind::suspend);
  EXPECT_FALSE(meanwhile);
  EXPECT_EQ(meanwhile.error(), errc::busy);
  EXPECT_TRUE(acting.hears(report_kind::queue_added, 2)) << "said to run";
  EXPECT_TRUE(second.runs(patience));
  ASSERT_TRUE(
      eventually(patience, [&] { return acting.submit(2, command_kind::suspend).has_value(); }));
  ASSERT_TRUE(acting.hears(report_kind::completed, 2));
  EXPECT_EQ(acting.last.result.outcomes[0], outcome::done);
  EXPECT_TRUE(second.stands_still());
}

TEST(BatchLanes, SayWhatRunsOnlyAfterTheDriverHasAnswered) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  acting.attach(1, target);
  acting.command("answer BATCH_UNMAP_QUEUES EIO");
  acting.command("delay FAST_REMAP 20s");
  ASSERT_TRUE(acting.submit(1, command_kind::suspend));
  ASSERT_TRUE(eventually(patience, [] {
    return test::any_thread_is_in_ioctl(::getpid(), uapi::AMDKFD_IOC_FAST_REMAP);
  }));
  while (acting->next(acting.last)) {
  }
  EXPECT_EQ(acting.said(), "");
  acting.kill_device();
  EXPECT_TRUE(acting.hears(report_kind::completed, 1));
  EXPECT_TRUE(acting->stranded());
  EXPECT_THAT(acting.said(), HasSubstr("stay suspended until this program exits"));
}

TEST(BatchLanes, AQueueUnderANumberUsedAgainRunsAsItIsSaidTo) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  acting.attach(1, target);
  acting.command("delay DBG_TRAP:GET_QUEUE_SNAPSHOT 500ms");
  ASSERT_TRUE(target.obeys('d'));
  ASSERT_TRUE(target.obeys('q'));
  ASSERT_TRUE(acting.submit(1, command_kind::suspend));
  ASSERT_TRUE(acting.hears(report_kind::completed, 1));
  ASSERT_TRUE(acting.hears(report_kind::queue_added, 1));
  EXPECT_TRUE(target.runs(patience));
}

TEST(BatchLanes, AHardwareThatDoesNotMapIsTheOwnersToKnow) {
  acting_lanes acting("mi300x-batch");
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  acting.attach(1, target);
  ASSERT_TRUE(acting.submit(1, command_kind::suspend));
  ASSERT_TRUE(acting.hears(report_kind::completed, 1));
  acting.command("fail-cycle 51110 60ms goes-on");
  std::atomic<bool> enough{false};
  std::thread failing{[&] {
    while (!enough) {
      acting.command("fail-cycle 51110 60ms goes-on");
      std::this_thread::sleep_for(10ms);
    }
  }};
  ASSERT_TRUE(acting->detach(process_id{1}));
  const bool told = eventually(patience, [&] { return acting->stranded(); });
  enough = true;
  failing.join();
  EXPECT_TRUE(told) << "nothing but the end of this process maps it, and nobody says so";
}

// A share of nothing: no marked queue is mapped, so that roles::standing still says that it is
// marked.
class LanesReservation : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto* each : {&first_, &second_, &other_}) ASSERT_TRUE(each->says('r'));
    acting_.open();
    acting_.attach(1, first_);
  }
  error_code answer(double share) {
    EXPECT_TRUE(acting_->reserve(gpu_id{51110}, share));
    EXPECT_TRUE(acting_.hears(report_kind::reserved, 0));
    EXPECT_EQ(acting_.last.gpu, gpu_id{51110});
    return error_code{acting_.last.error};
  }

  acting_lanes acting_{"mi300x-batch"};
  offline_target first_{acting_.where()};
  offline_target second_{acting_.where()};
  offline_target other_{acting_.where()};  // Nobody's to limit.
};

TEST_F(LanesReservation, LimitsTargetsThatAreThereAndThoseThatComeAndNobodyElse) {
  ASSERT_FALSE(answer(0));
  EXPECT_TRUE(first_.stands_still());
  acting_.attach(2, second_);
  EXPECT_TRUE(eventually(patience, [&] {
    report ignored;
    while (acting_->next(ignored)) {
    }
    return second_.stands_still();
  }));
  EXPECT_TRUE(other_.runs(patience));
  ASSERT_FALSE(answer(1));
  EXPECT_TRUE(first_.runs(patience));
  EXPECT_TRUE(second_.runs(patience));
}

TEST_F(LanesReservation, LimitsQueuesThatComeLater) {
  ASSERT_FALSE(answer(0));
  ASSERT_TRUE(first_.stands_still());
  ASSERT_TRUE(first_.obeys('q'));
  ASSERT_TRUE(acting_.hears(report_kind::queue_added, 1));
  EXPECT_TRUE(eventually(patience, [&] {
    report ignored;
    while (acting_->next(ignored)) {
    }
    return first_.stands_still();
  }));
}

TEST_F(LanesReservation, LetsGoOfATargetThatIsDetached) {
  acting_.attach(2, second_);
  ASSERT_FALSE(answer(0));
  ASSERT_TRUE(first_.stands_still());
  ASSERT_TRUE(acting_->detach(process_id{1}));
  ASSERT_TRUE(acting_.hears(report_kind::detached, 1));
  EXPECT_TRUE(first_.runs(patience));
  EXPECT_TRUE(second_.stands_still());
}

TEST_F(LanesReservation, EndsWithTheLanes) {
  ASSERT_FALSE(answer(0));
  ASSERT_TRUE(first_.stands_still());
  ASSERT_TRUE(acting_->stop(patience));
  EXPECT_TRUE(first_.runs(patience));
}

TEST_F(LanesReservation, EndsWithTheFallBack) {
  acting_.attach(2, second_);
  ASSERT_FALSE(answer(0));
  acting_.command("answer BATCH_UNMAP_QUEUES EIO");
  ASSERT_TRUE(acting_.submit(1, command_kind::suspend));
  ASSERT_TRUE(acting_.hears(report_kind::acts_by, 0));
  EXPECT_TRUE(acting_.last.fell_back);
  EXPECT_TRUE(first_.runs(patience));
  EXPECT_TRUE(second_.runs(patience));
  EXPECT_EQ(acting_->reserve(gpu_id{51110}, 0).error(), errc::not_supported);
}

// A queue without a mark would take the slots that were promised to others.
TEST_F(LanesReservation, EndsAndSaysSoWhenAQueueCannotBeMarked) {
  ASSERT_FALSE(answer(0));
  ASSERT_TRUE(first_.stands_still());
  acting_.command("answer BATCH_UNMAP_QUEUES EIO");
  ASSERT_TRUE(acting_->attach(process_id{2}, second_.pid(), second_.start_time()));
  ASSERT_TRUE(acting_.hears(report_kind::reserved, 0));
  EXPECT_EQ(error_code{acting_.last.error}.value(), EIO);
  EXPECT_TRUE(first_.runs(patience));
  EXPECT_TRUE(second_.runs(patience));
  ASSERT_FALSE(answer(0)) << "it may be tried again";
  EXPECT_TRUE(first_.stands_still());
  EXPECT_TRUE(second_.stands_still());
}

TEST_F(LanesReservation, IsNotMadeWhereQueuesCannotBeMarked) {
  acting_.command("answer BATCH_UNMAP_QUEUES EIO");
  EXPECT_EQ(answer(0).value(), EIO);
  EXPECT_TRUE(first_.runs(patience));
  EXPECT_FALSE(answer(0));
  EXPECT_TRUE(first_.stands_still());
}

TEST_F(LanesReservation, TellsWhatTheDriverHasAgainstIt) {
  const auto another = *device::open(acting_.where().device, messages_to_stderr());
  uapi::kfd_ioctl_set_hqd_reservation_args args{51110, 50, 50, 0};
  ASSERT_TRUE(another->call(uapi::AMDKFD_IOC_SET_HQD_RESERVATION, &args));
  EXPECT_EQ(answer(0).value(), EBUSY);
  EXPECT_EQ(answer(1).value(), EBUSY) << "which asks whether it could";
  args = {51110, 0, 100, 0};
  ASSERT_TRUE(another->call(uapi::AMDKFD_IOC_SET_HQD_RESERVATION, &args));
  EXPECT_FALSE(answer(1));
  EXPECT_TRUE(first_.runs(patience));
}

// What it keeps from the slots would stand still, although nobody wants that any more, until the
// lanes end; whether the driver means it for good is not to be known.
TEST_F(LanesReservation, WhoseEndTheDriverRefusesIsEndedAsSoonAsItAllows) {
  ASSERT_FALSE(answer(0));
  ASSERT_TRUE(first_.stands_still());
  acting_.command("answer SET_HQD_RESERVATION EINVAL times=1000000");
  EXPECT_EQ(answer(1).value(), EINVAL);
  EXPECT_TRUE(first_.stands_still());
  acting_.command("no-faults");
  EXPECT_TRUE(first_.runs(patience));
  ASSERT_FALSE(answer(0)) << "it may be made again";
  EXPECT_TRUE(first_.stands_still());
}

TEST_F(LanesReservation, WhoseEndIsRefusedInTheFallBackIsEndedAsSoonAsTheDriverAllows) {
  ASSERT_FALSE(answer(0));
  acting_.command("answer SET_HQD_RESERVATION EPERM times=1000000");
  acting_.command("answer BATCH_UNMAP_QUEUES EIO");
  ASSERT_TRUE(acting_.submit(1, command_kind::suspend));
  ASSERT_TRUE(acting_.hears(report_kind::acts_by, 0));
  ASSERT_TRUE(acting_.hears(report_kind::reserved, 0));
  EXPECT_EQ(error_code{acting_.last.error}.value(), EPERM);
  EXPECT_TRUE(first_.stands_still());
  acting_.command("no-faults");
  EXPECT_TRUE(first_.runs(patience));
}

TEST_F(LanesReservation, HasNoLaneForMoreGpusThanThereCanBe) {
  std::uint32_t last = 1;
  while (last < 1000 && acting_->reserve(gpu_id{last}, 0.5)) ++last;
  EXPECT_LT(last, 100u);
  EXPECT_EQ(acting_->reserve(gpu_id{last}, 0.5).error(), errc::full);
}

/// A GPU's batch lane and nothing around it. It starts only when told, so that a test says what it
/// finds waiting, and in which order.
class alone_lane {
 public:
  explicit alone_lane(const std::string& path)
      : node_(*device::open(path, messages_to_stderr())),
        commands_(*node_),
        ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        lane_(commands_, gpu_id{51110}, bell_,
              unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}) {
    commands_.use();
  }

  /// For queue 0. The number 0 is a remap of the lanes' own.
  void add(std::uint64_t number, command_kind kind, const std::shared_ptr<target_holds>& whose) {
    batch work;
    work.id = number;
    work.gpu = lane_.gpu();
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    ASSERT_TRUE(lane_.submit(work, whose));
    ++added_;
  }
  /// Performs them all. \return their numbers, in the order of the driver calls.
  std::vector<std::uint64_t> perform() {
    lane_.flush();
    EXPECT_TRUE(lane_.start());
    std::vector<std::uint64_t> numbers;
    report answer;
    EXPECT_TRUE(eventually(patience, [&] {
      while (lane_.pop(answer)) {
        EXPECT_EQ(answer.result.outcomes[0], outcome::done) << "of " << answer.result.id;
        numbers.push_back(answer.result.id);
      }
      return numbers.size() == added_;
    }));
    return numbers;
  }

 private:
  std::unique_ptr<device> node_;
  batch_commands commands_;
  unique_fd ready_;
  std::function<bool()> nobody_;
  agent::owner_bell bell_{ready_.get(), nobody_};
  batch_lane lane_;
  std::size_t added_ = 0;
};

/// Two targets at a lane of their own.
class BatchLane : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(first_.says('r'));
    ASSERT_TRUE(second_.says('r'));
  }

  test::simulated_device device_{{.profile = "mi300x-batch"}};
  offline_target first_{device_.roots()};
  offline_target second_{device_.roots()};
  std::shared_ptr<target_holds> of_first_ = std::make_shared<target_holds>(first_.pid());
  std::shared_ptr<target_holds> of_second_ = std::make_shared<target_holds>(second_.pid());
  alone_lane lane_{device_.roots().device};
};

// The scheduler is told that the suspend is done: a remap after it would let run what is believed
// to be held.
TEST_F(BatchLane, ARemapOfTheLanesOwnDoesNotOvertakeTheSuspendAfterIt) {
  lane_.add(0, command_kind::resume, of_first_);
  lane_.add(1, command_kind::suspend, of_first_);
  EXPECT_EQ(lane_.perform(), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_TRUE(first_.stands_still());
  EXPECT_TRUE(of_first_->held.test(0)) << "nobody would map it when the target is let go of";
  EXPECT_TRUE(second_.runs(patience));
}

TEST_F(BatchLane, ARemapOfTheLanesOwnMendsTheSuspendBeforeIt) {
  lane_.add(1, command_kind::suspend, of_first_);
  lane_.add(0, command_kind::resume, of_first_);
  EXPECT_EQ(lane_.perform(), (std::vector<std::uint64_t>{1, 0}));
  EXPECT_TRUE(first_.runs(patience));
}

// Somebody waits for the suspends; the order of different targets' batches means nothing.
TEST_F(BatchLane, SuspendsComeFirstOnBothSidesOfSuchARemap) {
  lane_.add(1, command_kind::resume, of_first_);
  lane_.add(2, command_kind::suspend, of_second_);
  lane_.add(0, command_kind::resume, of_second_);
  lane_.add(3, command_kind::resume, of_second_);
  lane_.add(4, command_kind::suspend, of_first_);
  EXPECT_EQ(lane_.perform(), (std::vector<std::uint64_t>{2, 1, 0, 4, 3}));
  EXPECT_TRUE(first_.stands_still());
  EXPECT_TRUE(second_.runs(patience));
}

class Handshake : public ::testing::TestWithParam<bool> {};

TEST_P(Handshake, IsAnsweredWhereItBeginsWhileTheSessionEnds) {
  acting_lanes acting(GetParam() ? test::profile_text("authority = \"debugger_process\"\n", "")
                                 : std::string{"mi300x"});
  offline_target target(acting.where());
  ASSERT_TRUE(target.says('r'));
  acting.open();
  acting.attach(1, target);
  acting.command("delay DBG_TRAP:DISABLE 500ms");
  ASSERT_TRUE(acting->detach(process_id{1}));
  std::this_thread::sleep_for(100ms);  // Into the call; sooner or later must do as well.
  target.tell('e');                    // It ends its runtime.
  EXPECT_TRUE(acting.hears(report_kind::detached, 1));
  EXPECT_TRUE(target.says('e')) << "the target hangs in the end of its runtime";
}

INSTANTIATE_TEST_SUITE_P(OfTheThreadAndOfTheProcess, Handshake, ::testing::Bool());

}  // namespace
}  // namespace sluice::kfd::batch_lanes_test
