/// The watch that discovery uses, on the machine's own debugfs: whether the kernel delivers what
/// everything relies on. A loop device's directory there comes and goes by command.

#include "discovery_bench.hpp"
#include "family.hpp"
#include "simulated_device.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/survey.hpp"
#include "sluice/kfd/tree_watch.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd::debugfs_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;

constexpr const char* debugfs = "/sys/kernel/debug";

class Debugfs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: to read debugfs and to add a loop device";
    control_ = unique_fd{::open("/dev/loop-control", O_RDWR | O_CLOEXEC)};
    if (!control_) GTEST_SKIP() << "/dev/loop-control: " << std::strerror(errno);
    if (!std::filesystem::exists(blocks())) {
      try {
        test::enter_private_mounts();
      } catch (const std::exception& error) {
        GTEST_SKIP() << error.what();
      }
      if (::mount("debugfs", debugfs, "debugfs", 0, nullptr) != 0)
        GTEST_SKIP() << "cannot mount debugfs at " << debugfs << ": " << std::strerror(errno);
      if (!std::filesystem::exists(blocks())) GTEST_SKIP() << blocks() << " does not exist";
    }
    // One that nobody has.
    for (int number = 1000 + ::getpid() % 1000; number < 3000; ++number) {
      if (std::filesystem::exists("/sys/block/loop" + std::to_string(number))) continue;
      number_ = number;
      break;
    }
    if (!add()) GTEST_SKIP() << "cannot add a loop device: " << std::strerror(errno);
    const bool shown = std::filesystem::exists(directory());
    ASSERT_TRUE(remove()) << std::strerror(errno);
    if (!shown) GTEST_SKIP() << "this kernel shows no loop devices in " << blocks();
  }
  void TearDown() override {
    if (number_ >= 0) remove();
  }

  static std::string blocks() { return std::string{debugfs} + "/block"; }
  std::string name() const { return "loop" + std::to_string(number_); }
  std::string directory() const { return blocks() + "/" + name(); }
  bool add() const { return ::ioctl(control_.get(), LOOP_CTL_ADD, number_) >= 0; }
  bool remove() const {
    // udev may look at it for a moment.
    return eventually(patience, [&] {
      return ::ioctl(control_.get(), LOOP_CTL_REMOVE, number_) >= 0 || errno != EBUSY;
    });
  }

  unique_fd control_;
  int number_ = -1;
};

TEST_F(Debugfs, RaisesEventsForDirectoriesThatComeAndGo) {
  const auto watch = tree_watch::create().value();
  watch->watch_directory(blocks());
  ASSERT_TRUE(watch->watching(blocks()));
  std::vector<std::string> events;
  const auto hears = [&](const std::string& text) {
    return eventually(patience, [&] {
      watch->read([&](const tree_event& each) {
        if (each.what == tree_event::change::missed) return;
        events.push_back((each.what == tree_event::change::appeared ? "+" : "-") +
                         std::string{each.name});
      });
      return std::ranges::find(events, text) != events.end();
    });
  };
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(add()) << std::strerror(errno);
    EXPECT_TRUE(hears("+" + name()));
    ASSERT_TRUE(remove()) << std::strerror(errno);
    EXPECT_TRUE(hears("-" + name()));
    events.clear();
  }
}

// As the driver's own directory does when the driver is loaded and unloaded.
TEST_F(Debugfs, RaisesEventsForAWatchedDirectoryItself) {
  const auto watch = tree_watch::create().value();
  watch->watch_directory(directory());
  EXPECT_FALSE(watch->watching(directory()));
  bool appeared = false;
  bool vanished = false;
  const auto read = [&] {
    watch->read([&](const tree_event& each) {
      EXPECT_EQ(each.path, directory());
      if (each.name.empty() && each.what == tree_event::change::appeared) appeared = true;
      if (each.name.empty() && each.what == tree_event::change::vanished) vanished = true;
    });
    return true;
  };
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(add()) << std::strerror(errno);
    EXPECT_TRUE(eventually(patience, [&] { return read() && appeared; }));
    EXPECT_TRUE(watch->watching(directory()));
    ASSERT_TRUE(remove()) << std::strerror(errno);
    EXPECT_TRUE(eventually(patience, [&] { return read() && vanished; }));
    EXPECT_FALSE(watch->watching(directory()));
    appeared = vanished = false;
  }
}

int wait_here(int) {
  for (;;) ::pause();
}

// The whole of discovery over it, with a sysfs tree of ordinary files. Nothing else makes it look
// so soon: those raise no event here.
TEST_F(Debugfs, MakesDiscoveryLookWhenTheDriverIsLoaded) {
  const test::temporary_directory made;
  const std::string& root = made.path();
  std::filesystem::create_directories(root + "/proc");
  std::ofstream{root + "/kfd"} << "";
  {
    test::discovery_bench found;
    found.make(make_survey({.device = root + "/kfd", .sysfs = root, .debugfs = directory()}));
    ASSERT_TRUE(found.start());
    ASSERT_TRUE(found.sees(observation_kind::resync_end));
    std::vector<std::unique_ptr<family>> targets;
    const auto load = [&] {
      ASSERT_TRUE(remove() || errno == ENODEV) << std::strerror(errno);
      targets.push_back(std::make_unique<family>(wait_here));
      const std::string pid = std::to_string(targets.back()->pid());
      std::filesystem::create_directories(root + "/proc/" + pid + "/queues");
      ASSERT_TRUE(add()) << std::strerror(errno);
    };
    EXPECT_TRUE(found.sees_at_once(observation_kind::process_seen, load));
  }
}

}  // namespace
}  // namespace sluice::kfd::debugfs_test
