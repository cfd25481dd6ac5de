// The façade on a real loop: sources, clients, stopping. What a turn decides is tested elsewhere.

#include "sluice/scheduler.hpp"

#include "eventually.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "sluice/acquire.hpp"
#include "sluice/asio.hpp"
#include "sluice/null_backend.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/testing/scripted_backend.hpp"

namespace sluice::scheduler_test {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using test::patience;

constexpr gpu_id gpu_a{0xa};
constexpr pid_t trainer = 100;
constexpr driver_queue_id queue_0{0};

template <class Condition>
bool eventually(Condition&& condition) {
  const auto deadline = clock::now() + patience;
  while (!condition()) {
    if (clock::now() > deadline) return false;
    std::this_thread::sleep_for(100us);
  }
  return true;
}

observation seen(observation_kind kind, pid_t pid = 0) {
  observation one;
  one.kind = kind;
  one.what = role::offline;
  one.type = queue_kind::compute;
  one.pid = pid;
  one.start_time = 1;
  one.gpu = gpu_a;
  return one;
}

/// What a source under test does and was asked to do.
struct source_log {
  std::atomic<int> starts{0};
  std::atomic<int> resyncs{0};
  std::atomic<int> stops{0};
  std::atomic<duration::rep> pointers{-1};  ///< As last asked for; -1: never.
  std::atomic<pid_t> marks{0};              ///< The last that began to; minus the last that ended.
};

class test_source final : public source {
 public:
  test_source(
      source_log& log, std::function<result<void>(source_host&)> start,
      std::function<void()> resync = [] {})
      : log_(log), start_(std::move(start)), resync_(std::move(resync)) {}
  std::string_view name() const noexcept override { return "test"; }
  result<void> start(source_host& host) override {
    ++log_.starts;
    return start_(host);
  }
  void resync() override {
    ++log_.resyncs;
    resync_();
  }
  void stop() override { ++log_.stops; }
  void poll_pointers(duration every) override { log_.pointers = every.count(); }
  void marks_requests(pid_t pid, bool so) override { log_.marks = so ? pid : -pid; }

 private:
  source_log& log_;
  std::function<result<void>(source_host&)> start_;
  std::function<void()> resync_;
};

scheduler_config quick() {
  scheduler_config config;
  config.attach_after = 0ns;
  config.attach_at_latest = 0ns;
  config.offline_floor = 0;
  config.max_suspend = 60s;
  return config;
}

/// A scheduler over one offline process with one queue, which is attached as soon as it runs.
class node {
 public:
  explicit node(std::unique_ptr<reactor> loop, scheduler_config config = quick(),
                std::vector<std::unique_ptr<source>> more = {}, scheduler_options options = {},
                std::unique_ptr<policy> decider = make_fixed_timeslice({.slice = 1ms})) {
    auto backend = std::make_unique<testing::scripted_backend>(time_);
    driver = backend.get();
    driver->add_queue(trainer, queue_0, gpu_a);
    more.push_back(std::make_unique<test_source>(log, [](source_host& host) -> result<void> {
      auto& to = host.claim_inbox();
      to.push({.kind = observation_kind::gpu_seen, .shows_work = true, .gpu = gpu_a});
      to.push(seen(observation_kind::process_seen, trainer));
      to.push(seen(observation_kind::queue_seen, trainer));
      return {};
    }));
    auto made = scheduler::create(config, std::move(loop), std::move(backend), std::move(decider),
                                  std::move(more), std::move(options));
    EXPECT_TRUE(made);
    core = std::move(*made);
  }

  bool step_until(const std::function<bool()>& condition) {
    const auto deadline = clock::now() + patience;
    while (!condition()) {
      if (clock::now() > deadline) return false;
      if (!core->poll_once()) std::this_thread::sleep_for(100us);
    }
    return true;
  }
  bool managed() const { return core->stats().attaches == 1; }
  online_client client() {
    auto made = core->register_client({"test", {}, 5s});
    EXPECT_TRUE(made);
    return std::move(*made);
  }

  source_log log;
  testing::scripted_backend* driver = nullptr;
  std::unique_ptr<scheduler> core;

 private:
  const steady_time time_;
};

std::unique_ptr<reactor> own_loop() {
  auto made = reactor::create();
  EXPECT_TRUE(made);
  return std::move(*made);
}

TEST(Scheduler, RefusesABadConfiguration) {
  const steady_time time;
  scheduler_config config;
  config.max_busy = 0ns;
  EXPECT_EQ(scheduler::create(config, own_loop(), std::make_unique<testing::scripted_backend>(time),
                              make_fixed_timeslice(), {})
                .error(),
            errc::bad_config);
}

TEST(Scheduler, LeavesARecordingAsItIsWhenItIsNotCreated) {
  std::string file = ::testing::TempDir() + "sluice-scheduler-XXXXXX";
  close(mkstemp(file.data()));
  std::ofstream(file) << "yesterday";
  const steady_time time;
  const auto created = [&](scheduler_config config, std::size_t buffer) {
    return scheduler::create(config, own_loop(), std::make_unique<testing::scripted_backend>(time),
                             nullptr, {}, {.record = {.file = file, .buffer = buffer}});
  };
  const auto content = [&] {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  scheduler_config wrong;
  wrong.max_busy = 0ns;
  EXPECT_EQ(created(wrong, 8192).error(), errc::bad_config);
  EXPECT_EQ(created({}, 1).error(), errc::bad_config);
  EXPECT_EQ(content(), "yesterday");
  EXPECT_TRUE(created({}, 8192));
  EXPECT_EQ(content().rfind("{\"t\":0,\"is\":\"recording\"", 0), 0U) << "begun anew";
  std::remove(file.c_str());
}

TEST(Scheduler, CanBeSteppedThroughASuspendAndAResume) {
  node all(own_loop());
  ASSERT_TRUE(all.core->start());
  ASSERT_TRUE(all.step_until([&] { return all.managed(); }));
  auto client = all.client();
  {
    const auto busy = client.busy();
    EXPECT_TRUE(all.step_until([&] { return all.driver->suspended(trainer, queue_0); }));
  }
  EXPECT_TRUE(all.step_until([&] { return !all.driver->suspended(trainer, queue_0); }));
  all.core->stop();
  EXPECT_TRUE(all.step_until([&] { return all.core->stopped(); }));
}

TEST(Scheduler, RunsOnItsOwnThreadAndStopsFromAnother) {
  node all(own_loop());
  ASSERT_TRUE(all.core->start());
  std::thread runner([&] { all.core->run(); });
  auto client = all.client();
  EXPECT_TRUE(eventually([&] { return all.managed(); }));
  for (int i = 1; i <= 20; ++i) {
    client.begin();
    EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 1; }));
    client.end();
    EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 0; }));
  }
  client.begin();
  EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 1; }));
  all.core->stop();
  runner.join();
  EXPECT_TRUE(all.core->stopped());
  EXPECT_TRUE(all.driver->stopped());
  EXPECT_EQ(all.core->stats().suspended_now, 0U);
  EXPECT_EQ(all.core->stats().resumes, 21U);
  EXPECT_EQ(all.log.stops, 1);
  EXPECT_EQ(all.core->register_client({"late", {}, 1s}).error(), errc::stopped);
}

/// From a thread of their own somebody reads the journal and somebody looks, while clients begin.
TEST(Scheduler, IsLookedAtAndReadWhileItRuns) {
  auto made = journal::create();
  ASSERT_TRUE(made);
  journal& read = **made;
  node all(own_loop(), quick(), {}, {.journal = &read});
  EXPECT_EQ(all.core->look(1s).error(), errc::stopped) << "not started";
  ASSERT_TRUE(all.core->start());
  std::thread runner([&] { all.core->run(); });
  std::vector<journal_entry> story;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::array<journal_entry, 16> some;
    for (;;) {
      const bool last = done.load();
      pollfd ready{read.ready_fd(), POLLIN, 0};
      if (!last && read.sleep()) (void)poll(&ready, 1, 10'000);
      while (const std::size_t count = read.take(some))
        story.insert(story.end(), some.begin(), some.begin() + count);
      if (last) return;
    }
  });
  auto client = all.client();
  EXPECT_TRUE(eventually([&] { return all.managed(); }));
  std::atomic<std::uint64_t> looks{0};
  std::vector<std::thread> lookers;
  for (int i = 0; i < 2; ++i) {
    lookers.emplace_back([&] {
      for (;;) {
        const auto seen = all.core->look(patience);
        if (!seen) {
          EXPECT_EQ(seen.error(), errc::stopped);
          return;
        }
        EXPECT_EQ(seen->groups.size(), 1U);
        ++looks;
      }
    });
  }
  constexpr std::size_t times = 50;
  for (std::size_t i = 1; i <= times; ++i) {
    client.begin();
    EXPECT_TRUE(eventually([&] { return all.core->stats().suspends == i; }));
    client.end();
    EXPECT_TRUE(eventually([&] { return all.core->stats().resumes == i; }));
  }
  EXPECT_TRUE(eventually([&] { return looks > 100; }));
  all.core->stop();
  runner.join();
  for (auto& each : lookers) each.join();
  // Only the journal itself wakes its reader: it has all of it by now, or does when it looks.
  done = true;
  read.pass_on();
  reader.join();
  EXPECT_EQ(read.lost(), 0U);
  const auto number_of = [&](journal_kind kind) {
    return static_cast<std::size_t>(
        std::ranges::count_if(story, [&](const auto& one) { return one.kind == kind; }));
  };
  EXPECT_EQ(number_of(journal_kind::begin), times);
  EXPECT_EQ(number_of(journal_kind::process_off), times);
  EXPECT_EQ(number_of(journal_kind::process_on), times);
  EXPECT_EQ(number_of(journal_kind::batch), 2 * times);
  EXPECT_EQ(number_of(journal_kind::done), 2 * times);
  EXPECT_EQ(number_of(journal_kind::stop), 1U);
  EXPECT_EQ(all.core->look(1s).error(), errc::stopped);
}

/// Holds everything, or throws instead.
class blunt final : public policy {
 public:
  explicit blunt(bool throws) : throws_(throws) {}
  std::string_view name() const noexcept override { return "blunt"; }
  void decide(const snapshot& now, decision_sink& out) override {
    for (const group_id id : now.changed) out.hold(id, never);
    if (throws_) throw std::runtime_error("as it was told");
  }

 private:
  const bool throws_;
};

/// The scheduler sleeps when the policies come: nothing but they wakes it.
TEST(Scheduler, TakesAnotherPolicyWhileItSleeps) {
  node one(own_loop(), quick(), {},
           {.fallback = [] { return make_fixed_timeslice({.slice = 1ms}); }});
  ASSERT_TRUE(one.core->start());
  std::thread reactor([&] { one.core->run(); });
  ASSERT_TRUE(eventually([&] { return one.managed(); }));
  const auto suspends = [&] { return one.core->stats().suspends.value(); };
  const auto resumes = [&] { return one.core->stats().resumes.value(); };
  EXPECT_EQ(suspends(), 0U);
  one.core->set_policy(std::make_unique<blunt>(false));
  EXPECT_TRUE(eventually([&] { return suspends() == 1; }));
  one.core->set_policy(std::make_unique<blunt>(true));
  EXPECT_TRUE(eventually([&] { return resumes() == 1; }));
  EXPECT_EQ(one.core->stats().policy_ejections, 1U);
  // The fallback is at work.
  auto client = one.client();
  client.begin();
  EXPECT_TRUE(eventually([&] { return suspends() == 2; }));
  one.core->stop();
  reactor.join();
}

TEST(Scheduler, TellsItsSourcesHowOftenToLookAtPointers) {
  node plain(own_loop());
  ASSERT_TRUE(plain.core->start());
  ASSERT_TRUE(plain.step_until([&] { return plain.managed(); }));
  EXPECT_EQ(plain.log.pointers, -1);
  node all(own_loop(), quick(), {}, {}, make_pointer_polling({.fast = 1ms, .slow = 3ms}));
  ASSERT_TRUE(all.core->start());
  EXPECT_TRUE(all.step_until([&] { return all.log.pointers == duration(3ms).count(); }));
  auto client = all.client();
  const auto busy = client.busy();
  EXPECT_TRUE(all.step_until([&] { return all.log.pointers == duration(1ms).count(); }));
}

TEST(Scheduler, NamesTheProcessesThatMarkTheirRequestsToItsSources) {
  node all(own_loop());
  ASSERT_TRUE(all.core->start());
  ASSERT_TRUE(all.step_until([&] { return all.managed(); }));
  EXPECT_EQ(all.log.marks, 0);
  {
    const auto client = all.core->register_client({.name = "server", .gpus = {}, .pid = 77});
    ASSERT_TRUE(client);
    EXPECT_TRUE(all.step_until([&] { return all.log.marks == 77; }));
  }
  EXPECT_TRUE(all.step_until([&] { return all.log.marks == -77; }));
}

TEST(Scheduler, RunReturnsAtOnceWhenNothingWasStarted) {
  node all(own_loop());
  all.core->run();
  EXPECT_FALSE(all.core->poll_once());
}

TEST(Scheduler, ResumesEverythingWhenItIsDestroyedWithoutStop) {
  const steady_time time;
  auto owned = std::make_unique<testing::scripted_backend>(time);
  auto& driver = *owned;
  driver.add_queue(trainer, queue_0, gpu_a);
  std::optional<std::size_t> suspended_at_end;
  driver.on_stop([&] { suspended_at_end = driver.suspended_count(); });
  source_log log;
  {
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(std::make_unique<test_source>(log, [](source_host& host) -> result<void> {
      auto& to = host.claim_inbox();
      to.push(seen(observation_kind::process_seen, trainer));
      to.push(seen(observation_kind::queue_seen, trainer));
      return {};
    }));
    auto core = scheduler::create(quick(), own_loop(), std::move(owned), make_fixed_timeslice(),
                                  std::move(sources));
    ASSERT_TRUE(core);
    ASSERT_TRUE((*core)->start());
    auto client = (*core)->register_client({"test", {}, 1s});
    client->begin();
    const auto deadline = clock::now() + patience;
    while (driver.suspended_count() == 0 && clock::now() < deadline) (*core)->poll_once();
    ASSERT_EQ(driver.suspended_count(), 1U);
  }
  EXPECT_EQ(suspended_at_end, 0U);
  EXPECT_EQ(log.stops, 1);
}

TEST(Scheduler, StopsWhatItStartedWhenASourceCannotStart) {
  source_log good;
  source_log bad;
  std::vector<std::unique_ptr<source>> sources;
  sources.push_back(
      std::make_unique<test_source>(good, [](source_host&) -> result<void> { return {}; }));
  sources.push_back(std::make_unique<test_source>(bad, [](source_host&) -> result<void> {
    return error_code{ENOENT, boost::system::system_category()};
  }));
  node all(own_loop(), quick(), std::move(sources));
  EXPECT_EQ(all.core->start().error().value(), ENOENT);
  EXPECT_EQ(good.stops, 1);
  EXPECT_EQ(bad.stops, 0);
  EXPECT_EQ(all.log.starts, 0);
  EXPECT_TRUE(all.driver->stopped());
}

TEST(Scheduler, ReportsABackendThatCannotStart) {
  node all(own_loop());
  all.driver->fail_start(errc::already_owned);
  EXPECT_EQ(all.core->start().error(), errc::already_owned);
  EXPECT_EQ(all.log.starts, 0);
}

/// What does not fit is made good: the source is asked, and in the end the table is right.
TEST(Scheduler, MendsAnInboxThatOverflowedByAResync) {
  constexpr int processes = 500;
  source_log log;
  inbox_producer* to = nullptr;
  const auto tell_all = [&to] {
    to->push(seen(observation_kind::resync_begin));
    for (pid_t pid = 1000; pid < 1000 + processes; ++pid) {
      to->push(seen(observation_kind::process_seen, pid));
      to->push(seen(observation_kind::queue_seen, pid));
    }
    to->push(seen(observation_kind::resync_end));
  };
  std::vector<std::unique_ptr<source>> sources;
  sources.push_back(std::make_unique<test_source>(
      log,
      [&](source_host& host) -> result<void> {
        to = &host.claim_inbox();
        return {};
      },
      tell_all));
  auto config = quick();
  config.inbox_capacity = 16;
  config.attach_after = 1h;  // Only the table is of interest.
  config.attach_at_latest = 1h;
  node all(own_loop(), config, std::move(sources));
  ASSERT_TRUE(all.core->start());
  // From a thread of its own, which the reactor does not drain meanwhile: it must overflow.
  std::thread(tell_all).join();
  ASSERT_TRUE(all.step_until([&] { return log.resyncs != 0; }));
  EXPECT_GT(all.core->stats().inbox_overflows, 0U);
  EXPECT_EQ(log.resyncs, 1);
  EXPECT_EQ(all.core->stats().resyncs, 1U);
}

TEST(Scheduler, SurvivesClientsThatComeAndGoWhileItRuns) {
  node all(own_loop());
  ASSERT_TRUE(all.core->start());
  std::thread runner([&] { all.core->run(); });
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        auto client = all.client();
        const auto busy = client.busy();
      }
    });
  }
  for (auto& one : workers) one.join();
  EXPECT_TRUE(eventually([&] { return all.core->stats().begins == 600; }));
  EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 0; }));
  all.core->stop();
  runner.join();
}

// On the host's io_context ----------------------------------------------------------------------

/// The host's loop on several threads.
class host {
 public:
  explicit host(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { context.run(); });
  }
  ~host() {
    work_.reset();
    for (auto& one : threads_) one.join();
  }
  asio::io_context context;

 private:
  asio::executor_work_guard<asio::io_context::executor_type> work_{context.get_executor()};
  std::vector<std::thread> threads_;
};

TEST(HostedScheduler, WorksOnFourThreadsOfTheHost) {
  host threads(4);
  node all(*make_reactor(threads.context));
  ASSERT_TRUE(all.core->start());
  all.core->run();  // Returns at once.
  auto client = all.client();
  EXPECT_TRUE(eventually([&] { return all.managed(); }));
  for (int i = 0; i < 50; ++i) {
    const auto busy = client.busy();
    EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 1; }));
  }
  all.core->stop();
  EXPECT_TRUE(eventually([&] { return all.core->stopped(); }));
  EXPECT_EQ(all.core->stats().suspended_now, 0U);
}

TEST(HostedScheduler, MayBeDestroyedWhileTheHostRuns) {
  host threads(4);
  for (int i = 0; i < 30; ++i) {
    online_client client;
    {
      node all(*make_reactor(threads.context));
      ASSERT_TRUE(all.core->start());
      client = all.client();
      client.begin();
      if (i % 2 == 0) {
        EXPECT_TRUE(eventually([&] { return all.managed(); }));
      }
    }
    client.end();
  }
}

// acquire() -------------------------------------------------------------------------------------

TEST(Acquire, CompletesOnceTheOfflineQueuesAreOff) {
  host threads(2);
  node all(*make_reactor(threads.context));
  all.driver->set_delay(2ms);
  ASSERT_TRUE(all.core->start());
  auto client = all.client();
  ASSERT_TRUE(eventually([&] { return all.managed(); }));
  auto done = asio::co_spawn(
      threads.context,
      [&]() -> asio::awaitable<bool> {
        const busy_token busy = co_await client.acquire();
        co_return busy.was_clear() && all.core->stats().suspended_now == 1;
      },
      asio::use_future);
  EXPECT_TRUE(done.get());
  EXPECT_TRUE(eventually([&] { return all.core->stats().suspended_now == 0; }));
}

TEST(Acquire, CompletesAtOnceWhenThereIsNothingToSuspend) {
  asio::io_context context;
  const steady_time time;
  auto core = scheduler::create(quick(), *make_reactor(context),
                                std::make_unique<testing::scripted_backend>(time),
                                make_fixed_timeslice(), {});
  ASSERT_TRUE((*core)->start());
  auto client = *(*core)->register_client({"test", {}, 1h});
  bool clear = false;
  asio::co_spawn(
      context,
      [&]() -> asio::awaitable<void> {
        const auto busy = co_await client.acquire();
        clear = busy.was_clear();
        (*core)->stop();
      },
      asio::detached);
  context.run();  // Runs dry once the scheduler has stopped.
  EXPECT_TRUE(clear);
  EXPECT_TRUE((*core)->stopped());
}

// Symptom: was_clear() of one whose scheduler only observed.
TEST(Acquire, CompletesAtOnceAndIsNotClearWhereTheSchedulerObserves) {
  host threads(1);
  auto core = scheduler::create(quick(), *make_reactor(threads.context), make_null_backend(),
                                make_fixed_timeslice(), {});
  ASSERT_TRUE((*core)->start());
  auto client = *(*core)->register_client({"test", {}, 1h});
  const auto busy = client.acquire(asio::use_future).get();
  EXPECT_TRUE(busy);
  EXPECT_FALSE(busy.was_clear());
}

// Symptom: a pause made every request late by acquire_limit.
TEST(Acquire, IsAnsweredAtOnceWithoutAPolicyAndWhileTheSchedulerStops) {
  using stopper = void (*)(node&);
  for (const stopper end : {stopper{[](node& one) { one.core->set_policy(nullptr); }},
                            stopper{[](node& one) { one.core->stop(); }}}) {
    host threads(2);
    auto config = quick();
    config.stop_limit = 30s;
    node all(*make_reactor(threads.context), config);
    all.driver->hold_answers(true);
    ASSERT_TRUE(all.core->start());
    auto client = *all.core->register_client({"test", {}, 1h});
    ASSERT_TRUE(eventually([&] { return all.managed(); }));
    auto waiting = client.acquire(asio::use_future);
    EXPECT_EQ(waiting.wait_for(1ms), std::future_status::timeout);
    end(all);
    ASSERT_EQ(waiting.wait_for(patience), std::future_status::ready);
    EXPECT_FALSE(waiting.get().was_clear());
  }
}

TEST(Acquire, GivesUpWaitingAfterItsLimitAndIsBusyAllTheSame) {
  host threads(2);
  node all(*make_reactor(threads.context));
  all.driver->hold_answers(true);
  ASSERT_TRUE(all.core->start());
  auto client = *all.core->register_client({"test", {}, 10ms});
  ASSERT_TRUE(eventually([&] { return all.managed(); }));
  auto got = client.acquire(asio::use_future);
  auto busy = got.get();
  EXPECT_TRUE(busy);
  EXPECT_FALSE(busy.was_clear());
}

TEST(Acquire, TakesAnyCompletionToken) {
  host threads(2);
  node all(*make_reactor(threads.context));
  ASSERT_TRUE(all.core->start());
  auto client = all.client();
  std::atomic<int> calls{0};
  asio::thread_pool pool(1);
  client.acquire(asio::bind_executor(pool.get_executor(), [&](error_code error, busy_token busy) {
    EXPECT_FALSE(error);
    EXPECT_TRUE(busy);
    EXPECT_TRUE(pool.get_executor().running_in_this_thread());
    ++calls;
  }));
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  pool.join();
}

TEST(Acquire, CanBeCancelled) {
  using namespace asio::experimental::awaitable_operators;
  host threads(1);
  node all(*make_reactor(threads.context));
  all.driver->hold_answers(true);
  ASSERT_TRUE(all.core->start());
  auto client = *all.core->register_client({"test", {}, 1h});
  ASSERT_TRUE(eventually([&] { return all.managed(); }));
  auto done = asio::co_spawn(
      threads.context,
      [&]() -> asio::awaitable<std::size_t> {
        asio::steady_timer timer(threads.context, 5ms);
        const auto first = co_await (client.acquire() || timer.async_wait(asio::use_awaitable));
        co_return first.index();
      },
      asio::use_future);
  EXPECT_EQ(done.get(), 1U);
}

TEST(Acquire, IsAnsweredWhenTheSchedulerStopsOrIsGone) {
  host threads(2);
  online_client client;
  {
    node all(*make_reactor(threads.context));
    all.driver->hold_answers(true);
    ASSERT_TRUE(all.core->start());
    client = *all.core->register_client({"test", {}, 1h});
    ASSERT_TRUE(eventually([&] { return all.managed(); }));
    auto waiting = client.acquire(asio::use_future);
    EXPECT_EQ(waiting.wait_for(1ms), std::future_status::timeout);
    all.core.reset();
    const auto busy = waiting.get();
    EXPECT_TRUE(busy);
    EXPECT_FALSE(busy.was_clear());
  }
  const auto late = client.acquire(asio::use_future).get();
  EXPECT_TRUE(late);
  EXPECT_FALSE(late.was_clear());
}

TEST(Acquire, OfAClientThatIsRegisteredNowhereCompletesEmpty) {
  online_client nobody;
  const auto busy = nobody.acquire(asio::use_future).get();
  EXPECT_FALSE(busy);
}

}  // namespace
}  // namespace sluice::scheduler_test
