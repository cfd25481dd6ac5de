#define FUSE_USE_VERSION 314
#include "fuse_fs.hpp"

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace sluice::sim {

namespace {

/// libfuse reports its errors by a log function without a context: the last one is kept, to be put
/// into the one line that the user gets.
std::string last_fuse_message;  // NOLINT: start-up and shutdown only, on one thread.

void keep_message(fuse_log_level, const char* format, va_list arguments) {
  std::array<char, 512> text{};
  // Threads that serve may report, too; the text is of use while none runs.
  const int length = vsnprintf(text.data(), text.size(), format, arguments);
  if (length <= 0) return;
  static std::mutex guard;
  const std::lock_guard lock{guard};
  last_fuse_message.assign(text.data(), std::strcspn(text.data(), "\n"));
}

}  // namespace

/// Room for a request as it comes from the kernel; one per thread that receives.
struct fuse_fs::receiver {
  receiver() = default;
  receiver(const receiver&) = delete;
  receiver& operator=(const receiver&) = delete;
  ~receiver() { std::free(buffer.mem); }  // NOLINT: libfuse allocated it by malloc.
  fuse_buf buffer{};
};

std::optional<std::uint64_t> fuse_fs::handed_file_of(std::uint64_t inode) {
  if (unpack(inode).kind != handed_file) return std::nullopt;
  return unpack(inode).item;
}

void fuse_fs::forget_attributes(std::uint64_t id) const {
  // Refused where the kernel keeps none.
  (void)fuse_lowlevel_notify_inval_inode(session_, id, -1, 0);
}

void fuse_fs::queues_changed(pid_t pid) const {
  if (const auto process = generated_.process_of(pid))
    forget_attributes(pack({queues_directory, *process, 0}));
}

void fuse_fs::process_changed(pid_t pid, bool appeared) {
  forget_attributes(names_.processes());
  if (const auto old = generated_.process_of(pid)) {
    // Whoever has them open sees that nothing is in them.
    forget_attributes(pack({process_directory, *old, 0}));
    forget_attributes(pack({queues_directory, *old, 0}));
  }
  generated_.process_changed(pid, appeared);
}

void fuse_fs::smi_event(std::uint64_t client) {
  const auto found = smi_polls_.find(client);
  if (found != smi_polls_.end()) fuse_lowlevel_notify_poll(found->second);
}

fuse_fs::fuse_fs(realtime_loop& loop, device_driver& device, driver* kfd, static_tree names,
                 options how)
    : loop_{loop},
      device_{device},
      kfd_{kfd},
      names_{std::move(names)},
      generated_{device, kfd, names_},
      mountpoint_{std::move(how.mountpoint)},
      loop_thread_{gettid()},
      stop_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  fuse_set_log_func(keep_message);
  const fuse_lowlevel_ops answering = operations();
  std::vector<std::string> words{"sluice-sim", "-o",
                                 "default_permissions,fsname=sluice-sim,subtype=sluice-sim"};
  if (how.allow_other) words.back() += ",allow_other";
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  fuse_args parsed = FUSE_ARGS_INIT(static_cast<int>(arguments.size()), arguments.data());
  session_ = fuse_session_new(&parsed, &answering, sizeof answering, this);
  fuse_opt_free_args(&parsed);
  const auto fail = [&](const std::string& what) {
    if (session_ != nullptr) fuse_session_destroy(session_);
    throw std::runtime_error{what + (last_fuse_message.empty() ? "" : ": " + last_fuse_message)};
  };
  if (session_ == nullptr) fail("cannot start libfuse");
  if (fuse_session_mount(session_, mountpoint_.c_str()) != 0) {
    fail("cannot mount a FUSE file system at " + mountpoint_);
  }
  // All sleep in epoll, where a stop can wake them, and never in the read itself. The loop is the
  // first to watch, so a request goes to it if it sleeps: one thread less to wake for most calls.
  const int requests_fd = fuse_session_fd(session_);
  fcntl(requests_fd, F_SETFL, fcntl(requests_fd, F_GETFL) | O_NONBLOCK);
  loops_receiver_ = std::make_unique<receiver>();
  loop_.watch_shared(requests_fd, [this] {
    if (!receive(*loops_receiver_)) loop_.unwatch(fuse_session_fd(session_));
  });
  for (unsigned i = 0; i < std::max(how.threads, 2U); ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

fuse_fs::~fuse_fs() {
  unmounting_.store(true, std::memory_order_release);
  eventfd_write(stop_.get(), 1);
  threads_.clear();
  loop_.unwatch(fuse_session_fd(session_));
  // Nobody else will answer these.
  for (const auto& [number, each] : calls_) fuse_reply_err(each.waiting, ENODEV);
  for (const auto& [client, waiting] : smi_polls_) fuse_pollhandle_destroy(waiting);
  // Forced, so that clients that keep the device open are cut off instead of waiting for nobody.
  // Who is not root has only libfuse's polite way, which notices if there is nothing left to do.
  umount2(mountpoint_.c_str(), MNT_FORCE | MNT_DETACH);
  fuse_session_unmount(session_);
  fuse_session_destroy(session_);
}

/// Receives and processes one request, if there is one. \return false when none will come any more.
bool fuse_fs::receive(receiver& into) {
  const std::lock_guard lock{receive_mutex_};
  const int received = fuse_session_receive_buf(session_, &into.buffer);
  if (received == -EINTR || received == -EAGAIN) return true;
  if (received <= 0) {  // Unmounted by somebody else.
    loop_.post([this] {
      if (on_unmounted) on_unmounted();
    });
    return false;
  }
  fuse_session_process_buf(session_, &into.buffer);
  return true;
}

void fuse_fs::serve() {
  const unique_fd epoll{epoll_create1(EPOLL_CLOEXEC)};
  epoll_event event{};
  event.events = EPOLLIN | EPOLLEXCLUSIVE;  // One thread per request.
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fuse_session_fd(session_), &event);
  event.events = EPOLLIN;
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop_.get(), &event);
  receiver mine;
  for (;;) {
    if (epoll_wait(epoll.get(), &event, 1, -1) < 0 && errno == EINTR) continue;
    if (unmounting_.load(std::memory_order_acquire) || !receive(mine)) return;
  }
}

}  // namespace sluice::sim
