// Kernels from submission to completion, as the client class and the device's own stamps tell it.

#include "sluice/sim/client.hpp"

#include "simulated_device.hpp"

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

namespace sluice::test::client_test {
namespace {

using namespace std::chrono_literals;

sim::client_options client_of(const simulated_device& device) {
  return {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0};
}

std::unique_ptr<sim::gpu_client> open_client(const simulated_device& device) {
  auto client = sim::gpu_client::open(client_of(device));
  if (!client) throw std::runtime_error("open: " + client.error().message());
  return std::move(*client);
}

std::unique_ptr<sim::gpu_queue> open_queue(sim::gpu_client& client, sim::queue_options how = {}) {
  auto queue = client.create_queue(how);
  if (!queue) throw std::runtime_error("create_queue: " + queue.error().message());
  return std::move(*queue);
}

class WithAndWithoutDoorbell : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(GpuQueue, WithAndWithoutDoorbell, ::testing::Bool());

// Exactly once: every signal counts down from 1 to 0, never further. In order: no kernel starts
// before the one before it has ended.
TEST_P(WithAndWithoutDoorbell, RunsAThousandKernelsExactlyOnceInOrder) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client, {.packets = 1024, .priority = 7, .doorbell = GetParam()});
  EXPECT_EQ(queue->has_doorbell(), GetParam());
  constexpr std::uint64_t count = 1000;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto index = queue->submit({.length = 20us, .waves = 8, .notify = i + 1 == count});
    ASSERT_TRUE(index);
    ASSERT_EQ(*index, i);
    if (i % 10 == 0) queue->ring();
  }
  queue->ring();
  ASSERT_TRUE(queue->wait(count - 1, 20s));
  EXPECT_EQ(queue->completed(), count);
  time_point last_end{};
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto done = queue->completion(i);
    ASSERT_EQ(done.value, 0) << "kernel " << i;
    ASSERT_GE(done.start, last_end) << "kernel " << i;
    ASSERT_EQ(done.end - done.start, 20us) << "kernel " << i;
    last_end = done.end;
  }
}

TEST(GpuQueue, StampsWithTheMonotonicClock) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client);
  const auto before = clock::now();
  const auto index = queue->submit({.length = 3ms, .waves = 1});
  queue->ring();
  ASSERT_TRUE(index && queue->wait(*index, 10s));
  const auto after = clock::now();
  const auto done = queue->completion(*index);
  EXPECT_GE(done.start, before);
  EXPECT_LE(done.end, after);
  EXPECT_EQ(done.end - done.start, 3ms);
}

TEST(GpuQueue, RefusesWhenTheRingIsFullAndGoesOnWhenThereIsRoom) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client, {.packets = 64, .priority = 7, .doorbell = true});
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(queue->submit({.length = 50us, .waves = 1}));
  EXPECT_EQ(queue->submit({.length = 50us, .waves = 1}).error(), errc::full);
  queue->ring();
  ASSERT_TRUE(queue->wait(0, 10s));
  for (int i = 0; i < 500; ++i) {
    auto index = queue->submit({.length = 50us, .waves = 1});
    while (!index) {
      ASSERT_TRUE(queue->wait(queue->submitted() - 64, 10s));
      index = queue->submit({.length = 50us, .waves = 1});
    }
    queue->ring();
  }
  ASSERT_TRUE(queue->wait(queue->submitted() - 1, 10s));
  EXPECT_EQ(queue->completed(), 564U);
}

TEST(GpuQueue, LetsKernelsOfTwoQueuesRunTogetherWhenTheirWavesFit) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto one = open_queue(*client);
  const auto two = open_queue(*client);
  const auto half = client->wave_slots() / 2;
  const auto first = one->submit({.length = 20ms, .waves = half});
  const auto second = two->submit({.length = 20ms, .waves = half});
  one->ring();
  two->ring();
  ASSERT_TRUE(first && second && one->wait(*first, 10s) && two->wait(*second, 10s));
  EXPECT_LT(two->completion(*second).start, one->completion(*first).end);
}

TEST(GpuQueue, TimesOutWhenTheKernelIsLonger) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client);
  const auto index = queue->submit({.length = 10s, .waves = 1});
  queue->ring();
  ASSERT_TRUE(index);
  EXPECT_EQ(queue->wait(*index, 30ms).error().value(), ETIMEDOUT);
  EXPECT_FALSE(queue->finished(*index));
  EXPECT_EQ(queue->wait(1, 1ms).error().value(), EINVAL);
}

TEST(GpuQueue, DestroysAQueueWithAKernelThatStillRuns) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client);
  ASSERT_TRUE(queue->submit({.length = 10s, .waves = 1}));
  queue->ring();
  EXPECT_TRUE(queue->destroy());
  EXPECT_TRUE(queue->destroy()) << "again";
  const auto another = open_queue(*client);
  const auto index = another->submit({.length = 1ms, .waves = client->wave_slots()});
  another->ring();
  EXPECT_TRUE(index && another->wait(*index, 5s)) << "its waves were not given back";
}

// Symptom: a wait for a kernel that a reset had ended lasted as long as its time-out.
TEST(GpuQueue, IsLostWhenAGpuOfItsNodeIsReset) {
  const std::string two =
      "name = \"two\"\n[[gpu]]\ngpu_id = 51110\nhive_id = 1\nreset_time = \"20ms\"\n"
      "[[gpu]]\ngpu_id = 51367\nhive_id = 2\nreset_time = \"20ms\"\n";
  for (const char* gpu : {"51367", "51110"}) {
    const simulated_device device{{.profile = two}};
    const auto client = open_client(device);
    const auto queue = open_queue(*client);
    const auto index = queue->submit({.length = 1h, .waves = 1});
    ASSERT_TRUE(index);
    queue->ring();
    EXPECT_EQ(queue->wait(*index, 30ms).error().value(), ETIMEDOUT);
    std::ofstream{device.root() + "/sim/control"} << "reset " << gpu << "\n" << std::flush;
    const auto before = clock::now();
    EXPECT_EQ(queue->wait(*index, 1min).error(), errc::lost) << gpu;
    EXPECT_EQ(queue->wait(*index, 1min).error(), errc::lost) << "each time";
    EXPECT_LT(clock::now() - before, 50s);
    EXPECT_FALSE(queue->finished(*index));
    const auto later = open_queue(*client);
    const auto never = later->submit({.length = 1ms, .waves = 1});
    later->ring();
    EXPECT_EQ(later->wait(*never, 1min).error(), errc::lost) << "of a queue after the reset";
  }
}

TEST(GpuQueue, WaitsWithoutUsingTheProcessor) {
  const simulated_device device;
  const auto client = open_client(device);
  const auto queue = open_queue(*client);
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds{usage.ru_utime.tv_sec + usage.ru_stime.tv_sec} +
           std::chrono::microseconds{usage.ru_utime.tv_usec + usage.ru_stime.tv_usec};
  };
  const auto before = cpu();
  const auto index = queue->submit({.length = 400ms, .waves = 1});
  queue->ring();
  ASSERT_TRUE(index && queue->wait(*index, 10s));
  EXPECT_LT(cpu() - before, 50ms);
}

TEST(GpuClient, TakesItsPlacesFromTheEnvironment) {
  const simulated_device device;
  child_process child{[&](channel&) {
    for (const auto& setting : device.environment()) {
      const auto equals = setting.find('=');
      setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
    }
    return sim::gpu_client::open({}) ? 0 : 1;
  }};
  EXPECT_TRUE(child.succeeds(10s));
}

TEST(GpuClient, IsOneForAProcess) {
  const simulated_device device;
  {
    const auto client = open_client(device);
    EXPECT_EQ(sim::gpu_client::open(client_of(device)).error().value(), EBUSY);
  }
  EXPECT_TRUE(sim::gpu_client::open(client_of(device))) << "the first one is gone";
}

TEST(GpuClient, SaysWhenThereIsNoSuchDeviceOrGpu) {
  const simulated_device device;
  EXPECT_EQ(
      sim::gpu_client::open({.device = "/nonexistent/kfd", .sysfs = {}, .gpu = 0}).error().value(),
      ENOENT);
  auto wrong = client_of(device);
  wrong.gpu = 7;
  EXPECT_EQ(sim::gpu_client::open(wrong).error().value(), ENODEV);
}

TEST(GpuClient, RefusesOptionsOutOfRange) {
  const simulated_device device;
  const auto client = open_client(device);
  EXPECT_EQ(client->create_queue({.packets = 100, .priority = 7, .doorbell = true}).error(),
            errc::bad_config);
  EXPECT_EQ(client->create_queue({.packets = 64, .priority = 16, .doorbell = true}).error(),
            errc::bad_config);
}

TEST(GpuClient, KnowsTheSizeOfItsGpu) {
  const simulated_device device;
  EXPECT_EQ(open_client(device)->wave_slots(), 304U * 4U * 8U);
}

}  // namespace
}  // namespace sluice::test::client_test
