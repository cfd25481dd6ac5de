#pragma once
/// \file
/// A choice on a command line among kinds that have parameters.

#include <string>
#include <string_view>
#include <vector>

#include "sluice/lab/checked.hpp"
#include "sluice/lab/choice.hpp"
#include "sluice/parameters.hpp"

namespace sluice::lab {

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
