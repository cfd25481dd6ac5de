#include "device_users.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

namespace sluice::nvidia::device_users_test {
namespace {

/// A file that stands for the device, open here and in a child that also has it open by itself.
class DeviceUsers : public testing::Test {
 protected:
  DeviceUsers() {
    own_ = unique_fd{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const int another = ::open(path_.c_str(), O_RDWR);
      (void)!::write(ends[1], &another, sizeof another);
      for (;;) ::pause();
    }
    EXPECT_EQ(::read(ends[0], &another_, sizeof another_), ssize_t{sizeof another_});
    ::close(ends[0]);
    ::close(ends[1]);
    pidfd_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, child_, 0))};
  }
  ~DeviceUsers() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::unlink(path_.c_str());
  }

  const std::string path_ = testing::TempDir() + "nvidiactl" + std::to_string(::getpid());
  unique_fd own_;
  unique_fd pidfd_;
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
