#pragma once
/// \file
/// "name:key=value,key=value" on a command line: a choice among kinds that have parameters.

#include <string>
#include <string_view>
#include <vector>

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

/// What there is to choose from, for help texts and messages.
struct choice_kind {
  std::string_view name;
  std::string_view summary;
  std::vector<parameter> schema;
};

/// Finds the kind and checks the values against its schema, with defaults filled in.
/// \param what "--arrivals", for messages.
checked<std::size_t> resolve(choice& given, const std::vector<choice_kind>& kinds,
                             std::string_view what);

/// A few lines that say what there is, for --help.
std::string describe(const std::vector<choice_kind>& kinds);

}  // namespace sluice::lab
