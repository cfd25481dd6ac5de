// One owner, many hosts, through the mounted device: programs that embed a node share it.

#include "sluice/node.hpp"

#include "child_process.hpp"
#include "device_view.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/asio.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/policies/pointer_polling.hpp"

namespace sluice::test::node_test {
namespace {

using namespace std::chrono_literals;

std::chrono::milliseconds since(time_point then) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - then);
}

class Node : public testing::Test {
 protected:
  Node() { std::filesystem::create_directory(directory_); }

  node_options options() const {
    node_options with;
    with.settings.scheduler.attach_after = 50ms;
    with.settings.scheduler.attach_at_latest = 100ms;
    with.settings.scheduler.max_suspend = 60s;
    with.settings.roles.role_store = "";
    with.settings.make_policy = [] { return make_pointer_polling(); };
    with.driver = kfd::make_driver({.where = device_.roots()});
    with.files.directory = directory_;
    with.breakers = directory_ + "/breakers";
    with.agent_path = SLUICE_AGENT_PROGRAM;
    return with;
  }

  static const char* word(node_state state) {
    switch (state) {
      case node_state::idle: return "idle";
      case node_state::following: return "following";
      case node_state::owning: return "owning";
      case node_state::stopped: break;
    }
    return "stopped";
  }

  /// A program that embeds a node, as a model server does, with a client that has work in flight
  /// for as long as it is told to.
  std::unique_ptr<child_process> embed() const {
    return std::make_unique<child_process>([this](channel& line) {
      std::string message;
      auto made = node::create(options(), message);
      if (!made) {
        line.send(message);
        return 1;
      }
      node& here = **made;
      if (const auto started = here.start(); !started) {
        line.send(started.error().message());
        return 1;
      }
      std::error_code error;
      auto client = here.connect({.name = "replica"}, error);
      client::busy_token work;
      line.send(word(here.state()));
      while (const auto heard = line.receive(60s)) {
        if (*heard == "stop") {
          here.stop();
          line.send(word(here.state()));
          return 0;
        }
        if (*heard == "work") work = client.busy();
        if (*heard == "rest") work.end();
        if (*heard == "paused") {
          line.send(here.paused() ? "paused" : "not paused");
        } else if (*heard == "connections") {
          const auto seen = client.status();
          line.send(std::to_string(seen.connected != 0 ? seen.connections : 0));
        } else {
          line.send(word(here.state()));
        }
      }
      return 2;
    });
  }
  /// A replica that is another user's, and passes on what it warns of.
  std::unique_ptr<child_process> another_users(node_mode mode) const {
    return std::make_unique<child_process>([this, mode](channel& line) {
      if (::setgroups(0, nullptr) != 0 || ::setresgid(64003, 64003, 64003) != 0 ||
          ::setresuid(64003, 64003, 64003) != 0)
        return 1;
      auto with = options();
      with.mode = mode;
      with.warn = [&line](std::string_view sentence) { line.send(sentence); };
      std::string message;
      auto made = node::create(std::move(with), message);
      if (!made || !(*made)->start()) return 1;
      line.send(word((*made)->state()));
      (void)line.receive(60s);
      line.send(word((*made)->state()));
      return 0;
    });
  }
  /// Below the device's directory, which is its user's alone.
  void let_others_in() const {
    std::filesystem::permissions(std::filesystem::path(device_.root()).parent_path(),
                                 std::filesystem::perms{0755});
  }
  std::string not_this_user() const {
    return "this program cannot own the node: lock " + directory_ +
           "/owner belongs to user 0, but this program runs as user 64003; run it as user 0. Until "
           "then, offline work is suspended for this program's clients only if another program "
           "owns the node";
  }
  static std::string ask(child_process& of, const std::string& what) {
    of.line().send(what);
    return of.line().receive(patience).value_or("(no answer)");
  }
  static std::string state_of(child_process& of) {
    of.line().send("?");
    return of.line().receive(patience).value_or("(no answer)");
  }

  std::unique_ptr<target_process> target(const std::string& tag, const std::string& kernel) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    auto made = std::make_unique<target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{"1", kernel}, environment);
    EXPECT_EQ(made->hear(patience), "ready");
    return made;
  }
  bool becomes(const target_process& one, std::uint64_t queues) const {
    return eventually(patience, [&] { return suspended(one) == queues; });
  }
  pid_t agent_pid() const {
    std::ifstream file{directory_ + "/owner"};
    std::string host;
    pid_t agent = 0;
    std::getline(file, host);
    file >> agent;
    return agent;
  }
  std::uint64_t suspended(const target_process& one) const {
    return view_.process(one.pid()).suspended_queues;
  }
  bool progresses(const target_process& one) const {
    const auto before = view_.process(one.pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(one.pid()).kernels_completed > before + 2; });
  }

  simulated_device device_{{.profile = "mi300x"}};
  const device_view view_{device_.root()};
  const std::string directory_ = device_.root() + "/run";
};

// Two replicas, and the owner is killed while both have work in flight.
TEST_F(Node, IsTakenOverByTheOtherReplicaWithinASecondOfItsOwnersDeath) {
  const auto trainer = target("OFFLINE_AI", "2000");
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  ASSERT_TRUE(eventually(patience, [&] {
    return ask(*first, "connections") == "1" && ask(*second, "connections") == "1";
  }));
  ask(*second, "work");
  ASSERT_TRUE(becomes(*trainer, 1)) << "the follower's work counts";
  ask(*first, "work");
  const auto suspends = view_.process(trainer->pid()).queue_suspends;

  undelayed_stopwatch taking{::getpid(), second->pid()};
  first->signal(SIGKILL);
  const time_point killed = clock::now();
  ASSERT_TRUE(eventually(patience, [&] { return state_of(*second) == "owning"; }));
  EXPECT_LT(taking.elapsed(), 1s);
  const auto taken = since(killed);
  ASSERT_TRUE(eventually(patience, [&] { return ask(*second, "connections") == "2"; }));
  const auto connected = since(killed);
  // It ran in between: who is suspended once more has been resumed.
  ASSERT_TRUE(eventually(patience, [&] {
    const auto seen = view_.process(trainer->pid());
    return seen.queue_suspends > suspends && seen.suspended_queues == 1;
  }));
  std::cout << "the owner was killed: taken over after " << taken.count()
            << " ms, the other's client back after " << connected.count()
            << " ms, offline work held again after " << since(killed).count()
            << " ms (attach_after 50 ms)\n";

  ask(*second, "rest");
  EXPECT_TRUE(becomes(*trainer, 0));
  EXPECT_EQ(ask(*second, "stop"), "stopped");
  EXPECT_TRUE(second->succeeds(patience));
  EXPECT_EQ(trainer->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

// Its agent takes its time, and the other looks at the node meanwhile, but only looks.
TEST_F(Node, IsTakenOverOnceItsLastOwnersAgentHasLetGoOfEverything) {
  const auto trainer = target("OFFLINE_AI", "2000");
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  ask(*second, "work");
  ASSERT_TRUE(becomes(*trainer, 1));
  const auto suspends = view_.process(trainer->pid()).queue_suspends;
  std::ofstream{device_.root() + "/sim/control"} << "delay DBG_TRAP:DISABLE 700ms times=1\n";
  const time_point killed = clock::now();
  first->signal(SIGKILL);
  const auto late = target("OFFLINE_AI", "2000");
  ASSERT_TRUE(eventually(patience, [&] { return state_of(*second) == "owning"; }));
  EXPECT_GE(since(killed), 700ms);
  EXPECT_TRUE(eventually(patience, [&] {
    return view_.process(trainer->pid()).queue_suspends > suspends && suspended(*trainer) == 1 &&
           suspended(*late) == 1;
  }));
  ask(*second, "rest");
  EXPECT_TRUE(becomes(*trainer, 0));
  EXPECT_TRUE(becomes(*late, 0));
}

// What the owner needs no word for: its work shows in its queues.
TEST_F(Node, HoldsForAnOnlineKernelThatOutlivesItsOwner) {
  const auto trainer = target("OFFLINE_AI", "2000");
  auto server = target("ONLINE_AI", "0");
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  ASSERT_EQ(server->ask("run 20000000", patience), "submitted");
  ASSERT_TRUE(becomes(*trainer, 1));
  const auto suspends = view_.process(trainer->pid()).queue_suspends;
  first->signal(SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] {
    const auto seen = view_.process(trainer->pid());
    return seen.queue_suspends > suspends && seen.suspended_queues == 1;
  }));
  server.reset();  // and its kernel, which would have the GPU to itself
  EXPECT_TRUE(becomes(*trainer, 0));
  EXPECT_TRUE(progresses(*trainer));
}

// A host that hangs loses the node, and finds out when it goes on.
TEST_F(Node, IsTakenFromAnOwnerThatHangs) {
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  ASSERT_TRUE(eventually(patience, [&] { return ask(*second, "connections") == "1"; }));
  first->signal(SIGSTOP);
  ASSERT_TRUE(eventually(patience, [&] { return state_of(*second) == "owning"; }));
  // Its client hears nothing from the first, and goes to the second all the same.
  EXPECT_TRUE(eventually(patience, [&] { return ask(*second, "connections") == "2"; }));
  first->signal(SIGCONT);
  ASSERT_TRUE(eventually(patience, [&] { return state_of(*first) == "following"; }));
  EXPECT_EQ(state_of(*second), "owning");
  ASSERT_TRUE(eventually(patience, [&] { return ask(*first, "connections") != "0"; }));
  // And back again.
  second->signal(SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return state_of(*first) == "owning"; }));
}

// Whoever is faster has it; nobody has it twice, and offline work is held for both.
TEST_F(Node, HasOneOwnerAfterItsAgentWasKilled) {
  const auto trainer = target("OFFLINE_AI", "2000");
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  for (int round = 0; round < 3; ++round) {
    ask(*first, "work");
    ASSERT_TRUE(becomes(*trainer, 1));
    const auto suspends = view_.process(trainer->pid()).queue_suspends;
    ASSERT_EQ(::kill(agent_pid(), SIGKILL), 0);
    ASSERT_TRUE(eventually(patience, [&] {
      const auto seen = view_.process(trainer->pid());
      return seen.queue_suspends > suspends && seen.suspended_queues == 1;
    }));
    EXPECT_TRUE(eventually(patience, [&] { return state_of(*first) != state_of(*second); }));
    ask(*first, "rest");
    ASSERT_TRUE(becomes(*trainer, 0));
  }
}

TEST_F(Node, KnowsThatItIsPausedWhileItFollows) {
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  ASSERT_TRUE(second->says("following", patience));
  const auto both = [&](const std::string& what) {
    return eventually(
        patience, [&] { return ask(*first, "paused") == what && ask(*second, "paused") == what; });
  };
  EXPECT_TRUE(both("not paused"));
  const node_files files{.directory = directory_};
  std::string message;
  ASSERT_TRUE(pause_node(files, "", message)) << message;
  EXPECT_TRUE(both("paused"));
  ASSERT_TRUE(unpause_node(files, message)) << message;
  EXPECT_TRUE(both("not paused"));
}

// Its work counts as long as somebody owns the node, but the lock and the socket are another's.
TEST_F(Node, IsNotTakenOverByAnotherUsersReplicaWhichSaysSoOnce) {
  let_others_in();
  for (const auto mode : {node_mode::enforce, node_mode::observe}) {
    const auto own = embed();
    ASSERT_TRUE(own->says("owning", patience));
    const std::string lock = directory_ + "/owner";
    ASSERT_EQ(::chown(lock.c_str(), 0, 64003), 0);
    ASSERT_EQ(::chmod(lock.c_str(), 0640), 0);
    const auto other = another_users(mode);
    ASSERT_TRUE(other->says("following", patience));
    own->signal(SIGKILL);
    EXPECT_EQ(other->line().receive(patience), not_this_user());
    EXPECT_EQ(
        other->line().receive(patience),
        "cannot take over the node: Permission denied; retrying in 1s, later every 30s; logged "
        "again when the error changes");
    EXPECT_FALSE(other->line().receive(1500ms)) << "it has tried again meanwhile";
    other->line().send("?");
    EXPECT_EQ(other->line().receive(patience), "following");
  }
}

// Then it cannot know whether there is an owner either.
TEST_F(Node, DoesNotStartForAnotherUserWhoMayNotReadTheLock) {
  let_others_in();
  const auto own = embed();
  ASSERT_TRUE(own->says("owning", patience));
  EXPECT_TRUE(another_users(node_mode::enforce)->says(not_this_user(), patience));
}

TEST_F(Node, IsHandedOverByAnOwnerThatEndsInGoodOrder) {
  const auto first = embed();
  ASSERT_TRUE(first->says("owning", patience));
  const auto second = embed();
  const auto third = embed();
  ASSERT_TRUE(second->says("following", patience));
  ASSERT_TRUE(third->says("following", patience));
  first->line().send("stop");
  EXPECT_EQ(first->line().receive(patience), "stopped");
  ASSERT_TRUE(eventually(
      patience, [&] { return state_of(*second) == "owning" || state_of(*third) == "owning"; }));
  EXPECT_NE(state_of(*second), state_of(*third)) << "one of the two";
}

// The last two are in this process, whose threads no child could be forked beside.

// A host's io_context, with the pause that every node obeys.
TEST_F(Node, RunsOnTheHostsLoopAndObeysAPause) {
  const auto trainer = target("OFFLINE_AI", "2000");
  boost::asio::io_context context;
  auto with = options();
  with.make_loop = [&context] { return make_reactor(context); };
  std::atomic<int> alive{0};
  with.alive = [&alive] { ++alive; };
  with.alive_every = 10ms;
  std::string message;
  auto made = node::create(std::move(with), message);
  ASSERT_TRUE(made) << message;
  node& here = **made;
  ASSERT_TRUE(here.start());
  auto work = boost::asio::make_work_guard(context);
  std::thread host([&context] { context.run(); });
  std::error_code error;
  auto client = here.connect({}, error);
  ASSERT_FALSE(error) << error.message();
  {
    const auto busy = client.busy();
    EXPECT_TRUE(becomes(*trainer, 1));
    const node_files files{.directory = directory_};
    ASSERT_TRUE(pause_node(files, "", message)) << message;
    EXPECT_TRUE(becomes(*trainer, 0));
    EXPECT_TRUE(here.paused());
    ASSERT_TRUE(unpause_node(files, message)) << message;
    EXPECT_TRUE(becomes(*trainer, 1));
    EXPECT_FALSE(here.paused());
  }
  EXPECT_TRUE(becomes(*trainer, 0));
  EXPECT_TRUE(eventually(patience, [&] { return alive > 2; }));
  here.stop();
  EXPECT_EQ(here.state(), node_state::stopped);
  work.reset();
  host.join();
}

TEST_F(Node, TakesAGrantBackThatItsNewSettingsNoLongerGive) {
  const auto with = options();
  std::string message;
  auto made = node::create(with, message);
  ASSERT_TRUE(made) << message;
  node& here = **made;
  ASSERT_TRUE(here.start());
  std::error_code error;
  const auto client = here.connect({}, error);
  ASSERT_TRUE(eventually(patience, [&] { return client.status().connected != 0; }));
  auto settings = with.settings;
  settings.roles.may_claim_online = {.users = {::getuid() + 1}};
  ASSERT_TRUE(here.change(settings, message)) << message;
  EXPECT_TRUE(eventually(patience, [&] { return client.status().error == -EACCES; }));
  ASSERT_TRUE(here.change(with.settings, message)) << message;
  EXPECT_TRUE(eventually(patience, [&] { return client.status().connected != 0; }));
  here.stop();
}

// A plugin may take its time to make a policy; neither clients nor watchdogs wait for that.
TEST_F(Node, MakesPoliciesWhileItsLoopGoesOn) {
  std::atomic<int> made_slowly{0};
  std::atomic<bool> slow{false};
  std::atomic<int> alive{0};
  auto with = options();
  with.settings.make_policy = [&] {
    if (slow) {
      ++made_slowly;
      eventually(patience, [&] { return !slow; });
    }
    return make_pointer_polling();
  };
  const auto settings = with.settings;
  with.alive = [&alive] { ++alive; };
  with.alive_every = 10ms;
  std::string message;
  auto made = node::create(std::move(with), message);
  ASSERT_TRUE(made) << message;
  node& here = **made;
  ASSERT_TRUE(here.start());

  slow = true;
  std::thread operators([&] {
    std::string ignored;
    EXPECT_TRUE(here.change(settings, ignored)) << ignored;
  });
  EXPECT_TRUE(eventually(patience, [&] { return made_slowly == 1; }));
  std::error_code error;
  const auto client = here.connect({}, error);
  EXPECT_TRUE(eventually(patience, [&] { return client.status().connected != 0; }));
  slow = false;
  operators.join();

  const node_files files{.directory = directory_};
  ASSERT_TRUE(pause_node(files, "", message)) << message;
  ASSERT_TRUE(eventually(patience, [&] { return here.paused(); }));
  slow = true;
  ASSERT_TRUE(unpause_node(files, message)) << message;
  EXPECT_TRUE(eventually(patience, [&] { return made_slowly == 2; }));
  const int before = alive;
  EXPECT_TRUE(eventually(patience, [&] { return alive > before + 2; }));
  slow = false;
  here.stop();
}

}  // namespace
}  // namespace sluice::test::node_test
