#pragma once
/// \file
/// Text of /proc.

#include <fstream>
#include <sstream>
#include <string>

namespace sluice::test {

/// Returns what a file of a process contains. Empty if the process has ended, also in the midst of
/// the read: with the stream's own iterators, that throws.
inline std::string proc_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  return text.str();
}

}  // namespace sluice::test
