#include "sluice/kfd/node_lock.hpp"

#include "proc.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

namespace sluice::kfd {

result<std::unique_ptr<node_lock>> node_lock::acquire(const std::string& path,
                                                      const message_sink& say) {
  const std::filesystem::path parent = std::filesystem::path{path}.parent_path();
  if (!parent.empty()) {
    std::error_code ignored;  // open() below has the better words for it
    std::filesystem::create_directories(parent, ignored);
  }
  unique_fd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
  if (!fd) {
    const error_code error = last_system_error();
    say("cannot open the owner lock " + path + ": " + error.message() +
        "; run as root or name another path (option owner_lock)");
    return error;
  }
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno != EAGAIN && errno != EACCES) {
      const error_code error = last_system_error();
      say("cannot lock " + path + ": " + error.message());
      return error;
    }
    std::array<char, 128> buffer;
    std::string owner = "an unknown process";
    if (const auto text = read_small_file(path.c_str(), buffer); text && !text->empty()) {
      const std::string_view line = text->substr(0, text->find('\n'));
      const std::size_t blank = line.find(' ');
      owner = "process " + std::string{line.substr(0, blank)};
      if (blank != std::string_view::npos)
        owner += " (" + std::string{line.substr(blank + 1)} + ")";
    }
    say("this node is already owned by " + owner + ", which holds " + path +
        "; stop it, or use its scheduler instead of a second one");
    return errc::already_owned;
  }
  const std::string who = std::to_string(::getpid()) + " " + command_of(::getpid()) + "\n";
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), who.data(), who.size(), 0) != static_cast<ssize_t>(who.size())) {
    const error_code error = last_system_error();
    say("cannot write " + path + ": " + error.message());
    return error;
  }
  return std::unique_ptr<node_lock>{new node_lock{std::move(fd)}};
}

}  // namespace sluice::kfd
