/// What host and agent make of each other's lies in the memory that they share.

#include "backend_loop.hpp"
#include "launch.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"

namespace sluice::agent::distrust_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::eventually;
using test::offline_target;
using test::patience;

constexpr process_id target_id{1};

class Distrust : public ::testing::Test {
 protected:
  Distrust() : device_({.profile = test::fast_profile()}), target_(device_.roots()) {}
  void SetUp() override { ASSERT_TRUE(target_.says('r')); }

  // A lease so long that nothing in here ends for want of it.
  agent_options options() {
    return {.driver = kfd::acting({.where = device_.roots()}),
            .agent_path = SLUICE_AGENT_PROGRAM,
            .owner_lock = "",
            .lease = 30s,
            .say = [this](std::string_view words) { message_ += std::string{words} + "\n"; }};
  }

  test::simulated_device device_;
  offline_target target_;
  std::string message_;
};

/// An agent whose host is the test itself, with the target suspended.
class AgentsDistrust : public Distrust {
 protected:
  void SetUp() override {
    Distrust::SetUp();
    auto made = launch(SLUICE_AGENT_PROGRAM, options());
    ASSERT_TRUE(made) << message_;
    agent_ = std::move(*made);
    commands_.emplace(agent_.page->commands);
    reports_.emplace(agent_.page->reports);
    command order;
    order.type = command_type::attach;
    order.target = target_id;
    order.pid = target_.pid();
    order.start_time = target_.start_time();
    send(order);
    ASSERT_TRUE(hears(report_kind::queue_added));
    send(suspension());
    ASSERT_TRUE(hears(report_kind::completed));
    ASSERT_TRUE(target_.stands_still());
  }

  friend class Distrust_ResumesForAHostThatDoesNotHearItsBell_Test;
  static command suspension() {
    command order;
    order.type = command_type::submit;
    order.target = target_id;
    order.work.id = 1;
    order.work.target = target_id;
    order.work.gpu = gpu_id{51110};
    order.work.kind = command_kind::suspend;
    order.work.count = 1;
    order.work.queues[0] = driver_queue_id{0};
    return order;
  }
  void ring() const { ::eventfd_write(agent_.agent_doorbell.get(), 1); }
  void send(const command& order) {
    ASSERT_EQ(commands_->push(order), ring_status::done);
    ring();
  }
  bool hears(report_kind kind) {
    return eventually(patience, [&] {
      while (reports_->pop(report_) == ring_status::done)
        if (report_.kind == kind) return true;
      return false;
    });
  }
  /// It resumes everything and ends in good order: a crash would say no farewell.
  void expect_that_it_ends() {
    std::string farewell;
    EXPECT_TRUE(eventually(patience, [&] {
      note heard;
      unique_fd unexpected;
      if (!receive(agent_.control.get(), heard, unexpected)) return false;
      if (heard.kind == note_kind::farewell) farewell = heard.get_text();
      return heard.kind == note_kind::farewell;
    }));
    EXPECT_NE(farewell.find("is damaged"), std::string::npos) << farewell;
    EXPECT_TRUE(target_.runs());
  }

  connection agent_;
  std::optional<command_writer> commands_;
  std::optional<report_reader> reports_;
  report report_;
};

TEST_F(AgentsDistrust, EndsItWhenTheCountOfCommandsIsForged) {
  agent_.page->commands.written.fetch_add(most_commands + 1);
  ring();
  expect_that_it_ends();
}

TEST_F(AgentsDistrust, EndsItWhenTheCountOfTakenReportsIsForged) {
  agent_.page->reports.taken.fetch_add(0x4000'0000);
  send(suspension());  // for a report to write
  expect_that_it_ends();
}

// Values no host sends, in every place that is used: answered or ignored, and survived.
TEST_F(AgentsDistrust, SurvivesCommandsThatMakeNoSense) {
  command order = suspension();
  order.work.id = 2;
  order.work.count = 0xffff;
  send(order);
  ASSERT_TRUE(hears(report_kind::completed));
  EXPECT_EQ(report_.result.count, max_batch_queues);
  order.type = static_cast<command_type>(77);
  send(order);
  order.type = command_type::detach;
  order.target = process_id{0xffff'ffff'ffff};
  send(order);
  order.type = command_type::attach;
  order.pid = -1;
  send(order);
  ASSERT_TRUE(hears(report_kind::attached));
  EXPECT_EQ(error_code{report_.error}, errc::unknown_target);
  order.type = command_type::reserve;
  order.gpu = gpu_id{0xffff'ffff};
  order.offline_share = std::numeric_limits<double>::quiet_NaN();
  send(order);
  ASSERT_TRUE(hears(report_kind::reserved));
  EXPECT_EQ(error_code{report_.error}, errc::not_supported) << "by debug trap";
  order.type = command_type::quantum;
  order.quantum = -1ns;
  send(order);
  ASSERT_TRUE(hears(report_kind::quantum_set));
  EXPECT_EQ(error_code{report_.error}, errc::not_supported) << "KFD slices no time";
  order.type = command_type::follow;
  for (const pid_t pid : {-1, target_.pid()}) {
    order.pid = pid;
    order.every = -1ns;
    send(order);  // is not answered
  }
  send(suspension());
  EXPECT_TRUE(hears(report_kind::completed));
}

// A host that never looks at what rings for it, and so fills what the kernel keeps of that: the
// agent rings on, and sees that its host is silent.
TEST_F(Distrust, ResumesForAHostThatDoesNotHearItsBell) {
  agent_options with = options();
  with.lease = 2s;
  auto made = launch(SLUICE_AGENT_PROGRAM, with);
  ASSERT_TRUE(made) << message_;
  command_writer commands{made->page->commands};
  report_reader reports{made->page->reports};
  report heard;
  const auto order = [&](const command& what, report_kind answer) {
    made->page->lease_renewed.store(clock::now().time_since_epoch().count());
    if (commands.push(what) != ring_status::done) return false;
    ::eventfd_write(made->agent_doorbell.get(), 1);
    return eventually(patience, [&] {
      while (reports.pop(heard) == ring_status::done)
        if (heard.kind == answer) return true;
      return false;
    });
  };
  command what;
  what.type = command_type::attach;
  what.target = target_id;
  what.pid = target_.pid();
  what.start_time = target_.start_time();
  ASSERT_TRUE(order(what, report_kind::queue_added));
  what = AgentsDistrust::suspension();
  ASSERT_TRUE(order(what, report_kind::completed));
  // Each answer rings: net.unix.max_dgram_qlen is 10, or some hundreds.
  what.work.queues[0] = driver_queue_id{77};
  for (int round = 0; round < 600; ++round)
    ASSERT_TRUE(order(what, report_kind::completed)) << round;
  EXPECT_TRUE(target_.stands_still());
  EXPECT_TRUE(target_.runs(10s));  // The lease lapses.
}

// What would come with a message is closed by who drops it, which takes as long as its peer wants.
TEST_F(Distrust, TakesNothingFromItsHostButCommands) {
  auto made = launch(SLUICE_AGENT_PROGRAM, options());
  ASSERT_TRUE(made) << message_;
  for (const int line : {made->control.get(), made->host_doorbell.get()}) {
    EXPECT_LT(::send(line, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT), 0);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST_F(Distrust, MakesTheHostReplaceAnAgentThatForgesCounts) {
  agent_options with = options();
  with.lease = 2s;
  backend_loop loop{make_agent_backend(with)};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(loop->attach(target_id, target_.pid(), target_.start_time()));
  ASSERT_TRUE(loop.until([&] { return loop.queues[target_id].size() == 1; }));
  ASSERT_TRUE(loop.suspend(target_id, {0}));
  ASSERT_TRUE(target_.stands_still());

  const pid_t agent = tracer_of(target_.pid()).value_or(0);  // a thread's id does for /proc
  const std::string path = "/proc/" + std::to_string(agent) + "/fd/" + std::to_string(memory_fd);
  const unique_fd memory{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  ASSERT_TRUE(memory);
  void* const mapped =
      ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::unique_ptr<shared_page, unmap_page> page{static_cast<shared_page*>(mapped)};
  page->reports.written.fetch_add(most_reports + 1);

  ASSERT_TRUE(loop.until([&] {
    loop->drain();  // nobody rings for a lie
    return loop.losses == 1;
  }));
  EXPECT_NE(message_.find("the memory shared with the agent is damaged"), std::string::npos)
      << message_;
  EXPECT_TRUE(target_.runs());
  EXPECT_TRUE(loop.until([&] { return loop.restorations == 1; }));
  loop.attachments.clear();
  ASSERT_TRUE(loop->attach(target_id, target_.pid(), target_.start_time()));
  EXPECT_TRUE(loop.until([&] { return loop.queues[target_id].size() == 1; }));
}

}  // namespace
}  // namespace sluice::agent::distrust_test
