#include "kernel_ledger.hpp"

#include <chrono>
#include <map>

#include <gtest/gtest.h>

namespace sluice::demo_tests::kernel_ledger_test {
namespace {

using namespace std::chrono_literals;
using demo::verdict;

struct completion_record {
  sluice::time_point start;
  sluice::time_point end;
  std::int64_t value;
};

/// A queue whose completions the test writes.
struct scripted_queue {
  std::map<std::uint64_t, completion_record> done;
  bool finished(std::uint64_t index) const { return done.count(index) != 0; }
  completion_record completion(std::uint64_t index) const {
    const auto found = done.find(index);
    return found == done.end() ? completion_record{{}, {}, 1} : found->second;
  }
  void finish(std::uint64_t index, sluice::duration start, sluice::duration end) {
    done[index] = {sluice::time_point(start), sluice::time_point(end), 0};
  }
};

struct KernelLedger : testing::Test {
  scripted_queue queue;
  demo::kernel_ledger<scripted_queue> books{queue, 4};
  void submit(std::uint64_t index, sluice::duration length) {
    books.before_submit();
    books.submitted(index, length);
  }
};

TEST_F(KernelLedger, IsCleanWhenEveryKernelRanOnceAndInOrder) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    submit(i, 5ms);
    queue.finish(i, i * 10ms, i * 10ms + 5ms);
  }
  const verdict seen = books.close();
  EXPECT_TRUE(seen.clean());
  EXPECT_EQ(seen.completed, 10u);
}

TEST_F(KernelLedger, CallsAKernelThatNeverFinishedLost) {
  submit(0, 5ms);
  submit(1, 5ms);
  queue.finish(0, 0ms, 5ms);
  const verdict seen = books.close();
  EXPECT_EQ(seen.lost, 1u);
  EXPECT_EQ(seen.completed, 1u);
  EXPECT_FALSE(seen.clean());
}

TEST_F(KernelLedger, NoticesASecondRunAfterTheFirstWasBooked) {
  submit(0, 5ms);
  queue.finish(0, 0ms, 5ms);
  books.collect();
  queue.done[0].value = -1;
  EXPECT_EQ(books.close().repeated, 1u);
}

TEST_F(KernelLedger, NoticesASecondRunBeforeTheQueueForgetsTheSignal) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    submit(i, 1ms);
    queue.finish(i, i * 1ms, i * 1ms + 1ms);
  }
  books.collect();
  queue.done[0].value = -1;
  submit(4, 1ms);
  queue.done[0].value = 0;
  queue.finish(4, 4ms, 5ms);
  EXPECT_EQ(books.close().repeated, 1u);
}

TEST_F(KernelLedger, NoticesAKernelThatBeganBeforeItsPredecessorEnded) {
  submit(0, 5ms);
  submit(1, 5ms);
  queue.finish(0, 0ms, 5ms);
  queue.finish(1, 4ms, 9ms);
  EXPECT_EQ(books.close().out_of_order, 1u);
}

TEST_F(KernelLedger, NoticesAKernelThatEndedTooEarly) {
  submit(0, 5ms);
  queue.finish(0, 0ms, 4ms);
  EXPECT_EQ(books.close().too_short, 1u);
}

TEST_F(KernelLedger, AllowsAKernelToTakeLongerBecauseItWasSuspended) {
  submit(0, 5ms);
  queue.finish(0, 0ms, 500ms);
  EXPECT_TRUE(books.close().clean());
}

TEST_F(KernelLedger, ForgetsWhatIsInFlightWhenTheClientGivesUp) {
  submit(0, 5ms);
  submit(1, 5ms);
  queue.finish(0, 0ms, 5ms);
  const verdict seen = books.abandon();
  EXPECT_TRUE(seen.clean());
  EXPECT_EQ(seen.completed, 1u);
}

}  // namespace
}  // namespace sluice::demo_tests::kernel_ledger_test
