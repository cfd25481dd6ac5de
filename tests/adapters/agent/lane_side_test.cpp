/// make_lane_side(): what a driver gets that supplies what is done to one target.

#include "sluice/agent/lane_side.hpp"

#include "eventually.hpp"
#include "family.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"

namespace sluice::agent::lane_side_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::patience;
using ::testing::HasSubstr;

constexpr gpu_id the_gpu{7};

/// What the driver's state is, for the test and for the targets' threads.
struct hardware {
  std::mutex mutex;
  std::vector<queue_info> queues{{.id = driver_queue_id{1}, .gpu = the_gpu},
                                 {.id = driver_queue_id{2}, .gpu = the_gpu}};
  std::set<std::uint32_t> suspended;
  std::string record = "the record";
  std::map<std::uint32_t, outcome> refused;  ///< Queues.
  std::atomic<bool> refuses_close{false};
  std::atomic<bool> outlives_process{false};
  std::atomic<bool> hangs{false};
  std::atomic<bool> looks_until_order{false};
  std::atomic<bool> record_hangs{false};
  std::atomic<int> resume_errno{0};
  std::atomic<int> closed{0};
  unique_fd news{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

class fake_target final : public lane_target {
 public:
  explicit fake_target(hardware& of) : of_(of) {}

  void yield_to(std::function<bool()> has_order) override { has_order_ = std::move(has_order); }
  result<std::vector<queue_info>> open() override { return list(); }
  int event_fd() const noexcept override { return of_.news.get(); }
  result<std::vector<queue_info>> refresh() override {
    eventfd_t count = 0;
    ::eventfd_read(of_.news.get(), &count);
    while (of_.hangs || (of_.looks_until_order && !has_order_())) ::usleep(1000);
    return list();
  }
  std::string record() const override {
    while (of_.record_hangs) ::usleep(1000);
    const std::scoped_lock held{of_.mutex};
    return of_.record;
  }
  int act(command_kind what, gpu_id, std::span<const driver_queue_id> queues,
          std::span<outcome> outcomes) override {
    while (of_.hangs) ::usleep(1000);
    if (what == command_kind::resume && of_.resume_errno != 0) return of_.resume_errno;
    const std::scoped_lock held{of_.mutex};
    for (std::size_t index = 0; index < queues.size(); ++index) {
      const auto id = static_cast<std::uint32_t>(queues[index]);
      if (const auto found = of_.refused.find(id); found != of_.refused.end()) {
        outcomes[index] = found->second;
        continue;
      }
      if (what == command_kind::suspend)
        of_.suspended.insert(id);
      else
        of_.suspended.erase(id);
      outcomes[index] = outcome::done;
    }
    return 0;
  }
  result<void> set_quantum(gpu_id, duration length) override {
    if (length == 13us) return errc::full;
    return {};
  }
  bool close() noexcept override {
    if (of_.refuses_close) return false;
    const std::scoped_lock held{of_.mutex};
    of_.suspended.clear();
    ++of_.closed;
    return true;
  }
  bool outlives_process() const noexcept override { return of_.outlives_process; }

 private:
  result<std::vector<queue_info>> list() const {
    const std::scoped_lock held{of_.mutex};
    return of_.queues;
  }
  hardware& of_;
  std::function<bool()> has_order_;
};

class fake_book final : public hold_book {
 public:
  std::optional<number> enter(const hold& what) noexcept override {
    const std::scoped_lock held{mutex_};
    if (full) return {};
    entries_[next_] = what;
    return next_++;
  }
  void strike(number which) noexcept override {
    std::this_thread::sleep_for(strike_takes);
    const std::scoped_lock held{mutex_};
    entries_.erase(which);
  }
  std::vector<hold> entries() const {
    const std::scoped_lock held{mutex_};
    std::vector<hold> all;
    for (const auto& [index, what] : entries_) all.push_back(what);
    return all;
  }
  std::atomic<bool> full{false};
  duration strike_takes{};

 private:
  mutable std::mutex mutex_;
  std::map<number, hold> entries_;
  number next_ = 0;
};

class LaneSide : public ::testing::Test {
 protected:
  static constexpr process_id id{5};

  void begin(duration stuck_after = 10s, std::function<bool(pid_t, std::uint64_t)> admits = {}) {
    auto made = make_lane_side(
        {.acting = {"fake", {capability::set_quantum}},
         .make_target = [this](process_id, pid_t,
                               std::uint64_t) { return std::make_unique<fake_target>(gpu_); },
         .follow = [this](pid_t pid, std::uint64_t) -> result<std::unique_ptr<followed_process>> {
           ++opened_;
           if (pid == unreadable) return error_code{EMFILE, boost::system::system_category()};
           return std::make_unique<resting_process>();
         },
         .begins_together =
             [this](command_kind what, gpu_id gpu, std::size_t targets) {
               together_.emplace_back(what, gpu, targets);
             },
         .stuck_after = stuck_after},
        {.admits = std::move(admits),
         .may_follow =
             [this](pid_t pid, std::uint64_t) {
               ++asked_;
               return pid != forbidden;
             },
         .holds = &book_,
         .say =
             [this](std::string_view words) {
               const std::scoped_lock held{mutex_};
               said_ += words;
             }});
    ASSERT_TRUE(made);
    side_ = std::move(*made);
  }
  void TearDown() override {
    gpu_.hangs = gpu_.record_hangs = gpu_.refuses_close = false;
    if (side_) {
      EXPECT_TRUE(side_->stop(patience));
      EXPECT_TRUE(gpu_.suspended.empty());
    }
    EXPECT_TRUE(book_.entries().empty());
  }
  /// The next report of that kind; others are dropped.
  std::optional<report> next(report_kind kind) {
    for (const time_point end = clock::now() + patience; clock::now() < end;) {
      report out;
      while (side_->next(out))
        if (out.kind == kind) return out;
      (void)side_->check(clock::now());
      pollfd ready{side_->ready_fd(), POLLIN, 0};
      ::poll(&ready, 1, 10);
    }
    return {};
  }
  void attach(process_id as = id) {
    ASSERT_TRUE(side_->attach(as, target_.pid(), *start_time_of(target_.pid())));
    const auto answer = next(report_kind::attached);
    ASSERT_TRUE(answer);
    ASSERT_EQ(error_code{answer->error}, error_code{});
    ASSERT_TRUE(next(report_kind::queue_added));
    ASSERT_TRUE(next(report_kind::queue_added));
  }
  result<void> submit(command_kind kind, const std::vector<std::uint32_t>& queues,
                      process_id of = id, bool flush = true) {
    batch work;
    work.id = ++batches_;
    work.target = of;
    work.gpu = the_gpu;
    work.kind = kind;
    work.count = static_cast<std::uint16_t>(queues.size());
    std::ranges::transform(queues, work.queues.begin(),
                           [](auto each) { return driver_queue_id{each}; });
    const auto taken = side_->submit(work);
    if (flush) side_->flush();
    return taken;
  }
  std::vector<outcome> outcomes_of(command_kind kind, const std::vector<std::uint32_t>& queues) {
    if (!submit(kind, queues)) return {};
    const auto answer = next(report_kind::completed);
    if (!answer || answer->result.id != batches_) return {};
    const auto begin = answer->result.outcomes.begin();
    last_errno_ = answer->result.driver_errno;
    return {begin, begin + answer->result.count};
  }
  using done_list = std::vector<outcome>;

  static constexpr pid_t unreadable = 71;
  static constexpr pid_t forbidden = 72;
  class resting_process final : public followed_process {
   public:
    bool look(time_point, std::vector<work>& found) override {
      found.push_back({.gpu = the_gpu, .state = online_work::finished});
      return true;
    }
  };

  int opened_ = 0;  ///< Processes to follow.
  int asked_ = 0;   ///< The same, of may_follow.
  hardware gpu_;
  fake_book book_;
  std::mutex mutex_;
  std::string said_;
  using beginning = std::tuple<command_kind, gpu_id, std::size_t>;
  std::vector<beginning> together_;
  const test::family target_{[](int) {
    for (;;) ::pause();
    return 0;
  }};
  std::unique_ptr<acting_side> side_;
  std::uint64_t batches_ = 0;
  int last_errno_ = 0;
};

TEST_F(LaneSide, SaysFirstWhatItActsBy) {
  begin();
  report out;
  ASSERT_TRUE(side_->next(out));
  EXPECT_EQ(out.kind, report_kind::acts_by);
  EXPECT_EQ(out.acting.name(), "fake");
}

TEST_F(LaneSide, SuspendsAndResumesAndKeepsTheBook) {
  begin();
  attach();
  EXPECT_TRUE(book_.entries().empty());
  EXPECT_EQ(outcomes_of(command_kind::suspend, {1, 2}), (done_list{outcome::done, outcome::done}));
  EXPECT_EQ(gpu_.suspended.size(), 2U);
  ASSERT_EQ(book_.entries().size(), 1U);
  EXPECT_EQ(book_.entries()[0].text(), "the record");
  EXPECT_EQ(book_.entries()[0].pid, target_.pid());
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
  EXPECT_EQ(book_.entries().size(), 1U) << "one is still suspended";
  EXPECT_EQ(outcomes_of(command_kind::resume, {2}), done_list{outcome::done});
  EXPECT_TRUE(book_.entries().empty());
}

TEST_F(LaneSide, AnnouncesHowManyTargetsBeginTogether) {
  constexpr process_id other{6};
  begin();
  attach();
  attach(other);
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  EXPECT_TRUE(together_.empty()) << "one alone";
  ASSERT_TRUE(submit(command_kind::suspend, {1, 2}, id, false));
  ASSERT_TRUE(submit(command_kind::suspend, {1, 2}, other, false));
  side_->flush();
  EXPECT_EQ(together_, (std::vector{beginning{command_kind::suspend, the_gpu, 2}}));
  ASSERT_TRUE(next(report_kind::completed));
  ASSERT_TRUE(next(report_kind::completed));
  ASSERT_TRUE(submit(command_kind::resume, {1, 2}, id, false));
  ASSERT_TRUE(submit(command_kind::suspend, {1}, other, false));
  side_->flush();
  EXPECT_EQ(together_.size(), 1U) << "they do not do the same";
  ASSERT_TRUE(next(report_kind::completed));
  ASSERT_TRUE(next(report_kind::completed));
  ASSERT_EQ(outcomes_of(command_kind::resume, {1, 2}), (done_list{outcome::done, outcome::done}));
  ASSERT_TRUE(submit(command_kind::resume, {1, 2}, other));
  ASSERT_TRUE(next(report_kind::completed));
}

TEST_F(LaneSide, EntersARecordThatHasChanged) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  {
    const std::scoped_lock held{gpu_.mutex};
    gpu_.record = "another";
  }
  ASSERT_EQ(outcomes_of(command_kind::suspend, {2}), done_list{outcome::done});
  ASSERT_EQ(book_.entries().size(), 1U);
  EXPECT_EQ(book_.entries()[0].text(), "another");
}

TEST_F(LaneSide, KeepsInTheBookWhatIsInDoubtAndNotWhatWasNotDone) {
  begin();
  attach();
  gpu_.refused[1] = outcome::invalid;
  EXPECT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::invalid});
  EXPECT_TRUE(book_.entries().empty());
  gpu_.refused[1] = outcome::failed;
  EXPECT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::failed});
  EXPECT_EQ(book_.entries().size(), 1U);
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::failed});
  EXPECT_EQ(book_.entries().size(), 1U);
  gpu_.refused.clear();
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
  EXPECT_TRUE(book_.entries().empty());
}

TEST_F(LaneSide, KeepsInTheBookWhatAResumeSaysNothingOf) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  gpu_.resume_errno = EIO;
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::failed});
  EXPECT_EQ(last_errno_, EIO);
  EXPECT_EQ(book_.entries().size(), 1U);
  gpu_.resume_errno = 0;
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
}

TEST_F(LaneSide, StrikesAHoldBeforeItReportsItsQueuesGone) {
  book_.strike_takes = 50ms;
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1, 2}), (done_list{outcome::done, outcome::done}));
  {
    const std::scoped_lock held{gpu_.mutex};
    gpu_.queues.clear();
    gpu_.suspended.clear();
  }
  ::eventfd_write(gpu_.news.get(), 1);
  ASSERT_TRUE(next(report_kind::queue_removed));
  EXPECT_TRUE(book_.entries().empty());
}

TEST_F(LaneSide, KeepsQuantaInTheBook) {
  begin();
  attach();
  ASSERT_TRUE(side_->set_quantum(id, the_gpu, 50us));
  ASSERT_TRUE(next(report_kind::quantum_set));
  EXPECT_EQ(book_.entries().size(), 1U);
  ASSERT_TRUE(side_->set_quantum(id, the_gpu, 0us));
  ASSERT_TRUE(next(report_kind::quantum_set));
  EXPECT_TRUE(eventually(patience, [&] { return book_.entries().empty(); }));
}

TEST_F(LaneSide, SuspendsNothingThatItCannotWriteDown) {
  begin();
  attach();
  book_.full = true;
  EXPECT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::invalid});
  EXPECT_EQ(last_errno_, ENOSPC);
  EXPECT_TRUE(gpu_.suspended.empty());
}

TEST_F(LaneSide, TakesOneBatchOfATargetAtATime) {
  begin();
  attach();
  gpu_.hangs = true;
  EXPECT_TRUE(submit(command_kind::suspend, {1}));
  EXPECT_EQ(submit(command_kind::resume, {1}).error(), errc::busy);
  gpu_.hangs = false;
  EXPECT_TRUE(next(report_kind::completed));
  batch stranger;
  stranger.target = process_id{99};
  EXPECT_EQ(side_->submit(stranger).error(), errc::unknown_target);
}

TEST_F(LaneSide, ResumesWhatItLetsGoOf) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  EXPECT_TRUE(side_->detach(id));
  ASSERT_TRUE(next(report_kind::detached));
  EXPECT_TRUE(gpu_.suspended.empty());
  EXPECT_TRUE(book_.entries().empty());
  EXPECT_EQ(side_->detach(id).error(), errc::unknown_target);
  attach();  // and can have it again
}

TEST_F(LaneSide, SaysThatATargetHasEnded) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  ::kill(target_.pid(), SIGKILL);
  EXPECT_TRUE(next(report_kind::detached));
}

TEST_F(LaneSide, RefusesWhoIsNotThereOrNotAdmitted) {
  begin(10s, [](pid_t, std::uint64_t) { return false; });
  ASSERT_TRUE(side_->attach(id, target_.pid(), *start_time_of(target_.pid())));
  auto answer = next(report_kind::attached);
  ASSERT_TRUE(answer);
  EXPECT_EQ(error_code{answer->error}, errc::not_managed);
  ASSERT_TRUE(side_->attach(id, target_.pid(), 1));
  answer = next(report_kind::attached);
  ASSERT_TRUE(answer);
  EXPECT_EQ(error_code{answer->error}, errc::unknown_target);
  EXPECT_EQ(side_->attach(id, ::getpid(), 1).error(), errc::not_managed);
}

TEST_F(LaneSide, HearsOfQueuesThatComeAndGoAndAreOthers) {
  begin();
  attach();
  {
    const std::scoped_lock held{gpu_.mutex};
    gpu_.queues[0].incarnation = 2;
    gpu_.queues[1] = {.id = driver_queue_id{3}, .gpu = the_gpu};
  }
  ::eventfd_write(gpu_.news.get(), 1);
  std::multiset<std::uint32_t> gone;
  std::multiset<std::uint32_t> come;
  for (int count = 0; count < 2; ++count) {
    const auto one = next(report_kind::queue_removed);
    ASSERT_TRUE(one);
    gone.insert(static_cast<std::uint32_t>(one->queue.id));
  }
  for (int count = 0; count < 2; ++count) {
    const auto one = next(report_kind::queue_added);
    ASSERT_TRUE(one);
    come.insert(static_cast<std::uint32_t>(one->queue.id));
  }
  EXPECT_EQ(gone, (std::multiset<std::uint32_t>{1, 2}));
  EXPECT_EQ(come, (std::multiset<std::uint32_t>{1, 3}));
}

TEST_F(LaneSide, LetsALookKnowThatAnOrderWaits) {
  begin();
  attach();
  gpu_.looks_until_order = true;
  ::eventfd_write(gpu_.news.get(), 1);
  const auto is_looking = [this] {
    pollfd news{gpu_.news.get(), POLLIN, 0};
    return ::poll(&news, 1, 0) == 0;
  };
  ASSERT_TRUE(eventually(patience, is_looking));
  EXPECT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
}

TEST_F(LaneSide, SetsQuantaOrSaysWhyNot) {
  begin();
  attach();
  ASSERT_TRUE(side_->set_quantum(id, the_gpu, 50us));
  auto answer = next(report_kind::quantum_set);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->quantum, 50us);
  EXPECT_EQ(error_code{answer->error}, error_code{});
  ASSERT_TRUE(side_->set_quantum(id, the_gpu, 13us));
  answer = next(report_kind::quantum_set);
  ASSERT_TRUE(answer);
  EXPECT_EQ(error_code{answer->error}, errc::full);
  EXPECT_EQ(side_->set_quantum(process_id{99}, the_gpu, 50us).error(), errc::unknown_target);
  EXPECT_EQ(side_->reserve(the_gpu, 0.5).error(), errc::not_supported);
}

TEST_F(LaneSide, ReportsTheGpuOfACallThatHangs) {
  begin(50ms);
  attach();
  gpu_.hangs = true;
  ASSERT_TRUE(submit(command_kind::suspend, {1}));
  const auto lost = next(report_kind::gpu_lost);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->gpu, the_gpu);
  EXPECT_FALSE(side_->stop(10ms)) << "a call that hangs is not waited for";
  gpu_.hangs = false;
  const std::scoped_lock held{mutex_};
  EXPECT_THAT(said_, HasSubstr("driver call timed out after"));
}

// Then an order that follows is not even begun.
TEST_F(LaneSide, ReportsTheGpuOfALookThatHangs) {
  begin(50ms);
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  gpu_.hangs = true;
  ::eventfd_write(gpu_.news.get(), 1);
  const auto lost = next(report_kind::gpu_lost);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->gpu, the_gpu);
  gpu_.hangs = false;
  EXPECT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
}

TEST_F(LaneSide, ReportsTheGpuOfARecordThatHangs) {
  begin(50ms);
  attach();
  gpu_.record_hangs = true;
  ASSERT_TRUE(submit(command_kind::suspend, {1}));
  auto lost = next(report_kind::gpu_lost);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->gpu, the_gpu);
  gpu_.record_hangs = false;
  ASSERT_TRUE(next(report_kind::completed));
  ASSERT_EQ(outcomes_of(command_kind::resume, {1}), done_list{outcome::done});
  (void)side_->check(clock::now());  // It is found again.
  gpu_.record_hangs = true;
  ASSERT_TRUE(side_->set_quantum(id, the_gpu, 50us));
  lost = next(report_kind::gpu_lost);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->gpu, the_gpu);
  gpu_.record_hangs = false;
  EXPECT_TRUE(next(report_kind::quantum_set));
}

TEST_F(LaneSide, ForgetsAProcessThatEndedThoughTheDriverRefuses) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  gpu_.refuses_close = true;
  ::kill(target_.pid(), SIGKILL);
  EXPECT_TRUE(next(report_kind::detached));
  EXPECT_TRUE(book_.entries().empty());
  gpu_.suspended.clear();
}

TEST_F(LaneSide, IsStrandedByAProcessThatEndedIfOthersShareWhatIsHeld) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  gpu_.refuses_close = gpu_.outlives_process = true;
  ::kill(target_.pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return side_->stranded(); }));
  EXPECT_EQ(book_.entries().size(), 1U) << "for the guardian";
  gpu_.refuses_close = false;
  EXPECT_TRUE(next(report_kind::detached));
  EXPECT_FALSE(side_->stranded());
}

TEST_F(LaneSide, IsStrandedWhileTheDriverRefusesToLetGo) {
  begin();
  attach();
  ASSERT_EQ(outcomes_of(command_kind::suspend, {1}), done_list{outcome::done});
  gpu_.refuses_close = true;
  ASSERT_TRUE(side_->detach(id));
  EXPECT_TRUE(eventually(patience, [&] { return side_->stranded(); }));
  EXPECT_EQ(book_.entries().size(), 1U) << "for the guardian";
  gpu_.refuses_close = false;
  EXPECT_TRUE(next(report_kind::detached));
  EXPECT_FALSE(side_->stranded());
}

TEST_F(LaneSide, FollowsAProcessUntilTheHostLeavesIt) {
  begin();
  ASSERT_TRUE(side_->follow(70, 1, 1ms));
  ASSERT_TRUE(side_->follow(70, 1, 2ms));
  EXPECT_EQ(opened_, 1);
  const auto seen = next(report_kind::observed);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->seen.pid, 70);
  EXPECT_EQ(seen->seen.work, online_work::finished);
  ASSERT_TRUE(side_->follow(70, 1, {}));
  ASSERT_TRUE(side_->follow(70, 1, 1ms));
  EXPECT_EQ(opened_, 2);
}

// The pace changes often.
TEST_F(LaneSide, AsksNowAndThenAboutAProcessThatItCannotFollow) {
  begin();
  for (const duration every : {1ms, 2ms, 3ms}) {
    EXPECT_EQ(side_->follow(unreadable, 1, every).error().value(), EMFILE);
    EXPECT_EQ(side_->follow(forbidden, 1, every).error(), errc::not_managed);
  }
  EXPECT_EQ(opened_, 1);
  EXPECT_EQ(asked_, 2);
  // After a while, without the host: the cause may have passed.
  (void)side_->check(clock::now() + 1min);
  EXPECT_EQ(opened_, 2);
  EXPECT_EQ(asked_, 4);
  {
    const std::scoped_lock held{mutex_};
    EXPECT_THAT(said_, HasSubstr("cannot look at the work of online process 71"));
    EXPECT_EQ(said_.find("cannot look"), said_.rfind("cannot look"));
  }
  ASSERT_TRUE(side_->follow(unreadable, 1, {}));
  EXPECT_FALSE(side_->follow(unreadable, 1, 1ms));
  EXPECT_EQ(opened_, 3);
}

}  // namespace
}  // namespace sluice::agent::lane_side_test
