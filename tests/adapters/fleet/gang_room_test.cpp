#include "gang_room.hpp"

#include "etcd.hpp"

#include <chrono>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace sluice::fleet::gang_room_test {
namespace {

using namespace std::chrono_literals;

constexpr duration fresh = 3s;

/// What node a knows of a gang on the nodes a and b.
class GangRoom : public ::testing::Test {
 protected:
  GangRoom() { room.wants(gang_wish::run); }

  void hear(const std::string& node, const std::optional<std::string>& value) {
    room.hears(node, value, now);
  }
  /// Node a writes, and hears it later.
  void beat(duration way = {}) {
    const std::string value = room.beat(now, now);
    now += way;
    hear("a", value);
  }
  /// Node a hears all nodes, and its own state as it wants it.
  void complete(const std::string& of_b = "1 run 2") {
    hear("b", of_b);
    beat();
    beat();
  }

  time_point now{1h};
  gang_room room{"a", 2, fresh, 1};
};

TEST_F(GangRoom, MayBeHeldOnceAllNodesBeat) {
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  beat();
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  EXPECT_EQ(room.problem(now), "1 of 2 nodes take part: a");
  hear("b", "1 run 2");
  EXPECT_EQ(room.decide(now), gang_room::verdict{}) << "the others think that this one refuses";
  beat();
  EXPECT_EQ(room.decide(now), (gang_room::verdict{.until = now + fresh}));
}

TEST_F(GangRoom, TrustsNoBeatOfUnknownAge) {
  room.reads("b", "1 hold 2");
  beat();
  beat();
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  EXPECT_EQ(room.problem(now), "etcd has had no new word from b");
  complete("2 hold 2");
  EXPECT_EQ(room.decide(now), (gang_room::verdict{.until = now + fresh, .hold = true}));
}

TEST_F(GangRoom, CountsTheOwnBeatFromWhenTheSchedulerLived) {
  complete();
  const time_point sent = now;
  beat(1s);
  hear("b", "2 run 2");
  EXPECT_EQ(room.decide(now).until, sent + fresh);
  now += 1s;
  hear("a", room.beat(sent, now));
  EXPECT_EQ(room.decide(now).until, sent + fresh);
}

TEST_F(GangRoom, MayNotBeHeldWhileAnotherProgramHasTheName) {
  complete();
  ASSERT_NE(room.decide(now), gang_room::verdict{});
  hear("a", "12345 run 2");
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  EXPECT_EQ(room.problem(now),
            "another program writes as node a; give each node a --node of its own");
  now += fresh;
  complete();
  EXPECT_NE(room.decide(now), gang_room::verdict{});
}

TEST_F(GangRoom, EndsWithTheOldestBeat) {
  complete();
  const time_point last = now;
  now += 1s;
  beat();
  EXPECT_EQ(room.decide(now).until, last + fresh);
  now = last + fresh;
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
}

TEST_F(GangRoom, IsHeldWhileAnotherNodeWantsIt) {
  complete("1 hold 2");
  EXPECT_TRUE(room.decide(now).hold);
  hear("b", "2 run 2");
  EXPECT_FALSE(room.decide(now).hold);
  // The own wish needs no answer.
  room.wants(gang_wish::hold);
  beat();
  EXPECT_FALSE(room.decide(now).hold);
  EXPECT_EQ(room.decide(now).until, now + fresh);
}

TEST_F(GangRoom, MayNotBeHeldIfAnotherNodeRefusesOrLeaves) {
  for (const char* value : {"1 refused 2", "1", "", " hold 2", "1 HOLD 2", "1 run", "1 run 3"}) {
    complete();
    ASSERT_NE(room.decide(now), gang_room::verdict{});
    hear("b", value);
    EXPECT_EQ(room.decide(now) == gang_room::verdict{}, std::string(value) != " hold 2") << value;
  }
  complete();
  hear("b", std::nullopt);
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  EXPECT_EQ(room.problem(now), "1 of 2 nodes take part: a");
}

// The others need not know what bars this node: else neither would ever begin.
TEST_F(GangRoom, IsNotBarredByTheOwnRefusal) {
  room.wants(gang_wish::refused);
  complete();
  EXPECT_EQ(room.decide(now).until, now + fresh);
}

TEST_F(GangRoom, MayNotBeHeldWithAnotherNodeThanItHas) {
  complete();
  hear("c", "1 hold 2");
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
  hear("c", std::nullopt);
  EXPECT_EQ(room.decide(now).until, now + fresh);
  // Nor with the right number of others, and without itself.
  hear("a", std::nullopt);
  hear("c", "1 run 2");
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
}

// Beats come back, but with what this node wanted before.
TEST_F(GangRoom, LastsNoLongerWhileTheOwnStateIsNotThere) {
  complete();
  const time_point until = room.decide(now).until;
  now += 1s;
  const std::string old = room.beat(now, now);
  room.wants(gang_wish::hold);
  hear("a", old);
  hear("b", "2 run 2");
  EXPECT_EQ(room.decide(now).until, until);
  beat();
  EXPECT_EQ(room.decide(now).until, now + fresh);
}

TEST_F(GangRoom, RefusesWhateverItWantsWhileItDoesNotHearAll) {
  EXPECT_EQ(room.state(now), "refused 2");
  complete();
  EXPECT_EQ(room.state(now), "run 2");
  room.wants(gang_wish::hold);
  EXPECT_EQ(room.state(now), "hold 2");
  now += fresh;
  EXPECT_EQ(room.state(now), "refused 2");
  // What others want is no reason to be deaf.
  complete("2 refused 2");
  EXPECT_EQ(room.state(now), "hold 2");
  hear("b", std::nullopt);
  EXPECT_EQ(room.state(now), "refused 2");
}

TEST_F(GangRoom, ForgetsWhatIsOutOfDate) {
  complete();
  room.forget();
  EXPECT_EQ(room.decide(now), gang_room::verdict{});
}

TEST_F(GangRoom, IgnoresWhatIsNoNameOfANode) {
  complete();
  for (const char* each : {"", "/", "b/state", "a b", "c\n", "\x1b[2J"}) hear(each, "1 hold 2");
  EXPECT_EQ(room.decide(now).until, now + fresh);
}

TEST(Etcd, ReadsEndpoints) {
  const auto words = [](std::string_view text) {
    const auto read = parse_endpoint(text);
    return read ? read->host + " " + read->port : "none";
  };
  EXPECT_EQ(words("https://etcd.example:2380"), "etcd.example 2380");
  EXPECT_EQ(words("https://10.0.0.1/"), "10.0.0.1 2379");
  EXPECT_EQ(words("https://[fd00::1]:2379"), "fd00::1 2379");
  for (const char* wrong :
       {"", "http://a:1", "https://", "https://:2379", "https://a:", "https://a:b", "https://a:0",
        "https://a:65536", "https://a/b", "https://user@a", "https://fd00::1"})
    EXPECT_EQ(words(wrong), "none") << wrong;
}

TEST(Etcd, ConvertsToBase64AndBack) {
  for (const std::string each : {"", "a", "ab", "abc", "abcd", "/sluice/test/gangs/1/2/"})
    EXPECT_EQ(from_base64(to_base64(each)), each);
  EXPECT_EQ(to_base64("sluice"), "c2x1aWNl");
  for (const char* wrong : {"*", "c2x"}) EXPECT_EQ(from_base64(wrong), "") << wrong;
}

}  // namespace
}  // namespace sluice::fleet::gang_room_test
