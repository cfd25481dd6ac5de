#include "sluice/config.hpp"

#include "toml_file.hpp"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "sluice/duration_text.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// What workers that stand still are given by the frameworks that wait for them: the shortest of
/// the common watchdogs is the 300 s of an RPC to a worker (collectives have 10 minutes).
constexpr duration worker_patience = 300s;
/// The longest that a call for one queue takes before a driver gives up and resets the GPU.
constexpr duration longest_call = 9s;
constexpr duration most_suspend = worker_patience / 2 - longest_call;

/// Every setting once, for problem() and for the file: name, field, range.
template <class Config, class Duration, class Number, class Flag>
void for_each_setting(Config& config, Duration&& span, Number&& number, Flag&& flag) {
  span("max_suspend", config.max_suspend, 1ms, most_suspend);
  span("min_run", config.min_run, 1ms, 60s);
  number("offline_floor", config.offline_floor, 0.0, 0.9);
  span("floor_window", config.floor_window, 100ms, 1h);
  span("attach_after", config.attach_after, 0ns, 1h);
  span("attach_at_latest", config.attach_at_latest, 0ns, 1h);
  span("max_busy", config.max_busy, 1ms, 24h);
  span("failure_backoff", config.failure_backoff, 1ms, 10min);
  number("breaker_after", config.breaker_after, std::size_t{1}, std::size_t{1000});
  span("breaker_rearm", config.breaker_rearm, 0ns, 365 * 24h);
  span("policy_time_limit", config.policy_time_limit, 10us, 10s);
  span("stop_limit", config.stop_limit, 0ns, 60s);
  number("inbox_capacity", config.inbox_capacity, std::size_t{16}, std::size_t{1} << 20);
  flag("suspend_copy_queues", config.suspend_copy_queues);
  flag("see_unmarked", config.see_unmarked);
}

/// Said with the arithmetic.
std::string too_long_a_suspend(duration max_suspend) {
  return fmt::format(
      "max_suspend is {}; it must be at most {}: max_suspend plus the longest driver call ({}) "
      "must not exceed {}, because frameworks drop a worker after {}",
      to_text(max_suspend), to_text(most_suspend), to_text(longest_call),
      to_text(worker_patience / 2), to_text(worker_patience));
}

/// Every setting that is out of its range.
std::vector<std::string> range_problems(const scheduler_config& config) {
  std::vector<std::string> found;
  const auto span = [&](std::string_view key, duration value, duration low, duration high) {
    if (key == "max_suspend" && value > high) {
      found.push_back(too_long_a_suspend(value));
    } else if (value < low || value > high) {
      found.push_back(fmt::format("{} is {}; it must be {} to {}", key, to_text(value),
                                  to_text(low), to_text(high)));
    }
  };
  const auto number = [&](std::string_view key, auto value, auto low, auto high) {
    // Written so that NaN is out of range.
    if (!(value >= low && value <= high)) {
      found.push_back(fmt::format("{} is {}; it must be {} to {}", key, value, low, high));
    }
  };
  for_each_setting(config, span, number, [](std::string_view, bool) {});
  return found;
}

/// What does not go together; of settings that are in their ranges.
std::string relation_problem(const scheduler_config& config) {
  if (config.attach_at_latest < config.attach_after) {
    return fmt::format("attach_at_latest is {}; it must be attach_after ({}) or more",
                       to_text(config.attach_at_latest), to_text(config.attach_after));
  }
  const auto off = std::chrono::duration_cast<duration>(
      std::chrono::duration<double, std::nano>(config.floor_window) * (1 - config.offline_floor));
  if (config.offline_floor > 0 && off < config.min_run) {
    return fmt::format(
        "floor_window is {}; with offline_floor {} the time left for suspends is shorter than "
        "min_run ({}); raise floor_window, or lower offline_floor or min_run",
        to_text(config.floor_window), config.offline_floor, to_text(config.min_run));
  }
  return {};
}

}  // namespace

std::string scheduler_config::problem() const {
  const auto ranges = range_problems(*this);
  return ranges.empty() ? relation_problem(*this) : ranges.front();
}

std::string scheduler_config::keep_fixed(const scheduler_config& running) {
  std::string kept;
  const auto keep = [&kept](std::string_view key, auto& value, const auto& now) {
    if (value == now) return;
    value = now;
    kept += fmt::format("{}{} ({})", kept.empty() ? "" : ", ", key, now);
  };
  keep("inbox_capacity", inbox_capacity, running.inbox_capacity);
  keep("suspend_copy_queues", suspend_copy_queues, running.suspend_copy_queues);
  if (kept.empty()) return {};
  return "the scheduler must be restarted to change these settings; current values: " + kept;
}

result<scheduler_config> load_config(const std::string& path, std::string& message,
                                     const std::vector<std::string>& others) {
  std::vector<std::string> problems;
  auto config = load_config(path, problems, others);
  if (!config) message = problems.front();
  return config;
}

result<scheduler_config> load_config(const std::string& path, std::vector<std::string>& problems,
                                     const std::vector<std::string>& others) {
  std::string message;
  const auto refuse = [&](const error_code& why) {
    problems.push_back(message);
    return why;
  };
  const auto file = core::read_toml(path, message);
  if (!file) return refuse(file.error());
  scheduler_config config;
  const std::size_t before = problems.size();
  if (std::string unknown = core::unknown_table(*file, path, others); !unknown.empty())
    problems.push_back(std::move(unknown));
  const auto section = core::table_of(*file, path, "scheduler", message);
  if (!section) return refuse(section.error());
  const toml::table* const table = *section;
  if (table == nullptr) {
    if (problems.size() != before) return errc::bad_config;
    return config;
  }
  for (const auto& entry : *table) {
    // No structured binding: clang 14 cannot capture one in a lambda.
    const auto& key = entry.first;
    const auto& node = entry.second;
    const std::string_view name = key.str();
    bool known = false;
    std::string wrong;
    const auto span = [&](std::string_view candidate, duration& field, duration low,
                          duration high) {
      if (name != candidate) return;
      known = true;
      const auto given = node.template value_exact<std::string>();
      const auto value = given ? parse_duration(*given) : std::nullopt;
      if (value) {
        field = *value;
      } else {
        wrong = fmt::format("must be a duration in quotes with a unit, {} to {}, such as \"250ms\"",
                            to_text(low), to_text(high));
      }
    };
    const auto number = [&](std::string_view candidate, auto& field, auto low, auto high) {
      if (name != candidate) return;
      known = true;
      using type = std::remove_reference_t<decltype(field)>;
      if constexpr (std::is_floating_point_v<type>) {
        if (const auto value = node.template value<double>()) {
          field = *value;
          return;
        }
      } else if (const auto value = node.template value_exact<std::int64_t>();
                 value && *value >= 0) {
        field = static_cast<type>(*value);
        return;
      }
      wrong = fmt::format("must be a number, {} to {}", low, high);
    };
    const auto flag = [&](std::string_view candidate, bool& field) {
      if (name != candidate) return;
      known = true;
      if (const auto value = node.template value_exact<bool>())
        field = *value;
      else
        wrong = "must be true or false";
    };
    for_each_setting(config, span, number, flag);
    if (!known) wrong = "is not a setting of [scheduler]";
    if (wrong.empty()) continue;
    problems.push_back(fmt::format("{}:{}: {} {}", path, core::line_of(node), name, wrong));
  }
  auto wrong = range_problems(config);
  if (wrong.empty() && problems.size() == before) {
    if (std::string more = relation_problem(config); !more.empty())
      wrong.push_back(std::move(more));
  }
  for (const std::string& each : wrong) {
    const toml::node* culprit = table->get(each.substr(0, each.find(' ')));
    problems.push_back(fmt::format("{}:{}: {}", path,
                                   core::line_of(culprit != nullptr ? *culprit : *table), each));
  }
  if (problems.size() != before) return errc::bad_config;
  return config;
}

}  // namespace sluice
