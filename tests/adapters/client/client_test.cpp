// Clients in processes of their own against a scheduler in this one.

#include "program.hpp"
#include "served_node.hpp"

#include <sys/stat.h>

#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

class Client : public ::testing::Test {
 protected:
  client::server_options options() const {
    client::server_options made;
    made.socket = place_.path();
    made.say = [](std::string_view line) { std::printf("%.*s\n", int(line.size()), line.data()); };
    return made;
  }
  std::string open_line(int role = 1) const {
    return "open " + place_.path() + " " + std::to_string(role);
  }
  bool becomes(program& of, const std::string& part) {
    std::string status;
    const bool there = eventually(patience, [&] {
      status = of.ask("status");
      return status.find(part) != status.npos;
    });
    EXPECT_TRUE(there) << "no " << part << " in: " << status;
    return there;
  }

  socket_place place_;
};

TEST_F(Client, SuspendsOfflineWorkFromItsOwnProcess) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(one, "connected=1 role=1"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(one.ask("begin"), "0");
    ASSERT_TRUE(node.suspends()) << i;
    EXPECT_EQ(one.ask("end"), "0");
    ASSERT_TRUE(node.resumes()) << i;
  }
  EXPECT_EQ(node.stats().begins, 20U);
  EXPECT_EQ(one.ask("close"), "0");
}

TEST_F(Client, LosesNoBeginAndNoEndAmongProcessesAndThreads) {
  constexpr int processes = 3;
  constexpr int threads = 3;
  constexpr int times = 50'000;
  served_node node(options());
  ASSERT_TRUE(node.runs());
  std::vector<std::unique_ptr<program>> all;
  for (int i = 0; i < processes; ++i) {
    all.push_back(std::make_unique<program>());
    ASSERT_EQ(all.back()->ask(open_line()), "ok");
    ASSERT_TRUE(becomes(*all.back(), "connected=1"));
  }
  for (auto& each : all) {
    each->tell("hammer " + std::to_string(threads) + " " + std::to_string(times));
  }
  for (auto& each : all) EXPECT_EQ(each->hear(), "done");
  EXPECT_TRUE(node.resumes());
  constexpr std::uint64_t expected = std::uint64_t{processes} * threads * times;
  EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == expected; }))
      << node.stats().begins << " of " << expected;
}

TEST_F(Client, CountsAsEndedWhenItIsKilled) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_EQ(one.ask("begin"), "0");
  ASSERT_TRUE(node.suspends());
  one.kill(SIGKILL);
  EXPECT_TRUE(node.resumes());
}

TEST_F(Client, DelaysNobodyWhileItIsStopped) {
  served_node node(options());
  ASSERT_TRUE(node.runs());
  program stopped;
  ASSERT_EQ(stopped.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(stopped, "connected=1"));
  stopped.kill(SIGSTOP);
  program other;
  ASSERT_EQ(other.ask(open_line()), "ok");
  ASSERT_TRUE(becomes(other, "connected=1"));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(other.ask("begin"), "0");
    ASSERT_TRUE(node.suspends());
    ASSERT_EQ(other.ask("end"), "0");
    ASSERT_TRUE(node.resumes());
  }
  stopped.kill(SIGCONT);
  EXPECT_EQ(stopped.ask("begin"), "0");
  EXPECT_TRUE(node.suspends());
}

TEST_F(Client, WorksBeforeThereIsASchedulerAndOverItsRestart) {
  program one;
  ASSERT_EQ(one.ask(open_line()), "ok");
  ASSERT_EQ(one.ask("hammer 2 1000"), "done");
  ASSERT_EQ(one.ask("begin"), "0");
  ASSERT_THAT(one.ask("status"), HasSubstr("connected=0"));
  for (int life = 1; life <= 3; ++life) {
    served_node node(options());
    ASSERT_TRUE(node.runs());
    ASSERT_TRUE(becomes(one, "connections=" + std::to_string(life)));
    // What is in flight counts, what is past does not.
    EXPECT_TRUE(node.suspends());
    EXPECT_EQ(node.stats().begins, 1U);
    EXPECT_EQ(one.ask("begin"), "0");
    EXPECT_TRUE(eventually(patience, [&] { return node.stats().begins == 2; }));
    EXPECT_EQ(one.ask("end"), "0");
    node.stop();
    ASSERT_TRUE(becomes(one, "connected=0"));
  }
  EXPECT_THAT(one.ask("status"), HasSubstr("in_flight=1"));
}

}  // namespace
}  // namespace sluice::test
