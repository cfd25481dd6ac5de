#include "failure_listener.hpp"

#include <cstddef>
#include <utility>

namespace sluice::kfd {
namespace {

constexpr std::size_t most_failures = 64;

}  // namespace

void failure_listener::listen(gpu_id gpu) {
  const auto [made, fresh] = ears_.try_emplace(gpu);
  if (!fresh) return;
  if (auto opened = smi_stream::open(node_, gpu, smi_resets))
    made->second.lines = std::move(*opened);
}

std::vector<gpu_id> failure_listener::hear() {
  std::vector<gpu_id> reset;
  for (auto& [gpu, ear] : ears_) {
    if (!ear.lines) continue;
    const auto events = ear.lines->read();
    if (!events) {
      ear.lines.reset();
      continue;
    }
    for (const smi_event& each : *events) {
      if ((smi_bit(each.kind) & smi_resets) == 0) continue;
      const bool begins = each.kind == smi_kind::gpu_pre_reset;
      // The end of a reset is another one's only where its beginning was not heard.
      if (begins || !ear.in_reset) {
        note({gpu, breaker_cause::reset});
        reset.push_back(gpu);
      }
      ear.in_reset = begins;
    }
  }
  return reset;
}

void failure_listener::note(gpu_failure what) {
  ++failed_[what.gpu];
  // The list is bounded, for the caller may never take it.
  if (failures_.size() < most_failures) failures_.push_back(what);
}

}  // namespace sluice::kfd
