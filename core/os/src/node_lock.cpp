#include "sluice/os/node_lock.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "sluice/os/proc.hpp"

namespace sluice {

namespace {

std::string line_about(pid_t pid) { return std::to_string(pid) + " " + command_of(pid) + "\n"; }

/// Takes the next line off a lock's text. \return "process 12 (name)", empty at its end.
std::string next_process(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  if (line.empty()) return {};
  const std::size_t blank = line.find(' ');
  std::string process = "process " + std::string{line.substr(0, blank)};
  if (blank != std::string_view::npos) process += " (" + std::string{line.substr(blank + 1)} + ")";
  return process;
}

constexpr std::string_view node_enforces = "node enforces\n";
constexpr std::string_view node_observes = "node observes\n";

/// Reaped or not.
bool has_ended(pid_t pid) noexcept {
  const unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!pidfd) return errno == ESRCH;
  pollfd ended{pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

/// By the file that is locked, whatever its name leads to by now.
node_lock::holder named_holder(const unique_fd& lock) {
  std::array<char, 128> buffer;
  const ssize_t got = ::pread(lock.get(), buffer.data(), buffer.size(), 0);
  std::string_view text{buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  node_lock::holder found;
  for (const auto& [line, what] : {std::pair{node_enforces, node_lock::kind::node},
                                   std::pair{node_observes, node_lock::kind::observing}}) {
    if (!text.ends_with(line)) continue;
    found.what = what;
    text.remove_suffix(line.size());
  }
  found.program = parse_number<pid_t>(text.substr(0, text.find(' '))).value_or(0);
  found.ended = found.program > 0 && has_ended(found.program);
  found.words = next_process(text);
  if (found.words.empty()) found.words = "an unknown process";
  found.agent = parse_number<pid_t>(text.substr(0, text.find(' '))).value_or(0);
  if (const std::string agent = next_process(text); !agent.empty())
    found.words += ", whose agent is " + agent;
  return found;
}

/// Nobody else may open the file: who may read it may take a read lock, and nobody would own the
/// node.
result<unique_fd> open_lock(const std::string& path) {
  unique_fd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600)};
  struct stat found {};
  if (!fd || ::fstat(fd.get(), &found) != 0) return last_system_error();
  if (!S_ISREG(found.st_mode)) return error_code{EINVAL, boost::system::system_category()};
  const bool shut = (found.st_mode & S_IRWXO) == 0 || found.st_uid != ::geteuid() ||
                    ::fchmod(fd.get(), found.st_mode & (S_IRWXU | S_IRWXG)) == 0;
  if (!shut) return last_system_error();
  return fd;
}

struct flock whole_file() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

}  // namespace

result<std::optional<node_lock::holder>> node_lock::look(const std::string& path) {
  std::optional<holder> nobody;
  // Its directory may be another user's than the one who asks, who is root, say. Whatever that put
  // there: a pipe would not let go of who opens it, and a link leads anywhere.
  const unique_fd fd{
      ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (!fd && errno == ENOENT) return nobody;
  struct stat found {};
  if (fd && (::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)))
    return error_code{EINVAL, boost::system::system_category()};
  struct flock whole = whole_file();
  if (!fd || ::fcntl(fd.get(), F_OFD_GETLK, &whole) != 0) return last_system_error();
  if (whole.l_type == F_UNLCK) return nobody;
  return std::optional{named_holder(fd)};
}

std::optional<std::string> node_lock::owner(const std::string& path) {
  auto found = look(path);
  if (!found || !*found) return {};
  return std::move((*found)->words);
}

result<std::unique_ptr<node_lock>> node_lock::acquire(const std::string& path,
                                                      const message_sink& say, claim as) {
  const std::filesystem::path parent = std::filesystem::path{path}.parent_path();
  if (!parent.empty()) {
    std::error_code ignored;  // open() below has the better words for it
    std::filesystem::create_directories(parent, ignored);
  }
  auto opened = open_lock(path);
  if (!opened) {
    const error_code error = opened.error();
    say("cannot open the owner lock " + path + ": " + error.message() +
        "; run as a user who may write it, or configure another path (directory in [daemon] for "
        "sluice run, owner_lock in the options of a program)");
    return error;
  }
  unique_fd fd = std::move(*opened);
  struct flock whole = whole_file();
  if (::fcntl(fd.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno != EAGAIN && errno != EACCES) {
      const error_code error = last_system_error();
      say("cannot lock " + path + ": " + error.message());
      return error;
    }
    say("this node is already owned by " + named_holder(fd).words + " (lock " + path + ")" +
        "; stop that program, or use its scheduler instead of a second one");
    return errc::already_owned;
  }
  std::string who = as.on_behalf_of > 0 ? line_about(as.on_behalf_of) : "";
  who += line_about(::getpid());
  if (as.what != kind::scheduler) who += as.what == kind::node ? node_enforces : node_observes;
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), who.data(), who.size(), 0) != static_cast<ssize_t>(who.size())) {
    const error_code error = last_system_error();
    say("cannot write " + path + ": " + error.message());
    return error;
  }
  return std::unique_ptr<node_lock>{new node_lock{std::move(fd)}};
}

}  // namespace sluice
