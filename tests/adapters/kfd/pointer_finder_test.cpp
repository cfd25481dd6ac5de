#include "pointer_finder.hpp"

#include "mqds_text.hpp"
#include "temporary_directory.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::kfd::pointer_finder_test {
namespace {

using ::testing::ElementsAre;

constexpr gpu_id gpu{4660};
constexpr process_identity one{4242, 7};
constexpr process_identity another{4343, 8};

/// A process with so many compute queues.
work_watch::process with_queues(process_identity who, std::uint64_t change, std::uint32_t count) {
  work_watch::process made{who, change, {}};
  for (std::uint32_t id = 0; id < count; ++id)
    made.queues.push_back({driver_queue_id{id}, gpu, queue_kind::compute, id + 1});
  return made;
}

/// mqds with one compute queue of that process; `pointers` is where its amd_queue_t is.
std::string mqds_text(process_identity who, std::uint32_t ring_page, std::uint32_t pointers) {
  return test::mqds_text(who.pid, {.ring_base = std::uint64_t{ring_page} << 8U,
                                   .priority = 7,
                                   .read_pointer = pointers + 0x80U,
                                   .write_pointer = pointers + 0x38U});
}

online_queue at(std::uint32_t ring_page, std::uint64_t pointers) {
  return {gpu, {pointers + 0x80, pointers + 0x38}, std::uint64_t{ring_page} << 8U, true};
}

class PointerFinder : public ::testing::Test {
 protected:
  void show(const std::string& mqds) const { std::ofstream{where_.debugfs + "/mqds"} << mqds; }

  const test::temporary_directory made_;
  const roots where_{.debugfs = made_.path()};
  std::vector<std::string> said_;
  pointer_finder finder_{where_, [this](std::string_view line) { said_.emplace_back(line); }};
  const online_queue hidden_{.gpu = gpu};
};

TEST_F(PointerFinder, ReadsNothingBeforeSomebodyWantsToKnow) {
  show(mqds_text(one, 0x1000, 0x20000));
  const std::vector online{with_queues(one, 1, 1)};
  ASSERT_EQ(finder_.find(online).size(), 1U);
  EXPECT_THAT(finder_.find(online)[0].queues, ElementsAre(hidden_));
  finder_.want(true);
  const auto found = finder_.find(online);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].who, one);
  EXPECT_THAT(found[0].queues, ElementsAre(at(0x1000, 0x20000)));
}

TEST_F(PointerFinder, ReadsAgainWhenAQueueOfThemComesOrGoes) {
  finder_.want(true);
  show(mqds_text(one, 0x1000, 0x20000) + mqds_text(another, 0x2000, 0x30000));
  std::vector online{with_queues(one, 1, 1), with_queues(another, 1, 1)};
  const auto first = finder_.find(online);
  EXPECT_THAT(first[1].queues, ElementsAre(at(0x2000, 0x30000)));
  show(mqds_text(one, 0x1000, 0x40000) + mqds_text(another, 0x2000, 0x60000));
  EXPECT_EQ(finder_.find(online), first) << "no queue came or went";
  // And until it shows all that sysfs does.
  online[0] = with_queues(one, 2, 2);
  const auto second = finder_.find(online);
  EXPECT_THAT(second[0].queues, ElementsAre(at(0x1000, 0x40000), hidden_));
  EXPECT_NE(second[0], first[0]);
  EXPECT_EQ(second[1], first[1]);
  show(mqds_text(one, 0x1000, 0x40000) + mqds_text(one, 0x3000, 0x50000));
  EXPECT_THAT(finder_.find(online)[0].queues,
              ElementsAre(at(0x1000, 0x40000), at(0x3000, 0x50000)));
}

// The next owner of the pid, too, is another process.
TEST_F(PointerFinder, ForgetsWhoIsNotOnlineAnyMore) {
  finder_.want(true);
  show(mqds_text(one, 0x1000, 0x20000));
  EXPECT_THAT(finder_.find(std::vector{with_queues(one, 1, 1)})[0].queues,
              ElementsAre(at(0x1000, 0x20000)));
  show(mqds_text(one, 0x1000, 0x40000));
  const process_identity next{one.pid, one.start_time + 1};
  EXPECT_THAT(finder_.find(std::vector{with_queues(next, 1, 1)})[0].queues,
              ElementsAre(at(0x1000, 0x40000)));
}

TEST_F(PointerFinder, SaysOnceThatItCannotFindPointers) {
  finder_.want(true);
  ASSERT_EQ(said_.size(), 1U) << "at once, whether there is an online process or not";
  EXPECT_NE(said_[0].find("cannot read " + where_.debugfs + "/mqds: "), std::string::npos)
      << said_[0];
  const std::vector online{with_queues(one, 1, 1)};
  for (int looks = 0; looks < 3; ++looks)
    EXPECT_THAT(finder_.find(online)[0].queues, ElementsAre(hidden_));
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(PointerFinder, ReadsWhatItCouldNotReadOnceItCan) {
  const std::vector online{with_queues(one, 1, 1)};
  EXPECT_TRUE(finder_.can_read());
  for (int looks = 0; looks < 10; ++looks) {
    finder_.want(true);
    EXPECT_FALSE(finder_.can_read());
    EXPECT_THAT(finder_.find(online)[0].queues, ElementsAre(hidden_));
  }
  finder_.want(false);
  EXPECT_FALSE(finder_.can_read());
  show(mqds_text(one, 0x1000, 0x20000));
  // A policy that is told that nothing can be seen asks for nothing.
  finder_.want(false);
  EXPECT_TRUE(finder_.can_read());
  finder_.want(true);
  EXPECT_THAT(finder_.find(online)[0].queues, ElementsAre(at(0x1000, 0x20000)));
}

}  // namespace
}  // namespace sluice::kfd::pointer_finder_test
