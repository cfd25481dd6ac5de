#pragma once
/// \file
/// The listening socket in the file system.

#include "unique_fd.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "sluice/result.hpp"

namespace sluice::client {

/// Threading: one thread. Destruction removes the socket's file, if it is still this one's.
class listener {
 public:
  listener() = default;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener() { close(); }

  /// \param problem on failure, one sentence.
  result<void> open(const std::string& path, mode_t mode, std::optional<gid_t> group,
                    std::string& problem);
  void close() noexcept;
  int fd() const noexcept { return socket_.get(); }

 private:
  foreign_fd socket_;
  std::string path_;
  struct stat file_ {};
};

}  // namespace sluice::client
