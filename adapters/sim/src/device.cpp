#include "device.hpp"

#include "driver.hpp"
#include "engine.hpp"
#include "fuse_fs.hpp"
#include "loop.hpp"
#include "os_linux.hpp"
#include "rm_driver.hpp"
#include "root_directory.hpp"
#include "tree.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace sluice::sim {

namespace {

void check_fuse() {
  const unique_fd fuse{open("/dev/fuse", O_RDWR | O_CLOEXEC)};
  if (fuse) return;
  switch (errno) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      throw std::runtime_error{
          "cannot open /dev/fuse: the device does not exist; run 'modprobe fuse', or start the "
          "container with '--device /dev/fuse'"};
    case EACCES:
    case EPERM:
      throw std::runtime_error{
          "cannot open /dev/fuse: permission denied; run sluice-sim as root, or start the "
          "container with '--device /dev/fuse --cap-add SYS_ADMIN'"};
    default:
      throw std::runtime_error{std::string{"cannot open /dev/fuse: "} +
                               std::strerror(errno)};  // NOLINT: one thread yet.
  }
}

/// Calls the driver's reap() while processes use the device: nobody announces an exec.
class reaper {
 public:
  static constexpr long interval_ns = 5'000'000;

  reaper(realtime_loop& loop, std::function<void()> reap)
      : loop_{loop}, timer_{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)} {
    loop_.watch(timer_.get(), [this, reap = std::move(reap)] {
      reap();
      if (processes_ != 0) arm();
    });
  }
  reaper(const reaper&) = delete;
  reaper& operator=(const reaper&) = delete;
  ~reaper() { loop_.unwatch(timer_.get()); }

  void process_changed(bool appeared) {
    processes_ += appeared ? 1 : -1;
    if (appeared && processes_ == 1) arm();
  }

 private:
  // One expiry at a time: a periodic timerfd stops until it is read, and the loop reads none.
  void arm() {
    itimerspec setting{};
    setting.it_value.tv_nsec = interval_ns;
    timerfd_settime(timer_.get(), 0, &setting, nullptr);
  }

  realtime_loop& loop_;
  unique_fd timer_;
  int processes_ = 0;
};

/// A device does not wait until its users let it onto a processor. It sleeps except for some
/// microseconds per event, so real-time priority starves nobody. Where that is refused, it is
/// later, and says how much (lateness_ns).
void run_ahead_of_users() {
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_RR);
  if (sched_setscheduler(0, SCHED_RR, &lowest) != 0) setpriority(PRIO_PROCESS, 0, -10);
}

/// SIGINT, SIGTERM and SIGHUP as a descriptor.
unique_fd block_stop_signals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&stops, number);
  sigprocmask(SIG_BLOCK, &stops, nullptr);
  signal(SIGPIPE, SIG_IGN);  // A debugger may close its end of the event pipe.
  return unique_fd{signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK)};
}

}  // namespace

void run_device(const device_options& options, const std::function<void()>& ready) {
  check_fuse();
  const auto stops = block_stop_signals();
  run_ahead_of_users();

  engine planned{clock::now()};
  realtime_loop loop{planned};
  // The order matters: what comes later uses what comes before.
  std::unique_ptr<device_driver> simulated;
  os_linux system{loop, [&simulated] { simulated->reap(); }};
  driver* kfd = nullptr;
  if (options.node.driver == driver_kind::nvidia) {
    simulated = std::make_unique<rm_driver>(planned, system, options.node);
  } else {
    auto made = std::make_unique<driver>(planned, system, options.node);
    kfd = made.get();
    simulated = std::move(made);
  }
  root_directory root{options.root, options.node};
  reaper exec_watch{loop, [&simulated] { simulated->reap(); }};
  fuse_fs files{loop,
                *simulated,
                kfd,
                static_tree{options.node},
                {.mountpoint = root.mountpoint(), .allow_other = geteuid() == 0}};

  simulated->on_process = [&](pid_t pid, bool appeared) {
    if (kfd != nullptr) {
      files.process_changed(pid, appeared);
      if (appeared) {
        std::vector<root_directory::process_pasid> pasids;
        for (const auto gpu : kfd->gpus_of(pid)) pasids.push_back({gpu, kfd->pasid_of(pid, gpu)});
        root.process_appeared(pid, pasids);
      } else {
        root.process_disappeared(pid);
      }
    }
    exec_watch.process_changed(appeared);
  };
  if (kfd != nullptr) {
    kfd->on_queue = [&files](pid_t pid) { files.queues_changed(pid); };
    system.set_file_folder(root.mountpoint(), fuse_fs::handed_folder, fuse_fs::handed_file_of);
    kfd->on_smi_event = [&files](std::uint64_t client) { files.smi_event(client); };
  }
  loop.on_late = [&simulated](duration late) { simulated->lateness.record(late); };
  bool unmounted = false;
  files.on_unmounted = [&] {
    unmounted = true;
    loop.stop();
  };
  loop.watch(stops.get(), [&loop] { loop.stop(); });

  ready();
  loop.run();
  // The processes that still use the device must not announce their end to what is being removed.
  simulated->on_process = nullptr;
  if (kfd != nullptr) {
    kfd->on_queue = nullptr;
    kfd->on_smi_event = nullptr;
  }
  if (unmounted) {
    throw std::runtime_error{"simulated device stopped: another process unmounted " +
                             root.mountpoint() + "; start sluice-sim again"};
  }
}

}  // namespace sluice::sim
