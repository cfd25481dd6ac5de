// Every counter of a scheduler is in status and in the line of the log.

#include "status_json.hpp"

#include <string>

#include <gtest/gtest.h>

#include "sluice/statistics_text.hpp"

namespace sluice::statistics_test {
namespace {

/// The n-th counter of the table is n.
statistics numbered() {
  statistics made;
  std::uint64_t number = 0;
  for (const counter_row& each : counter_rows) made.*each.of = ++number;
  return made;
}

boost::json::object counted(const statistics& seen) {
  const auto whole = status_json({}, seen, history{{}}, {}, {});
  return whole.at("statistics").as_object();
}

TEST(Statistics, AreAllInStatus) {
  const auto made = counted(numbered());
  std::uint64_t number = 0;
  for (const counter_row& each : counter_rows) {
    const auto& in = each.place == counter_place::failure ? made.at("failures").as_object()
                     : each.place == counter_place::limit ? made.at("limits").as_object()
                                                          : made;
    ASSERT_TRUE(in.contains(each.name)) << each.name;
    EXPECT_EQ(in.at(each.name).to_number<std::uint64_t>(), ++number) << each.name;
  }
  for (const histogram_row& each : histogram_rows)
    EXPECT_TRUE(made.contains(each.name)) << each.name;
}

TEST(Statistics, AreAllInTheLineOfTheLog) {
  const std::string line = statistics_line(numbered(), node_mode::enforce) + " ";
  std::uint64_t number = 0;
  for (const counter_row& each : counter_rows) {
    const std::string words = " " + std::string(each.name) + "=" + std::to_string(++number) + " ";
    EXPECT_NE(line.find(words), line.npos) << words << "in" << line;
  }
}

TEST(Statistics, LeaveOfTheLineWhatIsUsuallyZero) {
  EXPECT_EQ(statistics_line({}, node_mode::enforce),
            "statistics: mode=enforce turns=0 begins=0 processes=0 queues=0 attaches=0 suspends=0 "
            "suspended_now=0 resumes=0 driver_calls=0");
}

}  // namespace
}  // namespace sluice::statistics_test
