#include "sluice/observe/trace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "sluice/os/kept_file.hpp"

namespace sluice::observe {
namespace {

constexpr std::size_t flush_at = std::size_t{64} << 10U;
constexpr std::string_view the_end = "\n]\n";

}  // namespace

result<std::unique_ptr<trace_file>> trace_file::create(const std::string& path,
                                                       std::uint64_t most) {
  keep_earlier_file(path);
  std::unique_ptr<trace_file> made{new trace_file{path, most}};
  if (const auto begun = made->begin(); !begun) return begun.error();
  return made;
}

trace_file::~trace_file() { close(); }

result<void> trace_file::begin() {
  fd_.reset(::open(path_.c_str(),
                   O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
  if (!fd_) return last_system_error();
  waiting_ = "[\n";
  size_ = waiting_.size() + the_end.size();
  any_ = full_ = closed_ = false;
  return {};
}

void trace_file::turn_over() {
  close();
  if (error_) return;
  // Somebody may have moved it away already.
  if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0 && errno != ENOENT) {
    error_ = last_system_error();
  } else if (const auto begun = begin(); !begun) {
    error_ = begun.error();
  }
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
    const ssize_t wrote = ::write(fd_.get(), rest.data(), rest.size());
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
