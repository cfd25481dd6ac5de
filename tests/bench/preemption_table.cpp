// What it costs to take queues off a GPU, and to put them back: 1, 10 and 100 queues of 1, 4 and 16
// processes, by every mechanism, on the simulated device. Real processes and real ioctls; what the
// hardware would take comes from the profiles. Prints a Markdown table.
// usage: preemption_table [--quick]

#include "acting_side.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice;
using bench::acting_side;

void measure(const std::string& generation, const std::string& profile, std::size_t processes,
             std::size_t queues, bool quick) {
  const test::simulated_device device{{.profile = profile}};
  std::vector<std::unique_ptr<test::target_process>> targets;
  for (std::size_t i = 0; i < processes; ++i) {
    targets.push_back(std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{std::to_string(queues), "0"},
        device.environment()));
    if (targets.back()->hear(30s) != "ready") throw std::runtime_error("a target did not start");
  }
  for (const bool batch_commands : {false, true}) {
    acting_side acting{device.roots(), batch_commands};
    for (const auto& each : targets) acting.attach(each->pid(), queues);
    for (const std::size_t at_once : {std::size_t{1}, max_batch_queues}) {
      if (at_once == 1 && (batch_commands || processes != 1 || queues == 1)) continue;
      const int rounds = quick || at_once == 1 ? 1 : 5;
      acting_side::cost resumed;
      const auto suspended = bench::median(rounds, [&] {
        const auto sum = acting.all(command_kind::suspend, at_once);
        resumed = acting.all(command_kind::resume, at_once);
        return sum;
      });
      std::printf("| %s | %s%s | %zu | %zu | %zu | %.1f | %.1f |\n", generation.c_str(),
                  std::string{acting.acts().name()}.c_str(), at_once == 1 ? ", one by one" : "",
                  processes, queues, suspended.calls, bench::milliseconds(suspended.time),
                  bench::milliseconds(resumed.time));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view{argv[1]} == "--quick";
  std::puts("Simulated GPUs: the driver's share of the times is the profiles' (mi300x-batch, and");
  std::puts("gfx1100 with the same commands); medians of five rounds, one round one by one.\n");
  std::puts(
      "| generation | mechanism | processes | queues each | driver calls | suspend, ms | resume, "
      "ms |");
  std::puts("|---|---|---|---|---|---|---|");
  const std::string mes = test::profile_text(
      "batch_commands = true\n",
      "scheduler = \"mes\"\ngfx_target_version = 110000\nnum_xcc = 1\ncompute_units = 96\n"
      "simd_per_cu = 2\nwaves_per_simd = 16\nsuspend_cost = \"1ms\"\nresume_cost = \"1ms\"\n"
      "cycle_cost = \"500us\"\n");
  const std::vector<std::size_t> most =
      quick ? std::vector<std::size_t>{1, 4} : std::vector<std::size_t>{1, 4, 16};
  const std::vector<std::size_t> queues =
      quick ? std::vector<std::size_t>{1, 10} : std::vector<std::size_t>{1, 10, 100};
  try {
    for (const auto& [generation, profile] :
         {std::pair<std::string, std::string>{"runlist", "mi300x-batch"}, {"MES", mes}}) {
      for (const auto processes : most) {
        for (const auto each : queues) measure(generation, profile, processes, each, quick);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "preemption_table: %s\n", error.what());
    return 1;
  }
  return 0;
}
