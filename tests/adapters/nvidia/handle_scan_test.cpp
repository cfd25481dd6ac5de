#include "handle_scan.hpp"

#include <array>

#include <gtest/gtest.h>

namespace sluice::nvidia::handle_scan_test {
namespace {

TEST(HandleScan, TakesOnlyAClientBesideAnObject) {
  const std::array<std::uint32_t, 16> words{
      0xc1d00007, 0x5c000005, 0,           // a pair
      0x5c000009, 0xc1d00007, 0,           // the other way round
      0xc1d00000, 0,          0xc1d00001,  // clients alone
      0x5c000008, 0,          0xc1d00003,  // an object beside a client
      0x5bffffff, 0xc1e00000, 0x5c000001,  // below all objects; no client
      0,
  };
  handle_scan scan;
  scan.feed(words);
  const auto found = scan.found();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].client, 0xc1d00007);
  EXPECT_EQ(found[0].places, 2U);
  EXPECT_EQ(found[0].newest, 0x5c000009U);
  EXPECT_EQ(found[1].client, 0xc1d00001);
}

TEST(HandleScan, CountsOverAllPieces) {
  handle_scan scan;
  const std::array<std::uint32_t, 2> rare{0xc1d00001, 0x5c0000ff};
  const std::array<std::uint32_t, 2> frequent{0xc1d00002, 0x5c000001};
  scan.feed(rare);
  for (int time = 0; time < 3; ++time) scan.feed(frequent);
  scan.feed({});
  ASSERT_EQ(scan.found().size(), 2U);
  EXPECT_EQ(scan.found().front().client, 0xc1d00002);
  EXPECT_EQ(scan.found().front().places, 3U);
}

// A question about it would leave lines in the kernel's log.
TEST(HandleScan, LeavesOutWhatIsRareBesideTheFirst) {
  handle_scan scan;
  for (int time = 0; time < 40; ++time)
    scan.feed(std::array<std::uint32_t, 2>{0xc1d00002, 0x5c000001});
  for (int time = 0; time < 4; ++time)
    scan.feed(std::array<std::uint32_t, 2>{0xc1d00001, 0x5c0000ff});
  ASSERT_EQ(scan.found().size(), 1U);
  scan.feed(std::array<std::uint32_t, 2>{0xc1d00001, 0x5c0000ff});
  EXPECT_EQ(scan.found().size(), 2U);
}

TEST(HandleScan, ReturnsFewOfMany) {
  handle_scan scan;
  for (std::uint32_t each = 0; each < 1000; ++each)
    scan.feed(std::array<std::uint32_t, 2>{0xc1d00000 + each, 0x5c000001});
  scan.feed(std::array<std::uint32_t, 2>{0xc1d00300, 0x5c000001});
  EXPECT_EQ(scan.found().size(), handle_scan::most_candidates);
  EXPECT_EQ(scan.found().front().client, 0xc1d00300);
}

}  // namespace
}  // namespace sluice::nvidia::handle_scan_test
