#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sluice/reactor.hpp"

namespace sluice {

result<void> probe_io_uring() noexcept {
  // Asio 1.81 fixes its ring at 16384 entries; a smaller probe could succeed where that fails
  // (memory locked per user, before Linux 5.12).
  constexpr unsigned asio_ring_size = 16384;
  io_uring_params parameters{};
  const long fd = syscall(SYS_io_uring_setup, asio_ring_size, &parameters);
  if (fd < 0) return last_system_error();
  close(static_cast<int>(fd));
  return boost::system::in_place_value;
}

}  // namespace sluice
