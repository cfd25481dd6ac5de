#include "hold_text.hpp"

#include <gtest/gtest.h>

namespace sluice::nvidia::hold_text_test {
namespace {

TEST(HoldText, ReadsWhatItWrote) {
  const held_process what{.clients = {{.handle = 0xc1d00007, .fd = 24, .disables = 2, .mount = 77},
                                      {.handle = 0xc1d00009, .fd = 3}},
                          .slices = {{.client = 0xc1d00007, .group = 0x5c000015, .own = 2048}},
                          .sharers = {{.pid = 4711, .start_time = 123456}},
                          .kinship = 0xfedc'ba98'7654'3210};
  const auto read = parse_held_process(to_text(what));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->clients, what.clients);
  EXPECT_EQ(read->slices, what.slices);
  EXPECT_EQ(read->sharers, what.sharers);
  EXPECT_EQ(read->kinship, what.kinship);
  EXPECT_TRUE(parse_held_process(""));
}

TEST(HoldText, RefusesWhatItDidNotWrite) {
  for (const auto* text : {"x",
                           "c",
                           "c 1",
                           "c 1 2",
                           "c 1 2 3",
                           "c 1 2 3 4 5",
                           "c 1 2 3 g",
                           "c  1 2 3 4",
                           "c 1 2 3 4\n\n",
                           "c 100000000 2 3 4",
                           "c 1 80000000 3 4",
                           "c 1 2 100000000 4",
                           "s 1 2",
                           "s 1 2 3 4",
                           "s 1 2 10000000000000000",
                           "c -1 2 3 4",
                           "p 1",
                           "p 80000000 1",
                           "k",
                           "k 1 2"})
    EXPECT_FALSE(parse_held_process(text)) << text;
}

}  // namespace
}  // namespace sluice::nvidia::hold_text_test
