#include "sluice/observe/text_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "sluice/os/unique_fd.hpp"

namespace sluice::observe {

result<void> replace_text_file(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".tmp";
  // What a crash left there; a link of somebody else's is not followed.
  ::unlink(fresh.c_str());
  const unique_fd file{
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)};
  if (!file) return last_system_error();
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const error_code error = last_system_error();
      ::unlink(fresh.c_str());
      return error;
    }
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (std::rename(fresh.c_str(), path.c_str()) == 0) return {};
  const error_code error = last_system_error();
  ::unlink(fresh.c_str());
  return error;
}

}  // namespace sluice::observe
