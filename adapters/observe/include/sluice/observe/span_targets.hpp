#pragma once
/// \file
/// The latency targets that a policy was given.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "sluice/duration_text.hpp"
#include "sluice/span_kind.hpp"
#include "sluice/time.hpp"

namespace sluice::observe {

/// By span_kind: the time that 99 % of these spans take at most; zero: no target.
using span_targets = std::array<duration, span_kinds>;

/// Reads the parameters `request.p99`, `ttft.p99` and `itl.p99`.
/// Threading: any thread.
/// \param policy as a command line would name it: "slo:offline=0.1,request.p99=50ms".
inline span_targets targets_in(std::string_view policy) {
  span_targets made{};
  for (std::size_t k = 0; k < span_kinds; ++k) {
    const auto key = std::string(to_string(static_cast<span_kind>(k))) + ".p99=";
    const auto at = policy.find(key);
    if (at == policy.npos || at == 0 || (policy[at - 1] != ':' && policy[at - 1] != ',')) continue;
    const auto value = policy.substr(at + key.size());
    made[k] = parse_duration(value.substr(0, value.find(','))).value_or(duration{});
  }
  return made;
}

}  // namespace sluice::observe
