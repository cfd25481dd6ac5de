// A whole look at the queues of 64 processes with 64 queues each, three small files a queue, in a
// tree on tmpfs shaped as the driver's sysfs. Figure: kfd::list_queues(), which opens, reads and
// closes by plain system calls. Beside it the same files by io_uring: open into a slot of the ring,
// read, close, linked, 128 files a submission, then the same parsing. The files lie on tmpfs, which
// reads without blocking; the kernel's own sysfs may hand such reads to another thread, so both
// ways read as many attributes of this machine's sysfs as well.

#include "scratch_directory.hpp"
#include "series.hpp"
#include "sysfs.hpp"

#include <fcntl.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {
namespace {

constexpr int processes = 64;
constexpr int queues = 64;
constexpr std::size_t files = std::size_t{processes} * queues * 3;

/// Small files by io_uring.
class ring_reader {
 public:
  using text = std::array<char, 64>;

  ring_reader() {
    if (io_uring_queue_init(files_at_once * 3, &ring_, 0) != 0 ||
        io_uring_register_files_sparse(&ring_, files_at_once) != 0) {
      throw std::runtime_error("the kernel grants no ring with slots for files");
    }
  }
  ~ring_reader() { io_uring_queue_exit(&ring_); }
  ring_reader(const ring_reader&) = delete;
  ring_reader& operator=(const ring_reader&) = delete;

  /// \return how much of each there was; below zero: it cannot be read.
  std::vector<int> read(const std::vector<std::string>& paths, std::vector<text>& into) {
    std::vector<int> sizes(paths.size(), -1);
    into.resize(paths.size());
    for (std::size_t first = 0; first < paths.size(); first += files_at_once) {
      const std::size_t count = std::min<std::size_t>(files_at_once, paths.size() - first);
      for (std::size_t i = 0; i < count; ++i) add(paths[first + i], into[first + i], first, i);
      io_uring_submit_and_wait(&ring_, static_cast<unsigned>(3 * count));
      for (std::size_t done = 0; done < 3 * count; ++done) {
        io_uring_cqe* one = nullptr;
        if (io_uring_wait_cqe(&ring_, &one) != 0) throw std::runtime_error("the ring broke");
        if (one->user_data != 0) sizes[one->user_data - 1] = one->res;
        io_uring_cqe_seen(&ring_, one);
      }
    }
    return sizes;
  }

 private:
  static constexpr unsigned files_at_once = 128;

  void add(const std::string& path, text& into, std::size_t first, std::size_t slot) {
    const auto number = static_cast<unsigned>(slot);
    io_uring_sqe* one = io_uring_get_sqe(&ring_);
    io_uring_prep_openat_direct(one, AT_FDCWD, path.c_str(), O_RDONLY, 0, number);
    one->flags |= IOSQE_IO_LINK;
    one->user_data = 0;
    one = io_uring_get_sqe(&ring_);
    io_uring_prep_read(one, static_cast<int>(slot), into.data(), static_cast<unsigned>(into.size()),
                       0);
    // Shorter than asked for, as a small file always is, would break a plain link.
    one->flags |= IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;
    one->user_data = first + slot + 1;
    one = io_uring_get_sqe(&ring_);
    io_uring_prep_close_direct(one, number);
    one->user_data = 0;
  }

  io_uring ring_{};
};

/// As kfd::list_queues(), but for how files are read.
std::vector<kfd::listed_queue> list_by_ring(ring_reader& ring, const std::string& sysfs) {
  std::vector<kfd::listed_queue> found;
  std::vector<std::string> paths;
  for_each_numbered_entry<pid_t>(sysfs + "/proc", [&](pid_t pid) {
    const std::string directory = sysfs + "/proc/" + std::to_string(pid) + "/queues";
    for_each_numbered_entry<std::uint32_t>(directory, [&](std::uint32_t id, ino_t inode) {
      found.push_back({pid, driver_queue_id{id}, {}, inode});
      for (const char* leaf : {"/size", "/type", "/gpuid"}) {
        paths.push_back(directory + "/" + std::to_string(id) + leaf);
      }
    });
  });
  std::vector<ring_reader::text> texts;
  const auto sizes = ring.read(paths, texts);
  const auto text = [&](std::size_t at) {
    return std::string_view(texts[at].data(),
                            static_cast<std::size_t>(sizes[at] > 0 ? sizes[at] : 0));
  };
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto what = kfd::parse_sysfs_queue(text(3 * i), text(3 * i + 1), text(3 * i + 2));
    if (!what) return {};
    found[i].what = *what;
  }
  return found;
}

/// As many attributes of this machine's sysfs as there are files in the tree, again and again the
/// same ones; empty where there are none.
std::vector<std::string> own_attributes() {
  std::vector<std::string> some;
  for (const auto& each : std::filesystem::directory_iterator("/sys/devices/virtual/net/lo")) {
    const std::string path = each.path();
    std::array<char, 64> text;
    if (each.is_regular_file() && read_small_file(path.c_str(), text)) some.push_back(path);
  }
  for (std::size_t i = 0; !some.empty() && some.size() < files; ++i) some.push_back(some[i]);
  return some;
}

bool same(const std::vector<kfd::listed_queue>& seen) {
  if (seen.size() != std::size_t{processes} * queues) return false;
  for (const kfd::listed_queue& each : seen) {
    const auto id = static_cast<std::uint32_t>(each.id);
    if (each.what.ring_size != std::uint64_t{4096} * (id + 1) ||
        each.what.gpu != gpu_id{0x1000 + id % 8})
      return false;
  }
  return true;
}

int measure(bool quick) {
  const scratch_directory where;
  kfd::roots trees;
  trees.sysfs = where.path();
  for (int process = 0; process < processes; ++process) {
    for (int queue = 0; queue < queues; ++queue) {
      const std::string directory =
          "proc/" + std::to_string(1000 + process) + "/queues/" + std::to_string(queue);
      where.write(directory + "/size", std::to_string(4096 * (queue + 1)));
      where.write(directory + "/type", "0");
      where.write(directory + "/gpuid", std::to_string(0x1000 + queue % 8));
    }
  }
  const std::vector<std::string> attributes = own_attributes();
  ring_reader ring;
  series plain("rescan");
  series ringed("rescan.io_uring");
  series plain_sysfs("rescan.sysfs_files");
  series ringed_sysfs("rescan.sysfs_files.io_uring");
  const auto timed = [](series& into, const auto& work) {
    const time_point began = clock::now();
    const bool right = work();
    into.add(clock::now() - began);
    return right;
  };
  for (int i = 0; i < (quick ? 1 : 9); ++i) {
    for (int each = 0; each < (quick ? 2 : 3); ++each) {
      bool right = timed(plain, [&] {
        const auto seen = kfd::list_queues(trees);
        return seen && same(*seen);
      });
      right = timed(ringed, [&] { return same(list_by_ring(ring, trees.sysfs)); }) && right;
      std::vector<ring_reader::text> texts(attributes.size());
      std::vector<int> sizes;
      timed(ringed_sysfs, [&] {
        sizes = ring.read(attributes, texts);
        return true;
      });
      right = timed(plain_sysfs,
                    [&] {
                      bool equal = true;
                      for (std::size_t at = 0; at < attributes.size(); ++at) {
                        std::array<char, 64> text;
                        const auto got = read_small_file(attributes[at].c_str(), text);
                        equal = equal && got && static_cast<int>(got->size()) == sizes[at];
                      }
                      return equal;
                    }) &&
              right;
      if (right) continue;
      std::fprintf(stderr, "rescan: what was read is not what was written\n");
      return 1;
    }
    for (series* one : {&plain, &ringed, &plain_sysfs, &ringed_sysfs}) one->end_round();
  }
  for (series* one : {&plain, &ringed, &plain_sysfs, &ringed_sysfs}) one->print();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  return sluice::bench::measure(argc > 1 && std::string_view(argv[1]) == "--quick");
} catch (const std::exception& problem) {
  std::fprintf(stderr, "rescan: %s\n", problem.what());
  return 1;
}
