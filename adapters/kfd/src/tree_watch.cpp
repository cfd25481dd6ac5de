#include "sluice/kfd/tree_watch.hpp"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace sluice::kfd {

namespace {

constexpr std::uint32_t entries_appear = IN_CREATE | IN_MOVED_TO;
constexpr std::uint32_t entries_vanish = IN_DELETE | IN_MOVED_FROM;
constexpr std::uint32_t directory_mask = entries_appear | entries_vanish | IN_ONLYDIR;

}  // namespace

result<std::unique_ptr<tree_watch>> tree_watch::create() {
  unique_fd inotify{::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
  if (!inotify) return last_system_error();
  return std::unique_ptr<tree_watch>{new tree_watch{std::move(inotify)}};
}

void tree_watch::watch_directory(std::string path) { add(std::move(path), directory_mask); }
void tree_watch::watch_opens(std::string path) { add(std::move(path), IN_OPEN); }

void tree_watch::add(std::string path, std::uint32_t mask) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash + 1 != path.size()) {
    item parent;
    parent.path = path;
    parent.target = slash == 0 ? "/" : path.substr(0, slash);
    parent.name = path.substr(slash + 1);
    parent.mask = directory_mask;
    items_.push_back(std::move(parent));
    (void)renew(items_.back());
  }
  item itself;
  itself.path = path;
  itself.target = std::move(path);
  itself.mask = mask;
  items_.push_back(std::move(itself));
  (void)renew(items_.back());
}

bool tree_watch::refresh() {
  bool fresh = false;
  for (item& each : items_) fresh = renew(each) || fresh;
  return fresh;
}

/// Asks the kernel which watch the path is now: the same as before for the same inode.
bool tree_watch::renew(item& each) {
  const int now = ::inotify_add_watch(inotify_.get(), each.target.c_str(), each.mask | IN_MASK_ADD);
  if (now == each.watch) return false;
  const int before = std::exchange(each.watch, now);
  if (before >= 0) drop(before);
  return now >= 0;
}

/// Ends a watch that no item needs any more.
void tree_watch::drop(int watch) noexcept {
  if (std::ranges::find(items_, watch, &item::watch) == items_.end())
    (void)::inotify_rm_watch(inotify_.get(), watch);
}

bool tree_watch::watching(std::string_view path) const noexcept {
  return std::ranges::any_of(items_, [&](const item& each) {
    return each.target == path && each.name.empty() && each.watch >= 0;
  });
}

bool tree_watch::read(const std::function<void(const tree_event&)>& each) {
  using change = tree_event::change;
  bool ours = false;
  const auto say = [&](change what, std::string_view path, std::string_view name) {
    ours = true;
    each({what, path, name});
  };
  alignas(inotify_event) std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(inotify_.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
      inotify_event event;
      std::memcpy(&event, buffer.data() + at, sizeof(event));
      const char* const text = buffer.data() + at + sizeof(event);
      const std::string_view name{text, ::strnlen(text, event.len)};
      at += sizeof(event) + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) say(change::missed, {}, {});
      for (const item& of : items_) {
        if (of.watch != event.wd || event.wd < 0) continue;
        const std::uint32_t heard = event.mask & of.mask;
        const bool parent = !of.name.empty();
        if (parent && of.name != name) continue;
        const std::string_view shown = parent ? std::string_view{} : name;
        if ((heard & IN_OPEN) != 0) say(change::opened, of.path, {});
        if ((heard & entries_appear) != 0) say(change::appeared, of.path, shown);
        if ((heard & entries_vanish) != 0) say(change::vanished, of.path, shown);
      }
      if ((event.mask & IN_IGNORED) != 0) {
        for (item& of : items_) {
          if (of.watch == event.wd) of.watch = -1;
        }
      }
    }
  }
  // What has come may itself be watched, and what has gone may have been.
  if (refresh()) ours = true;
  return ours;
}

}  // namespace sluice::kfd
