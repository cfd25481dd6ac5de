#include "scheduler_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

namespace sluice::core {

scheduler_page::scheduler_page() noexcept {
  if (share()) return;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

scheduler_page::~scheduler_page() {
  if (words_ != &own_) munmap(words_, bytes);
  if (fd_ >= 0) close(fd_);
}

bool scheduler_page::share() noexcept {
  constexpr auto* name = "sluice-scheduler";
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  fd_ = memfd_create(name, flags | MFD_NOEXEC_SEAL);
  if (fd_ < 0 && errno == EINVAL) fd_ = memfd_create(name, flags);  // Before Linux 6.3.
  if (fd_ < 0 || ftruncate(fd_, bytes) != 0) return false;
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return false;
  // After our own mapping, which stays writable; a forked child's must not wake anybody.
  if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) !=
      0) {
    munmap(mapped, bytes);
    return false;
  }
  words_ = new (mapped) sluice_scheduler_words{};
  return true;
}

}  // namespace sluice::core
