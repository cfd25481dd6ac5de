#include "sluice/kfd/tree_watch.hpp"

#include "temporary_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::kfd::tree_watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TreeWatch : public ::testing::Test {
 protected:
  void SetUp() override { watch_ = tree_watch::create().value(); }

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  void make_directory(const std::string& name) const {
    std::filesystem::create_directory(path(name));
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(path(name)); }
  void make_file(const std::string& name) const { std::ofstream{path(name)} << ""; }
  void open_file(const std::string& name) const {
    ::close(::open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
  }
  std::vector<std::string> heard() {
    std::vector<std::string> events;
    ours_ = watch_->read([&](const tree_event& each) {
      const char* const what[] = {"opened", "appeared", "vanished", "missed"};
      std::string text = what[static_cast<std::size_t>(each.what)];
      text += " " + std::string{each.path.substr(std::min(each.path.size(), root_.size()))};
      if (!each.name.empty()) text += " " + std::string{each.name};
      events.push_back(text);
    });
    return events;
  }

  const test::temporary_directory made_;
  const std::string root_ = made_.path();
  std::unique_ptr<tree_watch> watch_;
  bool ours_ = false;
};

TEST_F(TreeWatch, HearsOfEntriesThatComeAndGo) {
  make_directory("proc");
  watch_->watch_directory(path("proc"));
  make_directory("proc/42");
  make_directory("proc/43");
  remove("proc/42");
  EXPECT_THAT(heard(), ElementsAre("appeared /proc 42", "appeared /proc 43", "vanished /proc 42"));
  EXPECT_TRUE(ours_);
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_FALSE(ours_);
}

TEST_F(TreeWatch, HearsOfTheDirectoryItselfAndThenOfItsEntries) {
  watch_->watch_directory(path("kfd"));
  watch_->watch_directory(path("kfd/proc"));
  EXPECT_FALSE(watch_->watching(path("kfd")));
  make_directory("kfd");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd"));
  EXPECT_TRUE(watch_->watching(path("kfd")));
  // Heard twice: as an entry of the one, and as the other.
  make_directory("kfd/proc");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd proc", "appeared /kfd/proc"));
  make_directory("kfd/proc/42");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd/proc 42"));
  remove("kfd");
  EXPECT_THAT(heard(), ElementsAre("vanished /kfd/proc 42", "vanished /kfd proc",
                                   "vanished /kfd/proc", "vanished /kfd"));
  EXPECT_FALSE(watch_->watching(path("kfd/proc")));
  make_directory("kfd");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd"));
  make_directory("kfd/other");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd other"));
}

TEST_F(TreeWatch, HearsOfWhatAppearedTogetherWithItsParent) {
  watch_->watch_directory(path("kfd/proc"));
  make_directory("kfd");
  make_directory("kfd/proc");
  make_directory("kfd/proc/42");
  // No event tells, for nobody watched yet; but there is something to look at.
  EXPECT_TRUE(watch_->refresh());
  make_directory("kfd/proc/43");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd/proc 43"));
}

TEST_F(TreeWatch, HearsOpensOfANodeAndOfTheOneThatReplacesIt) {
  make_file("kfd");
  watch_->watch_opens(path("kfd"));
  EXPECT_TRUE(watch_->watching(path("kfd")));
  open_file("kfd");
  EXPECT_THAT(heard(), ElementsAre("opened /kfd"));
  remove("kfd");
  EXPECT_THAT(heard(), ElementsAre("vanished /kfd"));
  make_file("other");
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_FALSE(ours_);
  make_file("kfd");
  EXPECT_THAT(heard(), ElementsAre("appeared /kfd"));
  open_file("kfd");
  EXPECT_THAT(heard(), ElementsAre("opened /kfd"));
  // Replaced in one go.
  make_file("next");
  heard();
  std::filesystem::rename(path("next"), path("kfd"));
  heard();
  open_file("kfd");
  EXPECT_THAT(heard(), ElementsAre("opened /kfd"));
}

TEST_F(TreeWatch, SaysThatItMissedSomething) {
  std::ifstream limit{"/proc/sys/fs/inotify/max_queued_events"};
  long most = 0;
  limit >> most;
  if (most <= 0 || most > 200'000) GTEST_SKIP() << "the inotify queue holds " << most << " events";
  make_file("kfd");
  watch_->watch_opens(path("kfd"));
  make_file("other");
  watch_->watch_opens(path("other"));
  // By turns, for equal events in a row are made one.
  for (long each = 0; each <= most / 2 + 1; ++each) {
    open_file("kfd");
    open_file("other");
  }
  EXPECT_THAT(heard(), ::testing::Contains("missed "));
}

}  // namespace
}  // namespace sluice::kfd::tree_watch_test
