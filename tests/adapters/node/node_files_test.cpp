#include "sluice/node_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace sluice::node_files_test {
namespace {

class NodeFiles : public testing::Test {
 protected:
  ~NodeFiles() override { std::filesystem::remove_all(where_.directory); }
  const node_files where_{.directory =
                              testing::TempDir() + "sluice_node_" + std::to_string(::getpid())};
  std::string message_;
};

TEST_F(NodeFiles, SayThatANodeIsPausedAndWhy) {
  EXPECT_FALSE(pause_node(where_, "", message_)) << "no directory is made for it";
  EXPECT_EQ(message_, "cannot write " + where_.disabled() + ": No such file or directory");
  EXPECT_FALSE(std::filesystem::exists(where_.directory));
  std::filesystem::create_directories(where_.directory);
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

// Whoever reads the reason neither waits for a pipe's other end, nor follows, nor reads on and on.
TEST_F(NodeFiles, ArePausedByWhateverLiesThere) {
  std::filesystem::create_directories(where_.directory);
  const std::string path = where_.disabled();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(paused_why(where_), "");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/nonexistent", path);
  EXPECT_EQ(paused_why(where_), "");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(paused_why(where_), "");
  std::filesystem::remove(path);
  // Sparse, and no line ever ends: as a whole it would not fit into memory.
  std::ofstream{path}.flush();
  std::filesystem::resize_file(path, std::uintmax_t{1} << 36);
  EXPECT_EQ(paused_why(where_), std::string(200, '?'));
}

// Whoever owns the directory may plant links for root, who pauses.
TEST_F(NodeFiles, AreWrittenThroughNobodysLinks) {
  std::filesystem::create_directories(where_.directory);
  const std::string victim = where_.directory + "/victim";
  std::ofstream{victim} << "whole";
  for (const std::string& name :
       {where_.disabled(), where_.disabled() + "." + std::to_string(::getpid())})
    std::filesystem::create_symlink(victim, name);
  ASSERT_TRUE(pause_node(where_, "firmware update", message_)) << message_;
  EXPECT_EQ(paused_why(where_), "firmware update");
  EXPECT_FALSE(std::filesystem::is_symlink(where_.disabled()));
  std::string left;
  std::getline(std::ifstream{victim}, left);
  EXPECT_EQ(left, "whole");
  std::filesystem::remove(where_.disabled() + "." + std::to_string(::getpid()));
  const std::filesystem::directory_iterator entries{where_.directory};
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2) << "nothing is left but those two";
}

TEST_F(NodeFiles, SayWhatCannotBeWritten) {
  std::ofstream{where_.directory} << "a file where the directory should be";
  EXPECT_FALSE(pause_node(where_, "", message_));
  EXPECT_EQ(message_, "cannot write " + where_.disabled() + ": Not a directory");
}

}  // namespace
}  // namespace sluice::node_files_test
