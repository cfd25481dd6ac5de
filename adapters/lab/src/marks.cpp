#include "marks.hpp"

#include <algorithm>
#include <cstddef>
#include <variant>

namespace sluice::lab {

marked_spans marks_in(const scenario& what) {
  const bool tokens = what.clients && what.service == service_kind::continuous;
  marked_spans made{};
  made[static_cast<std::size_t>(span_kind::request)] = what.clients;
  made[static_cast<std::size_t>(span_kind::ttft)] = tokens;
  made[static_cast<std::size_t>(span_kind::itl)] = tokens;
  return made;
}

marked_spans marks_in(const recording& what) {
  marked_spans made{};
  for (const auto& each : what.entries) {
    if (const auto* const mark = std::get_if<rec::mark>(&each.what)) {
      made[static_cast<std::size_t>(mark->span)] = true;
    }
  }
  return made;
}

std::string unmet_need(const policy& who, const marked_spans& marked) {
  const auto needs = who.needs_marks();
  if (needs.empty() || std::any_of(needs.begin(), needs.end(), [&](span_kind each) {
        return marked[static_cast<std::size_t>(each)];
      })) {
    return "";
  }
  std::string text = "needs clients that mark the span ";
  for (std::size_t i = 0; i < needs.size(); ++i) {
    if (i != 0) text += i + 1 == needs.size() ? " or " : ", ";
    text += to_string(needs[i]);
  }
  return text;
}

}  // namespace sluice::lab
