// What somebody does in the directory while the socket is made there.

#include "listener.hpp"

#include "raw_client.hpp"
#include "served_node.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace sluice::client::listener_test {
namespace {

class GiveRights : public ::testing::Test {
 protected:
  /// A file of ours that nobody else may read.
  void SetUp() override {
    const unique_fd made(open(victim_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_GE(made.get(), 0);
  }
  static mode_t mode_of(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::lstat(path.c_str(), &found), 0);
    return found.st_mode & 07777U;
  }

  test::socket_place place_;
  const std::string path_ = place_.directory() + "/sock";
  const std::string victim_ = place_.directory() + "/secret";
  struct stat file_ {};
};

TEST_F(GiveRights, AreTheSocketsThatWasJustMade) {
  ASSERT_TRUE(test::leave_a_socket(path_));
  ASSERT_TRUE(give_rights(path_, 0660, ::getegid(), file_));
  EXPECT_EQ(mode_of(path_), 0660U);
}

TEST_F(GiveRights, AreNotGivenToWhatALinkInItsPlaceLeadsTo) {
  ASSERT_EQ(symlink(victim_.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(give_rights(path_, 0666, ::getegid(), file_));
  EXPECT_EQ(mode_of(victim_), 0600U);
}

TEST_F(GiveRights, AreNotGivenToAFileOrToAnotherNameOfASocket) {
  ASSERT_EQ(link(victim_.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(give_rights(path_, 0666, {}, file_));
  EXPECT_EQ(mode_of(victim_), 0600U);
  const std::string other = place_.directory() + "/other";
  ASSERT_TRUE(test::leave_a_socket(other));
  ASSERT_EQ(chmod(other.c_str(), 0600), 0);
  ASSERT_EQ(rename(other.c_str(), path_.c_str()), 0);
  ASSERT_EQ(link(path_.c_str(), other.c_str()), 0);
  EXPECT_FALSE(give_rights(path_, 0666, {}, file_));
  EXPECT_EQ(mode_of(other), 0600U);
}

}  // namespace
}  // namespace sluice::client::listener_test
