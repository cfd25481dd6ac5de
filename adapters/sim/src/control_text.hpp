#pragma once
/// \file
/// What the commands of `sim/control` have in common, whichever driver is simulated.

#include "parse_number.hpp"

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/duration_text.hpp"
#include "sluice/time.hpp"

namespace sluice::sim {

/// The words of a line, without the blanks between them.
inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (;;) {
    const auto from = line.find_first_not_of(" \t\r");
    if (from == std::string_view::npos) return out;
    line.remove_prefix(from);
    const auto length = std::min(line.find_first_of(" \t\r"), line.size());
    out.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

inline std::string quoted(std::string_view text) { return "'" + std::string{text} + "'"; }

struct named_number {
  std::string_view name;
  std::uint32_t number;
};

template <std::size_t Count>
std::optional<std::uint32_t> number_of(const std::array<named_number, Count>& all,
                                       std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [name](const named_number& one) { return one.name == name; });
  if (found == all.end()) return std::nullopt;
  return found->number;
}

template <std::size_t Count>
std::string list(const std::array<named_number, Count>& all) {
  std::string out;
  for (const auto& each : all) out += (out.empty() ? "" : ", ") + std::string{each.name};
  return out;
}

/// \return nothing: it is not one, and `problem` says so.
inline std::optional<duration> read_duration(std::string_view text, std::string& problem) {
  const auto time = parse_duration(text);
  if (time && *time >= duration::zero() && *time <= std::chrono::seconds{60}) return time;
  problem = "invalid duration " + quoted(text) + ": expected 0s to 60s, such as 9s or 20ms";
  return std::nullopt;
}

/// caller=PID, target=PID, times=N: which calls a fault meets.
/// \param target null: this driver's calls have none.
/// \return an empty string, or what is wrong.
template <class Fault>
std::string read_conditions(std::span<const std::string_view> words, Fault& fault,
                            pid_t Fault::*target) {
  constexpr std::uint32_t most_times = 1'000'000'000;
  constexpr std::uint32_t most_pid = 4'194'304;  // the kernel's PID_MAX_LIMIT
  for (const auto word : words) {
    const auto equals = std::min(word.find('='), word.size());
    const auto key = word.substr(0, equals);
    const bool is_count = key == "times";
    if (!is_count && key != "caller" && (key != "target" || target == nullptr)) {
      return "unknown condition " + quoted(word) + "; available: caller=PID, " +
             (target == nullptr ? "" : "target=PID, ") + "times=N";
    }
    const std::uint32_t most = is_count ? most_times : most_pid;
    const auto value = parse_number<std::uint32_t>(word.substr(std::min(equals + 1, word.size())));
    if (!value || *value == 0 || *value > most)
      return "invalid condition " + quoted(word) + ": expected " + std::string{key} +
             "=N with N from 1 to " + std::to_string(most);
    if (is_count)
      fault.times = *value;
    else
      (key == "caller" ? fault.caller : fault.*target) = static_cast<pid_t>(*value);
  }
  return {};
}

}  // namespace sluice::sim
