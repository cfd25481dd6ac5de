#include "discovery_bench.hpp"
#include "family.hpp"
#include "looks.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/survey.hpp"

namespace sluice::kfd::discovery_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;
using test::wait_here;

/// The source over a tree of ordinary files.
class Discovery : public ::testing::Test {
 protected:
  void SetUp() override {
    where_.sysfs = directory_ + "/sysfs";
    where_.device = directory_ + "/kfd";
    where_.debugfs = directory_ + "/debugfs";
    std::filesystem::create_directories(where_.sysfs + "/proc");
    std::filesystem::create_directories(where_.debugfs + "/proc");
    std::ofstream{where_.device} << "";
  }

  void start() {
    source_.make(make_survey(where_));
    ASSERT_TRUE(source_.start());
    ASSERT_TRUE(sees(observation_kind::resync_end));
  }
  void add_process(pid_t pid) const {
    std::filesystem::create_directories(where_.sysfs + "/proc/" + std::to_string(pid) + "/queues");
  }
  /// \return the pid. The process lives until the test ends.
  pid_t add_new_process() {
    targets_.push_back(std::make_unique<family>(wait_here));
    add_process(targets_.back()->pid());
    return targets_.back()->pid();
  }
  /// Waits until the source has looked at everything.
  void look() {
    source_->resync();
    ASSERT_TRUE(sees(observation_kind::resync_end));
  }
  void open_the_device() const { ::close(::open(where_.device.c_str(), O_RDONLY)); }

  bool sees(observation_kind kind, duration limit = patience) { return source_.sees(kind, limit); }

  roots where_;
  const test::temporary_directory made_{test::memory_directory};
  const std::string directory_ = made_.path();
  std::vector<std::unique_ptr<family>> targets_;
  test::discovery_bench source_;
};

// A simulated driver that was killed left the daemon saying that all was well.
TEST_F(Discovery, SaysOnceThatTheDriverIsGoneAndThatItIsBack) {
  std::mutex mutex;
  std::vector<std::string> said;
  source_.make(make_survey(where_), {}, [&](std::string_view sentence) {
    const std::scoped_lock held{mutex};
    said.emplace_back(sentence);
  });
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  EXPECT_FALSE(source_->driver_gone());
  for (const std::string& path : {where_.sysfs, where_.device}) {
    std::filesystem::rename(path, path + ".away");
    EXPECT_TRUE(eventually(patience, [&] { return source_->driver_gone(); })) << path;
    look();
    look();
    std::filesystem::rename(path + ".away", path);
    EXPECT_TRUE(eventually(patience, [&] { return !source_->driver_gone(); })) << path;
  }
  source_.stop();
  std::erase_if(said, [](const auto& each) { return each.find("the driver is") != 0; });
  ASSERT_EQ(said.size(), 4U);
  EXPECT_EQ(said[0].find("the driver is gone: cannot read " + where_.sysfs + "/proc: No such file"),
            0U)
      << said[0];
  EXPECT_EQ(said[1].find("the driver is back: "), 0U) << said[1];
  EXPECT_EQ(said[2].find("the driver is gone: cannot read " + where_.device + ": "), 0U) << said[2];
}

TEST_F(Discovery, LooksAtOnceWhenTheDeviceIsOpened) {
  start();
  EXPECT_TRUE(source_.sees_at_once(observation_kind::process_seen, [&] {
    add_new_process();
    open_the_device();
  }));
}

TEST_F(Discovery, LooksAtOnceWhenDebugfsShowsAProcess) {
  start();
  EXPECT_TRUE(source_.sees_at_once(observation_kind::process_seen, [&] {
    const pid_t pid = add_new_process();
    std::filesystem::create_directories(where_.debugfs + "/proc/" + std::to_string(pid));
  }));
}

TEST_F(Discovery, LooksAtOnceWhenTheDriverIsLoadedAnew) {
  std::filesystem::remove_all(where_.debugfs);
  std::filesystem::remove(where_.device);
  start();
  for (int times = 0; times < 2; ++times) {
    EXPECT_TRUE(source_.sees_at_once(observation_kind::process_seen, [&] {
      std::filesystem::remove_all(where_.debugfs);
      std::filesystem::remove(where_.device);
      look();
      add_new_process();
      std::filesystem::create_directories(where_.debugfs + "/proc");
    }));
    // The driver creates its device node later than the rest.
    EXPECT_TRUE(source_.sees_at_once(observation_kind::process_seen, [&] {
      std::filesystem::remove(where_.device);
      look();
      std::ofstream{where_.device} << "";
      add_new_process();
      open_the_device();
    }));
  }
}

TEST_F(Discovery, RefusesToStartWithoutATree) {
  std::string message;
  where_.sysfs = directory_ + "/missing";
  source_.make(make_survey(where_), {}, [&message](std::string_view words) { message = words; });
  const auto started = source_.start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error(), errc::not_supported);
  EXPECT_NE(message.find(where_.sysfs), std::string::npos) << message;
}

}  // namespace
}  // namespace sluice::kfd::discovery_test
