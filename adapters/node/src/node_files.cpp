#include "sluice/node_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace sluice {

result<void> pause_node(const node_files& where, const std::string& why, std::string& message) {
  const std::string path = where.disabled();
  std::error_code ignored;  // The file itself has the better words for it.
  std::filesystem::create_directories(where.directory, ignored);
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
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};
  std::string line;
  // Whatever else somebody put there: a pipe would not let go of who reads it.
  if (!S_ISREG(found.st_mode)) return line;
  std::getline(std::ifstream{path}, line);
  constexpr std::size_t most = 200;
  if (line.size() > most) line.resize(most);
  for (char& each : line) {
    const auto code = static_cast<unsigned char>(each);
    if (code < 0x20 || code >= 0x7f) each = '?';
  }
  return line;
}

}  // namespace sluice
