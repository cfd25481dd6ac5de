#pragma once
/// \file
/// What the demo measured as one HTML page, the one that `sluice lab --report` makes.

#include "demo_report.hpp"

#include <string>
#include <vector>

namespace demo {

struct page_head {
  std::string profile;
  std::string command;   ///< What was run.
  std::string arrivals;  ///< arrival_options::description().
};

/// \param reports one for each offline load.
std::string page(const page_head& head, const std::vector<load_report>& reports);

}  // namespace demo
