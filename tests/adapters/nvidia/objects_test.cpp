// Objects of clients, and calls that several threads share, on the simulated device.

#include "channel_calls.hpp"
#include "family.hpp"
#include "gpu_program.hpp"
#include "process_clients.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::nvidia::objects_test {
namespace {

using test::eventually;
using test::gpu_program;
using test::held_channels;
using test::patience;
using test::stat_of;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A program with a client, and that client over a duplicate of its descriptor.
class reached_client {
 public:
  explicit reached_client(const test::simulated_device& device) : program{device} {
    const auto opened = program.ask("open");
    handle_ = opened.at(1);
    group = opened.at(2);
    const unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, program.pid(), 0))};
    copy_ = duplicate(pidfd, static_cast<int>(opened.at(0))).value();
  }
  rm_client client() const { return {copy_.get(), handle_}; }
  /// Those of the compute group.
  std::vector<channel_name> channels() const {
    client_objects objects{client(), first_object};
    objects.look();
    std::vector<channel_name> names;
    for (const auto& [number, one] : objects.channels())
      if (one.group == group) names.push_back({handle_, number});
    return names;
  }

  gpu_program program;
  uapi::NvHandle group = 0;

 private:
  uapi::NvHandle handle_ = 0;
  unique_fd copy_;
};

constexpr uapi::NvHandle device_object = first_object;
constexpr uapi::NvHandle subdevice_object = first_object + 1;

class NvidiaObjects : public testing::Test {
 protected:
  uapi::NvHandle make_group(uapi::NvHandle handle) {
    return one_.program
        .ask("object " + std::to_string(uapi::KEPLER_CHANNEL_GROUP_A) + ' ' +
             std::to_string(device_object) + ' ' + std::to_string(handle))
        .at(0);
  }

  test::simulated_device device_{{.profile = "h100"}};
  reached_client one_{device_};
};

TEST_F(NvidiaObjects, AreFoundBeyondGaps) {
  client_objects seen{one_.client(), first_object};
  const auto far = make_group(first_object + 900);
  seen.look();
  EXPECT_EQ(seen.groups().size(), 5U);
  EXPECT_TRUE(seen.groups().contains(far));
  EXPECT_EQ(seen.not_understood(), "");
  // Later looks ask for fewer numbers.
  const auto later = make_group(far + 60);
  seen.look();
  EXPECT_TRUE(seen.groups().contains(later));
  const auto swept = make_group(later + 5000);
  int looks = 0;
  while (!seen.groups().contains(swept) && ++looks < 1000) seen.look();
  EXPECT_TRUE(seen.groups().contains(swept));
  EXPECT_EQ(seen.groups().at(swept).gpu, gpu_id{0x400});
  one_.program.ask("free " + std::to_string(later));
  seen.look();
  EXPECT_FALSE(seen.groups().contains(later));
  EXPECT_EQ(seen.groups().size(), 6U);
  EXPECT_EQ(seen.channels().size(), 20U);
}

TEST_F(NvidiaObjects, OfAnotherRuntimeAreNotUnderstood) {
  client_objects seen{one_.client(), first_object};
  seen.look();
  const auto groups = seen.groups();
  for (const auto& [handle, each] : groups) one_.program.ask("free " + std::to_string(handle));
  const auto own_number = make_group(0x1234);
  seen.look();
  EXPECT_TRUE(seen.channels().empty());
  EXPECT_THAT(seen.not_understood(), HasSubstr("its runtime is not CUDA"));
  one_.program.ask("object " + std::to_string(uapi::HOPPER_CHANNEL_GPFIFO_A) + ' ' +
                   std::to_string(own_number) + " 0");
  seen.look();
  EXPECT_THAT(seen.not_understood(), HasSubstr("has channels outside of channel groups"));
}

TEST_F(NvidiaObjects, MadeDuringALookAreFoundByTheNextOne) {
  client_objects seen{one_.client(), first_object};
  seen.look();
  const auto groups = seen.groups();
  for (const auto& [handle, each] : groups) one_.program.ask("free " + std::to_string(handle));
  seen.look();
  ASSERT_EQ(seen.not_understood(), "");
  const auto asked = stat_of(device_, "CLIENT_GET_CHILD_HANDLE");
  control(device_, "hang CLIENT_GET_CHILD_HANDLE");
  std::string why;
  std::jthread looking{[&] {
    seen.look();
    why = seen.not_understood();
  }};
  const bool hangs = eventually(
      patience, [&] { return stat_of(device_, "CLIENT_GET_CHILD_HANDLE") == asked + 1; });
  const auto made = make_group(0);
  control(device_, "no-faults");
  looking.join();
  ASSERT_TRUE(hangs);
  EXPECT_EQ(why, "");
  seen.look();
  EXPECT_TRUE(seen.groups().contains(made));
  EXPECT_EQ(seen.not_understood(), "");
}

TEST_F(NvidiaObjects, AreAskedForOnceByALookThatIsStopped) {
  client_objects seen{one_.client(), first_object};
  seen.look();
  const auto questions = [&](const auto& looks) {
    const auto before = stat_of(device_, "CLIENT_GET_HANDLE_INFO");
    looks();
    return stat_of(device_, "CLIENT_GET_HANDLE_INFO") - before;
  };
  const auto whole = questions([&] { seen.look(); });
  const auto parts = questions([&] {
    for (int part = 0; part < 5; ++part) {
      int left = 30;
      seen.look([&] { return left-- == 0; });
    }
    seen.look();
  });
  EXPECT_EQ(parts, whole);
  // Before the questions about new objects, and between them.
  for (int left : {140, 180}) {
    seen.look([&] { return left-- == 0; });
    const auto made = make_group(0);
    seen.look();
    seen.look();
    EXPECT_TRUE(seen.groups().contains(made)) << "also what came after the stop";
    EXPECT_EQ(seen.not_understood(), "");
  }
}

TEST_F(NvidiaObjects, AreAllAskedForAfterAQuestionWithoutAnAnswer) {
  client_objects seen{one_.client(), first_object};
  seen.look();
  // The first question about a new object.
  control(device_, "delay CLIENT_GET_HANDLE_INFO 0s times=152");
  control(device_, "answer CLIENT_GET_HANDLE_INFO BUSY_RETRY times=1");
  seen.look();
  control(device_, "no-faults");
  one_.program.ask("free " + std::to_string(one_.group));
  seen.look();
  EXPECT_FALSE(seen.groups().contains(one_.group));
}

TEST_F(NvidiaObjects, MadeBetweenTwoQuestionsAreNotSkipped) {
  client_objects seen{one_.client(), first_object};
  seen.look();
  // After questions about 20 channels, 4 groups, 128 numbers further on, and the next number.
  const auto asked = stat_of(device_, "CLIENT_GET_HANDLE_INFO");
  control(device_, "delay CLIENT_GET_HANDLE_INFO 0s times=153");
  control(device_, "hang CLIENT_GET_HANDLE_INFO");
  std::jthread looking{[&] { seen.look(); }};
  const bool hangs = eventually(
      patience, [&] { return stat_of(device_, "CLIENT_GET_HANDLE_INFO") == asked + 154; });
  const auto made = one_.program.ask("context");
  control(device_, "no-faults");
  looking.join();
  ASSERT_TRUE(hangs);
  ASSERT_TRUE(seen.groups().contains(made.at(0)));
  EXPECT_TRUE(seen.groups().at(made.at(0)).computes);
  EXPECT_EQ(seen.channels().size(), 22U);
  EXPECT_EQ(seen.not_understood(), "");
}

/// A thread that changes channels, and what became of them.
class changing {
 public:
  changing(channel_calls& calls, const reached_client& of, std::vector<channel_name> names)
      : names_(std::move(names)), states_(names_.size(), channel_state::doubtful) {
    thread_ = std::jthread{[this, &calls, &of] {
      tid_ = ::gettid();
      (void)calls.change(of.client(), subdevice_object, gpu_id{0x400}, true, names_,
                         [this](std::size_t at, channel_state state) { states_[at] = state; });
    }};
  }
  /// Whether it waits for its turn: it does nothing else for long.
  bool waits() const {
    int asleep = 0;
    return eventually(patience, [&] {
      asleep = tid_ != 0 && test::state_of(tid_) == 'S' ? asleep + 1 : 0;
      return asleep == 50;
    });
  }
  const std::vector<channel_state>& states() {
    thread_.join();
    return states_;
  }

 private:
  const std::vector<channel_name> names_;
  std::vector<channel_state> states_;
  std::atomic<pid_t> tid_{0};
  std::jthread thread_;
};

/// While a call for the GPU hangs, two others wait for their turn.
class NvidiaCalls : public NvidiaObjects {
 protected:
  /// \param names of the three processes.
  void share(const std::vector<channel_name>& of_one, const std::vector<channel_name>& of_two,
             const std::vector<channel_name>& of_three) {
    control(device_, "hang FIFO_DISABLE_CHANNELS");
    changing first{calls_, one_, of_one};
    const bool hangs =
        eventually(patience, [&] { return stat_of(device_, "FIFO_DISABLE_CHANNELS") == 1; });
    changing second{calls_, two_, of_two};
    changing third{calls_, three_, of_three};
    const bool both_wait = second.waits() && third.waits();
    control(device_, "no-faults");
    ASSERT_TRUE(hangs && both_wait);
    EXPECT_THAT(first.states(), Each(channel_state::changed));
    EXPECT_THAT(second.states(), Each(channel_state::changed));
    states_ = third.states();
  }

  reached_client two_{device_};
  reached_client three_{device_};
  channel_calls calls_{patience};
  std::vector<channel_state> states_;  ///< Of the third process.
};

TEST_F(NvidiaCalls, AreSharedByProcesses) {
  share(one_.channels(), two_.channels(), three_.channels());
  EXPECT_THAT(states_, AllOf(SizeIs(8), Each(channel_state::changed)));
  EXPECT_EQ(held_channels(device_), 24);
  EXPECT_EQ(stat_of(device_, "FIFO_DISABLE_CHANNELS"), 2);
}

TEST_F(NvidiaCalls, OfOneProcessAreNotSpoiltByAnother) {
  const auto names = three_.channels();
  ASSERT_EQ(names.size(), 8U);
  three_.program.ask("free " + std::to_string(names[3].channel));
  share(one_.channels(), two_.channels(), names);
  std::vector<channel_state> expected(8, channel_state::changed);
  expected[3] = channel_state::gone;
  EXPECT_EQ(states_, expected);
  EXPECT_EQ(held_channels(device_), 23);
}

TEST_F(NvidiaCalls, WaitForThoseThatAreExpected) {
  calls_.expect(gpu_id{0x400}, true, 2);
  changing first{calls_, one_, one_.channels()};
  EXPECT_TRUE(first.waits());
  EXPECT_EQ(held_channels(device_), 0);
  changing second{calls_, two_, two_.channels()};
  EXPECT_THAT(first.states(), Each(channel_state::changed));
  EXPECT_THAT(second.states(), Each(channel_state::changed));
  EXPECT_EQ(held_channels(device_), 16);
  EXPECT_EQ(stat_of(device_, "FIFO_DISABLE_CHANNELS"), 1);
}

TEST_F(NvidiaCalls, DoNotWaitForLongForOneThatDoesNotCome) {
  channel_calls calls{std::chrono::milliseconds{1}};
  calls.expect(gpu_id{0x400}, true, 3);
  changing first{calls, one_, one_.channels()};
  EXPECT_THAT(first.states(), Each(channel_state::changed));
  EXPECT_EQ(held_channels(device_), 8);
}

}  // namespace
}  // namespace sluice::nvidia::objects_test
