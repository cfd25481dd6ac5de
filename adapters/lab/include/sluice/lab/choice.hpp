#pragma once
/// \file
/// "name:key=value,key=value" on a command line, taken apart.

#include <string>
#include <string_view>

#include "sluice/lab/checked.hpp"
#include "sluice/parameters.hpp"

namespace sluice::lab {

/// The parts of the text; values are numbers, true, false or texts, not yet checked.
struct choice {
  std::string text;  ///< As it was given.
  std::string name;
  parameters values;
};
/// Errors: one sentence.
checked<choice> parse_choice(std::string_view text);
/// The same of "key=value,key=value"; its name is empty.
checked<choice> parse_values(std::string_view text);

}  // namespace sluice::lab
