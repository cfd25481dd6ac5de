// Every fault that the simulated device can be told to have (adapters/sim/README.md), under every
// mechanism: once in a preemption of two offline processes. What is asserted is the promise:
// offline runs again, nothing stays suspended, nobody hangs, and of a preemption that failed in
// hardware sluice makes one at most.

#include "world.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {
namespace {

enum class at : std::uint8_t { suspend, resume, attach, rest };

enum class then : std::uint8_t {
  served,   ///< It is held, and runs again, as if nothing had happened.
  refused,  ///< It is not held this time.
  left,     ///< The breaker opens: it runs, and is not held any more.
  stuck,    ///< The same, but it runs once the call is over.
  dead,     ///< Its queues are gone, the breaker is open.
  killed,   ///< The process is gone, the other is served.
};

struct injection {
  std::string_view name;
  std::string_view line;  ///< "GPU" and "PID" stand for the GPU and the first process.
  at when = at::suspend;
  then what = then::served;
  std::string_view log = "";
  duration lasts = 0ns;  ///< Of the call.
  bool batch = true;     ///< Whether it can befall with batch commands.
  bool trap = true;
  bool ends_agent = false;  ///< Only the end of the acting process helps: in process there is none.
};

constexpr std::string_view gpu = "51110";
/// The failed cycle, and the profile's reset_time, in which calls wait.
constexpr duration a_reset = 1100ms;

constexpr std::array injections{
    injection{"fail_cycle", "fail-cycle GPU 100ms", at::suspend, then::dead,
              "nothing on it is suspended any more", a_reset},
    injection{"fail_cycle_goes_on", "fail-cycle GPU 100ms goes-on", at::suspend, then::left,
              "the hardware failed"},
    injection{"fail_cycle_of_a_resume", "fail-cycle GPU 100ms", at::resume, then::dead,
              "is reset by the driver", a_reset},
    injection{"reset", "reset GPU", at::rest, then::dead, "is reset by the driver"},
    injection{"reset_while_held", "reset GPU", at::resume, then::dead, "is reset by the driver",
              a_reset},
    injection{"evict", "evict PID GPU", at::rest, then::served},
    injection{"evict_while_held", "evict PID GPU", at::resume, then::served},
    injection{"vmfault", "vmfault PID GPU", at::suspend, then::served},
    injection{"activation_busy", "activation PID busy", at::attach, then::refused,
              "cannot be managed now"},
    injection{"activation_error", "activation PID error", at::attach, then::refused,
              "cannot be managed now"},
    injection{"suspend_interrupted", "answer DBG_TRAP:SUSPEND_QUEUES EINTR times=3", at::suspend,
              then::served, "", 0ns, false},
    injection{"suspend_refused", "answer DBG_TRAP:SUSPEND_QUEUES EINVAL target=PID", at::suspend,
              then::served, "", 0ns, false},
    injection{"resume_interrupted", "answer DBG_TRAP:RESUME_QUEUES EINTR times=3", at::resume,
              then::served, "", 0ns, false},
    injection{"resume_refused", "answer DBG_TRAP:RESUME_QUEUES EIO target=PID", at::resume,
              then::served, "refuses to resume queues", 0ns, false},
    injection{"enable_busy", "answer DBG_TRAP:ENABLE EALREADY times=3", at::attach, then::served},
    injection{"enable_refused", "answer DBG_TRAP:ENABLE EPERM target=PID times=1000", at::attach,
              then::refused, "cannot be managed now"},
    injection{"disable_refused", "answer DBG_TRAP:DISABLE EBUSY times=3", at::resume, then::served},
    injection{"snapshot_refused", "answer DBG_TRAP:GET_QUEUE_SNAPSHOT EFAULT target=PID times=2",
              at::attach, then::served, "cannot list the queues"},
    injection{"smi_refused", "answer SMI_EVENTS EPERM times=1000", at::attach, then::served},
    injection{"unmap_refused", "answer BATCH_UNMAP_QUEUES EIO", at::suspend, then::served,
              "the driver refused a batch command", 0ns, true, false},
    injection{"remap_refused", "answer FAST_REMAP EIO", at::resume, then::served,
              "the driver refused a batch command", 0ns, true, false},
    injection{"remap_refused_again", "answer FAST_REMAP EIO times=2", at::resume, then::served,
              "the driver refuse", 0ns, true, false, true},
    injection{"slow_suspend", "delay DBG_TRAP:SUSPEND_QUEUES 1s target=PID", at::suspend,
              then::served, "", 1s, false},
    injection{"stuck_suspend", "delay DBG_TRAP:SUSPEND_QUEUES 4s target=PID", at::suspend,
              then::stuck, "does not answer", 4s, false},
    injection{"stuck_resume", "delay DBG_TRAP:RESUME_QUEUES 4s target=PID", at::resume, then::stuck,
              "does not answer", 4s, false},
    injection{"stuck_unmap", "delay BATCH_UNMAP_QUEUES 4s", at::suspend, then::stuck,
              "does not answer", 4s, true, false},
    injection{"stuck_remap", "delay FAST_REMAP 4s", at::resume, then::stuck, "does not answer", 4s,
              true, false},
    injection{"slow_enable", "delay DBG_TRAP:ENABLE 1s", at::attach, then::served, "", 1s},
    injection{"slow_disable", "delay DBG_TRAP:DISABLE 1s", at::resume, then::served, "", 1s},
    injection{"target_killed", "kill-target 200us target=PID", at::suspend, then::killed, "", 0ns,
              false},
};

struct case_of {
  const injection* what = nullptr;
  mechanism_used how{};
};

std::vector<case_of> all_cases() {
  std::vector<case_of> all;
  for (const injection& what : injections) {
    for (const mechanism_used how : mechanisms) {
      if ((by_batch(how) ? what.batch : what.trap) && (in_agent(how) || !what.ends_agent))
        all.push_back({&what, how});
    }
  }
  return all;
}

/// All of them, or in CI each injection under the mechanisms in turn, those that may be stuck for
/// seconds under one.
std::vector<case_of> chosen_cases() {
  const char* const which = std::getenv("SLUICE_FAULTS");  // NOLINT: nobody sets it meanwhile.
  auto all = all_cases();
  if (which != nullptr && std::string_view{which} == "all") return all;
  std::vector<case_of> some;
  std::size_t number = 0;
  for (const injection& what : injections) {
    std::vector<case_of> possible;
    for (const case_of& each : all) {
      if (each.what == &what) possible.push_back(each);
    }
    some.push_back(possible[number++ % possible.size()]);
  }
  return some;
}

/// One try of a case.
class injection_try {
 public:
  injection_try(const case_of& one, trial& with)
      : one_(one), trial_(with), world_{{.how = one.how, .lease = 500ms}} {}
  void run() {
    check();
    if (trial_.failed()) std::printf("%s", world_.log().c_str());
  }

 private:
  void check();
  std::string line() const {
    std::string text{one_.what->line};
    const auto put = [&text](std::string_view word, const std::string& value) {
      if (const auto found = text.find(word); found != text.npos)
        text.replace(found, word.size(), value);
    };
    put("GPU", std::string{gpu});
    put("PID", std::to_string(first_->pid()));
    return text;
  }
  void inject() { world_.command(line()); }
  bool breaker_is_open() {
    return host_->ask("stats", patience).find("breakers 0") == std::string::npos;
  }
  /// A burst of online work that is not to hold anybody.
  void expect_left_alone(const std::vector<const world::process*>& some) {
    EXPECT_EQ(client_->ask("begin", patience), "begun");
    const time_point until = clock::now() + 200ms;
    while (clock::now() < until) {
      for (const auto* each : some) ASSERT_EQ(world_.suspended(*each), 0U);
    }
    EXPECT_EQ(client_->ask("end", patience), "ended");
  }
  void burst(const std::vector<const world::process*>& some) {
    EXPECT_EQ(client_->ask("begin", patience), "begun");
    EXPECT_TRUE(world_.all_held(some)) << world_.log();
    EXPECT_EQ(client_->ask("end", patience), "ended");
    EXPECT_TRUE(world_.run_again(some, clock::now())) << world_.log();
  }

  const case_of one_;
  trial& trial_;
  world world_;
  world::process first_;
  world::process second_;
  world::process client_;
  world::process host_;
};

void injection_try::check() {
  const injection& what = *one_.what;
  first_ = world_.gpu_process("OFFLINE_AI");
  second_ = world_.gpu_process("OFFLINE_AI");
  const std::vector<const world::process*> both{&first_, &second_};
  if (what.when == at::attach) inject();
  host_ = world_.host(what.what == then::refused ? 1 : 2);
  client_ = world_.client();
  const pid_t agent = in_agent(one_.how) ? world_.agent() : 0;
  trial_.begin();

  if (what.when == at::rest) {
    inject();
    if (what.what == then::dead) {
      EXPECT_TRUE(eventually(patience, [&] { return breaker_is_open(); })) << world_.log();
    }
  }
  if (what.when == at::suspend) inject();
  // One preemption.
  time_point since = clock::now();
  EXPECT_EQ(client_->ask("begin", patience), "begun");
  switch (what.what) {
    case then::served: EXPECT_TRUE(world_.all_held(both)) << world_.log(); break;
    case then::refused:
      EXPECT_TRUE(world_.all_held({&second_})) << world_.log();
      EXPECT_FALSE(world_.is_held(first_));
      break;
    case then::killed: {
      const auto status = first_->wait_for(patience);
      ASSERT_TRUE(status);
      EXPECT_TRUE(WIFSIGNALED(*status));
      EXPECT_TRUE(world_.all_held({&second_}));
      break;
    }
    case then::left:
    case then::dead:
    case then::stuck:
      if (what.when == at::resume) {
        EXPECT_TRUE(world_.all_held(both)) << world_.log();
        break;
      }
      EXPECT_TRUE(eventually(patience, [&] { return breaker_is_open(); })) << world_.log();
      trial_.expect_within(world_.run_again(both, since), what.lasts + own_work + calls + 100ms,
                           std::string{what.name} + ", in flight");
      break;
  }
  if (what.when == at::resume) inject();
  since = clock::now();
  EXPECT_EQ(client_->ask("end", patience), "ended");
  trial_.expect_within(world_.run_again(both, since), what.lasts + own_work + calls + 100ms,
                       std::string{what.name});

  // And after it.
  switch (what.what) {
    case then::served: burst(both); break;
    case then::refused:
    case then::killed: burst({&second_}); break;
    case then::left:
    case then::stuck:
    case then::dead:
      EXPECT_TRUE(eventually(patience, [&] { return breaker_is_open(); })) << world_.log();
      expect_left_alone(both);
      EXPECT_LE(world_.view().gpu_count("resets"), 1U) << "one at most";
      break;
  }
  if (!what.log.empty()) {
    EXPECT_TRUE(world_.log_says(what.log)) << world_.log();
  }
  if (what.ends_agent && in_agent(one_.how)) {
    EXPECT_NE(world_.agent(), agent) << "the agent was to end: " << world_.log();
  } else {
    // A stuck lane is no missing heartbeat, either.
    trial_.expect_nobody_replaced(world_, host_, agent);
  }
  world_.command("no-faults");
  if (what.line.starts_with("evict"))
    world_.command("restore " + std::to_string(first_->pid()) + " " + std::string{gpu});
  EXPECT_TRUE(lives(host_->pid()));
  host_->send("stop");
  EXPECT_EQ(host_->hear(patience), "stopped") << world_.log();
  EXPECT_TRUE(host_->wait_for(patience)) << "the host hangs";
  for (const auto* each : both) {
    EXPECT_EQ(world_.suspended(*each), 0U);
    EXPECT_EQ(tracer_of((*each)->pid()), 0);
    if (what.what == then::dead || (what.what == then::killed && each == &first_)) continue;
    EXPECT_EQ((*each)->ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
  }
}

class Injection : public testing::TestWithParam<case_of> {};

TEST_P(Injection, EndsWithEverythingRunning) {
  until_measured([](trial& once) { injection_try{GetParam(), once}.run(); });
}

INSTANTIATE_TEST_SUITE_P(OfTheDevice, Injection, testing::ValuesIn(chosen_cases()),
                         [](const auto& each) {
                           return std::string{each.param.what->name} + "_" +
                                  std::string{word(each.param.how)};
                         });

}  // namespace
}  // namespace sluice::test
