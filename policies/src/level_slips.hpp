#pragma once
/// \file
/// Values for priorities that no group has are most often a slip of the pen, or priorities that
/// nobody has set.

#include "rounds.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/parameters.hpp"
#include "sluice/policy.hpp"

namespace sluice {

/// Says once that none of `key.0` to `key.15` that were given has fitted a group.
class level_slips {
 public:
  /// \param values have passed read_levels().
  level_slips(const parameters& values, const std::string& key) {
    values.for_each_below(key, [&](std::string_view rest, const parameter_value&) {
      std::from_chars(rest.data(), rest.data() + rest.size(), levels_.emplace_back());
      text_ += (text_.empty() ? "" : ", ") + key + "." + std::string(rest);
    });
    text_ +=
        ": no effect in {} choices of a group: no offline group has this priority "
        "(AMD_QUEUE_PRIORITY)";
  }

  /// At each choice.
  void look(const std::vector<rounds::contender>& groups, decision_sink& out) {
    if (levels_.empty() || groups.empty()) return;
    const bool fits = std::any_of(groups.begin(), groups.end(), [&](const auto& one) {
      const unsigned level = std::min<unsigned>(one.view->priority, 15);
      return std::find(levels_.begin(), levels_.end(), level) != levels_.end();
    });
    if (!fits && ++choices_ < enough) return;
    if (!fits) out.note(text_, std::array{static_cast<double>(choices_)});
    levels_.clear();
  }

 private:
  static constexpr std::uint32_t enough = 100;

  std::vector<unsigned> levels_;  ///< Empty: there is nothing more to say.
  std::string text_;
  std::uint32_t choices_ = 0;
};

}  // namespace sluice
