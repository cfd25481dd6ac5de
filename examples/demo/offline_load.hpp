#pragma once
/// \file
/// The two shapes of offline work that the demo runs, as a stream of kernels from a seed.

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

#include "sluice/time.hpp"

namespace demo {

enum class load_kind {
  long_kernels,  ///< One queue, always filled: kernels of 20–200 ms that occupy the whole GPU.
  training,      ///< Three queues, kernels of 10 us–5 ms, and a host that works between steps.
};

/// "long" and "train".
std::string_view to_string(load_kind kind);
std::optional<load_kind> parse_load(std::string_view name);
/// One line that says what the load consists of.
std::string_view description(load_kind kind);

struct load_shape {
  std::uint32_t queues = 1;
  std::uint32_t depth = 4;             ///< Kernels in flight per queue.
  std::uint32_t kernels_per_step = 0;  ///< Per queue, then the host waits for all; 0 = never waits.
  sluice::duration gap_low{};          ///< Host work between two steps, uniform.
  sluice::duration gap_high{};
};
load_shape shape_of(load_kind kind);

struct drawn_kernel {
  sluice::duration length{};
  double occupancy = 1;  ///< Share of the GPU's wave slots.
};

/// The same seed gives the same kernels in the same order.
class kernel_stream {
 public:
  kernel_stream(load_kind kind, std::uint64_t seed) : kind_(kind), bits_(seed) {}
  drawn_kernel next();
  sluice::duration next_gap();

 private:
  double uniform(double low, double high);
  load_kind kind_;
  std::mt19937_64 bits_;
};

}  // namespace demo
