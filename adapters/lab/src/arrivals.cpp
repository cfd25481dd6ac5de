#include "sluice/lab/arrivals.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <istream>
#include <limits>
#include <numbers>
#include <optional>
#include <random>

#include <fmt/format.h>

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr std::string_view header = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::uint32_t most_tokens = 100'000'000;
// What is no trace (a device, a binary file) must not fill our memory before we say so.
constexpr std::size_t longest_line = std::size_t{64} * 1024;

/// Walks over one line and remembers what was wrong, and in which column.
class line_reader {
 public:
  explicit line_reader(std::string_view line) : line_(line) {}

  bool failed() const { return what_ != nullptr; }
  const char* what() const { return what_; }
  std::size_t column() const { return column_; }

  bool at_end() const { return next_ == line_.size(); }
  bool next_is(char wanted) const { return !at_end() && line_[next_] == wanted; }

  void expect(char wanted, const char* what) {
    if (failed()) return;
    if (!next_is(wanted)) return fail(next_, what);
    ++next_;
  }

  /// Exactly `digits` digits with a value in [low, high].
  int fixed(std::size_t digits, int low, int high, const char* what) {
    if (failed()) return low;
    int value = 0;
    const std::size_t start = next_;
    for (; next_ < start + digits; ++next_) {
      if (at_end() || !is_digit(line_[next_])) {
        fail(next_, what);
        return low;
      }
      value = value * 10 + (line_[next_] - '0');
    }
    if (value < low || value > high) {
      fail(start, what);
      return low;
    }
    return value;
  }

  /// Digits behind the point, at most nine, as nanoseconds.
  nanoseconds fraction() {
    if (failed() || !next_is('.')) return 0ns;
    const std::size_t start = ++next_;
    std::int64_t value = 0;
    for (; !at_end() && is_digit(line_[next_]); ++next_) {
      if (next_ - start < 9) value = value * 10 + (line_[next_] - '0');
    }
    const std::size_t digits = next_ - start;
    if (digits == 0 || digits > 9) {
      fail(start, "the fraction of a second must have 1 to 9 digits");
      return 0ns;
    }
    for (std::size_t i = digits; i < 9; ++i) value *= 10;
    return nanoseconds{value};
  }

  std::uint32_t count(const char* what) {
    if (failed()) return 0;
    std::uint32_t value = 0;
    const char* const begin = line_.data() + next_;
    const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), value);
    if (error != std::errc{} || value > most_tokens) {
      fail(next_, what);
      return 0;
    }
    next_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  void expect_end() {
    if (!failed() && !at_end()) fail(next_, "unexpected text after GeneratedTokens");
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  void fail(std::size_t at, const char* what) {
    column_ = at + 1;
    what_ = what;
  }

  std::string_view line_;
  std::size_t next_ = 0;
  std::size_t column_ = 0;
  const char* what_ = nullptr;
};

/// `2023-11-16 18:17:03.9799600` as nanoseconds since 1970, fraction optional.
nanoseconds read_timestamp(line_reader& line) {
  constexpr const char* date = "the date must be YYYY-MM-DD";
  constexpr const char* time = "the time must be HH:MM:SS";
  const int year = line.fixed(4, 1970, 2200, date);
  line.expect('-', date);
  const int month = line.fixed(2, 1, 12, date);
  line.expect('-', date);
  const std::chrono::year_month_day_last last{
      std::chrono::year{year},
      std::chrono::month_day_last{std::chrono::month{static_cast<unsigned>(month)}}};
  const int days_of_month = static_cast<int>(static_cast<unsigned>(last.day()));
  const int day = line.fixed(2, 1, days_of_month, "the day must exist in the month");
  line.expect(' ', "a space must separate date and time");
  const int hour = line.fixed(2, 0, 23, time);
  line.expect(':', time);
  const int minute = line.fixed(2, 0, 59, time);
  line.expect(':', time);
  const int second = line.fixed(2, 0, 60, time);
  const nanoseconds fraction = line.fraction();
  const std::chrono::sys_days days{std::chrono::year{year} /
                                   std::chrono::month{static_cast<unsigned>(month)} /
                                   std::chrono::day{static_cast<unsigned>(day)}};
  return days.time_since_epoch() + std::chrono::hours{hour} + std::chrono::minutes{minute} +
         std::chrono::seconds{second} + fraction;
}

/// Uniform in [0, 1). Not std::uniform_real_distribution: its values differ between libraries.
double uniform(std::mt19937_64& bits) { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double uniform(std::mt19937_64& bits, double low, double high) {
  return low + (high - low) * uniform(bits);
}

std::uint32_t uniform_count(std::mt19937_64& bits, std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint32_t>(std::floor(uniform(bits, low, high + 1.0)));
}

duration milliseconds(double value) { return duration{std::llround(value * 1e6)}; }

/// Time to the next event of a Poisson process.
duration exponential(std::mt19937_64& bits, double rate_per_second) {
  const double ns = -std::log1p(-uniform(bits)) / rate_per_second * 1e9;
  return duration{std::max<std::int64_t>(1, std::llround(std::min(ns, 1e18)))};
}

request draw_request(std::mt19937_64& bits, duration at) {
  const std::uint32_t context = uniform_count(bits, 100, 1200);
  return {at, context, uniform_count(bits, 4, 32)};
}

}  // namespace

checked<arrivals> read_trace(std::istream& in, std::string_view name) {
  arrivals all;
  std::optional<nanoseconds> first;
  std::size_t number = 0;
  auto at = [&](std::size_t column, std::string_view what) {
    return failure(fmt::format("{}:{}:{}: {}", name, number, column, what));
  };
  std::vector<char> buffer(longest_line + 1);  // And the 0 that getline() adds.
  while (in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
    ++number;
    // It fails when the buffer is full before the line has ended.
    if (in.fail()) return at(longest_line + 1, "the line is longer than 64 KiB");
    std::string text(buffer.data(), static_cast<std::size_t>(in.gcount()) - (in.eof() ? 0 : 1));
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (number == 1) {
      if (text != header) {
        const auto differ = std::mismatch(text.begin(), text.end(), header.begin(), header.end());
        return at(static_cast<std::size_t>(differ.first - text.begin()) + 1,
                  fmt::format("the first line must be {}", header));
      }
      continue;
    }
    line_reader line(text);
    const nanoseconds when = read_timestamp(line);
    line.expect(',', "a comma must follow the timestamp");
    request made;
    made.context_tokens = line.count("ContextTokens must be an integer from 0 to 100000000");
    line.expect(',', "a comma must follow ContextTokens");
    made.generated_tokens = line.count("GeneratedTokens must be an integer from 0 to 100000000");
    line.expect_end();
    if (line.failed()) return at(line.column(), line.what());
    if (!first) first = when;
    made.at = when - *first;
    if (!all.requests.empty() && made.at < all.requests.back().at) {
      return at(1,
                "the timestamp is earlier than on the previous line; sort the file by TIMESTAMP");
    }
    if (made.context_tokens == 0 && made.generated_tokens == 0) {
      return at(1,
                "the request has no tokens; ContextTokens or GeneratedTokens must be at least 1");
    }
    if (all.requests.size() == most_requests) {
      return at(1, fmt::format("the trace has more than {} requests; use a shorter trace",
                               most_requests));
    }
    all.requests.push_back(made);
  }
  ++number;
  if (in.bad()) return at(1, "reading failed");
  if (all.requests.empty()) {
    return at(1, number == 1 ? "the file is empty" : "the file has no request after the header");
  }
  all.window = all.requests.back().at + 1ns;
  return all;
}

checked<arrivals> read_trace_file(const std::string& path) {
  // A directory can be opened like a file, and reading it fails without a reason.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return failure(fmt::format("cannot read {}: {}", path, std::strerror(EISDIR)));
  }
  std::ifstream in(path);
  if (!in) return failure(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  return read_trace(in, path);
}

arrivals busiest(const arrivals& all, duration length) {
  if (all.window <= length) return all;
  const auto& rows = all.requests;
  std::size_t best = 0;
  std::size_t best_count = 0;
  for (std::size_t begin = 0, end = 0; begin < rows.size(); ++begin) {
    while (end < rows.size() && rows[end].at < rows[begin].at + length) ++end;
    if (end - begin > best_count) {
      best = begin;
      best_count = end - begin;
    }
  }
  arrivals cut{length, {}};
  cut.requests.reserve(best_count);
  for (std::size_t i = best; i < best + best_count; ++i) {
    cut.requests.push_back(rows[i]);
    cut.requests.back().at -= rows[best].at;
  }
  return cut;
}

arrivals speed_up(arrivals from, double by) {
  auto scale = [by](duration value) {
    return duration{std::llround(static_cast<double>(value.count()) / by)};
  };
  from.window = scale(from.window);
  for (request& each : from.requests) each.at = scale(each.at);
  return from;
}

arrivals overlay(const arrivals& one, std::uint32_t copies, duration length, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  arrivals made{length, {}};
  for (std::uint32_t i = 0; i < copies; ++i) {
    const duration from{std::llround(uniform(bits) * static_cast<double>(one.window.count()))};
    for (request each : one.requests) {
      each.at -= from;
      if (each.at < 0ns) each.at += one.window;
      if (each.at < length) made.requests.push_back(each);
    }
  }
  std::stable_sort(made.requests.begin(), made.requests.end(),
                   [](const request& a, const request& b) { return a.at < b.at; });
  return made;
}

arrivals generate(std::uint64_t seed, duration length) {
  std::mt19937_64 bits(seed);
  arrivals made{length, {}};
  for (duration burst = 0ns; burst < length;) {
    const duration burst_end = burst + milliseconds(uniform(bits, 350, 650));
    for (duration at = burst; at < burst_end && at < length;
         at += milliseconds(uniform(bits, 5, 30))) {
      made.requests.push_back({at, uniform_count(bits, 100, 1200), uniform_count(bits, 4, 32)});
    }
    burst = burst_end + milliseconds(uniform(bits, 350, 650));
  }
  return made;
}

arrivals poisson(std::uint64_t seed, duration length, double rate) {
  std::mt19937_64 bits(seed);
  arrivals made{length, {}};
  for (duration at = exponential(bits, rate); at < length; at += exponential(bits, rate)) {
    made.requests.push_back(draw_request(bits, at));
  }
  return made;
}

arrivals bursty(std::uint64_t seed, duration length, const burst_shape& shape) {
  std::mt19937_64 bits(seed);
  arrivals made{length, {}};
  bool burst = false;
  for (duration state = 0ns; state < length; burst = !burst) {
    const double mean_s =
        std::chrono::duration<double>(burst ? shape.burst_mean : shape.quiet_mean).count();
    const duration state_end = state + exponential(bits, 1 / mean_s);
    const double rate = burst ? shape.burst_rate : shape.quiet_rate;
    if (rate > 0) {
      // What is drawn beyond the state's end is forgotten: the process has no memory.
      for (duration at = state + exponential(bits, rate); at < std::min(state_end, length);
           at += exponential(bits, rate)) {
        made.requests.push_back(draw_request(bits, at));
      }
    }
    state = state_end;
  }
  return made;
}

arrivals diurnal(std::uint64_t seed, duration length, double low, double high, duration period) {
  std::mt19937_64 bits(seed);
  arrivals made{length, {}};
  // Thinning: arrivals at the highest rate, of which each stays with the share due at its time.
  for (duration at = exponential(bits, high); at < length; at += exponential(bits, high)) {
    const double turn = std::chrono::duration<double>(at) / std::chrono::duration<double>(period);
    const double rate = low + (high - low) * (1 - std::cos(2 * std::numbers::pi * turn)) / 2;
    if (uniform(bits) * high < rate) made.requests.push_back(draw_request(bits, at));
  }
  return made;
}

std::vector<arrivals> deal(const arrivals& all, std::size_t servers) {
  std::vector<arrivals> dealt(servers, arrivals{all.window, {}});
  for (std::size_t i = 0; i < all.requests.size(); ++i) {
    dealt[i % servers].requests.push_back(all.requests[i]);
  }
  return dealt;
}

token_costs scale_to_load(const arrivals& work, double load) {
  const token_totals all = totals(work);
  const double weighed =
      static_cast<double>(all.context) + decode_weight * static_cast<double>(all.generated);
  if (weighed <= 0) return {};
  token_costs costs;
  costs.prefill = std::chrono::duration<double, std::nano>(work.window) * load / weighed;
  costs.decode = costs.prefill * decode_weight;
  return costs;
}

double load_of(const arrivals& work, const token_costs& costs) {
  if (work.window <= duration::zero()) return 0;
  const token_totals all = totals(work);
  return (costs.prefill * static_cast<double>(all.context) +
          costs.decode * static_cast<double>(all.generated)) /
         std::chrono::duration<double, std::nano>(work.window);
}

token_totals totals(const arrivals& work) {
  token_totals sum;
  for (const request& each : work.requests) {
    sum.context += each.context_tokens;
    sum.generated += each.generated_tokens;
    sum.most_generated = std::max(sum.most_generated, each.generated_tokens);
  }
  return sum;
}

}  // namespace sluice::lab
