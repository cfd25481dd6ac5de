#pragma once
/// \file
/// What every page has in it besides its charts.

#include <string_view>

namespace sluice::lab::page {

extern const std::string_view style_sheet;
extern const std::string_view script;

}  // namespace sluice::lab::page
