/// What shows of queues from outside, and what the driver tells, on the simulated device.

#include "backend_loop.hpp"
#include "discovery_bench.hpp"
#include "kfd_survey.hpp"
#include "offline_target.hpp"
#include "refusing_driver.hpp"
#include "simulated_device.hpp"

#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/debug_session.hpp"
#include "sluice/kfd/driver_trees.hpp"
#include "sluice/kfd/hqds.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/queue_pointers.hpp"
#include "sluice/kfd/smi_events.hpp"

namespace sluice::kfd::observe_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::eventually;
using test::offline_target;
using test::patience;

constexpr process_id target_id{1};
constexpr gpu_id gpu{51110};

class Observe : public ::testing::Test {
 protected:
  Observe() : device_({.profile = test::fast_profile()}) {}

  /// The target's queues as a debug session lists them.
  std::vector<queue_info> list(const offline_target& target, std::size_t count) {
    backend_loop loop{make_in_process_backend({.roots = device_.roots(), .owner_lock = ""})};
    EXPECT_TRUE(loop.start());
    EXPECT_TRUE(loop->attach(target_id, target.pid(), target.start_time()));
    EXPECT_TRUE(loop.until([&] { return loop.added.size() == count; }));
    return loop.added;
  }

  test::simulated_device device_;
};

TEST_F(Observe, TiesQueuesToTheirDescriptors) {
  const offline_target target{device_.roots(), {.queues = 3}};
  ASSERT_TRUE(target.says('r'));
  const auto listed = list(target, 3);
  std::vector<queue_ring> queues;
  for (const queue_info& each : listed) queues.push_back({each.id, each.gpu, each.incarnation});

  const mqds seen = read_mqds(device_.roots()).value();
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  EXPECT_NE(std::ranges::find(seen.processes, target.pid()), seen.processes.end());
  const auto found = join(seen, target.pid(), queues);
  ASSERT_EQ(found.size(), 3U);
  for (std::size_t index = 0; index < found.size(); ++index) {
    ASSERT_NE(found[index], nullptr);
    EXPECT_EQ(found[index]->priority, 7U);
    EXPECT_EQ(found[index]->aql, true);
    // As the simulated device's client lays out its amd_queue_t.
    EXPECT_NE(found[index]->write_pointer_address, 0U);
    EXPECT_EQ(found[index]->read_pointer_address - found[index]->write_pointer_address, 0x48U);
  }
}

TEST_F(Observe, SeesWorkArriveWithoutTracing) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  // Addresses from mqds alone: no session, no help from the target.
  std::vector<pointer_addresses> addresses;
  for (const mqd& each : read_mqds(device_.roots()).value().queues) {
    if (each.pid == target.pid())
      addresses.push_back({each.read_pointer_address, each.write_pointer_address});
  }
  ASSERT_EQ(addresses.size(), 2U);
  auto pointers = queue_pointers::open({target.pid(), target.start_time()}).value();
  for (const pointer_addresses& each : addresses) EXPECT_TRUE(is_rocr_layout(each));
  ASSERT_TRUE(pointers->watch(addresses));
  ASSERT_TRUE(pointers->read());
  const std::vector<pointer_values> before{pointers->values().begin(), pointers->values().end()};
  EXPECT_TRUE(eventually(patience, [&] {
    return pointers->read() && pointers->values()[0].write > before[0].write &&
           pointers->values()[1].write > before[1].write &&
           pointers->values()[0].read > before[0].read;
  }));
  for (const pointer_values& each : pointers->values()) EXPECT_LE(each.pending(), 64U);
  EXPECT_EQ(pointers->slow(), 0U);
  EXPECT_EQ(tracer_of(target.pid()), 0);
}

TEST_F(Observe, FindsAQueueInItsSlots) {
  const std::string path = device_.roots().debugfs + "/hqds";
  if (!std::ifstream{path}) GTEST_SKIP() << path << ": this simulated device has none";
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto listed = list(target, 1);
  const queue_in_slots queue{.gpu = gpu, .ring_base = listed[0].incarnation};
  // While the driver changes what is mapped, or time-slices, it is in none.
  std::uint32_t xccs = 0;
  EXPECT_TRUE(eventually(patience, [&] {
    const hqds seen = read_hqds(device_.roots()).value();
    EXPECT_FALSE(seen.problems) << seen.problems.first_text;
    const auto loads = join(seen, {&queue, 1});
    if (!loads[0] || loads[0]->slots == 0) return false;
    const auto uses = occupancy(seen);
    EXPECT_EQ(uses.size(), 1U);
    EXPECT_EQ(uses[0].gpu, gpu);
    EXPECT_GE(uses[0].active, loads[0]->slots);
    EXPECT_GE(uses[0].slots, uses[0].active);
    xccs = 1 + std::ranges::max_element(seen.slots, {}, &hqd::xcc)->xcc;
    EXPECT_EQ(loads[0]->slots, xccs);
    return true;
  }));
}

TEST_F(Observe, ListsTheQueuesThatSysfsShows) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto listed = list_queues(device_.roots()).value();
  ASSERT_EQ(listed.size(), 2U);
  for (const listed_queue& each : listed) {
    EXPECT_EQ(each.pid, target.pid());
    EXPECT_EQ(each.what.gpu, gpu);
    EXPECT_EQ(each.what.type, 0U);
    EXPECT_GE(each.what.ring_size, 64U * 64U);
  }
  const auto second = [&] {
    const auto now = list_queues(device_.roots()).value();
    const auto found = std::ranges::find(now, driver_queue_id{1}, &listed_queue::id);
    return found != now.end() ? found->inode : 0;
  };
  const ino_t before = second();
  ASSERT_TRUE(target.obeys('d'));
  EXPECT_EQ(second(), 0U);
  ASSERT_TRUE(target.obeys('q'));
  EXPECT_NE(second(), 0U);
  EXPECT_NE(second(), before);

  const roots nowhere{.device = "", .sysfs = "/nonexistent", .debugfs = "/nonexistent"};
  EXPECT_EQ(list_queues(nowhere).error(), boost::system::errc::no_such_file_or_directory);
  EXPECT_EQ(read_mqds(nowhere).error(), boost::system::errc::no_such_file_or_directory);
}

TEST_F(Observe, NoticesAnIdThatIsUsedAgainBetweenTwoLooks) {
  const offline_target target{device_.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  test::discovery_bench found;
  found.make(make_survey(device_.roots()));
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::queue_seen));
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  // Faster than a look, unless this machine is very slow: then both looks see it all the same.
  ASSERT_TRUE(target.obeys('d'));
  ASSERT_TRUE(target.obeys('q'));
  EXPECT_TRUE(found.sees(observation_kind::queue_gone, 30s));
  EXPECT_EQ(found.last().queue, driver_queue_id{1});
  EXPECT_TRUE(found.sees(observation_kind::queue_seen, 30s));
  EXPECT_EQ(found.last().queue, driver_queue_id{1});
}

class nobody final : public session_listener {
 public:
  void queue_added(const session_queue&) override {}
  void queue_removed(driver_queue_id) override {}
};

TEST_F(Observe, ProbesForIdsOnceAndInOneCall) {
  const offline_target target{device_.roots(), {.queues = 3}};
  ASSERT_TRUE(target.says('r'));
  const auto cycles = [&] {
    const std::string stats = device_.stats();
    std::smatch number;
    EXPECT_TRUE(std::regex_search(stats, number, std::regex{"\"cycles\": ?([0-9]+)"})) << stats;
    return std::stoul(number[1]);
  };
  // The end of the thread lets go of the target.
  std::thread{[&] {
    const message_sink say = messages_to_stderr();
    const auto node = device::open(device_.roots().device, say).value();
    auto traced = tracee::seize(target.pid(), target.start_time(), say).value();
    nobody listener;
    auto session = debug_session::open(*node, *traced, listener, say).value();
    ASSERT_TRUE(session->start());
    const auto before = cycles();
    const auto found = session->probe(1'000'000);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(*found, (std::vector{driver_queue_id{0}, driver_queue_id{1}, driver_queue_id{2}}));
    EXPECT_EQ(cycles() - before, 1U);
    EXPECT_TRUE(target.runs());
    EXPECT_EQ(session->probe(16).error(), errc::not_supported);
    EXPECT_TRUE(session->close());
  }}.join();
}

TEST_F(Observe, DoesNotProbeWhatItMaySuspend) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  std::thread{[&] {
    const message_sink say = messages_to_stderr();
    const auto node = device::open(device_.roots().device, say).value();
    auto traced = tracee::seize(target.pid(), target.start_time(), say).value();
    nobody listener;
    auto session = debug_session::open(*node, *traced, listener, say).value();
    ASSERT_TRUE(session->start());
    const driver_queue_id queue{0};
    outcome what{};
    session->suspend({&queue, 1}, {&what, 1});
    ASSERT_EQ(what, outcome::done);
    EXPECT_EQ(session->probe(16).error(), errc::busy);
    EXPECT_TRUE(target.stands_still());
    EXPECT_TRUE(session->close());
  }}.join();
}

TEST_F(Observe, HearsOfAResetAndRepeatsItInEveryTruth) {
  test::smi_driver driver;
  test::discovery_bench found;
  std::mutex mutex;
  std::string message;
  auto made = std::make_unique<kfd_survey>(device_.roots(), messages_to_stderr());
  const kfd_survey& driver_says = *made;
  found.make(std::move(made), {}, [&](std::string_view words) {
    const std::lock_guard held{mutex};
    message = words;
  });
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  const auto number = static_cast<std::uint32_t>(gpu);
  ASSERT_TRUE(eventually(patience, [&] {
    const auto streams = driver.streams();
    return streams.size() == 2 && streams[0].mask != 0 && streams[1].mask != 0;
  }));
  // Resets come apart from what carries names: no process can make one up.
  for (const auto& each : driver.streams()) {
    EXPECT_EQ(each.gpu, number);
    EXPECT_TRUE((each.mask & smi_resets) == 0 || (each.mask & smi_named) == 0);
  }
  const auto reset = smi_bit(smi_kind::gpu_pre_reset);
  // Cut anywhere, with what nobody can read before it.
  ASSERT_EQ(driver.say(number, reset, "gibberish\n3 1"), 1);
  ASSERT_EQ(driver.say(number, reset, "2 ring timeout\n"), 1);
  ASSERT_TRUE(found.sees(observation_kind::gpu_lost));
  EXPECT_EQ(found.last().gpu, gpu);
  {
    const std::lock_guard held{mutex};
    EXPECT_NE(message.find("GPU 51110 is reset"), std::string::npos) << message;
  }
  const auto evictions = smi_bit(smi_kind::queue_eviction);
  ASSERT_EQ(driver.say(number, evictions, "9 1004 -4242 c7a6 2\na 1007 -4242 c7a6\n"), 1);
  EXPECT_TRUE(
      eventually(patience, [&] { return driver_says.heard(smi_kind::queue_restore) == 1; }));
  EXPECT_EQ(driver_says.heard(smi_kind::queue_eviction), 1U);
  EXPECT_EQ(driver_says.heard(smi_kind::gpu_pre_reset), 1U);
  found->resync();
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  EXPECT_TRUE(found.sees(observation_kind::gpu_lost));
}

TEST_F(Observe, LooksAtOnceWhenTheDriverSaysThatAProcessBegan) {
  test::smi_driver driver;
  test::discovery_bench found;
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  found.make(make_survey(device_.roots()));
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::queue_seen));
  const auto start = smi_bit(smi_kind::process_start);
  // The driver reads the mask of a stream some time after discovery has written it.
  ASSERT_TRUE(eventually(patience, [&] {
    return std::ranges::any_of(driver.streams(),
                               [&](const auto& each) { return (each.mask & start) != 0; });
  }));
  // A new queue causes no other event.
  EXPECT_TRUE(found.sees_at_once(observation_kind::queue_seen, [&] {
    ASSERT_TRUE(target.obeys('q'));
    ASSERT_EQ(driver.say(51110, start, "c 1 b\n"), 1);
  }));
}

TEST_F(Observe, BelievesNoResetThatANamePlays) {
  test::smi_driver driver;
  test::discovery_bench found;
  auto made = std::make_unique<kfd_survey>(device_.roots(), messages_to_stderr());
  const kfd_survey& driver_says = *made;
  found.make(std::move(made));
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  const auto start = smi_bit(smi_kind::process_start);
  ASSERT_TRUE(
      eventually(patience, [&] { return driver.say(51110, start, "c 1 a\n3 1\nc 1 b\n") == 1; }));
  EXPECT_TRUE(
      eventually(patience, [&] { return driver_says.heard(smi_kind::process_start) == 2; }));
  EXPECT_EQ(driver_says.heard(smi_kind::gpu_pre_reset), 0U);
  found->resync();
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  EXPECT_FALSE(found.sees(observation_kind::gpu_lost, 100ms));
}

// The simulated driver's own events, not the test's.
TEST_F(Observe, HearsTheSimulatedDriversEvents) {
  const std::string control = device_.root() + "/sim/control";
  if (::access(control.c_str(), W_OK) != 0)
    GTEST_SKIP() << control << ": this simulated device has none";
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  test::discovery_bench found;
  auto made = std::make_unique<kfd_survey>(device_.roots(), messages_to_stderr());
  const kfd_survey& driver_says = *made;
  found.make(std::move(made));
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  EXPECT_TRUE(eventually(30s, [&] {
    std::ofstream{control} << "vmfault " << target.pid() << " 51110\n";
    return driver_says.heard(smi_kind::vm_fault) > 0;
  }));
}

TEST_F(Observe, DoesWithoutEventsWhereTheDriverGivesNone) {
  const test::smi_driver driver{EOPNOTSUPP};
  test::discovery_bench found;
  std::vector<std::string> messages;
  const message_sink say = [&](std::string_view words) { messages.emplace_back(words); };
  found.make(make_survey(device_.roots(), say), {}, say);
  ASSERT_TRUE(found.start());
  ASSERT_TRUE(found.sees(observation_kind::resync_end));
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  EXPECT_TRUE(found.sees(observation_kind::queue_seen));
  found.stop();
  EXPECT_TRUE(messages.empty()) << messages.front();
}

}  // namespace
}  // namespace sluice::kfd::observe_test
