#include "sluice/check.hpp"

#include <fstream>

namespace sluice {

std::optional<std::string> machine::first_line(const std::string& path) const {
  std::ifstream file{prefix + path};
  std::string line;
  if (!std::getline(file, line)) return {};
  return line;
}

}  // namespace sluice
