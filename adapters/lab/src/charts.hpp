#pragma once
/// \file
/// The charts of a page, each as a piece of HTML that needs page_assets' style sheet.

#include "drawing.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/lab/page.hpp"

namespace sluice::lab::page {

/// Who is compared, and what they look like.
class cast {
 public:
  explicit cast(const std::vector<actor>& actors);

  std::size_t size() const { return actors_.size(); }
  bool reference(std::size_t who) const { return actors_[who].reference; }
  const std::string& name(std::size_t who, const std::string& other = {}) const {
    return other.empty() ? actors_[who].name : other;
  }
  /// A path around the point.
  std::string marker(std::size_t who, double x, double y, double radius = 5) const;
  /// Line and marker, for legends and tables.
  std::string swatch(std::size_t who) const;
  /// The rules that give each its colour and dashes: an element of class a0, a1, ... has them.
  std::string style() const;

 private:
  const std::vector<actor>& actors_;
  std::vector<std::size_t> places_;  ///< Among its like: judged ones, or references.
};

/// Cut where it is longer.
std::string shortened(std::string_view text, std::size_t most);

std::string draw(const distribution& what, const cast& who);
/// And once more what is judged, larger, where it lies close together.
std::string draw(const frontier& what, const cast& who);
/// Latencies, ms, and throughputs that charts show.
struct extent {
  double low_ms = 1, high_ms = 10;
  double least = 0, most = 1;
};
extent extent_of(const std::vector<const frontier*>& what);
/// Without labels, for comparison with others of the same extent.
std::string draw_small(const frontier& what, const cast& who, const extent& shown);
std::string draw(const heat_maps& what, const cast& who);
std::string draw(const timeline& what, const cast& who);
std::string draw(const table& what, const cast& who);

}  // namespace sluice::lab::page
