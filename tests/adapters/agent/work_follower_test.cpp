#include "sluice/agent/work_follower.hpp"

#include "family.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::agent::work_follower_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::patience;

constexpr process_identity first{11, 1};
constexpr process_identity second{12, 1};
constexpr gpu_id gpu{7};

/// What the looks find; the test changes it.
struct scripted {
  std::mutex mutex;
  online_work state = online_work::finished;
  std::uint32_t came = 0;
  int looks = 0;
  bool ended = false;
  bool uses_gpu = true;
  int left = 0;  ///< How often it was no longer followed.
};

class scripted_process final : public followed_process {
 public:
  explicit scripted_process(scripted& by) : by_(by) {}
  ~scripted_process() override {
    const std::scoped_lock held{by_.mutex};
    ++by_.left;
  }
  bool look(time_point, std::vector<work>& found) override {
    const std::scoped_lock held{by_.mutex};
    ++by_.looks;
    if (by_.ended) return false;
    if (!by_.uses_gpu) return true;
    found.push_back({.gpu = gpu, .state = by_.state, .came = std::exchange(by_.came, 0)});
    return true;
  }

 private:
  scripted& by_;
};

class WorkFollower : public ::testing::Test {
 protected:
  void make(duration apart = {}, duration rest = {}) {
    follower_ = std::make_unique<work_follower>(
        work_follower_options{.thread = "test-follow",
                              .apart = apart,
                              .rest = rest,
                              .report = [this](const observation& seen) {
                                const std::scoped_lock held{mutex_};
                                if (refuses_) return ++refused_, false;
                                heard_.push_back(seen);
                                return true;
                              }});
  }
  void follow(const process_identity& who, scripted& by) {
    ASSERT_TRUE(follower_->follow(who, std::make_unique<scripted_process>(by)));
  }
  static void set(scripted& of, online_work state, std::uint32_t came = 0) {
    const std::scoped_lock held{of.mutex};
    of.state = state;
    of.came += came;
  }
  static void end(scripted& of) {
    const std::scoped_lock held{of.mutex};
    of.ended = true;
  }
  static int left(scripted& of) {
    const std::scoped_lock held{of.mutex};
    return of.left;
  }
  static int looks(scripted& of) {
    const std::scoped_lock held{of.mutex};
    return of.looks;
  }
  /// So many more looks have begun, so that what was set before has been seen and reported.
  static bool looked(scripted& of, int more = 2) {
    const int before = looks(of);
    return eventually(patience, [&] { return looks(of) >= before + more; });
  }
  std::vector<observation> heard() {
    const std::scoped_lock held{mutex_};
    return heard_;
  }
  bool hears(std::size_t count) {
    return eventually(patience, [&] { return heard().size() >= count; });
  }
  void refuse(bool so) {
    const std::scoped_lock held{mutex_};
    refuses_ = so;
  }
  int refused() {
    const std::scoped_lock held{mutex_};
    return refused_;
  }

  std::mutex mutex_;
  std::vector<observation> heard_;
  bool refuses_ = false;
  int refused_ = 0;
  scripted one_;
  scripted other_;
  std::unique_ptr<work_follower> follower_;  ///< The last: its thread uses the others.
};

TEST_F(WorkFollower, ReportsTheFirstStateAndThenEachChange) {
  make();
  follower_->pace(100us);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  set(one_, online_work::running, 1);
  ASSERT_TRUE(hears(2));
  set(one_, online_work::finished);
  ASSERT_TRUE(hears(3));
  ASSERT_TRUE(looked(one_, 20));
  const auto all = heard();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].work, online_work::finished);
  EXPECT_EQ(all[0].count, 0U);
  EXPECT_EQ(all[1].work, online_work::running);
  EXPECT_EQ(all[1].count, 1U);
  EXPECT_EQ(all[2].work, online_work::finished);
  EXPECT_EQ(all[2].pid, first.pid);
  EXPECT_EQ(all[2].start_time, first.start_time);
  EXPECT_EQ(all[2].gpu, gpu);
}

TEST_F(WorkFollower, KeepsReportsApartAndLosesNoSubmission) {
  make(1h);
  follower_->pace(100us);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  set(one_, online_work::waiting, 3);
  ASSERT_TRUE(looked(one_, 20));
  EXPECT_EQ(heard().size(), 1U);
  set(one_, online_work::running, 2);
  ASSERT_TRUE(looked(one_));
  follower_->restate();
  ASSERT_TRUE(hears(2));
  EXPECT_EQ(heard()[1].count, 5U);
  EXPECT_EQ(heard()[1].work, online_work::running);
}

TEST_F(WorkFollower, RepeatsWhatWasRefused) {
  make();
  follower_->pace(100us);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  refuse(true);
  set(one_, online_work::running, 2);
  ASSERT_TRUE(eventually(patience, [&] { return refused() > 3; }));
  set(one_, online_work::running, 1);
  ASSERT_TRUE(looked(one_));
  refuse(false);
  ASSERT_TRUE(hears(2));
  EXPECT_EQ(heard()[1].work, online_work::running);
  EXPECT_EQ(heard()[1].count, 3U);
}

TEST_F(WorkFollower, LooksOnlyAtAPaceAndLeavesAllWithoutOne) {
  make();
  follow(first, one_);
  follower_->pace(100us);
  follow(second, other_);
  ASSERT_TRUE(looked(other_));
  follower_->pace(0us);
  EXPECT_TRUE(eventually(patience, [&] { return left(one_) == 1 && left(other_) == 1; }));
  follower_->pace(100us);
  follow(first, one_);
  ASSERT_TRUE(looked(one_));
  const int before = looks(other_);
  ASSERT_TRUE(looked(one_, 20));
  EXPECT_EQ(looks(other_), before) << "it left it";
}

TEST_F(WorkFollower, LeavesOneAndGoesOnWithTheOther) {
  make();
  follower_->pace(100us);
  follow(first, one_);
  follow(second, other_);
  ASSERT_TRUE(looked(one_));
  ASSERT_TRUE(looked(other_));
  follower_->leave(first);
  ASSERT_TRUE(looked(other_, 3));
  const int before = looks(one_);
  ASSERT_TRUE(looked(other_, 20));
  EXPECT_EQ(looks(one_), before);
}

TEST_F(WorkFollower, ReportsTheWorkOfAnEndedProcessAsUnknown) {
  make(1h);
  follower_->pace(100us);
  set(one_, online_work::running);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  end(one_);
  ASSERT_TRUE(hears(2));
  EXPECT_EQ(heard()[1].work, online_work::unknown);
  follow(second, other_);
  ASSERT_TRUE(looked(other_, 20));
  EXPECT_EQ(heard().size(), 3U);
}

TEST_F(WorkFollower, RepeatsTheReportOfAnEndedProcess) {
  make();
  follower_->pace(100us);
  set(one_, online_work::running);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  refuse(true);
  end(one_);
  ASSERT_TRUE(eventually(patience, [&] { return refused() > 3; }));
  EXPECT_EQ(left(one_), 0);
  refuse(false);
  ASSERT_TRUE(hears(2));
  EXPECT_EQ(heard()[1].work, online_work::unknown);
  EXPECT_TRUE(eventually(patience, [&] { return left(one_) == 1; }));
}

// As after an exec.
TEST_F(WorkFollower, ReportsTheWorkOfAGpuThatIsNoLongerUsedAsUnknown) {
  make();
  follower_->pace(100us);
  set(one_, online_work::running);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  const auto use = [&](bool so) {
    const std::scoped_lock held{one_.mutex};
    one_.uses_gpu = so;
  };
  use(false);
  ASSERT_TRUE(hears(2));
  EXPECT_EQ(heard()[1].work, online_work::unknown);
  ASSERT_TRUE(looked(one_, 20));
  EXPECT_EQ(heard().size(), 2U);
  use(true);
  ASSERT_TRUE(hears(3));
  EXPECT_EQ(heard()[2].work, online_work::running);
}

TEST_F(WorkFollower, LooksLessOftenAtWhatHadNoWorkForLong) {
  make({}, 2ms);
  follower_->pace(100us);
  follow(first, one_);
  set(other_, online_work::running);
  follow(second, other_);
  EXPECT_TRUE(eventually(patience, [&] {
    const int before = looks(one_);
    return looked(other_, 100) && looks(one_) - before < 20;
  }));
  set(one_, online_work::running, 1);
  EXPECT_TRUE(hears(3));
}

TEST_F(WorkFollower, BeginsAnewWithAnotherObjectForTheSameProcess) {
  make();
  follower_->pace(100us);
  follow(first, one_);
  ASSERT_TRUE(hears(1));
  follow(first, other_);
  ASSERT_TRUE(hears(2));
  const int before = looks(one_);
  ASSERT_TRUE(looked(other_, 20));
  EXPECT_EQ(looks(one_), before);
  EXPECT_EQ(heard().size(), 2U);
}

}  // namespace
}  // namespace sluice::agent::work_follower_test
