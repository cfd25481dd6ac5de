#include "sluice/kfd/smi_text.hpp"

#include "parser_pieces.hpp"
#include "test_seed.hpp"

namespace sluice::kfd::smi_text_test {
namespace {

using namespace std::string_view_literals;

smi_parser::outcome parse(std::string_view text) {
  smi_parser parser;
  parser.feed(text);
  return parser.finish();
}

TEST(SmiText, ReadsEveryKindInItsOlderAndNewerShape) {
  const auto seen = parse(
      "1 1092:python3\n"
      "2 ff:1000\n"
      "3 7\n"
      "3 8 ring gfx timeout\n"
      "4 8\n"
      "5 1000 -4242 @7f00(200) 4db5->0 0:0 1\n"
      "6 1001 -4242 @7f00(200) 4db5->0 1\n"
      "6 1001 -4242 @7f00(200) 4db5->0 1 -12\n"
      "7 1002 -4242 @7f10(4db5) W\n"
      "8 1003 -4242 @7f10(4db5) M\n"
      "9 1004 -4242 4db5 2\n"
      "a 1005 -4242 4db5\n"
      "a 1006 -4242 4db5 R\n"
      "a 1007 -4242 4db5 \0\n"
      "b 1008 -4242 @7f00(200) 4db5 1\n"
      "c 1092 python3\n"
      "d 1092 a b\n"sv);
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.events.size(), 17U);
  const auto at = [&](std::size_t index) { return seen.events[index]; };
  EXPECT_EQ(at(0).kind, smi_kind::vm_fault);
  EXPECT_EQ(at(0).pid, 4242);
  EXPECT_STREQ(at(0).text.data(), "python3");
  EXPECT_EQ(at(1).value, 0xffU);
  EXPECT_EQ(at(1).second_value, 0x1000U);
  EXPECT_EQ(at(2).kind, smi_kind::gpu_pre_reset);
  EXPECT_EQ(at(2).value, 7U);
  EXPECT_STREQ(at(3).text.data(), "ring gfx timeout");
  EXPECT_EQ(at(4).kind, smi_kind::gpu_post_reset);
  EXPECT_EQ(at(5).address, 0x7f00U);
  EXPECT_EQ(at(5).from, gpu_id{0x4db5});
  EXPECT_EQ(at(7).trigger, 1);
  EXPECT_EQ(at(8).flag, 'W');
  EXPECT_EQ(at(10).kind, smi_kind::queue_eviction);
  EXPECT_EQ(at(10).time_ns, 1004U);
  EXPECT_EQ(at(10).pid, 4242);
  EXPECT_EQ(at(10).from, gpu_id{0x4db5});
  EXPECT_EQ(at(10).trigger, 2);
  EXPECT_EQ(at(11).kind, smi_kind::queue_restore);
  EXPECT_EQ(at(12).flag, 'R');
  EXPECT_EQ(at(13).flag, '\0');
  EXPECT_EQ(at(13).from, gpu_id{0x4db5});
  EXPECT_EQ(at(14).size, 0x200U);
  EXPECT_EQ(at(15).kind, smi_kind::process_start);
  EXPECT_STREQ(at(16).text.data(), "a b");
}

TEST(SmiText, CountsWhatNoDriverWrites) {
  const auto seen = parse(
      "9 1004 -4242 4db5\n"    // an eviction has a trigger
      "a 1006 -4242 4db5 Q\n"  // nobody knows this flag
      "e 1\n"                  // a kind of later years
      "zz\n"
      "\n"
      "4 8 more\n"
      "4 9\n"sv);
  ASSERT_EQ(seen.events.size(), 1U);
  EXPECT_EQ(seen.events[0].value, 9U);
  EXPECT_EQ(seen.problems.count, 6U);
  EXPECT_EQ(seen.problems.first_line, 1U);
  EXPECT_EQ(seen.problems.first_text, "9 1004 -4242 4db5");
}

TEST(SmiText, PutsCutLinesTogetherAndBelievesNoneThatNeverEnds) {
  smi_parser parser;
  parser.feed("3 1");
  EXPECT_TRUE(parser.events().empty());
  parser.feed("2");
  EXPECT_TRUE(parser.events().empty());
  parser.feed("\n4 1");
  ASSERT_EQ(parser.events().size(), 1U);
  EXPECT_EQ(parser.events()[0].value, 0x12U);
  parser.forget();
  const auto rest = parser.finish();  // "4 1" may have been going to be "4 12"
  EXPECT_TRUE(rest.events.empty());
  EXPECT_EQ(rest.problems.count, 1U);
}

TEST(SmiText, KeepsOnlyTheBeginningOfALongName) {
  const auto seen = parse("c 10 " + std::string(90, 'n') + "\n");
  ASSERT_EQ(seen.events.size(), 1U);
  EXPECT_EQ(std::string_view{seen.events[0].text.data()}, std::string(31, 'n'));
}

TEST(SmiText, ReadsPiecesAsTheWhole) {
  const sluice::test::random_seed seed;
  std::mt19937_64 random{seed.value()};
  std::string text;
  for (int each = 0; each < 200; ++each) text += "a 1007 -4242 4db5 \0\n3 7\nrubbish\n"sv;
  const auto seen = parse_in_pieces<smi_parser>(text, random, 11);
  EXPECT_EQ(seen.events.size(), 400U);
  EXPECT_EQ(seen.problems.count, 200U);
  EXPECT_EQ(seen.problems.first_line, 3U);
}

TEST(SmiText, ReadsAHundredMegabytesOfGarbageInBoundedMemory) {
  const auto seen = parse_garbage<smi_parser>(3);
  EXPECT_LE(seen.events.size(), smi_parser::most);
  EXPECT_GT(seen.problems.count, 100'000U);
}

}  // namespace
}  // namespace sluice::kfd::smi_text_test
