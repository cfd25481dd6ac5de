// The control socket against peers that mean no good. One thread: the test steps the server's loop.

#include "control_server.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test::control_server_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

class peer {
 public:
  explicit peer(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof to.sun_path - 1);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      throw std::runtime_error{"connect " + path};
  }
  ~peer() { ::close(fd_); }
  peer(const peer&) = delete;
  peer& operator=(const peer&) = delete;

  int fd() const { return fd_; }
  /// \return how much of it went.
  std::size_t say(std::string_view text) const {
    const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
  /// Everything that has come so far. Sets over() at its end.
  const std::string& heard() {
    std::array<char, 65536> room;
    for (;;) {
      const ssize_t got = ::recv(fd_, room.data(), room.size(), 0);
      if (got > 0) text_.append(room.data(), static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) over_ = true;
      if (got <= 0) return text_;
    }
  }
  bool over() {
    (void)heard();
    return over_;
  }

 private:
  int fd_;
  std::string text_;
  bool over_ = false;
};

class ControlServer : public testing::Test {
 protected:
  ControlServer() {
    std::filesystem::create_directory(directory_);
    loop_ = reactor::create().value();
    make({});
  }
  ~ControlServer() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void make(control_server_options with) {
    server_.reset();
    with.socket = path_;
    with.say = [this](std::string_view line) { said_.emplace_back(line); };
    server_ = std::make_unique<control_server>(
        std::move(with), *loop_, [this](std::string_view line, const asker& who) {
          ++answers_;
          asker_ = who;
          return answer_.empty() ? "<" + std::string(line) + ">\n" : answer_;
        });
    loop_->exclusive([this] { server_->owns(true); });
  }
  template <class Condition>
  bool step_until(Condition condition) {
    const time_point end = clock::now() + 10s;
    while (!condition()) {
      if (clock::now() > end) return false;
      (void)loop_->poll_once();
    }
    return true;
  }
  void tick(duration later) {
    loop_->exclusive([&] { server_->tick(clock::now() + later); });
  }

  const std::string directory_ =
      testing::TempDir() + "control_server_" + std::to_string(::getpid());
  const std::string path_ = directory_ + "/control.sock";
  std::unique_ptr<reactor> loop_;
  std::unique_ptr<control_server> server_;
  std::vector<std::string> said_;
  std::string answer_;  // empty: the request
  std::size_t answers_ = 0;
  asker asker_;
};

TEST_F(ControlServer, AnswersOneLineWithOneLineAndKnowsWhoAsks) {
  struct stat found {};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0660U);
  peer asks{path_};
  asks.say("one\n");
  ASSERT_TRUE(step_until([&] { return asks.heard() == "<one>\n"; }));
  EXPECT_EQ(asker_.pid, ::getpid());
  EXPECT_EQ(asker_.user, ::geteuid());
  for (const char each : std::string("two\n")) {
    asks.say({&each, 1});
    (void)loop_->poll_once();
  }
  ASSERT_TRUE(step_until([&] { return asks.heard() == "<one>\n<two>\n"; }));
  std::string many;
  std::string expected = asks.heard();
  for (int i = 0; i < 50; ++i) {
    many += std::to_string(i) + "\n";
    expected += "<" + std::to_string(i) + ">\n";
  }
  asks.say(many);
  EXPECT_TRUE(step_until([&] { return asks.heard() == expected; })) << asks.heard();
  EXPECT_FALSE(asks.over());
  loop_->exclusive([this] { server_->owns(false); });
  EXPECT_TRUE(step_until([&] { return asks.over(); }));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ControlServer, AnswersWhoHasSaidAllThatHeWanted) {
  peer asks{path_};
  asks.say("one\ntwo\n");
  ::shutdown(asks.fd(), SHUT_WR);
  EXPECT_TRUE(step_until([&] { return asks.over(); }));
  EXPECT_EQ(asks.heard(), "<one>\n<two>\n");
}

TEST_F(ControlServer, HangsUpOnALineThatDoesNotEnd) {
  peer asks{path_};
  asks.say(std::string(control_desk::longest_request + 1, 'x'));
  ASSERT_TRUE(step_until([&] { return asks.over(); }));
  EXPECT_THAT(asks.heard(), HasSubstr("at most 4096 bytes"));
  EXPECT_EQ(answers_, 0U);
  peer next{path_};
  next.say(std::string(control_desk::longest_request, 'x') + "\n");
  EXPECT_TRUE(step_until([&] { return next.heard().ends_with(">\n"); }));
}

TEST_F(ControlServer, DoesNotWaitForHalfARequest) {
  peer half{path_};
  peer silent{path_};
  half.say("{\"version\"");
  ASSERT_TRUE(step_until([&] { return server_->connections() == 2; }));
  for (int i = 0; i < 10; ++i) (void)loop_->poll_once();
  tick(4s);
  EXPECT_EQ(server_->connections(), 2U);
  // More bytes are no more time.
  half.say(":");
  for (int i = 0; i < 10; ++i) (void)loop_->poll_once();
  tick(6s);
  EXPECT_TRUE(step_until([&] { return half.over(); }));
  EXPECT_FALSE(silent.over()) << "who says nothing may stay for a minute";
  tick(61s);
  EXPECT_TRUE(step_until([&] { return silent.over(); }));
}

TEST_F(ControlServer, DoesNotWaitForWhoDoesNotRead) {
  answer_ = std::string(4U << 20U, 'x') + "\n";
  peer deaf{path_};
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "{}\n";
  deaf.say(many);
  ASSERT_TRUE(step_until([&] { return answers_ == 1; }));
  for (int i = 0; i < 1000; ++i) (void)loop_->poll_once();
  EXPECT_EQ(answers_, 1U) << "the next one is heard when the answer is taken";
  answer_ = "yes\n";
  peer hears{path_};
  hears.say("{}\n");
  EXPECT_TRUE(step_until([&] { return hears.heard() == "yes\n"; }));
  tick(6s);
  EXPECT_FALSE(hears.over());
  EXPECT_EQ(server_->connections(), 1U);
  EXPECT_TRUE(step_until([&] { return deaf.over(); }));
}

TEST_F(ControlServer, ServesOthersBesideAFlood) {
  peer floods{path_};
  peer asks{path_};
  asks.say("x\n");
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "\n";
  const time_point end = clock::now() + 10s;
  while (asks.heard().empty() && clock::now() < end) {
    floods.say(many);
    (void)floods.heard();
    (void)loop_->poll_once();
  }
  EXPECT_EQ(asks.heard(), "<x>\n");
  EXPECT_LT(answers_, 1000U);
}

TEST_F(ControlServer, TellsWhoIsOneTooMany) {
  make({.most_connections = 4, .kept_for_own = 1, .most_of_a_user = 2});
  std::vector<std::unique_ptr<peer>> all;
  for (int i = 0; i < 4; ++i) all.push_back(std::make_unique<peer>(path_));
  ASSERT_TRUE(step_until([&] { return server_->connections() == 4; }));
  peer fifth{path_};
  ASSERT_TRUE(step_until([&] { return fifth.over(); }));
  EXPECT_THAT(fifth.heard(), HasSubstr(R"("code":"busy")"));
  all.clear();
  ASSERT_TRUE(step_until([&] { return server_->connections() == 0; }));

  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be another user";
  // Anybody may connect here, so that another user can.
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  std::filesystem::permissions(directory_, std::filesystem::perms{0755});
  const auto as = [&](uid_t user) {
    EXPECT_EQ(::seteuid(user), 0);
    auto made = std::make_unique<peer>(path_);
    EXPECT_EQ(::seteuid(0), 0);
    return made;
  };
  all.push_back(as(64003));
  all.push_back(as(64003));
  ASSERT_TRUE(step_until([&] { return server_->connections() == 2; }));
  EXPECT_TRUE(step_until([&, third = as(64003)] { return third->over(); })) << "of one user";
  all.push_back(as(64004));
  ASSERT_TRUE(step_until([&] { return server_->connections() == 3; }));
  EXPECT_TRUE(step_until([&, fourth = as(64005)] { return fourth->over(); })) << "of all others";
  peer own{path_};
  own.say("x\n");
  EXPECT_TRUE(step_until([&] { return own.heard() == "<x>\n"; })) << "one is kept for root";
}

TEST_F(ControlServer, TakesNoDescriptors) {
  const auto open = [] {
    std::size_t count = 0;
    for (int fd = 0; fd < 256; ++fd)
      if (::fcntl(fd, F_GETFD) >= 0) ++count;
    return count;
  };
  peer asks{path_};
  asks.say("x\n");
  ASSERT_TRUE(step_until([&] { return asks.heard() == "<x>\n"; }));
  const std::size_t before = open();
  for (int i = 0; i < 20; ++i) {
    char byte = 'y';
    iovec data{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr to{};
    to.msg_iov = &data;
    to.msg_iovlen = 1;
    to.msg_control = control.data();
    to.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&to);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = STDERR_FILENO;
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    ASSERT_EQ(::sendmsg(asks.fd(), &to, MSG_NOSIGNAL), 1);
  }
  asks.say("\n");
  ASSERT_TRUE(step_until([&] { return asks.heard().ends_with("y>\n"); }));
  // Other threads close what was passed, and may still have closed files of earlier tests since.
  EXPECT_TRUE(step_until([&] { return open() <= before; })) << open() << " instead of " << before;
}

TEST_F(ControlServer, WaitsForASocketThatAnOwnerBeforeItStillServes) {
  control_server next{{.socket = path_, .say = [this](auto line) { said_.emplace_back(line); }},
                      *loop_,
                      [](std::string_view, const asker&) { return std::string("next\n"); }};
  loop_->exclusive([&] { next.owns(true); });
  loop_->exclusive([&] { server_->owns(false); });
  std::optional<peer> asks;
  ASSERT_TRUE(step_until([&] { return std::filesystem::exists(path_); }));
  asks.emplace(path_);
  asks->say("x\n");
  EXPECT_TRUE(step_until([&] { return asks->heard() == "next\n"; }));
  EXPECT_TRUE(said_.empty());
}

TEST_F(ControlServer, SaysOnceThatThereIsNoSocket) {
  loop_->exclusive([&] { server_->owns(false); });
  std::filesystem::create_directory(path_);
  loop_->exclusive([&] { server_->owns(true); });
  tick(1s);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], StartsWith("the control socket " + path_ +
                                   ": a file that is not a socket has this path"));
}

// Symptom: a socket that was removed stayed away until the daemon's next start, without a word.
TEST_F(ControlServer, MakesItsSocketAnewWhereItWasRemoved) {
  std::filesystem::remove(path_);
  tick(2s);
  peer one(path_);
  ASSERT_TRUE(one.say("hello\n"));
  EXPECT_TRUE(step_until([&] { return !one.heard().empty(); }));
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[0], HasSubstr("was removed or replaced"));
  EXPECT_THAT(said_[1], HasSubstr("is now served"));
}

TEST_F(ControlServer, LeavesAnotherOnesSocketAndComesBack) {
  std::filesystem::remove(path_);
  {
    control_server other({.socket = path_}, *loop_,
                         [](std::string_view, const asker&) { return std::string("other\n"); });
    loop_->exclusive([&] { other.owns(true); });
    tick(2s);
    ASSERT_EQ(said_.size(), 2U);
    EXPECT_THAT(said_[1], HasSubstr("is served by another"));
    tick(4s);  // too early to try again
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  ASSERT_FALSE(std::filesystem::exists(path_));
  tick(20s);
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_EQ(said_.size(), 3U);
}

// Symptom: what could not be opened once was never tried again.
TEST_F(ControlServer, TriesAgainWhatCouldNotBeOpened) {
  server_.reset();
  std::filesystem::create_directory(path_);
  make({});
  ASSERT_EQ(said_.size(), 1U);
  tick(5s);
  std::filesystem::remove(path_);
  tick(20s);
  EXPECT_EQ(said_.size(), 2U) << "each once";
  EXPECT_NO_THROW(peer{path_});
}

}  // namespace
}  // namespace sluice::test::control_server_test
