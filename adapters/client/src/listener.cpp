#include "listener.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "sluice/os/unique_fd.hpp"
namespace sluice::client {
namespace {

/// Who waits to be accepted; further ones try again.
constexpr int backlog = 64;

bool fill(sockaddr_un& address, const std::string& path) noexcept {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  return true;
}

const sockaddr* plain(const sockaddr_un& address) noexcept {
  return reinterpret_cast<const sockaddr*>(&address);  // NOLINT: the sockets API
}

foreign_fd new_socket(int type) noexcept {
  return foreign_fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Whether somebody accepts connections there.
bool is_served(const std::string& path, int type) noexcept {
  sockaddr_un address{};
  const foreign_fd probe = new_socket(type);
  if (!probe || !fill(address, path)) return false;
  // A full backlog is somebody, too.
  return ::connect(probe.get(), plain(address), sizeof address) == 0 || errno == EAGAIN;
}

/// The name, or the number.
std::string text_of(gid_t id) {
  ::group entry{};
  ::group* found = nullptr;
  std::array<char, 4096> buffer;
  (void)::getgrgid_r(id, &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->gr_name : std::to_string(id);
}

std::string not_given_to(gid_t id, error_code why) {
  const std::string group = text_of(id);
  std::string said = "cannot set group " + group + " (" + why.message() + ")";
  if (why != boost::system::errc::operation_not_permitted) return said;
  const std::string user = std::to_string(::geteuid());
  return said + ": user " + user + ", who runs this program, is not a member; run usermod -aG " +
         group + " USER and restart the program. Instead of usermod, add \"m USER " + group +
         "\" to sysusers.d, or SupplementaryGroups=" + group + " to the program's systemd unit";
}

}  // namespace

result<void> give_rights(const std::string& path, mode_t mode, std::optional<gid_t> group,
                         struct stat& file) {
  // Held by itself, not by its name. What has a second name may be anybody's socket.
  const unique_fd made(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!made || ::fstat(made.get(), &file) != 0) return last_system_error();
  if (!S_ISSOCK(file.st_mode) || file.st_uid != ::geteuid() || file.st_nlink != 1)
    return error_code{EPERM, boost::system::system_category()};
  if (group && ::fchownat(made.get(), "", static_cast<uid_t>(-1), *group, AT_EMPTY_PATH) != 0)
    return last_system_error();
  // fchmod() takes no such descriptor.
  const std::string itself = "/proc/self/fd/" + std::to_string(made.get());
  if (::chmod(itself.c_str(), mode) != 0) return last_system_error();
  return {};
}

result<void> listener::open(const std::string& path, mode_t mode, std::optional<gid_t> group,
                            std::string& problem) {
  const auto failed = [&](const char* what) -> result<void> {
    const error_code why = last_system_error();
    problem = what_ + " " + path + ": " + what + ": " + why.message();
    return why;
  };
  // Made beside its place and moved there, so that nobody finds it with other rights.
  const std::string beside = path + "." + std::to_string(::getpid());
  sockaddr_un address{};
  if (!fill(address, beside)) {
    problem = what_ + " " + path + ": the path is too long for a socket; use a shorter path";
    return error_code{ENAMETOOLONG, boost::system::system_category()};
  }
  std::error_code ignored;
  const auto directory = std::filesystem::path(path).parent_path();
  if (!directory.empty()) std::filesystem::create_directories(directory, ignored);
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) {
      problem =
          what_ + " " + path +
          ": a file that is not a socket has this path; remove the file, or configure another path";
      return error_code{EEXIST, boost::system::system_category()};
    }
    if (is_served(path, type_)) {
      problem = what_ + " " + path +
                " is served by another scheduler; stop that scheduler, or configure another socket";
      return errc::already_owned;
    }
  }
  foreign_fd made = new_socket(type_);
  if (!made) return failed("cannot create a socket");
  // Each message then says which process sent it.
  const int on = 1;
  (void)::setsockopt(made.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  ::unlink(beside.c_str());
  if (::bind(made.get(), plain(address), sizeof address) != 0)
    return failed("cannot bind the socket");
  if (const auto given = give_rights(beside, mode, group, file_); !given) {
    ::unlink(beside.c_str());
    const error_code why = given.error();
    problem = what_ + " " + path + ": " +
              (group ? not_given_to(*group, why) : "cannot set its mode: " + why.message());
    return why;
  }
  struct stat placed {};
  if (::listen(made.get(), backlog) != 0 || ::rename(beside.c_str(), path.c_str()) != 0) {
    const auto outcome = failed("cannot move the socket to its path");
    ::unlink(beside.c_str());
    return outcome;
  }
  if (::lstat(path.c_str(), &placed) != 0 || placed.st_ino != file_.st_ino ||
      placed.st_dev != file_.st_dev) {
    problem =
        what_ + " " + path +
        ": another process replaced the socket; stop that process, or configure another socket";
    return error_code{EPERM, boost::system::system_category()};
  }
  socket_ = std::move(made);
  path_ = path;
  return {};
}

bool listener::is_in_place() const noexcept {
  struct stat there {};
  return socket_ && ::lstat(path_.c_str(), &there) == 0 && there.st_ino == file_.st_ino &&
         there.st_dev == file_.st_dev;
}

void listener::close() noexcept {
  if (is_in_place()) ::unlink(path_.c_str());
  socket_ = foreign_fd();
}

}  // namespace sluice::client
