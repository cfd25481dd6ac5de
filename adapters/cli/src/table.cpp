#include "table.hpp"

#include <algorithm>
#include <numeric>

namespace sluice::cli {

namespace {

constexpr std::size_t gap = 2;
/// A shrunk column keeps this much.
constexpr std::size_t least = 6;

std::string cut(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  return text.substr(0, width - 1) + "~";
}

}  // namespace

std::string table::text(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = columns_[i].title.size();
    for (const auto& row : rows_) widest = std::max(widest, row[i].size());
    widths.push_back(widest);
  }
  const std::size_t gaps = gap * (columns_.size() - 1);
  std::size_t total = std::accumulate(widths.begin(), widths.end(), gaps);
  // The widest of those that may shrink gives first.
  while (width != 0 && total > width) {
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i].may_shrink || widths[i] <= std::max(least, columns_[i].title.size()))
        continue;
      if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
    --total;
  }

  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string made;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = cut(cell_of(i), widths[i]);
      const std::string blanks(widths[i] - cell.size(), ' ');
      if (i != 0) made.append(gap, ' ');
      made += columns_[i].where == align::right ? blanks + cell : cell + blanks;
    }
    made.erase(made.find_last_not_of(' ') + 1);
    out += made + "\n";
  };
  line([&](std::size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) line([&](std::size_t i) { return row[i]; });
  return out;
}

}  // namespace sluice::cli
