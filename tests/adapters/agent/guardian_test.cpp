/// The hold record and its guardian, with a driver whose holds are files: what is held is there.

#include "guardian.hpp"

#include "agent_processes.hpp"
#include "eventually.hpp"
#include "family.hpp"
#include "hold_record.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"
#include "sluice/os/standard_error.hpp"

namespace sluice::agent::guardian_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::patience;
using ::testing::HasSubstr;

hold hold_of(const std::string& path) {
  hold made{.pid = ::getpid(), .bytes = static_cast<std::uint32_t>(path.size()), .start_time = 1};
  std::memcpy(made.about.data(), path.data(), path.size());
  return made;
}
std::string path_of(const hold& what) { return std::string{what.text()}; }

class file_driver final : public acting_driver {
 public:
  /// \param agent has to be gone when something is released. 0: need not.
  explicit file_driver(pid_t agent = 0) : agent_(agent) {}

  std::string_view name() const noexcept override { return "files"; }
  result<std::unique_ptr<acting_side>> open(const acting_host&) override {
    return errc::not_supported;
  }
  confinement needs(confined) const override { return {.calls = {{"unlink"}, {"openat"}}}; }
  bool outlives_agent() const noexcept override { return true; }
  result<void> release(const hold& what, const message_sink& say) override {
    const std::string path = path_of(what);
    // Whose call might still be under way.
    if (const char state = test::state_of(agent_); agent_ != 0 && state != '?' && state != 'Z') {
      say("the agent is still there: " + std::string{state});
      std::ofstream{path + ".early"};
    }
    // A folder is something that this driver refuses to let go of.
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    say("cannot remove " + path);
    return last_system_error();
  }

 private:
  const pid_t agent_;
};

class Holds : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return made_.path() + "/" + name; }
  std::unique_ptr<hold_record> open(duration wait = 0s) {
    auto opened =
        hold_record::open(record_, wait, [this](std::string_view words) { said_ += words; });
    error_ = opened ? error_code{} : opened.error();
    return opened ? std::move(*opened) : nullptr;
  }
  void make(const std::string& path) const { std::ofstream{path} << "held"; }
  static bool is_there(const std::string& path) { return std::filesystem::exists(path); }

  const test::temporary_directory made_;
  const std::string record_ = made_.path() + "/owner.holds";
  std::string said_;
  error_code error_;
};

TEST_F(Holds, AreReadByWhoComesAfter) {
  {
    const auto record = open();
    ASSERT_TRUE(record);
    ASSERT_TRUE(record->begin({.driver = "files", .settings = {{"device", "/dev/a=b"}}}));
    const auto first = record->enter(hold_of("one"));
    const auto second = record->enter(hold_of("two"));
    ASSERT_TRUE(first && second);
    record->strike(*first);
  }
  const auto seen = hold_record::look(record_);
  ASSERT_TRUE(seen);
  ASSERT_EQ(seen->holds.size(), 1U);
  EXPECT_EQ(path_of(seen->holds[0]), "two");
  EXPECT_EQ(seen->by.driver, "files");
  EXPECT_EQ(seen->by.settings, (std::map<std::string, std::string>{{"device", "/dev/a=b"}}));
  // And stay, for an agent that begins anew.
  const auto next = open();
  ASSERT_TRUE(next->begin({.driver = "files"}));
  EXPECT_EQ(next->held().size(), 1U);
}

TEST_F(Holds, HaveRoomForSoManyAndNoMore) {
  const auto record = open();
  for (std::size_t count = 0; count < hold_record::most_holds; ++count)
    ASSERT_TRUE(record->enter(hold_of("x")));
  EXPECT_FALSE(record->enter(hold_of("x")));
  record->strike(7);
  EXPECT_EQ(record->enter(hold_of("y")), hold_book::number{7});
}

TEST_F(Holds, BelongToOneAtATime) {
  const auto record = open();
  ASSERT_TRUE(record);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(error_, errc::busy);
  EXPECT_THAT(said_, HasSubstr("another agent or its guardian still has " + record_));
}

TEST_F(Holds, AreForgottenAfterARestartOfTheMachine) {
  {
    const auto record = open();
    ASSERT_TRUE(record->enter(hold_of("one")));
  }
  std::fstream bytes{record_, std::ios::in | std::ios::out | std::ios::binary};
  bytes.seekp(16);  // The boot's id.
  bytes.write("another", 7);
  bytes.close();
  EXPECT_TRUE(hold_record::look(record_)->holds.empty());
  EXPECT_TRUE(open()->held().empty());
}

TEST_F(Holds, OfAnotherVersionAreNeitherForgottenNorTouched) {
  {
    const auto record = open();
    ASSERT_TRUE(record->enter(hold_of("one")));
  }
  std::fstream bytes{record_, std::ios::in | std::ios::out | std::ios::binary};
  bytes.seekp(8);
  bytes.put(99);
  bytes.close();
  EXPECT_EQ(hold_record::look(record_).error(), errc::not_supported);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(error_, errc::not_supported);
  EXPECT_THAT(said_, HasSubstr("was written by another version of sluice"));
}

TEST_F(Holds, OfAnotherUserAreOpenedByRootAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  {
    const auto record = open();
    ASSERT_TRUE(record->enter(hold_of("one")));
  }
  ASSERT_EQ(::chown(record_.c_str(), 65534, 65534), 0);
  const auto record = open();
  ASSERT_TRUE(record);
  EXPECT_TRUE(record->is_others());
  EXPECT_EQ(record->held().size(), 1U);
}

TEST_F(Holds, AreNotReadThroughALinkOrAPipe) {
  make(file("other"));
  ASSERT_EQ(::symlink(file("other").c_str(), record_.c_str()), 0);
  EXPECT_EQ(open(), nullptr);
  ::unlink(record_.c_str());
  ASSERT_EQ(::mkfifo(record_.c_str(), 0600), 0);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(error_, boost::system::errc::operation_not_permitted);
  EXPECT_EQ(std::filesystem::file_size(file("other")), 4U);
}

/// Stands for an agent that holds two files, with a guardian.
class Guardian : public Holds {
 protected:
  static constexpr duration lease = 300ms;

  /// \param renews how long it says that it lives; then it does nothing any more.
  test::family agent_that(duration renews, bool refused = false) {
    make(file("one"));
    if (refused)
      std::filesystem::create_directory(file("two"));
    else
      make(file("two"));
    return test::family{[this, renews](int says) {
      file_driver driver{::getpid()};
      const auto record = open();
      if (!record || !record->begin({.driver = "files"})) return 2;
      const auto guardian = start_guardian(*record, driver, lease);
      if (!guardian || !record->enter(hold_of(file("one"))) || !record->enter(hold_of(file("two"))))
        return 3;
      record->agent_lives(clock::now());
      (void)!::write(says, "y", 1);
      for (const time_point end = clock::now() + renews; clock::now() < end; ::usleep(10'000))
        record->agent_lives(clock::now());
      for (;;) ::pause();
    }};
  }
  bool all_released() const {
    return eventually(patience, [&] { return !is_there(file("one")) && !is_there(file("two")); }) &&
           !is_there(file("one.early")) && !is_there(file("two.early"));
  }
  static bool is_killed(const test::family& agent) {
    auto status = agent.status();
    if (status && WIFSTOPPED(*status)) status = agent.status();
    return status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL;
  }
  /// The record's lock is free: nobody is left.
  bool over() {
    return eventually(patience, [&] { return open() != nullptr; });
  }
};

TEST_F(Guardian, LetsGoOfWhatADeadAgentHeld) {
  test::family agent = agent_that(60s);
  ASSERT_EQ(agent.heard(), 'y');
  // While the agent lives and says so it does nothing, for some leases.
  const time_point later = clock::now() + 3 * lease;
  while (clock::now() < later && is_there(file("one"))) ::usleep(10'000);
  EXPECT_TRUE(is_there(file("one")) && is_there(file("two")));
  ::kill(agent.pid(), SIGKILL);
  EXPECT_TRUE(all_released());
  EXPECT_TRUE(over());
  EXPECT_TRUE(hold_record::look(record_)->holds.empty());
}

TEST_F(Guardian, KillsASilentAgentFirst) {
  test::family agent = agent_that(0s);
  ASSERT_EQ(agent.heard(), 'y');
  EXPECT_TRUE(all_released());
  EXPECT_TRUE(is_killed(agent));
}

TEST_F(Guardian, KillsAStoppedAgentFirst) {
  test::family agent = agent_that(60s);
  ASSERT_EQ(agent.heard(), 'y');
  ::kill(agent.pid(), SIGSTOP);
  EXPECT_TRUE(all_released());
  EXPECT_TRUE(is_killed(agent));
}

TEST_F(Guardian, IsNamedWhenItIsStoppedAndTheNextAgentWaits) {
  test::family agent = agent_that(60s);
  ASSERT_EQ(agent.heard(), 'y');
  const pid_t guardian = test::guardian_of(agent.pid());
  ASSERT_NE(guardian, 0);
  ::kill(guardian, SIGSTOP);
  ASSERT_TRUE(eventually(patience, [&] { return test::state_of(guardian) == 'T'; }));
  ::kill(agent.pid(), SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return test::is_gone(agent.pid()); }));
  EXPECT_EQ(open(50ms), nullptr);
  EXPECT_EQ(error_, errc::busy);
  const std::string number = std::to_string(guardian);
  EXPECT_THAT(said_, HasSubstr("process " + number + " (sluice-guardian) is stopped"));
  EXPECT_THAT(said_, HasSubstr("run 'kill -CONT " + number + "'"));
  EXPECT_TRUE(is_there(file("one")));
  ::kill(guardian, SIGCONT);
  EXPECT_TRUE(all_released());
  EXPECT_TRUE(over());
}

TEST_F(Guardian, IsNamedWhenADebuggerStopsItAndNoReaderIsNamed) {
  test::family agent = agent_that(60s);
  ASSERT_EQ(agent.heard(), 'y');
  const pid_t reader = ::fork();
  if (reader == 0) {
    const int opened = ::open(record_.c_str(), O_RDONLY);
    ::raise(SIGSTOP);
    ::_exit(opened >= 0 ? 0 : 1);
  }
  EXPECT_EQ(::waitpid(reader, nullptr, WUNTRACED), reader);
  const pid_t guardian = test::guardian_of(agent.pid());
  ASSERT_NE(guardian, 0);
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, guardian, 0, 0), 0);
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, guardian, 0, 0), 0);
  ASSERT_EQ(::waitpid(guardian, nullptr, __WALL), guardian);
  ::kill(agent.pid(), SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return test::is_gone(agent.pid()); }));
  EXPECT_EQ(open(50ms), nullptr);
  EXPECT_THAT(said_, HasSubstr("process " + std::to_string(guardian) +
                               " (sluice-guardian) is stopped by process " +
                               std::to_string(::getpid()) + " ("));
  EXPECT_THAT(said_, testing::Not(HasSubstr("process " + std::to_string(reader) + " (")));
  EXPECT_EQ(::ptrace(PTRACE_DETACH, guardian, 0, 0), 0);
  ::kill(reader, SIGKILL);
  ::waitpid(reader, nullptr, 0);
  EXPECT_TRUE(all_released());
  EXPECT_TRUE(over());
}

TEST_F(Guardian, LeavesAnAgentAloneThatHasNotBegunToActOrEnds) {
  for (const bool begun : {false, true}) {
    test::family agent{[this, begun](int says) {
      file_driver driver;
      const auto record = open(patience);
      if (!record || !record->begin({.driver = "files"})) return 2;
      if (!start_guardian(*record, driver, lease)) return 3;
      if (begun) record->agent_lives(clock::now());
      if (begun) record->agent_ends();
      const time_point end = clock::now() + 4 * lease;  // in the driver, say
      while (clock::now() < end) ::usleep(10'000);
      (void)!::write(says, "y", 1);
      return 0;
    }};
    EXPECT_EQ(agent.heard(), 'y') << "begun: " << begun;
  }
}

TEST_F(Guardian, GoesOnWithWhatAnEarlierAgentLeft) {
  std::filesystem::create_directory(file("left"));
  {
    const auto record = open();
    ASSERT_TRUE(record->enter(hold_of(file("left"))));
  }
  test::family agent{[this](int says) {
    file_driver driver;
    const auto record = open();
    if (!record || !record->begin({.driver = "files"})) return 2;
    if (!start_guardian(*record, driver, 60s)) return 3;
    record->agent_lives(clock::now());
    (void)!::write(says, "y", 1);
    for (;;) ::pause();
  }};
  ASSERT_EQ(agent.heard(), 'y');
  EXPECT_EQ(hold_record::look(record_)->holds.size(), 1U);
  ::rmdir(file("left").c_str());
  EXPECT_TRUE(eventually(patience, [&] { return hold_record::look(record_)->holds.empty(); }))
      << "while the agent lives";
}

TEST_F(Guardian, HandsOverWhatIsRefusedWhenTheNextAgentWantsIt) {
  test::family agent = agent_that(60s, true);
  ASSERT_EQ(agent.heard(), 'y');
  ::kill(agent.pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return !is_there(file("one")); }));
  const auto next = open(patience);
  ASSERT_TRUE(next) << said_;
  ASSERT_EQ(next->held().size(), 1U);
  EXPECT_EQ(path_of(next->held()[0].second), file("two"));
  ::rmdir(file("two").c_str());
}

TEST_F(Guardian, LeavesWhatTheDriverRefusesForLater) {
  test::family agent = agent_that(60s, true);
  ASSERT_EQ(agent.heard(), 'y');
  ::kill(agent.pid(), SIGKILL);
  EXPECT_TRUE(eventually(patience, [&] { return !is_there(file("one")); }));
  // It goes on trying: what refused it goes away.
  ::rmdir(file("two").c_str());
  EXPECT_TRUE(eventually(patience, [&] { return hold_record::look(record_)->holds.empty(); }));
  EXPECT_TRUE(over());
}

TEST_F(Guardian, LettingGoOfLeftoversSaysWhatIsStillHeld) {
  make(file("one"));
  std::filesystem::create_directory(file("two"));
  file_driver driver;
  const auto record = open();
  ASSERT_TRUE(record->enter(hold_of(file("one"))));
  ASSERT_TRUE(record->enter(hold_of(file("two"))));
  EXPECT_EQ(release_all(*record, driver, 50ms, [this](std::string_view words) { said_ += words; }),
            1U);
  EXPECT_FALSE(is_there(file("one")));
  EXPECT_THAT(said_, HasSubstr("cannot remove " + file("two")));
  EXPECT_THAT(said_, HasSubstr("run 'sluice rescue' as root"));
  ASSERT_EQ(record->held().size(), 1U);
}

}  // namespace
}  // namespace sluice::agent::guardian_test
