// Plays some online requests to the policy that a configuration file names, on one GPU with one
// offline process. The scheduler is the real one; the driver and the time are scripted, so that
// every run prints the same.
//
// usage: try_policy FILE.toml

#include <sluice/policies/all.hpp>
#include <sluice/policy_registry.hpp>
#include <sluice/scheduler_core.hpp>
#include <sluice/testing/manual_clock.hpp>
#include <sluice/testing/scripted_backend.hpp>

#include <cstdio>
#include <utility>

namespace {

using namespace std::chrono_literals;
constexpr sluice::gpu_id gpu{51110};
constexpr sluice::driver_queue_id queue{0};
constexpr pid_t pid = 4242;

double ms(sluice::duration length) { return static_cast<double>(length.count()) / 1e6; }

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("try_policy: expected one argument: a TOML file with a table [policy]\n", stderr);
    return 2;
  }
  sluice::policy_registry known;
  for (sluice::policy_kind& kind : sluice::all_policies()) known.add(std::move(kind));
  std::string message;
  auto policy = sluice::load_policy(known, arguments[1], {}, message);
  if (policy.has_error()) {
    std::fprintf(stderr, "try_policy: %s\n", message.c_str());
    return 1;
  }
  sluice::testing::manual_clock time;
  sluice::testing::scripted_backend driver(time);
  driver.set_delay(4ms);  // A suspend and a resume take 4 ms each.
  sluice::scheduler_config config;
  config.attach_after = config.attach_at_latest = 0ns;
  auto made = sluice::scheduler_core::create(config, driver, std::move(*policy), {.time = &time});
  if (made.has_error() || (*made)->start().has_error()) return 1;
  sluice::scheduler_core& core = **made;

  // An offline process with one queue, as a source would report it.
  sluice::observation seen;
  seen.kind = sluice::observation_kind::process_seen;
  seen.what = sluice::role::offline;
  seen.pid = pid;
  core.observe(0, seen);
  driver.add_queue(pid, queue, gpu);
  seen.kind = sluice::observation_kind::queue_seen;
  seen.type = sluice::queue_kind::compute;
  seen.gpu = gpu;
  core.observe(0, seen);

  const sluice::time_point start = time.now();
  bool suspended = false;
  const auto run_until = [&](sluice::duration end) {
    for (;;) {
      // The scripted driver says of nothing but its answers when it has something: look often.
      const auto next = std::min({core.step(), driver.next_answer(), time.now() + 100us});
      if (const bool now = driver.suspended(pid, queue); now != suspended) {
        suspended = now;
        std::printf("%6.1f ms  offline %s\n", ms(time.now() - start),
                    now ? "suspended" : "resumed");
      }
      if (next >= start + end) break;
      time.advance_to(std::max(next, time.now() + 1us));
    }
    time.advance_to(start + end);
  };
  auto client = core.register_client({.name = "try", .gpus = {gpu}});
  if (client.has_error()) return 1;
  // A pause of 80 ms, then one of 5 ms.
  for (const auto& [begin, length] : {std::pair{100ms, 20ms}, {200ms, 30ms}, {235ms, 40ms}}) {
    run_until(begin);
    std::printf("%6.1f ms  online begins\n", ms(begin));
    client->begin();
    run_until(begin + length);
    std::printf("%6.1f ms  online ends\n", ms(begin + length));
    client->end();
  }
  run_until(400ms);
  core.finish_stop();
  return 0;
}
