#include "sluice/node_files.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

class NodeFiles : public testing::Test {
 protected:
  ~NodeFiles() override { std::filesystem::remove_all(where_.directory); }
  const node_files where_{.directory =
                              testing::TempDir() + "sluice_node_" + std::to_string(::getpid())};
  std::string message_;
};

TEST_F(NodeFiles, SayThatANodeIsPausedAndWhy) {
  EXPECT_FALSE(paused_why(where_));
  ASSERT_TRUE(pause_node(where_, "firmware update", message_)) << message_;
  EXPECT_EQ(paused_why(where_), "firmware update");
  ASSERT_TRUE(unpause_node(where_, message_)) << message_;
  EXPECT_FALSE(paused_why(where_));
  const auto again = unpause_node(where_, message_);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error(), boost::system::errc::no_such_file_or_directory);
}

TEST_F(NodeFiles, TakeATouchForAPauseAndShowNothingThatATerminalActsOn) {
  std::filesystem::create_directories(where_.directory);
  std::ofstream{where_.disabled()}.flush();
  EXPECT_EQ(paused_why(where_), "");
  std::ofstream{where_.disabled()} << "a\033[31mb\nsecond line\n";
  EXPECT_EQ(paused_why(where_), "a?[31mb");
}

TEST_F(NodeFiles, SayWhatCannotBeWritten) {
  std::ofstream{where_.directory} << "a file where the directory should be";
  EXPECT_FALSE(pause_node(where_, "", message_));
  EXPECT_EQ(message_, "cannot write " + where_.disabled() + ": Not a directory");
}

}  // namespace
}  // namespace sluice
