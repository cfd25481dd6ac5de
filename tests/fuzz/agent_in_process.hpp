#pragma once
/// \file
/// sluice-agent's own loop and lanes in a program that tests them, with a driver that answers in
/// this process's memory: the calls of all threads for a KFD device end there. For one source file
/// of a program.

#include "agent_loop.hpp"
#include "fuzz.hpp"
#include "host_line.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/kfd/device.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"

namespace sluice::fuzz {
namespace {

using namespace std::chrono_literals;
namespace uapi = kfd::uapi;

constexpr std::array<std::uint32_t, 2> gpus{51110, 51367};
constexpr std::uint32_t queues_each = 4;  // Two on each GPU.

/// Does what it is told, and remembers who is off the GPU. Some calls it refuses. Threading: any.
class driver {
 public:
  struct options {
    std::set<pid_t> users = {};
    std::vector<std::uint8_t> refusals = {};  ///< Of the debug trap: one in eight, as they say.
    bool batch_commands = false;
    std::optional<int> batch_calls = {};  ///< That come before the one that is refused.
    bool by_process = false;              ///< A session is the process's, not the tracing thread's.
  };

  void start(options how) {
    const std::scoped_lock held{mutex_};
    how_ = std::move(how);
    next_refusal_ = 0;
    require_all_run();
  }
  void require_all_run() const {
    require(suspended_.empty(), "whoever was suspended runs again");
    require(held_.empty(), "whoever was held runs again");
    require(enabled_.empty(), "no session is left");
  }
  void add_user(pid_t pid) {
    const std::scoped_lock held{mutex_};
    how_.users.insert(pid);
  }
  /// Its memory is gone, and all that hung on it.
  void lose(pid_t pid) {
    const std::scoped_lock held{mutex_};
    enabled_.erase(pid);
    for (auto* const each : {&suspended_, &held_})
      std::erase_if(*each, [pid](const queue& one) { return one.first == pid; });
    gone_.insert(pid);
  }
  /// With other memory.
  void regain(pid_t pid) {
    const std::scoped_lock held{mutex_};
    gone_.erase(pid);
  }

  /// \return the value, or -errno.
  int call(std::uint32_t command, void* argument) {
    const std::scoped_lock held{mutex_};
    switch (command) {
      case uapi::AMDKFD_IOC_GET_VERSION:
        *static_cast<uapi::kfd_ioctl_get_version_args*>(argument) = {1, 17};
        return 0;
      case uapi::AMDKFD_IOC_DBG_TRAP:
        return trap(*static_cast<uapi::kfd_ioctl_dbg_trap_args*>(argument));
      case uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES: {
        auto& args = *static_cast<uapi::kfd_ioctl_batch_unmap_queues_args*>(argument);
        if (!how_.batch_commands) return -ENOTTY;
        if (how_.batch_calls && args.num_queues != 0 && (*how_.batch_calls)-- == 0) return -EIO;
        const bool marks = args.flags != 0;
        return each_entry(args.num_queues, args.queue_array_ptr, [&](const queue& one) {
          if (!marks) held_.insert(one);
          return true;
        });
      }
      case uapi::AMDKFD_IOC_FAST_REMAP: {
        auto& args = *static_cast<uapi::kfd_ioctl_fast_remap_args*>(argument);
        if (!how_.batch_commands) return -ENOTTY;
        if (args.queue_array_ptr == 0) {
          held_.clear();
          return 0;
        }
        return each_entry(args.num_queues, args.queue_array_ptr,
                          [&](const queue& one) { return held_.erase(one) != 0; });
      }
      case uapi::AMDKFD_IOC_SET_HQD_RESERVATION: {
        auto& args = *static_cast<uapi::kfd_ioctl_set_hqd_reservation_args*>(argument);
        require(args.online_percent + args.offline_percent == 100, "a share and the rest");
        return std::ranges::find(gpus, args.gpu_id) == gpus.end() ? -EINVAL : 0;
      }
      default: return -ENOTTY;
    }
  }

 private:
  using queue = std::pair<pid_t, std::uint32_t>;

  static std::uint32_t id_of(std::uint32_t word) {
    return word & ~(uapi::KFD_DBG_QUEUE_ERROR_MASK | uapi::KFD_DBG_QUEUE_INVALID_MASK);
  }
  template <class Entry>
  static std::span<Entry> array(std::uint32_t count, std::uint64_t at) {
    require(count == 0 || at != 0, "the driver does not check a null array");
    return {reinterpret_cast<Entry*>(at), count};  // NOLINT(performance-no-int-to-ptr)
  }
  /// \param change says whether it did something.
  template <class Change>
  int each_entry(std::uint32_t count, std::uint64_t at, Change change) {
    int done = 0;
    require(count <= uapi::KFD_BATCH_MAX_QUEUES, "no more than a call may name");
    for (auto& each : array<uapi::kfd_batch_queue_entry>(count, at)) {
      require(how_.users.contains(each.pid), "only who was attached to");
      const std::uint32_t id = id_of(each.queue_id);
      const bool changed = id < queues_each && !gone_.contains(each.pid) && change({each.pid, id});
      each.queue_id = changed ? id : id | uapi::KFD_DBG_QUEUE_INVALID_MASK;
      done += changed ? 1 : 0;
    }
    return done;
  }

  bool refuses() {
    return next_refusal_ < how_.refusals.size() && how_.refusals[next_refusal_++] % 8 == 0;
  }

  int trap(uapi::kfd_ioctl_dbg_trap_args& args) {
    const auto pid = static_cast<pid_t>(args.pid);
    // The agent tries on a process of its own who may use a session.
    if (!how_.users.contains(pid)) {
      require(args.op != uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, "only who was attached to");
      if (!how_.by_process) return -EPERM;
    }
    if (gone_.contains(pid)) return -ESRCH;
    if (args.op == uapi::KFD_IOC_DBG_TRAP_ENABLE) {
      if (enabled_.contains(pid)) return -EALREADY;
      if (refuses()) return -EBUSY;
      enabled_.insert(pid);
      auto* const info = array<uapi::kfd_runtime_info>(1, args.enable.rinfo_ptr).data();
      info->runtime_state = uapi::DBG_RUNTIME_STATE_ENABLED;
      return 0;
    }
    if (!enabled_.contains(pid)) return -EINVAL;
    switch (args.op) {
      case uapi::KFD_IOC_DBG_TRAP_DISABLE:
        enabled_.erase(pid);
        std::erase_if(suspended_, [pid](const queue& each) { return each.first == pid; });
        return 0;
      case uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES:
        if (refuses()) return -EPERM;
        return each_id(pid, args.suspend_queues.num_queues, args.suspend_queues.queue_array_ptr,
                       [this](const queue& one) { suspended_.insert(one); });
      case uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES:
        if (args.resume_queues.queue_array_ptr == 0) {
          std::erase_if(suspended_, [pid](const queue& each) { return each.first == pid; });
          return 0;
        }
        return each_id(pid, args.resume_queues.num_queues, args.resume_queues.queue_array_ptr,
                       [this](const queue& one) { suspended_.erase(one); });
      case uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT: {
        auto& to = args.queue_snapshot;
        const auto room = std::min(to.num_queues, queues_each);
        auto entries = array<uapi::kfd_queue_snapshot_entry>(room, to.snapshot_buf_ptr);
        for (std::uint32_t id = 0; id < room; ++id) {
          entries[id] = {};
          entries[id].queue_id = id;
          entries[id].gpu_id = gpus[id % gpus.size()];
          entries[id].queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
          entries[id].ring_base_address = std::uint64_t{0x10000} * (id + 1);
        }
        to.num_queues = queues_each;
        return 0;
      }
      case uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT: return 0;
      default: return -EAGAIN;  // No event.
    }
  }
  template <class Change>
  int each_id(pid_t pid, std::uint32_t count, std::uint64_t at, Change change) {
    int done = 0;
    require(count <= max_batch_queues, "no more queues than a batch has");
    for (auto& each : array<std::uint32_t>(count, at)) {
      const std::uint32_t id = id_of(each);
      if (id < queues_each) {
        change({pid, id});
        each = id;
        ++done;
      } else {
        each = id | uapi::KFD_DBG_QUEUE_INVALID_MASK;
      }
    }
    return done;
  }

  mutable std::mutex mutex_;
  options how_;
  std::set<pid_t> gone_;
  std::size_t next_refusal_ = 0;
  std::set<pid_t> enabled_;
  std::set<queue> suspended_;
  std::set<queue> held_;
};

driver& the_driver() {
  static driver one;
  return one;
}

std::uint64_t start_time_of(pid_t pid) {
  std::ifstream file{"/proc/" + std::to_string(pid) + "/stat"};
  std::string text;
  std::getline(file, text);
  std::istringstream fields{text.substr(text.rfind(')') + 2)};
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t start = 0;
  fields >> start;
  return start;
}

/// What the agent finds open when it starts, but for the page.
class inherited {
 public:
  inherited() {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket");
    host_ = move_up(ends[0]);
    put(ends[1], agent::control_fd);
    put(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), agent::agent_doorbell_fd);
    require(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0, "a bell");
    bell_ = move_up(ends[0]);  // Which this host never looks at: it fills.
    put(ends[1], agent::host_doorbell_fd);
    put(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)), agent::host_pidfd);
  }
  ~inherited() {
    hang_up();
    close(bell_);
    leave_free();
  }
  inherited(const inherited&) = delete;
  inherited& operator=(const inherited&) = delete;

  /// Nobody else's meanwhile: a sanitizer opens descriptors of its own.
  static void leave_free() {
    for (int fd = agent::control_fd; fd < agent::first_free_fd; ++fd)
      put(open("/dev/null", O_RDWR | O_CLOEXEC), fd);
  }
  int host() const { return host_; }
  void hang_up() {
    if (host_ >= 0) close(std::exchange(host_, -1));
  }
  static void put(int fd, int at) {
    require(fd >= 0, "a descriptor");
    if (fd == at) return;
    dup2(fd, at);
    close(fd);
  }

 private:
  static int move_up(int fd) {
    const int made = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    close(fd);
    return made;
  }
  int host_ = -1;
  int bell_ = -1;
};

/// The agent, all of it on one thread, as in the program. Lifetime: the page and what inherited
/// holds outlive it. Threading: the thread that made it.
class acting_agent {
 public:
  struct options {
    /// It hears of its targets by SIGCHLD, which every thread of the program then has blocked.
    bool watches_children = false;
    std::function<bool(pid_t, std::uint64_t)> admits = {};
  };

  /// Returns once it is ready.
  acting_agent(agent::shared_page& page, const options& how)
      : thread_([this, &page, how] { act(page, how); }) {
    ready_.wait();
  }
  ~acting_agent() {
    thread_.join();
    require(closed_, "every session comes to its end");
    the_driver().require_all_run();
  }
  acting_agent(const acting_agent&) = delete;
  acting_agent& operator=(const acting_agent&) = delete;

  bool over() const noexcept { return over_; }
  /// How often a lane handed its report over itself. It orders nothing.
  std::uint64_t reports_by_lanes() const noexcept {
    return by_lanes_.load(std::memory_order_relaxed);
  }

 private:
  void act(agent::shared_page& page, const options& how) {
    auto opened = kfd::device::open("/dev/null", [](std::string_view) {});
    require(opened.has_value(), "the device");
    agent::agent_loop* owner = nullptr;
    auto lanes =
        kfd::lanes::create(**opened, {.owner_watches_children = how.watches_children,
                                      .take_reports =
                                          [this, &owner] {
                                            const bool all = owner->take_reports();
                                            if (all)
                                              by_lanes_.fetch_add(1, std::memory_order_relaxed);
                                            return all;
                                          },
                                      .admits = how.admits,
                                      .say = [](std::string_view) {}});
    require(lanes.has_value(), "lanes");
    sigset_t read_here;
    sigemptyset(&read_here);
    if (how.watches_children) sigaddset(&read_here, SIGCHLD);
    agent::host_roles roles;
    agent::agent_loop acting{
        page,
        std::move(*lanes),
        60s,
        {.signals = unique_fd{signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK)},
         .events = unique_fd{epoll_create1(EPOLL_CLOEXEC)},
         .timer = unique_fd{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)}},
        roles};
    owner = &acting;
    require(acting.prepare().has_value(), "an agent");
    ready_.count_down();
    acting.run();
    // Some times the agent's patience: a machine may stand still.
    for (int i = 0; i < 10 && !closed_; ++i) closed_ = acting.close();
    over_ = true;
  }

  std::atomic<std::uint64_t> by_lanes_{0};
  std::atomic<bool> over_{false};
  bool closed_ = false;  ///< The thread's, until it has ended.
  std::latch ready_{1};
  std::thread thread_;
};

}  // namespace
}  // namespace sluice::fuzz

// A thread sanitizer does not see what the kernel orders by its locks, and shall not see it here:
// the driver's lock, which every lane takes, would hide what the product leaves without order.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLUICE_UNSEEN_DRIVER
#endif
#endif
#ifdef SLUICE_UNSEEN_DRIVER
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
#endif

namespace sluice::fuzz {
namespace {

/// While it lives, the thread sanitizer sees nothing of what its thread does.
class unseen {
 public:
  unseen() {
#ifdef SLUICE_UNSEEN_DRIVER
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
#endif
  }
  ~unseen() {
#ifdef SLUICE_UNSEEN_DRIVER
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  unseen(const unseen&) = delete;
  unseen& operator=(const unseen&) = delete;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if ((request >> 8U & 0xffU) != 'K')
    return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
  const sluice::fuzz::unseen by_sanitizers;
  const int answer = sluice::fuzz::the_driver().call(static_cast<std::uint32_t>(request), argument);
  if (answer >= 0) return answer;
  errno = -answer;
  return -1;
}
