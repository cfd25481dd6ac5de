#pragma once
/// \file
/// A file that is always whole for whoever reads it.

#include <string>
#include <string_view>

#include "sluice/result.hpp"

namespace sluice::observe {

/// Writes PATH.tmp and renames it. Blocks on file operations; any thread.
/// \return the system's error; then what was there before stays.
[[nodiscard]] result<void> replace_text_file(const std::string& path, std::string_view text);

}  // namespace sluice::observe
