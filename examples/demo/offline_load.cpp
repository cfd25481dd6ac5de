#include "offline_load.hpp"

#include <cmath>

namespace demo {

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
             ? "1 queue kept 4 deep, kernels uniform 20-200 ms at full occupancy"
             : "3 queues, steps of 8 kernels each; 60 % 10-200 us, 30 % 0.2-1 ms, 10 % 1-5 ms at "
               "25-100 % occupancy; 0.5-1.5 ms of host work between steps";
}

load_shape shape_of(load_kind kind) {
  if (kind == load_kind::long_kernels) return {};
  return {.queues = 3, .depth = 8, .kernels_per_step = 8, .gap_low = 500us, .gap_high = 1500us};
}

double kernel_stream::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(bits_() >> 11) * 0x1p-53);
}

drawn_kernel kernel_stream::next() {
  auto between = [this](sluice::duration low, sluice::duration high) {
    return sluice::duration{
        std::llround(uniform(static_cast<double>(low.count()), static_cast<double>(high.count())))};
  };
  if (kind_ == load_kind::long_kernels) return {between(20ms, 200ms), 1.0};
  const double which = uniform(0, 1);
  const sluice::duration length = which < 0.6   ? between(10us, 200us)
                                  : which < 0.9 ? between(200us, 1ms)
                                                : between(1ms, 5ms);
  return {length, uniform(0.25, 1.0)};
}

sluice::duration kernel_stream::next_gap() {
  const load_shape shape = shape_of(kind_);
  return sluice::duration{std::llround(uniform(static_cast<double>(shape.gap_low.count()),
                                               static_cast<double>(shape.gap_high.count())))};
}

}  // namespace demo
