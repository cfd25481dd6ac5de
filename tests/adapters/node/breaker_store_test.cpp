#include "sluice/breaker_store.hpp"

#include "family.hpp"
#include "inbox_queue.hpp"
#include "temporary_directory.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::breaker_store_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::patience;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

constexpr gpu_id gpu_a{51110};
constexpr gpu_id gpu_b{51111};

class BreakerStore : public ::testing::Test {
 protected:
  void SetUp() override { store_ = breaker_store{directory_ + "/run/breakers"}; }

  static stored_breaker opened(std::optional<std::chrono::milliseconds> left = {}) {
    stored_breaker made{.why = breaker_cause::reset, .first = gpu_a, .since = wall_time_now()};
    if (left) made.until = made.since + *left;
    return made;
  }
  stored_breakers read() {
    auto all = store_.read(message_);
    EXPECT_TRUE(all) << message_;
    return all ? *all : stored_breakers{};
  }
  void write(const std::string& text) {
    std::filesystem::create_directories(directory_ + "/run");
    // As others replace it, so that nobody sees half of it.
    std::ofstream{store_.path() + ".test"} << text;
    ::chmod((store_.path() + ".test").c_str(), 0644);
    std::filesystem::rename(store_.path() + ".test", store_.path());
  }
  void remove(gpu_id gpu) { ASSERT_TRUE(store_.change({}, std::array{gpu}, message_)) << message_; }

  const test::temporary_directory made_{test::memory_directory};
  const std::string directory_ = made_.path();
  std::string message_;
  breaker_store store_{""};
};

TEST_F(BreakerStore, KeepsWhatWasOpened) {
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/run"));
  stored_breaker first = opened(1h);
  stored_breaker second = opened();
  second.why = breaker_cause::preemption_failed;
  const stored_breakers both{{gpu_a, first}, {gpu_b, second}};
  ASSERT_TRUE(store_.change(both, {}, message_)) << message_;
  EXPECT_EQ(breaker_store{store_.path()}.read(message_).value(), both);
  remove(gpu_a);
  EXPECT_THAT(read(), ElementsAre(Key(gpu_b)));
}

TEST_F(BreakerStore, DropsWhatIsOverWithTheNextChange) {
  ASSERT_TRUE(store_.change({{gpu_a, opened(1h)}}, {}, message_)) << message_;
  write("sluice breakers 1\nopen 51110 51110 reset 1000 2000\n");
  EXPECT_TRUE(read().at(gpu_a).over(wall_time_now())) << "shown, so that who follows it can tell";
  ASSERT_TRUE(store_.change({{gpu_b, opened(1h)}}, {}, message_)) << message_;
  EXPECT_THAT(read(), ElementsAre(Key(gpu_b)));
}

TEST_F(BreakerStore, RefusesWhatItDoesNotUnderstand) {
  const std::string good = "open 51110 51110 reset 1000 -\n";
  write("sluice breakers 1\n\n# a note\n" + good);
  EXPECT_THAT(read(), ElementsAre(Key(gpu_a)));
  for (const std::string& bad :
       {std::string{""}, "sluice breakers 2\n" + good, std::string{"\0\xff\n", 3}, good,
        std::string{"sluice breakers 1\nopen 51110 51110 reset 1000\n"},
        std::string{"sluice breakers 1\nopen 0 51110 reset 1000 -\n"},
        std::string{"sluice breakers 1\nopen 51110 51110 tired 1000 -\n"},
        std::string{"sluice breakers 1\nopen 51110 51110 reset -5 -\n"},
        std::string{"sluice breakers 1\nopen 51110 51110 reset 1000 2000 3000\n"},
        std::string{"sluice breakers 1\nclosed 51110\n"}}) {
    write(bad);
    message_.clear();
    const auto all = store_.read(message_);
    ASSERT_FALSE(all) << bad;
    EXPECT_EQ(all.error(), errc::bad_config);
    EXPECT_THAT(message_, HasSubstr(store_.path() + ":"));
    EXPECT_THAT(message_, HasSubstr("remove the file to start with an empty store"));
    EXPECT_FALSE(store_.change({{gpu_b, opened()}}, {}, message_)) << "it may be somebody's";
  }
}

TEST_F(BreakerStore, RefusesAFileThatOthersMayWrite) {
  write("sluice breakers 1\n");
  ::chmod(store_.path().c_str(), 0666);
  EXPECT_EQ(store_.read(message_).error(), errc::bad_config);
  EXPECT_THAT(message_, HasSubstr("the breaker store " + store_.path() + " is writable by"));
}

// A scheduler without privileges keeps its breakers in a directory of its own, and root re-arms.
TEST_F(BreakerStore, RootLeavesItToTheDirectorysOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t nobody = 65534;
  write("sluice breakers 1\nopen 51110 51110 reset 1000 -\nopen 51111 51110 reset 1000 -\n");
  ASSERT_EQ(::chown(directory_.c_str(), nobody, nobody), 0);
  ASSERT_EQ(::chown((directory_ + "/run").c_str(), nobody, nobody), 0);
  ASSERT_EQ(::chown(store_.path().c_str(), nobody, nobody), 0);
  remove(gpu_a);
  for (const std::string& name : {store_.path(), store_.path() + ".lock"}) {
    struct stat found {};
    ASSERT_EQ(::stat(name.c_str(), &found), 0);
    EXPECT_EQ(found.st_uid, nobody) << name;
  }
  // And a third user's is nobody's word.
  ASSERT_EQ(::chown(store_.path().c_str(), 1234, 1234), 0);
  EXPECT_EQ(store_.read(message_).error(), errc::bad_config);
}

TEST_F(BreakerStore, SaysThatItMayNotBeRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  write("sluice breakers 1\n");
  ::chmod(store_.path().c_str(), 0600);
  ::chmod(directory_.c_str(), 0755);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string message;
    const bool refused = ::seteuid(65534) == 0 && !store_.read(message) &&
                         message.find("cannot read the breaker store") != std::string::npos &&
                         message.find("Permission denied") != std::string::npos;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(BreakerStorePath, DiffersForAnotherTree) {
  ::unsetenv("SLUICE_BREAKERS");
  EXPECT_EQ(breaker_store::default_path(), "/run/sluice/breakers");
  EXPECT_EQ(breaker_store::default_path("/tmp/gpu/sys/class/kfd/kfd"),
            "/run/sluice/breakers-tmp-gpu-sys-class-kfd-kfd");
  ::setenv("SLUICE_BREAKERS", "/x/y", 1);
  EXPECT_EQ(breaker_store::default_path(), "/x/y");
  ::unsetenv("SLUICE_BREAKERS");
}

/// The keeper, its thread included; the test is the scheduler.
class BreakerKeeper : public BreakerStore, public source_host {
 protected:
  ~BreakerKeeper() override {
    if (keeper_) keeper_->stop();
  }

  void start() {
    keeper_ = make_breaker_keeper(store_.path(), [this](std::string_view sentence) {
      const std::scoped_lock held{mutex_};
      said_ += std::string{sentence} + "\n";
    });
    ASSERT_TRUE(keeper_->start(*this));
  }
  void restart() {
    keeper_->stop();
    inbox_.drain();
    seen_.clear();
    start();
  }
  void tell(gpu_id gpu, bool open, time_point until = never) {
    keeper_->breaker_changed({.gpu = gpu,
                              .open = open,
                              .why = breaker_cause::stuck_call,
                              .first = gpu_a,
                              .until = until});
  }
  bool stored(gpu_id gpu, bool is) {
    return eventually(patience, [&] {
      const auto all = store_.read(message_);
      return all && all->contains(gpu) == is;
    });
  }
  bool hears(observation_kind kind, gpu_id gpu) {
    return eventually(patience, [&] {
      inbox_.drain();
      return std::erase_if(seen_, [&](const observation& each) {
               if (each.kind != kind || each.gpu != gpu) return false;
               last_ = each;
               return true;
             }) != 0;
    });
  }
  std::string said() {
    const std::scoped_lock held{mutex_};
    return said_;
  }

  reactor& loop() override { std::abort(); }
  inbox_producer& claim_inbox() override { return inbox_.producer(); }

  inbox inbox_{64,
               {.wake = [] {},
                .on_reactor_thread = [] { return false; },
                .deliver = [this](const observation& each, time_point) { seen_.push_back(each); }}};
  std::vector<observation> seen_;
  observation last_;
  std::mutex mutex_;
  std::string said_;
  std::unique_ptr<source> keeper_;
};

TEST_F(BreakerKeeper, KeepsThemOpenForTheNextScheduler) {
  start();
  tell(gpu_a, true, clock::now() + 1h);
  tell(gpu_b, true);
  keeper_->stop();
  const auto all = read();
  ASSERT_THAT(all, ElementsAre(Key(gpu_a), Key(gpu_b))) << "written before it ends";
  EXPECT_EQ(all.at(gpu_b).first, gpu_a);
  EXPECT_EQ(all.at(gpu_b).why, breaker_cause::stuck_call);
  EXPECT_LT(wall_time_now() - all.at(gpu_a).since, 20s);
  EXPECT_FALSE(all.at(gpu_b).until);

  restart();
  inbox_.drain();
  ASSERT_EQ(seen_.size(), 2U) << "before start() returns";
  ASSERT_TRUE(hears(observation_kind::breaker_kept, gpu_a));
  EXPECT_GT(last_.at, clock::now() + 59min);
  EXPECT_LE(last_.at, clock::now() + 1h);
  ASSERT_TRUE(hears(observation_kind::breaker_kept, gpu_b));
  EXPECT_EQ(last_.at, never);
  EXPECT_THAT(said(), HasSubstr("GPU 51110: breaker open since 20"));
  EXPECT_THAT(said(), HasSubstr("sluice breaker rearm 51111 gpu=51111\n"));
  EXPECT_EQ(read(), all) << "it is still when it was";
}

TEST_F(BreakerKeeper, FollowsAnOperatorsRearm) {
  start();
  tell(gpu_a, true);
  tell(gpu_b, true);
  ASSERT_TRUE(stored(gpu_b, true));
  remove(gpu_a);
  EXPECT_TRUE(hears(observation_kind::breaker_rearmed, gpu_a));
  tell(gpu_a, false);
  std::filesystem::remove(store_.path());
  EXPECT_TRUE(hears(observation_kind::breaker_rearmed, gpu_b)) << "removing the file re-arms all";
  tell(gpu_b, false);
  tell(gpu_a, true);
  EXPECT_TRUE(stored(gpu_a, true)) << "and another failure is another";
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(BreakerKeeper, TakesOutWhatCloses) {
  start();
  tell(gpu_a, true, clock::now() + 1h);
  ASSERT_TRUE(stored(gpu_a, true));
  tell(gpu_a, false);
  EXPECT_TRUE(stored(gpu_a, false));
  inbox_.drain();
  EXPECT_THAT(seen_, IsEmpty()) << "the scheduler knows";
}

TEST_F(BreakerKeeper, ForgetsWhatEndedMeanwhile) {
  write("sluice breakers 1\nopen 51110 51110 reset 1000 2000\nopen 51111 51111 reset 1000 -\n");
  start();
  EXPECT_TRUE(hears(observation_kind::breaker_kept, gpu_b));
  EXPECT_TRUE(stored(gpu_a, false));
  keeper_->stop();
  inbox_.drain();
  EXPECT_THAT(seen_, IsEmpty());
}

TEST_F(BreakerKeeper, GoesOnWithoutAStoreThatIsDamaged) {
  write("not ours\n");
  start();
  EXPECT_THAT(said(), HasSubstr(store_.path() +
                                ":1: invalid line \"not ours\": expected \"sluice breakers 1\""));
  tell(gpu_a, true);
  EXPECT_TRUE(eventually(patience, [&] {
    return said().find("'sluice breaker' does not list this scheduler's breakers") !=
           std::string::npos;
  }));
  std::filesystem::remove(store_.path());
  EXPECT_TRUE(stored(gpu_a, true)) << "as soon as that is mended";
  inbox_.drain();
  EXPECT_THAT(seen_, IsEmpty()) << "what was not written yet was not re-armed";
}

TEST_F(BreakerKeeper, SaysAllOfItAgainInAResync) {
  start();
  tell(gpu_a, true);
  tell(gpu_b, true);
  ASSERT_TRUE(stored(gpu_b, true));
  remove(gpu_b);
  ASSERT_TRUE(hears(observation_kind::breaker_rearmed, gpu_b));
  keeper_->resync();
  EXPECT_TRUE(hears(observation_kind::breaker_kept, gpu_a));
  EXPECT_TRUE(hears(observation_kind::breaker_rearmed, gpu_b));
  EXPECT_TRUE(hears(observation_kind::resync_end, gpu_id{}));
}

}  // namespace
}  // namespace sluice::breaker_store_test
