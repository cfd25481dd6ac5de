#include "charts.hpp"

#include "units.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace sluice::lab::page {
namespace {

// What the style sheet has: --c0 to --c5, --g0 to --g2.
constexpr std::size_t colours = 6;
constexpr std::size_t greys = 3;
constexpr std::size_t shapes = 6;

std::string percent(double share) { return decimal(100 * share) + " %"; }

/// Of what is n times as high.
std::string times_text(double value, double half_width) {
  return time_text(value) + (half_width > 0 ? " \xC2\xB1 " + time_text(half_width) : "");
}

using text_of = std::function<std::string(double)>;

/// Width of text of the style sheet's size, about.
double width_of(std::string_view text) {
  double width = 0;
  for (const char each : text) width += (static_cast<unsigned char>(each) & 0xC0) != 0x80 ? 6.7 : 0;
  return width;
}

/// The lines, ticks and titles of a chart whose axes these are.
std::string frame(const axis& x, const std::vector<double>& x_ticks, const text_of& x_text,
                  const axis& y, const std::vector<double>& y_ticks, const text_of& y_text) {
  std::string made = "<g class=\"grid\"><path d=\"";
  for (const double each : x_ticks) {
    add(made, "M{} {}V{}", decimal(x.at(each)), decimal(y.from), decimal(y.to));
  }
  for (const double each : y_ticks) {
    add(made, "M{} {}H{}", decimal(x.from), decimal(y.at(each)), decimal(x.to));
  }
  add(made, "\"/><path class=\"base\" d=\"M{} {}H{}\"/></g>\n<g class=\"tick\">", decimal(x.from),
      decimal(y.from), decimal(x.to));
  // A label that would touch the one before it is left out, also on small screens, whose letters
  // are larger.
  double free_from = 0;
  for (const double each : x_ticks) {
    const std::string label = x_text(each);
    const double half = width_of(label) * 1.25 / 2;
    if (x.at(each) - half < free_from) continue;
    free_from = x.at(each) + half + 6;
    add(made, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", decimal(x.at(each)),
        decimal(y.from + 18), label);
  }
  for (const double each : y_ticks) {
    add(made, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", decimal(x.from - 7),
        decimal(y.at(each) + 4), y_text(each));
  }
  return made + "</g>\n";
}

/// The one of y lies above it, so that it can be read.
std::string titles(const axis& x, std::string_view x_title, const axis& y,
                   std::string_view y_title) {
  return fmt::format(
      "<g class=\"axis\"><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>"
      "<text x=\"0\" y=\"{}\">{}</text></g>\n",
      decimal((x.from + x.to) / 2), decimal(y.from + 38), escaped(x_title), decimal(y.to - 10),
      escaped(y_title));
}

/// Between its points, as it is drawn.
double bound_at(const frontier& what, double latency) {
  const auto after = std::find_if(what.bound.begin(), what.bound.end(),
                                  [&](const auto& each) { return each.first >= latency; });
  if (after == what.bound.begin()) return after->second;
  if (after == what.bound.end()) return what.bound.back().second;
  const auto& [low, share] = *std::prev(after);
  return share + (after->second - share) * std::log(latency / low) / std::log(after->first / low);
}

void draw_bound(std::string& made, const frontier& what, const axis& x, const axis& y) {
  if (what.bound.empty() || what.bound.front().first >= x.high) return;
  // From its end on it does not fall.
  std::vector<std::pair<double, double>> seen;
  const double first = std::max(what.bound.front().first, x.low);
  seen.emplace_back(first, bound_at(what, first));
  for (const auto& each : what.bound) {
    if (each.first > first && each.first < x.high) seen.push_back(each);
  }
  seen.emplace_back(x.high, bound_at(what, x.high));
  std::string line;
  for (const auto& [latency, share] : seen) {
    add(line, "{}{} {}", line.empty() ? "M" : "L", decimal(x.at(latency)),
        decimal(y.clamped(share)));
  }
  add(made, "<path class=\"beyond\" d=\"{}V{}H{}Z\"/>", line, decimal(y.to), decimal(x.at(first)));
  add(made, "<path class=\"bound\" d=\"{}\"/>\n", line);
}

void draw_alone(std::string& made, const frontier& what, const axis& x, const axis& y) {
  if (!what.alone_ms || *what.alone_ms < x.low || *what.alone_ms > x.high) return;
  add(made, "<path class=\"alone\" d=\"M{} {}V{}\"/>\n", decimal(x.at(*what.alone_ms)),
      decimal(y.from), decimal(y.to));
}

std::string described(const frontier::point& one, const std::string& name) {
  std::string text = fmt::format("{}\np99 {}{}\noffline work {}", name, one.at_least ? ">= " : "",
                                 times_text(one.latency_ms.mean, one.latency_ms.half_width),
                                 percent(one.throughput.mean));
  if (one.throughput.half_width > 0) text += " \xC2\xB1 " + percent(one.throughput.half_width);
  text += " of offline work alone";
  if (one.most && *one.most > 0) {
    text += fmt::format("\n{} of the bound ({})", percent(one.throughput.mean / *one.most),
                        percent(*one.most));
  }
  return text;
}

const char* name_of(state what) {
  switch (what) {
    case state::runs: return "runs";
    case state::waits: return "waits";
    case state::suspending: return "suspending";
    case state::suspended: return "suspended";
    default: return "resuming";
  }
}

/// Milliseconds to the microsecond.
std::string fine(double value) { return decimal(value, 3); }

}  // namespace

std::string shortened(std::string_view text, std::size_t most) {
  std::size_t characters = 0, end = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (++characters == most) end = i;
  }
  if (characters <= most) return std::string(text);
  return std::string(text.substr(0, end)) + "\xE2\x80\xA6";
}

cast::cast(const std::vector<actor>& actors) : actors_(actors) {
  std::array<std::size_t, 2> next{};
  for (const actor& each : actors) places_.push_back(next[each.reference ? 1 : 0]++);
}

std::string cast::marker(std::size_t who, double x, double y, double radius) const {
  // Corners of one shape each, as shares of the radius.
  using corners = std::vector<std::pair<double, double>>;
  static const corners outlines[shapes] = {
      {},  // A circle.
      {{-.9, -.9}, {.9, -.9}, {.9, .9}, {-.9, .9}},
      {{0, -1.2}, {1.1, .8}, {-1.1, .8}},
      {{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}},
      {{0, 1.2}, {1.1, -.8}, {-1.1, -.8}},
      {{-.6, -1}, {.6, -1}, {1.2, 0}, {.6, 1}, {-.6, 1}, {-1.2, 0}}};
  const std::size_t place = places_[who];
  // Those that share a colour have other shapes.
  const corners& outline = outlines[(place + place / colours) % shapes];
  const char* const kind = actors_[who].reference ? "mark open" : "mark";
  if (outline.empty()) {
    return fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>", kind, decimal(x),
                       decimal(y), decimal(radius));
  }
  std::string d;
  for (const auto& [dx, dy] : outline) {
    add(d, "{}{} {}", d.empty() ? 'M' : 'L', decimal(x + dx * radius), decimal(y + dy * radius));
  }
  return fmt::format("<path class=\"{}\" d=\"{}Z\"/>", kind, d);
}

std::string cast::swatch(std::size_t who) const {
  return fmt::format(
      "<svg class=\"swatch a{}\" viewBox=\"0 0 30 14\" width=\"30\" height=\"14\" "
      "aria-hidden=\"true\"><path class=\"line\" d=\"M0 7H30\"/>{}</svg>",
      who, marker(who, 15, 7, 4.5));
}

std::string cast::style() const {
  constexpr const char* dashes[] = {"none", "7 3", "2 2.5", "9 3 2 3", "4 2", "1 4"};
  std::string made;
  for (std::size_t i = 0; i < actors_.size(); ++i) {
    const std::size_t place = places_[i];
    if (actors_[i].reference) {
      add(made, ".a{}{{--c:var(--g{});--d:{}}}\n", i, place % greys, dashes[place % 6]);
    } else {
      add(made, ".a{}{{--c:var(--c{});--d:{}}}\n", i, place % colours, dashes[place / colours % 6]);
    }
  }
  return made;
}

std::string draw(const distribution& what, const cast& who) {
  std::size_t longest = 0;
  std::vector<double> values;
  for (const auto& line : what.lines) {
    longest = std::max(longest, line.quantiles.size());
    for (const duration each : line.quantiles) values.push_back(ms(each));
  }
  if (longest < 2) return {};
  if (what.target) values.push_back(ms(*what.target));
  // To the right each percentile by how many decades it is away from the whole.
  const double decades = static_cast<double>(longest - 1) / quantiles_per_decade;
  const axis x{0, decades, false, 54, 412};
  const axis y = around(values, true, 262, 24);
  std::vector<double> x_ticks{0, std::log10(2.0)};
  for (int each = 1; each <= decades; ++each) x_ticks.push_back(each);
  const auto percentile = [](double at) {
    return at == 0 ? "min"
                   : "p" + decimal(100 - 100 * std::pow(10, -at),
                                   at < 2 ? 0 : static_cast<int>(at) - 2);
  };
  std::string made = fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg class=\"chart dist\" viewBox=\"0 0 420 306\" "
      "role=\"img\" aria-label=\"{}: latency by percentile\" data-x=\"{}\" data-step=\"{:.5f}\" "
      "data-decade=\"{}\">\n",
      escaped(what.title), escaped(what.title), decimal(x.from),
      (x.to - x.from) / static_cast<double>(longest - 1), quantiles_per_decade);
  made += frame(x, x_ticks, percentile, y, ticks(y, 8), time_text);
  made += titles(x, "percentile", y, "latency");
  if (what.target) {
    add(made,
        "<g class=\"target\"><path d=\"M{} {}H{}\"/><text x=\"{}\" y=\"{}\" "
        "text-anchor=\"end\">target {}</text></g>\n",
        decimal(x.from), decimal(y.at(ms(*what.target))), decimal(x.to), decimal(x.to),
        decimal(y.at(ms(*what.target)) - 5), time_text(ms(*what.target)));
  }
  for (const auto& line : what.lines) {
    std::string path, exact;
    for (std::size_t i = 0; i < line.quantiles.size(); ++i) {
      const double value = ms(line.quantiles[i]);
      add(path, "{}{} {}", i == 0 ? 'M' : 'L',
          decimal(x.at(static_cast<double>(i) / quantiles_per_decade)), decimal(y.clamped(value)));
      add(exact, "{}{:.5g}", i == 0 ? "" : " ", value);
    }
    if (line.quantiles.empty()) continue;
    add(made,
        "<g class=\"who a{}\"><path class=\"line\" d=\"{}\" data-values=\"{}\"/>"
        "<title>{}, {} samples</title></g>\n",
        line.who, path, exact, escaped(who.name(line.who)), line.samples);
  }
  return made + "<path class=\"cross\"/></svg></figure>\n";
}

extent extent_of(const std::vector<const frontier*>& what) {
  std::vector<double> latencies;
  double least = 1, most = 1;
  for (const frontier* const each : what) {
    if (each->alone_ms) latencies.push_back(*each->alone_ms);
    for (const auto& one : each->points) {
      const auto& [mean, half] = one.latency_ms;
      latencies.push_back(mean + half);
      if (half < mean) latencies.push_back(mean - half);
      least = std::min(least, one.throughput.mean - one.throughput.half_width);
      most = std::max(most, one.throughput.mean + one.throughput.half_width);
    }
    if (each->bound.empty()) continue;
    least = std::min(least, each->bound.front().second);
    // Enough of the bound to see where it goes.
    for (const auto& [latency, share] : each->bound) {
      latencies.push_back(latency);
      if (share >= 0.98 * each->bound.back().second || latency > 4 * each->bound[0].first) break;
    }
  }
  const axis made = around(latencies, true, 0, 1);
  // Points need no zero, but where it is near it shows how much there is.
  least = least < 0.3 ? 0 : std::floor(least * 10 - 0.4) / 10;
  return {made.low, made.high, least, most + (most - least) * 0.04};
}

namespace {

/// Around those that are judged, and what the bound allows them; empty where they fill the whole
/// anyway.
std::optional<extent> close_up(const frontier& what, const cast& who, const extent& whole) {
  std::vector<double> latencies, shares;
  for (const auto& one : what.points) {
    if (who.reference(one.who)) continue;
    latencies.push_back(one.latency_ms.mean);
    shares.push_back(one.throughput.mean);
    if (one.most) shares.push_back(*one.most);
  }
  if (latencies.size() < 2) return {};
  const axis x = around(latencies, true, 0, 1), y = around(shares, false, 0, 1);
  const extent made{x.low, x.high, std::max(y.low, 0.0), y.high};
  const bool narrow =
      std::log(made.high_ms / made.low_ms) < 0.5 * std::log(whole.high_ms / whole.low_ms);
  const bool low = made.most - made.least < 0.5 * (whole.most - whole.least);
  if (!narrow && !low) return {};
  return made;
}

std::string draw(const frontier& what, const cast& who, const extent& shown, std::string_view title,
                 std::string_view hint) {
  const axis x{shown.low_ms, shown.high_ms, true, 54, 548};
  const axis y{shown.least, shown.most, false, 322, 24};
  std::string made = fmt::format(
      "<figure><figcaption>{} <span class=\"hint\">{}</span></figcaption>\n"
      "<svg class=\"chart\" viewBox=\"0 0 560 366\" role=\"img\" aria-label=\"{} against {}\">\n",
      escaped(title), escaped(hint), escaped(what.y_title), escaped(what.x_title));
  made += frame(x, ticks(x, 8), time_text, y, ticks(y, 7), percent);
  draw_bound(made, what, x, y);
  draw_alone(made, what, x, y);
  made += titles(x, what.x_title, y, what.y_title);

  const auto inside = [&](const frontier::point& one) {
    return one.latency_ms.mean >= shown.low_ms && one.latency_ms.mean <= shown.high_ms &&
           one.throughput.mean >= shown.least && one.throughput.mean <= shown.most;
  };
  std::vector<const frontier::point*> points;
  std::vector<label_wanted> wanted;
  std::vector<std::string> labels;
  for (const auto& one : what.points) {
    if (!inside(one)) continue;
    points.push_back(&one);
    labels.push_back(shortened(who.name(one.who, one.name), 26));
    wanted.push_back(
        {x.at(one.latency_ms.mean), y.at(one.throughput.mean), width_of(labels.back()), 14});
  }
  // Labels keep off the lines.
  std::vector<box> lines;
  for (double px = x.from; px < x.to && !what.bound.empty(); px += 8) {
    const double latency =
        shown.low_ms * std::pow(shown.high_ms / shown.low_ms, (px - x.from) / (x.to - x.from));
    if (latency < what.bound.front().first) continue;
    const double share = bound_at(what, latency);
    if (share >= shown.least && share <= shown.most) lines.push_back({px, y.at(share) - 1, 8, 2});
  }
  const box bounds{x.from, y.to, x.to - x.from, y.from - y.to};
  auto off_all = lines;
  if (what.alone_ms && *what.alone_ms >= shown.low_ms && *what.alone_ms <= shown.high_ms) {
    off_all.push_back({x.at(*what.alone_ms) - 1, y.to, 2, y.from - y.to});
  }
  auto places = place_labels(wanted, bounds, off_all);
  // A point beside the upright line has its name across it rather than none.
  if (std::find(places.begin(), places.end(), std::nullopt) != places.end())
    places = place_labels(wanted, bounds, lines);
  std::string texts;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto& one = *points[i];
    const double px = wanted[i].x, py = wanted[i].y;
    const auto& [mean, half] = one.latency_ms;
    add(made, "<g class=\"who point a{}\"><title>{}</title>", one.who,
        escaped(described(one, who.name(one.who, one.name))));
    std::string bars;
    if (half > 0) {
      add(bars, "M{} {}H{}", decimal(x.clamped(mean - half)), decimal(py),
          decimal(x.clamped(mean + half)));
    }
    if (one.throughput.half_width > 0) {
      add(bars, "M{} {}V{}", decimal(px),
          decimal(y.clamped(one.throughput.mean - one.throughput.half_width)),
          decimal(y.clamped(one.throughput.mean + one.throughput.half_width)));
    }
    if (!bars.empty()) add(made, "<path class=\"bars\" d=\"{}\"/>", bars);
    if (one.most && *one.most <= shown.most) {
      const double top = y.clamped(*one.most);
      add(made, "<path class=\"room\" d=\"M{} {}V{}\"/><path class=\"cap\" d=\"M{} {}h12\"/>",
          decimal(px), decimal(py), decimal(top), decimal(px - 6), decimal(top));
    }
    if (places[i] && places[i]->apart) {
      const box& at = places[i]->where;
      add(made, "<path class=\"leader\" d=\"M{} {}L{} {}\"/>", decimal(px), decimal(py),
          decimal(std::clamp(px, at.x, at.x + at.width)),
          decimal(at.y > py ? at.y + 2 : at.y + at.height - 1));
    }
    made += who.marker(one.who, px, py) + "</g>\n";
    if (places[i]) {
      add(texts, "<text class=\"who label a{}\" x=\"{}\" y=\"{}\">{}</text>\n", one.who,
          decimal(places[i]->where.x), decimal(places[i]->where.y + 11), escaped(labels[i]));
    }
  }
  return made + texts + "</svg></figure>\n";
}

}  // namespace

std::string draw(const frontier& what, const cast& who) {
  const extent whole = extent_of({&what});
  std::string made =
      "<div class=\"figures two\">\n" + draw(what, who, whole, what.title, "upper left is better");
  if (const auto close = close_up(what, who, whole)) {
    made += draw(what, who, *close, "Enlarged part", "only the policies");
  }
  made += "</div>\n<p class=\"keys\">";
  if (!what.bound.empty())
    add(made, "<span><i class=\"k-bound\"></i>{}</span> ", escaped(what.bound_title));
  if (std::any_of(what.points.begin(), what.points.end(),
                  [](const auto& one) { return one.most.has_value(); })) {
    made += "<span><i class=\"k-room\"></i>distance from a row to its bound (bound%)</span> ";
  }
  if (what.alone_ms) {
    add(made, "<span><i class=\"k-alone\"></i>online alone, {}</span>", time_text(*what.alone_ms));
  }
  return made + "</p>\n";
}

std::string draw_small(const frontier& what, const cast& who, const extent& shown) {
  const axis x{shown.low_ms, shown.high_ms, true, 40, 254};
  const axis y{0, shown.most, false, 140, 6};
  std::string made = "<svg class=\"chart small\" viewBox=\"0 0 260 166\" aria-hidden=\"true\">\n";
  made += frame(x, ticks(x, 4), time_text, y, {0, 0.5, 1}, percent);
  draw_bound(made, what, x, y);
  draw_alone(made, what, x, y);
  for (const auto& one : what.points) {
    add(made, "<g class=\"who a{}\">{}</g>\n", one.who,
        who.marker(one.who, x.clamped(one.latency_ms.mean), y.clamped(one.throughput.mean), 4));
  }
  return made + "</svg>\n";
}

std::string draw(const heat_maps& what, const cast& who) {
  constexpr double left = 78, right = 8, top = 24, bottom = 46, width = 400, row = 34;
  const auto rows = static_cast<double>(what.rows.size());
  const double height = top + rows * row + bottom;
  const axis x{-0.5, static_cast<double>(what.columns.size()) - 0.5, false, left, width - right};
  const axis y{-0.5, rows - 0.5, false, top, top + rows * row};
  std::string made = fmt::format(
      "<figure><figcaption>{} <span class=\"hint\">{}</span>"
      "</figcaption>\n<p class=\"keys\">",
      escaped(what.title), escaped(what.help));
  add(made, "<span><i class=\"k-ramp{}\"></i>{} \xE2\x80\x93 {}{}{}</span>",
      what.bad.empty() ? "" : " both", escaped(what.good), escaped(what.middle),
      what.bad.empty() ? "" : " \xE2\x80\x93 ", escaped(what.bad));
  if (!what.line.empty()) {
    add(made, " <span><i class=\"k-turn\"></i>{}</span>", escaped(what.line_title));
  }
  made += "</p>\n<div class=\"maps\">\n";

  std::string line;
  for (std::size_t i = 0; i < what.line.size(); ++i) {
    if (std::isnan(what.line[i])) continue;
    const auto middle = static_cast<double>(i);
    const auto known = [&](std::size_t other) {
      return other < what.line.size() && !std::isnan(what.line[other]);
    };
    // To the edge, and halfway to a row where nothing is known.
    const std::string at = decimal(x.clamped(what.line[i]));
    if (known(i - 1)) {
      add(line, "L{} {}", at, decimal(y.at(middle)));
    } else {
      add(line, "M{} {}V{}", at, decimal(y.at(middle - 0.5)), decimal(y.at(middle)));
    }
    if (!known(i + 1)) add(line, "V{}", decimal(y.at(middle + 0.5)));
  }
  for (const auto& one : what.maps) {
    const std::string name = escaped(who.name(one.who, one.name));
    add(made,
        "<div class=\"map who a{}\"><h3>{}{}</h3><svg class=\"chart heat\" viewBox=\"0 0 {} {}\" "
        "role=\"img\" aria-label=\"{}: {}\">\n<g class=\"tick\">",
        one.who, who.swatch(one.who), name, decimal(width), decimal(height), name,
        escaped(what.title));
    for (std::size_t i = 0; i < what.columns.size(); ++i) {
      add(made, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
          decimal(x.at(static_cast<double>(i))), decimal(y.to + 16), escaped(what.columns[i]));
    }
    for (std::size_t i = 0; i < what.rows.size(); ++i) {
      add(made, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", decimal(left - 6),
          decimal(y.at(static_cast<double>(i)) + 4), escaped(what.rows[i]));
    }
    made += "</g>\n";
    const axis down{0, 1, false, y.to, y.from};
    made += titles(x, what.x_title, down, what.y_title);
    const double cell = x.at(1) - x.at(0);
    std::string numbers;
    for (std::size_t i = 0; i < one.fields.size(); ++i) {
      const auto& field = one.fields[i];
      const std::size_t down_by = i / what.columns.size();
      const double at_x = x.at(static_cast<double>(i % what.columns.size()));
      const double at_y = y.at(static_cast<double>(down_by));
      const double shade = std::clamp(field.shade.value_or(0), -1.0, 1.0);
      add(made,
          "<g><title>{}</title><rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
          "fill-opacity=\"{}\"/></g>\n",
          escaped(field.detail),
          !field.shade ? "unknown"
          : shade > 0  ? "bad"
                       : "good",
          decimal(at_x - cell / 2 + 1), decimal(at_y - row / 2 + 1), decimal(cell - 2),
          decimal(row - 2), decimal(field.shade ? 0.05 + 0.6 * std::abs(shade) : 1, 2));
      add(numbers, "<text x=\"{}\" y=\"{}\">{}</text>", decimal(at_x), decimal(at_y + 4),
          escaped(field.text));
    }
    if (!line.empty()) {
      add(made, "<path class=\"turn-edge\" d=\"{}\"/><path class=\"turn\" d=\"{}\"/>\n", line,
          line);
    }
    made += "<g class=\"numbers\">" + numbers + "</g>\n";
    made += "</svg></div>\n";
  }
  return made + "</div></figure>\n";
}

namespace {

std::string draw(const timeline& what, const timeline::lane& lane) {
  const double span = ms(what.end - what.begin);
  const auto place = [&](duration at) { return std::clamp(ms(at - what.begin), 0.0, span); };
  std::uint32_t peak = 0;
  std::string body;
  if (!lane.levels.empty()) {
    std::uint32_t before = 0;
    for (const auto& each : lane.levels) {
      if (each.at >= what.end) break;
      if (each.at >= what.begin) peak = std::max({peak, before, each.value});
      before = each.value;
    }
    peak = std::max(peak, before);
    // Upside down: 1 is nothing.
    std::string path;
    const auto height = [&](std::uint32_t value) {
      return decimal(1 - 0.7 * value / std::max(peak, 1u), 3);
    };
    std::uint32_t now = 0, drawn = 0;
    for (const auto& each : lane.levels) {
      if (each.at >= what.end) break;
      if (each.at >= what.begin) {
        if (path.empty()) {
          path = "M0 1V" + height(now);
          drawn = now;
        }
        if (each.value != drawn) {
          add(path, "H{}V{}", fine(place(each.at)), height(each.value));
          drawn = each.value;
        }
      }
      now = each.value;
    }
    if (path.empty()) path = "M0 1V" + height(now);
    add(body, "<path class=\"level\" data-peak=\"{}\" d=\"{}H{}V1Z\"/>", peak, path, fine(span));
  }
  std::array<std::string, states> paths;
  for (const auto& each : lane.intervals) {
    const double from = place(each.from), length = place(each.to) - from;
    if (length <= 0) continue;
    add(paths[static_cast<std::size_t>(each.what)], "M{} 0h{}v1h-{}z", fine(from), fine(length),
        fine(length));
  }
  for (std::size_t i = 0; i < states; ++i) {
    if (paths[i].empty()) continue;
    const char* const name = name_of(static_cast<state>(i));
    add(body, "<path class=\"s-{}\" data-state=\"{}\" d=\"{}\"/>", name, name, paths[i]);
  }
  std::string marks;
  for (const duration each : lane.instants) {
    if (each >= what.begin && each < what.end) add(marks, "M{} 0v.24", fine(place(each)));
  }
  if (!marks.empty()) add(body, "<path class=\"instants\" d=\"{}\"/>", marks);
  return fmt::format(
      "<div class=\"tl-row{}\"><span class=\"tl-name\">{}{}</span><svg class=\"lane\" viewBox=\"0 "
      "0 {} 1\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{}</svg></div>\n",
      lane.levels.empty() ? "" : " tall", escaped(lane.name),
      peak == 0 ? "" : fmt::format(" <small>up to {}</small>", peak), fine(span),
      escaped(lane.name), body);
}

}  // namespace

std::string draw(const timeline& what, const cast& who) {
  std::string axis_text;
  const double begin = ms(what.begin) / 1000, end = ms(what.end) / 1000;
  const axis x{begin, end, false, 0, 100};
  for (const double each : ticks(x, 11)) {
    add(axis_text, "<span style=\"left:{}%\">{} s</span>", decimal(x.at(each), 3),
        decimal(each, 6));
  }
  std::string made = fmt::format(
      "<figure class=\"wide\"><figcaption>{}</figcaption>\n<p class=\"keys\">"
      "<span><i class=\"k-level\"></i>online requests</span> <span><i "
      "class=\"k-instants\"></i>arrival of a request</span>",
      escaped(what.caption));
  for (std::size_t i = 0; i < states; ++i) {
    const char* const name = name_of(static_cast<state>(i));
    add(made, " <span><i class=\"k-state s-{}\"></i>{}</span>", name,
        static_cast<state>(i) == state::waits ? "waiting for the driver" : name);
  }
  add(made,
      "</p>\n<div class=\"tl\" tabindex=\"0\" role=\"group\" aria-label=\"Timeline\" "
      "data-begin=\"{}\" data-span=\"{}\">\n<div class=\"tl-bar js-only\">"
      "<button type=\"button\" data-do=\"in\" title=\"Zoom in (+)\">+</button>"
      "<button type=\"button\" data-do=\"out\" title=\"Zoom out (-)\">\xE2\x88\x92</button>"
      "<button type=\"button\" data-do=\"left\" title=\"Earlier (left)\">\xE2\x97\x80</button>"
      "<button type=\"button\" data-do=\"right\" title=\"Later (right)\">\xE2\x96\xB6</button>"
      "<button type=\"button\" data-do=\"all\" title=\"Show all (0)\">all</button>"
      "<output></output><span class=\"hint\">drag to move; to zoom, turn the wheel with Ctrl or "
      "after a click; keys: + \xE2\x88\x92 0 \xE2\x86\x90 \xE2\x86\x92</span></div>\n",
      fine(ms(what.begin)), fine(ms(what.end - what.begin)));
  for (const auto& track : what.tracks) {
    add(made, "<div class=\"tl-track who a{}\"><h3>{}{} <small>{}</small></h3>\n", track.who,
        who.swatch(track.who), escaped(who.name(track.who)), escaped(track.note));
    for (const auto& lane : track.lanes) made += draw(what, lane);
    add(made,
        "<div class=\"tl-row\"><span class=\"tl-name\"></span><div class=\"tl-axis\">{}"
        "</div></div>\n</div>\n",
        axis_text);
  }
  return made + "</div></figure>\n";
}

std::string draw(const table& what, const cast& who) {
  std::string made =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\">"
      "<table><thead><tr><th scope=\"col\"><span class=\"unseen\">row</span></th>";
  for (const auto& each : what.columns) {
    add(made, "<th scope=\"col\"><abbr title=\"{}\">{}</abbr></th>", escaped(each.help),
        escaped(each.title));
  }
  made += "</tr></thead><tbody>\n";
  for (const auto& row : what.rows) {
    add(made, "<tr class=\"who a{}\"><th scope=\"row\">{}{}</th>", row.who, who.swatch(row.who),
        escaped(who.name(row.who, row.name)));
    for (const auto& [text, spread] : row.cells) {
      add(made, "<td>{}{}</td>", escaped(text),
          spread.empty() ? "" : "<small>" + escaped(spread) + "</small>");
    }
    made += "</tr>\n";
  }
  return made + "</tbody></table></div>\n";
}

}  // namespace sluice::lab::page
