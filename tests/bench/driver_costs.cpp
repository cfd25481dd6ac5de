// What it costs the driver to take queues off a GPU, and to put them back, by debug trap and, where
// the driver has them, by batch commands. Runs on a machine of tests/driver/run.sh, whose firmware
// is faked: the figures show how often the driver acts and for how long it holds its lock, not what
// hardware takes. Prints a Markdown table.

#include "acting_side.hpp"
#include "target_process.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/roots.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice;
using bench::acting_side;

/// Counts of the first device's firmware.
struct firmware_counts {
  unsigned long long packets = 0;
  unsigned long long runlists = 0;
  bool operator==(const firmware_counts&) const = default;
};
firmware_counts count_now() {
  std::ifstream file{"/sys/kernel/debug/sluice0/firmware"};
  std::string packets;
  std::string runlists;
  firmware_counts now;
  if (!(file >> packets >> now.packets >> runlists >> now.runlists))
    throw std::runtime_error("no faked device: run this by tests/driver/run.sh");
  return now;
}

/// Once the firmware has done what it was told: packets are read after the call that wrote them.
firmware_counts count() {
  const auto give_up = std::chrono::steady_clock::now() + 10s;
  for (firmware_counts before = count_now(); std::chrono::steady_clock::now() < give_up;) {
    std::this_thread::sleep_for(20ms);
    const auto now = count_now();
    if (now == before) return now;
    before = now;
  }
  throw std::runtime_error("the firmware gets packets without end");
}

/// How long the lock of the device queue manager was held since forget(), in microseconds. Only a
/// kernel with CONFIG_LOCK_STAT (run.sh --lockdep) tells.
struct lock_held {
  double longest = 0;
  double sum = 0;
};
std::optional<lock_held> held() {
  std::ifstream file{"/proc/lock_stat"};
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find("&dqm->lock_hidden") > colon) continue;
    // con-bounces, contentions, four times of waiting, acq-bounces, acquisitions, then these.
    std::istringstream words{line.substr(colon + 1)};
    std::string skipped;
    for (int i = 0; i < 9; ++i) words >> skipped;
    lock_held found;
    words >> found.longest >> found.sum;
    return found;
  }
  return {};
}
void forget() { std::ofstream{"/proc/lock_stat"} << 0; }

void measure(std::size_t processes, std::size_t queues) {
  std::vector<std::unique_ptr<test::target_process>> targets;
  std::vector<std::size_t> of_target;
  for (std::size_t i = 0; i < processes; ++i) {
    of_target.push_back(queues / processes + (i < queues % processes ? 1 : 0));
    targets.push_back(std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{std::to_string(of_target[i]), "0"},
        std::vector<std::string>{}));
    if (targets.back()->hear(60s) != "ready") throw std::runtime_error("a target did not start");
  }
  for (const bool batch_commands : {false, true}) {
    acting_side acting{kfd::roots::from_environment(), batch_commands};
    for (std::size_t i = 0; i < processes; ++i) acting.attach(targets[i]->pid(), of_target[i]);
    if (batch_commands && !acting.acts().has(capability::batch_targets)) return;
    for (const std::size_t at_once : {std::size_t{1}, max_batch_queues}) {
      if (at_once == 1 && (batch_commands || queues == 1)) continue;
      constexpr int rounds = 5;
      std::vector<duration> resumes;
      forget();
      const auto before = count();
      const auto suspended = bench::median(rounds, [&] {
        const auto sum = acting.all(command_kind::suspend, at_once);
        resumes.push_back(acting.all(command_kind::resume, at_once).time);
        return sum;
      });
      const auto after = count();
      std::ranges::sort(resumes);
      const auto per_round = [](unsigned long long from, unsigned long long to) {
        return static_cast<double>(to - from) / rounds;
      };
      std::printf("| %zu | %zu | %s%s | %zu | %.1f | %.1f | %.2f | %.2f |", processes, queues,
                  std::string{acting.acts().name()}.c_str(),
                  at_once == 1 && queues > 1 ? ", one by one" : "", suspended.calls,
                  per_round(before.runlists, after.runlists),
                  per_round(before.packets, after.packets), bench::milliseconds(suspended.time),
                  bench::milliseconds(resumes[rounds / 2]));
      if (const auto lock = held())
        std::printf(" %.0f | %.0f |\n", lock->sum / rounds, lock->longest);
      else
        std::puts(" - | - |");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main() try {
  std::puts(
      "Real driver, faked hardware. Of five rounds: the calls of one suspend of all queues; the");
  std::puts(
      "runlists, packets and lock time of a suspend and a resume, averaged; the median times.\n");
  std::puts(
      "| processes | queues | mechanism | calls | runlists | packets | suspend, ms | resume, ms | "
      "lock held, us | longest, us |");
  std::puts("|---|---|---|---|---|---|---|---|---|---|");
  for (const std::size_t processes : {1U, 4U, 16U}) {
    for (const std::size_t queues : {1U, 10U, 64U})
      if (queues >= processes) measure(processes, queues);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "driver_costs: %s\n", error.what());
  return 1;
}
