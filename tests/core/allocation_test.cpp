// The hot path allocates nothing after warm-up. A program of its own, for it replaces malloc.

#include "core_bench.hpp"
#include "counted_allocations.hpp"
#include "recorder.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "sluice/asio.hpp"
#include "sluice/plugin_loader.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/policies/shadow.hpp"
#include "sluice/policies/slo.hpp"
#include "sluice/policy_plugin.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::tests::allocation_test {
namespace {

using counted = test::counted_allocations;

TEST(Allocation, IsCounted) {
  const counted here;
  std::free(std::malloc(16));  // NOLINT: the point
  delete new int(3);
  EXPECT_GE(here.so_far(), 1U);
}

/// `processes` times `queues` on two GPUs.
void fill(core_bench& bench, int processes, std::uint32_t queues) {
  for (int i = 0; i < processes; ++i) {
    const pid_t pid = 1000 + i;
    bench.see(pid, role::offline);
    for (std::uint32_t each = 0; each < queues; ++each) {
      bench.create_queue(pid, q(each), i % 2 == 0 ? gpu_a : gpu_b);
    }
  }
}

unsigned long allocations_over(core_bench& bench, online_client& client, int cycles) {
  const auto cycle = [&] {
    client.begin();
    bench.step();
    bench.step();
    bench.time.advance(21ms);
    client.end();
    bench.step();
    bench.step();
    bench.time.advance(3ms);  // Enough to pay back the time off.
  };
  for (int i = 0; i < 10; ++i) cycle();  // Warm-up.
  const counted here;
  for (int i = 0; i < cycles; ++i) cycle();
  return here.so_far();
}

TEST(Allocation, DoesNotHappenFromBeginToBatchAndBack) {
  core_bench bench;
  fill(bench, 4, 8);
  auto client = bench.client();
  bench.attach_all();
  bench.driver.keep_batches(false);
  const auto before = bench.driver.submitted();
  EXPECT_EQ(allocations_over(bench, client, 10'000), 0U);
  // Four processes, a suspend and a resume each.
  EXPECT_GE(bench.driver.submitted() - before, 10'000U * 8);
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Allocation, DoesNotHappenWhileAllOfItIsRecorded) {
  const std::string path = ::testing::TempDir() + "sluice_allocation.rec";
  auto recorder = core::recorder::create({.file = path});
  ASSERT_TRUE(recorder) << recorder.error().message();
  core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, recorder->get());
  fill(bench, 4, 8);
  auto client = bench.client();
  bench.attach_all();
  bench.driver.keep_batches(false);
  EXPECT_EQ(allocations_over(bench, client, 500), 0U);
  EXPECT_EQ(bench.stats().lost_records, 0U);
  EXPECT_EQ(unlink(path.c_str()), 0);
}

TEST(Allocation, DoesNotHappenWhileTheJournalIsWritten) {
  auto kept = journal::create();
  ASSERT_TRUE(kept);
  core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, nullptr, kept->get());
  fill(bench, 4, 8);
  auto client = bench.client();
  bench.attach_all();
  bench.driver.keep_batches(false);
  EXPECT_EQ(allocations_over(bench, client, 100), 0U);
  EXPECT_EQ((*kept)->lost(), 0U);
}

/// The bridge to a plugin and back costs none either.
TEST(Allocation, DoesNotHappenWhenThePolicyIsAPlugin) {
  std::string message;
  const auto kind =
      make_plugin_kind(plugin::exporter<fixed_timeslice_kind>::descriptor(), nullptr, message);
  ASSERT_TRUE(kind) << message;
  auto decider = make_policy(*kind, {}, message);
  ASSERT_TRUE(decider) << message;
  core_bench bench(quick_config(), std::move(*decider));
  fill(bench, 4, 8);
  auto client = bench.client();
  bench.attach_all();
  bench.driver.keep_batches(false);
  const auto before = bench.driver.submitted();
  EXPECT_EQ(allocations_over(bench, client, 1000), 0U);
  EXPECT_GE(bench.driver.submitted() - before, 1000U * 8);
}

TEST(Allocation, DoesNotHappenFromPointersToBatchAndBack) {
  core_bench bench{quick_config(), make_pointer_polling()};
  bench.show_work(gpu_a);
  fill(bench, 4, 8);
  constexpr pid_t serving = 100;
  bench.create(serving, role::online, gpu_a, {0});
  bench.attach_all();
  bench.driver.keep_batches(false);
  const auto point = [&](online_work work, std::uint32_t packets) {
    bench.see_pointers(serving, gpu_a, work, packets);
    bench.step();
    bench.step();
    bench.time.advance(2ms);
  };
  const auto cycle = [&] {
    point(online_work::waiting, 2);
    point(online_work::waiting, 1);
    point(online_work::running, 0);
    point(online_work::consumed, 0);
    point(online_work::finished, 0);
    bench.time.advance(10ms);
    bench.step();
    bench.step();
    bench.time.advance(3ms);
  };
  for (int i = 0; i < 10; ++i) cycle();
  const auto before = bench.driver.submitted();
  const counted here;
  for (int i = 0; i < 1000; ++i) cycle();
  EXPECT_EQ(here.so_far(), 0U);
  // Two of the processes are on its GPU.
  EXPECT_GE(bench.driver.submitted() - before, 1000U * 4);
}

TEST(Allocation, DoesNotHappenWithFourThousandQueuesEither) {
  core_bench bench;
  fill(bench, 64, 64);
  auto client = bench.client();
  bench.run_for(20s);  // Attaching goes one by one on each GPU.
  ASSERT_EQ(bench.stats().attaches, 64U);
  bench.driver.keep_batches(false);
  EXPECT_EQ(allocations_over(bench, client, 100), 0U);
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Allocation, DoesNotHappenWithMarksOfSpans) {
  core_bench bench;
  fill(bench, 1, 1);
  auto client = bench.client();
  bench.attach_all();
  std::uint64_t request = 0;
  const auto cycle = [&] {
    for (std::uint64_t i = 0; i < 300; ++i) client.begin_span(span_kind::request, ++request);
    bench.step();
    for (std::uint64_t i = 0; i < 300; ++i) client.begin_span(span_kind::itl, request - i);
    for (std::uint64_t i = 0; i < 300; ++i) client.begin_span(span_kind::itl, request - i);
    bench.time.advance(1ms);
    bench.step();
    for (std::uint64_t i = 0; i < 300; ++i) client.end_span(span_kind::itl, request - i);
    for (std::uint64_t i = 0; i < 300; ++i) client.end_span(span_kind::request, request - i);
    bench.step();
  };
  for (int i = 0; i < 10; ++i) cycle();
  const counted here;
  for (int i = 0; i < 1000; ++i) cycle();
  EXPECT_EQ(here.so_far(), 0U);
  EXPECT_EQ(bench.stats().span_length[0].count(), 1010U * 300);
  EXPECT_EQ(bench.stats().lost_marks, 0U);
}

TEST(Allocation, DoesNotHappenInSloAndItsShadow) {
  slo_options options;
  options.p99 = {100ms, 50ms, 20ms};
  for (const bool in_shadow : {false, true}) {
    core_bench bench(quick_config(),
                     in_shadow ? make_shadow(make_slo(options)) : make_slo(options));
    fill(bench, 4, 8);
    auto client = bench.client();
    bench.attach_all();
    bench.driver.keep_batches(false);
    std::uint64_t request = 0;
    const auto cycle = [&] {
      ++request;
      client.begin();
      client.begin_span(span_kind::request, request);
      client.begin_span(span_kind::ttft, request);
      bench.step();
      bench.time.advance(1ms * (request % 7));
      client.end_span(span_kind::ttft, request);
      for (int token = 0; token < 5; ++token) {
        client.begin_span(span_kind::itl, request);
        bench.time.advance(1ms * (request % 19));
        bench.step();
      }
      client.end_span(span_kind::itl, request);
      client.end_span(span_kind::request, request);
      client.end();
      bench.step();
      bench.time.advance(1ms * (request % 31));
      bench.step();
    };
    for (int i = 0; i < 100; ++i) cycle();
    const auto before = bench.driver.submitted();
    const counted here;
    for (int i = 0; i < 3'000; ++i) cycle();
    // A note to the operator is a line of the log, which may allocate; there are few.
    EXPECT_LE(here.so_far(), 300U);
    EXPECT_EQ(bench.driver.submitted() - before > 30, !in_shadow)
        << bench.driver.submitted() - before;
  }
}

/// Asio's part: arming again, and the eventfd in between.
TEST(Allocation, DoesNotHappenWhenAWatchOrATimerIsArmedAgain) {
  auto made = reactor::create();
  ASSERT_TRUE(made) << made.error().message();
  reactor& loop = **made;
  const int fds[] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)};
  int calls = 0;
  for (const int fd : fds) {
    ASSERT_TRUE(loop.watch(fd, [&calls, fd] {
      eventfd_t value = 0;
      eventfd_read(fd, &value);
      ++calls;
    }));
  }
  std::vector<timer_id> timers;
  for (int i = 0; i < 3; ++i) timers.push_back(*loop.add_timer([&calls] { ++calls; }));
  const auto round = [&] {
    const int wanted = calls + 6;
    for (const timer_id timer : timers) {
      loop.arm(timer, never);
      loop.arm(timer, clock::now() + 1h);
      loop.arm(timer, clock::now() + 10us);
    }
    for (const int fd : fds) eventfd_write(fd, 1);
    while (calls < wanted) loop.poll_once();
  };
  for (int i = 0; i < 10; ++i) round();
  const counted here;
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_EQ(here.so_far(), 0U);
  for (const int fd : fds) close(fd);
}

/// The same on a host's loop, through its strand.
TEST(Allocation, DoesNotHappenOnAHostsLoopEither) {
  boost::asio::io_context context;
  auto made = make_reactor(context);
  ASSERT_TRUE(made) << made.error().message();
  const int fd = eventfd(0, EFD_CLOEXEC);
  int calls = 0;
  ASSERT_TRUE((*made)->watch(fd, [&] {
    eventfd_t value = 0;
    eventfd_read(fd, &value);
    ++calls;
  }));
  const auto timer = (*made)->add_timer([&] { ++calls; });
  ASSERT_TRUE(timer);
  const auto round = [&] {
    const int wanted = calls + 2;
    (*made)->arm(*timer, clock::now());
    eventfd_write(fd, 1);
    while (calls < wanted) context.poll_one();
  };
  for (int i = 0; i < 10; ++i) round();
  const counted here;
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_EQ(here.so_far(), 0U);
  (*made).reset();
  close(fd);
}

/// All of it together: a client's begin, the wake-up, the turn, the batch, and back.
TEST(Allocation, DoesNotHappenInARunningScheduler) {
  static const steady_time time;
  auto backend = std::make_unique<testing::scripted_backend>(time);
  auto& driver = *backend;
  driver.add_queue(100, q(0), gpu_a);
  struct one_process final : source {
    std::string_view name() const noexcept override { return "one process"; }
    result<void> start(source_host& host) override {
      observation one;
      one.kind = observation_kind::process_seen;
      one.what = role::offline;
      one.pid = 100;
      one.gpu = gpu_a;
      one.type = queue_kind::compute;
      auto& to = host.claim_inbox();
      to.push(one);
      one.kind = observation_kind::queue_seen;
      to.push(one);
      return {};
    }
    void resync() override {}
    void stop() override {}
  };
  auto config = quick_config();
  config.attach_after = 0ns;
  config.max_suspend = 60s;  // on a busy machine the usual one would be reached, and said
  std::vector<std::unique_ptr<source>> sources;
  sources.push_back(std::make_unique<one_process>());
  auto loop = reactor::create();
  ASSERT_TRUE(loop) << loop.error().message();
  auto made = scheduler::create(config, std::move(*loop), std::move(backend),
                                make_fixed_timeslice({.slice = 1us}), std::move(sources));
  ASSERT_TRUE(made);
  scheduler& core = **made;
  ASSERT_TRUE(core.start());
  auto client = *core.register_client({"test", {}, 1s});
  while (!driver.attached(100)) core.poll_once();
  driver.keep_batches(false);
  const auto cycle = [&] {
    const auto busy = client.busy();
    while (!driver.suspended(100, q(0))) core.poll_once();
  };
  const auto back = [&] {
    while (driver.suspended(100, q(0))) core.poll_once();
  };
  for (int i = 0; i < 10; ++i) cycle(), back();
  const counted here;
  for (int i = 0; i < 300; ++i) cycle(), back();
  EXPECT_EQ(here.so_far(), 0U);
}

TEST(Allocation, DoesNotHappenWhenNothingChanges) {
  core_bench bench;
  fill(bench, 64, 64);
  auto client = bench.client();
  bench.run_for(20s);
  const counted here;
  for (int i = 0; i < 1000; ++i) bench.step();
  EXPECT_EQ(here.so_far(), 0U);
}

}  // namespace
}  // namespace sluice::tests::allocation_test
