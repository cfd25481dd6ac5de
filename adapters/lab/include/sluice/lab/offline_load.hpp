#pragma once
/// \file
/// The shapes of offline work, as a stream of kernels from a seed.

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::lab {

enum class load_kind {
  long_kernels,  ///< One queue, always filled: kernels of 20–200 ms that occupy the whole GPU.
  training,      ///< Three queues, kernels of 10 us–5 ms, and a host that works between steps.
};

/// "long" and "train".
std::string_view to_string(load_kind kind);
std::optional<load_kind> parse_load(std::string_view name);
/// One line that says what the load consists of.
std::string_view description(load_kind kind);

/// Kernel lengths, uniform from `low` to `high`, of the draws up to `up_to` of all (0 to 1).
struct length_class {
  double up_to = 1;
  duration low{};
  duration high{};
};

/// What one process submits.
struct load_shape {
  std::uint32_t queues = 1;
  std::uint32_t depth = 4;             ///< Kernels in flight per queue.
  std::uint32_t kernels_per_step = 0;  ///< Per queue, then the host waits for all; 0 = never waits.
  duration gap_low{};                  ///< Host work between two steps, uniform.
  duration gap_high{};
  std::vector<length_class> lengths;  ///< Ascending in up_to; the last one's is 1.
  double occupancy_low = 1;           ///< Share of the GPU's wave slots, uniform.
  double occupancy_high = 1;
};
load_shape shape_of(load_kind kind);

struct drawn_kernel {
  duration length{};
  double occupancy = 1;  ///< Share of the GPU's wave slots.
};

/// The same seed gives the same kernels in the same order.
class kernel_stream {
 public:
  kernel_stream(load_shape shape, std::uint64_t seed) : shape_(std::move(shape)), bits_(seed) {}
  drawn_kernel next();
  duration next_gap();
  const load_shape& shape() const { return shape_; }

 private:
  double uniform(double low, double high);
  duration between(duration low, duration high);
  load_shape shape_;
  std::mt19937_64 bits_;
};

}  // namespace sluice::lab
