#include "drawing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace sluice::lab::page {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// \return length of the UTF-8 character that the text begins with; 0: it is none.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const std::uint32_t first = byte(0);
  const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
  if (length == 1) return 1;
  if (length == 4 && first >> 3 != 30) return 0;
  std::uint32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  const bool control = code < 0xA0;  // C1; what is below has one byte.
  const bool noncharacter = (code & 0xFFFE) == 0xFFFE || (code >= 0xFDD0 && code < 0xFDF0);
  return code < least[length] || code > 0x10FFFF || surrogate || control || noncharacter ? 0
                                                                                         : length;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const std::size_t length = character(text);
    const char first = text.front();
    const bool control =
        (first >= 0 && first < ' ' && first != '\n' && first != '\t') || first == 0x7F;
    if (length == 0 || (length == 1 && control)) {
      made += replacement;
    } else if (length > 1) {
      made += text.substr(0, length);
    } else if (first == '&') {
      made += "&amp;";
    } else if (first == '<') {
      made += "&lt;";
    } else if (first == '>') {
      made += "&gt;";
    } else if (first == '"') {
      made += "&quot;";
    } else if (first == '\'') {
      made += "&#39;";
    } else {
      made += first;
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return made;
}

std::string quoted(std::string_view text) {
  std::string made = "\"";
  while (!text.empty()) {
    const std::size_t length = character(text);
    const char first = text.front();
    if (length == 0) {
      made += replacement;
    } else if (length == 1 && static_cast<unsigned char>(first) < 0x20) {
      made += fmt::format("\\u{:04x}", static_cast<unsigned>(first));
    } else {
      if (first == '"' || first == '\\') made += '\\';
      made += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return made + '"';
}

std::string decimal(double value, int decimals) {
  std::string made = fmt::format("{:.{}f}", value, decimals);
  if (decimals > 0) {
    made.erase(made.find_last_not_of('0') + 1);
    if (made.back() == '.') made.pop_back();
  }
  return made == "-0" ? "0" : made;
}

std::string time_text(double ms) {
  const auto [value, unit] = ms >= 1000 || ms <= -1000 ? std::pair{ms / 1000, "s"}
                             : ms >= 1 || ms <= -1     ? std::pair{ms, "ms"}
                                                       : std::pair{ms * 1000, "us"};
  const double size = std::abs(value);
  return decimal(value, size >= 100  ? 1
                        : size >= 10 ? 2
                                     : 3) +
         (value == 0 ? " ms" : std::string(" ") + (unit[0] == 'u' ? "\xC2\xB5s" : unit));
}

double axis::at(double value) const {
  const double share =
      logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + share * (to - from);
}

double axis::clamped(double value) const {
  if (logarithmic && value <= 0) return from;
  return std::clamp(at(value), std::min(from, to), std::max(from, to));
}

std::vector<double> ticks(const axis& of, std::size_t most) {
  std::vector<double> made;
  const auto inside = [&](double value) {
    const double slack = (of.high - of.low) * 1e-9;
    return value >= of.low - slack && value <= of.high + slack;
  };
  if (of.logarithmic && of.high / of.low >= 8) {
    const int first = static_cast<int>(std::floor(std::log10(of.low)));
    const int last = static_cast<int>(std::ceil(std::log10(of.high)));
    const std::vector<double> all{1, 2, 5}, some{1, 3}, one{1};
    for (const auto* const digits : {&all, &some, &one}) {
      made.clear();
      for (int power = first; power <= last; ++power) {
        for (const double digit : *digits) {
          const double value = digit * std::pow(10.0, power);
          if (value >= of.low && value <= of.high) made.push_back(value);
        }
      }
      if (made.size() >= 2 && made.size() <= most) return made;
    }
    // Every second, third, ... power of ten.
    if (made.size() > most) {
      const std::size_t step = (made.size() - 1 + most - 2) / (most - 1);
      std::vector<double> fewer;
      for (std::size_t i = 0; i < made.size(); i += step) fewer.push_back(made[i]);
      return fewer;
    }
  }
  // The smallest round step that gives few enough.
  double power =
      std::pow(10.0, std::floor(std::log10((of.high - of.low) / static_cast<double>(most))));
  while (true) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double step = digit * power;
      made.clear();
      for (double i = std::ceil(of.low / step - 1e-9); inside(i * step); ++i) {
        made.push_back(i * step);
        if (made.size() > most) break;
      }
      if (made.size() <= most) {
        if (made.size() < 2) made = {of.low, of.high};
        return made;
      }
    }
    power *= 10;
  }
}

axis around(const std::vector<double>& values, bool logarithmic, double from, double to) {
  axis made{logarithmic ? 1.0 : 0.0, logarithmic ? 10.0 : 1.0, logarithmic, from, to};
  bool any = false;
  for (const double each : values) {
    if (!std::isfinite(each) || (logarithmic && each <= 0)) continue;
    made.low = any ? std::min(made.low, each) : each;
    made.high = any ? std::max(made.high, each) : each;
    any = true;
  }
  if (logarithmic) {
    // A little more than nothing, also when all are the same.
    const double room = std::max(std::pow(made.high / made.low, 0.06), 1.06);
    made.low /= room;
    made.high *= room;
  } else {
    const double room = std::max((made.high - made.low) * 0.06, std::abs(made.high) * 1e-3 + 1e-9);
    made.low -= room;
    made.high += room;
  }
  return made;
}

std::vector<std::optional<label_place>> place_labels(const std::vector<label_wanted>& wanted,
                                                     const box& bounds, std::vector<box> taken) {
  constexpr double mark = 7;  // Half of a point's size, and a little air.
  for (const auto& each : wanted) {
    taken.push_back({each.x - mark, each.y - mark, 2 * mark, 2 * mark});
  }
  const auto is_free = [&](const box& place) {
    return place.x >= bounds.x && place.x + place.width <= bounds.x + bounds.width &&
           place.y >= bounds.y && place.y + place.height <= bounds.y + bounds.height &&
           std::none_of(taken.begin(), taken.end(),
                        [&](const box& other) { return place.overlaps(other); });
  };
  // Directions in which it may lie, the best first; right and left it needs no line.
  constexpr std::pair<int, int> directions[] = {{1, 0},  {-1, 0}, {0, -1},  {0, 1},
                                                {1, -1}, {1, 1},  {-1, -1}, {-1, 1}};
  const auto find = [&](const label_wanted& each) -> std::optional<label_place> {
    for (int step = 0; step <= 8; ++step) {
      for (const auto& [dx, dy] : directions) {
        if (step > 0 && dy == 0) continue;
        const double away = mark + 2 + (step > 0 ? 8 : 0);
        const double x = dx > 0   ? each.x + away
                         : dx < 0 ? each.x - away - each.width
                                  : each.x - each.width / 2;
        const double y = each.y - each.height / 2 + dy * (mark + each.height / 2 + step * 15.0);
        const box place{x, y, each.width, each.height};
        if (is_free(place)) return label_place{place, step > 0};
      }
    }
    return {};
  };
  std::vector<std::optional<label_place>> made;
  for (const auto& each : wanted) {
    made.push_back(find(each));
    if (made.back()) taken.push_back(made.back()->where);
  }
  return made;
}

}  // namespace sluice::lab::page
