#pragma once
/// \file
/// A best-effort process on the simulated device: it keeps kernels running and counts them where
/// the test can see it, whatever becomes of its pipes.

#include "family.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/sim/client.hpp"

namespace sluice::test {

class offline_target {
 public:
  struct options {
    int queues = 1;
    std::uint32_t gpu = 0;        ///< gpu_id; 0: the first.
    bool open_when_told = false;  ///< 'o' then opens the device; else it is open from the start.
    bool runtime = true;          ///< False: no debug session can suspend its queues.
    bool every_gpu = false;       ///< Its queues lie on all GPUs in turn.
    uid_t user = 0;  ///< Not 0: whose it is once it has opened the device at the start.
  };

  explicit offline_target(const kfd::roots& where) : offline_target(where, options()) {}
  offline_target(const kfd::roots& where, options how)
      : counters_(new (map()) counters),
        process_([this, where, how](int said, int told) { return live(where, how, said, told); }) {}
  ~offline_target() = default;

  pid_t pid() const { return process_.pid(); }
  std::uint64_t start_time() const { return start_time_of(pid()).value_or(0); }
  const family& process() const { return process_; }

  /// Orders: 'o' open, 'q' one more queue, 'd' destroy the newest queue, 'c' close the render
  /// nodes, 's' end the debug session with itself, 'S' the same and then begin one of its own, 'x'
  /// exec sleep, 'e' exit with status 7. Each is answered by the same letter once done ('r' by the
  /// start).
  bool obeys(char order) const {
    process_.tell(order);
    return process_.heard() == order;
  }
  void tell(char order) const { process_.tell(order); }
  bool says(char letter) const { return process_.heard() == letter; }

  std::uint64_t kernels() const { return counters_->kernels.load(); }
  std::uint64_t wrong() const { return counters_->wrong.load(); }

  /// Some of its kernels finish within the limit.
  bool runs(duration limit = patience) const {
    const std::uint64_t before = kernels();
    return eventually(limit, [&] { return kernels() >= before + 2; });
  }
  /// Returns true if no kernel of the process finishes for so long. The process counts its kernels
  /// once per round, so after two rounds the count includes all that finished before the call.
  bool stands_still(duration span = std::chrono::milliseconds{60}) const {
    await_two_rounds();
    const std::uint64_t before = kernels();
    std::this_thread::sleep_for(span);
    await_two_rounds();
    return kernels() == before;
  }

  /// Closes the calling process's descriptors of the first GPU's render node. The driver keeps the
  /// address space.
  static void close_render_nodes(const std::filesystem::path& device) {
    const auto node = std::filesystem::canonical(device.parent_path() / "dri/renderD128");
    std::vector<int> open;
    for (const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      std::error_code gone;
      if (std::filesystem::read_symlink(each.path(), gone) == node)
        open.push_back(std::stoi(each.path().filename()));
    }
    for (const int fd : open) ::close(fd);
  }

  /// DISABLE of the calling process's own session, which every driver allows.
  static bool end_own_session(const std::string& device) {
    const unique_fd node{::open(device.c_str(), O_RDWR | O_CLOEXEC)};
    kfd::uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(::getpid());
    args.op = kfd::uapi::KFD_IOC_DBG_TRAP_DISABLE;
    return ::ioctl(node.get(), kfd::uapi::AMDKFD_IOC_DBG_TRAP, &args) == 0;
  }
  /// ENABLE of the calling process for itself.
  static bool begin_own_session(const std::string& device) {
    const unique_fd node{::open(device.c_str(), O_RDWR | O_CLOEXEC)};
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    const unique_fd reads{ends[0]};
    const unique_fd writes{ends[1]};
    kfd::uapi::kfd_runtime_info info{};
    kfd::uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(::getpid());
    args.op = kfd::uapi::KFD_IOC_DBG_TRAP_ENABLE;
    args.enable.rinfo_ptr = reinterpret_cast<std::uintptr_t>(&info);
    args.enable.rinfo_size = sizeof info;
    args.enable.dbg_fd = static_cast<std::uint32_t>(writes.get());
    return ::ioctl(node.get(), kfd::uapi::AMDKFD_IOC_DBG_TRAP, &args) == 0;
  }

 private:
  /// A process that is stopped or has ended makes no rounds, and counts nothing.
  void await_two_rounds() const {
    const std::uint64_t before = counters_->rounds.load();
    (void)eventually(std::chrono::seconds{2},
                     [&] { return counters_->rounds.load() >= before + 2; });
  }

  struct counters {
    std::atomic<std::uint64_t> rounds{0};
    std::atomic<std::uint64_t> kernels{0};
    std::atomic<std::uint64_t> wrong{0};
  };
  struct unmap {
    void operator()(counters* what) const { ::munmap(what, sizeof(counters)); }
  };

  static void* map() {
    void* const memory = ::mmap(nullptr, sizeof(counters), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return memory;
  }

  int live(const kfd::roots& where, options how, int said, int told) const {
    using namespace std::chrono_literals;
    ::setenv("AMD_QUEUE_TAG", "OFFLINE_AI", 1);
    std::unique_ptr<sim::gpu_client> client;
    std::vector<std::unique_ptr<sim::gpu_queue>> queues;
    std::vector<std::uint64_t> counted;  // of each queue, kernels
    const auto open = [&] {
      auto opened = sim::gpu_client::open(
          {.device = where.device, .sysfs = where.sysfs, .gpu = how.gpu, .runtime = how.runtime});
      if (!opened) return false;
      client = std::move(*opened);
      const auto gpus = how.every_gpu ? client->gpus() : std::vector<std::uint32_t>{0};
      for (std::size_t index = 0; index < static_cast<std::size_t>(how.queues); ++index) {
        auto made = client->create_queue({.packets = 64, .gpu = gpus[index % gpus.size()]});
        if (!made) return false;
        queues.push_back(std::move(*made));
      }
      return true;
    };
    const auto answer = [said](char letter) { (void)!::write(said, &letter, 1); };
    if (!how.open_when_told && !open()) return 3;
    // As any program of that user, and not as one that had root's rights.
    if (how.user != 0 &&
        (::setgid(how.user) != 0 || ::setuid(how.user) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0))
      return 9;
    answer('r');
    for (;;) {
      pollfd order{told, POLLIN, 0};
      if (::poll(&order, 1, queues.empty() ? -1 : 0) > 0) {
        char letter = 0;
        if (::read(told, &letter, 1) != 1) return 4;
        if (letter == 'o' && !open()) return 5;
        if (letter == 'q') {
          auto made = client->create_queue({.packets = 64});
          if (!made) return 6;
          queues.push_back(std::move(*made));
        }
        if (letter == 'd') {
          if (!queues.back()->destroy()) return 8;
          queues.pop_back();
        }
        if (letter == 'c') close_render_nodes(where.device);
        if ((letter == 's' || letter == 'S') && !end_own_session(where.device)) return 10;
        if (letter == 'S' && !begin_own_session(where.device)) return 11;
        if (letter == 'e') {
          queues.clear();
          client.reset();
        }
        answer(letter);
        if (letter == 'x') ::execl("/bin/sleep", "sleep", "60", nullptr);
        if (letter == 'e') return 7;
      }
      for (const auto& queue : queues) {
        // One kernel at a time per queue. While it is suspended the last one stays unfinished.
        if (queue->completed() == queue->submitted() &&
            queue->submit({.length = 300us, .waves = 1}))
          queue->ring();
      }
      counted.resize(queues.size(), 0);
      for (std::size_t index = 0; index < queues.size(); ++index) {
        const auto& queue = queues[index];
        const std::uint64_t last = queue->submitted() - 1;
        const auto done = queue->wait(last, 5ms);
        if (!done && done.error() == errc::lost) std::this_thread::sleep_for(5ms);
        if (!done || counted[index] > last) continue;
        counted[index] = last + 1;
        if (queue->completion(last).value != 0) counters_->wrong.fetch_add(1);
        counters_->kernels.fetch_add(1);
      }
      counters_->rounds.fetch_add(1);
    }
  }

  std::unique_ptr<counters, unmap> counters_;
  family process_;
};

}  // namespace sluice::test
