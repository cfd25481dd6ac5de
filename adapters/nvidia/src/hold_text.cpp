#include "hold_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>

namespace sluice::nvidia {

namespace {

void append(std::string& to, char kind, std::initializer_list<std::uint64_t> numbers) {
  to += kind;
  for (const std::uint64_t each : numbers) {
    std::array<char, 17> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), each, 16);
    to += ' ';
    to.append(digits.data(), end.ptr);
  }
  to += '\n';
}

/// Reads numbers with one blank before each, up to the end of the line.
bool take(std::string_view line, std::span<std::uint64_t> into) {
  for (std::uint64_t& each : into) {
    if (!line.starts_with(' ')) return false;
    const auto [end, error] = std::from_chars(line.data() + 1, line.data() + line.size(), each, 16);
    if (error != std::errc{}) return false;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  }
  return line.empty();
}

constexpr std::uint64_t most_int = std::numeric_limits<int>::max();
constexpr bool fits(std::uint64_t value) noexcept {
  return value <= std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

std::string to_text(const held_process& what) {
  std::string text;
  for (const auto& each : what.clients)
    append(text, 'c',
           {each.handle, static_cast<std::uint64_t>(each.fd), each.disables, each.mount});
  for (const auto& each : what.slices) append(text, 's', {each.client, each.group, each.own});
  for (const auto& each : what.sharers)
    append(text, 'p', {static_cast<std::uint64_t>(each.pid), each.start_time});
  append(text, 'k', {what.kinship});
  return text;
}

std::optional<held_process> parse_held_process(std::string_view text) {
  held_process found;
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with('c')) {
      std::array<std::uint64_t, 4> numbers{};
      if (!take(line.substr(1), numbers)) return {};
      const auto [handle, fd, disables, mount] = numbers;
      if (!fits(handle) || fd > most_int || !fits(disables)) return {};
      found.clients.push_back({.handle = static_cast<uapi::NvHandle>(handle),
                               .fd = static_cast<int>(fd),
                               .disables = static_cast<std::uint32_t>(disables),
                               .mount = mount});
    } else if (line.starts_with('s')) {
      std::array<std::uint64_t, 3> numbers{};
      if (!take(line.substr(1), numbers) || !fits(numbers[0]) || !fits(numbers[1])) return {};
      found.slices.push_back({.client = static_cast<uapi::NvHandle>(numbers[0]),
                              .group = static_cast<uapi::NvHandle>(numbers[1]),
                              .own = numbers[2]});
    } else if (line.starts_with('p')) {
      std::array<std::uint64_t, 2> numbers{};
      if (!take(line.substr(1), numbers) || numbers[0] > most_int) return {};
      found.sharers.push_back({.pid = static_cast<pid_t>(numbers[0]), .start_time = numbers[1]});
    } else if (line.starts_with('k')) {
      if (!take(line.substr(1), {&found.kinship, 1})) return {};
    } else {
      return {};
    }
  }
  return found;
}

}  // namespace sluice::nvidia
