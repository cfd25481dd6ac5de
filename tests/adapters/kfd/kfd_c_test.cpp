/// The C API through the shared library, against the simulated device and real processes.

#include "child_process.hpp"
#include "kfd_c_handle.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd.h"
#include "sluice/sim/client.hpp"

namespace sluice::test::kfd_c_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CApi : public ::testing::Test {
 protected:
  static device_settings quick() { return {.profile = fast_profile()}; }

  kfd_c_handle open(std::uint32_t flags = 0) const { return open_kfd_c(device_.roots(), flags); }
  static sluice_kfd_queue_ref all_of(const offline_target& target) {
    return {.pid = target.pid(), .queue_id = SLUICE_KFD_ALL_QUEUES, .gpu_id = 0, .status = 1};
  }
  static bool untraced(pid_t pid) {
    return eventually(patience, [&] {
      return read_file("/proc/" + std::to_string(pid) + "/status").find("TracerPid:\t0") !=
             std::string::npos;
    });
  }

  simulated_device device_{quick()};
};

TEST_F(CApi, SuspendsAndResumesAllQueuesOfAProcess) {
  const offline_target target{device_.roots(), {.queues = 3}};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  EXPECT_EQ(ref.status, 0);
  EXPECT_EQ(ref.gpu_id, 51110U);
  EXPECT_TRUE(target.stands_still());
  ASSERT_EQ(sluice_kfd_resume_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  EXPECT_TRUE(target.runs());
  EXPECT_EQ(target.wrong(), 0U);
  EXPECT_EQ(sluice_kfd_release(handle.get(), target.pid(), 0), 0);
  EXPECT_TRUE(untraced(target.pid()));
  EXPECT_EQ(sluice_kfd_release(handle.get(), target.pid(), 0), -ESRCH);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("is not held by the caller"));
}

TEST_F(CApi, NamesWhatBecameOfEachEntry) {
  const offline_target target{device_.roots(), {.queues = 2}};
  const offline_target other{device_.roots()};
  ASSERT_TRUE(target.says('r') && other.says('r'));
  const auto handle = open();
  std::array<sluice_kfd_queue_ref, 6> refs{{
      {target.pid(), 1, 0, 9},
      {target.pid(), 77, 0, 9},  // no such queue
      {other.pid(), 0, 0, 9},    // another process, in the same call
      {target.pid(), 1, 0, 9},   // named twice
      {0x7ffffff0, 0, 0, 9},     // no such process
      {::getpid(), 0, 0, 9},     // this one
  }};
  EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), refs.data(), refs.size(), 0), 3);
  EXPECT_EQ(refs[0].status, 0);
  EXPECT_EQ(refs[1].status, -ENOENT);
  EXPECT_EQ(refs[2].status, 0);
  EXPECT_EQ(refs[3].status, 0);
  EXPECT_EQ(refs[4].status, -ESRCH);
  EXPECT_EQ(refs[5].status, -EINVAL);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("has no such queue"));
  EXPECT_TRUE(other.stands_still());
  EXPECT_TRUE(target.runs()) << "its queue 0 was not named";

  sluice_kfd_queue* queues = nullptr;
  std::size_t count = 0;
  ASSERT_EQ(sluice_kfd_find_queues_by_process(handle.get(), target.pid(), sizeof *queues, &queues,
                                              &count),
            0);
  ASSERT_EQ(count, 2U);
  EXPECT_EQ(queues[0].flags, 0U);
  EXPECT_EQ(queues[1].flags, std::uint32_t{SLUICE_KFD_SUSPENDED_HERE});
  sluice_kfd_free(queues);
}

// The wait for a session and for the driver happens inside the library, so threads need not care.
TEST_F(CApi, ServesSeveralThreadsAtOnce) {
  std::vector<std::unique_ptr<offline_target>> targets;
  for (int i = 0; i < 3; ++i) {
    targets.push_back(std::make_unique<offline_target>(device_.roots()));
    ASSERT_TRUE(targets.back()->says('r'));
  }
  const auto handle = open();
  std::vector<std::future<int>> failures;
  for (std::size_t thread = 0; thread < 6; ++thread) {
    failures.push_back(std::async(std::launch::async, [&, thread] {
      int failed = 0;
      for (int round = 0; round < 10; ++round) {
        auto ref = all_of(*targets[thread % targets.size()]);
        if (sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0) != 1) ++failed;
        if (sluice_kfd_resume_queues(handle.get(), &ref, 1, 0) != 1) ++failed;
      }
      return failed;
    }));
  }
  for (auto& each : failures) EXPECT_EQ(each.get(), 0);
  for (const auto& each : targets) {
    EXPECT_TRUE(each->runs());
    EXPECT_EQ(each->wrong(), 0U);
  }
}

TEST_F(CApi, SuspendsAQueueThatIsYoungerThanTheSession) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1);
  ASSERT_EQ(sluice_kfd_resume_queues(handle.get(), &ref, 1, 0), 1);
  ASSERT_TRUE(target.obeys('q'));
  sluice_kfd_queue_ref young{target.pid(), 1, 0, 9};
  EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), &young, 1, 0), 1) << sluice_kfd_last_error();
  EXPECT_EQ(young.gpu_id, 51110U);
}

TEST_F(CApi, ResumesWhenItIsCleanedUpAndWhenItsProcessDies) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1);
  ASSERT_TRUE(target.stands_still());
  handle.reset();
  EXPECT_TRUE(target.runs());
  EXPECT_TRUE(untraced(target.pid()));

  child_process holder{[&](channel& line) {
    sluice_kfd* own = open().release();
    auto again = all_of(target);
    if (sluice_kfd_suspend_queues(own, &again, 1, 0) != 1) return 1;
    line.send("holding");
    line.receive(60s);
    return 0;
  }};
  ASSERT_TRUE(holder.says("holding", 20s));
  ASSERT_TRUE(target.stands_still());
  holder.signal(SIGKILL);
  ASSERT_TRUE(holder.wait(10s));
  EXPECT_TRUE(target.runs());
}

TEST_F(CApi, TellsOfATargetThatEndsWhileItIsHeld) {
  auto target = std::make_unique<offline_target>(device_.roots());
  ASSERT_TRUE(target->says('r'));
  const auto handle = open();
  auto ref = all_of(*target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1);
  ::kill(target->pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] {
    return sluice_kfd_resume_queues(handle.get(), &ref, 1, 0) == 0 && ref.status == -ESRCH;
  }));
}

void control(const simulated_device& device, const std::string& line) {
  std::ofstream{device.root() + "/sim/control"} << line << std::endl;
}

// Symptom: "resumed", and the work was lost.
TEST_F(CApi, TellsOfAResetWhileItHolds) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  control(device_, "reset 51110");
  ASSERT_TRUE(eventually(
      patience, [&] { return device_.stats().find("\"resets\":1") != std::string::npos; }));
  EXPECT_EQ(sluice_kfd_resume_queues(handle.get(), &ref, 1, 0), 0);
  EXPECT_EQ(ref.status, -EIO);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("GPU 51110 was reset while the process was held"));
}

// Symptom: the same, where the process destroyed its dead queues as soon as the driver had resumed
// them.
TEST_F(CApi, TellsOfAResetOfWhatIsGoneSince) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  control(device_, "reset 51110");
  ASSERT_TRUE(eventually(
      patience, [&] { return device_.stats().find("\"resets\":1") != std::string::npos; }));
  target.tell('d');  // Waits in the driver until the queue is resumed.
  target.tell('d');
  std::array<sluice_kfd_queue_ref, 2> refs{ref, ref};
  refs[1].queue_id = 1;
  EXPECT_EQ(sluice_kfd_resume_queues(handle.get(), refs.data(), refs.size(), 0), 0);
  for (const auto& each : refs) {
    EXPECT_EQ(each.status, -EIO) << each.queue_id;
    EXPECT_EQ(each.gpu_id, 51110U) << each.queue_id;
  }
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("GPU 51110 was reset while the process was held"));
  EXPECT_EQ(sluice_kfd_release(handle.get(), target.pid(), 0), 0) << "reported before";
}

TEST_F(CApi, TellsOfAResetInARelease) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  ASSERT_EQ(sluice_kfd_resume_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  control(device_, "reset 51110");
  ASSERT_TRUE(eventually(
      patience, [&] { return device_.stats().find("\"resets\":1") != std::string::npos; }));
  EXPECT_EQ(sluice_kfd_release(handle.get(), target.pid(), 0), -EIO);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("GPU 51110 was reset while the process was held"));
  EXPECT_EQ(sluice_kfd_release(handle.get(), target.pid(), 0), -ESRCH);
}

TEST_F(CApi, TellsOfAResumeThatFailsWhenItIsCleanedUp) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  auto handle = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  control(device_, "fail-cycle 51110 20ms");
  EXPECT_EQ(sluice_kfd_cleanup(handle.release()), -EIO);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("failed in hardware"));
  EXPECT_TRUE(untraced(target.pid()));
}

TEST_F(CApi, NamesTheOtherTracer) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto first = open();
  auto ref = all_of(target);
  ASSERT_EQ(sluice_kfd_suspend_queues(first.get(), &ref, 1, 0), 1);
  const auto second = open();
  EXPECT_EQ(sluice_kfd_suspend_queues(second.get(), &ref, 1, 0), 0);
  EXPECT_EQ(ref.status, -EPERM);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("process " + std::to_string(target.pid())));
}

TEST_F(CApi, SuspendsItsOwnQueuesWithoutATracer) {
  const auto where = device_.roots();
  auto client = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  ASSERT_TRUE(client);
  auto queue = (*client)->create_queue({.packets = 64});
  ASSERT_TRUE(queue);
  const auto handle = open();
  EXPECT_EQ(sluice_kfd_resume_own_queues(handle.get()), 0) << "nothing is suspended yet";
  ASSERT_EQ(sluice_kfd_suspend_own_queues(handle.get(), nullptr, 0), 1) << sluice_kfd_last_error();
  const auto index = (*queue)->submit({.length = 100us, .waves = 1});
  ASSERT_TRUE(index);
  (*queue)->ring();
  EXPECT_FALSE((*queue)->wait(*index, 100ms)) << "it ran while it was suspended";

  // A wrong id resumes nothing of what an earlier call suspended.
  sluice_kfd_queue_ref wrong{0, 55, 0, 9};
  EXPECT_EQ(sluice_kfd_suspend_own_queues(handle.get(), &wrong, 1), 0);
  EXPECT_EQ(wrong.status, -ENOENT);
  EXPECT_FALSE((*queue)->wait(*index, 50ms));

  ASSERT_EQ(sluice_kfd_resume_own_queues(handle.get()), 0) << sluice_kfd_last_error();
  EXPECT_TRUE((*queue)->wait(*index, 20s));

  sluice_kfd_queue_ref own{0, (*queue)->id(), 0, 9};
  EXPECT_EQ(sluice_kfd_suspend_own_queues(handle.get(), &own, 1), 1);
  EXPECT_EQ(own.gpu_id, 51110U);
  sluice_kfd_queue_ref stranger{1, 0, 0, 9};
  EXPECT_EQ(sluice_kfd_suspend_own_queues(handle.get(), &stranger, 1), -EINVAL);
  EXPECT_EQ(sluice_kfd_resume_own_queues(handle.get()), 0);
}

// The end of the runtime waits for an answer from whoever holds the session; that is the process
// itself here.
TEST_F(CApi, LetsARuntimeEndThatEndsWhileItsOwnQueuesAreSuspended) {
  const auto where = device_.roots();
  auto client = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  ASSERT_TRUE(client);
  auto queue = (*client)->create_queue({.packets = 64});
  ASSERT_TRUE(queue);
  const auto handle = open();
  ASSERT_EQ(sluice_kfd_suspend_own_queues(handle.get(), nullptr, 0), 1) << sluice_kfd_last_error();
  auto ended = std::async(std::launch::async, [&] {
    queue->reset();
    client->reset();
  });
  EXPECT_EQ(ended.wait_for(100ms), std::future_status::timeout) << "destroying did not wait";
  EXPECT_TRUE(eventually(patience, [&] {
    EXPECT_EQ(sluice_kfd_resume_own_queues(handle.get()), 0) << sluice_kfd_last_error();
    return ended.wait_for(0s) == std::future_status::ready;
  }));
}

TEST_F(CApi, ListsTheQueuesOfAllProcesses) {
  const offline_target one{device_.roots(), {.queues = 2}};
  const offline_target two{device_.roots()};
  ASSERT_TRUE(one.says('r') && two.says('r'));
  const auto handle = open(SLUICE_KFD_LIST_ONLY);
  sluice_kfd_queue* queues = nullptr;
  std::size_t count = 0;
  ASSERT_EQ(sluice_kfd_get_all_queues(handle.get(), sizeof *queues, &queues, &count), 0);
  EXPECT_EQ(count, 3U);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(queues[i].gpu_id, 51110U);
    EXPECT_EQ(queues[i].type, std::uint32_t{SLUICE_KFD_COMPUTE});
    EXPECT_EQ(queues[i].priority, 7) << "the client's default, and mqds is readable";
    EXPECT_EQ(queues[i].ring_bytes, 4096U);
    EXPECT_EQ(queues[i].start_time, (queues[i].pid == one.pid() ? one : two).start_time());
  }
  sluice_kfd_free(queues);

  ASSERT_EQ(
      sluice_kfd_find_queues_by_priority(handle.get(), 7, 15, sizeof *queues, &queues, &count), 0);
  EXPECT_EQ(count, 3U);
  sluice_kfd_free(queues);
  ASSERT_EQ(
      sluice_kfd_find_queues_by_priority(handle.get(), 8, 15, sizeof *queues, &queues, &count), 0);
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(queues, nullptr);
  EXPECT_EQ(sluice_kfd_find_queues_by_process(handle.get(), 1, sizeof *queues, &queues, &count),
            -ESRCH);

  auto ref = all_of(one);
  EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), -EBADF);
}

// To attach would make it one: the driver lists it from then on.
TEST_F(CApi, DoesNotTouchAProcessThatDoesNotUseTheDriver) {
  const family stranger{[](int) -> int {
    for (;;) ::pause();
  }};
  const std::string name = "process " + std::to_string(stranger.pid());
  const std::string entry = device_.roots().sysfs + "/proc/" + std::to_string(stranger.pid());
  const std::string sentence = name + " does not use the AMD compute driver (no " + entry + ")";
  const auto handle = open();
  for (const std::uint32_t queue : {SLUICE_KFD_ALL_QUEUES, 0U}) {
    sluice_kfd_queue_ref ref{stranger.pid(), queue, 0, 9};
    EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 0);
    EXPECT_EQ(ref.status, -ESRCH);
    EXPECT_EQ(sluice_kfd_last_error(), sentence);
  }
  EXPECT_FALSE(std::filesystem::exists(entry));
  EXPECT_EQ(sluice_kfd_release(handle.get(), stranger.pid(), 0), -ESRCH) << "it is not held";
  sluice_kfd_queue* queues = nullptr;
  std::size_t count = 9;
  EXPECT_EQ(sluice_kfd_find_queues_by_process(handle.get(), stranger.pid(), sizeof *queues, &queues,
                                              &count),
            -ESRCH);
  EXPECT_EQ(sluice_kfd_last_error(), sentence);
}

// A tree that does not show ourselves, who have opened the driver, tells nothing of others: it has
// the pids of another namespace.
TEST_F(CApi, AttachesWhereTheTreeCannotTellWhoUsesTheDriver) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto where = device_.roots();
  const std::string other = where.sysfs + "-of-another-namespace";
  sluice_kfd_options options{};
  options.size = sizeof options;
  options.device = where.device.c_str();
  options.sysfs = other.c_str();
  sluice_kfd* opened = nullptr;
  ASSERT_EQ(sluice_kfd_init(&options, &opened), 0) << sluice_kfd_last_error();
  const kfd_c_handle handle{opened};
  auto ref = all_of(target);
  EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 1) << sluice_kfd_last_error();
  EXPECT_TRUE(target.stands_still());
}

// A caller built against an older, shorter structure, and one built against a later, longer one.
TEST_F(CApi, FillsEntriesAsLargeAsTheCallers) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto handle = open(SLUICE_KFD_LIST_ONLY);
  for (const std::size_t entry_size :
       {sizeof(sluice_kfd_queue) - 16, sizeof(sluice_kfd_queue) + 8}) {
    sluice_kfd_queue* queues = nullptr;
    std::size_t count = 0;
    ASSERT_EQ(sluice_kfd_get_all_queues(handle.get(), entry_size, &queues, &count), 0);
    ASSERT_EQ(count, 2U);
    std::uint32_t second_id = 9;
    std::memcpy(&second_id, reinterpret_cast<char*>(queues) + entry_size + 4, sizeof second_id);
    EXPECT_EQ(second_id, 1U);
    sluice_kfd_free(queues);
  }
}

TEST_F(CApi, RefusesWhatMakesNoSense) {
  sluice_kfd* handle = nullptr;
  EXPECT_EQ(sluice_kfd_init(nullptr, nullptr), -EINVAL);
  sluice_kfd_options options{};
  EXPECT_EQ(sluice_kfd_init(&options, &handle), -EINVAL);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("options.size is 0"));
  options.size = sizeof options;
  options.flags = 0x80;
  EXPECT_EQ(sluice_kfd_init(&options, &handle), -EINVAL);
  options.flags = 0;
  options.device = "/nonexistent/kfd";
  EXPECT_EQ(sluice_kfd_init(&options, &handle), -ENOENT);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("cannot open /nonexistent/kfd"));
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(sluice_kfd_cleanup(nullptr), 0);
  EXPECT_EQ(sluice_kfd_version(), std::uint32_t{SLUICE_KFD_VERSION});

  const auto opened = open();
  EXPECT_EQ(sluice_kfd_suspend_queues(opened.get(), nullptr, 3, 0), -EINVAL);
  EXPECT_EQ(sluice_kfd_suspend_queues(nullptr, nullptr, 0, 0), -EINVAL);
  EXPECT_EQ(sluice_kfd_suspend_queues(opened.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(sluice_kfd_get_all_queues(opened.get(), sizeof(sluice_kfd_queue), nullptr, nullptr),
            -EINVAL);
  // The text is the thread's own.
  std::thread{[] { EXPECT_STREQ(sluice_kfd_last_error(), ""); }}.join();
  EXPECT_STRNE(sluice_kfd_last_error(), "");

  const pid_t child = ::fork();
  if (child == 0) {
    sluice_kfd_queue_ref ref{1, 0, 0, 0};
    ::_exit(sluice_kfd_suspend_queues(opened.get(), &ref, 1, 0) == -ECHILD ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

void expect_no_batch_commands(sluice_kfd* handle) {
  sluice_kfd_queue_ref ref{::getpid(), 0, 0, 0};
  EXPECT_EQ(sluice_kfd_batch_unmap_queues(handle, &ref, 1, 0, 0), -EOPNOTSUPP);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("stock driver"));
  EXPECT_EQ(sluice_kfd_fast_remap_queues(handle, nullptr, 0), -EOPNOTSUPP);
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(handle, 51110, 80, 20), -EOPNOTSUPP);
}

// The device of this test has a stock driver.
TEST_F(CApi, SaysThatAStockDriverHasNoBatchCommands) { expect_no_batch_commands(open().get()); }

TEST(CApiOfOlderDrivers, SaysThatTheyHaveNoBatchCommands) {
  const simulated_device device{{.profile = fast_profile("einval_for_unknown_commands = true\n")}};
  expect_no_batch_commands(open_kfd_c(device.roots()).get());
}

// A suspend of such a process crashes some drivers (adapters/kfd/kernel/README.md).
TEST(CApiOnTwoGpus, RefusesAProcessWithoutTheRenderNodeOfEach) {
  const simulated_device device{{.profile = fast_profile(), .gpus = 2}};
  const auto where = device.roots();
  child_process own{[&where](channel&) {
    auto client = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
    if (!client) return 1;
    auto queue = (*client)->create_queue({.packets = 64});
    if (!queue) return 2;
    const auto handle = open_kfd_c(where);
    if (sluice_kfd_suspend_own_queues(handle.get(), nullptr, 0) != 1) return 3;
    if (sluice_kfd_resume_own_queues(handle.get()) != 0) return 4;
    offline_target::close_render_nodes(where.device);
    if (sluice_kfd_suspend_own_queues(handle.get(), nullptr, 0) != -EPERM) return 5;
    const std::string error = sluice_kfd_last_error();
    return error.find("has no address space on GPU 51110") != error.npos ? 0 : 6;
  }};
  EXPECT_TRUE(own.succeeds(60s));

  const auto handle = open_kfd_c(where);
  const offline_target other{where};
  ASSERT_TRUE(other.says('r'));
  ASSERT_TRUE(other.obeys('c'));
  sluice_kfd_queue_ref ref{other.pid(), 0, 0, 0};
  EXPECT_EQ(sluice_kfd_suspend_queues(handle.get(), &ref, 1, 0), 0);
  EXPECT_EQ(ref.status, -EPERM);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("has no address space on GPU 51110"));
}

}  // namespace
}  // namespace sluice::test::kfd_c_test
