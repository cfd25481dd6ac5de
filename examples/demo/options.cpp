#include "options.hpp"

#include "print.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace demo {

using namespace std::chrono_literals;

checked<duration> parse_duration(std::string_view text, duration plain_unit) {
  const auto value = sluice::parse_duration(text, plain_unit);
  if (!value && sluice::parse_duration(text, 1ns)) {
    return failure(fmt::format("duration '{}' needs a unit (ns, us, ms, s, min, h)", text));
  }
  if (!value) {
    return failure(fmt::format(
        "invalid duration '{}': expected a number and a unit (ns, us, ms, s, min, h), such as 20ms",
        text));
  }
  if (*value < 0ns) return failure(fmt::format("invalid duration '{}': expected 0 or more", text));
  return *value;
}

namespace {

CLI::Option* add_any_duration(CLI::App& app, const std::string& name, const std::string& help,
                              duration_range range, duration plain_unit,
                              const std::function<void(duration)>& take) {
  return app
      .add_option_function<std::string>(
          name,
          [name, range, plain_unit, take](const std::string& text) {
            const checked<duration> value = parse_duration(text, plain_unit);
            if (value.has_error()) throw CLI::ValidationError(name, value.error().message);
            if (*value < range.low || *value > range.high) {
              throw CLI::ValidationError(
                  name, fmt::format("invalid duration '{}': expected {} to {}", text,
                                    sluice::to_text(range.low), sluice::to_text(range.high)));
            }
            take(*value);
          },
          help)
      ->type_name("DURATION");
}

}  // namespace

CLI::Option* add_duration(CLI::App& app, const std::string& name, duration& target,
                          const std::string& help, duration_range range, duration plain_unit) {
  return add_any_duration(app, name, help, range, plain_unit,
                          [&target](duration value) { target = value; })
      ->default_str(sluice::to_text(target));
}

CLI::Option* add_duration(CLI::App& app, const std::string& name, std::optional<duration>& target,
                          const std::string& help, duration_range range, duration plain_unit) {
  return add_any_duration(app, name, help, range, plain_unit,
                          [&target](duration value) { target = value; });
}

void add_control_fd(CLI::App& app, int& target) {
  add_number(app, "--control-fd", target, 0, std::numeric_limits<int>::max(),
             "File descriptor of the socket on which sluice-demo controls this program")
      ->default_str("");
}

std::string rounded_text(duration value) {
  const double ns = static_cast<double>(value.count());
  if (value == 0ns) return "0";
  if (std::abs(ns) < 1e3) return fmt::format("{} ns", value.count());
  if (std::abs(ns) < 1e6) return fmt::format("{:.4g} us", ns / 1e3);
  if (std::abs(ns) < 1e9) return fmt::format("{:.4g} ms", ns / 1e6);
  return fmt::format("{:.4g} s", ns / 1e9);
}

void arrival_options::add_to(CLI::App& app) {
  const std::string group = "Arrivals";
  app.add_option("--trace", trace, "File with requests in the Azure LLM trace format")
      ->type_name("FILE")
      ->group(group);
  add_duration(app, "--window", window,
               "Duration of the arrivals at --speedup 1 (default: trace 8s, else 4s)", {10ms, 1h},
               1s)
      ->group(group);
  add_number(app, "--speedup", speedup, 0.001, 1000.0,
             "Factor by which to speed up the arrivals: 2 plays 3 s in 1.5 s")
      ->group(group);
  add_number(app, "--online-load", online_load, 0.001, 10.0,
             "Online GPU time, as a share of the played window")
      ->group(group);
  add_number(app, "--seed", seed, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
             "Seed of all random values")
      ->group(group);
}

std::vector<std::string> arrival_options::arguments() const {
  std::vector<std::string> made{"--speedup",     fmt::format("{}", speedup),
                                "--online-load", fmt::format("{}", online_load),
                                "--seed",        fmt::format("{}", seed)};
  if (!trace.empty()) made.insert(made.end(), {"--trace", trace});
  if (window) made.insert(made.end(), {"--window", sluice::to_text(*window)});
  return made;
}

checked<arrivals> arrival_options::load() const {
  if (trace.empty()) return speed_up(generate(seed, window.value_or(4s)), speedup);
  checked<arrivals> all = read_trace_file(trace);
  if (all.has_error()) return all;
  return speed_up(busiest(*all, window.value_or(8s)), speedup);
}

std::string arrival_options::description(const arrivals& work) const {
  const token_totals all = totals(work);
  std::string played = rounded_text(work.window);
  if (speedup != 1) {
    const auto cut = std::chrono::round<duration>(
        std::chrono::duration<double, std::nano>(work.window) * speedup);
    played = fmt::format("{} in {}", rounded_text(cut), played);
  }
  return fmt::format(
      "{}, window {}, speedup {:g}: {} requests, {} context tokens, {} generated tokens (at most "
      "{} in one)",
      trace.empty() ? fmt::format("generated from seed {}", seed)
                    : fmt::format("busiest part of {}", trace),
      played, speedup, work.requests.size(), all.context, all.generated, all.most_generated);
}

int parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    print(stderr, "{}: {} (see --help)\n", app.get_name(), wrong.what());
    return 2;
  }
}

std::string program_directory() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  const std::string text(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t slash = text.rfind('/');
  return slash == std::string::npos ? "." : text.substr(0, slash);
}

}  // namespace demo
