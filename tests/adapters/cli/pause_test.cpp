// `sluice pause` says what it does to whoever owns the node; this test holds the lock for them.

#include "command.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/node_files.hpp"
#include "sluice/os/node_lock.hpp"

namespace sluice::test::pause_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class SluicePause : public testing::Test {
 protected:
  SluicePause() { std::filesystem::create_directory(where_.directory); }
  ~SluicePause() override { std::filesystem::remove_all(where_.directory); }

  std::unique_ptr<node_lock> own(node_lock::kind what) const {
    auto taken = node_lock::acquire(where_.owner(), messages_to_stderr(), {.what = what});
    EXPECT_TRUE(taken);
    return taken ? std::move(*taken) : nullptr;
  }
  std::unique_ptr<command> ended(std::vector<std::string> words, int code) const {
    words.insert(words.end(), {"--directory", where_.directory});
    auto made = std::make_unique<command>(SLUICE_PROGRAM, std::move(words),
                                          std::vector<std::string>{"TZ=UTC0"});
    EXPECT_EQ(made->ends(), code) << made->out() << made->err();
    return made;
  }
  std::unique_ptr<command> pause(int code) const { return ended({"pause"}, code); }
  std::string self() const { return "process " + std::to_string(::getpid()) + " ("; }

  const node_files where_{.directory =
                              testing::TempDir() + "sluice_pause_" + std::to_string(::getpid())};
};

TEST_F(SluicePause, SaysThatNobodyOwnsANodeThere) {
  const auto run = pause(1);
  EXPECT_THAT(run->err(),
              StartsWith("sluice: " + where_.owner() +
                         ": no program with this directory owns the node; programs "
                         "that start with this directory suspend nothing until 'sluice unpause "
                         "--directory " +
                         where_.directory + "'"));
  EXPECT_TRUE(paused_why(where_)) << "whoever comes is paused";
}

TEST_F(SluicePause, NamesAgentsThatItDoesNotPause) {
  const std::string agent = where_.directory + "/sluice-agent";
  std::filesystem::copy_file("/bin/sleep", agent);
  const command acts{agent, {"100"}, {}};
  EXPECT_TRUE(eventually(patience, [&] {
    return testing::Matches(ContainsRegex("are not paused \\(sluice-agent, process [^)]*" +
                                          std::to_string(acts.pid())))(pause(1)->err());
  }));
}

// Symptom: an agent that was killed, and that its parent has not waited for, counted as one.
TEST_F(SluicePause, NamesNoAgentThatHasEnded) {
  const std::string agent = where_.directory + "/sluice-agent";
  std::filesystem::copy_file("/bin/sleep", agent);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(agent.c_str(), agent.c_str(), "100", nullptr);
    ::_exit(1);
  }
  const auto names_it = [&] {
    return testing::Matches(ContainsRegex("sluice-agent, process [^)]*\\b" + std::to_string(child) +
                                          "\\b"))(pause(1)->err());
  };
  EXPECT_TRUE(eventually(patience, names_it));
  ::kill(child, SIGKILL);
  siginfo_t ended{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(names_it());
  ::waitpid(child, nullptr, 0);
}

TEST_F(SluicePause, SaysWhetherTheOwnerObeys) {
  {
    const auto lock = own(node_lock::kind::node);
    const auto run = pause(0);
    EXPECT_THAT(run->out(), HasSubstr("\n" + self()));
    EXPECT_THAT(run->out(), HasSubstr(") owns the node and obeys the pause\n"));
  }
  {
    const auto lock = own(node_lock::kind::observing);
    EXPECT_THAT(pause(0)->out(), HasSubstr(") owns the node in observe mode: "));
  }
  const auto lock = own(node_lock::kind::scheduler);
  const auto run = pause(1);
  EXPECT_THAT(run->err(), StartsWith("sluice: " + self()));
  EXPECT_THAT(run->err(), HasSubstr(") owns the node and ignores the pause"));
}

TEST_F(SluicePause, KeepsAReasonUnlessItHearsAnother) {
  const auto lock = own(node_lock::kind::node);
  (void)ended({"pause", "--why", "new firmware"}, 0);
  EXPECT_THAT(pause(0)->out(), ContainsRegex("^already paused since 20[0-9-]+ [0-9:]+: new "
                                             "firmware; 'sluice unpause --directory " +
                                             where_.directory + "' ends the pause\n"));
  EXPECT_EQ(paused_why(where_), "new firmware");
  (void)ended({"pause", "--why", "new disks"}, 0);
  EXPECT_EQ(paused_why(where_), "new disks");
  EXPECT_EQ(ended({"unpause"}, 0)->out(), "the pause has ended\n");
  EXPECT_EQ(ended({"unpause"}, 0)->out(), "the node was not paused\n");
}

TEST_F(SluicePause, TakesOneLineAsTheReason) {
  for (const std::string& why : {std::string{"one\ntwo"}, std::string(201, 'x')})
    EXPECT_THAT(ended({"pause", "--why", why}, 2)->err(), HasSubstr("expected one line"));
  EXPECT_FALSE(paused_why(where_));
}

TEST_F(SluicePause, MakesNoDirectory) {
  std::filesystem::remove(where_.directory);
  EXPECT_EQ(pause(1)->err(),
            "sluice: cannot write " + where_.disabled() + ": No such file or directory\n");
  EXPECT_EQ(ended({"unpause"}, 1)->err(),
            "sluice: " + where_.directory +
                ": no such directory; name the directory of the node with --directory\n");
  EXPECT_FALSE(std::filesystem::exists(where_.directory));
}

}  // namespace
}  // namespace sluice::test::pause_test
