#pragma once
/// \file
/// The listening socket in the file system.

#include "foreign_fd.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "sluice/result.hpp"

namespace sluice::client {

/// Sets mode and group of the socket's file there that this user has just made. Of that file and of
/// no other, whatever is put in its place meanwhile by who owns the directory. \return EPERM where
/// something else is there.
result<void> give_rights(const std::string& path, mode_t mode, std::optional<gid_t> group,
                         struct stat& file);

/// Threading: one thread. Destruction removes the socket's file, if it is still this one's.
class listener {
 public:
  /// \param type as of socket(2).
  /// \param what it is, for sentences.
  listener(int type, std::string what) : type_(type), what_(std::move(what)) {}
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener() { close(); }

  /// \param problem on failure, one sentence.
  result<void> open(const std::string& path, mode_t mode, std::optional<gid_t> group,
                    std::string& problem);
  void close() noexcept;
  /// Whether clients find it: its file may have been removed, or another one put in its place.
  bool is_in_place() const noexcept;
  int fd() const noexcept { return socket_.get(); }

 private:
  const int type_;
  const std::string what_;
  foreign_fd socket_;
  std::string path_;
  struct stat file_ {};
};

}  // namespace sluice::client
