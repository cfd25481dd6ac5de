#include "sluice/kfd/process_pause.hpp"

#include "criu.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/kfd/tracee.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/standard_error.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// Between two attempts to unpause a process of a scheduler that is gone: at first, and at last.
constexpr duration first_retry = 10ms;
constexpr duration last_retry = 500ms;
/// How long the driver may refuse that. A process that somebody else traces is waited for without
/// an end, for nobody else would unpause it.
constexpr duration undo_patience = 60s;

struct message {
  std::uint64_t start_time = 0;
  pid_t pid = 0;
  bool held = false;  ///< Comes with the device's descriptor.
};

using process_key = std::pair<pid_t, std::uint64_t>;

union control_room {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

bool send(int line, const message& what, int device) noexcept {
  message copy = what;
  iovec data{&copy, sizeof(copy)};
  control_room room{};
  msghdr envelope{};
  envelope.msg_iov = &data;
  envelope.msg_iovlen = 1;
  if (device >= 0) {
    envelope.msg_control = &room;
    envelope.msg_controllen = sizeof(room);
    cmsghdr* const header = CMSG_FIRSTHDR(&envelope);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &device, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    // Not waiting: a guard that is stopped must not stop us.
    sent = ::sendmsg(line, &envelope, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == sizeof(copy);
}

/// \return false at the end of the line: all of the other process's threads are gone.
bool receive(int line, message& into, unique_fd& device) noexcept {
  iovec data{&into, sizeof(into)};
  control_room room{};
  msghdr envelope{};
  envelope.msg_iov = &data;
  envelope.msg_iovlen = 1;
  envelope.msg_control = &room;
  envelope.msg_controllen = sizeof(room);
  ssize_t got = 0;
  do {
    got = ::recvmsg(line, &envelope, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  device.reset();
  for (cmsghdr* header = CMSG_FIRSTHDR(&envelope); got > 0 && header != nullptr;
       header = CMSG_NXTHDR(&envelope, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    device.reset(fd);
  }
  return got == sizeof(into);
}

void complain(pid_t pid, const std::string& why) {
  log_to_standard_error("sluice-guardian", "error",
                        "process " + std::to_string(pid) + " is still paused: " + why);
}

/// Unpauses one process of a scheduler that is gone. On a thread of its own, with whose end the
/// kernel lets go of the process.
void undo(const process_key& which, int device) {
  const pid_t pid = which.first;
  const std::uint64_t start_time = which.second;
  std::string why;
  const message_sink keep = [&why](std::string_view words) { why = words; };
  duration pause = first_retry;
  bool complained = false;
  const auto again = [&] {
    if (!std::exchange(complained, true)) complain(pid, why);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, last_retry);
  };
  for (;;) {
    const auto seized = tracee::seize(pid, start_time, keep);
    if (!seized) {
      if (seized.error() == errc::unknown_target) return;
      // Traced by somebody else: the next scheduler, which unpauses what it attaches to, or gdb.
      again();
      continue;
    }
    const auto give_up = clock::now() + undo_patience;
    for (;;) {
      const int error = criu_unpause(device);
      // EINVAL: not paused, or not any more. ESRCH: it runs another program.
      if (error == 0 || error == EINVAL || error == ESRCH) return;
      if ((*seized)->service() == tracee::change::exited) return;
      why = "the driver refused the command UNPAUSE: " +
            boost::system::system_category().message(error) + "; run 'sluice-agent --unpause " +
            std::to_string(pid) + "' as root";
      if (clock::now() >= give_up) {
        complain(pid, why);
        return;
      }
      again();
    }
  }
}

/// The guard's life.
[[noreturn]] void watch(unique_fd line, const std::function<bool()>& confine) {
  ::setsid();
  ::prctl(PR_SET_NAME, "sluice-guardian");
  // What the other process has open, its sockets and its locks, ends with it and not with us.
  const auto kept = static_cast<unsigned>(line.get());
  if (kept > 3) ::syscall(SYS_close_range, 3U, kept - 1, 0U);
  ::syscall(SYS_close_range, kept + 1, ~0U, 0U);
  if (confine && !confine()) ::_exit(1);
  std::map<process_key, unique_fd> held;
  message heard;
  unique_fd device;
  while (receive(line.get(), heard, device)) {
    const process_key which{heard.pid, heard.start_time};
    if (heard.held)
      held[which] = std::move(device);
    else
      held.erase(which);
  }
  std::vector<std::thread> undoing;
  for (const auto& [which, fd] : held) {
    try {
      undoing.emplace_back(undo, which, fd.get());
    } catch (const std::system_error&) {
      undo(which, fd.get());  // It stays traced, and served by nobody, until we end.
    }
  }
  for (auto& each : undoing) each.join();
  ::_exit(0);
}

}  // namespace

result<std::unique_ptr<pause_guard>> pause_guard::start(const std::function<bool()>& confine) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return last_system_error();
  unique_fd ours{ends[0]};
  unique_fd theirs{ends[1]};
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t child = ::fork();
  const error_code error = child < 0 ? last_system_error() : error_code{};
  if (child == 0) {
    ours.reset();
    watch(std::move(theirs), confine);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error) return error;
  return std::unique_ptr<pause_guard>{new pause_guard{std::move(ours)}};
}

bool pause_guard::hold(pid_t pid, std::uint64_t start_time, int device) const noexcept {
  return send(line_.get(), {start_time, pid, true}, device);
}

void pause_guard::release(pid_t pid, std::uint64_t start_time) const noexcept {
  // Lost: at worst it unpauses what is not paused.
  (void)send(line_.get(), {start_time, pid, false}, -1);
}

result<found_state> unpause_process(const std::string& device, pid_t pid, const message_sink& say) {
  result<found_state> answer = errc::unknown_target;
  const auto act = [&] {
    const auto start_time = start_time_of(pid);
    if (!start_time) {
      say("there is no process " + std::to_string(pid));
      return;
    }
    const auto seized = tracee::seize(pid, *start_time, say);
    if (!seized) {
      answer = seized.error();
      return;
    }
    const auto taken = take_device(device, **seized, say);
    if (taken)
      answer = taken->was_paused ? found_state::paused : found_state::running;
    else
      answer = taken.error();
  };
  try {
    std::thread{act}.join();
  } catch (const std::system_error& error) {
    return error_code{error.code().value(), boost::system::system_category()};
  }
  return answer;
}

}  // namespace sluice::kfd
