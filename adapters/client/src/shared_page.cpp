#include "shared_page.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace sluice::client {

std::shared_ptr<sluice_client_words> map_client_page(int fd, std::string& why) {
  constexpr auto bytes = sizeof(sluice_client_words);
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  struct stat about {};
  struct statfs on {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  // Only tmpfs: a page of a file elsewhere, or of the huge page pool, may be missing when read.
  if (seals < 0 || (seals & needed) != needed || ::fstat(fd, &about) != 0 ||
      !S_ISREG(about.st_mode) || about.st_size != static_cast<off_t>(bytes) ||
      ::fstatfs(fd, &on) != 0 || on.f_type != TMPFS_MAGIC) {
    why = "the client's page must be a memfd of " + std::to_string(bytes) +
          " bytes, sealed against shrinking, growing and further seals";
    return nullptr;
  }
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED) {
    why = std::string("the client's page cannot be mapped: ") + std::strerror(errno);
    return nullptr;
  }
  ::madvise(at, bytes, MADV_DONTFORK);
  // The reactor thread reads it in every turn and should not wait for a disk. Within the limit on
  // locked memory only.
  (void)::mlock(at, bytes);
  return {static_cast<sluice_client_words*>(at),
          [](sluice_client_words* words) { ::munmap(words, sizeof *words); }};
}

bool is_eventfd(int fd) noexcept {
  std::array<char, 48> path;
  std::array<char, 32> text;
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(path.data(), text.data(), text.size());
  return length > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(length)) == "anon_inode:[eventfd]";
}

}  // namespace sluice::client
