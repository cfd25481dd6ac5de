#include "sluice/kfd/node_view.hpp"

#include "temporary_directory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/kfd/queue_type.hpp"

namespace sluice::kfd::node_view_test {
namespace {

constexpr gpu_id gpu{51110};
constexpr pid_t pid = 4242;

node_view process_with(std::initializer_list<queue_type> types) {
  node_view node;
  gpu_description about;
  about.id = gpu;
  about.location = {.domain = 0, .location_id = 0x100};
  node.gpus.push_back(about);
  process_description process;
  process.pid = pid;
  std::uint32_t id = 0;
  for (const auto type : types)
    process.queues.push_back({.id = driver_queue_id{id++},
                              .gpu = gpu,
                              .kind = kind_of(type),
                              .type = {},
                              .ring_bytes = 4096,
                              .priority = {}});
  node.processes.push_back(process);
  return node;
}

mqd shown(std::uint32_t priority, std::uint64_t ring = 0x1000) {
  mqd made;
  made.pid = pid;
  made.gpu = gpu;
  made.priority = priority;
  made.ring_base = ring;
  return made;
}

constexpr auto compute = queue_type::compute_aql;

TEST(Priorities, AreKnownWhereAllQueuesOfAProcessHaveTheSame) {
  auto node = process_with({compute, compute, queue_type::sdma});
  mqds seen;
  seen.queues = {shown(7), shown(7)};
  add_priorities(node, seen);
  EXPECT_EQ(node.processes[0].queues[0].priority, 7U);
  EXPECT_EQ(node.processes[0].queues[1].priority, 7U);
  EXPECT_FALSE(node.processes[0].queues[2].priority) << "an SDMA queue";
}

TEST(Priorities, AreNotGuessed) {
  auto node = process_with({compute, compute});
  mqds seen;
  seen.queues = {shown(7), shown(11)};
  add_priorities(node, seen);
  EXPECT_FALSE(node.processes[0].queues[0].priority) << "which of the two has which?";
  seen.queues = {shown(7)};
  add_priorities(node, seen);
  EXPECT_FALSE(node.processes[0].queues[0].priority) << "the text shows only one of the two";
  seen.queues = {shown(7), shown(7)};
  seen.queues[1].pid = 5;
  add_priorities(node, seen);
  EXPECT_FALSE(node.processes[0].queues[0].priority) << "one is another process's";
}

TEST(Priorities, AreTheRingsOwnWhereASessionListedIt) {
  auto node = process_with({compute, compute});
  mqds seen;
  seen.queues = {shown(7, 0x1000), shown(11, 0x2000)};
  add_priorities(node, seen, {{pid, {{driver_queue_id{1}, gpu, 0x1000}}}});
  EXPECT_FALSE(node.processes[0].queues[0].priority) << "its ring is not known";
  EXPECT_EQ(node.processes[0].queues[1].priority, 7U);
}

TEST(Priorities, AreTheQueuesOwnWhereThePatchedDriverPrintsItsId) {
  auto node = process_with({compute, compute});
  mqds seen;
  seen.queues = {shown(7), shown(11)};
  for (auto& each : seen.queues) {
    each.gpu = gpu_id::none;
    each.location = pci_location{.domain = 0, .location_id = 0x100};
  }
  seen.queues[0].queue = driver_queue_id{1};
  seen.queues[1].queue = driver_queue_id{0};
  add_priorities(node, seen);
  EXPECT_EQ(node.processes[0].queues[0].priority, 11U);
  EXPECT_EQ(node.processes[0].queues[1].priority, 7U);
}

// A directory stands for the driver's tree; this process appears as its user or not.
TEST(Listed, ProcessesAreWhereTheTreeShowsThem) {
  const test::temporary_directory made;
  const std::string& directory = made.path();
  roots where;
  where.sysfs = directory;
  const auto user = directory + "/proc/" + std::to_string(::getpid());
  const pid_t parent = ::getppid();
  EXPECT_TRUE(may_be_listed(parent, where)) << "nobody knows: we are not there either";
  std::filesystem::create_directories(user);
  EXPECT_FALSE(may_be_listed(parent, where));
  EXPECT_TRUE(may_be_listed(::getpid(), where));

  EXPECT_EQ(why_not_listed(parent, where), "process " + std::to_string(parent) +
                                               " does not use the AMD compute driver (no " +
                                               directory + "/proc/" + std::to_string(parent) + ")");
  EXPECT_EQ(why_not_listed(4194304, where), "there is no process 4194304");
  std::promise<pid_t> thread;
  std::promise<void> done;
  std::thread other{[&] {
    thread.set_value(static_cast<pid_t>(::syscall(SYS_gettid)));
    done.get_future().wait();
  }};
  const std::string id = std::to_string(thread.get_future().get());
  EXPECT_EQ(why_not_listed(std::stoi(id), where),
            id + " is a thread, not a process; use its process " + std::to_string(::getpid()));
  done.set_value();
  other.join();
}

}  // namespace
}  // namespace sluice::kfd::node_view_test
