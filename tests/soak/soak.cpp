// Minutes or an hour of churn and faults on the simulated device, and whether anything rises,
// sticks or is lost: README.md. Needs root.

#include "world.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace {

using sluice::soak::findings;
using sluice::soak::plan;

std::atomic<int> stop_signal{0};

double seconds(sluice::duration value) { return std::chrono::duration<double>(value).count(); }

const char* mechanism_of(const plan& what) {
  return what.by_batch() ? "batch commands" : "debug sessions";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') out += '\\';
    out += static_cast<unsigned char>(each) < 0x20 ? ' ' : each;
  }
  return out + '"';
}

template <class Counts>
std::string listed(const Counts& all) {
  std::string text;
  for (const auto& [what, times] : all)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, times);
  return text.empty() ? "none" : text;
}

std::string numbers(const std::vector<double>& all) {
  std::string text;
  for (const double each : all) text += fmt::format("{}{:.0f}", text.empty() ? "" : ", ", each);
  return text;
}

void print(const plan& what, const findings& seen) {
  fmt::print("soak: {:.1f} min, seed {}, {}, simulated device (2 GPUs, costs of profile {})\n",
             seen.minutes, what.seed, mechanism_of(what),
             what.by_batch() ? "mi300x-batch" : "mi300x");
  fmt::print("workers      {}; {} queues\n", listed(seen.workers), seen.queues);
  fmt::print("faults       {}\n", listed(seen.faults));
  fmt::print(
      "agents       {} died unexpectedly (bound {}: refused resumes), {} more after half of their "
      "lease without a processor; longest wait of daemon or agent for one {:.3f} s\n",
      seen.agents_died, seen.refused_resumes, seen.agents_died_starved, seconds(seen.longest_wait));
  fmt::print(
      "kernels      {} submitted, {} executed exactly once, {} lost, {} repeated, {} out of order, "
      "{} too short\n"
      "             unfinished: {} when their queue was destroyed, {} when their process ended, {} "
      "in a reset\n",
      seen.submitted, seen.executed, seen.lost, seen.repeated, seen.out_of_order, seen.too_short,
      seen.dropped, seen.died, seen.reset);
  fmt::print("requests     {}, {} of them in phases with one every 10 ms; longest {:.3f} s\n",
             seen.requests, seen.every_10_ms, seconds(seen.longest_request));
  fmt::print("suspensions  {} of queues; longest {:.3f} s (bound {:.0f} s); {} stuck\n",
             seen.queue_suspends, seconds(seen.longest_suspension),
             seconds(sluice::soak::longest_allowed_suspension), seen.stuck);
  fmt::print("{:<8} {:<12} {:>9} {:>9} {:>21} {:>9}  {}\n", "", "", "from", "to", "slope per hour",
             "bound", "at each rest");
  for (const auto& each : seen.figures) {
    const std::string slope =
        fmt::format("{:.1f} +- {:.1f}", each.seen.per_hour, each.seen.deviation);
    const std::string name = each.unit.empty() ? each.what : each.what + ", " + each.unit;
    fmt::print("{:<8} {:<12} {:>9.1f} {:>9.1f} {:>21} {:>9.1f}  {}\n", each.process, name,
               each.seen.first, each.seen.last, slope, each.bound_per_hour, numbers(each.at_rest));
  }
  for (const auto& each : seen.not_shown) fmt::print("not shown    {}\n", each);
  for (const auto& each : seen.problems) fmt::print("PROBLEM      {}\n", each);
  fmt::print("{}\n", seen.problems.empty() ? "passed" : "FAILED");
}

template <class Counts>
std::string json_counts(const Counts& all) {
  std::string text;
  for (const auto& [what, times] : all)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", quoted(what), times);
  return "{" + text + "}";
}

bool write_json(const std::string& path, const plan& what, const findings& seen) {
  std::string figures;
  for (const auto& each : seen.figures)
    figures += fmt::format(
        "{}\n    {{\"process\": {}, \"what\": {}, \"unit\": {}, \"samples\": {}, \"hours\": "
        "{:.4f}, "
        "\"from\": {:.2f}, \"to\": {:.2f}, \"per_hour\": {:.2f}, \"standard_error\": {:.2f}, "
        "\"bound_per_hour\": {:.2f}, \"at_rest\": [{}]}}",
        figures.empty() ? "" : ",", quoted(each.process), quoted(each.what), quoted(each.unit),
        each.seen.samples, each.seen.hours, each.seen.first, each.seen.last, each.seen.per_hour,
        each.seen.deviation, each.bound_per_hour, numbers(each.at_rest));
  const auto strings = [](const std::vector<std::string>& all) {
    std::string text;
    for (const auto& each : all) text += (text.empty() ? "" : ", ") + quoted(each);
    return text;
  };
  std::ofstream file{path};
  file << fmt::format(
      "{{\n  \"version\": 1, \"device\": \"simulated\", \"seed\": {}, \"mechanism\": {}, "
      "\"minutes\": {:.2f}, \"passed\": {},\n",
      what.seed, quoted(mechanism_of(what)), seen.minutes, seen.problems.empty());
  file << fmt::format("  \"workers\": {},\n  \"faults\": {},\n", json_counts(seen.workers),
                      json_counts(seen.faults));
  file << fmt::format(
      "  \"agents\": {{\"died\": {}, \"bound\": {}, \"died_starved\": {}, "
      "\"longest_wait_ns\": {}}},\n",
      seen.agents_died, seen.refused_resumes, seen.agents_died_starved, seen.longest_wait.count());
  file << fmt::format(
      "  \"kernels\": {{\"submitted\": {}, \"executed\": {}, \"lost\": {}, \"repeated\": {}, "
      "\"out_of_order\": {}, \"too_short\": {}, \"with_their_queue\": {}, "
      "\"with_their_process\": {}, \"in_a_reset\": {}}},\n",
      seen.submitted, seen.executed, seen.lost, seen.repeated, seen.out_of_order, seen.too_short,
      seen.dropped, seen.died, seen.reset);
  file << fmt::format(
      "  \"requests\": {{\"all\": {}, \"every_10_ms\": {}, \"longest_ns\": {}}},\n"
      "  \"suspensions\": {{\"queues\": {}, \"longest_ns\": {}, \"bound_ns\": {}, \"stuck\": "
      "{}}},\n",
      seen.requests, seen.every_10_ms, seen.longest_request.count(), seen.queue_suspends,
      seen.longest_suspension.count(), sluice::soak::longest_allowed_suspension.count(),
      seen.stuck);
  file << "  \"figures\": [" << figures << "\n  ],\n  \"not_shown\": [" << strings(seen.not_shown)
       << "],\n  \"problems\": [" << strings(seen.problems) << "]\n}\n";
  return static_cast<bool>(file.flush());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Run daemon, agent, clients and offline processes on the simulated device, under churn and\n"
      "faults. Exit code 0: no kernel lost, no queue stuck, no process left, no leak; 1: a check\n"
      "failed, or the soak could not run; 2: wrong command line. Needs root.",
      "soak");
  plan what;
  std::string json;
  // Less has no time for a warm-up and ten samples.
  app.add_option("--minutes", what.minutes, "Duration in minutes, with fractions")
      ->check(CLI::Range(0.5, 10080.0))
      ->capture_default_str();
  const CLI::Option* const seed =
      app.add_option("--seed", what.seed,
                     "Seed of the events (default: random); even: batch commands, odd: debug "
                     "sessions");
  app.add_option("--json", json, "Also write the results to this file");
  app.add_option("--logs", what.logs, "Directory for the output of daemon and workers")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--verbose", what.verbose, "Print each fault when it happens");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "soak: {}\n", wrong.what());
    return 2;
  }
  if (seed->count() == 0) what.seed = std::random_device{}();
  if (::geteuid() != 0) {
    fmt::print(stderr, "soak: mounts and traces need root; run it as root\n");
    return 1;
  }
  for (const int each : {SIGINT, SIGTERM, SIGHUP})
    ::signal(each, [](int number) { stop_signal = number; });
  try {
    fmt::print("soak: {} min, seed {}, {}\n", what.minutes, what.seed, mechanism_of(what));
    std::fflush(stdout);
    const findings seen = sluice::soak::world{what, stop_signal}.run();
    print(what, seen);
    if (!json.empty() && !write_json(json, what, seen)) {
      fmt::print(stderr, "soak: cannot write {}\n", json);
      return 1;
    }
    return seen.problems.empty() ? 0 : 1;
  } catch (const sluice::soak::interrupted&) {
    fmt::print(stderr, "soak: stopped by signal {}\n", stop_signal.load());
    return 128 + stop_signal.load();
  } catch (const std::exception& problem) {
    fmt::print(stderr, "soak: {}\n", problem.what());
    return 1;
  }
}
