#include "sluice/observe/job_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "sluice/os/unique_fd.hpp"

namespace sluice::observe {

result<void> job_log::write(const job_record& record) {
  std::string line = to_json(record) + "\n";
  const auto open = [this] {
    return unique_fd{::open(
        path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644)};
  };
  unique_fd file = open();
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) return last_system_error();
  if (!S_ISREG(about.st_mode)) return errc::no_file;
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (size > 0 && size + line.size() > most_) {
    if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return last_system_error();
    file = open();
    if (!file) return last_system_error();
  } else if (char last = '\n';
             size > 0 && ::pread(file.get(), &last, 1, about.st_size - 1) == 1 && last != '\n') {
    line.insert(0, 1, '\n');
  }
  errno = EIO;  // of a write that was cut short
  if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return last_system_error();
  return {};
}

}  // namespace sluice::observe
