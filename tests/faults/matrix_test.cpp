// The fault matrix on real processes: an offline process runs again in time, nothing stays
// suspended, nobody hangs, and the log says what happened. By default so many cells that every pair
// of party, fault and mechanism occurs; all of them with SLUICE_FAULTS=all (tests/faults.sh
// --long).

#include "world.hpp"

#include <sys/ptrace.h>

#include <cstdlib>

namespace sluice::test {
namespace {

std::vector<combination> chosen_combinations() {
  const char* const which = std::getenv("SLUICE_FAULTS");  // NOLINT: nobody sets it meanwhile.
  return which != nullptr && std::string_view{which} == "all" ? all_combinations()
                                                              : pairwise_combinations();
}

class FaultMatrix : public testing::TestWithParam<combination> {
 protected:
  FaultMatrix() : world_{settings_for(GetParam())} {}

  /// Most cells with a lease of 100 ms. Who is slow is stopped for 50 ms at a time, and a machine
  /// that makes this longer must not make a false alarm of it.
  static world::settings settings_for(const combination& one) {
    world::settings with{.how = one.how};
    if (one.what == fault::slow) with.lease = 500ms;
    if (effect_of(one) == effect::max_suspend) with.max_suspend = 1s;
    return with;
  }

  void SetUp() override {
    // Before the host, which then finds them at its first look.
    stayer_ = world_.gpu_process("OFFLINE_AI");
    offline_.push_back(&stayer_);
    switch (GetParam().who) {
      case party::gang:
        victim_ = world_.rank(0);
        peer_ = world_.rank(1);
        offline_.insert(offline_.end(), {&victim_, &peer_});
        break;
      case party::online: victim_ = world_.gpu_process("ONLINE_AI", 0us); break;
      default:
        if (GetParam().who != party::offline) break;
        victim_ = world_.gpu_process("OFFLINE_AI");
        offline_.push_back(&victim_);
    }
    host_ = world_.host(offline_.size());
    if (GetParam().who != party::online) client_ = world_.client();
    begin();
    ASSERT_TRUE(world_.all_held(offline_)) << world_.log();
    machine_.worst();
  }

  /// Online work: the client's, or a kernel of the online process that nobody announces.
  void begin() {
    if (client_) {
      EXPECT_EQ(client_->ask("begin", patience), "begun");
      return;
    }
    const bool ends_by_itself = effect_of(GetParam()) == effect::goes_on;
    EXPECT_EQ(victim_->ask(ends_by_itself ? "run 3000000" : "run 60000000", patience), "submitted");
  }
  /// \return since when there is none.
  time_point end() {
    if (client_) {
      EXPECT_EQ(client_->ask("end", patience), "ended");
    } else {
      EXPECT_TRUE(eventually(
          patience, [&] { return world_.view().process(victim_->pid()).kernels_completed == 1; }));
    }
    return clock::now();
  }

  /// Whom it befalls; 0: a pid that has no process object here.
  const world::process& victim() const {
    switch (GetParam().who) {
      case party::client: return client_;
      case party::host: return host_;
      default: return victim_;
    }
  }
  pid_t victim_pid() {
    if (GetParam().who == party::agent) return agent_ = world_.agent();
    if (GetParam().who == party::device) return world_.device().pid();
    return victim()->pid();
  }

  /// \return when it was done, or began to last.
  time_point inflict() {
    const fault what = GetParam().what;
    const pid_t pid = victim_pid();
    const bool from_outside = GetParam().who == party::agent || GetParam().who == party::device;
    switch (what) {
      case fault::kill:
      case fault::stop: {
        const time_point since = clock::now();
        ::kill(pid, what == fault::kill ? SIGKILL : SIGSTOP);
        return since;
      }
      case fault::slow: longest_stop_ = slow_down(pid, 50ms, 10); return clock::now();
      case fault::descriptors:
        if (from_outside) {
          limit_descriptors(pid, true);
        } else {
          EXPECT_EQ(victim()->ask("suffer descriptors", patience), "done");
        }
        return clock::now();
      case fault::core:
        victim()->send("suffer core " + world_.directory());
        EXPECT_EQ(victim()->hear(patience), "crashing");
        return clock::now();
      default: break;
    }
    const time_point since = clock::now();
    if (from_outside) {
      ::kill(pid, SIGTERM);
    } else {
      victim()->send("suffer " + std::string{word(what)});
    }
    return since;
  }

  bool victim_dumps_core() const {
    std::ifstream status("/proc/" + std::to_string(victim()->pid()) + "/status");
    const std::string text{std::istreambuf_iterator<char>(status), {}};
    return text.find("\nCoreDumping:\t1") != text.npos;
  }

  /// Those offline processes that are still there.
  std::vector<const world::process*> survivors() const {
    auto all = offline_;
    const bool died = GetParam().what != fault::stop && GetParam().what != fault::descriptors &&
                      GetParam().what != fault::slow;
    if (died && (GetParam().who == party::offline || GetParam().who == party::gang))
      std::erase(all, &victim_);
    return all;
  }

  void expect_bound(duration promised, time_point since,
                    const std::vector<const world::process*>& some) {
    expect_within(world_.run_again(some, since), promised, machine_, name_of(GetParam()));
  }

  void check_effect(effect then, time_point since);
  void check_descriptors();
  void check_stays(time_point since);
  void check_device_stop();
  void check_gone();
  void recover();
  void check_aftermath();

  machine_watch machine_;
  world world_;
  world::process stayer_;
  world::process victim_;
  world::process peer_;
  world::process late_;
  world::process client_;
  world::process host_;
  std::vector<const world::process*> offline_;
  pid_t agent_ = 0;
  duration longest_stop_{};
  bool was_dumping_ = false;
};

void FaultMatrix::check_effect(effect then, time_point since) {
  switch (then) {
    case effect::ends: expect_bound(own_work + calls, since, offline_); break;
    case effect::is_looked_up: expect_bound(1s + own_work + calls, since, offline_); break;
    case effect::releases: expect_bound(own_work + calls, since, offline_); break;
    case effect::lease:
      expect_bound(world_.with().lease + own_work + calls, since, offline_);
      break;
    case effect::max_suspend:
      // One is enough to see: they take their turns of min_run, and not in step.
      expect_bound(world_.with().max_suspend + own_work + calls, since, {&stayer_});
      break;
    case effect::breaks:
      if (GetParam().what == fault::core) {
        // Until then it is one of the gang.
        EXPECT_TRUE(victim_->wait_for(patience));
        since = clock::now();
      }
      expect_bound(own_work + calls, since, {&peer_});
      EXPECT_TRUE(world_.all_held({&stayer_}));
      break;
    case effect::goes_on: {
      if (GetParam().what == fault::descriptors) check_descriptors();
      EXPECT_TRUE(world_.all_held(survivors())) << world_.log();
      const time_point over = end();
      expect_bound(own_work + calls, over, survivors());
      break;
    }
    case effect::stays: check_stays(since); break;
    case effect::calls: check_device_stop(); break;
    case effect::gone: check_gone(); break;
    case effect::same: FAIL();
  }
}

/// Whoever comes now is not served by who has no descriptors, and is not harmed.
void FaultMatrix::check_descriptors() {
  if (GetParam().who != party::host && GetParam().who != party::agent) return;
  late_ = world_.gpu_process("OFFLINE_AI");
  EXPECT_TRUE(world_.progresses(late_));
  EXPECT_TRUE(world_.log_says(find_cell(GetParam().who, GetParam().what)->log)) << world_.log();
  EXPECT_EQ(tracer_of(late_->pid()), 0);
}

/// What the driver makes of a scheduler's process that hangs and holds sessions itself.
void FaultMatrix::check_stays(time_point since) {
  if (GetParam().what == fault::core) {
    EXPECT_TRUE(host_->wait_for(60s));  // Its memory goes with the end of the dump.
    expect_bound(own_work + calls, clock::now(), offline_);
    return;
  }
  const time_point until = since + 2 * world_.with().lease + own_work;
  while (clock::now() < until) ASSERT_TRUE(world_.is_held(stayer_));
  const time_point killed = clock::now();
  host_->send("nothing");
  ::kill(host_->pid(), SIGKILL);
  expect_bound(own_work + calls, killed, offline_);
}

/// A driver that does not answer: the end of online work asks it to resume.
void FaultMatrix::check_device_stop() {
  EXPECT_EQ(client_->ask("end", patience), "ended");
  EXPECT_TRUE(world_.log_says("does not answer")) << world_.log();
  EXPECT_TRUE(host_->ask("stats", patience).find("breakers 1") != std::string::npos);
  EXPECT_TRUE(lives(host_->pid()));
  const time_point since = clock::now();
  ::kill(world_.device().pid(), SIGCONT);
  expect_bound(own_work + calls, since, offline_);
}

/// Nobody waits for a driver that is no more.
void FaultMatrix::check_gone() {
  EXPECT_EQ(client_->ask("end", patience), "ended");
  EXPECT_NE(host_->ask("stats", patience), "(no answer)");
  host_->send("stop");
  EXPECT_EQ(host_->hear(patience), "stopped") << world_.log();
  const auto status = host_->wait_for(patience);
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status));
  for (const auto* each : offline_) EXPECT_EQ(tracer_of((*each)->pid()), 0);
}

/// Ends what lasts, so that everybody can end.
void FaultMatrix::recover() {
  const pid_t pid = GetParam().who == party::agent ? agent_ : victim_pid();
  switch (GetParam().what) {
    case fault::stop: ::kill(pid, SIGCONT); break;
    case fault::descriptors:
      if (GetParam().who == party::agent || GetParam().who == party::device) {
        limit_descriptors(pid, false);
      } else {
        EXPECT_EQ(victim()->ask("suffer recover", patience), "done");
      }
      break;
    default: break;
  }
}

/// After it: nothing is suspended or traced, kernels ran exactly once, and all end.
void FaultMatrix::check_aftermath() {
  const bool host_died = GetParam().who == party::host &&
                         (GetParam().what == fault::exit || GetParam().what == fault::exec ||
                          GetParam().what == fault::fork || GetParam().what == fault::core ||
                          effect_of(GetParam()) == effect::stays);
  if (!host_died) {
    EXPECT_TRUE(lives(host_->pid())) << "nothing of ours kills a host program";
    host_->send("stop");
    for (std::optional<std::string> heard = host_->hear(patience); heard != "stopped";
         heard = host_->hear(patience)) {
      ASSERT_TRUE(heard) << "the host hangs: " << world_.log();
    }
    const auto status = host_->wait_for(patience);
    ASSERT_TRUE(status) << "the host hangs";
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  } else if (GetParam().what == fault::exec) {
    EXPECT_TRUE(lives(host_->pid()));
  }
  if (in_agent(GetParam().how)) {
    const pid_t last = world_.agent();
    EXPECT_TRUE(eventually(patience, [&] { return !lives(last); })) << "the agent hangs";
  }
  for (const auto* each : survivors()) {
    EXPECT_EQ(world_.suspended(*each), 0U);
    EXPECT_TRUE(eventually(patience, [&] { return tracer_of((*each)->pid()) == 0; }));
    EXPECT_EQ((*each)->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
  }
}

TEST_P(FaultMatrix, OfflineRunsAgainAndNobodyHangs) {
  const cell& expected = *find_cell(GetParam().who, GetParam().what);
  const effect then = effect_of(GetParam());
  const time_point since = inflict();
  check_effect(then, since);
  if (HasFatalFailure()) return;
  if (GetParam().what == fault::core && victim_dumps_core())
    std::printf("  %-44s the core was still being written\n", "");
  if (in_agent(GetParam().how)) {
    if (GetParam().what == fault::slow && longest_stop_ < world_.with().lease / 2) {
      EXPECT_EQ(world_.log().find("silent"), std::string::npos)
          << "a false alarm: " << world_.log();
    }
    if (!expected.log.empty()) {
      EXPECT_TRUE(world_.log_says(expected.log)) << world_.log();
    }
  }
  if (then == effect::gone) return;
  recover();
  check_aftermath();
  if (HasFailure()) std::printf("%s", world_.log().c_str());
}

// Whose memory is large takes seconds to exit, in which the driver knows it no more and it is not
// gone: the agent took that for a driver that refuses, and ended, with which everybody ran.
TEST(FaultsOfExit, AProcessThatTakesLongToExitCostsTheOthersNothing) {
  const world here{{.how = mechanism_used::trap_agent, .lease = 500ms}};
  const auto stayer = here.gpu_process("OFFLINE_AI");
  const auto victim = here.gpu_process("OFFLINE_AI");
  const auto host = here.host(2);
  const auto client = here.client();
  EXPECT_EQ(client->ask("begin", patience), "begun");
  ASSERT_TRUE(here.all_held({&stayer, &victim})) << here.log();
  const pid_t agent = here.agent();
  // A thread of it that has a tracer who does not wait for it keeps it from being gone.
  pid_t thread = 0;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + std::to_string(victim->pid()) + "/task"))
    thread = std::max(thread, static_cast<pid_t>(std::stol(each.path().filename().string())));
  ASSERT_NE(thread, victim->pid());
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0);
  ::kill(victim->pid(), SIGKILL);
  const time_point until = clock::now() + 1500ms;
  ASSERT_TRUE(eventually(patience, [&] { return here.suspended(victim) == 0; }));
  while (clock::now() < until) ASSERT_TRUE(here.is_held(stayer)) << here.log();
  EXPECT_EQ(here.agent(), agent);
  EXPECT_EQ(here.log().find("refuses"), std::string::npos) << here.log();
  ::waitpid(thread, nullptr, __WALL);
  EXPECT_TRUE(victim->wait_for(patience));
  EXPECT_EQ(client->ask("end", patience), "ended");
  EXPECT_TRUE(here.run_again({&stayer}, clock::now()));
}

/// Two offline processes, of which the suspend of one lasts 2 s and the other is held already.
class FaultsInACall : public testing::Test {
 protected:
  void SetUp() override {
    here_.command("delay DBG_TRAP:SUSPEND_QUEUES 2s target=" + std::to_string(slow_->pid()));
    began_ = clock::now();
    EXPECT_EQ(client_->ask("begin", patience), "begun");
    ASSERT_TRUE(here_.all_held({&held_})) << here_.log();
    machine_.worst();
  }
  void expect_within_of(duration promised, time_point since, const std::string& what) {
    expect_within(here_.run_again({&held_}, since), promised, machine_, what);
  }

  machine_watch machine_;
  const world here_{{.how = mechanism_used::trap_agent, .lease = 500ms}};
  const world::process slow_ = here_.gpu_process("OFFLINE_AI");
  const world::process held_ = here_.gpu_process("OFFLINE_AI");
  const world::process host_ = here_.host(2);
  const world::process client_ = here_.client();
  time_point began_{};
};

// A process in a driver call cannot even be killed: its sessions end with the call.
TEST_F(FaultsInACall, AKilledAgentLetsGoWhenTheCallIsOver) {
  ::kill(here_.agent(), SIGKILL);
  expect_within_of(2s + own_work + calls, began_, "the agent is killed in a call of 2 s");
  EXPECT_TRUE(here_.log_says("lost")) << here_.log();
}

// A stuck lane keeps no other from letting go.
TEST_F(FaultsInACall, AnAgentWithoutAHostLetsGoOfTheOthersAtOnce) {
  const time_point since = clock::now();
  ::kill(host_->pid(), SIGKILL);
  expect_within_of(own_work + calls, since, "the host is killed in a call of 2 s");
}

INSTANTIATE_TEST_SUITE_P(Cells, FaultMatrix, testing::ValuesIn(chosen_combinations()),
                         [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace sluice::test
