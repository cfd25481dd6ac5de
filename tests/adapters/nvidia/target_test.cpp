// What the agent does to one process, on the simulated device: with processes of the test's own,
// and the device's accounts as the judge.

#include "gpu_program.hpp"
#include "nvidia_target.hpp"
#include "release.hpp"

#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/nvidia/acting_driver.hpp"

namespace sluice::nvidia::target_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::gpu_program;
using test::held_channels;
using test::patience;
using test::slice_of;
using test::stat_of;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t usual_slice = 2048;  ///< Of a compute group, in the profile.

/// What the lanes of an agent share.
struct agents_parts {
  explicit agents_parts(const test::simulated_device& device)
      : users(device_file::at(device.nvidia_device()).value()) {}
  user_list users;
  channel_calls calls;
  slice_book slices;
};

/// nvidia_target with what it needs.
class managed {
 public:
  managed(const test::simulated_device& device, pid_t pid, bool others_are_offline = false)
      : managed(std::make_shared<agents_parts>(device), pid, others_are_offline) {}
  managed(std::shared_ptr<agents_parts> shared, pid_t pid, bool others_are_offline)
      : shared_(std::move(shared)),
        host_{
            .is_offline = [others_are_offline](pid_t, std::uint64_t) { return others_are_offline; },
            .is_online = [this](pid_t other, std::uint64_t) { return online_.contains(other); },
            .say = [this](std::string_view words) { said_ += std::string{words} + '\n'; }},
        target_(shared_->users, shared_->calls, shared_->slices, host_, pid,
                start_time_of(pid).value_or(0)) {}

  nvidia_target* operator->() { return &target_; }
  std::string said() const { return said_ + target_.why_refused(); }
  /// As the host states it.
  void goes_online(pid_t pid) { online_.insert(pid); }

  /// Opens it, and keeps the channels that it lists.
  result<void> open() { return keep(target_.open()); }
  /// Every third refresh() looks at the process.
  result<void> refresh() {
    for (int tick = 0; tick < 2; ++tick)
      if (const auto done = keep(target_.refresh()); !done) return done;
    return keep(target_.refresh());
  }
  /// Once, as a lane does.
  result<void> tick() { return keep(target_.refresh()); }
  /// From now on, the GPU of what is below; else the first one.
  void choose(gpu_id gpu) { gpu_ = gpu; }
  std::vector<driver_queue_id> of_kind(queue_kind type) const {
    std::vector<driver_queue_id> ids;
    for (const queue_info& each : queues_)
      if (each.type == type && each.gpu == gpu_) ids.push_back(each.id);
    return ids;
  }
  std::vector<driver_queue_id> computing() const { return of_kind(queue_kind::compute); }
  gpu_id gpu() const { return gpu_; }

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
    if (gpu_ == gpu_id::none && !queues_.empty()) gpu_ = queues_.front().gpu;
    return {};
  }

  std::string said_;
  std::set<pid_t> online_;
  std::shared_ptr<agents_parts> shared_;
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

TEST_F(NvidiaTarget, LooksLaterWhileOrdersWait) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  target->yield_to([] { return true; });
  const time_point begun = clock::now();
  ASSERT_TRUE(target.open());
  program_.ask("context");
  ASSERT_TRUE(
      eventually(patience, [&] { return target.refresh() && target.computing().size() == 10U; }));
  EXPECT_GE(clock::now() - begun, 350ms);
  EXPECT_TRUE(target->close());
}

/// Suspends and resumes as a lane does, as fast as that goes, and looks when it is told to.
TEST_F(NvidiaTarget, FindsAContextUnderSuspendsThatFollowEachOther) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto before = target.computing();
  const auto cycle = [&] {
    target.suspend(before);
    pollfd news{target->event_fd(), POLLIN, 0};
    if (::poll(&news, 1, 0) > 0) {
      EXPECT_TRUE(target.tick());
    }
    target.resume(before);
    return target.computing().size();
  };
  cycle();
  program_.ask("context");
  EXPECT_TRUE(eventually(patience, [&] { return cycle() == before.size() + 2; }));
  // A look asks for each object that it knows.
  const auto asked = stat_of(device_, "CLIENT_GET_HANDLE_INFO");
  cycle();
  const time_point begun = clock::now();
  for (int count = 0; count < 20; ++count) cycle();
  const auto looks = (clock::now() - begun) / 50ms + 2;
  EXPECT_LE(stat_of(device_, "CLIENT_GET_HANDLE_INFO") - asked, 400 * looks);
  EXPECT_TRUE(target->close());
}

TEST_F(NvidiaTarget, DropsAClientThatTheProcessFrees) {
  const auto client = program_.ask("open").at(1);
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto computing = target.computing();
  target.suspend(computing);
  program_.ask("free " + std::to_string(client));
  EXPECT_TRUE(is_free());
  EXPECT_THAT(target.suspend(computing), Each(outcome::done));  // As far as it knows.
  EXPECT_THAT(target.resume(computing), Each(outcome::done));
  EXPECT_THAT(target.suspend(computing), Each(outcome::invalid));
  ASSERT_TRUE(target.refresh());
  EXPECT_TRUE(target.computing().empty());
  EXPECT_TRUE(target->close());
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

// A number says nothing: a process may have closed the file and opened it again between two looks.
TEST_F(NvidiaTarget, FindsAClientUnderTheNumberOfAClosedOne) {
  const auto first = program_.ask("open").at(0);
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  target.suspend(target.computing());
  program_.ask("close");
  EXPECT_EQ(program_.ask("open").at(0), first);
  EXPECT_TRUE(eventually(patience, [&] {
    const auto looked = target.refresh();
    return looked && target.computing().size() == 8;
  })) << target.said();
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
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

// --- Descriptors that several have, or that come and go ---

TEST_F(NvidiaTarget, FindsAClientThatIsMadeAfterAnotherOne) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  ASSERT_TRUE(target.refresh());
  target.suspend(target.computing());
  // The new descriptor has the number of the old one.
  program_.ask("close");
  program_.ask("open");
  EXPECT_TRUE(eventually(patience, [&] {
    return target.refresh() && target.computing().size() == 8 && held_channels(device_) == 0;
  }));
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, ResumesWhatItCannotReachAnyMore) {
  const auto group = program_.ask("open").at(2);
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
  target.suspend(target.computing());
  program_.ask("move");
  // Found again over the other descriptor, it runs.
  EXPECT_TRUE(eventually(patience, [&] {
    return target.refresh() && target.computing().size() == 8 && held_channels(device_) == 0;
  }));
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_THAT(target.resume(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(slice_of(device_, group), usual_slice);
}

/// A process that waits, and ends with this object.
class waiting_process {
 public:
  explicit waiting_process(std::uint32_t pid) : pid_(static_cast<pid_t>(pid)) {}
  waiting_process(const waiting_process&) = delete;
  waiting_process& operator=(const waiting_process&) = delete;
  ~waiting_process() { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_;
};

// The objects live as long as any process has the descriptor.
TEST_F(NvidiaTarget, LeavesNothingSuspendedInAClientThatOutlivesTheProcess) {
  for (const std::string order : {"close", "exit", "inherit"}) {
    gpu_program program{device_};
    const auto group = program.ask("open").at(2);
    std::optional<waiting_process> other;
    if (order != "inherit") other.emplace(program.ask("fork").at(0));
    managed target{device_, program.pid(), true};
    ASSERT_TRUE(target.open());
    ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
    target.suspend(target.computing());
    EXPECT_EQ(held_channels(device_), 8);
    if (order == "close") {
      program.ask(order);
      ASSERT_TRUE(target.refresh());
    } else if (order == "exit") {
      program.tell(order);
      ASSERT_TRUE(program.process().succeeds(patience));
      EXPECT_EQ(target.refresh().error(), errc::unknown_target);
    } else {
      ASSERT_TRUE(program.execs(order));
      EXPECT_EQ(target.refresh().error(), errc::unknown_target);
    }
    EXPECT_TRUE(target->close());
    EXPECT_EQ(held_channels(device_), 0) << order;
    EXPECT_EQ(slice_of(device_, group), usual_slice) << order;
  }
}

// Nothing is given up silently while another process has the client.
TEST_F(NvidiaTarget, KeepsTryingToResumeAClientThatOutlivesTheProcess) {
  for (const std::string order : {"close", "exit", "inherit"}) {
    gpu_program program{device_};
    const auto group = program.ask("open").at(2);
    std::optional<waiting_process> other;
    if (order != "inherit") other.emplace(program.ask("fork").at(0));
    std::optional<managed> target{std::in_place, device_, program.pid(), true};
    ASSERT_TRUE(target->open());
    ASSERT_TRUE((*target)->set_quantum(target->gpu(), 100us));
    target->suspend(target->computing());
    control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000000");
    if (order == "close") {
      program.ask(order);
      ASSERT_TRUE(target->refresh());
      EXPECT_THAT(target->resume(target->computing()), Each(outcome::failed));
    } else if (order == "exit") {
      program.tell(order);
      ASSERT_TRUE(program.process().succeeds(patience));
      EXPECT_EQ(target->refresh().error(), errc::unknown_target);
    } else {
      ASSERT_TRUE(program.execs(order));
      EXPECT_EQ(target->refresh().error(), errc::unknown_target);
    }
    EXPECT_FALSE((*target)->close()) << order;
    EXPECT_TRUE((*target)->outlives_process());
    EXPECT_THAT(target->said(), HasSubstr("the driver refuses to resume its channels"));
    EXPECT_EQ(held_channels(device_), 8) << order;
    // By the same lane, and by the record in its place.
    const auto held = parse_held_process((*target)->record());
    ASSERT_TRUE(held && held->clients.size() == 1) << order;
    control(device_, "no-faults");
    if (order == "close") {
      EXPECT_TRUE((*target)->close());
    } else {
      target.reset();
      const auto device = device_file::at(device_.nvidia_device());
      ASSERT_TRUE(release_process(order == "exit" ? 0 : program.pid(), *device, *held));
    }
    EXPECT_EQ(held_channels(device_), 0) << order;
    EXPECT_EQ(slice_of(device_, group), usual_slice) << order;
  }
}

TEST_F(NvidiaTarget, LetsGoOfAProcessThatEndsThoughTheDriverRefuses) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  target.suspend(target.computing());
  control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000000");
  program_.tell("exit");
  ASSERT_TRUE(program_.process().succeeds(patience));
  EXPECT_TRUE(target->close());
  EXPECT_TRUE(is_free());
}

TEST_F(NvidiaTarget, RefusesAClientThatAnotherProcessShares) {
  program_.ask("open");
  const auto stranger = program_.ask("stranger").at(0);
  const waiting_process other{stranger};
  ASSERT_TRUE(
      eventually(patience, [&] { return command_of(static_cast<pid_t>(stranger)) == "sleep"; }));
  managed refusing{device_, program_.pid(), false};
  ASSERT_TRUE(refusing.open()) << "it may become offline";
  EXPECT_THAT(refusing.suspend(refusing.computing()), Each(outcome::invalid));
  EXPECT_EQ(refusing.error(), EPERM);
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(refusing.said(),
              AllOf(HasSubstr("shares its connection to the driver with process"),
                    HasSubstr("which is not offline; sluice does not suspend them")));
  managed target{device_, program_.pid(), true};
  ASSERT_TRUE(target.open()) << target.said();
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

// As the workers of a data loader, which the host does not know: rules see no difference.
TEST_F(NvidiaTarget, TakesAForkedChildForOffline) {
  program_.ask("open");
  const waiting_process worker{program_.ask("fork").at(0)};
  managed target{device_, program_.pid(), false};
  ASSERT_TRUE(target.open());
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done)) << target.said();
  EXPECT_TRUE(target->close());
}

// A role by pid, or a registered client: the rules for roles see no difference there either.
TEST_F(NvidiaTarget, RefusesAForkedChildThatIsOnline) {
  program_.ask("open");
  const auto child = static_cast<pid_t>(program_.ask("fork").at(0));
  const waiting_process worker{program_.ask("fork").at(0)};
  const waiting_process other{static_cast<std::uint32_t>(child)};
  for (const bool others_are_offline : {false, true}) {
    managed target{device_, program_.pid(), others_are_offline};
    ASSERT_TRUE(target.open());
    EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done)) << target.said();
    target.goes_online(child);
    EXPECT_EQ(target.refresh().error(), errc::not_managed);
    EXPECT_THAT(target.said(), HasSubstr("with process " + std::to_string(child) + " ("));
    EXPECT_THAT(target.resume(target.computing()), Each(outcome::done));
    EXPECT_THAT(target.suspend(target.computing()), Each(outcome::invalid));
    EXPECT_EQ(target.error(), EPERM);
    EXPECT_TRUE(target->close());
    EXPECT_EQ(held_channels(device_), 0);
  }
}

TEST_F(NvidiaTarget, ShortensNoTimeSliceOfAProcessThatIsOnline) {
  const auto group = program_.ask("open").at(2);
  const auto child = static_cast<pid_t>(program_.ask("fork").at(0));
  const waiting_process other{static_cast<std::uint32_t>(child)};
  for (const bool asked_again : {false, true}) {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open()) << target.said();
    ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
    ASSERT_TRUE(target.refresh()) << target.said();
    EXPECT_EQ(slice_of(device_, group), 100);
    target.goes_online(child);
    if (asked_again) {
      EXPECT_EQ(target->set_quantum(target.gpu(), 50us).error().value(), EPERM);
      EXPECT_EQ(slice_of(device_, group), usual_slice);
    }
    const auto fresh = program_.ask("context").at(0);
    const auto looked = target.refresh();
    EXPECT_EQ(looked.has_value(), asked_again) << "nothing is left to end";
    EXPECT_EQ(slice_of(device_, fresh), usual_slice);
    EXPECT_THAT(target.said(), HasSubstr("which is not offline; sluice does not suspend them"));
    EXPECT_TRUE(target->close());
    EXPECT_EQ(slice_of(device_, group), usual_slice);
  }
}

/// A process that has one client for two GPUs, as a CUDA process has.
class NvidiaTargetOnTwoGpus : public testing::Test {
 protected:
  NvidiaTargetOnTwoGpus() { opened_ = program_.ask("open both"); }
  void SetUp() override { ASSERT_TRUE(target_.open()) << target_.said(); }
  void suspend_both() {
    for (const gpu_id each : gpus) {
      target_.choose(each);
      EXPECT_THAT(target_.suspend(target_.computing()), Each(outcome::done));
    }
    EXPECT_EQ(held_channels(device_), 16);
  }
  std::int64_t slice_on(std::size_t gpu) const { return slice_of(device_, opened_[2 + 2 * gpu]); }

  static constexpr std::array gpus{gpu_id{0x400}, gpu_id{0x500}};
  test::simulated_device device_{{.profile = "h100", .gpus = 2}};
  gpu_program program_{device_};
  std::vector<std::uint32_t> opened_;
  managed target_{device_, program_.pid()};
};

TEST_F(NvidiaTargetOnTwoGpus, RunsOnOneWhileItIsSuspendedOnTheOther) {
  for (std::size_t held = 0; held < 2; ++held) {
    target_.choose(gpus[held]);
    const auto computing = target_.computing();
    EXPECT_EQ(computing.size(), 8U);
    EXPECT_EQ(computing.front(), driver_queue_id{opened_[3 + 2 * held]});
    EXPECT_EQ(target_.of_kind(queue_kind::copy).size(), 12U);
    EXPECT_THAT(target_.suspend(computing), Each(outcome::done));
    EXPECT_EQ(held_channels(device_), 8);
    const auto before = stat_of(device_, "kernels_started");
    program_.ask("launch 20 " + std::to_string(held));
    program_.ask("run " + std::to_string(1 - held));
    EXPECT_EQ(stat_of(device_, "kernels_started"), before + 1);
    // Channels of the other GPU are not this one's.
    target_.choose(gpus[1 - held]);
    EXPECT_THAT(target_.resume(computing), Each(outcome::done));
    EXPECT_EQ(held_channels(device_), 8);
    target_.choose(gpus[held]);
    EXPECT_THAT(target_.resume(computing), Each(outcome::done));
    EXPECT_EQ(held_channels(device_), 0);
    program_.ask("wait");
  }
  suspend_both();
  EXPECT_TRUE(target_->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTargetOnTwoGpus, HasItsTimeSliceShortenedOnOneOfThem) {
  ASSERT_TRUE(target_->set_quantum(gpus[1], 100us));
  EXPECT_EQ(slice_on(0), usual_slice);
  EXPECT_EQ(slice_on(1), 100);
  const auto elsewhere = program_.ask("context 0").at(0);
  const auto there = program_.ask("context 1").at(0);
  ASSERT_TRUE(target_.refresh());
  EXPECT_EQ(slice_of(device_, elsewhere), usual_slice);
  EXPECT_EQ(slice_of(device_, there), 100);
  ASSERT_TRUE(target_->set_quantum(gpus[0], 50us));
  ASSERT_TRUE(target_->set_quantum(gpus[1], 0us));
  EXPECT_EQ(slice_on(0), 50);
  EXPECT_EQ(slice_on(1), usual_slice);
  EXPECT_EQ(slice_of(device_, there), usual_slice);
  EXPECT_TRUE(target_->close());
  EXPECT_EQ(slice_on(0), usual_slice);
  EXPECT_EQ(slice_of(device_, elsewhere), usual_slice);
}

TEST_F(NvidiaTargetOnTwoGpus, IsSuspendedInAContextThatItMakesThere) {
  suspend_both();
  const auto made = program_.ask("context 1");
  ASSERT_TRUE(target_.refresh());
  target_.choose(gpus[0]);
  EXPECT_EQ(target_.computing().size(), 8U);
  target_.choose(gpus[1]);
  const auto now = target_.computing();
  ASSERT_EQ(now.size(), 10U);
  EXPECT_THAT(now, testing::Contains(driver_queue_id{made[1]}));
  EXPECT_THAT(target_.suspend(now), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 18);
  EXPECT_TRUE(target_->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTargetOnTwoGpus, IsReleasedByWhatWasRecorded) {
  for (const gpu_id each : gpus) ASSERT_TRUE(target_->set_quantum(each, 100us));
  suspend_both();
  const auto held = parse_held_process(target_->record());
  ASSERT_TRUE(held);
  const auto device = device_file::at(device_.nvidia_device());
  // Not closed, as when the agent is killed.
  ASSERT_TRUE(release_process(program_.pid(), *device, *held));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_EQ(slice_on(0), usual_slice);
  EXPECT_EQ(slice_on(1), usual_slice);
}

TEST_F(NvidiaTargetOnTwoGpus, IsReleasedWithoutARecord) {
  suspend_both();
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_everything_of(program_.pid(), *device));
  EXPECT_EQ(held_channels(device_), 0);
}

// What the driver refuses for one GPU leaves the other one alone.
TEST_F(NvidiaTargetOnTwoGpus, IsResumedOnOneWhereTheDriverRefusesTheOther) {
  suspend_both();
  program_.ask("launch 20 0");
  program_.ask("launch 20 1");
  control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000000");
  target_.choose(gpus[0]);
  EXPECT_THAT(target_.resume(target_.computing()), Each(outcome::failed));
  EXPECT_NE(target_.error(), 0);
  control(device_, "no-faults");
  target_.choose(gpus[1]);
  EXPECT_THAT(target_.resume(target_.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  program_.ask("run 1");
  EXPECT_EQ(stat_of(device_, "kernels_started"), 2) << "those on that GPU";
  EXPECT_TRUE(target_->close());
  program_.ask("wait");
}

/// Two offline processes with one client, each with a lane of one agent. The second one has it from
/// the first by fork().
class TwoNvidiaTargets : public NvidiaTarget {
 protected:
  TwoNvidiaTargets() {
    group_ = program_.ask("open").at(2);
    child_ = program_.ask("fork").at(0);
    child_process_.emplace(child_);
    const auto shared = std::make_shared<agents_parts>(device_);
    first_ = std::make_unique<managed>(shared, program_.pid(), true);
    second_ = std::make_unique<managed>(shared, static_cast<pid_t>(child_), true);
  }
  void SetUp() override {
    ASSERT_TRUE(first_->open() && second_->open()) << first_->said() << second_->said();
    ASSERT_EQ(first_->computing(), second_->computing());
    ASSERT_EQ(first_->computing().size(), 8U);
  }

  std::uint32_t group_ = 0;
  std::uint32_t child_ = 0;
  std::optional<waiting_process> child_process_;
  std::unique_ptr<managed> first_;
  std::unique_ptr<managed> second_;
};

TEST_F(TwoNvidiaTargets, RunOnlyWhenNeitherIsSuspended) {
  for (managed* const closes : {first_.get(), second_.get()}) {
    managed* const stays = closes == first_.get() ? second_.get() : first_.get();
    EXPECT_THAT(closes->suspend(closes->computing()), Each(outcome::done));
    EXPECT_THAT(stays->suspend(stays->computing()), Each(outcome::done));
    EXPECT_TRUE((*closes)->close());
    EXPECT_EQ(held_channels(device_), 8);
    EXPECT_THAT(stays->resume(stays->computing()), Each(outcome::done));
    EXPECT_EQ(held_channels(device_), 0);
    program_.ask("run");
    ASSERT_TRUE(closes->open()) << closes->said();
  }
  // And each resumes by itself.
  first_->suspend(first_->computing());
  second_->suspend(second_->computing());
  second_->resume(second_->computing());
  EXPECT_EQ(held_channels(device_), 8);
  first_->resume(first_->computing());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(TwoNvidiaTargets, GetBackTheDriversOwnTimeSlice) {
  ASSERT_TRUE((*first_)->set_quantum(first_->gpu(), 100us));
  // What the second one reads is the first one's.
  const auto held = parse_held_process((*second_)->record());
  ASSERT_TRUE(held && held->slices.size() == 1);
  EXPECT_EQ(held->slices.front().own, usual_slice);
  ASSERT_TRUE((*second_)->set_quantum(second_->gpu(), 50us));
  EXPECT_EQ(slice_of(device_, group_), 50);
  EXPECT_TRUE((*second_)->close());
  EXPECT_EQ(slice_of(device_, group_), 100);
  ASSERT_TRUE(second_->open());
  ASSERT_TRUE((*second_)->set_quantum(second_->gpu(), 50us));
  EXPECT_TRUE((*first_)->close());
  EXPECT_EQ(slice_of(device_, group_), 50);
  EXPECT_TRUE((*second_)->close());
  EXPECT_EQ(slice_of(device_, group_), usual_slice);
}

TEST_F(NvidiaTarget, EndsWhenAnotherProcessComesToShareItsClient) {
  program_.ask("open");
  managed target{device_, program_.pid(), false};
  ASSERT_TRUE(target.open()) << target.said();
  target.suspend(target.computing());
  const auto stranger = program_.ask("stranger").at(0);
  const waiting_process other{stranger};
  ASSERT_TRUE(
      eventually(patience, [&] { return command_of(static_cast<pid_t>(stranger)) == "sleep"; }));
  result<void> looked;
  EXPECT_TRUE(eventually(patience, [&] { return !(looked = target.refresh()); }));
  EXPECT_EQ(looked.error(), errc::not_managed);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

// As over a socket (SCM_RIGHTS), at any time.
TEST_F(NvidiaTarget, NeverSuspendsAProcessThatHasTheDescriptorForAMoment) {
  const auto descriptor = program_.ask("open").at(0);
  gpu_program other{device_};
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_THAT(target.resume(target.computing()), Each(outcome::done));
  ASSERT_TRUE(
      other.execs("take " + std::to_string(program_.pid()) + " " + std::to_string(descriptor)));
  // The age that the list of users may have, on a node with thousands of processes.
  const auto later = clock::now() + 1100ms;
  EXPECT_TRUE(eventually(patience, [&] { return clock::now() >= later; }));
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::invalid));
  EXPECT_EQ(target.error(), EPERM);
  EXPECT_EQ(target->set_quantum(target.gpu(), 100us).error().value(), EPERM);
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(target.said(), HasSubstr("shares its connection to the driver with process " +
                                       std::to_string(other.pid())));
  other.process().signal(SIGKILL);
  ASSERT_TRUE(other.process().wait(patience));
  EXPECT_TRUE(eventually(patience, [&] {
    target.suspend(target.computing());
    return held_channels(device_) == 8;
  }));
  EXPECT_TRUE(target->close());
}

// Each look meets another moment of it.
TEST_F(NvidiaTarget, EnduresAProcessThatKeepsReopeningTheDevice) {
  managed target{device_, program_.pid()};
  program_.tell("reopen");
  ASSERT_TRUE(target.open()) << target.said();
  for (int look = 0; look < 100; ++look) {
    ASSERT_TRUE(target.refresh()) << look << ": " << target.said();
    target.suspend(target.computing());
    if (look % 3 == 0) target.resume(target.computing());
  }
  program_.ask("open");  // For good.
  EXPECT_TRUE(eventually(patience, [&] {
    return target.refresh() && target.computing().size() == 8 && held_channels(device_) == 0;
  }));
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_TRUE(target->close());
  program_.ask("close");
  EXPECT_TRUE(is_free());
}

TEST_F(NvidiaTarget, RefusesAProcessWithTooManyDescriptors) {
  program_.ask("without 257");
  managed target{device_, program_.pid()};
  EXPECT_EQ(target.open().error(), errc::not_managed);
  EXPECT_THAT(target.said(), HasSubstr("has more than 256 connections to the driver"));
}

// --- What a process has in its memory ---

TEST_F(NvidiaTarget, WaitsForAProcessWithoutAClient) {
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  program_.ask("without 2");
  ASSERT_TRUE(target.refresh());
  EXPECT_TRUE(target.computing().empty());
  EXPECT_THAT(target.suspend({driver_queue_id{0x5c000004}}), Each(outcome::invalid));
  program_.ask("open");
  EXPECT_TRUE(
      eventually(patience, [&] { return target.refresh() && target.computing().size() == 8; }));
  EXPECT_TRUE(target->close());
}

// Symptom: sluice suspend of PyTorch suspended no queue and succeeded: a piece of the search did
// not find the client.
TEST_F(NvidiaTarget, HasAllQueuesOnceItIsOpenAlsoWithMuchMemory) {
  program_.ask("ballast 512");
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  EXPECT_EQ(target.computing().size(), 8U);
}

// The time for one search is over at once, and later looks go on with it.
TEST_F(NvidiaTarget, FindsAClientInSeveralLooks) {
  const auto client = program_.ask("open").at(1);
  const auto device = device_file::at(device_.nvidia_device());
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, program_.pid(), 0))};
  auto clients = process_clients::open(program_.pid(), std::move(pidfd), *device, 0s);
  ASSERT_TRUE(clients && clients->refresh());
  EXPECT_TRUE(clients->is_searching());
  ASSERT_TRUE(
      eventually(patience, [&] { return clients->refresh() && !clients->clients().empty(); }));
  EXPECT_EQ(clients->clients().front().client().handle(), client);
}

// As of a process that uses NVML first, and CUDA later: its memory may be where the search was.
TEST_F(NvidiaTarget, FindsAClientThatComesDuringASearch) {
  const auto first = program_.ask("open").at(1);
  const auto device = device_file::at(device_.nvidia_device());
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, program_.pid(), 0))};
  auto clients = process_clients::open(program_.pid(), std::move(pidfd), *device, 0s);
  std::uint32_t second = 0;
  do {
    second = program_.ask("second").at(0);
    ASSERT_TRUE(clients && clients->refresh());
  } while (clients->is_searching());
  std::set<std::uint32_t> found;
  EXPECT_TRUE(eventually(patience, [&] {
    if (!clients->refresh()) return false;
    found.clear();
    for (const client_objects& each : clients->clients()) found.insert(each.client().handle());
    return found.contains(second);
  }));
  EXPECT_TRUE(found.contains(first));
}

// One client or more of it may be known already.
TEST_F(NvidiaTarget, SuspendsNothingDuringTheFirstSearch) {
  program_.ask("open");
  program_.ask("second");
  const auto device = device_file::at(device_.nvidia_device());
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, program_.pid(), 0))};
  auto clients = process_clients::open(program_.pid(), std::move(pidfd), *device, 0s);
  for (;;) {
    ASSERT_TRUE(clients && clients->refresh());
    if (!clients->is_searching()) break;
    ASSERT_TRUE(clients->clients().empty());
  }
  EXPECT_EQ(clients->clients().size(), 2U);
}

TEST_F(NvidiaTarget, DoesNotBelieveHandlesInMemory) {
  gpu_program other{device_};
  const auto client = other.ask("open").at(1);
  program_.ask("without 1");
  program_.ask("lie " + std::to_string(client) + " 1");
  program_.ask("lie " + std::to_string(uapi::RS_CLIENT_HANDLE_BASE + 0x10000) + " 500000");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  for (int look = 0; look < 4; ++look) ASSERT_TRUE(target.refresh());
  EXPECT_TRUE(target.computing().empty());
  EXPECT_THAT(target.suspend({driver_queue_id{0x5c000004}}), Each(outcome::invalid));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_EQ(stat_of(device_, "FIFO_DISABLE_CHANNELS"), 0);
  EXPECT_TRUE(target->close());
}

// --- What the driver refuses ---

TEST_F(NvidiaTarget, RepeatsACallForEachChannelIfItFailsAsAWhole) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  control(device_, "answer FIFO_DISABLE_CHANNELS:DISABLE TIMEOUT times=1");
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE TIMEOUT times=1");
  EXPECT_THAT(target.resume(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_TRUE(target->close());
}

TEST_F(NvidiaTarget, IsInDoubtAfterAFailureUntilADisableSucceeds) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto computing = target.computing();
  control(device_, "answer FIFO_DISABLE_CHANNELS:DISABLE TIMEOUT times=100");
  EXPECT_THAT(target.suspend(computing), Each(outcome::failed));
  EXPECT_EQ(target.error(), EIO);
  control(device_, "no-faults");
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(target.suspend(computing), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_THAT(target.resume(computing), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 0);

  // The other way round.
  EXPECT_THAT(target.suspend(computing), Each(outcome::done));
  control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000");
  EXPECT_THAT(target.resume(computing), Each(outcome::failed));
  EXPECT_EQ(target.error(), EIO);
  EXPECT_FALSE(target->close());
  EXPECT_EQ(held_channels(device_), 8);
  control(device_, "no-faults");
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, HoldsNothingWhereTheDriverRefuses) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  control(device_, "answer FIFO_DISABLE_CHANNELS:DISABLE INSUFFICIENT_PERMISSIONS times=100");
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::invalid));
  EXPECT_EQ(target.error(), EPERM);
  control(device_, "no-faults");
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, LosesNothingByAQuestionThatFails) {
  program_.ask("open");
  control(device_, "answer CLIENT_GET_HANDLE_INFO BUSY_RETRY times=1000000");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open()) << target.said();
  EXPECT_TRUE(target.computing().empty());
  control(device_, "no-faults");
  ASSERT_TRUE(
      eventually(patience, [&] { return target.refresh() && target.computing().size() == 8; }));
  target.suspend(target.computing());
  control(device_, "answer CLIENT_GET_HANDLE_INFO BUSY_RETRY times=1000000");
  ASSERT_TRUE(target.refresh()) << target.said();
  EXPECT_EQ(target.computing().size(), 8U);
  control(device_, "no-faults");
  // In the middle of what is new, after questions about the 20 channels and 4 groups, and later
  // about 2 and 1 more each time.
  for (unsigned round = 0; round < 4; ++round) {
    program_.ask("context");
    control(device_, "answer CLIENT_GET_HANDLE_INFO BUSY_RETRY times=" +
                         std::to_string(24 + 3 * round + round));
    ASSERT_TRUE(target.refresh()) << target.said();
    control(device_, "no-faults");
    ASSERT_TRUE(target.refresh()) << target.said();
    ASSERT_EQ(target.computing().size(), 10 + 2 * round);
  }
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, ReportsATimeSliceThatTheDriverRefuses) {
  const auto group = program_.ask("open").at(2);
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  control(device_, "answer SET_TIMESLICE INVALID_ARGUMENT times=1");
  EXPECT_EQ(target->set_quantum(target.gpu(), 100us).error().value(), EINVAL);
  EXPECT_EQ(slice_of(device_, group), usual_slice);
  ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
  control(device_, "answer SET_TIMESLICE TIMEOUT times=1");
  EXPECT_EQ(target->set_quantum(target.gpu(), 0us).error(), errc::lost);
  EXPECT_EQ(slice_of(device_, group), 100);
  EXPECT_TRUE(target->close());
  EXPECT_EQ(slice_of(device_, group), usual_slice);
}

/// How a process comes to have no rights over one of root.
struct rights_lost {
  const char* name;
  bool (*lose)();
};
void PrintTo(const rights_lost& how, std::ostream* to) { *to << how.name; }

bool drop_capabilities() {
  __user_cap_header_struct about{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const std::array<__user_cap_data_struct, 2> none{};
  return ::syscall(SYS_capset, &about, none.data()) == 0;
}

const rights_lost ways_to_lose_rights[] = {
    {"AnotherUser", [] { return ::setresuid(64003, 64003, 64003) == 0; }},
    // The same user, and the kernel answers as Yama does: EPERM.
    {"WithoutCapabilities", drop_capabilities},
    {"AnotherUserNamespace", [] { return ::unshare(CLONE_NEWUSER) == 0; }},
};

class NvidiaTargetWithoutRights : public NvidiaTarget,
                                  public testing::WithParamInterface<rights_lost> {};
INSTANTIATE_TEST_SUITE_P(All, NvidiaTargetWithoutRights, testing::ValuesIn(ways_to_lose_rights),
                         [](const auto& what) { return std::string{what.param.name}; });

TEST_P(NvidiaTargetWithoutRights, IsRefusedWithASentence) {
  program_.ask("open");
  test::child_process without{[this](test::channel& line) {
    managed target{device_, program_.pid()};
    if (!GetParam().lose()) return 1;
    const auto opened = target.open();
    line.send(!opened && opened.error() == errc::not_managed ? target.said() : "managed");
    return target->close() ? 0 : 2;
  }};
  EXPECT_THAT(without.line().receive(patience).value_or(""),
              AllOf(HasSubstr("process " + std::to_string(program_.pid()) + " ("),
                    HasSubstr("cannot be read: "),
                    HasSubstr("; the agent needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH")));
  EXPECT_TRUE(without.succeeds(patience));
  EXPECT_EQ(stat_of(device_, "FIFO_DISABLE_CHANNELS"), 0);
  program_.ask("close");  // No duplicate is left.
  EXPECT_TRUE(is_free());
}

// As when the target becomes another user's, or Yama is made stricter.
TEST_P(NvidiaTargetWithoutRights, IsResumedWhenTheyAreLostLater) {
  const auto group = program_.ask("open").at(2);
  test::child_process without{[this](test::channel& line) {
    managed target{device_, program_.pid()};
    if (!target.open() || !target->set_quantum(target.gpu(), 100us)) return 1;
    target.suspend(target.computing());
    if (held_channels(device_) != 8 || !GetParam().lose()) return 2;
    if (target.refresh().error() != errc::not_managed) return 3;
    line.send(target.said());
    return target->close() ? 0 : 4;
  }};
  EXPECT_THAT(
      without.line().receive(patience).value_or(""),
      AllOf(HasSubstr("cannot be read: "), HasSubstr("sluice does not suspend it any more")));
  EXPECT_TRUE(without.succeeds(patience));
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_EQ(slice_of(device_, group), usual_slice);
}

// The process still has its client, though that cannot be seen any more.
TEST_P(NvidiaTargetWithoutRights, IsKeptWhileTheDriverRefuses) {
  program_.ask("open");
  test::child_process without{[this](test::channel& line) {
    managed target{device_, program_.pid()};
    if (!target.open()) return 1;
    target.suspend(target.computing());
    control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000000");
    if (!GetParam().lose() || target.refresh()) return 2;
    if (target->close()) return 3;
    const auto held = parse_held_process(target->record());
    line.send(held && held->clients.size() == 1 ? "kept" : "lost");
    if (!line.receive(patience)) return 4;
    return target->close() ? 0 : 5;
  }};
  EXPECT_TRUE(without.says("kept", patience));
  EXPECT_EQ(held_channels(device_), 8);
  control(device_, "no-faults");
  without.line().send("go on");
  EXPECT_TRUE(without.succeeds(patience));
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, ReleasesAClientThatIsNoLongerInMemory) {
  program_.ask("open");
  std::string record;
  {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    target.suspend(target.computing());
    record = target->record();
  }
  // Another program, which inherits the descriptor.
  ASSERT_TRUE(program_.execs("inherit"));
  EXPECT_EQ(held_channels(device_), 8);
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_process(program_.pid(), *device, parse_held_process(record).value()));
  EXPECT_EQ(held_channels(device_), 0);
}

// A question about a client over another's open file leaves lines in the kernel's log.
TEST_F(NvidiaTarget, IsReleasedWithoutQuestionsToUnrelatedProcesses) {
  const auto fd = program_.ask("open").at(0);
  gpu_program unrelated{device_};
  held_process held;
  {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    target.suspend(target.computing());
    held = parse_held_process(target->record()).value();
  }
  ASSERT_NE(held.kinship, 0U);
  // Of another user.
  ASSERT_TRUE(unrelated.execs("take " + std::to_string(program_.pid()) + " " + std::to_string(fd)));
  program_.tell("exit");
  ASSERT_TRUE(program_.process().succeeds(patience));
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_EQ(list_users(*device).size(), 1U);
  const auto questions = [&] { return stat_of(device_, "CLIENT_GET_HANDLE_INFO"); };
  const auto before = questions();
  ASSERT_TRUE(release_process(0, *device, held));
  EXPECT_EQ(questions(), before);
  // It is asked if it was recorded, but not over a file of another mount.
  held.sharers.push_back({.pid = unrelated.pid(), .start_time = unrelated.start_time()});
  auto elsewhere = held;
  if (elsewhere.clients.front().mount++ != 0) {
    ASSERT_TRUE(release_process(0, *device, elsewhere));
    EXPECT_EQ(questions(), before);
  }
  EXPECT_EQ(held_channels(device_), 8);
  ASSERT_TRUE(release_process(0, *device, held));
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaTarget, RecordsWhichUnrelatedProcessesShareItsClient) {
  const auto fd = program_.ask("open").at(0);
  const waiting_process child{program_.ask("fork").at(0)};
  gpu_program other{device_};
  ASSERT_TRUE(other.execs("take " + std::to_string(program_.pid()) + " " + std::to_string(fd)));
  managed target{device_, program_.pid(), true};
  ASSERT_TRUE(target.open()) << target.said();
  const auto held = parse_held_process(target->record());
  ASSERT_TRUE(held);
  EXPECT_THAT(held->sharers, testing::ElementsAre(held_process::sharer{
                                 .pid = other.pid(), .start_time = other.start_time()}));
  // And finds them again.
  EXPECT_THAT(target.suspend(target.computing()), Each(outcome::done));
  program_.tell("exit");
  ASSERT_TRUE(program_.process().succeeds(patience));
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_process(0, *device, *held));
  EXPECT_EQ(held_channels(device_), 0);
}

// The kernel shows its descriptors and its memory over its other threads only.
TEST_F(NvidiaTarget, IsReleasedThoughItsMainThreadHasEnded) {
  const auto group = program_.ask("open").at(2);
  std::string record;
  {
    managed target{device_, program_.pid()};
    ASSERT_TRUE(target.open());
    ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
    target.suspend(target.computing());
    record = target->record();
  }
  program_.ask("headless");
  const auto device = device_file::at(device_.nvidia_device());
  const auto held = parse_held_process(record).value();
  const auto users = list_users(*device);
  ASSERT_EQ(std::ranges::count(users, program_.pid(), &remote_fd::pid), 1);
  if (!open_process(program_.pid(), visible_thread_of(program_.pid()))) {
    EXPECT_FALSE(release_process(program_.pid(), *device, held)) << "the record stays";
    GTEST_SKIP() << "needs Linux 6.9";
  }
  // As when the process is known, and as when another one has its client.
  for (const pid_t pid : {program_.pid(), 0}) {
    ASSERT_TRUE(release_process(pid, *device, held));
    EXPECT_EQ(held_channels(device_), 0);
    EXPECT_EQ(slice_of(device_, group), usual_slice);
    program_.ask("run");
  }
  ASSERT_TRUE(release_everything_of(program_.pid(), *device));
}

TEST_F(NvidiaTarget, LetsGoOfAProcessWhoseMainThreadEnds) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  target.suspend(target.computing());
  program_.ask("headless");
  EXPECT_EQ(target.refresh().error(), errc::not_managed);
  EXPECT_THAT(target.said(), HasSubstr("has no main thread any more"));
  EXPECT_TRUE(target->close());
  EXPECT_EQ(held_channels(device_), 0);
  program_.ask("run");
}

TEST_F(NvidiaTarget, ActsOnUntestedReleasesOnlyIfTold) {
  program_.ask("open");
  const std::string proc = device_.root() + "/proc_of_another";
  std::filesystem::create_directory(proc);
  const auto other = [&](const std::string& module) {
    std::ofstream{proc + "/version"} << "NVRM version: NVIDIA UNIX " << module << "  Release\n";
  };
  std::string said;
  const agent::acting_host host{.say = [&](std::string_view words) { said = words; }};
  const auto driver = make_acting_driver();
  std::string why;
  ASSERT_TRUE(driver->set("device", device_.nvidia_device(), why));
  ASSERT_TRUE(driver->set("proc", proc, why));
  EXPECT_FALSE(driver->open(host));
  EXPECT_THAT(said, HasSubstr("load NVIDIA's driver"));
  other("Open Kernel Module for x86_64  595.45.04");
  EXPECT_EQ(driver->open(host).error(), errc::not_supported);
  EXPECT_THAT(said, AllOf(HasSubstr("not tested with driver 595.45.04"),
                          HasSubstr("allow_untested_driver = true")));
  other("x86_64 Kernel Module  580.159.04");
  EXPECT_EQ(driver->open(host).error(), errc::not_supported);
  EXPECT_THAT(said, HasSubstr("580.159.04 (closed kernel modules)"));
  ASSERT_TRUE(driver->set("allow_untested_driver", "true", why));
  auto side = driver->open(host);
  ASSERT_TRUE(side) << said;
  ASSERT_TRUE((*side)->attach(process_id{1}, program_.pid(), program_.start_time()));
  report answer;
  ASSERT_TRUE(eventually(
      patience, [&] { return (*side)->next(answer) && answer.kind == report_kind::attached; }));
  EXPECT_FALSE(error_code{answer.error});
  EXPECT_TRUE((*side)->stop(patience));
}

// What is searched for in memory may have become rare there.
TEST_F(NvidiaTarget, IsReleasedThoughItsMemoryHidesItsClient) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  target.suspend(target.computing());
  const auto held = parse_held_process(target->record());
  ASSERT_TRUE(held);
  for (int time = 0; time < 200; ++time)
    program_.ask("lie " + std::to_string(uapi::RS_CLIENT_HANDLE_BASE + 100) + " 16");
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_process(program_.pid(), *device, *held));
  EXPECT_EQ(held_channels(device_), 0);
}

// A look gives new groups the quantum, and no record is written for that.
TEST_F(NvidiaTarget, IsReleasedWithTheSlicesOfAClientThatCameAfterTheRecord) {
  program_.ask("open");
  managed target{device_, program_.pid()};
  ASSERT_TRUE(target.open());
  const auto held = parse_held_process(target->record());
  ASSERT_TRUE(held);
  ASSERT_TRUE(target->set_quantum(target.gpu(), 100us));
  program_.ask("close");
  const auto group = program_.ask("open").at(2);
  ASSERT_TRUE(target.refresh());
  ASSERT_TRUE(eventually(patience, [&] {
    (void)target.refresh();
    return slice_of(device_, group) == 100;
  })) << target.said();
  const auto device = device_file::at(device_.nvidia_device());
  ASSERT_TRUE(release_process(program_.pid(), *device, *held));
  EXPECT_EQ(slice_of(device_, group), usual_slice);
}

}  // namespace
}  // namespace sluice::nvidia::target_test
