// sluice-agent against a host that lies: a page of any size and seals, commands of any content,
// counts that cannot be, in any order and at any moment. The agent's own loop and lanes run, and
// two processes are traced; the driver answers in this process's memory.

// The program itself, but for its main(): nothing else sees what it makes of its host.
#define main agent_main
#include "sluice_agent.cpp"
#undef main

#include "fuzz.hpp"
#include <fuzzer/FuzzedDataProvider.h>

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdarg>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;
namespace uapi = kfd::uapi;

constexpr std::array<std::uint32_t, 2> gpus{51110, 51367};
constexpr std::uint32_t queues_each = 4;  // Two on each GPU.

/// Does what it is told, and remembers who is off the GPU. Some calls it refuses.
class driver {
 public:
  void start(std::set<pid_t> users, bool batch_commands, std::vector<std::uint8_t> refusals) {
    const std::scoped_lock held{mutex_};
    users_ = std::move(users);
    batch_commands_ = batch_commands;
    refusals_ = std::move(refusals);
    next_refusal_ = 0;
    require_all_run();
  }
  void require_all_run() const {
    fuzz::require(suspended_.empty(), "whoever was suspended runs again");
    fuzz::require(held_.empty(), "whoever was held runs again");
    fuzz::require(enabled_.empty(), "no session is left");
  }
  /// The end of the process is the kernel's to clean up after.
  void forget() {
    const std::scoped_lock held{mutex_};
    suspended_.clear();
    held_.clear();
    enabled_.clear();
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
        if (!batch_commands_) return -ENOTTY;
        const bool marks = args.flags != 0;
        return each_entry(args.num_queues, args.queue_array_ptr, [&](const queue& one) {
          if (!marks) held_.insert(one);
          return true;
        });
      }
      case uapi::AMDKFD_IOC_FAST_REMAP: {
        auto& args = *static_cast<uapi::kfd_ioctl_fast_remap_args*>(argument);
        if (!batch_commands_) return -ENOTTY;
        if (args.queue_array_ptr == 0) {
          held_.clear();
          return 0;
        }
        return each_entry(args.num_queues, args.queue_array_ptr,
                          [&](const queue& one) { return held_.erase(one) != 0; });
      }
      case uapi::AMDKFD_IOC_SET_HQD_RESERVATION: {
        auto& args = *static_cast<uapi::kfd_ioctl_set_hqd_reservation_args*>(argument);
        fuzz::require(args.online_percent + args.offline_percent == 100, "a share and the rest");
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
    fuzz::require(count == 0 || at != 0, "the driver does not check a null array");
    return {reinterpret_cast<Entry*>(at), count};  // NOLINT(performance-no-int-to-ptr)
  }
  /// \param change says whether it did something.
  template <class Change>
  int each_entry(std::uint32_t count, std::uint64_t at, Change change) {
    int done = 0;
    fuzz::require(count <= uapi::KFD_BATCH_MAX_QUEUES, "no more than a call may name");
    for (auto& each : array<uapi::kfd_batch_queue_entry>(count, at)) {
      fuzz::require(users_.contains(each.pid), "only who was attached to");
      const std::uint32_t id = id_of(each.queue_id);
      const bool changed = id < queues_each && change({each.pid, id});
      each.queue_id = changed ? id : id | uapi::KFD_DBG_QUEUE_INVALID_MASK;
      done += changed ? 1 : 0;
    }
    return done;
  }

  bool refuses() { return next_refusal_ < refusals_.size() && refusals_[next_refusal_++] % 8 == 0; }

  int trap(uapi::kfd_ioctl_dbg_trap_args& args) {
    const auto pid = static_cast<pid_t>(args.pid);
    // The agent tries on a process of its own who may use a session.
    if (!users_.contains(pid)) {
      fuzz::require(args.op != uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, "only who was attached to");
      return -EPERM;
    }
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
          entries[id].ring_base_address = 0x10000 * (id + 1);
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
    fuzz::require(count <= max_batch_queues, "no more queues than a batch has");
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
  std::set<pid_t> users_;
  bool batch_commands_ = false;
  std::vector<std::uint8_t> refusals_;
  std::size_t next_refusal_ = 0;
  std::set<pid_t> enabled_;
  std::set<queue> suspended_;
  std::set<queue> held_;
};

driver& the_driver() {
  static driver one;
  return one;
}

/// Two processes that do nothing, of this process's own. Nobody else is ever named to the agent.
class users {
 public:
  users() {
    for (auto& each : pids_) {
      const pid_t parent = getpid();
      each = fork();
      if (each == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        for (;;) pause();
      }
      fuzz::require(each > 0, "a process to trace");
    }
  }
  const std::array<pid_t, 2>& pids() const { return pids_; }
  static std::uint64_t start_time_of(pid_t pid) {
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

 private:
  std::array<pid_t, 2> pids_{};
};

const users& the_users() {
  static const users all;
  return all;
}

/// What the agent finds open when it starts, but for the page.
class inherited {
 public:
  inherited() {
    int ends[2];
    fuzz::require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket");
    host_ = move_up(ends[0]);
    put(ends[1], agent::control_fd);
    put(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), agent::agent_doorbell_fd);
    fuzz::require(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0, "a bell");
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
    fuzz::require(fd >= 0, "a descriptor");
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

class host {
 public:
  explicit host(FuzzedDataProvider& input) : input_(input) {}

  void run() {
    offer_page();
    agent::shared_page* const taken = agent::map_page();
    if (taken == nullptr) return;
    fuzz::require(own_ != nullptr, "only a whole page is taken, and one that cannot shrink");
    start_agent(*taken);
    for (int step = 0; step < 60 && input_.remaining_bytes() > 0; ++step) take_a_step();
    stop_agent();
    munmap(taken, sizeof *taken);
    munmap(own_, sizeof *own_);
  }

 private:
  bool few() { return input_.ConsumeIntegralInRange<int>(0, 15) == 0; }

  /// The handshake.
  void offer_page() {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const bool good = !few();
    const off_t size = good || few() ? off_t{sizeof(agent::shared_page)}
                                     : input_.ConsumeIntegralInRange<off_t>(0, 1 << 20);
    const int seals = good ? F_SEAL_SHRINK | F_SEAL_GROW : input_.ConsumeIntegralInRange(0, 31);
    (void)!ftruncate(fd, size);
    void* const at =
        size != off_t{sizeof(agent::shared_page)}
            ? MAP_FAILED
            : mmap(nullptr, sizeof(agent::shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) {
      own_ = new (at) agent::shared_page;
      if (!good) {
        own_->magic += few() ? 1 : 0;
        own_->version += few() ? 1 : 0;
        own_->size += few() ? 1 : 0;
      }
      own_->lease_renewed = clock::now().time_since_epoch().count();
      // Where the rings begin is the host's to say.
      if (few())
        own_->commands.written = own_->commands.taken = input_.ConsumeIntegral<std::uint32_t>();
      if (few())
        own_->reports.written = own_->reports.taken = input_.ConsumeIntegral<std::uint32_t>();
      written_ = own_->commands.written;
      taken_ = own_->reports.taken;
    }
    (void)fcntl(fd, F_ADD_SEALS, seals);
    inherited::put(fd, agent::memory_fd);
  }

  void start_agent(agent::shared_page& page) {
    const bool batched = input_.ConsumeBool();
    the_driver().start({the_users().pids().begin(), the_users().pids().end()}, batched,
                       input_.ConsumeBytes<std::uint8_t>(8));
    auto opened = kfd::device::open("/dev/null", [](std::string_view) {});
    fuzz::require(opened.has_value(), "the device");
    device_ = std::move(*opened);
    agent::agent* const* const owner = &owner_;
    auto lanes =
        kfd::lanes::create(*device_, {.take_reports = [owner] { return (*owner)->take_reports(); },
                                      .say = [](std::string_view) {}});
    fuzz::require(lanes.has_value(), "lanes");
    sigset_t none;
    sigemptyset(&none);
    acting_ = std::make_unique<agent::agent>(
        page, std::move(*lanes), 60s, nullptr,
        kfd::unique_fd{signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK)},
        kfd::unique_fd{epoll_create1(EPOLL_CLOEXEC)},
        kfd::unique_fd{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)});
    owner_ = acting_.get();
    fuzz::require(acting_->prepare().has_value(), "an agent");
    over_ = false;
    thread_ = std::thread([this] {
      acting_->run();
      // As in the program, on the thread that made the rest.
      closed_ = acting_->close();
      over_ = true;
    });
  }
  void stop_agent() {
    wait([this] { return own_->commands.taken.load() == written_; });
    descriptors_.hang_up();
    thread_.join();
    acting_.reset();
    fuzz::require(closed_, "every session comes to its end");
    the_driver().require_all_run();
  }

  void take_a_step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 9)) {
      case 0: own_->lease_renewed = input_.ConsumeIntegral<std::int64_t>(); break;
      case 1:
        if (few()) own_->commands.written = written_ = input_.ConsumeIntegral<std::uint32_t>();
        break;
      case 2: own_->commands.taken = input_.ConsumeIntegral<std::uint32_t>(); break;
      case 3:
        if (few()) own_->reports.taken = taken_ = input_.ConsumeIntegral<std::uint32_t>();
        break;
      case 4: own_->reports.written = input_.ConsumeIntegral<std::uint32_t>(); break;
      case 5: take_reports(); break;
      case 6: wait([this] { return own_->commands.taken.load() == written_; }); break;
      case 7: {
        const char said = 'x';
        (void)::send(descriptors_.host(), &said, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      }
      default: send();
    }
  }

  void send() {
    agent::command what;
    if (few()) {
      const auto bytes = input_.ConsumeBytes<std::uint8_t>(sizeof what);
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(&what));
    } else {
      what.type = static_cast<agent::command_type>(input_.ConsumeIntegralInRange<int>(0, 4));
      what.target = what.work.target =
          process_id{input_.ConsumeIntegralInRange<std::uint64_t>(0, 3)};
      what.gpu = what.work.gpu = few() ? gpu_id{input_.ConsumeIntegral<std::uint32_t>()}
                                       : gpu_id{input_.PickValueInArray(gpus)};
      what.offline_share = input_.PickValueInArray({0.0, 0.25, 1.0, -1.0, 7.0,
                                                    std::numeric_limits<double>::quiet_NaN(),
                                                    std::numeric_limits<double>::infinity()});
      what.work.id = input_.ConsumeIntegral<std::uint8_t>();
      what.work.kind =
          static_cast<command_kind>(few() ? 9 : input_.ConsumeIntegralInRange<int>(0, 1));
      what.work.count = few() ? input_.ConsumeIntegral<std::uint16_t>()
                              : input_.ConsumeIntegralInRange<std::uint16_t>(0, 5);
      for (std::size_t i = 0; i < 5; ++i)
        what.work.queues[i] =
            driver_queue_id{few() ? input_.ConsumeIntegral<std::uint32_t>()
                                  : input_.ConsumeIntegralInRange<std::uint32_t>(0, 5)};
    }
    // Whoever is named may be traced: nobody but the two.
    const auto& pids = the_users().pids();
    what.pid = few() ? input_.PickValueInArray({0, -1, getpid(), std::numeric_limits<pid_t>::min(),
                                                std::numeric_limits<pid_t>::max()})
                     : input_.PickValueInArray(pids);
    what.start_time = std::ranges::find(pids, what.pid) == pids.end() || few()
                          ? 1
                          : users::start_time_of(what.pid);
    auto& slot = own_->commands.slots[written_ % agent::most_commands];
    std::memcpy(static_cast<void*>(&slot), &what, sizeof what);
    own_->commands.written.store(++written_, std::memory_order_release);
    eventfd_write(agent::agent_doorbell_fd, 1);
    // It may change its mind while the agent reads.
    if (few()) slot.work.count = input_.ConsumeIntegral<std::uint16_t>();
    if (input_.ConsumeBool()) take_reports();
  }
  void take_reports() {
    while (taken_ != own_->reports.written.load(std::memory_order_acquire) && ++looks_ < 1000)
      own_->reports.taken.store(++taken_, std::memory_order_release);
    looks_ = 0;
  }
  /// Not for ever: an agent that found the counts impossible takes no more.
  template <class Condition>
  void wait(Condition condition) const {
    const auto until = clock::now() + 5ms;
    while (!condition() && !over_ && clock::now() < until) std::this_thread::sleep_for(100us);
  }

  FuzzedDataProvider& input_;
  inherited descriptors_;
  agent::shared_page* own_ = nullptr;  ///< The host's mapping.
  std::uint32_t written_ = 0;
  std::uint32_t taken_ = 0;
  int looks_ = 0;
  std::unique_ptr<kfd::device> device_;
  agent::agent* owner_ = nullptr;
  std::unique_ptr<agent::agent> acting_;
  std::thread thread_;
  std::atomic<bool> over_{false};
  bool closed_ = false;
};

}  // namespace

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if ((request >> 8U & 0xffU) != 'K')
    return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
  const int answer = the_driver().call(static_cast<std::uint32_t>(request), argument);
  if (answer >= 0) return answer;
  errno = -answer;
  return -1;
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  (void)the_users();
  // What a shell may have left open there; libFuzzer has opened nothing yet.
  inherited::leave_free();
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  host one{input};
  one.run();
  return 0;
}
