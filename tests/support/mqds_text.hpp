#pragma once
/// \file
/// debugfs `mqds` as the driver prints it for one compute queue of one process.

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace sluice::test {

struct mqd_text {
  std::uint32_t gpu = 0x1234;
  std::uint64_t ring_base = 0;  ///< In whole pages of 256 bytes.
  unsigned priority = 7;
  std::uint64_t read_pointer = 0;  ///< Where it is.
  std::uint64_t write_pointer = 0;
};

inline std::string mqds_text(pid_t pid, const mqd_text& queue) {
  std::vector<std::uint32_t> words(512);
  const auto put = [&words](std::size_t at, std::uint64_t value) {
    words[at] = static_cast<std::uint32_t>(value);
    words[at + 1] = static_cast<std::uint32_t>(value >> 32U);
  };
  words[0] = 0xC0310800;
  words[134] = queue.priority;
  put(136, queue.ring_base >> 8U);
  put(139, queue.read_pointer);
  put(141, queue.write_pointer);
  words[181] = 1;  // AQL
  char piece[64];
  std::snprintf(piece, sizeof(piece), "Process %d PASID 0x8001:\n  Compute queue on device %x\n",
                static_cast<int>(pid), queue.gpu);
  std::string text = piece;
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (at % 8 == 0) {
      std::snprintf(piece, sizeof(piece), "    %08x:", static_cast<unsigned>(at * 4));
      text += piece;
    }
    std::snprintf(piece, sizeof(piece), " %08x", words[at]);
    text += piece;
    if (at % 8 == 7) text += '\n';
  }
  return text;
}

}  // namespace sluice::test
