#pragma once
/// \file
/// How the online work is cut into kernels and steps.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sluice/time.hpp"

namespace demo {

using sluice::duration;

struct serving_options {
  duration decode_kernel = std::chrono::microseconds(100);   ///< A step is split into such kernels.
  duration prefill_kernel = std::chrono::microseconds(500);  ///< And a prefill into these.
  double decode_occupancy = 0.5;                             ///< Share of the GPU's wave slots.
  double prefill_occupancy = 1.0;
  duration host_gap = std::chrono::microseconds(200);  ///< Sampling, detokenising, batching.
  std::uint32_t most_active = 64;                      ///< Requests in one batch.
  /// How long after the window it goes on; what is unfinished then counts with its latency so far.
  duration drain_limit = std::chrono::seconds(6);

  void add_to(CLI::App& app);
  std::vector<std::string> arguments() const;
  std::string description() const;  ///< One line.
};

}  // namespace demo
