#pragma once
/// \file
/// What takes long asks it again and again, and ends early.

#include <functional>

namespace sluice::nvidia {

/// Returns whether something else is to be done first. Null: nothing is.
using stop_function = std::function<bool()>;

}  // namespace sluice::nvidia
