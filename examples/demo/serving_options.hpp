#pragma once
/// \file
/// How the online work is cut into kernels and steps, on a command line.

#include "workload.hpp"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace demo {

struct serving_options : serving_shape {
  void add_to(CLI::App& app);
  std::vector<std::string> arguments() const;
  std::string description() const;  ///< One line.
};

}  // namespace demo
