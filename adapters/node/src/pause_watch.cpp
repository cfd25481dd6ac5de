#include "pause_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

namespace sluice {
namespace {

/// Where inotify tells nothing.
constexpr int look_anyway_every = 1000;  // ms

}  // namespace

pause_watch::pause_watch(node_files where, listener tell)
    : where_(std::move(where)), tell_(std::move(tell)), file_(where_.disabled()) {}

result<void> pause_watch::start() {
  ended_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!ended_) return last_system_error();
  look();
  return start_quiet_thread(thread_, [this] { run(); });
}

void pause_watch::stop() {
  if (!thread_.joinable()) return;
  (void)::eventfd_write(ended_.get(), 1);
  thread_.join();
}

void pause_watch::run() {
  for (;;) {
    // One that is -1 is not looked at.
    std::array<pollfd, 2> any{{{.fd = ended_.get(), .events = POLLIN, .revents = 0},
                               {.fd = file_.fd(), .events = POLLIN, .revents = 0}}};
    (void)::poll(any.data(), any.size(), look_anyway_every);
    if (any[0].revents != 0) return;
    look();
  }
}

void pause_watch::look() {
  if (file_.changed()) tell_(paused_why(where_));
}

}  // namespace sluice
