#pragma once
/// \file
/// `sluice hqds` without its command line: hardware queue slots, and whose they are.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <boost/json/value.hpp>

#include "sluice/kfd/hqds.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/node_view.hpp"

namespace sluice::cli {

struct slot_view {
  kfd::hqd slot;
  pid_t pid = 0;                 ///< 0: not known.
  std::string command{};         ///< Of that process.
  std::uint32_t ring_bytes = 0;  ///< 0: not known.
  std::uint32_t backlog = 0;     ///< Packets: write pointer less read pointer.
};

/// Taken slots without the driver's own. A slot is a process's where it names the queue's
/// descriptor (of a GPU with several XCCs the first one's does), or exactly one descriptor of its
/// GPU has that ring, and the vmid of its last save if that is known.
std::vector<slot_view> taken_slots(const kfd::hqds& slots, const kfd::mqds& queues,
                                   const node_view& node);

std::string hqds_text(const kfd::hqds& slots, const std::vector<slot_view>& taken,
                      const node_view& node, std::size_t width);
boost::json::value hqds_json(const kfd::hqds& slots, const std::vector<slot_view>& taken);

}  // namespace sluice::cli
