// debugfs `mqds` of 64 processes with 16 queues each (5.4 MB), in a file on tmpfs, whose content
// costs a copy and nothing else; the driver prints it, which takes longer. Figure:
// kfd::read_mqds(), which reads and parses. Floor: the same reads into a buffer of the same size,
// and nothing done with them.

#include "mqds_text.hpp"
#include "scratch_directory.hpp"
#include "series.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {
namespace {

constexpr int processes = 64;
constexpr int queues = 16;
constexpr std::uint64_t ring_size = 1U << 20U;

std::uint64_t ring_of(int process, int queue) {
  return 0x7f0000000000 + static_cast<std::uint64_t>(process * queues + queue) * ring_size;
}

std::string whole_text() {
  std::string text;
  for (int process = 0; process < processes; ++process) {
    for (int queue = 0; queue < queues; ++queue) {
      const std::uint64_t ring = ring_of(process, queue);
      const std::string one =
          test::mqds_text(1000 + process, {.gpu = static_cast<std::uint32_t>(0x1000 + process % 8),
                                           .ring_base = ring,
                                           .read_pointer = ring + 0x80,
                                           .write_pointer = ring + 0x38});
      // The process's line stands above the first of its queues only.
      text += queue == 0 ? one : one.substr(one.find('\n') + 1);
    }
  }
  return text;
}

bool right(const result<kfd::mqds>& seen) {
  if (!seen || seen->problems || seen->queues.size() != std::size_t{processes} * queues)
    return false;
  for (int i = 0; i < processes * queues; ++i) {
    const kfd::mqd& one = seen->queues[static_cast<std::size_t>(i)];
    const std::uint64_t ring = ring_of(i / queues, i % queues);
    if (one.pid != 1000 + i / queues || one.ring_base != ring ||
        one.write_pointer_address != ring + 0x38) {
      return false;
    }
  }
  return true;
}

/// \return how many bytes there are.
std::size_t read_alone(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, kfd::tree_read_size> piece;
  std::size_t all = 0;
  while (true) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got <= 0) break;
    all += static_cast<std::size_t>(got);
  }
  ::close(file);
  return all;
}

int measure(bool quick) {
  const scratch_directory where;
  const std::string text = whole_text();
  where.write("mqds", text);
  kfd::roots trees;
  trees.debugfs = where.path();
  series taken("mqds");
  series floor("mqds.read_alone");
  for (int i = 0; i < (quick ? 2 : 9); ++i) {
    for (int each = 0; each < (quick ? 5 : 25); ++each) {
      const time_point began = clock::now();
      const auto seen = kfd::read_mqds(trees);
      taken.add(clock::now() - began);
      const time_point again = clock::now();
      const std::size_t size = read_alone(where.path() + "/mqds");
      floor.add(clock::now() - again);
      if (right(seen) && size == text.size()) continue;
      std::fprintf(stderr, "mqds_read: what was read is not what was written\n");
      return 1;
    }
    taken.end_round();
    floor.end_round();
  }
  taken.print();
  floor.print();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  return sluice::bench::measure(argc > 1 && std::string_view(argv[1]) == "--quick");
} catch (const std::exception& problem) {
  std::fprintf(stderr, "mqds_read: %s\n", problem.what());
  return 1;
}
