#include "sluice/os/file_watch.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace sluice {

namespace {

/// Another file, other content, or other rights to it.
std::string identity_of_file(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};
  std::string text;
  for (const auto part :
       {static_cast<long long>(found.st_dev), static_cast<long long>(found.st_ino),
        static_cast<long long>(found.st_size), static_cast<long long>(found.st_mtim.tv_sec),
        static_cast<long long>(found.st_mtim.tv_nsec), static_cast<long long>(found.st_ctim.tv_sec),
        static_cast<long long>(found.st_ctim.tv_nsec)})
    text += std::to_string(part) + " ";
  return text;
}

}  // namespace

file_watch::file_watch(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  std::error_code ignored;
  const auto whole = std::filesystem::absolute(path_, ignored).lexically_normal();
  for (auto each = whole.parent_path();; each = each.parent_path()) {
    directories_.insert(directories_.begin(), each.string());
    if (each == each.parent_path()) break;
  }
  inotify_ = unique_fd{::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
  watch();
}

void file_watch::watch() {
  // A watch that is there already is the same again; one on a directory that was replaced by
  // another of its name has gone with it.
  constexpr std::uint32_t above =
      IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
  constexpr std::uint32_t around = above | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE | IN_ATTRIB;
  for (const std::string& each : directories_) {
    const bool last = &each == &directories_.back();
    if (::inotify_add_watch(inotify_.get(), each.c_str(), last ? around : above) < 0) break;
  }
}

bool file_watch::changed() {
  if (path_.empty()) return false;
  alignas(inotify_event) std::array<char, 4096> ignored;
  bool any = false;
  while (inotify_ && ::read(inotify_.get(), ignored.data(), ignored.size()) > 0) any = true;
  if (any) watch();
  std::string now = identity_of_file(path_);
  if (now == last_) return false;
  last_ = std::move(now);
  return true;
}

}  // namespace sluice
