#include "sluice/lab/page.hpp"

#include "charts.hpp"
#include "drawing.hpp"
#include "page_assets.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace sluice::lab::page {
namespace {

/// Of a section: all facets, or those in which it differs from others.
std::string title_of(const document& of, const section& what, bool all) {
  std::string made;
  for (const auto& [key, value] : what.facets) {
    const bool varies = std::any_of(
        of.sections.begin(), of.sections.end(), [&, &k = key, &v = value](const auto& other) {
          return std::none_of(other.facets.begin(), other.facets.end(), [&](const auto& each) {
            return each.first == k && each.second == v;
          });
        });
    if (!all && !varies) continue;
    add(made, "{}<span class=\"facet\"><small>{}</small> {}</span>", made.empty() ? "" : " ",
        escaped(key), escaped(value));
  }
  return made;
}

/// Links to all sections, with a small picture of each where there are several.
std::string contents(const document& what, const cast& who) {
  if (what.sections.size() < 2) return {};
  std::vector<const frontier*> trades;
  for (const auto& each : what.sections) {
    if (each.trade) trades.push_back(&*each.trade);
  }
  std::string made = "<nav id=\"contents\" aria-label=\"Contents\"><h2>Overview</h2>\n";
  if (!trades.empty()) {
    add(made,
        "<p>Vertical: {}. Horizontal: {}. All pictures have the same axes. Select a picture for "
        "details.</p>\n",
        escaped(trades[0]->y_title), escaped(trades[0]->x_title));
  }
  made += "<div class=\"cards\">\n";
  const extent shown = extent_of(trades);
  for (std::size_t i = 0; i < what.sections.size(); ++i) {
    const auto& each = what.sections[i];
    add(made, "<a class=\"card\" href=\"#s{}\"><span>{}</span>{}</a>\n", i + 1,
        title_of(what, each, false),
        each.trade ? draw_small(*each.trade, who, shown) : std::string());
  }
  return made + "</div></nav>\n";
}

std::string draw(const document& of, const section& what, std::size_t number, const cast& who) {
  std::string made =
      fmt::format("<section id=\"s{}\"><h2>{}{}</h2>\n", number, title_of(of, what, true),
                  of.sections.size() > 1 ? " <a class=\"up\" href=\"#contents\">overview</a>" : "");
  if (!what.summary.empty()) add(made, "<p class=\"summary\">{}</p>\n", escaped(what.summary));
  if (what.trade) made += draw(*what.trade, who);
  made += "<div class=\"figures\">\n";
  for (const auto& each : what.distributions) made += draw(each, who);
  made += "</div>\n";
  for (const auto& each : what.grids) made += draw(each, who);
  if (what.figures) made += draw(*what.figures, who);
  if (what.events) made += draw(*what.events, who);
  return made + "</section>\n";
}

}  // namespace

std::vector<duration> quantiles_of(std::vector<duration> samples) {
  std::vector<duration> made;
  if (samples.empty()) return made;
  std::sort(samples.begin(), samples.end());
  const auto number = static_cast<double>(samples.size());
  for (std::size_t i = 0;; ++i) {
    // Rounding must not make a rank of what is a hair above a whole number.
    const double beyond = number * std::pow(10, -static_cast<double>(i) / quantiles_per_decade);
    const auto rank = static_cast<std::size_t>(std::max(std::ceil(number - beyond - 1e-9), 1.0));
    made.push_back(samples[rank - 1]);
    if (rank == samples.size()) return made;
  }
}

std::string shell_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c > 0x7F; };
    const bool quoted =
        word.empty() || !std::all_of(word.begin(), word.end(), [&](char c) {
          return plain(static_cast<unsigned char>(c)) || std::strchr("_./:=,+@%-", c) != nullptr;
        });
    if (!text.empty()) text += ' ';
    if (quoted) text += '\'';
    for (const char each : word) text += each == '\'' ? std::string("'\\''") : std::string(1, each);
    if (quoted) text += '\'';
  }
  return text;
}

std::string render(const document& what) {
  const cast who(what.actors);
  const std::string title = escaped(what.title);
  std::string made = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>{}</title>\n<style>\n",
      title);
  made += style_sheet;
  made += who.style();
  add(made,
      "</style>\n</head>\n<body>\n<header>\n<p class=\"notice\">{}</p>\n<h1>{}</h1>\n"
      "<div class=\"command\"><pre><code>{}</code></pre><button type=\"button\" class=\"js-only "
      "copy\">copy</button></div>\n",
      escaped(what.notice), title, escaped(what.command));
  if (!what.facts.empty()) {
    made += "<dl>\n";
    for (const auto& [key, value] : what.facts) {
      add(made, "<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(key), escaped(value));
    }
    made += "</dl>\n";
  }
  made += "</header>\n<div class=\"legend\" role=\"group\" aria-label=\"Legend\">\n";
  for (std::size_t i = 0; i < what.actors.size(); ++i) {
    const std::string name = escaped(what.actors[i].name);
    add(made,
        "<button type=\"button\" class=\"key keep a{}\" data-who=\"{}\" aria-pressed=\"true\" "
        "title=\"{}\">{}<span>{}</span></button>\n",
        i, i, name, who.swatch(i), name);
  }
  made += "</div>\n";
  made += contents(what, who);
  made += "<main>\n";
  for (std::size_t i = 0; i < what.sections.size(); ++i) {
    made += draw(what, what.sections[i], i + 1, who);
  }
  made += "</main>\n";
  if (!what.notes.empty()) {
    made += "<footer>\n";
    for (const auto& each : what.notes) add(made, "<p>{}</p>\n", escaped(each));
    made += "</footer>\n";
  }
  made += "<script>\n";
  made += script;
  return made + "</script>\n</body>\n</html>\n";
}

}  // namespace sluice::lab::page
