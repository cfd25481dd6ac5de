#include "sluice/os/store_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include "sluice/time.hpp"

namespace sluice {

namespace {

using namespace std::chrono_literals;

constexpr duration lock_limit = 5s;

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path{path}.parent_path().string();
  return parent.empty() ? "." : parent;
}

/// "root", or "user NUMBER or root".
std::string owner_of(const std::string& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0 || found.st_uid == 0) return "root";
  return "user " + std::to_string(found.st_uid) + " or root";
}

/// \return why a file or directory with these attributes is not to be trusted; empty: it is.
std::string mistrust(const struct stat& found, std::optional<uid_t> also) {
  if (found.st_uid != 0 && found.st_uid != ::geteuid() && found.st_uid != also)
    return "belongs to user " + std::to_string(found.st_uid) + "; root or user " +
           std::to_string(::geteuid()) + " must own it; run chown on it";
  // In a sticky directory others add names, but do not replace those of another owner.
  if (S_ISDIR(found.st_mode) && (found.st_mode & S_ISVTX) != 0) return {};
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "is writable by group or others; run chmod go-w on it";
  return {};
}

}  // namespace

std::string_view take_word(std::string_view& line) noexcept {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

error_code with_system_error(std::string& message, const std::string& what) {
  const error_code error = last_system_error();
  message = what + ": " + error.message();
  return error;
}

result<void> store_file::read(std::string_view head,
                              const std::function<std::string(std::string_view)>& take,
                              std::string& message) const {
  const auto found = contents(message);
  if (!found) return found.error();
  if (!*found) return {};
  std::string_view rest = **found;
  for (std::size_t number = 1; !rest.empty() || number == 1; ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    std::string wrong;
    if (number == 1 && line != head)
      wrong = "expected \"" + std::string{head} + "\" as the first line";
    if (number != 1 && !line.empty() && line.front() != '#') wrong = take(line);
    if (wrong.empty()) continue;
    message = path_ + ":" + std::to_string(number) + ": invalid line \"" +
              std::string{line.substr(0, 80)} + "\": " + wrong +
              "; correct the line, or remove the file to start with an empty store";
    return errc::bad_config;
  }
  return {};
}

result<std::optional<std::string>> store_file::contents(std::string& message) const {
  const std::string named = "the " + what_ + " " + path_;
  const unique_fd fd{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!fd && errno == ENOENT) return std::optional<std::string>{};
  if (!fd && errno == ELOOP) {
    message = named + " is a symbolic link; configure the path of the file itself";
    return errc::bad_config;
  }
  if (!fd) return with_system_error(message, "cannot read " + named);
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return with_system_error(message, "cannot read " + named);
  if (!S_ISREG(found.st_mode)) {
    message = named + " is not a regular file; remove it, or configure another path";
    return errc::bad_config;
  }
  const std::string directory = parent_of(path_);
  struct stat around {};
  if (::stat(directory.c_str(), &around) != 0)
    return with_system_error(message, "cannot read the " + what_ + "'s directory " + directory);
  std::optional<uid_t> also;
  if (trusted_ == owners::of_directory && ::geteuid() == 0) also = around.st_uid;
  if (const std::string why = mistrust(found, also); !why.empty()) {
    message = named + " " + why;
    return errc::bad_config;
  }
  if (const std::string why = mistrust(around, also); !why.empty()) {
    message = "the " + what_ + "'s directory " + directory + " " + why;
    return errc::bad_config;
  }
  std::string all;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return with_system_error(message, "cannot read " + named);
    if (got == 0) return std::optional{std::move(all)};
    all.append(piece.data(), static_cast<std::size_t>(got));
    if (all.size() > most_bytes) {
      message = named + " exceeds " + std::to_string(most_bytes) + " bytes; clear some entries";
      return errc::bad_config;
    }
  }
}

result<void> store_file::replace(const std::string& text, std::string& message) const {
  // Only the lock's owner writes it, so a fixed name will do; what is left of one that was killed
  // goes first, for O_EXCL keeps us from writing through somebody's link.
  const std::string fresh = path_ + ".new";
  (void)::unlink(fresh.c_str());
  const unique_fd fd{
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!fd) return with_system_error(message, "cannot write the " + what_ + " " + fresh);
  const auto give_up = [&] {
    const error_code error = with_system_error(message, "cannot write the " + what_ + " " + fresh);
    (void)::unlink(fresh.c_str());
    return error;
  };
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return give_up();
    done += static_cast<std::size_t>(wrote);
  }
  give_away(fd.get());
  // Whatever the umask: a reader that may not write is welcome.
  if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) return give_up();
  if (::rename(fresh.c_str(), path_.c_str()) != 0) return give_up();
  const std::string directory = parent_of(path_);
  const unique_fd around{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!around || ::fsync(around.get()) != 0)
    return with_system_error(message, "cannot flush the change to disk in " + directory);
  return {};
}

result<unique_fd> store_file::lock(std::string& message) const {
  const std::string directory = parent_of(path_);
  std::error_code refused;
  if (std::filesystem::create_directories(directory, refused))
    (void)::chmod(directory.c_str(), 0755);
  if (refused) {
    message = "cannot change the " + what_ + " " + path_ + ": cannot create its directory " +
              directory + ": " + refused.message() + "; run as root, or configure another store";
    return error_code{refused.value(), boost::system::system_category()};
  }
  const std::string name = path_ + ".lock";
  constexpr int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  unique_fd fd{::open(name.c_str(), flags | O_CREAT | O_EXCL, 0600)};
  if (fd)
    give_away(fd.get());  // never what was there: it might be a link to another file
  else if (errno == EEXIST)
    fd = unique_fd{::open(name.c_str(), flags)};
  if (!fd) {
    const bool denied = errno == EACCES || errno == EPERM;
    const error_code error = with_system_error(
        message, "cannot change the " + what_ + " " + path_ + ": cannot open " + name);
    if (denied) message += "; only " + owner_of(directory) + " may write in " + directory;
    return error;
  }
  const time_point end = clock::now() + lock_limit;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return with_system_error(message, "cannot change the " + what_ + ": cannot lock " + name);
    if (clock::now() >= end) {
      message = "cannot change the " + what_ + ": another program has held " + name +
                " for 5 s; end that program";
      return errc::busy;
    }
    std::this_thread::sleep_for(10ms);
  }
  return fd;
}

void store_file::give_away(int fd) const {
  struct stat around {};
  if (trusted_ != owners::of_directory || ::geteuid() != 0) return;
  if (::stat(parent_of(path_).c_str(), &around) != 0) return;
  (void)!::fchown(fd, around.st_uid, static_cast<gid_t>(-1));
}

}  // namespace sluice
