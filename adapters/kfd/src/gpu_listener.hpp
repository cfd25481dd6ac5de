#pragma once
/// \file
/// Listens to the SMI events of all GPUs, as far as the driver lets this process.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/smi_events.hpp"

namespace sluice::kfd {

/// How many events of each kind were heard, by smi_kind.
using smi_counts = std::array<std::atomic<std::uint64_t>, 14>;

/// Threading: one thread.
/// Lifetime:  `heard` outlives it.
class gpu_listener {
 public:
  /// `waits` is an epoll descriptor to which the streams are added, with data from `first` on.
  gpu_listener(std::string device, int waits, std::uint64_t first, smi_counts& heard)
      : device_(std::move(device)), waits_(waits), first_(first), heard_(heard) {}

  /// Opens the streams of GPUs not tried before. That the driver gives none is no error. The device
  /// is open only meanwhile, for an open one would keep the driver from being unloaded.
  void listen(std::span<const gpu_id> gpus);
  /// The driver is another one: try every GPU again with the next listen().
  void forget() {
    tried_.clear();
    streams_.clear();
  }

  /// Whether epoll data is of a stream.
  bool owns(std::uint64_t data) const noexcept { return data >= first_; }
  /// Takes what the stream has. Calls `reset(gpu)` for each GPU that was, or is about to be, reset.
  /// \return whether a process began, ended or faulted.
  bool hear(std::uint64_t data, const std::function<void(gpu_id)>& reset);

 private:
  struct stream {
    std::uint64_t data = 0;
    std::uint64_t mask = 0;
    std::unique_ptr<smi_stream> lines;
  };
  void open(const device& node, gpu_id gpu, std::uint64_t mask);

  const std::string device_;
  const int waits_;
  const std::uint64_t first_;
  smi_counts& heard_;
  std::uint64_t opened_ = 0;
  std::vector<gpu_id> tried_{};
  std::vector<stream> streams_{};
};

}  // namespace sluice::kfd
