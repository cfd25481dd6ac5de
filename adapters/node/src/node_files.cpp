#include "sluice/node_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>

#include "sluice/os/unique_fd.hpp"

namespace sluice {

namespace {

struct fresh_file {
  unique_fd fd;
  std::string name;
};

/// Makes a file that was not there: whoever owns the directory may have put links into it, and the
/// caller may be root.
result<fresh_file> make_fresh(int directory, const std::string& name) {
  constexpr int most_tries = 100;
  std::random_device random;
  for (int tries = 1;; ++tries) {
    fresh_file made;
    made.name = name + "." + std::to_string(random());
    made.fd.reset(::openat(directory, made.name.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (made.fd) return made;
    if (errno != EEXIST || tries == most_tries) return last_system_error();
  }
}

result<void> replace_file(const std::string& directory, const std::string& name,
                          const std::string& text) {
  const unique_fd in{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!in) return last_system_error();
  const auto fresh = make_fresh(in.get(), name);
  if (!fresh) return fresh.error();
  errno = EIO;  // of a write that was cut short
  const ssize_t wrote = ::write(fresh->fd.get(), text.data(), text.size());
  // Whole when it appears: who waits for it reads it at once.
  if (wrote == static_cast<ssize_t>(text.size()) &&
      ::renameat(in.get(), fresh->name.c_str(), in.get(), name.c_str()) == 0)
    return {};
  const error_code error = last_system_error();
  ::unlinkat(in.get(), fresh->name.c_str(), 0);
  return error;
}

}  // namespace

result<void> pause_node(const node_files& where, const std::string& why, std::string& message) {
  const auto done = replace_file(where.directory, "disabled", why + (why.empty() ? "" : "\n"));
  if (!done) message = "cannot write " + where.disabled() + ": " + done.error().message();
  return done;
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
  const unique_fd file{
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
