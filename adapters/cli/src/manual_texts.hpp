#pragma once
/// \file
/// What manual pages say beyond --help: examples, the keys and columns of what is looked at, what a
/// file is for.

#include <span>
#include <string_view>

namespace sluice::cli {

struct added_section {
  std::string_view page;   ///< "sluice-top", "sluice.toml".
  std::string_view title;  ///< "EXAMPLES".
  std::string_view text;   ///< Paragraphs; what is indented stands as it is.
};

/// In the order in which a page has them.
std::span<const added_section> added_sections();

}  // namespace sluice::cli
