// Every fault that the simulated device can be told to have (adapters/sim/README.md), under every
// mechanism: once in a preemption of two offline processes. What is asserted is the promise:
// offline runs again, nothing stays suspended, nobody hangs, and of a preemption that failed in
// hardware sluice makes one at most.

#include "injections.hpp"

#include "world.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace sluice::test::injections_test {
namespace {

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
      : one_(one), trial_(with), world_{{.how = one.how}} {}
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
  trial_.watch_leases(world_, {host_->pid(), agent});
  trial_.watch({world_.device_pid(), client_->pid(), first_->pid(), second_->pid()});

  if (what.when == at::rest) {
    inject();
    if (what.what == then::dead) {
      EXPECT_TRUE(eventually(patience, [&] { return breaker_is_open(); })) << world_.log();
    }
  }
  if (what.when == at::suspend) inject();
  // One preemption.
  moment since = moment_of([&] { EXPECT_EQ(client_->ask("begin", patience), "begun"); });
  switch (what.what) {
    case then::served:
    case then::faulted: EXPECT_TRUE(world_.all_held(both)) << world_.log(); break;
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
      trial_.expect_within(world_.run_again(both, since.after), since,
                           what.lasts + own_work + calls_of_simulated_device + 100ms,
                           std::string{what.name} + ", in flight");
      break;
  }
  if (what.when == at::resume) inject();
  since = moment_of([&] { EXPECT_EQ(client_->ask("end", patience), "ended"); });
  // A resume by batch that fails lets go for a moment, and holds again until the reset is over.
  if (what.when == at::resume && what.what == then::dead) {
    EXPECT_TRUE(eventually(patience, [&] { return breaker_is_open(); })) << world_.log();
  }
  trial_.expect_within(world_.run_again(both, since.after), since,
                       what.lasts + own_work + calls_of_simulated_device + 100ms,
                       std::string{what.name});

  // And after it.
  switch (what.what) {
    case then::served:
    case then::faulted: burst(both); break;
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
    trial_.expect_free(world_, *each);
    const bool ended = what.what == then::killed || what.what == then::faulted;
    if (what.what == then::dead || (ended && each == &first_)) continue;
    trial_.expect_whole(*each);
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
}  // namespace sluice::test::injections_test
