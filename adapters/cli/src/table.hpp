#pragma once
/// \file
/// A table for people: aligned columns, no wider than the terminal where that is possible.

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::cli {

class table {
 public:
  enum class align { left, right };
  struct column {
    std::string title;
    align where = align::left;
    bool may_shrink = false;  ///< Texts are cut, marked by '~', where the table is too wide.
  };

  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}

  /// As many cells as there are columns; printable ASCII.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const noexcept { return rows_.empty(); }

  /// With a line of titles; each line ends with a newline and no blanks.
  /// \param width to keep to if it can be done; 0: any.
  std::string text(std::size_t width) const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice::cli
