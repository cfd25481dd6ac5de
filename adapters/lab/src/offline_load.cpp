#include "sluice/lab/offline_load.hpp"

#include <cmath>

namespace sluice::lab {

using namespace std::chrono_literals;

std::string_view to_string(load_kind kind) {
  return kind == load_kind::long_kernels ? "long" : "train";
}

std::optional<load_kind> parse_load(std::string_view name) {
  if (name == "long") return load_kind::long_kernels;
  if (name == "train") return load_kind::training;
  return std::nullopt;
}

std::string_view description(load_kind kind) {
  return kind == load_kind::long_kernels
             ? "1 queue with 4 kernels in flight; kernels of 20-200 ms, uniformly distributed, "
               "full occupancy"
             : "3 queues, steps of 8 kernels each; 60 % of the kernels take 10-200 us, "
               "30 % 0.2-1 ms, 10 % 1-5 ms; occupancy 25-100 %; 0.5-1.5 ms of host work between "
               "steps";
}

load_shape shape_of(load_kind kind) {
  if (kind == load_kind::long_kernels) return {.lengths = {{1, 20ms, 200ms}}};
  return {.queues = 3,
          .depth = 8,
          .kernels_per_step = 8,
          .gap_low = 500us,
          .gap_high = 1500us,
          .lengths = {{0.6, 10us, 200us}, {0.9, 200us, 1ms}, {1, 1ms, 5ms}},
          .occupancy_low = 0.25};
}

double kernel_stream::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(bits_() >> 11) * 0x1p-53);
}

duration kernel_stream::between(duration low, duration high) {
  return duration{
      std::llround(uniform(static_cast<double>(low.count()), static_cast<double>(high.count())))};
}

drawn_kernel kernel_stream::next() {
  const length_class* of = &shape_.lengths.front();
  if (shape_.lengths.size() > 1) {
    const double which = uniform(0, 1);
    while (which >= of->up_to && of != &shape_.lengths.back()) ++of;
  }
  const duration length = between(of->low, of->high);
  const double occupancy = shape_.occupancy_low < shape_.occupancy_high
                               ? uniform(shape_.occupancy_low, shape_.occupancy_high)
                               : shape_.occupancy_high;
  return {length, occupancy};
}

duration kernel_stream::next_gap() { return between(shape_.gap_low, shape_.gap_high); }

}  // namespace sluice::lab
