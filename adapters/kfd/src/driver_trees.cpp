#include "sluice/kfd/driver_trees.hpp"

#include "sysfs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

namespace {

template <class Parser>
auto read_through(const std::string& path) -> result<decltype(std::declval<Parser>().finish())> {
  const unique_fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return last_system_error();
  Parser parser;
  std::array<char, tree_read_size> piece;
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return last_system_error();
    if (got == 0) return parser.finish();
    parser.feed({piece.data(), static_cast<std::size_t>(got)});
  }
}

}  // namespace

result<std::vector<listed_queue>> list_queues(const roots& where) {
  std::vector<listed_queue> found;
  const std::string processes = where.sysfs + "/proc";
  const bool readable = for_each_numbered_entry<pid_t>(processes, [&](pid_t pid) {
    const std::string queues = processes + "/" + std::to_string(pid) + "/queues";
    for_each_numbered_entry<std::uint32_t>(queues, [&](std::uint32_t id, ino_t inode) {
      const auto what = read_queue(queues + "/" + std::to_string(id));
      if (what) found.push_back({pid, driver_queue_id{id}, *what, inode});
    });
  });
  if (!readable) return last_system_error();
  return found;
}

result<mqds> read_mqds(const roots& where) {
  return read_through<mqds_parser>(where.debugfs + "/mqds");
}

result<hqds> read_hqds(const roots& where) {
  return read_through<hqds_parser>(where.debugfs + "/hqds");
}

}  // namespace sluice::kfd
