// What the agent does to one process, on the simulated device: with processes of the test's own,
// and the device's accounts as the judge.

#include "gpu_program.hpp"
#include "nvidia_target.hpp"
#include "release.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::nvidia::target_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::gpu_program;
using test::held_channels;
using test::patience;
using test::slice_of;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t usual_slice = 2048;  ///< Of a compute group, in the profile.

/// nvidia_target with what it needs.
class managed {
 public:
  managed(const test::simulated_device& device, pid_t pid, bool others_are_offline = false)
      : users_(device_file::at(device.nvidia_device()).value()),
        host_{
            .is_offline = [others_are_offline](pid_t, std::uint64_t) { return others_are_offline; },
            .say = [this](std::string_view words) { said_ += std::string{words} + '\n'; }},
        target_(users_, calls_, host_, pid, start_time_of(pid).value_or(0)) {}

  nvidia_target* operator->() { return &target_; }
  const std::string& said() const { return said_; }

  /// Opens it, and keeps the channels that it lists.
  result<void> open() { return keep(target_.open()); }
  result<void> refresh() { return keep(target_.refresh()); }
  std::vector<driver_queue_id> of_kind(queue_kind type) const {
    std::vector<driver_queue_id> ids;
    for (const queue_info& each : queues_)
      if (each.type == type) ids.push_back(each.id);
    return ids;
  }
  std::vector<driver_queue_id> computing() const { return of_kind(queue_kind::compute); }
  gpu_id gpu() const { return queues_.at(0).gpu; }

  std::vector<outcome> act(command_kind what, const std::vector<driver_queue_id>& ids) {
    std::vector<outcome> outcomes(
        ids.size(), what == command_kind::suspend ? outcome::invalid : outcome::failed);
    error_ = target_.act(what, gpu_, ids, outcomes);
    return outcomes;
  }
  std::vector<outcome> suspend(const std::vector<driver_queue_id>& ids) {
    return act(command_kind::suspend, ids);
  }
  std::vector<outcome> resume(const std::vector<driver_queue_id>& ids) {
    return act(command_kind::resume, ids);
  }
  int error() const { return error_; }  ///< Of the last act().

 private:
  result<void> keep(result<std::vector<queue_info>> listed) {
    if (!listed) return listed.error();
    queues_ = std::move(*listed);
    if (!queues_.empty()) gpu_ = queues_.front().gpu;
    return {};
  }

  std::string said_;
  user_list users_;
  channel_calls calls_;
  agent::acting_host host_;
  nvidia_target target_;
  std::vector<queue_info> queues_;
  gpu_id gpu_{};
  int error_ = 0;
};

class NvidiaTarget : public testing::Test {
 protected:
  bool is_free() const {
    return eventually(patience, [this] { return is_empty(device_); });
  }

  test::simulated_device device_{test::fast_h100()};
  gpu_program program_{device_};
};

TEST_F(NvidiaTarget, SuspendsAndResumesChannels) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  const auto computing = target.computing();
  EXPECT_EQ(computing.size(), 8U);
  EXPECT_EQ(target.of_kind(queue_kind::copy).size(), 12U);
  EXPECT_EQ(target.gpu(), gpu_id{0x400});

  EXPECT_THAT(target.suspend({computing[0], computing[1]}), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 2);
  // Twice, and what does not exist.
  EXPECT_THAT(target.suspend({computing[1], driver_queue_id{1}, computing[2]}),
              testing::ElementsAre(outcome::done, outcome::invalid, outcome::done));
  EXPECT_EQ(target.error(), 0);
  EXPECT_EQ(held_channels(device_), 3);
  EXPECT_THAT(target.suspend(computing), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_THAT(target.resume({computing[0]}), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 7);
  program_.ask("run");  // On the first channel.
  EXPECT_THAT(target.resume(computing), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_TRUE(target->close());
}

TEST_F(NvidiaTarget, SuspendsWhatIsLeftOfAProcess) {
  program_.ask("open");
  const auto group = program_.ask("context");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto before = target.computing();
  ASSERT_EQ(before.size(), 10U);
  program_.ask("free " + std::to_string(group[1]));
  std::vector<outcome> expected(before.size(), outcome::done);
  const auto gone = std::ranges::find(before, driver_queue_id{group[1]}) - before.begin();
  expected[static_cast<std::size_t>(gone)] = outcome::invalid;
  EXPECT_EQ(target.suspend(before), expected);
  EXPECT_EQ(held_channels(device_), 9);
  EXPECT_THAT(target.resume(before), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);

  // Held, and then freed.
  ASSERT_THAT(target.suspend(before), testing::Contains(outcome::done));
  program_.ask("free " + std::to_string(group[0]));
  EXPECT_THAT(target.resume(before), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);
  ASSERT_TRUE(target.refresh());
  EXPECT_EQ(target.computing().size(), 8U);
  EXPECT_TRUE(target->close());
}

TEST_F(NvidiaTarget, FindsAContextThatIsMadeWhileItIsHeld) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  target.suspend(target.computing());
  const auto group = program_.ask("context");
  ASSERT_TRUE(target.refresh());
  const auto now = target.computing();
  ASSERT_EQ(now.size(), 10U);
  EXPECT_THAT(now, testing::Contains(driver_queue_id{group[1]}));
  EXPECT_THAT(target.suspend(now), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 10);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

// A duplicate of the descriptor keeps the memory of the process allocated.
TEST_F(NvidiaTarget, LetsGoOfADescriptorThatTheProcessCloses) {
  program_.ask("open");
  program_.ask("memory");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto computing = target.computing();
  target.suspend(computing);
  program_.ask("close");
  EXPECT_EQ(held_channels(device_), 8);
  ASSERT_TRUE(target.refresh());
  EXPECT_TRUE(is_free());
  EXPECT_THAT(target.suspend(computing), Each(outcome::invalid));
  EXPECT_THAT(target.resume(computing), Each(outcome::done));
  EXPECT_TRUE(target->close());
}

TEST_F(NvidiaTarget, LetsGoOfAProcessThatExecsOrExits) {
  for (const std::string order : {"exec", "exit"}) {
    gpu_program program{device_};
    program.ask("open");
    program.ask("memory");
    managed target{device_, program.pid()};
    ASSERT_TRUE(target.open());
    target.suspend(target.computing());
    EXPECT_EQ(held_channels(device_), 8);
    if (order == "exec") {
      ASSERT_TRUE(program.execs(order));
    } else {
      program.tell(order);
      ASSERT_TRUE(program.process().succeeds(patience));
    }
    EXPECT_EQ(target.refresh().error(), errc::unknown_target);
    EXPECT_TRUE(target->close());
    EXPECT_TRUE(is_free()) << order;
  }
}

TEST_F(NvidiaTarget, SetsAndRestoresTimeSlices) {
  const auto first = program_.ask("open").at(2);
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
  EXPECT_EQ(slice_of(device_, first), 100);
  const auto second = program_.ask("context").at(0);
  EXPECT_EQ(slice_of(device_, second), usual_slice);
  ASSERT_TRUE(target.refresh());
  EXPECT_EQ(slice_of(device_, second), 100);
  ASSERT_TRUE(target->set_quantum(target.gpu(), 50us));
  EXPECT_EQ(slice_of(device_, first), 50);
  ASSERT_TRUE(target->set_quantum(target.gpu(), 0us));
  EXPECT_EQ(slice_of(device_, first), usual_slice);
  EXPECT_EQ(slice_of(device_, second), usual_slice);
  ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
  EXPECT_TRUE(target->close());
  EXPECT_EQ(slice_of(device_, first), usual_slice);
  EXPECT_EQ(slice_of(device_, second), usual_slice);
}

TEST_F(NvidiaTarget, IsReleasedByWhatWasRecorded) {
  const auto first = program_.ask("open").at(2);
  std::string record;
  {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
    target.suspend(target.computing());
    record = target->record();
  }  // Not closed, as when the agent is killed.
  const auto held = parse_held_process(record);
  ASSERT_TRUE(held) << record;
  EXPECT_EQ(held_channels(device_), 8);
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_process(program_.pid(), *device, *held));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_EQ(slice_of(device_, first), usual_slice);
  program_.ask("run");
}

// A call that fails may have been performed: then the next one disables a second time.
TEST_F(NvidiaTarget, IsReleasedHoweverOftenItWasDisabled) {
  program_.ask("open");
  const auto device = device_file::at(device_.nvidia_device());
  std::optional<held_process> before;
  for (int agent = 0; agent < 2; ++agent) {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    if (!before) before = parse_held_process(target->record());
    target.suspend(target.computing());
  }
  // Two disables, and a record of before the first of them, which allows for one.
  ASSERT_TRUE(before);
  ASSERT_TRUE(release_process(program_.pid(), *device, *before));
  EXPECT_EQ(held_channels(device_), 0);
  for (int agent = 0; agent < 3; ++agent) {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    target.suspend(target.computing());
  }
  EXPECT_EQ(held_channels(device_), 8);
  ASSERT_TRUE(release_everything_of(program_.pid(), *device));
  EXPECT_EQ(held_channels(device_), 0);
  program_.ask("run");
}

}  // namespace
}  // namespace sluice::nvidia::target_test
