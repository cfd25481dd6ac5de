// A client and a scheduler that speaks the protocol badly.

#include "lying_scheduler.hpp"
#include "open_descriptors.hpp"
#include "served_node.hpp"

#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "sluice/client.h"

namespace sluice::test::hostile_scheduler_test {
namespace {

struct closer {
  void operator()(sluice_connection* client) const { EXPECT_EQ(sluice_client_close(client), 0); }
};

class HostileScheduler : public ::testing::Test {
 protected:
  HostileScheduler() {
    sluice_client_options options{};
    options.size = sizeof options;
    options.socket = scheduler_.path().c_str();
    sluice_connection* made = nullptr;
    EXPECT_EQ(sluice_client_open(&options, &made), 0) << sluice_client_last_error();
    client_.reset(made);
    EXPECT_TRUE(scheduler_.accept(patience));
  }
  sluice_client_status status() const {
    sluice_client_status seen{};
    seen.size = sizeof seen;
    EXPECT_EQ(sluice_client_get_status(client_.get(), &seen), 0);
    return seen;
  }
  bool connected() const {
    return eventually(patience, [&] { return status().connected != 0; });
  }

  const socket_place place_;
  lying_scheduler scheduler_{place_.directory() + "/clients.sock"};
  std::unique_ptr<sluice_connection, closer> client_;
};

// Symptom: each message with two descriptors left one open in the client.
TEST_F(HostileScheduler, KeepsNothingOpenInItsClient) {
  scheduler_.welcome();
  ASSERT_TRUE(connected());
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    sluice_wire_answer nothing{};
    nothing.head = scheduler_.head(SLUICE_WIRE_ANSWER);
    const int fd = scheduler_.page();
    ASSERT_TRUE(scheduler_.send(&nothing, sizeof nothing, {fd, fd, fd}));
  }
  EXPECT_TRUE(eventually(patience, [&] { return scheduler_.unread() == 0; }));
  (void)status();                         // After which the last message has been dealt with.
  EXPECT_LE(open_descriptors(), before);  // Those of the welcome may have been open then.
}

// Symptom: an empty message looks like the end of a connection, and left its descriptor open.
TEST_F(HostileScheduler, KeepsNothingOpenByAnEmptyMessage) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(scheduler_.send(nullptr, 0, {scheduler_.page()}));
    ASSERT_TRUE(scheduler_.accept(patience)) << "it does not come back";
  }
  EXPECT_LE(open_descriptors(), before);  // Those of the welcome may have been open then.
}

// Symptom: a call waited until the client had heard all that a scheduler had to say. Of what waits
// for the client, calls now see it take one part after the other.
TEST_F(HostileScheduler, HoldsNoCallUpByTalkingOnAndOn) {
  scheduler_.welcome();
  ASSERT_TRUE(connected());
  sluice_wire_answer nothing{};
  nothing.head = scheduler_.head(SLUICE_WIRE_ANSWER);
  EXPECT_TRUE(eventually(patience, [&] {
    for (int i = 0; i < 1000; ++i) (void)scheduler_.send(&nothing, sizeof nothing, {});
    std::set<int> left;  // After a call.
    while (scheduler_.unread() > 0) {
      (void)status();
      left.insert(scheduler_.unread());
    }
    left.erase(0);
    // Two there may be where a call comes before the client begins, and finds it at work.
    return left.size() > 2;
  })) << "all at once";
}

// The kernel reports such an end (ECONNRESET) before the message that came before it. A client that
// stopped there never learned why it was refused.
TEST_F(HostileScheduler, TellsWhyItRefusesAlsoWithoutReadingTheHello) {
  scheduler_.hang_up();
  for (int round = 1; round <= 5; ++round) {
    const std::string why = "refused for the reason " + std::to_string(round);
    ASSERT_TRUE(scheduler_.refuse_unread(EAGAIN, why, patience)) << "it does not come back";
    ASSERT_TRUE(eventually(patience, [&] { return status().why == why; })) << status().why;
    EXPECT_EQ(status().error, -EAGAIN);
  }
}

// And the client goes on to the next one.
TEST_F(HostileScheduler, IsLeftForABetterOne) {
  for (const auto type : {SLUICE_WIRE_WELCOME, SLUICE_WIRE_ANSWER, SLUICE_WIRE_HELLO}) {
    sluice_wire_welcome said{};
    said.head = scheduler_.head(static_cast<std::uint32_t>(type));
    // No page, too short, or nothing a scheduler says; then it hangs up.
    (void)scheduler_.send(&said, sizeof said, {});
    (void)scheduler_.send(&said, 3, {});
    scheduler_.hang_up();
    ASSERT_TRUE(scheduler_.accept(patience)) << "it does not come back";
  }
  EXPECT_EQ(status().connected, 0U);
  scheduler_.welcome();
  EXPECT_TRUE(connected());
}

}  // namespace
}  // namespace sluice::test::hostile_scheduler_test
