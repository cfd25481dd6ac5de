#pragma once
/// \file
/// Reads a file as a whole.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Far above what anybody writes by hand.
inline constexpr std::size_t largest_configuration = std::size_t{1} << 20U;

/// The content of a regular file. Whatever else lies there is left alone: a pipe would keep whoever
/// opens it waiting, and a device has no end.
///
/// Threading: any. Errors: the system's, with the reason; errc::no_file; EFBIG beyond `most` bytes.
inline result<std::string> read_whole_file(const std::string& path,
                                           std::size_t most = largest_configuration) {
  struct closing {
    int fd;
    ~closing() {
      if (fd >= 0) ::close(fd);
    }
  };
  const closing file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct stat about {};
  if (file.fd < 0 || ::fstat(file.fd, &about) != 0) return last_system_error();
  if (!S_ISREG(about.st_mode)) return errc::no_file;
  std::string text;
  std::array<char, 16384> some;
  for (;;) {
    const ssize_t got = ::read(file.fd, some.data(), some.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return last_system_error();
    if (got == 0) return text;
    text.append(some.data(), static_cast<std::size_t>(got));
    if (text.size() > most) return error_code{EFBIG, boost::system::system_category()};
  }
}

}  // namespace sluice
#pragma GCC visibility pop
