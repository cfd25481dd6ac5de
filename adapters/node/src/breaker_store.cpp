#include "sluice/breaker_store.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>

#include "sluice/os/proc.hpp"
#include "sluice/os/store_file.hpp"

namespace sluice {

namespace {

constexpr std::string_view breakers_head = "sluice breakers 1";
constexpr std::array causes{breaker_cause::preemption_failed, breaker_cause::reset,
                            breaker_cause::stuck_call};

store_file breaker_file(const std::string& path) {
  return {path, "breaker store", store_file::owners::of_directory};
}

std::optional<gpu_id> take_gpu(std::string_view& line) {
  const auto number = parse_number<std::uint32_t>(take_word(line));
  if (!number || *number == 0) return {};
  return gpu_id{*number};
}

std::optional<wall_time> take_time(std::string_view& line) {
  const auto number = parse_number<std::int64_t>(take_word(line));
  if (!number || *number < 0) return {};
  return wall_time{std::chrono::milliseconds{*number}};
}

/// \return whether the line was understood.
bool read_entry(std::string_view line, stored_breakers& into) {
  if (take_word(line) != "open") return false;
  const auto gpu = take_gpu(line);
  const auto first = take_gpu(line);
  const std::string_view cause = take_word(line);
  const auto why = std::ranges::find(causes, cause, [](auto each) { return to_string(each); });
  const auto since = take_time(line);
  if (!gpu || !first || why == causes.end() || !since) return false;
  stored_breaker one{.why = *why, .first = *first, .since = *since};
  if (line != "-") {
    one.until = take_time(line);
    if (!one.until || !line.empty()) return false;
  }
  into[*gpu] = one;
  return true;
}

std::string text_of(const stored_breakers& all) {
  const auto number = [](auto value) { return std::to_string(static_cast<std::uint32_t>(value)); };
  const auto time = [](wall_time value) {
    return std::to_string(value.time_since_epoch().count());
  };
  std::string text{breakers_head};
  text += "\n# Written by sluice; see `sluice breaker --help`.\n";
  for (const auto& [gpu, each] : all)
    text += "open " + number(gpu) + " " + number(each.first) + " " +
            std::string{to_string(each.why)} + " " + time(each.since) + " " +
            (each.until ? time(*each.until) : "-") + "\n";
  return text;
}

}  // namespace

wall_time wall_time_now() noexcept {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string wall_text(wall_time when) {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(when));
  std::tm parts{};
  std::array<char, 64> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
    return "an unknown time";
  return text.data();
}

std::string_view to_string(breaker_cause why) noexcept {
  switch (why) {
    case breaker_cause::preemption_failed: return "preemption_failed";
    case breaker_cause::reset: return "reset";
    case breaker_cause::stuck_call: break;
  }
  return "stuck_call";
}

std::string_view words_of(breaker_cause why) noexcept {
  switch (why) {
    case breaker_cause::preemption_failed:
      return "a preemption failed in hardware, and the driver resets the GPU";
    case breaker_cause::reset: return "the driver reset the GPU";
    case breaker_cause::stuck_call: break;
  }
  return "a driver call was stuck, and the driver may reset the GPU";
}

std::string breaker_store::default_path(std::string tree) {
  const char* const given = std::getenv("SLUICE_BREAKERS");  // NOLINT: as roots::from_environment()
  if (given != nullptr && *given != '\0') return given;
  std::string path = "/run/sluice/breakers";
  if (tree.empty()) return path;
  std::ranges::replace(tree, '/', '-');
  return path + (tree.starts_with('-') ? "" : "-") + tree;
}

result<stored_breakers> breaker_store::read(std::string& message) const {
  stored_breakers all;
  const auto take = [&](std::string_view line) {
    return read_entry(line, all) ? std::string{}
                                 : "expected \"open GPU_ID FIRST CAUSE SINCE UNTIL\"";
  };
  if (auto done = breaker_file(path_).read(breakers_head, take, message); !done)
    return done.error();
  return all;
}

result<void> breaker_store::change(const stored_breakers& add, std::span<const gpu_id> remove,
                                   std::string& message) const {
  const store_file file = breaker_file(path_);
  const auto lock = file.lock(message);
  if (!lock) return lock.error();
  auto all = read(message);
  if (!all) return all.error();
  const stored_breakers before = *all;
  for (const gpu_id gpu : remove) all->erase(gpu);
  for (const auto& [gpu, each] : add) (*all)[gpu] = each;
  std::erase_if(*all, [now = wall_time_now()](const auto& each) { return each.second.over(now); });
  if (*all == before) return {};
  return file.replace(text_of(*all), message);
}

}  // namespace sluice
