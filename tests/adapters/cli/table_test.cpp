#include "table.hpp"

#include "output.hpp"

#include <gtest/gtest.h>

namespace sluice::cli::table_test {
namespace {

table processes() {
  using enum table::align;
  return table{{{"PID", right}, {"COMMAND", left, true}, {"GPU"}}};
}

TEST(Table, AlignsColumnsAndLeavesNoBlanksAtLineEnds) {
  auto made = processes();
  made.add({"7", "train", "0"});
  made.add({"4242", "a", ""});
  EXPECT_EQ(made.text(0),
            " PID  COMMAND  GPU\n"
            "   7  train    0\n"
            "4242  a\n");
}

TEST(Table, CutsWhatMayShrinkToTheWidth) {
  auto made = processes();
  made.add({"7", "a_rather_long_command", "0"});
  EXPECT_EQ(made.text(20),
            "PID  COMMAND     GPU\n"
            "  7  a_rather_~  0\n");
}

TEST(Table, IsWiderThanAskedRatherThanUnreadable) {
  auto made = processes();
  made.add({"7", "a_rather_long_command", "0"});
  EXPECT_EQ(made.text(5),
            "PID  COMMAND  GPU\n"
            "  7  a_rath~  0\n");
}

TEST(Output, WritesBytesWithThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0B");
  EXPECT_EQ(bytes_text(1023), "1023B");
  EXPECT_EQ(bytes_text(4096), "4.0K");
  EXPECT_EQ(bytes_text(std::uint64_t{192} << 30U), "192G");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 29U), "1.5G");
}

// A process may call itself anything, e.g. what clears the screen.
TEST(Output, SendsNoControlCharactersToTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\n\xc3\xa9"), "a?[2Jb???");
}

}  // namespace
}  // namespace sluice::cli::table_test
