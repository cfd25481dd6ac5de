#include "sluice/observe/trace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::observe {
namespace {

constexpr std::size_t flush_at = std::size_t{64} << 10U;
constexpr std::string_view the_end = "\n]\n";

}  // namespace

result<std::unique_ptr<trace_file>> trace_file::create(const std::string& path,
                                                       std::uint64_t most) {
  const int fd = ::open(path.c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (fd < 0) return last_system_error();
  std::unique_ptr<trace_file> made{new trace_file{fd, most}};
  made->waiting_ = "[\n";
  made->size_ = made->waiting_.size() + the_end.size();
  return made;
}

trace_file::~trace_file() {
  close();
  ::close(fd_);
}

void trace_file::add(std::string_view event) {
  if (full_ || closed_ || error_) return;
  const std::string_view before = any_ ? ",\n" : "";
  if (size_ + before.size() + event.size() > most_) {
    full_ = true;
    close();
    return;
  }
  size_ += before.size() + event.size();
  any_ = true;
  waiting_ += before;
  waiting_ += event;
  if (waiting_.size() >= flush_at) flush();
}

void trace_file::flush() {
  std::string_view rest = waiting_;
  while (!rest.empty() && !error_) {
    const ssize_t wrote = ::write(fd_, rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      error_ = last_system_error();
    } else {
      rest.remove_prefix(static_cast<std::size_t>(wrote));
    }
  }
  waiting_.clear();
}

void trace_file::close() {
  if (closed_) return;
  closed_ = true;
  waiting_ += the_end;
  flush();
}

}  // namespace sluice::observe
