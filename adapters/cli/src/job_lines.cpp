#include "job_lines.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <tuple>
#include <type_traits>

#include <boost/json.hpp>

namespace sluice::cli {

namespace {

namespace json = boost::json;
using observe::job_end;
using observe::job_record;

constexpr std::string_view beginning = "{\"time\":\"";
/// No line that sluice writes is as long.
constexpr std::size_t longest_job_line = std::size_t{64} << 10U;
constexpr std::size_t most_gpus = 1024;
/// 30 years.
constexpr double longest_span = 1e9;

template <class Number>
Number number_in(const json::object& of, std::string_view name) {
  return of.at(name).to_number<Number>();
}

duration span(const json::object& of, std::string_view name) {
  const double value = number_in<double>(of, name);
  if (!(value >= 0 && value <= longest_span)) throw std::out_of_range{std::string{name}};
  return duration(std::llround(value * 1e9));
}

std::string text(const json::object& of, std::string_view name) {
  return std::string{of.at(name).as_string()};
}

/// "2026-01-31T13:37:00.123Z" and nothing else.
observe::wall_time parse_time(const std::string& text) {
  // What the digits are, to the letter, the way back shows.
  std::tm parts{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  // The system's clock counts nanoseconds, until the year 2262.
  if (rest == nullptr || text.size() != 24 || parts.tm_year < 70 || parts.tm_year > 300)
    throw std::out_of_range{"time"};
  int ms = 0;
  for (int i = 1; i <= 3; ++i) ms = ms * 10 + (rest[i] - '0');
  const auto made = std::chrono::floor<std::chrono::milliseconds>(
                        std::chrono::system_clock::from_time_t(::timegm(&parts))) +
                    std::chrono::milliseconds(ms);
  if (observe::to_text(made) != text) throw std::out_of_range{"time"};
  return made;
}

template <class Enum, std::size_t N>
Enum word(const json::object& of, std::string_view name, const Enum (&all)[N]) {
  const std::string given = text(of, name);
  for (const Enum each : all)
    if (to_string(each) == given) return each;
  throw std::out_of_range{std::string{name}};
}

job_record record_of(const json::object& from) {
  job_record made;
  made.time = parse_time(text(from, "time"));
  made.pid = number_in<pid_t>(from, "pid");
  made.start = number_in<std::uint64_t>(from, "start");
  made.command = text(from, "command");
  made.user = text(from, "user");
  made.group = text(from, "group");
  made.what = word(from, "role", {role::unmatched, role::online, role::offline});
  for (const json::value& each : from.at("gpus").as_array())
    made.gpus.push_back(gpu_id{each.to_number<std::underlying_type_t<gpu_id>>()});
  if (made.gpus.size() > most_gpus) throw std::out_of_range{"gpus"};
  made.end = word(from, "end", {job_end::ended, job_end::runs, job_end::left});
  if (const auto* const observed = from.if_contains("observed"))
    made.observed = observed->as_bool();
  if (const auto* const simulated = from.if_contains("simulated"))
    made.simulated = simulated->as_bool();
  made.wall = span(from, "wall_s");
  made.suspended = span(from, "suspended_s");
  made.suspensions = number_in<std::uint64_t>(from, "suspensions");
  made.longest = span(from, "longest_s");
  made.by_max_suspend = number_in<std::uint64_t>(from, "max_suspend");
  made.by_offline_floor = number_in<std::uint64_t>(from, "offline_floor");
  return made;
}

/// Whatever a file says: a sum has an end.
duration sum_of(duration one, duration other) {
  return one > duration::max() - other ? duration::max() : one + other;
}

/// \param next not before `to`.
void add(job_record& to, const job_record& next) {
  const job_record before = std::move(to);
  to = next;
  to.gpus.clear();
  std::ranges::set_union(before.gpus, next.gpus, std::back_inserter(to.gpus));
  to.observed = before.observed || next.observed;
  to.simulated = before.simulated || next.simulated;
  to.wall = sum_of(to.wall, before.wall);
  to.suspended = sum_of(to.suspended, before.suspended);
  to.suspensions += before.suspensions;
  to.longest = std::max(before.longest, next.longest);
  to.by_max_suspend += before.by_max_suspend;
  to.by_offline_floor += before.by_offline_floor;
}

std::vector<job_sum> sorted(std::vector<job_sum> all) {
  std::ranges::stable_sort(all, [](const job_sum& one, const job_sum& other) {
    const auto rank = [](const job_sum& of) {
      return std::tuple{suspended_share(of.whole), of.whole.wall};
    };
    return rank(one) > rank(other);
  });
  return all;
}

}  // namespace

bool is_job_line(std::string_view line) { return line.find(beginning) != line.npos; }

std::optional<job_record> parse_job_line(std::string_view line) {
  const auto at = line.find(beginning);
  if (at == line.npos || line.size() > longest_job_line) return {};
  json::error_code wrong;
  // A log goes on after it.
  const auto end = line.rfind('}');
  if (end == line.npos || end < at) return {};
  const json::value parsed = json::parse(line.substr(at, end + 1 - at), wrong);
  if (wrong || !parsed.is_object()) return {};
  try {
    job_record made = record_of(parsed.get_object());
    std::ranges::sort(made.gpus);
    return made;
  } catch (const std::exception&) {  // what is missing, or of another kind
    return {};
  }
}

void job_book::read(std::string_view all) {
  while (!all.empty()) {
    const std::string_view line = all.substr(0, all.find('\n'));
    all.remove_prefix(std::min(line.size() + 1, all.size()));
    if (!is_job_line(line)) continue;
    const auto found = parse_job_line(line);
    if (!found) {
      ++damaged_;
      continue;
    }
    if (found->time < since_) continue;
    const auto [at, fresh] = processes_.try_emplace({found->pid, found->start}, job_sum{*found});
    if (!fresh) add(at->second.whole, *found);
  }
}

std::vector<job_sum> job_book::processes() const {
  std::vector<job_sum> all;
  for (const auto& [key, each] : processes_) all.push_back(each);
  return sorted(std::move(all));
}

std::vector<job_sum> job_book::groups() const {
  // Two users' jobs may be called the same.
  std::map<std::pair<std::string, std::string>, job_sum> found;
  for (const auto& [key, each] : processes_) {
    const auto [at, fresh] = found.try_emplace({each.whole.user, each.whole.group}, each);
    if (fresh) continue;
    add(at->second.whole, each.whole);
    ++at->second.processes;
  }
  std::vector<job_sum> all;
  for (const auto& [key, each] : found) all.push_back(each);
  return sorted(std::move(all));
}

double suspended_share(const job_record& of) noexcept {
  if (of.wall <= duration::zero()) return 0;
  return std::min(static_cast<double>(of.suspended.count()) / static_cast<double>(of.wall.count()),
                  1.0);
}

}  // namespace sluice::cli
