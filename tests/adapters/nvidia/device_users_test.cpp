#include "device_users.hpp"

#include "eventually.hpp"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::nvidia::device_users_test {
namespace {

using namespace std::chrono_literals;

/// A file that stands for the device, open here and in a child that also has it open by itself.
class DeviceUsers : public testing::Test {
 protected:
  DeviceUsers() {
    own_ = unique_fd{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    int ends[2];
    int orders[2];
    EXPECT_EQ(::pipe(ends), 0);
    EXPECT_EQ(::pipe(orders), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(orders[1]);
      for (char order = 0;;) {
        const int another = ::open(path_.c_str(), O_RDWR);
        (void)!::write(ends[1], &another, sizeof another);
        if (::read(orders[0], &order, 1) != 1) ::_exit(0);
      }
    }
    answers_ = unique_fd{ends[0]};
    orders_ = unique_fd{orders[1]};
    ::close(ends[1]);
    ::close(orders[0]);
    another_ = answer();
    pidfd_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, child_, 0))};
  }
  ~DeviceUsers() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::unlink(path_.c_str());
  }

  int answer() const {
    int number = -1;
    EXPECT_EQ(::read(answers_.get(), &number, sizeof number), ssize_t{sizeof number});
    return number;
  }
  void open_another() const {
    EXPECT_EQ(::write(orders_.get(), "o", 1), 1);
    EXPECT_GE(answer(), 0);
  }
  auto count_of_child(const std::vector<remote_fd>& all) const {
    return std::ranges::count(all, child_, &remote_fd::pid);
  }

  const std::string path_ = testing::TempDir() + "nvidiactl" + std::to_string(::getpid());
  unique_fd own_;
  unique_fd pidfd_;
  unique_fd answers_;
  unique_fd orders_;
  pid_t child_ = 0;
  int another_ = -1;  ///< The child's own.
};

TEST_F(DeviceUsers, ListsDescriptorsOfADevice) {
  const auto device = device_file::at(path_);
  ASSERT_TRUE(device);
  std::vector<int> fds;
  ASSERT_TRUE(device->list(child_, fds));
  EXPECT_EQ(fds.size(), 2U);  // the inherited one, too
  EXPECT_NE(std::ranges::find(fds, another_), fds.end());
  const auto users = list_users(*device);
  EXPECT_NE(std::ranges::find(users, remote_fd{child_, another_}), users.end());
  EXPECT_EQ(std::ranges::find(users, ::getpid(), &remote_fd::pid), users.end());
  EXPECT_FALSE(device_file::at(path_ + "_of_nobody"));
}

TEST_F(DeviceUsers, AreListedAgainWhenAProcessGetsAnotherDescriptor) {
  user_list users{device_file::at(path_).value()};
  const auto before = users.now(0s);
  EXPECT_EQ(count_of_child(*before), 2);
  EXPECT_EQ(users.now(1h), before);
  open_another();
  EXPECT_EQ(users.now(1h), before) << "as old as was asked for";
  // Before Linux 6.2 it takes up to a second.
  EXPECT_TRUE(
      test::eventually(test::patience, [&] { return count_of_child(*users.now(0s)) == 3; }));
  const auto after = users.now(0s);
  EXPECT_EQ(users.now(0s), after);
  EXPECT_EQ(*after, list_users(users.of()));
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
  EXPECT_EQ(count_of_child(*users.now(0s)), 0);
}

TEST_F(DeviceUsers, AreKeptAfterAReadThatStops) {
  user_list users{device_file::at(path_).value()};
  const auto before = users.now(0s);
  open_another();
  int questions = 0;
  const auto stops = [&] { return ++questions > 3; };
  EXPECT_FALSE(users.now(0s, stops));
  EXPECT_FALSE(users.now(0s, stops));
  EXPECT_LE(questions, 6) << "it stops at once";
  EXPECT_EQ(users.now(1h, stops), before);
  EXPECT_TRUE(
      test::eventually(test::patience, [&] { return count_of_child(*users.now(0s)) == 3; }));
  std::vector<int> fds;
  EXPECT_EQ(users.of().list(child_, fds, stops).error().value(), ECANCELED);
}

TEST_F(DeviceUsers, IncludeAProcessAsSoonAsItBegins) {
  user_list users{device_file::at(path_).value()};
  (void)users.now(0s);
  const pid_t begun = ::fork();
  if (begun == 0)
    for (;;) ::pause();
  EXPECT_EQ(std::ranges::count(*users.now(0s), begun, &remote_fd::pid), 1);
  ::kill(begun, SIGKILL);
  ::waitpid(begun, nullptr, 0);
  EXPECT_EQ(std::ranges::count(*users.now(0s), begun, &remote_fd::pid), 0);
}

TEST_F(DeviceUsers, AreUnknownWithoutDescriptorsOfOnesOwn) {
  user_list users{device_file::at(path_).value()};
  ASSERT_TRUE(users.now(0s));
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto seen = users.now(0s);
  const auto seen_again = users.now(1h);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_FALSE(seen);
  EXPECT_FALSE(seen_again) << "an old list, after a failure";
  EXPECT_EQ(count_of_child(*users.now(0s)), 2);
}

TEST_F(DeviceUsers, AreNotKeptOfAProcessThatCouldNotBeListed) {
  user_list users{device_file::at(path_).value()};
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int free = ::dup(own_.get());
  ::close(free);
  // For /proc itself, and for no folder in it.
  const rlimit one{.rlim_cur = static_cast<rlim_t>(free) + 1, .rlim_max = usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  int questions = 0;
  const auto failed = users.now(0s, [&] { return ++questions == 0; });
  const int last = std::exchange(questions, 0);
  const auto stopped = users.now(0s, [&] { return ++questions >= last; });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_FALSE(failed);
  EXPECT_FALSE(stopped);
  EXPECT_GT(last, 1);
  EXPECT_EQ(count_of_child(*users.now(0s)), 2);
}

TEST_F(DeviceUsers, AreNotThoseOfAnEarlierProcessWithThatPid) {
  user_list users{device_file::at(path_).value()};
  const pid_t first = ::fork();
  if (first == 0)
    for (;;) ::pause();
  const auto count = [&] { return std::ranges::count(*users.now(0s), first, &remote_fd::pid); };
  EXPECT_EQ(count(), 1);
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  clone_args how{};
  how.exit_signal = SIGCHLD;
  how.set_tid = reinterpret_cast<std::uintptr_t>(&first);
  how.set_tid_size = 1;
  const auto second = static_cast<pid_t>(::syscall(SYS_clone3, &how, sizeof how));
  if (second == 0) {
    // As many descriptors as the first one had.
    ::dup2(ready[1], own_.get());
    ::close(ready[0]);
    ::close(ready[1]);
    (void)!::write(own_.get(), "r", 1);
    for (;;) ::pause();
  }
  char is_ready = 0;
  const bool made = second > 0 && ::read(ready[0], &is_ready, 1) == 1;
  for (const int each : ready) ::close(each);
  if (made) {
    EXPECT_EQ(second, first);
    EXPECT_EQ(count(), 0);
    ::kill(second, SIGKILL);
    ::waitpid(second, nullptr, 0);
  } else {
    GTEST_SKIP() << "needs CAP_CHECKPOINT_RESTORE";
  }
}

// Lists of all processes take longer than the share of the time that they may take, so they have
// their turns one after the other.
TEST_F(DeviceUsers, AreSeenInManyProcessesThatKeepTheirNumberOfDescriptors) {
  constexpr int processes = 40;
  constexpr int descriptors = 40;
  user_list users{device_file::at(path_).value()};
  int begin[2];
  int done[2];
  ASSERT_EQ(::pipe(begin), 0);
  ASSERT_EQ(::pipe(done), 0);
  std::vector<pid_t> all;
  for (int each = 0; each < processes; ++each) {
    all.push_back(::fork());
    if (all.back() != 0) continue;
    ::close(begin[1]);
    int spare = -1;
    for (int i = 0; i < descriptors; ++i) spare = ::open("/dev/null", O_RDONLY);
    (void)!::write(done[1], "r", 1);
    char order = 0;
    (void)!::read(begin[0], &order, 1);
    ::dup2(own_.get(), spare);
    (void)!::write(done[1], "d", 1);
    for (;;) ::pause();
  }
  const auto wait = [&] {
    char answer = 0;
    for (int each = 0; each < processes; ++each) EXPECT_EQ(::read(done[0], &answer, 1), 1);
  };
  const auto seen = [&] {
    return std::ranges::count_if(*users.now(0s), [&](const remote_fd& each) {
      return std::ranges::find(all, each.pid) != all.end();
    });
  };
  wait();
  EXPECT_EQ(seen(), processes);
  ::close(begin[1]);
  wait();
  EXPECT_TRUE(test::eventually(test::patience, [&] { return seen() == 2 * processes; })) << seen();
  for (const int each : {begin[0], done[0], done[1]}) ::close(each);
  for (const pid_t each : all) ::kill(each, SIGKILL);
  for (const pid_t each : all) ::waitpid(each, nullptr, 0);
}

TEST_F(DeviceUsers, TellsOpenFilesApart) {
  EXPECT_TRUE(is_same_file(own_.get(), {child_, own_.get()}));
  EXPECT_FALSE(is_same_file(own_.get(), {child_, another_}));
  const auto copy = duplicate(pidfd_, another_);
  ASSERT_TRUE(copy);
  EXPECT_TRUE(is_same_file(copy->get(), {child_, another_}));
  error_code why;
  EXPECT_FALSE(is_same_file(own_.get(), {child_, 1000}, why));
  EXPECT_EQ(why.value(), EBADF);
  EXPECT_EQ(duplicate(pidfd_, 1000).error().value(), EBADF);
}

}  // namespace
}  // namespace sluice::nvidia::device_users_test
