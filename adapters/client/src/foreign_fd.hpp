#pragma once
/// \file
/// A descriptor that a peer chose.

#include <cstddef>
#include <utility>

namespace sluice::client {

/// On threads that do nothing else: one, and up to eight, as far as they are to be had, while those
/// before are kept. Any thread.
void close_elsewhere(int fd) noexcept;
/// How many of those were not closed yet. Any thread.
std::size_t closes_waiting() noexcept;

/// One that a peer chose, or a socket with messages of his in it. Closing it takes as long as he
/// likes (a TCP socket that lingers, a file that he serves by FUSE), so the reactor's thread must
/// not.
class foreign_fd {
 public:
  foreign_fd() noexcept = default;
  explicit foreign_fd(int fd) noexcept : fd_(fd) {}
  foreign_fd(foreign_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  foreign_fd& operator=(foreign_fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~foreign_fd() {
    if (fd_ >= 0) close_elsewhere(fd_);
  }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace sluice::client
