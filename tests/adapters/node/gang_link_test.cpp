#include "gang_link.hpp"

#include "family.hpp"
#include "gang_packets.hpp"
#include "inbox_queue.hpp"
#include "temporary_directory.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::gang_link_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The daemon's end, with this test as sluice-gangs.
class GangLink : public ::testing::Test, public source_host {
 protected:
  GangLink() {
    auto made = reactor::create();
    EXPECT_TRUE(made);
    loop_ = std::move(*made);
    link_ = make_gang_link({.socket = path_,
                            .say = [this](std::string_view line) { said_ += line; },
                            .tell = [this](std::string_view line) { told_ += line; },
                            .alone = &alone_});
    EXPECT_TRUE(link_->start(*this));
  }
  ~GangLink() override { link_->stop(); }

  unique_fd connect() {
    unique_fd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    return made;
  }
  void send(const unique_fd& to, const gang_packet& packet) {
    ASSERT_EQ(::send(to.get(), &packet, sizeof packet, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof packet));
  }
  /// Runs the loop until the condition holds.
  bool until(const std::function<bool()>& condition) {
    return eventually(test::patience, [&] {
      loop_->poll_once();
      inbox_.drain();
      return condition();
    });
  }
  bool got(const unique_fd& by, gang_packet& into) {
    return until([&] {
      return ::recv(by.get(), &into, sizeof into, 0) == static_cast<ssize_t>(sizeof into);
    });
  }
  bool is_closed(const unique_fd& one) {
    return until([&] {
      gang_packet ignored;
      return ::recv(one.get(), &ignored, sizeof ignored, 0) == 0;
    });
  }

  reactor& loop() override { return *loop_; }
  inbox_producer& claim_inbox() override { return inbox_.producer(); }

  const test::temporary_directory made_{test::memory_directory};
  const std::string path_ = made_.path() + "/gangs.sock";
  inbox inbox_{64,
               {.wake = [] {},
                .on_reactor_thread = [] { return true; },
                .deliver = [this](const observation& each, time_point) { seen_.push_back(each); }}};
  std::unique_ptr<reactor> loop_;
  std::vector<observation> seen_;
  std::string said_, told_;
  std::atomic<bool> alone_{false};
  std::unique_ptr<source> link_;
};

TEST_F(GangLink, ShowsWhetherAProgramIsConnected) {
  EXPECT_TRUE(alone_);
  unique_fd own = connect();
  EXPECT_TRUE(until([&] { return !alone_; }));
  own.reset();
  EXPECT_TRUE(until([&] { return alone_.load(); })) << said_;
  link_->stop();
  EXPECT_FALSE(alone_) << "it does not run";
}

TEST_F(GangLink, TellsWhatTheSchedulerWantsNowAndLater) {
  link_->gang_changed({.key = 1, .nodes = 2, .wish = gang_wish::run});
  link_->gang_changed({.key = 2, .nodes = 3, .wish = gang_wish::run});
  link_->gang_changed({.key = 1});
  const unique_fd own = connect();
  gang_packet packet;
  ASSERT_TRUE(got(own, packet));
  EXPECT_EQ(packet.kind, gang_packet_kind::state);
  EXPECT_EQ(packet.key, 2U);
  EXPECT_EQ(packet.nodes, 3U);
  EXPECT_EQ(packet.wish, gang_wish::run);
  link_->gang_changed({.key = 2, .nodes = 3, .wish = gang_wish::hold});
  ASSERT_TRUE(got(own, packet));
  EXPECT_EQ(packet.wish, gang_wish::hold);
  link_->gang_changed({.key = 2});
  ASSERT_TRUE(got(own, packet));
  EXPECT_EQ(packet.wish, gang_wish::gone);
  send(own, {.kind = gang_packet_kind::ask, .number = 7});
  ASSERT_TRUE(got(own, packet));
  EXPECT_EQ(packet.kind, gang_packet_kind::alive);
  EXPECT_EQ(packet.number, 7U);
  EXPECT_THAT(told_, HasSubstr("connected"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(GangLink, PassesOnWhatPeersSayForAMinuteAtMost) {
  const unique_fd own = connect();
  const time_point until_then = clock::now() + 3s;
  send(own, {.kind = gang_packet_kind::heard,
             .key = 5,
             .until_ns = until_then.time_since_epoch().count(),
             .hold = true});
  ASSERT_TRUE(until([&] { return !seen_.empty(); }));
  EXPECT_EQ(seen_[0].kind, observation_kind::gang_heard);
  EXPECT_EQ(seen_[0].group_key, 5U);
  EXPECT_EQ(seen_[0].count, 1U);
  EXPECT_EQ(seen_[0].at, until_then);
  send(own, {.kind = gang_packet_kind::heard,
             .key = 5,
             .until_ns = (clock::now() + 24h).time_since_epoch().count()});
  ASSERT_TRUE(until([&] { return seen_.size() == 2; }));
  EXPECT_EQ(seen_[1].count, 0U);
  EXPECT_LE(seen_[1].at, clock::now() + 1min);
}

TEST_F(GangLink, LetsAllGangsRunWhenTheOtherEndGoes) {
  link_->gang_changed({.key = 5, .nodes = 2, .wish = gang_wish::run});
  {
    const unique_fd own = connect();
    gang_packet packet;
    ASSERT_TRUE(got(own, packet));
  }
  ASSERT_TRUE(until([&] { return !seen_.empty(); }));
  EXPECT_EQ(seen_[0].group_key, 5U);
  EXPECT_EQ(seen_[0].at, time_point{});
  EXPECT_THAT(said_, HasSubstr("not held: sluice-gangs ended"));
  const unique_fd again = connect();
  gang_packet packet;
  EXPECT_TRUE(got(again, packet));
}

TEST_F(GangLink, LeavesWhoSpeaksAnotherLanguage) {
  const unique_fd own = connect();
  gang_packet packet;
  packet.version = gang_packets_version + 1;
  send(own, packet);
  EXPECT_TRUE(is_closed(own));
  EXPECT_THAT(said_, HasSubstr("another release"));
  const unique_fd next = connect();
  ASSERT_EQ(::send(next.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(is_closed(next));
}

TEST_F(GangLink, WaitsForNobodyWhoDoesNotListen) {
  link_->gang_changed({.key = 5, .nodes = 2, .wish = gang_wish::run});
  const unique_fd own = connect();
  ASSERT_TRUE(until([&] { return !told_.empty(); }));
  for (int i = 0; i < 10000; ++i)
    link_->gang_changed(
        {.key = 5, .nodes = 2, .wish = i % 2 == 0 ? gang_wish::hold : gang_wish::run});
  ASSERT_TRUE(until([&] { return !seen_.empty(); }));
  EXPECT_EQ(seen_[0].at, time_point{});
  EXPECT_THAT(said_, HasSubstr("does not take"));
}

TEST_F(GangLink, RefusesASecondOne) {
  const unique_fd own = connect();
  ASSERT_TRUE(until([&] { return !told_.empty(); }));
  const unique_fd second = connect();
  EXPECT_TRUE(is_closed(second));
  EXPECT_THAT(said_, HasSubstr("refused a second program"));
  send(own, {.kind = gang_packet_kind::ask, .number = 7});
  gang_packet packet;
  EXPECT_TRUE(got(own, packet));
}

TEST_F(GangLink, IsForItsUserAlone) {
  struct stat file {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
}

}  // namespace
}  // namespace sluice::gang_link_test
