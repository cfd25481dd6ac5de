#include "sluice/discovery.hpp"

#include "discovery_bench.hpp"
#include "fake_driver.hpp"
#include "family.hpp"
#include "looks.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::discovery_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::fake_driver;
using test::family;
using test::patience;
using test::wait_here;

class Discovery : public ::testing::Test {
 protected:
  void start() {
    source_.make(driver_.make_survey_with_events());
    ASSERT_TRUE(source_.start());
    ASSERT_TRUE(sees(observation_kind::resync_end));
  }
  /// \return the pid. The process lives until the test ends.
  pid_t add_new_process() {
    targets_.push_back(std::make_unique<family>(wait_here));
    driver_.show(targets_.back()->pid());
    return targets_.back()->pid();
  }
  /// Waits until the source has looked at everything.
  void look() {
    source_->resync();
    ASSERT_TRUE(sees(observation_kind::resync_end));
  }

  bool sees(observation_kind kind, duration limit = patience) { return source_.sees(kind, limit); }

  const test::temporary_directory made_{test::memory_directory};
  const std::string directory_ = made_.path();
  std::vector<std::unique_ptr<family>> targets_;
  fake_driver driver_;
  test::discovery_bench source_;
};

// What an outsider's driver gets for four short functions, and one of its processes.
TEST_F(Discovery, NeedsNoMoreThanADriverMustHave) {
  auto offline = std::make_unique<family>(test::tagged("OFFLINE_AI"));
  const family online{test::tagged("ONLINE_AI")};
  for (const family* each : {&std::as_const(*offline), &online})
    test::wait_for_exec(*each, "sleep");
  driver_.show(offline->pid(), {1});
  source_.make(driver_.make_survey());
  EXPECT_EQ(source_->name(), "fake discovery");
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::gpu_seen));
  EXPECT_EQ(source_.last().gpu, fake_driver::gpu);
  EXPECT_EQ(source_.last().count, 24U);
  EXPECT_FALSE(source_.last().shows_work);
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().pid, offline->pid());
  EXPECT_EQ(source_.last().what, role::offline);
  ASSERT_TRUE(sees(observation_kind::queue_seen));
  EXPECT_EQ(source_.last().queue, driver_queue_id{1});
  EXPECT_EQ(source_.last().gpu, fake_driver::gpu);
  EXPECT_EQ(source_.last().type, queue_kind::compute);
  ASSERT_TRUE(sees(observation_kind::resync_end));

  driver_.show(online.pid());
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().pid, online.pid());
  EXPECT_EQ(source_.last().what, role::online);
  driver_.show(offline->pid(), {1, 2});
  ASSERT_TRUE(sees(observation_kind::queue_seen));
  EXPECT_EQ(source_.last().queue, driver_queue_id{2});
  driver_.show(offline->pid(), {2});
  ASSERT_TRUE(sees(observation_kind::queue_gone));
  EXPECT_EQ(source_.last().queue, driver_queue_id{1});
  EXPECT_EQ(source_->reasons()->size(), 2U);

  const pid_t ended = offline->pid();
  offline.reset();
  ASSERT_TRUE(sees(observation_kind::process_gone));
  EXPECT_EQ(source_.last().pid, ended);
  driver_.hide(online.pid());
  ASSERT_TRUE(sees(observation_kind::process_gone));
  EXPECT_EQ(source_.last().pid, online.pid());
  EXPECT_FALSE(source_->driver_gone());
  source_->poll_pointers(1ms);  // does nothing
  look();
}

TEST_F(Discovery, LeavesTheWorkOfProcessesThatMarkTheirRequestsAlone) {
  std::vector<pid_t> online;
  roles::classification_rules rules{.role_store = ""};
  for (int i = 0; i < 2; ++i) {
    online.push_back(add_new_process());
    driver_.show(online.back(), {1});
    rules.by_process.emplace(identity_of(online.back()).value(), role::online);
  }
  std::ranges::sort(online);
  source_.make(driver_.make_survey_with_events(), rules);
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::gpu_seen));
  EXPECT_TRUE(source_.last().shows_work);
  ASSERT_TRUE(eventually(patience, [&] { return driver_.followed() == online; }));
  source_->marks_requests(online[0], true);
  EXPECT_TRUE(eventually(patience, [&] { return driver_.followed() == std::vector{online[1]}; }));
  look();
  EXPECT_EQ(driver_.followed(), std::vector{online[1]});
  const int restated = driver_.restated();
  source_->marks_requests(online[0], false);
  EXPECT_TRUE(eventually(patience, [&] { return driver_.followed() == online; }));
  EXPECT_EQ(driver_.restated(), restated + 1) << "it may have come and left between two looks";
}

TEST_F(Discovery, TellsWhetherWorkCanBeSeenWhenThatChanges) {
  driver_.show(add_new_process(), {1});
  source_.make(driver_.make_survey_with_events(), {.role_store = ""});
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::gpu_seen));
  EXPECT_TRUE(source_.last().shows_work);
  for (const bool can : {false, true}) {
    driver_.see(can);
    source_->resync();
    // Once for the resync, and once more because it has changed.
    do {
      ASSERT_TRUE(sees(observation_kind::gpu_seen));
    } while (source_.last().shows_work != can);
  }
}

TEST_F(Discovery, SaysOnceThatRulesAboutQueuesHaveNothingToGoBy) {
  std::mutex mutex;
  std::vector<std::string> said;
  const pid_t pid = add_new_process();
  driver_.show(pid, {1});
  source_.make(driver_.make_survey(), {.role_store = "", .queue_priority = true},
               [&](std::string_view sentence) {
                 const std::scoped_lock held{mutex};
                 said.emplace_back(sentence);
               });
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::queue_seen));
  look();
  source_.stop();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].find("driver fake reports no rings and priorities of queues"), 0U) << said[0];
}

TEST_F(Discovery, LooksAtOnceWhenTheDriverSaysSo) {
  start();
  EXPECT_TRUE(source_.sees_at_once(observation_kind::process_seen, [&] {
    add_new_process();
    driver_.say({.look = true});
  }));
}

TEST_F(Discovery, LooksSomeTimesMoreWhenQueuesFollow) {
  start();
  EXPECT_TRUE(source_.sees_at_once(observation_kind::queue_seen, [&] {
    const pid_t pid = add_new_process();
    driver_.say({.look = true, .queues_follow = true});
    ASSERT_TRUE(sees(observation_kind::process_seen));
    driver_.show(pid, {1});
  }));
}

// Several events tell of one reset.
TEST_F(Discovery, ReportsAResetAndRepeatsItInEveryTruth) {
  std::atomic<int> said{0};
  source_.make(driver_.make_survey_with_events(), {}, [&](std::string_view sentence) {
    if (sentence.starts_with("GPU 4660 is reset by the driver")) ++said;
  });
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  for (int times = 0; times < 2; ++times) {
    driver_.say({.resets = {fake_driver::gpu}});
    ASSERT_TRUE(sees(observation_kind::gpu_lost));
    EXPECT_EQ(source_.last().gpu, fake_driver::gpu);
  }
  look();
  EXPECT_TRUE(sees(observation_kind::gpu_lost));
  EXPECT_EQ(said, 1);
}

TEST_F(Discovery, BeginsWithTheWholeTruth) {
  family target{wait_here};
  driver_.show(target.pid());
  source_.make(driver_.make_survey());
  ASSERT_TRUE(source_.start());
  EXPECT_TRUE(sees(observation_kind::resync_begin));
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().pid, target.pid());
  EXPECT_TRUE(sees(observation_kind::resync_end));
}

TEST_F(Discovery, LooksAheadAndFindsWhatHasChangedSince) {
  family stays{wait_here};
  auto ends = std::make_unique<family>(wait_here);
  family comes{wait_here};
  driver_.show(stays.pid());
  driver_.show(ends->pid());
  source_.make(driver_.make_survey(),
               {.by_process = {{identity_of(stays.pid()).value(), role::offline}}});
  source_->look_ahead();
  ASSERT_TRUE(source_->set_role(identity_of(comes.pid()).value(), role::online));
  ends.reset();
  driver_.show(comes.pid());
  ASSERT_TRUE(source_.start());
  std::map<pid_t, role> found;
  for (int process = 0; process < 2; ++process) {
    ASSERT_TRUE(sees(observation_kind::process_seen));
    found[source_.last().pid] = source_.last().what;
  }
  EXPECT_EQ(found, (std::map{std::pair{stays.pid(), role::offline}, {comes.pid(), role::online}}));
  EXPECT_TRUE(sees(observation_kind::resync_end));
  EXPECT_TRUE(source_.silent());
}

TEST_F(Discovery, NeedNotStartAfterItLookedAhead) {
  family target{wait_here};
  driver_.show(target.pid());
  source_.make(driver_.make_survey());
  source_->look_ahead();
  source_.stop();
  ASSERT_TRUE(source_.start()) << "as one that never did";
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().pid, target.pid());
}

TEST_F(Discovery, LooksAtOnceWhenAKnownProcessExits) {
  start();
  EXPECT_TRUE(source_.sees_at_once(observation_kind::process_gone, [&] {
    add_new_process();
    look();
    targets_.pop_back();
  }));
}

TEST_F(Discovery, LooksByItselfASecondAfterAChange) {
  start();
  duration quickest = duration::max();  // of ten at most, for a busy machine may be slower
  for (int round = 0; round < 10 && quickest >= 3s; ++round) {
    add_new_process();
    quickest = std::min(quickest, source_.seen_after(observation_kind::process_seen));
  }
  EXPECT_LT(quickest, 3s);
}

TEST_F(Discovery, SaysEverythingAgainWhenAsked) {
  family target{wait_here};
  driver_.show(target.pid());
  start();
  source_->resync();
  EXPECT_TRUE(sees(observation_kind::resync_begin));
  EXPECT_TRUE(sees(observation_kind::process_seen));
  EXPECT_TRUE(sees(observation_kind::resync_end));
}

TEST_F(Discovery, TakesARoleFromAnyThreadAndGivesItBack) {
  family target{wait_here};
  driver_.show(target.pid());
  start();
  const process_identity who = identity_of(target.pid()).value();
  std::thread{[&] { EXPECT_TRUE(source_->set_role(who, role::offline)); }}.join();
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::offline);
  EXPECT_EQ(source_.last().pid, who.pid);
  EXPECT_EQ(source_.last().start_time, who.start_time);
  std::thread{[&] { EXPECT_TRUE(source_->withdraw_role(who)); }}.join();
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::unmatched);
  EXPECT_EQ(source_->withdraw_role(who).error(), errc::unknown_target);
}

TEST_F(Discovery, TakesARoleBeforeTheProcessUsesAGpuAndBeforeItStarts) {
  family early{wait_here};
  family late{wait_here};
  source_.make(driver_.make_survey_with_events());
  ASSERT_TRUE(source_->set_role(identity_of(early.pid()).value(), role::offline));
  driver_.show(early.pid());
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::offline);
  ASSERT_TRUE(sees(observation_kind::resync_end));
  ASSERT_TRUE(source_->set_role(identity_of(late.pid()).value(), role::online));
  driver_.show(late.pid());
  driver_.say({.look = true});
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().pid, late.pid());
  EXPECT_EQ(source_.last().what, role::online);
}

// What the pid's next owner would inherit otherwise.
TEST_F(Discovery, FollowsOtherRulesAndKeepsWhatItKnows) {
  const auto program = [](const char* variable, const char* value) {
    return [variable, value](int said) {
      ::fcntl(said, F_SETFD, FD_CLOEXEC);
      ::setenv(variable, value, 1);
      ::execl("/bin/sleep", "sleep", "60", nullptr);
      return 1;
    };
  };
  const family tagged{program("AMD_QUEUE_TAG", "OFFLINE_AI")};
  const family said{program("JOB", "batch")};
  for (const auto* const each : {&tagged, &said}) test::wait_for_exec(*each, "sleep");
  driver_.show(tagged.pid());
  roles::classification_rules rules;
  rules.role_store = "";
  rules.may_claim_offline = {};
  source_.make(driver_.make_survey_with_events(), rules);
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  ASSERT_TRUE(source_->set_role(identity_of(said.pid()).value(), role::online));
  driver_.show(said.pid());
  driver_.say({.look = true});
  ASSERT_TRUE(sees(observation_kind::process_seen));

  const auto becomes = [&](pid_t pid, role what) {
    return eventually(patience, [&] {
      return sees(observation_kind::process_seen) && source_.last().pid == pid &&
             source_.last().what == what;
    });
  };
  std::string message;
  rules.may_claim_offline.everyone = true;
  source_->set_rules(rules);
  EXPECT_TRUE(becomes(tagged.pid(), role::offline));
  // A variable that nobody looked at before; what was said comes first.
  rules.by_environment = {{"JOB", "batch", role::offline}};
  source_->set_rules(rules);
  ASSERT_TRUE(source_->withdraw_role(identity_of(said.pid()).value()));
  EXPECT_TRUE(becomes(said.pid(), role::offline));

  // Another store, which must be readable; then it is followed, and not looked at again.
  const auto before = rules;
  roles::role_store store{directory_ + "/roles"};
  rules.role_store = store.path();
  std::ofstream{store.path()} << "nonsense\n";
  EXPECT_FALSE(check_rules(rules, before, message));
  EXPECT_TRUE(check_rules(rules, rules, message)) << message;
  EXPECT_FALSE(check_rules(rules, before, message));
  EXPECT_NE(message.find("/roles:1: "), std::string::npos) << message;
  std::filesystem::remove(store.path());
  ASSERT_TRUE(check_rules(rules, before, message)) << message;
  source_->set_rules(rules);
  ASSERT_TRUE(store.set(identity_of(said.pid()).value(), role::online, message)) << message;
  EXPECT_TRUE(becomes(said.pid(), role::online));
  rules.online_priority = 99;
  EXPECT_EQ(check_rules(rules, rules, message).error(), errc::bad_config);
  EXPECT_EQ(message, rules.problem());
}

TEST_F(Discovery, TakesNoRoleForAProcessThatIsGone) {
  auto target = std::make_unique<family>(wait_here);
  start();
  const process_identity who = identity_of(target->pid()).value();
  ASSERT_TRUE(source_->set_role(who, role::offline));
  EXPECT_EQ(source_->set_role({who.pid, who.start_time - 1}, role::offline).error(),
            errc::unknown_target);
  target.reset();
  ASSERT_TRUE(eventually(patience, [&] { return !identity_of(who.pid); }));
  EXPECT_EQ(source_->set_role(who, role::offline).error(), errc::unknown_target);
  EXPECT_EQ(source_->withdraw_role(who).error(), errc::unknown_target);
  EXPECT_EQ(identity_of(who.pid).error(), errc::unknown_target);
}

TEST_F(Discovery, TakesRolesFromManyThreadsAtOnce) {
  family target{wait_here};
  driver_.show(target.pid());
  start();
  const process_identity who = identity_of(target.pid()).value();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_TRUE(source_->set_role(who, role::online));
        (void)source_->withdraw_role(who);
      }
    });
  }
  for (std::thread& each : callers) each.join();
  ASSERT_TRUE(source_->set_role(who, role::offline));
  EXPECT_TRUE(eventually(patience, [&] {
    return sees(observation_kind::process_seen, 0ms) && source_.last().what == role::offline;
  }));
}

// Of a store that does not exist yet, in a directory that does not either.
TEST_F(Discovery, FollowsTheRoleStoreWithinASecond) {
  family target{wait_here};
  driver_.show(target.pid());
  roles::role_store store{directory_ + "/lib/sluice/roles"};
  source_.make(driver_.make_survey(), {.role_store = store.path()});
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  const process_identity who = identity_of(target.pid()).value();
  std::string message;
  bool within_a_second = false;  // in one of ten rounds at least, for a busy machine may be slower
  for (int round = 0; round < 10 && !within_a_second; ++round) {
    duration longest{};
    const auto becomes = [&](role what) {
      longest = std::max(longest, source_.seen_after(observation_kind::process_seen));
      return longest != duration::max() && source_.last().what == what;
    };
    ASSERT_TRUE(store.set(who, role::offline, message)) << message;
    ASSERT_TRUE(becomes(role::offline));
    ASSERT_TRUE(store.set(who, role::online, message)) << message;
    ASSERT_TRUE(becomes(role::online));
    // A pattern of all: the root's cgroup, and whatever is below.
    ASSERT_TRUE(store.set("/", role::offline, message)) << message;
    ASSERT_TRUE(store.clear(who, message)) << message;
    ASSERT_TRUE(becomes(role::offline));
    std::filesystem::remove_all(directory_ + "/lib");
    ASSERT_TRUE(becomes(role::unmatched));
    within_a_second = longest < 1s;
  }
  EXPECT_TRUE(within_a_second);
}

// Though nothing else happens.
TEST_F(Discovery, EndsAReleaseWhenItsTimeHasCome) {
  family target{wait_here};
  family online{wait_here};
  driver_.show(target.pid());
  driver_.show(online.pid());
  roles::role_store store{directory_ + "/roles"};
  std::string message;
  const process_identity who = identity_of(target.pid()).value();
  const process_identity other = identity_of(online.pid()).value();
  ASSERT_TRUE(store.set(other, role::online, message)) << message;
  ASSERT_TRUE(store.release(other, 1min, message)) << message;
  source_.make(driver_.make_survey(),
               {.by_process = {{who, role::offline}}, .role_store = store.path()});
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(store.release(who, 1min, message)) << message;
    ASSERT_TRUE(sees(observation_kind::process_seen));
    EXPECT_EQ(source_.last().pid, who.pid) << "an online one stays online";
    EXPECT_EQ(source_.last().what, role::unmatched) << "whoever said that it is offline";
    // Only now the short one: the write of a release may take longer than it lasts.
    const time_point before = clock::now();
    ASSERT_TRUE(store.release(who, 1500ms, message)) << message;
    ASSERT_TRUE(sees(observation_kind::process_seen));
    EXPECT_EQ(source_.last().pid, who.pid);
    EXPECT_EQ(source_.last().what, role::offline);
    EXPECT_GE(clock::now() - before, 1400ms);
  }
  ASSERT_TRUE(store.release(who, 1min, message)) << message;
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::unmatched);
  ASSERT_TRUE(store.end_release(who, message)) << message;
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::offline);
}

TEST_F(Discovery, EndsAReleaseThatBeganBeforeItself) {
  family target{wait_here};
  driver_.show(target.pid());
  roles::role_store store{directory_ + "/roles"};
  std::string message;
  const process_identity who = identity_of(target.pid()).value();
  ASSERT_TRUE(store.set(who, role::offline, message)) << message;
  ASSERT_TRUE(store.release(who, 1min, message)) << message;
  source_.make(driver_.make_survey(), {.role_store = store.path()});
  // A busy machine may start only after the release.
  for (duration lasts = 3s;; lasts *= 2) {
    ASSERT_LT(lasts, 1min);
    ASSERT_TRUE(source_.start());
    ASSERT_TRUE(sees(observation_kind::process_seen));
    EXPECT_EQ(source_.last().what, role::unmatched);
    source_.stop();
    source_.forget();
    ASSERT_TRUE(store.release(who, std::chrono::floor<std::chrono::milliseconds>(lasts), message))
        << message;
    ASSERT_TRUE(source_.start());
    ASSERT_TRUE(sees(observation_kind::process_seen));
    if (source_.last().what == role::unmatched) break;
    source_.stop();
    source_.forget();
    ASSERT_TRUE(store.release(who, 1min, message)) << message;
  }
  // The store would be refused by now; the time comes all the same.
  std::filesystem::permissions(store.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  ASSERT_TRUE(sees(observation_kind::resync_end));
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::offline);
}

TEST_F(Discovery, BeginsWithWhatTheStoreSaidBefore) {
  family target{wait_here};
  driver_.show(target.pid());
  roles::role_store store{directory_ + "/roles"};
  std::string message;
  ASSERT_TRUE(store.set(identity_of(target.pid()).value(), role::offline, message)) << message;
  source_.make(driver_.make_survey(), {.role_store = store.path()});
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(source_.start());
    ASSERT_TRUE(sees(observation_kind::process_seen));
    EXPECT_EQ(source_.last().what, role::offline);
    source_.stop();
    source_.forget();
  }
}

TEST_F(Discovery, DoesNotStartWithAStoreThatOthersMayWrite) {
  roles::role_store store{directory_ + "/roles"};
  std::string message;
  ASSERT_TRUE(store.set("/a", role::offline, message)) << message;
  std::filesystem::permissions(store.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  source_.make(driver_.make_survey(), {.role_store = store.path()},
               [&message](std::string_view words) { message = words; });
  EXPECT_EQ(source_.start().error(), errc::bad_config);
  EXPECT_NE(message.find(store.path() + " is writable by group or others"), std::string::npos)
      << message;
}

TEST_F(Discovery, KeepsWhatTheStoreSaidBeforeItWasRefused) {
  family target{wait_here};
  driver_.show(target.pid());
  roles::role_store store{directory_ + "/roles"};
  std::string message;
  const process_identity who = identity_of(target.pid()).value();
  ASSERT_TRUE(store.set(who, role::online, message)) << message;
  std::atomic<int> refusals{0};
  source_.make(driver_.make_survey(), {.role_store = store.path()},
               [&refusals](std::string_view words) {
                 if (words.find("is writable by") != words.npos) ++refusals;
               });
  ASSERT_TRUE(source_.start());
  ASSERT_TRUE(sees(observation_kind::resync_end));
  std::filesystem::permissions(store.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  ASSERT_TRUE(eventually(patience, [&] { return refusals == 1; }));
  source_->resync();
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::online);
  std::filesystem::permissions(store.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::remove);
  ASSERT_TRUE(store.set(who, role::offline, message)) << message;
  ASSERT_TRUE(sees(observation_kind::resync_end));
  ASSERT_TRUE(sees(observation_kind::process_seen));
  EXPECT_EQ(source_.last().what, role::offline);
  EXPECT_EQ(refusals, 1);
}

TEST_F(Discovery, RefusesRulesWithAProblem) {
  std::string message;
  source_.make(driver_.make_survey(), {.role_store = "", .online_priority = 16},
               [&message](std::string_view words) { message = words; });
  EXPECT_EQ(source_.start().error(), errc::bad_config);
  EXPECT_NE(message.find("online_priority is 16"), std::string::npos) << message;
}

TEST_F(Discovery, IsSilentOnceStopped) {
  family target{wait_here};
  start();
  source_.stop();
  driver_.show(target.pid());
  driver_.say({.look = true});
  EXPECT_TRUE(source_.silent());
}

}  // namespace
}  // namespace sluice::discovery_test
