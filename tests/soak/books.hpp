#pragma once
/// \file
/// What a worker of the soak counts of its kernels and requests, in a file that outlives it: what
/// it knew when it was killed is read there.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <system_error>

namespace sluice::soak {

/// How a worker ends by itself.
enum worker_exit : int {
  worker_done = 0,
  worker_failed = 1,
  worker_lost_its_gpu = 5,  ///< Its GPU was reset.
};

/// Threading: the worker's threads write, the soak reads.
struct books {
  using count = std::atomic<std::uint64_t>;
  count submitted{0};  ///< Counted before the device can see the kernel.
  count finished{0};   ///< Counted after its completion signal was seen.
  count dropped{0};    ///< In flight when their queue was destroyed on purpose,
  count reset{0};      ///< or when their GPU was reset.
  count lost{0};       ///< As demo::verdict, and so the next three.
  count repeated{0};
  count out_of_order{0};
  count too_short{0};
  count queues{0};    ///< Made.
  count requests{0};  ///< Ended; and so the next.
  count every_10_ms{0};
  count longest_request{0};  ///< ns, from when it was due.

  std::uint64_t wrong() const { return lost + repeated + out_of_order + too_short; }
};
static_assert(books::count::is_always_lock_free);

struct unmapped {
  void operator()(books* one) const noexcept { ::munmap(one, sizeof(books)); }
};
using mapped_books = std::unique_ptr<books, unmapped>;

/// Errors: throws std::system_error.
inline mapped_books open_books(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* at = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, sizeof(books)) == 0)
    at = ::mmap(nullptr, sizeof(books), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int why = errno;
  if (fd >= 0) ::close(fd);
  if (at == MAP_FAILED) throw std::system_error{why, std::generic_category(), path};
  return mapped_books{static_cast<books*>(at)};
}

}  // namespace sluice::soak
