#include "sluice/null_backend.hpp"

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::null_backend_test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

constexpr process_id trainer{1};
constexpr gpu_id gpu{0xa};
constexpr unsigned discovery = 3;

/// Everything that it says, as words.
class NullBackend : public testing::Test, private backend_listener {
 protected:
  NullBackend() { EXPECT_TRUE(driver_->start(*this)); }

  void see(observation_kind kind, pid_t pid = 100, std::uint32_t queue = 0,
           unsigned source = discovery) {
    observation one;
    one.kind = kind;
    one.pid = pid;
    one.start_time = 7;
    one.queue = driver_queue_id{queue};
    one.gpu = gpu;
    one.type = queue_kind::compute;
    driver_->observed(source, one);
  }
  /// What it says once it is ready; within 10 s at most.
  std::vector<std::string> hear() {
    pollfd ready{driver_->ready_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 10'000), 1) << "it never wakes anybody";
    said_.clear();
    driver_->drain();
    return said_;
  }
  bool silent() {
    pollfd ready{driver_->ready_fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 0;
  }
  result<void> submit(command_kind kind, std::uint64_t id) {
    batch work;
    work.id = id;
    work.target = trainer;
    work.gpu = gpu;
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    return driver_->submit(work);
  }

  const std::unique_ptr<backend> driver_ = make_null_backend({.suspend_cost = 20ms});
  batch_result result_{};

 private:
  void add(const std::string& what, process_id target) {
    said_.push_back(what + " of " + std::to_string(static_cast<std::uint64_t>(target) & 0xff));
  }
  void attached(process_id target, error_code error) override {
    add(error ? error.message() : "attached", target);
  }
  void queue_added(const queue_info& queue) override {
    add("queue " + std::to_string(static_cast<std::uint32_t>(queue.id)), queue.target);
    EXPECT_EQ(queue.gpu, gpu);
  }
  void queue_removed(process_id target, driver_queue_id queue) override {
    add("no queue " + std::to_string(static_cast<std::uint32_t>(queue)), target);
  }
  void completed(const batch_result& result) override {
    result_ = result;
    add("batch " + std::to_string(result.id), result.target);
  }
  void detached(process_id target) override { add("detached", target); }
  void gpu_lost(gpu_id) override { ADD_FAILURE(); }
  void lost(error_code) override { ADD_FAILURE(); }
  void restored() override { ADD_FAILURE(); }

  std::vector<std::string> said_;
};

TEST_F(NullBackend, SaysThatItOnlyPretends) { EXPECT_FALSE(driver_->acts()); }

TEST_F(NullBackend, KnowsTheQueuesThatSourcesSee) {
  EXPECT_EQ(driver_->attach(trainer, 100, 7).error(), errc::unknown_target);
  see(observation_kind::process_seen);
  see(observation_kind::queue_seen, 100, 0);
  EXPECT_TRUE(silent()) << "nobody asked";
  ASSERT_TRUE(driver_->attach(trainer, 100, 7));
  EXPECT_EQ(driver_->attach(trainer, 100, 7).error(), errc::busy);
  EXPECT_THAT(hear(), ElementsAre("attached of 1", "queue 0 of 1"));
  see(observation_kind::queue_seen, 100, 0);
  see(observation_kind::queue_seen, 100, 5);
  EXPECT_THAT(hear(), ElementsAre("queue 5 of 1"));
  see(observation_kind::queue_gone, 100, 0);
  see(observation_kind::process_gone);
  EXPECT_THAT(hear(), ElementsAre("no queue 0 of 1", "detached of 1"));
  EXPECT_EQ(driver_->detach(trainer).error(), errc::unknown_target);
}

TEST_F(NullBackend, DoesEveryBatchAfterWhatItIsAssumedToCost) {
  see(observation_kind::queue_seen);
  ASSERT_TRUE(driver_->attach(trainer, 100, 7));
  hear();
  const time_point asked = clock::now();
  ASSERT_TRUE(submit(command_kind::suspend, 1));
  EXPECT_EQ(submit(command_kind::resume, 2).error(), errc::busy) << "one at a time, as a lane";
  EXPECT_THAT(hear(), ElementsAre("batch 1 of 1"));
  EXPECT_GE(clock::now() - asked, 20ms);
  EXPECT_EQ(result_.finished - result_.started, 20ms);
  EXPECT_EQ(result_.outcomes[0], outcome::done);
  ASSERT_TRUE(submit(command_kind::resume, 2));
  EXPECT_THAT(hear(), ElementsAre("batch 2 of 1"));
  EXPECT_EQ(result_.finished - result_.started, 10ms) << "the default";
}

TEST_F(NullBackend, AnswersWhatIsInFlightWhenItsTargetGoes) {
  see(observation_kind::queue_seen);
  ASSERT_TRUE(driver_->attach(trainer, 100, 7));
  hear();
  ASSERT_TRUE(submit(command_kind::suspend, 1));
  ASSERT_TRUE(driver_->detach(trainer));
  EXPECT_THAT(hear(), ElementsAre("batch 1 of 1", "detached of 1"));
  EXPECT_EQ(submit(command_kind::suspend, 2).error(), errc::unknown_target);
  EXPECT_TRUE(driver_->attach(trainer, 100, 7)) << "it is still seen";
}

TEST_F(NullBackend, TakesAResyncForTheWholeTruthOfItsSource) {
  for (const std::uint32_t queue : {0U, 1U}) see(observation_kind::queue_seen, 100, queue);
  ASSERT_TRUE(driver_->attach(trainer, 100, 7));
  hear();
  see(observation_kind::resync_begin, 0, 0, discovery + 1);
  see(observation_kind::resync_end, 0, 0, discovery + 1);
  EXPECT_TRUE(silent()) << "another source knows nothing of it";
  see(observation_kind::resync_begin, 0);
  see(observation_kind::process_seen);
  see(observation_kind::queue_seen, 100, 1);
  see(observation_kind::resync_end, 0);
  EXPECT_THAT(hear(), ElementsAre("no queue 0 of 1"));
  see(observation_kind::resync_begin, 0);
  see(observation_kind::resync_end, 0);
  EXPECT_THAT(hear(), ElementsAre("detached of 1"));
}

}  // namespace
}  // namespace sluice::null_backend_test
