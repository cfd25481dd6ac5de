// The memory in which a process and a GPU tell each other of work, when it is anything: two pages
// of each mapping, of which each step stores some words before a look.

#include "fuzz.hpp"
#include "work_view.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace sluice;
using namespace sluice::nvidia;

constexpr gpu_id gpu{1};
constexpr std::uint64_t node_at = 0x10000000;
constexpr std::uint64_t control_at = 0x20000000;
constexpr std::uint64_t bytes = 2 * page_bytes;

using memory = std::array<std::uint32_t, 2 * page_words>;

struct store {
  std::uint8_t where;  ///< Bit 7: of the control device.
  std::uint8_t place;
  std::uint16_t value;
};

/// Where words of either kind are, so that they come up often enough.
std::size_t offset_of(const store& one) {
  constexpr std::size_t userd[] = {0x40, 0x44, 0x4c, 0x60, 0x88, 0x8c};
  if ((one.where & 0x80U) == 0)
    return ((one.place & 7U) * 512 + userd[one.where % 6]) / sizeof(std::uint32_t);
  return (one.place * 16U + (one.where & 3U) * 4U) / sizeof(std::uint32_t);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  memory node{};
  memory control{};
  work_view view;
  bool readable = true;
  const std::vector<device_mapping> both{{node_at, node_at + bytes, gpu},
                                         {control_at, control_at + bytes, gpu_id::none}};
  view.set_mappings(both);
  const words_reader read = [&](std::uint64_t at, std::span<std::uint32_t> into) {
    if (!readable) return false;
    const bool of_node = at < control_at;
    const std::uint64_t begin = of_node ? node_at : control_at;
    fuzz::require(at >= begin && at + into.size_bytes() <= begin + bytes,
                  "a look stays in the mappings");
    std::memcpy(into.data(), (of_node ? node : control).data() + (at - begin) / 4,
                into.size_bytes());
    return true;
  };
  // The time of a record must be one of these days.
  const auto now = static_cast<std::uint64_t>(
      std::chrono::nanoseconds{std::chrono::system_clock::now().time_since_epoch()}.count());
  time_point time{std::chrono::hours{1}};
  for (; size >= sizeof(store); data += sizeof(store), size -= sizeof(store)) {
    store one{};
    std::memcpy(&one, data, sizeof one);
    if ((one.where & 0x7cU) == 0x7cU) {
      readable = (one.value & 1U) == 0;
      if ((one.value & 2U) != 0) view.set_mappings({both[one.value >> 2U & 1U]});
      if ((one.value & 8U) != 0) view.set_mappings(both);
    } else if ((one.where & 0x80U) == 0) {
      node[offset_of(one)] = one.value;
    } else {
      control[offset_of(one)] = (one.where & 3U) == 3   ? static_cast<std::uint32_t>(now >> 32U)
                                : (one.where & 3U) == 1 ? 0
                                                        : one.value;
    }
    time += std::chrono::microseconds{100 << (one.where & 0xfU)};
    view.look(read, time);
    bool known = false;
    for (const auto& each : view.places()) {
      known = known || each.gpu == gpu;
      fuzz::require(each.waiting == 0 || each.work == online_work::waiting,
                    "what has not begun waits");
    }
    fuzz::require(known || view.places().empty(), "a place is on a GPU of the mappings");
    (void)view.why_unsure();
  }
  return 0;
}
