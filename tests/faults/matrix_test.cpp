// The fault matrix on real processes: an offline process runs again in time, nothing stays
// suspended, nobody hangs, and the log says what happened. By default so many cells that every pair
// of party, fault and mechanism occurs; all of them with SLUICE_FAULTS=all (tests/faults.sh
// --long).

#include "driver_call.hpp"
#include "family.hpp"
#include "world.hpp"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "sluice/kfd/device.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::test::matrix_test {
namespace {

std::vector<combination> chosen_combinations() {
  const char* const which = std::getenv("SLUICE_FAULTS");  // NOLINT: nobody sets it meanwhile.
  const bool all = which != nullptr && std::string_view{which} == "all";
  auto chosen = all ? all_combinations() : pairwise_combinations();
  const auto of_channels = all ? all_of_channels() : some_of_channels();
  // A real driver is not a process, and has no batch commands unless it is patched.
  if (on_driver()) {
    const auto driver =
        kfd::device::open(kfd::roots::from_environment().device, [](std::string_view) {});
    const bool patched = driver && (*driver)->has_batch_commands();
    std::erase_if(chosen, [&](const combination& each) {
      return (by_batch(each.how) && !patched) || each.who == party::device;
    });
  } else {
    chosen.insert(chosen.end(), of_channels.begin(), of_channels.end());
  }
  return chosen;
}

/// Moves them into a cgroup of their own and kills that.
/// \return false where none can be made, or the kernel is older than Linux 5.14.
bool kill_cgroup_of(const std::vector<pid_t>& all) {
  const auto write = [](const std::string& file, const std::string& text) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    return done;
  };
  for (const std::string mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const std::string made = mount + "/sluice-test-" + std::to_string(::getpid());
    if (::access((mount + "/cgroup.controllers").c_str(), F_OK) != 0 ||
        ::mkdir(made.c_str(), 0755) != 0)
      continue;
    bool done = ::access((made + "/cgroup.kill").c_str(), W_OK) == 0;
    for (const pid_t each : all) done = done && write(made + "/cgroup.procs", std::to_string(each));
    done = done && write(made + "/cgroup.kill", "1");
    for (const pid_t each : all) {
      if (!done) (void)write(mount + "/cgroup.procs", std::to_string(each));
      EXPECT_TRUE(!done || eventually(patience, [&] { return !lives(each); }));
    }
    EXPECT_TRUE(eventually(patience, [&] { return ::rmdir(made.c_str()) == 0; }));
    return done;
  }
  return false;
}

/// One try of a cell.
class matrix_try {
 public:
  matrix_try(const combination& one, trial& with)
      : one_(one), trial_(with), allowed_{own_work + calls(one.how)}, world_{settings_for(one)} {}
  void run() {
    set_up();
    if (!trial_.failed()) check();
    if (trial_.failed()) std::printf("%s", world_.log().c_str());
  }

 private:
  static world::settings settings_for(const combination& one) {
    world::settings with{.how = one.how};
    // A core takes longer to write.
    if (effect_of(one) == effect::max_suspend)
      with.max_suspend = one.what == fault::core ? 500ms : 1s;
    return with;
  }

  void set_up() {
    // Before the host, which then finds them at its first look.
    stayer_ = world_.gpu_process("OFFLINE_AI");
    offline_.push_back(&stayer_);
    switch (one_.who) {
      case party::gang:
        victim_ = world_.rank(0);
        peer_ = world_.rank(1);
        offline_.insert(offline_.end(), {&victim_, &peer_});
        break;
      case party::online: victim_ = world_.gpu_process("ONLINE_AI", 0us); break;
      default:
        if (one_.who != party::offline) break;
        victim_ = world_.gpu_process("OFFLINE_AI");
        offline_.push_back(&victim_);
    }
    host_ = world_.host(offline_.size());
    if (in_agent(one_.how)) agent_ = world_.agent();
    if (one_.who != party::online) client_ = world_.client();
    if (outlives_agent(one_.how)) {
      guardian_ = world_.guardian();
      ASSERT_NE(guardian_, 0) << world_.log();
    }
    trial_.watch_leases(world_, {host_->pid(), agent_, guardian_});
    trial_.watch({world_.device_pid(), stayer_->pid()});
    for (const auto* each : {&client_, &victim_, &peer_}) {
      if (*each) trial_.watch({(*each)->pid()});
    }
    begin();
    ASSERT_TRUE(world_.all_held(offline_)) << world_.log();
    if (!outlives_agent(one_.how)) return;
    suspends_ = world_.suspends(offline_);
    for (const auto* each : offline_) EXPECT_FALSE(world_.has_usual_slice(*each));
  }

  /// Online work: the client's, or a kernel of the online process that nobody announces.
  void begin() {
    if (client_) {
      EXPECT_EQ(client_->ask("begin", patience), "begun");
      return;
    }
    const bool ends_by_itself = effect_of(one_) == effect::goes_on;
    EXPECT_EQ(victim_->ask(ends_by_itself ? "run 3000000" : "run 60000000", patience), "submitted");
  }
  /// \return since when there is none.
  moment end() {
    if (client_) return end_of_client();
    const auto ended = trial_.expect_soon("the online kernel ends",
                                          [&] { return world_.completed(victim_) == 1; });
    return ended.value_or(moment_of([] {}));
  }
  moment end_of_client() {
    return moment_of([&] { EXPECT_EQ(client_->ask("end", patience), "ended"); });
  }

  /// Whom it befalls; 0: a pid that has no process object here.
  const world::process& victim() const {
    switch (one_.who) {
      case party::client: return client_;
      case party::host: return host_;
      default: return victim_;
    }
  }
  pid_t victim_pid() {
    if (one_.who == party::agent) return agent_;
    if (one_.who == party::guardian) return guardian_;
    if (one_.who == party::device) return world_.device_pid();
    return victim()->pid();
  }

  /// \return when it was done, or began to last.
  moment inflict() {
    if (one_.what == fault::core) return crash();
    if (one_.what == fault::exec) return execute();
    if (one_.who == party::pair) return moment_of([&] { kill_together({agent_, guardian_}); });
    if (one_.who == party::unit)
      return moment_of([&] { kill_together({host_->pid(), agent_, guardian_}); });
    return moment_of([&] { do_inflict(); });
  }
  void do_inflict() {
    const fault what = one_.what;
    const pid_t pid = victim_pid();
    const bool from_outside = is_from_outside();
    switch (what) {
      case fault::kill: ::kill(pid, SIGKILL); break;
      case fault::stop: ::kill(pid, SIGSTOP); break;
      case fault::slow: slow_down(pid, 50ms, 10); break;
      case fault::descriptors:
        if (from_outside) {
          limit_descriptors(pid, true);
        } else {
          EXPECT_EQ(victim()->ask("suffer descriptors", patience), "done");
        }
        break;
      default:
        if (from_outside) {
          ::kill(pid, SIGTERM);
        } else {
          victim()->send("suffer " + std::string{word(what)});
        }
    }
  }
  /// It has no line to be told what to do.
  bool is_from_outside() const {
    return one_.who == party::agent || one_.who == party::guardian || one_.who == party::device;
  }
  /// None of them does anything once the first is dead.
  static void kill_together(const std::vector<pid_t>& all) {
    if (kill_cgroup_of(all)) return;
    std::printf("  %-44s one by one: no cgroup with cgroup.kill can be made here\n", "");
    for (const pid_t each : all) ::kill(each, SIGSTOP);
    for (const pid_t each : all)
      EXPECT_TRUE(eventually(patience, [&] { return state_of(each) == 'T'; }));
    for (const pid_t each : all) ::kill(each, SIGKILL);
    for (const pid_t each : all) EXPECT_TRUE(eventually(patience, [&] { return !lives(each); }));
  }
  /// \return when the kernel has replaced the program, which takes long where files are slow.
  moment execute() {
    victim()->send("suffer exec");
    const std::string name = "/proc/" + std::to_string(victim()->pid()) + "/comm";
    const auto seen = trial_.expect_soon("it executes another program",
                                         [&] { return read_file(name) == "sleep\n"; });
    return seen.value_or(moment_of([] {}));
  }
  moment crash() {
    victim()->send("suffer core " + world_.directory());
    std::optional<std::string> heard;
    const auto seen = trial_.expect_soon("it crashes", [&] {
      heard = victim()->hear(5ms);
      return heard.has_value();
    });
    EXPECT_EQ(heard, "crashing");
    return seen.value_or(moment_of([] {}));
  }

  bool victim_dumps_core() const {
    const std::string text = read_file("/proc/" + std::to_string(victim()->pid()) + "/status");
    return text.find("\nCoreDumping:\t1") != text.npos;
  }

  /// Those offline processes that are still there.
  std::vector<const world::process*> survivors() const {
    auto all = offline_;
    const bool died =
        one_.what != fault::stop && one_.what != fault::descriptors && one_.what != fault::slow;
    if (died && (one_.who == party::offline || one_.who == party::gang)) std::erase(all, &victim_);
    return all;
  }

  void expect_bound(duration promised, const moment& since,
                    const std::vector<const world::process*>& some) {
    trial_.expect_within(world_.run_again(some, since.after), since, promised, name_of(one_));
  }
  /// The same of all, where the next agent may suspend them again at once.
  void expect_release(duration promised, const moment& since) {
    trial_.expect_within(world_.run_again(offline_, since.after, suspends_), since, promised,
                         name_of(one_));
  }

  void check();
  void check_effect(effect then, moment since);
  void check_descriptors();
  void check_stays(const moment& since);
  void check_rescue();
  void check_forgotten();
  /// When a process that crashed is gone, which its core has to be written for. Disks are slow.
  std::optional<moment> end_of_dump(const world::process& whose) const {
    return observe(60s, clock::now(), [&] { return whose->wait_for(0ms).has_value(); });
  }
  void check_device_stop();
  void check_gone();
  void recover();
  void check_aftermath();
  void expect_log(bool is_dumping = false) const;

  const combination one_;
  trial& trial_;
  const duration allowed_;  ///< What each bound has for our work and calls in flight.
  world world_;
  world::process stayer_;
  world::process victim_;
  world::process peer_;
  world::process late_;
  world::process client_;
  world::process host_;
  std::vector<const world::process*> offline_;
  std::vector<std::uint64_t> suspends_;  ///< world::suspends() while all are held.
  pid_t agent_ = 0;
  pid_t guardian_ = 0;
};

void matrix_try::check_effect(effect then, moment since) {
  switch (then) {
    case effect::ends: expect_bound(allowed_, since, offline_); break;
    case effect::is_looked_up: expect_bound(1s + allowed_, since, offline_); break;
    case effect::releases: expect_release(allowed_, since); break;
    case effect::lease: expect_release(world_.with().lease + allowed_, since); break;
    case effect::max_suspend:
      // One is enough to see: they take their turns of min_run, and not in step.
      expect_bound(world_.with().max_suspend + allowed_, since, {&stayer_});
      break;
    case effect::breaks:
      if (one_.what == fault::core) {
        // Until then it is one of the gang.
        const auto ended = end_of_dump(victim_);
        ASSERT_TRUE(ended);
        since = *ended;
      }
      // The end of a program is found at discovery's next look.
      expect_bound((one_.what == fault::exec ? 1s : 0s) + allowed_, since, {&peer_});
      check_forgotten();
      EXPECT_TRUE(world_.all_held({&stayer_}));
      break;
    case effect::goes_on: {
      if (one_.what == fault::descriptors) check_descriptors();
      expect_log();  // It has been noticed.
      check_forgotten();
      // AMD's driver knows the new program only from the agent's next debug session on. A look of
      // the discovery before that ends the gang.
      const bool may_break = one_.who == party::gang && one_.what == fault::exec;
      EXPECT_TRUE(
          world_.all_held(may_break ? std::vector<const world::process*>{&stayer_} : survivors()))
          << world_.log();
      const moment over = end();
      expect_bound(allowed_, over, survivors());
      break;
    }
    case effect::stays: check_stays(since); break;
    case effect::next_agent:
      trial_.expect_soon("the next agent resumes everything",
                         [&] { return world_.all_run(offline_, suspends_); });
      break;
    case effect::rescue: check_rescue(); break;
    case effect::calls: check_device_stop(); break;
    case effect::gone: check_gone(); break;
    case effect::same: FAIL();
  }
}

/// Nothing keeps what a process had on the GPU, whatever else is held.
void matrix_try::check_forgotten() {
  const auto living = survivors();
  for (const auto* each : offline_) {
    if (std::ranges::find(living, each) != living.end()) continue;
    EXPECT_TRUE(eventually(patience, [&] { return world_.suspended(*each) == 0; }));
    // The child of one that forked has it, too.
    if (one_.what == fault::fork) continue;
    EXPECT_TRUE(eventually(patience, [&] { return world_.is_forgotten((*each)->pid()); }));
  }
}

/// Whoever comes now is not served by who has no descriptors, and is not harmed.
void matrix_try::check_descriptors() {
  if (one_.who != party::host && one_.who != party::agent) return;
  late_ = world_.gpu_process("OFFLINE_AI");
  EXPECT_TRUE(world_.progresses(late_));
  EXPECT_TRUE(world_.log_says(log_of(one_))) << world_.log();
  EXPECT_EQ(tracer_of(late_->pid()), 0);
}

/// What the driver makes of a scheduler's process that hangs and holds sessions itself.
void matrix_try::check_stays(const moment& since) {
  if (one_.what == fault::core) {
    const auto ended = end_of_dump(host_);  // Its memory goes then.
    ASSERT_TRUE(ended);
    expect_bound(allowed_, *ended, offline_);
    return;
  }
  const time_point until = since.by + 2 * world_.with().lease + own_work;
  while (clock::now() < until) ASSERT_TRUE(world_.is_held(stayer_));
  host_->send("nothing");
  const moment killed = moment_of([&] { ::kill(host_->pid(), SIGKILL); });
  expect_bound(allowed_, killed, offline_);
}

/// A driver that does not answer: the end of online work asks it to resume.
void matrix_try::check_device_stop() {
  EXPECT_EQ(client_->ask("end", patience), "ended");
  EXPECT_TRUE(world_.log_says("driver call timed out")) << world_.log();
  EXPECT_TRUE(eventually(patience, [&] {
    return host_->ask("stats", patience).find("breakers 1") != std::string::npos;
  }));
  EXPECT_TRUE(lives(host_->pid()));
  const moment since = moment_of([&] { ::kill(world_.device_pid(), SIGCONT); });
  expect_bound(allowed_, since, offline_);
}

/// All are gone at once, and systemd runs the command of ExecStopPost.
void matrix_try::check_rescue() {
  for (const auto* each : offline_) {
    if (world_.is_held(*each)) continue;
    return trial_.is_not_shown("one of them acted when another was killed");
  }
  target_process rescue{SLUICE_PROGRAM,
                        {"rescue", "--directory", world_.directory()},
                        {"SLUICE_AGENT=" SLUICE_AGENT_PROGRAM}};
  EXPECT_EQ(rescue.hear(patience), "resumed: 1 of 1");
  const auto status = rescue.wait_for(patience);
  EXPECT_TRUE(status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  for (const auto* each : offline_) EXPECT_EQ(world_.suspended(*each), 0U);
}

/// Nobody waits for a driver that is no more.
void matrix_try::check_gone() {
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
void matrix_try::recover() {
  if (one_.who == party::unit || one_.who == party::pair) return;
  const pid_t pid = victim_pid();
  switch (one_.what) {
    case fault::stop: ::kill(pid, SIGCONT); break;
    case fault::descriptors:
      if (is_from_outside()) {
        limit_descriptors(pid, false);
      } else {
        EXPECT_EQ(victim()->ask("suffer recover", patience), "done");
      }
      break;
    default: break;
  }
}

/// After it: nothing is suspended or traced, kernels ran exactly once, and all end.
void matrix_try::check_aftermath() {
  const bool host_died =
      one_.who == party::unit ||
      (one_.who == party::host &&
       (one_.what == fault::exit || one_.what == fault::exec || one_.what == fault::fork ||
        one_.what == fault::core || effect_of(one_) == effect::stays));
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
  } else if (one_.what == fault::exec) {
    EXPECT_TRUE(lives(host_->pid()));
  }
  if (in_agent(one_.how)) {
    const pid_t last = world_.agent();
    EXPECT_TRUE(eventually(patience, [&] { return !lives(last); })) << "the agent hangs";
  }
  if (guardian_ != 0) {
    EXPECT_TRUE(eventually(patience, [&] { return !lives(guardian_); })) << "the guardian hangs";
  }
  for (const auto* each : survivors()) {
    trial_.expect_free(world_, *each);
    trial_.expect_whole(*each);
  }
}

/// \param is_dumping else a core may have been written before anything else happened, which then
/// was an exit.
void matrix_try::expect_log(bool is_dumping) const {
  const bool may_be_exit = one_.what == fault::core && !is_dumping;
  const std::string_view line = log_of(one_);
  const std::string_view of_exit =
      may_be_exit ? log_of({one_.who, fault::exit, one_.how}) : std::string_view{};
  if (line.empty() || (may_be_exit && of_exit.empty())) return;
  EXPECT_TRUE(eventually(patience, [&] {
    const std::string log = world_.log();
    // Where discovery sees first that the device is gone, nothing is held when a call is refused.
    const bool nothing_held = effect_of(one_) == effect::gone &&
                              log.find("the driver is gone") < log.find("the driver refused");
    return log.find(line) != log.npos || (may_be_exit && log.find(of_exit) != log.npos) ||
           nothing_held;
  })) << world_.log();
}

/// Nothing of ours may die of it.
bool is_survived(effect what) {
  return what == effect::goes_on || what == effect::ends || what == effect::is_looked_up ||
         what == effect::breaks || what == effect::max_suspend || what == effect::calls;
}

void matrix_try::check() {
  const effect then = effect_of(one_);
  const moment since = inflict();
  check_effect(then, since);
  const bool is_dumping = one_.what == fault::core && victim_dumps_core();
  if (is_dumping) std::printf("  %-44s the core was still being written\n", "");
  if (is_survived(then)) trial_.expect_nobody_replaced(world_, host_, agent_);
  if (trial_.failed()) return;
  expect_log(is_dumping);
  if (then == effect::gone) return;
  recover();
  check_aftermath();
}

class FaultMatrix : public testing::TestWithParam<combination> {};

TEST_P(FaultMatrix, OfflineRunsAgainAndNobodyHangs) {
  until_measured([](trial& once) { matrix_try{GetParam(), once}.run(); });
}

// Whose memory is large takes seconds to exit, in which the driver knows it no more and it is not
// gone: the agent took that for a driver that refuses, and ended, with which everybody ran.
TEST(FaultsOfExit, AProcessThatTakesLongToExitCostsTheOthersNothing) {
  const world here{{.how = mechanism_used::trap_agent}};
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
class try_in_a_call {
 public:
  explicit try_in_a_call(trial& with) : trial_(with) {
    trial_.watch_leases(here_, {host(), here_.agent()});
    trial_.watch({here_.device_pid(), client_->pid(), slow_->pid(), held_->pid()});
    here_.command("delay DBG_TRAP:SUSPEND_QUEUES 2s target=" + std::to_string(slow_->pid()));
    began_ = moment_of([&] { EXPECT_EQ(client_->ask("begin", patience), "begun"); });
    EXPECT_TRUE(here_.all_held({&held_})) << here_.log();
  }
  void expect_within(duration promised, const moment& since, const std::string& what) {
    trial_.expect_within(here_.run_again({&held_}, since.after), since, promised, what);
  }
  const world& here() const { return here_; }
  pid_t host() const { return host_->pid(); }
  const moment& began() const { return began_; }

 private:
  trial& trial_;
  const world here_{{.how = mechanism_used::trap_agent}};
  const world::process slow_ = here_.gpu_process("OFFLINE_AI");
  const world::process held_ = here_.gpu_process("OFFLINE_AI");
  const world::process host_ = here_.host(2);
  const world::process client_ = here_.client();
  moment began_{};
};

// A process in a driver call cannot even be killed: its sessions end with the call.
TEST(FaultsInACall, AKilledAgentLetsGoWhenTheCallIsOver) {
  until_measured([](trial& with) {
    try_in_a_call once{with};
    ::kill(once.here().agent(), SIGKILL);
    once.expect_within(2s + own_work + calls_of_simulated_device, once.began(),
                       "the agent is killed in a call of 2 s");
    EXPECT_TRUE(once.here().log_says("lost")) << once.here().log();
  });
}

// The driver's ENABLE follows the leader's address space, which an exit takes away
// (adapters/kfd/kernel/README.md): a leader that is killed meanwhile ends after the call.
TEST(FaultsInACall, AProcessThatIsKilledWhileItsSessionOpensEndsAfterTheCall) {
  const world here{{.how = mechanism_used::trap_agent}};
  const auto stayer = here.gpu_process("OFFLINE_AI");
  const auto victim = here.gpu_process("OFFLINE_AI");
  here.command("delay DBG_TRAP:ENABLE 3s target=" + std::to_string(victim->pid()));
  const time_point before = clock::now();
  const auto host = here.host(1);
  const pid_t agent = here.agent();
  ASSERT_TRUE(eventually(patience, [&] {
    const pid_t tracer = tracer_of(victim->pid());
    return tracer != 0 && is_in_ioctl(tracer, kfd::uapi::AMDKFD_IOC_DBG_TRAP);
  })) << here.log();
  ::kill(victim->pid(), SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return !lives(victim->pid()); })) << here.log();
  EXPECT_GE(clock::now(), before + 3s);
  const auto client = here.client();
  EXPECT_EQ(client->ask("begin", patience), "begun");
  EXPECT_TRUE(here.all_held({&stayer})) << here.log();
  EXPECT_EQ(here.agent(), agent);
  EXPECT_EQ(client->ask("end", patience), "ended");
  EXPECT_TRUE(here.run_again({&stayer}, clock::now()));
}

// A stuck lane keeps no other from letting go.
TEST(FaultsInACall, AnAgentWithoutAHostLetsGoOfTheOthersAtOnce) {
  until_measured([](trial& with) {
    try_in_a_call once{with};
    const moment since = moment_of([&] { ::kill(once.host(), SIGKILL); });
    once.expect_within(own_work + calls_of_simulated_device, since,
                       "the host is killed in a call of 2 s");
  });
}

INSTANTIATE_TEST_SUITE_P(Cells, FaultMatrix, testing::ValuesIn(chosen_combinations()),
                         [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace sluice::test::matrix_test
