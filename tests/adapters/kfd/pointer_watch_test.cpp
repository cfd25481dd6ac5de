#include "pointer_watch.hpp"

#include "fake_queue.hpp"
#include "family.hpp"
#include "inbox_queue.hpp"
#include "temporary_directory.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::kfd::pointer_watch_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::fake_queue;
using test::family;
using test::patience;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr gpu_id gpu_a{0x1234};
constexpr gpu_id gpu_b{0x5678};

int wait_here(int) {
  for (;;) ::pause();
}

class PointerView : public ::testing::Test {
 protected:
  void occupy(unsigned units) const {
    const auto folder = sysfs_ + "/proc/" + std::to_string(target_.pid()) + "/stats_4660";
    std::filesystem::create_directories(folder);
    std::ofstream{folder + "/cu_occupancy"} << units << "\n";
  }
  void make(std::vector<online_queue> queues) {
    auto made =
        pointer_view::make({identity_of(target_.pid()).value(), 0, std::move(queues)}, sysfs_);
    ASSERT_TRUE(made) << made.error().message();
    view_ = std::move(*made);
  }
  /// What a look says of one GPU, 5 ms after the one before.
  online_work look(std::size_t place = 0) {
    now_ += 5ms;
    found_.clear();
    EXPECT_TRUE(view_->look(now_, found_));
    return found_.at(place).state;
  }
  /// That came between the last look and the one before.
  std::uint64_t packets(std::size_t place = 0) const { return found_.at(place).came; }

  fake_queue queue_;  // Before the process that shares it.
  fake_queue second_;
  family target_{wait_here};
  const test::temporary_directory made_;
  const std::string sysfs_ = made_.path();
  std::unique_ptr<pointer_view> view_;
  std::vector<pointer_view::work> found_;
  time_point now_{1h};
};

TEST_F(PointerView, FollowsAPacketToTheEndOfItsKernel) {
  make({queue_.on(gpu_a)});
  EXPECT_EQ(look(), online_work::finished);
  EXPECT_EQ(packets(), 0U);
  queue_.submit();
  EXPECT_EQ(look(), online_work::waiting);
  EXPECT_EQ(packets(), 1U);
  queue_.consume();
  for (int looks = 0; looks < 100; ++looks) ASSERT_EQ(look(), online_work::running);
  queue_.finish();
  EXPECT_EQ(look(), online_work::finished);
  EXPECT_EQ(packets(), 0U);
  EXPECT_EQ(view_->unreadable(), 0U);
}

TEST_F(PointerView, CountsPacketsThatCameAndEndedBetweenTwoLooksRoundTheRing) {
  make({queue_.on(gpu_a)});
  look();
  for (unsigned round = 0; round < 3 * fake_queue::packets; ++round) {
    queue_.submit();
    queue_.submit();
    queue_.consume();
    queue_.finish();
    ASSERT_EQ(look(), online_work::finished);
    ASSERT_EQ(packets(), 2U);
  }
}

TEST_F(PointerView, TakesWhatWasThereAtTheFirstLookForOldUnlessItWaits) {
  for (int i = 0; i < 5; ++i) queue_.submit();
  queue_.consume();
  for (int i = 0; i < 3; ++i) second_.submit();
  make({queue_.on(gpu_a), second_.on(gpu_b)});
  EXPECT_EQ(look(0), online_work::running);
  EXPECT_EQ(packets(0), 0U);
  EXPECT_EQ(packets(1), 3U);
  EXPECT_EQ(found_[1].state, online_work::waiting);
}

TEST_F(PointerView, SaysOfAGpuWhatItsBusiestQueueSays) {
  make({queue_.on(gpu_a), second_.on(gpu_a)});
  look();
  queue_.submit();
  queue_.consume();
  EXPECT_EQ(look(), online_work::running);
  second_.submit();
  EXPECT_EQ(look(), online_work::waiting);
  EXPECT_EQ(packets(), 1U);
  second_.consume();
  second_.finish();
  EXPECT_EQ(look(), online_work::running);
  EXPECT_EQ(found_.size(), 1U);
}

TEST_F(PointerView, AsksTheOccupancyWhereThePacketHasNoSignal) {
  occupy(8);
  make({queue_.on(gpu_a)});
  queue_.submit(false);
  queue_.consume();
  EXPECT_EQ(look(), online_work::running);
  occupy(0);
  EXPECT_EQ(look(), online_work::running) << "once is not enough: it may wait for its turn";
  occupy(4);
  EXPECT_EQ(look(), online_work::running);
  occupy(0);
  look();
  EXPECT_EQ(look(), online_work::finished);
  // What was seen before the next packet proves nothing of it.
  queue_.submit(false);
  queue_.consume();
  EXPECT_EQ(look(), online_work::running);
  EXPECT_EQ(look(), online_work::finished);
}

TEST_F(PointerView, KnowsNoMoreThanConsumedWithoutSignalAndOccupancy) {
  make({queue_.on(gpu_a)});
  queue_.submit(false);
  queue_.consume();
  EXPECT_EQ(look(), online_work::consumed);
  queue_.submit();
  queue_.consume();
  queue_.finish();
  EXPECT_EQ(look(), online_work::finished);
}

TEST_F(PointerView, FindsNoPacketWhereTheQueueSaysAnotherRing) {
  online_queue other = queue_.on(gpu_a);
  other.ring_base += 0x1000;
  make({other});
  queue_.submit();
  queue_.consume();
  queue_.finish();
  EXPECT_EQ(look(), online_work::consumed);
}

TEST_F(PointerView, ClaimsNoEndForQueuesItCannotRead) {
  make({queue_.on(gpu_a), {.gpu = gpu_a}, {.gpu = gpu_b}});
  EXPECT_EQ(look(), online_work::consumed);
  EXPECT_EQ(found_[1].state, online_work::unknown);
  EXPECT_EQ(view_->unreadable(), 2U);
  queue_.submit();
  EXPECT_EQ(look(), online_work::waiting);
}

TEST_F(PointerView, EndsWithTheProcess) {
  auto target = std::make_unique<family>(wait_here);
  auto made =
      pointer_view::make({identity_of(target->pid()).value(), 0, {queue_.on(gpu_a)}}, sysfs_);
  ASSERT_TRUE(made);
  view_ = std::move(*made);
  queue_.submit();
  EXPECT_EQ(look(), online_work::waiting);
  target.reset();
  EXPECT_TRUE(eventually(patience, [&] { return !view_->look(now_, found_); }));
  EXPECT_FALSE(pointer_view::make({identity_of(target_.pid()).value(), 0, {}}, sysfs_).has_error());
}

/// The thread, with the test as reactor.
class PointerWatch : public PointerView {
 protected:
  /// As discovery does it: the pace, and then the processes.
  void begin(duration every = 200us) {
    watch_.pace(every);
    watch_.set({online_process{identity_of(target_.pid()).value(), 0, {queue_.on(gpu_a)}}});
  }
  bool hears(online_work work) {
    return eventually(patience, [&] {
      inbox_.drain();
      return !heard_.empty() && heard_.back().work == work;
    });
  }

  /// Whether a kernel on it is not told of within a time that is long for a look.
  bool goes_unheard(fake_queue& queue) {
    inbox_.drain();
    heard_.clear();
    queue.submit();
    queue.consume();
    queue.finish();
    std::this_thread::sleep_for(30ms);
    inbox_.drain();
    return heard_.empty();
  }

  std::vector<observation> heard_;
  inbox inbox_{
      4096, inbox::hooks{[] {}, [] { return false; },
                         [this](const observation& each, time_point) { heard_.push_back(each); }}};
  std::string said_;
  pointer_watch watch_{{.sysfs = sysfs_, .debugfs = sysfs_},
                       inbox_.producer(),
                       [this](std::string_view line) { said_ += std::string(line) + "\n"; }};
};

TEST_F(PointerWatch, TellsWhatChangesAndNothingElse) {
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  queue_.submit();
  queue_.submit();
  ASSERT_TRUE(hears(online_work::waiting));
  queue_.consume();
  ASSERT_TRUE(hears(online_work::running));
  queue_.finish();
  ASSERT_TRUE(hears(online_work::finished));
  EXPECT_EQ(heard_.front().pid, target_.pid());
  EXPECT_EQ(heard_.front().gpu, gpu_a);
  std::uint32_t packets = 0;
  for (const observation& each : heard_) packets += each.count;
  EXPECT_EQ(packets, 2U);
  const auto told = heard_.size();
  std::this_thread::sleep_for(50ms);
  inbox_.drain();
  EXPECT_EQ(heard_.size(), told);
  EXPECT_EQ(said_, "");
}

TEST_F(PointerWatch, TellsNoMoreThanOnceInAMillisecond) {
  begin(20us);
  ASSERT_TRUE(hears(online_work::finished));
  const time_point start = clock::now();
  std::uint32_t submitted = 0;
  // Three reports show a distance between them.
  while (clock::now() < start + 100ms || (heard_.size() < 3 && clock::now() < start + patience)) {
    queue_.submit();
    queue_.consume();
    queue_.finish();
    ++submitted;
    inbox_.drain();
  }
  ASSERT_TRUE(eventually(patience, [&] {
    inbox_.drain();
    std::uint32_t packets = 0;
    for (const observation& each : heard_) packets += each.count;
    return packets == submitted;
  }));
  const auto spent = std::chrono::ceil<std::chrono::milliseconds>(clock::now() - start).count();
  EXPECT_LE(heard_.size(), static_cast<std::size_t>(spent) + 2);
  EXPECT_GT(heard_.size(), 2U);
}

TEST_F(PointerWatch, LooksOnlyWhileItIsAskedToAndThenBeginsAnew) {
  begin(0us);
  std::this_thread::sleep_for(20ms);
  inbox_.drain();
  EXPECT_THAT(heard_, ::testing::IsEmpty());
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  watch_.pace(0us);
  EXPECT_TRUE(eventually(patience, [this] { return goes_unheard(queue_); }));
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  EXPECT_EQ(heard_.front().count, 0U) << "it came while nobody looked";
  queue_.submit();
  EXPECT_TRUE(hears(online_work::waiting));
}

// As where its client comes, and leaves again.
TEST_F(PointerWatch, LeavesAProcessAndBeginsAnewWithIt) {
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  watch_.set({});
  EXPECT_TRUE(eventually(patience, [this] { return goes_unheard(queue_); }));
  watch_.set({online_process{identity_of(target_.pid()).value(), 0, {queue_.on(gpu_a)}}});
  ASSERT_TRUE(hears(online_work::finished));
  EXPECT_EQ(heard_.front().count, 0U) << "it came while nobody looked";
  queue_.submit();
  EXPECT_TRUE(hears(online_work::waiting));
}

TEST_F(PointerWatch, TellsEverythingAgainWhenAsked) {
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  heard_.clear();
  watch_.restate();
  EXPECT_TRUE(hears(online_work::finished));
}

TEST_F(PointerWatch, FollowsChangesOfTheQueuesAndSaysOnceWhatItCannotRead) {
  begin();
  ASSERT_TRUE(hears(online_work::finished));
  const auto who = identity_of(target_.pid()).value();
  for (std::uint64_t change = 1; change < 4; ++change)
    watch_.set({{who, change, {queue_.on(gpu_a), {.gpu = gpu_b}}}});
  EXPECT_TRUE(eventually(patience, [&] {
    inbox_.drain();
    return !heard_.empty() && heard_.back().gpu == gpu_b;
  }));
  EXPECT_THAT(said_, HasSubstr("cannot be read for 1 of 2 queues"));
  EXPECT_EQ(said_.find("cannot"), said_.rfind("cannot"));
  second_.submit();
  watch_.set({{who, 4, {second_.on(gpu_b)}}});
  EXPECT_TRUE(hears(online_work::waiting));
  watch_.set({});
  EXPECT_TRUE(eventually(patience, [this] { return goes_unheard(second_); }));
}

}  // namespace
}  // namespace sluice::kfd::pointer_watch_test
