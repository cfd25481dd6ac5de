#include "sluice/node_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "sluice/kfd/unique_fd.hpp"

namespace sluice {

result<void> pause_node(const node_files& where, const std::string& why, std::string& message) {
  const std::string path = where.disabled();
  errno = 0;
  // Whole when it appears: who waits for it reads it at once.
  const std::string beside = path + "." + std::to_string(::getpid());
  std::ofstream file{beside};
  file << why << (why.empty() ? "" : "\n") << std::flush;
  if (file && ::rename(beside.c_str(), path.c_str()) == 0) return {};
  const error_code error =
      errno != 0 ? last_system_error() : error_code{EIO, boost::system::system_category()};
  ::unlink(beside.c_str());
  message = "cannot write " + path + ": " + error.message();
  return error;
}

result<void> unpause_node(const node_files& where, std::string& message) {
  const std::string path = where.disabled();
  if (::unlink(path.c_str()) == 0) return {};
  const error_code error = last_system_error();
  message = "cannot remove " + path + ": " + error.message();
  return error;
}

std::optional<std::string> paused_why(const node_files& where) {
  const std::string path = where.disabled();
  // Whatever somebody put there: a pipe would not let go of who opens it, nor a terminal.
  const kfd::unique_fd file{
      ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct stat found {};
  if (!file) {
    // It pauses the node also where it cannot be opened.
    if (::lstat(path.c_str(), &found) != 0) return {};
    return std::string{};
  }
  std::string line;
  if (::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return line;
  line.resize(longest_reason);
  const ssize_t got = ::read(file.get(), line.data(), line.size());
  line.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  line.resize(std::min(line.find('\n'), line.size()));
  for (char& each : line) {
    const auto code = static_cast<unsigned char>(each);
    if (code < 0x20 || code >= 0x7f) each = '?';
  }
  return line;
}

}  // namespace sluice
