#pragma once
/// \file
/// A Python file as a policy: it defines sluice_get_policy_plugin(), which gives the address of a
/// descriptor as sluice/plugin.h has it, made by ctypes (examples/custom_policy/sluice_policy.py
/// does that). For trying policies out; a turn costs tens of microseconds, and all of them share
/// one interpreter, so they take turns.
///
/// Why this way: libpython is loaded when a file asks for it and never otherwise, so that neither
/// the build nor the library needs it; ctypes' callbacks are C functions, so the rest is the same
/// code that plugins in any other language take. A Python process of its own would need a protocol,
/// and a round trip for every turn of a simulated hour.

#include <string>

#include "sluice/policy_kind.hpp"
#include "sluice/result.hpp"

namespace sluice::cli {

/// \param message on failure, one line that names file, line and what is wrong.
/// \return errc::bad_config; errc::not_supported when there is no libpython.
/// Threading: any thread. Lifetime: interpreter and file stay until the process ends.
result<policy_kind> load_python_policy(const std::string& path, std::string& message);

/// By the file's name: Python for .py, else a shared library.
result<policy_kind> load_policy_file(const std::string& path, std::string& message);

}  // namespace sluice::cli
