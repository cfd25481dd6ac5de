#include "options.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

namespace demo {

using namespace std::chrono_literals;

namespace {

struct unit {
  std::string_view name;
  duration length;
};
constexpr std::array<unit, 5> units{
    {{"ns", 1ns}, {"us", 1us}, {"ms", 1ms}, {"s", 1s}, {"min", 1min}}};

/// The largest unit of which `value` is a whole number.
const unit& natural_unit(duration value) {
  for (std::size_t i = 3; i > 0; --i) {
    if (value != 0ns && value % units[i].length == 0ns) return units[i];
  }
  return units[value == 0ns ? 3 : 0];
}

}  // namespace

checked<duration> parse_duration(std::string_view text, duration plain_unit) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(number)) {
    return failure(fmt::format("'{}' is not a duration such as 20ms", text));
  }
  if (number < 0) return failure(fmt::format("'{}' is negative", text));
  while (*end == ' ') ++end;
  const std::string_view suffix(end);
  duration scale = plain_unit;
  if (!suffix.empty()) {
    scale = 0ns;
    for (const unit& each : units) {
      if (each.name == suffix) scale = each.length;
    }
    if (scale == 0ns) {
      return failure(fmt::format("'{}' has an unknown unit (ns, us, ms, s, min)", text));
    }
  }
  if (scale == 0ns) return failure(fmt::format("'{}' needs a unit (ns, us, ms, s, min)", text));
  const double value = number * static_cast<double>(scale.count());
  if (value > 9e15) return failure(fmt::format("'{}' is too long", text));
  return duration{std::llround(value)};
}

CLI::Option* add_duration(CLI::App& app, const std::string& name, duration& target,
                          const std::string& help, duration plain_unit) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&target, name, plain_unit](const std::string& text) {
        const checked<duration> value = parse_duration(text, plain_unit);
        if (value.has_error()) throw CLI::ValidationError(name, value.error().message);
        target = *value;
      },
      help);
  option->type_name("DURATION");
  if (target != 0ns) option->default_str(to_argument(target));
  return option;
}

std::string to_text(duration value) {
  const double ns = static_cast<double>(value.count());
  if (value == 0ns) return "0";
  if (std::abs(ns) < 1e3) return fmt::format("{} ns", value.count());
  if (std::abs(ns) < 1e6) return fmt::format("{:.4g} us", ns / 1e3);
  if (std::abs(ns) < 1e9) return fmt::format("{:.4g} ms", ns / 1e6);
  return fmt::format("{:.4g} s", ns / 1e9);
}

std::string to_argument(duration value) {
  const unit& in = natural_unit(value);
  return fmt::format("{}{}", value / in.length, in.name);
}

void arrival_options::add_to(CLI::App& app) {
  const std::string group = "Arrivals";
  app.add_option("--trace", trace,
                 "Requests from a file in the Azure LLM trace format "
                 "(TIMESTAMP,ContextTokens,GeneratedTokens)")
      ->type_name("FILE")
      ->group(group);
  add_duration(
      app, "--window", window,
      "Length of the stretch, in seconds or with a unit; of a trace its busiest one is taken "
      "(default: 8 s of a trace, 4 s generated)",
      1s)
      ->group(group);
  app.add_option("--speedup", speedup, "Divide the gaps between arrivals, nothing else")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--online-load", online_load,
                 "Online GPU time as a share of the window; scales the work per token")
      ->check(CLI::Range(0.001, 10.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", seed, "Seed of everything that is drawn")
      ->capture_default_str()
      ->group(group);
}

std::vector<std::string> arrival_options::arguments() const {
  std::vector<std::string> made{"--speedup",     fmt::format("{}", speedup),
                                "--online-load", fmt::format("{}", online_load),
                                "--seed",        fmt::format("{}", seed)};
  if (!trace.empty()) made.insert(made.end(), {"--trace", trace});
  if (window != 0ns) made.insert(made.end(), {"--window", to_argument(window)});
  return made;
}

checked<arrivals> arrival_options::load() const {
  if (window != 0ns && (window < 10ms || window > 1h)) {
    return failure(fmt::format("--window {}: must be 10 ms to 1 h", to_text(window)));
  }
  if (trace.empty()) {
    return speed_up(generate(seed, window == 0ns ? duration{4s} : window), speedup);
  }
  const checked<arrivals> all = read_trace_file(trace);
  if (all.has_error()) return all;
  return speed_up(busiest(*all, window == 0ns ? duration{8s} : window), speedup);
}

std::string arrival_options::description(const arrivals& work) const {
  const token_totals all = totals(work);
  return fmt::format(
      "{}, window {}, speedup {:g}: {} requests, {} context tokens, {} generated tokens (at most "
      "{} "
      "in one)",
      trace.empty() ? fmt::format("generated from seed {}", seed)
                    : fmt::format("busiest stretch of {}", trace),
      to_text(work.window), speedup, work.requests.size(), all.context, all.generated,
      all.most_generated);
}

int parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "{}: {} (see --help)\n", app.get_name(), wrong.what());
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
