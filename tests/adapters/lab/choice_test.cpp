#include "choice.hpp"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::lab::choice_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const std::vector<choice_kind> kinds{
    {"plain", "nothing to say", {}},
    {"tuned",
     "all types",
     {parameter::span("wait", 5ms, 1ms, 1s, "a time"),
      parameter::number("rate", 2, 0, 10, "a rate"), parameter::count("number", 3, 1, 5, "a count"),
      parameter::flag("gang", false, "a flag")}}};

std::string message(std::string_view text) {
  auto given = parse_choice(text);
  if (given.has_error()) return given.error().message;
  const auto kind = resolve(*given, kinds, "--thing");
  return kind.has_error() ? kind.error().message : "";
}

TEST(LabChoice, TakesValuesOfEveryTypeAndFillsInTheRest) {
  auto given = parse_choice("tuned:wait=20ms,rate=1.5,gang=true");
  ASSERT_TRUE(given.has_value());
  const auto kind = resolve(*given, kinds, "--thing");
  ASSERT_TRUE(kind.has_value()) << kind.error().message;
  EXPECT_EQ(*kind, 1u);
  EXPECT_EQ(given->values.span("wait"), 20ms);
  EXPECT_EQ(given->values.number("rate"), 1.5);
  EXPECT_EQ(given->values.count("number"), 3);
  EXPECT_TRUE(given->values.flag("gang"));
}

TEST(LabChoice, SaysWhatIsWrong) {
  EXPECT_THAT(message("other"),
              HasSubstr("--thing: unknown name 'other'; available: plain, tuned"));
  EXPECT_THAT(message("tuned:rate=11"), HasSubstr("rate is 11; it must be 0 to 10"));
  EXPECT_THAT(message("tuned:wait=3"), HasSubstr("wait is 3; it must be a duration"));
  EXPECT_THAT(message("tuned:speed=1"), HasSubstr("speed is not a parameter of tuned"));
  EXPECT_THAT(message("plain:a=1"), HasSubstr("it has no parameters"));
  EXPECT_THAT(message("tuned:rate"),
              HasSubstr("invalid parameter 'rate' in 'tuned:rate': expected KEY=VALUE"));
  EXPECT_THAT(message("tuned:rate=1,rate=2"), HasSubstr("sets rate more than once"));
  EXPECT_THAT(message(":rate=1"), HasSubstr("':rate=1' has no name"));
}

}  // namespace
}  // namespace sluice::lab::choice_test
