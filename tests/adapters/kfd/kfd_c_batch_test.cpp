/// The C API's batch commands, on a device whose driver has the patch.

#include "device_view.hpp"
#include "kfd_c_handle.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd.h"

namespace sluice::test::kfd_c_batch_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint32_t gpu = 51110;
constexpr std::uint32_t drivers_grace = 0xffffffff;

class CApiBatch : public ::testing::Test {
 protected:
  explicit CApiBatch(const std::string& profile = "mi300x-batch") : device_{{.profile = profile}} {}
  void SetUp() override {
    ASSERT_TRUE(one_.says('r'));
    ASSERT_TRUE(two_.says('r'));
  }

  kfd_c_handle open() const { return open_kfd_c(device_.roots()); }
  static std::vector<sluice_kfd_queue_ref> both_of(const offline_target& first,
                                                   const offline_target& second) {
    return {{first.pid(), 0, 9, 9},
            {second.pid(), 0, 9, 9},
            {first.pid(), 1, 9, 9},
            {second.pid(), 1, 9, 9}};
  }
  static int unmap(const kfd_c_handle& handle, std::vector<sluice_kfd_queue_ref>& refs,
                   std::uint32_t flags = 0) {
    return sluice_kfd_batch_unmap_queues(handle.get(), refs.data(), refs.size(), drivers_grace,
                                         flags);
  }
  std::uint64_t held(const offline_target& of) const {
    return view_.process(of.pid()).suspended_queues;
  }
  static bool untraced(pid_t pid) {
    return read_file("/proc/" + std::to_string(pid) + "/status").find("TracerPid:\t0") !=
           std::string::npos;
  }

  simulated_device device_;
  device_view view_{device_.root()};
  offline_target one_{device_.roots(), {.queues = 2}};
  offline_target two_{device_.roots(), {.queues = 2}};
};

TEST_F(CApiBatch, TakesQueuesOfTwoProcessesOffInOneCycleAndTracesNobody) {
  const auto handle = open();
  auto refs = both_of(one_, two_);
  const auto before = view_.gpu_count("debug_cycles");
  ASSERT_EQ(unmap(handle, refs), 4) << sluice_kfd_last_error();
  EXPECT_EQ(view_.gpu_count("debug_cycles"), before + 1);
  for (const auto& ref : refs) EXPECT_EQ(ref.status, 0);
  for (const auto* each : {&one_, &two_}) {
    EXPECT_EQ(held(*each), 2U);
    EXPECT_TRUE(each->stands_still());
    EXPECT_TRUE(untraced(each->pid()));
  }
  ASSERT_EQ(unmap(handle, refs), 4) << "held by this handle before";
  EXPECT_EQ(view_.gpu_count("debug_cycles"), before + 1);
  ASSERT_EQ(sluice_kfd_fast_remap_queues(handle.get(), nullptr, 0), 4) << sluice_kfd_last_error();
  EXPECT_EQ(view_.gpu_count("debug_cycles"), before + 2);
  for (const auto* each : {&one_, &two_}) {
    EXPECT_TRUE(each->runs());
    EXPECT_EQ(each->wrong(), 0U);
  }
}

TEST_F(CApiBatch, CleanupMapsEverythingThoughAForkedChildKeepsTheFile) {
  auto handle = open();
  auto refs = both_of(one_, two_);
  ASSERT_EQ(unmap(handle, refs), 4) << sluice_kfd_last_error();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  handle.reset();
  EXPECT_TRUE(one_.runs());
  EXPECT_TRUE(two_.runs());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(CApiBatch, NamesWhatBecameOfEachEntry) {
  const auto handle = open();
  const auto other = open();
  std::vector<sluice_kfd_queue_ref> theirs{{two_.pid(), 1, 9, 9}};
  ASSERT_EQ(unmap(other, theirs), 1) << sluice_kfd_last_error();

  std::vector<sluice_kfd_queue_ref> refs{
      {one_.pid(), 1, 9, 9}, {one_.pid(), 77, 9, 9},  // no such queue
      {two_.pid(), 0, 9, 9}, {one_.pid(), 1, 9, 9},   // named twice
      {0x7ffffff0, 0, 9, 9},                          // no such process
      {two_.pid(), 1, 9, 9},                          // the other handle's
  };
  EXPECT_EQ(unmap(handle, refs), 2);
  const std::vector<int> expected{0, -ENOENT, 0, -ENOENT, -ENOENT, -ENOENT};
  for (std::size_t i = 0; i < refs.size(); ++i) EXPECT_EQ(refs[i].status, expected[i]) << i;
  EXPECT_EQ(sluice_kfd_last_error(), "queue 77 of process " + std::to_string(one_.pid()) +
                                         ": no such queue, no permission, or another handle "
                                         "holds it");
  EXPECT_TRUE(one_.runs()) << "its queue 0 was not named";
  EXPECT_TRUE(two_.stands_still());

  EXPECT_EQ(sluice_kfd_fast_remap_queues(handle.get(), theirs.data(), 1), 0);
  EXPECT_EQ(theirs[0].status, -ENOENT) << "not this handle's to give back";
  std::vector<sluice_kfd_queue_ref> some{{two_.pid(), 0, 9, 9}, {one_.pid(), 0, 9, 9}};
  EXPECT_EQ(sluice_kfd_fast_remap_queues(handle.get(), some.data(), some.size()), 1);
  EXPECT_EQ(some[0].status, 0);
  EXPECT_EQ(some[1].status, -ENOENT) << "it was never held";
  EXPECT_EQ(sluice_kfd_fast_remap_queues(handle.get(), nullptr, 0), 1) << "what is left of ours";
  EXPECT_EQ(held(two_), 1U);
  EXPECT_EQ(sluice_kfd_fast_remap_queues(other.get(), nullptr, 0), 1);
  EXPECT_EQ(held(two_), 0U);
}

TEST_F(CApiBatch, RefusesWhatMakesNoSense) {
  const auto handle = open();
  std::vector<sluice_kfd_queue_ref> all{{one_.pid(), SLUICE_KFD_ALL_QUEUES, 0, 0}};
  EXPECT_EQ(unmap(handle, all), -EINVAL);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("need queue ids"));
  auto refs = both_of(one_, two_);
  EXPECT_EQ(unmap(handle, refs, SLUICE_KFD_MARK_ONLY), -EINVAL) << "without a mark";
  EXPECT_EQ(unmap(handle, refs, 0x80), -EINVAL);
  EXPECT_EQ(sluice_kfd_batch_unmap_queues(handle.get(), nullptr, 2, 0, 0), -EINVAL);
  EXPECT_EQ(sluice_kfd_batch_unmap_queues(handle.get(), nullptr, 0, 0, 0), 0);
  EXPECT_TRUE(one_.runs() && two_.runs());
}

TEST_F(CApiBatch, PutsEverythingBackWhenTheHandleIsCleanedUpAndWhenItsProcessDies) {
  auto refs = both_of(one_, two_);
  auto handle = open();
  ASSERT_EQ(unmap(handle, refs), 4) << sluice_kfd_last_error();
  handle.reset();
  EXPECT_TRUE(one_.runs() && two_.runs());

  child_process holder{[&](channel& line) {
    sluice_kfd* own = open().release();
    if (sluice_kfd_batch_unmap_queues(own, refs.data(), refs.size(), 0, 0) != 4) return 1;
    line.send("holding");
    line.receive(60s);
    return 0;
  }};
  ASSERT_TRUE(holder.says("holding", 20s));
  EXPECT_EQ(held(one_), 2U);
  EXPECT_TRUE(one_.stands_still());
  holder.signal(SIGKILL);
  ASSERT_TRUE(holder.wait(20s));
  EXPECT_TRUE(one_.runs(20s));
  EXPECT_TRUE(two_.runs(20s));
  EXPECT_EQ(held(one_) + held(two_), 0U);
}

TEST_F(CApiBatch, LimitsMarkedQueuesByAReservation) {
  const auto handle = open();
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), gpu, 60, 60), -EINVAL) << "above 100";
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), 4711, 50, 50), -EINVAL) << "no such GPU";
  std::vector<sluice_kfd_queue_ref> refs{{one_.pid(), 0, 9, 9}, {one_.pid(), 1, 9, 9}};
  ASSERT_EQ(unmap(handle, refs, SLUICE_KFD_MARK_OFFLINE | SLUICE_KFD_MARK_ONLY), 2)
      << sluice_kfd_last_error();
  EXPECT_TRUE(one_.runs()) << "only marked";

  ASSERT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), gpu, 100, 0), 0)
      << sluice_kfd_last_error();
  EXPECT_TRUE(one_.stands_still()) << "it is left no slot";
  EXPECT_TRUE(two_.runs()) << "it is not marked";
  const auto other = open();
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(other.get(), gpu, 80, 20), -EBUSY);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("another program has a reservation"));

  ASSERT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), gpu, 80, 20), 0);
  EXPECT_TRUE(one_.runs());
  ASSERT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), gpu, 0, 100), 0);
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(other.get(), gpu, 100, 0), 0) << "free again";
}

TEST_F(CApiBatch, TakesAReservationOfRootAlone) {
  child_process stranger{[&](channel&) {
    const auto own = open();
    if (::setresuid(4711, 4711, 4711) != 0) return 1;
    const int refused = sluice_kfd_set_hqd_reservation(own.get(), gpu, 80, 20);
    return refused == -EPERM ? 0 : 2;
  }};
  EXPECT_TRUE(stranger.succeeds(20s));
}

TEST_F(CApiBatch, GivesBackWhatTheHardwareFailedToUnmap) {
  const auto handle = open();
  {
    std::ofstream control{device_.root() + "/sim/control"};
    control << "fail-cycle " << gpu << " 20ms" << std::endl;
    ASSERT_TRUE(control.good());
  }
  auto refs = both_of(one_, two_);
  EXPECT_EQ(unmap(handle, refs), 0);
  for (const auto& ref : refs) EXPECT_EQ(ref.status, -EIO);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("the hardware failed; see dmesg"));
  EXPECT_EQ(held(one_) + held(two_), 0U);
  // The reset stops all processes for good. A new one runs, and can be stopped.
  ASSERT_TRUE(eventually(patience, [&] { return view_.gpu_count("resets") == 1; }));
  ASSERT_TRUE(one_.obeys('q'));
  const offline_target next{device_.roots()};
  ASSERT_TRUE(next.says('r'));
  EXPECT_TRUE(next.runs());
  std::vector<sluice_kfd_queue_ref> fresh{{one_.pid(), 2, 9, 9}, {next.pid(), 0, 9, 9}};
  EXPECT_EQ(unmap(handle, fresh), 2) << sluice_kfd_last_error();
  EXPECT_EQ(held(one_), 1U);
  EXPECT_TRUE(next.stands_still());
}

class CApiBatchMes : public CApiBatch {
 protected:
  CApiBatchMes() : CApiBatch{profile_text("batch_commands = true\n", "scheduler = \"mes\"\n")} {}
};

TEST_F(CApiBatchMes, TakesQueuesOffButKnowsNoReservation) {
  const auto handle = open();
  auto refs = both_of(one_, two_);
  ASSERT_EQ(unmap(handle, refs), 4) << sluice_kfd_last_error();
  EXPECT_TRUE(one_.stands_still());
  ASSERT_EQ(sluice_kfd_fast_remap_queues(handle.get(), refs.data(), refs.size()), 4);
  EXPECT_TRUE(one_.runs());
  EXPECT_EQ(sluice_kfd_set_hqd_reservation(handle.get(), gpu, 80, 20), -EOPNOTSUPP);
  EXPECT_THAT(sluice_kfd_last_error(), HasSubstr("MES"));
}

}  // namespace
}  // namespace sluice::test::kfd_c_batch_test
