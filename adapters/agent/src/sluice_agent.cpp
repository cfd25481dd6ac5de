/// \file
/// sluice-agent: the process that acts. It owns the node's lock, opens the device, traces the
/// targets and performs the batches; it resumes everything and ends as soon as its host seems gone.

#include "confinement.hpp"
#include "lease.hpp"
#include "protocol.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/kfd/device.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/process_pause.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/standard_error.hpp"
#include "sluice/roles/target_rules.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// While the host does not take reports.
constexpr duration full_ring_retry = 1ms;
/// How long the sessions may take to close before the kernel is left to close them.
constexpr duration close_patience = 2s;

constexpr std::string_view host_is_gone = "the host has exited";
constexpr std::string_view host_has_closed = "the host has closed the connection";
constexpr std::string_view host_is_silent = "the host has been silent for longer than its lease";

struct settings {
  std::string device;
  std::string sysfs;
  std::string owner_lock;
  std::string roles;
  bool batch_commands = true;
  bool criu_pause = false;
  bool of_a_node = false;
  duration lease = 500ms;
  pid_t unpause = 0;
};

constexpr std::string_view usage =
    "sluice-agent: suspends and resumes GPU queues for a scheduler.\n"
    "The program that embeds the scheduler starts it and passes shared memory and\n"
    "sockets as descriptors 3 to 7. Do not start it by hand.\n"
    "  --device PATH      KFD device node\n"
    "  --sysfs PATH       the driver's sysfs tree\n"
    "  --owner-lock PATH  lock file that names the owner of the node; empty: no lock\n"
    "  --roles FILE       attach only to processes that are offline by table [roles]\n"
    "                     of FILE; the agent checks each process itself and ignores\n"
    "                     the roles that queues and clients announce\n"
    "  --of-a-node        the host obeys 'sluice pause'; record this in the lock file\n"
    "  --no-batch         suspend with the debug trap, not with batch commands\n"
    "  --criu-pause       pause a process as a whole if its queues cannot be suspended\n"
    "                     because it does not use the ROCm runtime's debug support\n"
    "  --lease-ms N       resume everything and exit after the host has been silent\n"
    "                     for N milliseconds (default: 500)\n"
    "  --help             print this text\n"
    "  --version          print the version; the host must come from the same build\n"
    "\n"
    "SIGTERM and SIGINT: resume everything and exit.\n"
    "If the agent is killed, its child, the guardian, unpauses the processes that\n"
    "--criu-pause paused. If both are killed, unpause each process by hand:\n"
    "  sluice-agent --unpause PID [--device PATH]\n"
    "                     resume process PID if it is still paused\n";

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "sluice-agent: %s\n", why.c_str());
  std::exit(2);  // NOLINT(concurrency-mt-unsafe): there is one thread yet
}

std::int32_t positive(std::string_view name, std::string_view value) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number <= 0)
    fail("invalid " + std::string{name} + " '" + std::string{value} +
         "': expected a positive number");
  return number;
}

settings parse(int argc, char** argv) {
  settings chosen;
  for (int index = 1; index < argc; ++index) {
    const std::string_view name = argv[index];
    if (name == "--help") {
      std::fwrite(usage.data(), 1, usage.size(), stdout);
      std::exit(0);  // NOLINT(concurrency-mt-unsafe): there is one thread yet
    }
    if (name == "--version") {
      std::puts("sluice-agent " SLUICE_VERSION);
      std::exit(0);  // NOLINT(concurrency-mt-unsafe): there is one thread yet
    }
    if (name == "--no-batch") {
      chosen.batch_commands = false;
      continue;
    }
    if (name == "--criu-pause") {
      chosen.criu_pause = true;
      continue;
    }
    if (name == "--of-a-node") {
      chosen.of_a_node = true;
      continue;
    }
    if (name != "--device" && name != "--sysfs" && name != "--owner-lock" && name != "--lease-ms" &&
        name != "--unpause" && name != "--roles" && name != "--driver" && name != "--set")
      fail("unknown argument '" + std::string{name} + "'; see --help");
    if (++index == argc) fail(std::string{name} + " needs a value; see --help");
    const std::string_view value = argv[index];
    if (name == "--set" && value.starts_with("device=")) chosen.device = value.substr(7);
    if (name == "--set" && value.starts_with("sysfs=")) chosen.sysfs = value.substr(6);
    if (value == "batch_commands=false") chosen.batch_commands = false;
    if (value == "criu_pause=true") chosen.criu_pause = true;
    if (name == "--device") chosen.device = value;
    if (name == "--sysfs") chosen.sysfs = value;
    if (name == "--owner-lock") chosen.owner_lock = value;
    if (name == "--roles") chosen.roles = value;
    if (name == "--lease-ms") chosen.lease = std::chrono::milliseconds{positive(name, value)};
    if (name == "--unpause") chosen.unpause = positive(name, value);
  }
  if (chosen.unpause != 0) return chosen;
  struct stat control {};
  if (::fstat(control_fd, &control) != 0 || !S_ISSOCK(control.st_mode))
    fail(
        "cannot start: descriptor 3 is not the host's socket; the program that embeds the "
        "scheduler starts sluice-agent, so do not start it by hand; see --help");
  return chosen;
}

void send(const note& what, int pidfd = -1) noexcept {
  iovec data{const_cast<note*>(&what), sizeof(what)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  if (pidfd >= 0) {
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &pidfd, sizeof(int));
  }
  if (::sendmsg(control_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
  // Nobody listens, or too slowly: what was to be said goes where it may still be read. A host that
  // has gone needs no farewell.
  if (what.kind != note_kind::message && what.kind != note_kind::refused) return;
  // Never waiting for a reader: whoever stopped the host's terminal would stop the lease as well.
  log_to_standard_error("sluice-agent", "warning", what.get_text());
}

void say(note_kind kind, std::string_view words, const error_code& error = {}) noexcept {
  note what;
  what.kind = kind;
  what.error = plain_error{error};
  what.set_text(words);
  send(what);
}

/// Whether a descriptor is what its name in /proc says that it is, such as "anon_inode:[eventfd]".
bool is_named(int fd, std::string_view name) {
  std::array<char, 64> text;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
  return length > 0 &&
         std::string_view{text.data(), static_cast<std::size_t>(length)}.starts_with(name);
}

bool is_local_socket(int fd, int type) {
  const auto option = [fd](int which) {
    int value = -1;
    socklen_t size = sizeof(value);
    return ::getsockopt(fd, SOL_SOCKET, which, &value, &size) == 0 ? value : -1;
  };
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == type;
}

/// What the host passed is waited for and written to without any more thought, so it is of kinds
/// that make nobody wait: not a file of a file system that answers when it likes, say. And nothing
/// is received from the host: a message may bring descriptors along whose closing takes as long as
/// it wants to.
bool are_as_agreed() {
  return is_local_socket(control_fd, SOCK_SEQPACKET) &&
         is_local_socket(host_doorbell_fd, SOCK_DGRAM) &&
         is_named(agent_doorbell_fd, "anon_inode:[eventfd]") &&
         (is_named(host_pidfd, "anon_inode:[pidfd]") || is_named(host_pidfd, "pidfd:")) &&
         ::shutdown(control_fd, SHUT_RD) == 0 && ::shutdown(host_doorbell_fd, SHUT_RD) == 0;
}

shared_page* map_page() {
  struct stat file {};
  if (::fstat(memory_fd, &file) != 0 || file.st_size != off_t{sizeof(shared_page)}) return nullptr;
  // Without the seals a host that shrinks the file could kill the agent with SIGBUS at any time.
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if ((::fcntl(memory_fd, F_GET_SEALS) & needed) != needed) return nullptr;
  void* const memory =
      ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const page = static_cast<shared_page*>(memory);
  const bool same = page->magic == protocol_magic && page->version == protocol_version &&
                    page->size == sizeof(shared_page);
  return same ? page : nullptr;
}

class agent {
 public:
  agent(shared_page& page, std::unique_ptr<kfd::lanes> lanes, duration lease_length,
        const kfd::pause_guard* guard, unique_fd signals, unique_fd events, unique_fd timer)
      : page_(page),
        commands_(page.commands),
        reports_(page.reports),
        lanes_(std::move(lanes)),
        heartbeat_interval_(std::min<duration>(100ms, lease_length / 5)),
        lease_(lease_length, heartbeat_interval_, clock::now()),
        guard_fd_(guard != nullptr ? guard->gone_fd() : -1),
        signals_(std::move(signals)),
        events_(std::move(events)),
        timer_(std::move(timer)) {}

  result<void> prepare() const {
    for (const int fd : {int{control_fd}, int{agent_doorbell_fd}, int{host_pidfd}, signals_.get(),
                         lanes_->ready_fd(), guard_fd_, timer_.get()}) {
      if (fd < 0) continue;
      epoll_event event{};
      event.events = EPOLLIN;
      // The doorbell by edges: nobody has to read it.
      if (fd == agent_doorbell_fd) event.events |= EPOLLET;
      // Of the connection only its end, which is told in any case: nothing is received from it.
      if (fd == control_fd) event.events = 0;
      event.data.fd = fd;
      if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
    }
    return {};
  }

  /// \return why it ended.
  std::string_view run() {
    constexpr std::string_view damaged =
        "the memory shared with the host is damaged; the agent treats the host as dead";
    bool only_rung = false;
    for (;;) {
      const time_point now = clock::now();
      page_.heartbeat.store(now.time_since_epoch().count(), std::memory_order_release);
      bool again = false;  // soon, without anybody ringing
      if (!take_commands(again)) return damaged;
      lanes_->flush();
      // The lanes begin, and may need this processor for it: what else there is to do announces
      // itself, or has its time.
      if (!only_rung || again || !own_reports_.empty()) {
        bool pushed = false;
        if (!pass_reports_on(again, pushed)) return damaged;
        if (pushed) ring_host();
        // Nothing but this process's death resumes what the driver refuses to. The host is told,
        // takes it for lost, which is the truth, and starts another.
        if (lanes_->stranded())
          return "the driver refused to resume a process; the process resumes when the agent "
                 "ends";
        // A little early rather than by a wake-up of its own.
        if (now + heartbeat_interval_ / 2 >= next_check_) next_check_ = lanes_->check(now);
        lease_.renew(time_point{duration{page_.lease_renewed.load(std::memory_order_acquire)}},
                     now);
        if (lease_.lapsed(now)) return host_is_silent;
        wake_by(std::min({lease_.deadline(), now + heartbeat_interval_, next_check_,
                          again ? now + full_ring_retry : never}),
                now);
      }

      std::array<epoll_event, 8> events;
      turn_.unlock();
      const int count =
          ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), -1);
      turn_.lock();
      only_rung = true;
      for (int index = 0; index < count; ++index) {
        const int fd = events[static_cast<std::size_t>(index)].data.fd;
        if (fd == host_pidfd) return host_is_gone;
        // Nothing may stay paused without it. The next agent has another one.
        if (fd == guard_fd_) return "its guardian has exited";
        if (fd == control_fd) return host_has_closed;
        if (fd == signals_.get() && told_to_end()) return "it received a signal";
        only_rung &= fd == agent_doorbell_fd;
      }
    }
  }

  /// For lanes_options: by a lane, while the loop sleeps. Else, and where the loop has more to do
  /// about it, the loop is told.
  bool take_reports() {
    std::unique_lock turn{mutex_, std::try_to_lock};
    if (!turn) return false;
    bool again = false;
    bool pushed = false;
    const bool intact = pass_reports_on(again, pushed);
    const bool all = intact && !again && !lanes_->stranded();
    turn.unlock();  // Before somebody is woken in this thread's place.
    if (pushed) ring_host();
    return all;
  }

  /// \return false when a lane is stuck: then the end of the process must do.
  bool close() { return lanes_->stop(close_patience); }

  /// Whether the host ended in good order.
  bool goodbye_heard() const noexcept { return page_.goodbye.load(std::memory_order_acquire) != 0; }

 private:
  /// Takes what is there, at most one ring's worth, so that no host keeps the loop from its checks.
  /// \return false when the ring is broken.
  bool take_commands(bool& again) {
    for (std::uint32_t count = 0; count < most_commands; ++count) {
      // A host that takes no answers gets no more of them; they would fill the memory.
      if (own_reports_.size() >= most_reports) break;
      switch (commands_.pop(command_)) {
        case ring_status::done: break;
        case ring_status::would_wait: return true;
        case ring_status::broken: return false;
      }
      switch (command_.type) {
        case command_type::attach: attach(); break;
        case command_type::detach:
          // Unknown: it has ended by itself, and its report is on its way.
          (void)lanes_->detach(command_.target);
          break;
        case command_type::submit: submit(); break;
        case command_type::reserve: reserve(); break;
        case command_type::quantum: set_quantum(); break;
      }
    }
    again = true;
    return true;
  }

  /// At the latest. A timer that is early enough is left alone: most deadlines only move out.
  void wake_by(time_point when, time_point now) {
    if (timer_at_ > now && timer_at_ <= when) return;
    timer_at_ = when;
    const auto since = std::max(when.time_since_epoch(), duration{1});  // 0 would be none
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
    itimerspec at{};
    at.it_value = {seconds.count(), (since - seconds).count()};
    ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  }

  void attach() {
    const auto started = command_.pid > 0
                             ? lanes_->attach(command_.target, command_.pid, command_.start_time)
                             : result<void>{errc::unknown_target};
    if (started) return;
    report refused;
    refused.kind = report_kind::attached;
    refused.target = command_.target;
    refused.error = plain_error{started.error()};
    own_reports_.push_back(refused);
  }

  void submit() {
    batch& work = command_.work;
    work.count = std::min<std::uint16_t>(work.count, max_batch_queues);
    const auto taken = lanes_->submit(work);
    if (taken) return;
    const bool gone = taken.error() == errc::unknown_target;
    report answer;
    answer.kind = report_kind::completed;
    answer.target = work.target;
    answer.gpu = work.gpu;
    answer.result.id = work.id;
    answer.result.target = work.target;
    answer.result.gpu = work.gpu;
    answer.result.kind = work.kind;
    answer.result.count = work.count;
    answer.result.driver_errno = gone ? ESRCH : EBUSY;
    answer.result.queues = work.queues;
    // Not performed: that leaves everything as it was after a suspend, and in doubt after a resume.
    const outcome refused = work.kind == command_kind::suspend ? outcome::invalid : outcome::failed;
    answer.result.outcomes.fill(gone ? outcome::target_gone : refused);
    answer.result.started = answer.result.finished = clock::now();
    own_reports_.push_back(answer);
  }

  void reserve() {
    const auto taken = lanes_->reserve(command_.gpu, command_.offline_share);
    if (taken) return;
    report answer;
    answer.kind = report_kind::reserved;
    answer.gpu = command_.gpu;
    answer.offline_share = command_.offline_share;
    answer.error = plain_error{taken.error()};
    own_reports_.push_back(answer);
  }

  void set_quantum() {
    const auto taken = lanes_->set_quantum(command_.target, command_.gpu, command_.quantum);
    if (taken) return;
    report answer;
    answer.kind = report_kind::quantum_set;
    answer.target = command_.target;
    answer.gpu = command_.gpu;
    answer.quantum = command_.quantum;
    answer.error = plain_error{taken.error()};
    own_reports_.push_back(answer);
  }

  /// \return false when the ring is broken. `again` is set when the host must take some before the
  /// rest fits, `pushed` when there is something to ring for.
  bool pass_reports_on(bool& again, bool& pushed) {
    ring_status last = ring_status::done;
    for (;;) {
      if (!held_) {
        if (lanes_->next(report_)) {
          held_ = true;
        } else if (!own_reports_.empty()) {
          report_ = own_reports_.front();
          own_reports_.pop_front();
          held_ = true;
        } else {
          break;
        }
      }
      last = reports_.push(report_);
      if (last != ring_status::done) break;
      held_ = false;
      pushed = true;
    }
    if (last == ring_status::would_wait) again = true;
    return last != ring_status::broken;
  }

  /// Full: it has been rung for, and has not looked.
  static void ring_host() noexcept {
    (void)::send(host_doorbell_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  bool told_to_end() {
    bool end = false;
    bool children = false;
    std::array<signalfd_siginfo, 8> infos;
    for (;;) {
      const ssize_t got = ::read(signals_.get(), infos.data(), sizeof(infos));
      if (got <= 0) break;
      for (std::size_t index = 0; index < static_cast<std::size_t>(got) / sizeof(infos[0]); ++index)
        (infos[index].ssi_signo == SIGCHLD ? children : end) = true;
    }
    // One signal may stand for many children, whatever its siginfo says.
    if (children) lanes_->children_changed();
    return end;
  }

  /// Whoever has it may use what follows: the loop but for while it sleeps, or a lane. No lane
  /// waits for it. The loop may, for as long as a lane hands a report over: the one lock on the way
  /// from an event to its batch.
  std::mutex mutex_;
  std::unique_lock<std::mutex> turn_{mutex_};
  shared_page& page_;
  command_reader commands_;
  report_writer reports_;
  std::unique_ptr<kfd::lanes> lanes_;
  const duration heartbeat_interval_;
  lease lease_;
  const int guard_fd_;  ///< -1: there is none.
  unique_fd signals_;
  unique_fd events_;
  unique_fd timer_;
  time_point timer_at_{};
  time_point next_check_{};
  command command_;
  report report_;
  bool held_ = false;  // report_ waits for room
  std::deque<report> own_reports_;
};

result<void> confine(const confinement& how) {
  if (const auto dropped = drop_capabilities(how); !dropped) return dropped;
  return filter_system_calls(how);
}

/// Gives the pidfd of the maker of bells the highest number that there is, which nothing else can
/// then come to have. The others are enough for some thousand targets.
bool set_apart(kfd::bell_maker& bells) {
  constexpr rlim_t most = 16384;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  const rlim_t highest = std::min(files.rlim_cur, most) - 1;
  if (!bells.move_pidfd(static_cast<int>(highest))) return false;
  const rlimit below{highest, highest};
  return ::setrlimit(RLIMIT_NOFILE, &below) == 0;
}

/// Not a child of the host, so that the host's wait calls never meet it; in a session of its own,
/// so that neither Ctrl-C nor the terminal's end reaches it before the host has decided.
void leave_the_host() {
  const pid_t child = ::fork();
  if (child < 0) {
    const error_code error = last_system_error();
    say(note_kind::refused, "cannot start the agent: fork failed: " + error.message(), error);
    ::_exit(1);
  }
  if (child > 0) ::_exit(0);
  ::setsid();
  if (::chdir("/") != 0)
    say(note_kind::message,
        "cannot change the agent's working directory to /: " + last_system_error().message());
  // A core dump would keep every target as it is for as long as the dump takes. Not 0, which says
  // nothing to a program that takes dumps by a pipe (core_pattern); of 1 the kernel makes neither.
  if (const rlimit none{1, 1}; ::setrlimit(RLIMIT_CORE, &none) != 0) {
    const rlimit no_file{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_file);
  }
  // Each target takes several descriptors.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

/// What the agent refuses to do for a host that has fewer rights than itself: who may start it may
/// then do what its rights allow. \return an empty string when there is nothing to refuse.
std::string refused_privileges(const settings& chosen) {
  if (::getuid() != ::geteuid() || ::getgid() != ::getegid())
    return "sluice-agent is set-uid or set-gid, which is not allowed; remove these bits (chmod "
           "ug-s), let only its group execute it, and give it the file capability CAP_SYS_PTRACE "
           "(setcap)";
  // File capabilities. What they allow beyond tracing may reach the file system, so the host does
  // not choose what is opened and written there, nor goes round the lock that makes it one owner.
  if (::getauxval(AT_SECURE) == 0) return {};
  const kfd::roots own;
  const bool lock_fits =
      chosen.unpause != 0 || chosen.owner_lock == std::string_view{default_owner_lock};
  const bool sysfs_fits = chosen.unpause != 0 || chosen.sysfs == own.sysfs;
  if (chosen.device == own.device && sysfs_fits && lock_fits) return {};
  return "an agent with file capabilities only opens the default device " + own.device +
         ", sysfs tree " + own.sysfs + " and owner lock " + default_owner_lock +
         "; use these paths, or an agent without file capabilities";
}

/// With more rights than its host the agent does not do whatever that says: whom it attaches to is
/// what this file says, which is root's, or the defaults.
constexpr const char* own_configuration = "/etc/sluice/sluice.toml";

/// Whom the agent attaches to.
class admission {
 public:
  /// \return null: whomever the host names and the kernel lets it trace.
  static result<std::unique_ptr<admission>> make(const settings& chosen, std::string& reason) {
    using trust = roles::target_rules::trust;
    const bool privileged = ::getauxval(AT_SECURE) != 0;
    const std::string path = privileged ? own_configuration : chosen.roles;
    if (path.empty()) return std::unique_ptr<admission>{};
    auto rules =
        roles::target_rules::load(path, privileged ? trust::roots_files : trust::any_file, reason);
    if (!rules) return rules.error();
    return std::unique_ptr<admission>{new admission{path, std::move(*rules)}};
  }

  /// Any thread.
  bool admits(pid_t pid, std::uint64_t start_time) {
    std::string why;
    const role what = rules_->role_of({pid, start_time}, why);
    if (what == role::offline) return true;
    const auto count = refused_.fetch_add(1) + 1;
    if (!why.empty()) why.insert(0, ": ");
    say(note_kind::message, "refused to attach to process " + std::to_string(pid) + ": it is " +
                                (what == role::online ? "online" : "not offline") +
                                " according to the agent's own rules in " + path_ + why + " (" +
                                std::to_string(count) + " refused so far)");
    return false;
  }

 private:
  admission(std::string path, std::unique_ptr<roles::target_rules> rules)
      : path_(std::move(path)), rules_(std::move(rules)) {}

  const std::string path_;
  const std::unique_ptr<roles::target_rules> rules_;
  std::atomic<std::uint64_t> refused_{0};
};

/// The host's pid, which its pidfd knows and nobody can fake. \return 0 when it cannot be had (no
/// /proc) or the host is gone: the agent then names itself.
pid_t host_pid() {
  std::ifstream info{"/proc/self/fdinfo/" + std::to_string(int{host_pidfd})};
  for (std::string line; std::getline(info, line);) {
    pid_t pid = 0;
    if (std::sscanf(line.c_str(), "Pid: %d", &pid) == 1) return std::max(pid, 0);
  }
  return 0;
}

/// A host that is gone or hangs reads no farewell: what became of it goes where operators read.
void say_if_the_host_failed(std::string_view why, bool goodbye_heard) {
  if (goodbye_heard) return;
  pollfd gone{host_pidfd, POLLIN, 0};
  if (::poll(&gone, 1, 0) > 0) why = host_is_gone;
  if (why != host_is_gone && why != host_is_silent && why != host_has_closed) return;
  log_to_standard_error("sluice-agent", "warning",
                        std::string{why} + "; the agent resumes everything and exits");
}

/// The operator's command. \return the exit status.
int unpause(settings chosen) {
  const auto complain = [](const std::string& words) {
    std::fprintf(stderr, "sluice-agent: %s\n", words.c_str());
  };
  const std::string name = "process " + std::to_string(chosen.unpause);
  const bool trusted = ::getauxval(AT_SECURE) == 0;
  const kfd::roots where = trusted ? kfd::roots::from_environment() : kfd::roots{};
  const bool own_tree = chosen.device.empty() || chosen.device == where.device;
  if (chosen.device.empty()) chosen.device = where.device;
  if (const std::string reason = refused_privileges(chosen); !reason.empty()) {
    complain(reason);
    return 1;
  }
  if (const auto dropped = drop_capabilities({.criu_pause = true}); !dropped) {
    complain(name + " was not unpaused: cannot drop capabilities: " + dropped.error().message());
    return 1;
  }
  // To trace is to disturb: not whom the driver does not know.
  const std::string users = where.sysfs + "/proc";
  const std::string user = users + "/" + std::to_string(chosen.unpause);
  const auto there = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  const bool lives = there("/proc/" + std::to_string(chosen.unpause));
  if (own_tree && lives && there(users) && !there(user)) {
    complain(name + " was not unpaused: it does not use the driver (no " + user + ")");
    return 1;
  }
  std::string reason;
  const auto found = kfd::unpause_process(chosen.device, chosen.unpause,
                                          [&reason](std::string_view words) { reason = words; });
  if (!found) {
    complain(name + " was not unpaused: " + (reason.empty() ? found.error().message() : reason));
    return 1;
  }
  std::printf("process %d %s\n", chosen.unpause,
              *found == kfd::found_state::paused ? "was paused; it runs again" : "was not paused");
  return 0;
}

int run(const settings& chosen) {
  if (chosen.unpause != 0) return unpause(chosen);
  ::umask(022);
  leave_the_host();

  std::string reason;
  error_code error;
  const message_sink keep = [&reason](std::string_view words) { reason = words; };
  const auto refuse = [&] {
    if (reason.empty()) reason = "cannot start the agent: " + error.message();
    say(note_kind::refused, reason, error);
    return 1;
  };

  if (reason = refused_privileges(chosen); !reason.empty()) {
    error = error_code{EPERM, boost::system::system_category()};
    return refuse();
  }

  // Here, where names of users may still be looked up.
  auto rules = admission::make(chosen, reason);
  if (!rules) {
    error = rules.error();
    return refuse();
  }
  const std::unique_ptr<admission> admitted = std::move(*rules);

  // First of all: it shall have nothing of ours, neither threads nor the lock. It has of this
  // process's rights those that it needs, and its standard error.
  std::unique_ptr<kfd::pause_guard> guard;
  if (chosen.criu_pause) {
    auto started = kfd::pause_guard::start(
        [] { return confine({.who = confined::guardian, .criu_pause = true}).has_value(); });
    if (!started) {
      error = started.error();
      reason = "cannot start the agent's guardian: " + error.message();
      return refuse();
    }
    guard = std::move(*started);
  }

  // Not ignored, as it may be inherited from the host: it would never be sent. It is sent for stops
  // only where lanes do not hear of them in a better way: to all of the process, it wakes the loop.
  // For that they need rings, and no filter sees what goes through those: so this process makes
  // none.
  std::unique_ptr<kfd::bell_maker> bells;
  if (kfd::lanes::hear_stops()) {
    auto started =
        kfd::bell_maker::start([] { return confine({.who = confined::bell_maker}).has_value(); });
    if (started && set_apart(**started)) bells = std::move(*started);
  }
  const bool lanes_hear = bells != nullptr;
  struct sigaction of_children {};
  of_children.sa_handler = SIG_DFL;
  of_children.sa_flags = lanes_hear ? SA_NOCLDSTOP : 0;
  ::sigaction(SIGCHLD, &of_children, nullptr);
  // Before the first thread, so that all have it.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t read_here;
  sigemptyset(&read_here);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&read_here, signal);
  if (!lanes_hear) sigaddset(&read_here, SIGCHLD);
  unique_fd signals{::signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK)};
  unique_fd events{::epoll_create1(EPOLL_CLOEXEC)};
  unique_fd timer{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
  const unique_fd self{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  if (!signals || !events || !timer || !self) {
    error = last_system_error();
    return refuse();
  }

  shared_page* const page = are_as_agreed() ? map_page() : nullptr;
  if (page == nullptr) {
    error = errc::not_supported;
    reason =
        "agent and host come from different builds; install both from the same package, or set "
        "SLUICE_AGENT to the matching agent";
    return refuse();
  }

  std::unique_ptr<node_lock> lock;
  if (!chosen.owner_lock.empty()) {
    using kind = node_lock::kind;
    auto taken = node_lock::acquire(
        chosen.owner_lock, keep,
        {.on_behalf_of = host_pid(), .what = chosen.of_a_node ? kind::node : kind::scheduler});
    if (!taken) {
      error = taken.error();
      return refuse();
    }
    lock = std::move(*taken);
  }
  auto opened = kfd::device::open(chosen.device, keep);
  if (!opened) {
    error = opened.error();
    return refuse();
  }
  agent* owner = nullptr;  // Before the first lane.
  std::function<bool(pid_t, std::uint64_t)> admits;
  if (admitted)
    admits = [&](pid_t pid, std::uint64_t start) { return admitted->admits(pid, start); };
  auto lanes = kfd::lanes::create(
      **opened, {.owner_watches_children = !lanes_hear,
                 .bells = bells.get(),
                 .take_reports = [&owner] { return owner->take_reports(); },
                 .batch_commands = chosen.batch_commands,
                 .guard = guard.get(),
                 .admits = admits,
                 .sysfs = chosen.sysfs,
                 .say = [](std::string_view words) { say(note_kind::message, words); }});
  if (!lanes) {
    error = lanes.error();
    return refuse();
  }
  // All that needs more than to act is done: what was to be opened is open, and every thread is
  // still to come.
  const auto alone = confine({.criu_pause = chosen.criu_pause,
                              .reservations = (*lanes)->takes_reservations(),
                              .bells = bells ? bells->pidfd() : -1});
  if (!alone) {
    error = alone.error();
    reason = "cannot drop the agent's capabilities or install its system call filter: " +
             error.message();
    return refuse();
  }
  agent acting{*page,           std::move(*lanes),  chosen.lease,
               guard.get(),     std::move(signals), std::move(events),
               std::move(timer)};
  owner = &acting;
  if (const auto prepared = acting.prepare(); !prepared) {
    error = prepared.error();
    return refuse();
  }
  page->heartbeat.store(clock::now().time_since_epoch().count(), std::memory_order_release);
  note ready;
  ready.kind = note_kind::ready;
  send(ready, self.get());

  const std::string_view why = acting.run();
  const bool closed = acting.close();
  say(note_kind::farewell, why);
  say_if_the_host_failed(why, acting.goodbye_heard());
  // A stuck lane cannot be joined. The end of the process makes the kernel do what is left.
  if (!closed) ::_exit(1);
  return 0;
}

}  // namespace

}  // namespace sluice::agent

int main(int argc, char** argv) { return sluice::agent::run(sluice::agent::parse(argc, argv)); }
