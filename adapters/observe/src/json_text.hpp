#pragma once
/// \file
/// JSON, written piece by piece: what is written here is flat and goes into a buffer that is kept.

#include <string>
#include <string_view>

namespace sluice::observe {

/// Appends the text in quotes, as ASCII: bytes beyond that come from strangers and may be no UTF-8.
void append_quoted(std::string& to, std::string_view text);

}  // namespace sluice::observe
