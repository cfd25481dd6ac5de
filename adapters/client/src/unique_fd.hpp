#pragma once
/// \file
/// Descriptors that close themselves.

#include <unistd.h>

#include <cstddef>
#include <utility>

namespace sluice::client {

inline void close_here(int fd) noexcept { ::close(fd); }
/// On threads that do nothing else: one, and up to eight, as far as they are to be had, while those
/// before are kept. Any thread.
void close_elsewhere(int fd) noexcept;
/// How many of those were not closed yet. Any thread.
std::size_t closes_waiting() noexcept;

template <void (*Close)(int) noexcept>
class owned_fd {
 public:
  owned_fd() noexcept = default;
  explicit owned_fd(int fd) noexcept : fd_(fd) {}
  owned_fd(owned_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  owned_fd& operator=(owned_fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_fd() {
    if (fd_ >= 0) Close(fd_);
  }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

using unique_fd = owned_fd<close_here>;
/// One that a peer chose, or a socket with messages of his in it. Closing it takes as long as he
/// likes (a TCP socket that lingers, a file that he serves by FUSE), so the reactor's thread must
/// not.
using foreign_fd = owned_fd<close_elsewhere>;

}  // namespace sluice::client
