#pragma once
/// \file
/// What charts are made of: text, axes with their ticks, and labels that do not lie on each other.

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace sluice::lab::page {

/// Appends.
template <class... Args>
void add(std::string& to, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(to), text, std::forward<Args>(args)...);
}

/// For HTML, inside elements and inside quoted attributes. Bytes that HTML cannot hold (no UTF-8,
/// control characters) are replaced by U+FFFD.
std::string escaped(std::string_view text);
/// For JSON, with its quotes. What is no UTF-8 is replaced likewise.
std::string quoted(std::string_view text);

/// With so many decimals at most, without trailing zeros, as "12.5"; never "-0".
std::string decimal(double value, int decimals = 1);
/// With three or four significant digits and a unit: "46.1 ms", "4.43 s".
std::string time_text(double ms);

/// Values on a line of the drawing.
struct axis {
  double low = 0, high = 1;  ///< Different; positive when logarithmic.
  bool logarithmic = false;
  double from = 0, to = 1;  ///< Where these are drawn.

  double at(double value) const;
  /// Between from and to, where the value is outside.
  double clamped(double value) const;
};

/// Round values from low to high, ascending: 1, 2 or 5 times a power of ten. At least two, and
/// `most` or fewer. \param most at least 2.
std::vector<double> ticks(const axis& of, std::size_t most);

/// An axis whose ends leave some room around the values.
axis around(const std::vector<double>& values, bool logarithmic, double from, double to);

struct box {
  double x = 0, y = 0, width = 0, height = 0;
  bool overlaps(const box& other) const {
    return x < other.x + other.width && other.x < x + width && y < other.y + other.height &&
           other.y < y + height;
  }
};

struct label_wanted {
  double x = 0, y = 0;  ///< What it names.
  double width = 0, height = 0;
};
struct label_place {
  box where;
  bool apart = false;  ///< Not beside its point: draw a line to it.
};
/// A place as near to each one's point as there is, inside `bounds`, on no other label, no point
/// and nothing of `taken`; those that come first choose first. Empty where there is none.
std::vector<std::optional<label_place>> place_labels(const std::vector<label_wanted>& wanted,
                                                     const box& bounds, std::vector<box> taken);

}  // namespace sluice::lab::page
