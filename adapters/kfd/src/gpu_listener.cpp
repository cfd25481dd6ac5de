#include "gpu_listener.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace sluice::kfd {

void gpu_listener::listen(std::span<const gpu_id> gpus) {
  std::unique_ptr<device> node;
  for (const gpu_id gpu : gpus) {
    if (std::ranges::find(tried_, gpu) != tried_.end()) continue;
    tried_.push_back(gpu);
    if (!node) {
      auto opened = device::open(device_, [](std::string_view) {});
      if (!opened) {
        tried_.assign(gpus.begin(), gpus.end());
        return;
      }
      node = std::move(*opened);
    }
    // Apart, for a name in the second kind of lines may be made to look like a line of the first.
    open(*node, gpu, smi_resets | smi_evictions | smi_all_processes);
    open(*node, gpu, smi_named | smi_all_processes);
  }
}

void gpu_listener::open(const device& node, gpu_id gpu, std::uint64_t mask) {
  auto lines = smi_stream::open(node, gpu, mask);
  if (!lines) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = first_ + opened_;
  if (::epoll_ctl(waits_, EPOLL_CTL_ADD, (*lines)->fd(), &event) != 0) return;
  ++opened_;
  streams_.push_back({event.data.u64, mask, std::move(*lines)});
}

bool gpu_listener::hear(std::uint64_t data, const std::function<void(gpu_id)>& reset) {
  const auto from = std::ranges::find(streams_, data, &stream::data);
  if (from == streams_.end()) return false;  // closed since epoll said so
  const auto events = from->lines->read();
  if (!events) {
    streams_.erase(from);  // epoll forgets a closed descriptor
    return false;
  }
  bool processes = false;
  for (const smi_event& each : *events) {
    const std::uint64_t bit = smi_bit(each.kind);
    if ((from->mask & bit) == 0) continue;  // made up by a name
    heard_[static_cast<std::size_t>(each.kind)].fetch_add(1, std::memory_order_relaxed);
    if ((bit & smi_resets) != 0) reset(from->lines->gpu());
    if ((bit & smi_named) != 0) processes = true;
  }
  return processes;
}

}  // namespace sluice::kfd
