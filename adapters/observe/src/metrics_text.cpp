#include "metrics_text.hpp"

#include "seconds.hpp"

#include <spdlog/fmt/fmt.h>

namespace sluice::observe {
namespace {

std::string_view word_of(metric_type type, metrics_form form) {
  switch (type) {
    case metric_type::counter: return "counter";
    case metric_type::gauge: return "gauge";
    case metric_type::histogram: return "histogram";
    case metric_type::info: break;
  }
  return form == metrics_form::openmetrics ? "info" : "gauge";
}

std::string_view suffix_of(metric_type type) {
  if (type == metric_type::counter) return "_total";
  return type == metric_type::info ? "_info" : "";
}

void append_label(std::string& to, std::string_view name, std::string_view value) {
  to += to.back() == '{' ? "" : ",";
  to += name;
  to += "=\"";
  for (const char each : value) {
    const auto code = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\') to += '\\';
    // Names come from strangers and may be no UTF-8.
    to += code < 0x20 || code >= 0x7f ? '?' : each;
  }
  to += '"';
}

}  // namespace

void metrics_text::family(std::string_view name, metric_type type, std::string_view help) {
  name_ = name;
  type_ = type;
  const std::string_view suffix = form_ == metrics_form::openmetrics ? "" : suffix_of(type);
  text_ += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", name, suffix, help,
                       word_of(type, form_));
}

void metrics_text::begin_sample(std::string_view suffix, labels with, std::string_view bound) {
  text_ += name_;
  text_ += suffix;
  if (with.size() != 0 || !bound.empty()) {
    text_ += '{';
    for (const auto& [name, value] : with) append_label(text_, name, value);
    if (!bound.empty()) append_label(text_, "le", bound);
    text_ += '}';
  }
  text_ += ' ';
}

void metrics_text::sample(labels with, std::uint64_t value) {
  begin_sample(suffix_of(type_), with);
  text_ += fmt::format("{}\n", value);
}

void metrics_text::sample(labels with, double value) {
  begin_sample(suffix_of(type_), with);
  text_ += fmt::format("{}\n", value);
}

void metrics_text::buckets(labels with, std::span<const std::string_view> words,
                           std::span<const std::uint64_t> counts, std::uint64_t all, duration sum) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    begin_sample("_bucket", with, words[i]);
    text_ += fmt::format("{}\n", counts[i]);
  }
  begin_sample("_bucket", with, "+Inf");
  text_ += fmt::format("{}\n", all);
  begin_sample("_count", with);
  text_ += fmt::format("{}\n", all);
  begin_sample("_sum", with);
  text_ += fmt::format("{}\n", seconds(sum));
}

std::string metrics_text::take() {
  if (form_ == metrics_form::openmetrics) text_ += "# EOF\n";
  return std::move(text_);
}

}  // namespace sluice::observe
