#pragma once
/// \file
/// A process that has a client of the simulated NVIDIA driver and does what a test orders, and what
/// the device says of it.

#include "child_process.hpp"
#include "eventually.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "sluice/nvidia/uapi.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace sluice::test {

/// The profile h100 without what makes a test wait.
inline device_settings fast_h100() { return {.profile = "h100"}; }

/// The first number of that name in stats.json; -1: there is none.
inline std::int64_t stat_of(const simulated_device& device, const std::string& name) {
  const auto text = device.stats();
  std::smatch found;
  const bool there = std::regex_search(text, found, std::regex{"\"" + name + "\":([0-9]+)"});
  return there ? std::stoll(found[1]) : -1;
}
inline std::int64_t held_channels(const simulated_device& device) {
  return stat_of(device, "held_channels");
}
/// Microseconds of a channel group; -1: there is no such group.
inline std::int64_t slice_of(const simulated_device& device, std::uint32_t group) {
  return stat_of(device, "handle\":" + std::to_string(group) + ",\"timeslice_us");
}
/// Whether the driver has no client any more, and no memory of one.
inline bool is_empty(const simulated_device& device) {
  return device.stats().find("\"clients\":[]") != std::string::npos && held_channels(device) == 0 &&
         stat_of(device, "memory_bytes") == 0;
}
/// A line for the device's sim/control.
inline void control(const simulated_device& device, const std::string& line) {
  std::ofstream file{device.root() + "/sim/control"};
  file << line << std::endl;
  if (!file) throw std::runtime_error("sim/control refuses '" + line + "'");
}

/// Orders, and what the process answers ("refused" if the driver or the system refuses):
///
/// open            makes a client with its objects         -> FD CLIENT GROUP CHANNEL
/// open hidden     the same; where its kernels' states are cannot be seen -> the same
/// open both       the same on two GPUs                    -> the same, and GROUP CHANNEL
/// second          makes a client beside that one, in place of the last such -> CLIENT
/// without N       opens the control device N times, and no more -> ok
/// memory          allocates 1 GiB                         -> HANDLE
/// context [GPU]   makes a group with 2 computing channels -> GROUP CHANNEL
/// object CLASS PARENT HANDLE   makes an object; 0: as next -> HANDLE
/// free HANDLE     frees an object                         -> ok
/// run [GPU]       runs a kernel to its end                -> ok
/// ballast MIB     writes so much memory, in pieces of 64 MiB -> ok
/// launch US [GPU] submits a kernel of so many microseconds -> ok
/// wait            waits for the end of all kernels        -> ok
/// close           closes the client                       -> ok
/// move            moves the client's descriptor to another number -> ok
/// return          moves it back                           -> ok
/// reopen          opens and closes clients until the next order -> nothing
/// lie CLIENT N    writes pairs into its memory: N clients from that on, each with an object -> ok
/// fork            makes a child that has the client's descriptor and waits -> PID
/// stranger        the same, and the child has another environment -> PID
/// exec            runs another program                    -> nothing
/// inherit         the same, which inherits the client's descriptor -> nothing
/// take PID FD     the same, which has a process's descriptor and another user -> nothing
/// headless        ends its main thread; another one obeys -> ok
/// exit            ends                                    -> nothing
///
/// Numbers are decimal. CHANNEL is the first of the group. GPU is 0 (the usual one) or 1.
class gpu_program {
 public:
  explicit gpu_program(const simulated_device& device)
      : process_{[path = device.nvidia_device()](channel& line) { return actor{path}.obey(line); }},
        start_time_(start_time_of(process_.pid()).value_or(0)) {}

  pid_t pid() const noexcept { return process_.pid(); }
  std::uint64_t start_time() const noexcept { return start_time_; }
  child_process& process() noexcept { return process_; }

  void tell(const std::string& order) { process_.line().send(order); }
  /// The numbers of the answer.
  std::vector<std::uint32_t> ask(const std::string& order) {
    tell(order);
    const auto answer = process_.line().receive(2 * patience);
    if (!answer || *answer == "refused")
      throw std::runtime_error("'" + order + "': " + answer.value_or("no answer"));
    std::vector<std::uint32_t> numbers;
    std::istringstream in{*answer};
    for (std::uint32_t each = 0; in >> each;) numbers.push_back(each);
    return numbers;
  }
  /// Until it runs the other program.
  bool execs(const std::string& order) {
    tell(order);
    return eventually(patience, [this] { return command_of(pid()) == "sleep"; });
  }

 private:
  class actor {
   public:
    explicit actor(std::string device) : device_(std::move(device)) {}

    int obey(channel& line) {
      for (;;) {
        auto order = line.receive(std::chrono::minutes{10});
        if (!order || *order == "exit") return 0;
        if (*order == "reopen") {
          while (!(order = line.receive(std::chrono::milliseconds{0}))) {
            if (!open()) return 1;
            client_.reset();
          }
        }
        if (*order == "headless") obey_without_main_thread(line);
        const bool done = perform(*order);
        line.send(!done ? "refused" : answer_.str().empty() ? "ok" : answer_.str());
      }
    }

   private:
    [[noreturn]] void obey_without_main_thread(channel& line) {
      std::thread{[this, &line] {
        const pid_t self = ::getpid();
        const bool ended = eventually(patience, [self] { return leader_is_exiting(self); });
        line.send(ended ? "ok" : "refused");
        ::_exit(obey(line));
      }}.detach();
      ::syscall(SYS_exit, 0);
      std::abort();
    }
    bool open(const std::string& how = "") {
      queues_.clear();
      sim::nvidia_client_options options{.device = device_, .states_elsewhere = how == "hidden"};
      if (how == "both") options.gpus = {0, 1};
      auto made = sim::nvidia_client::open(options);
      if (!made) return false;
      client_ = std::move(*made);
      // The last channel has a copy object.
      next_object_ = client_->contexts().back().groups.back().channels.back() + 2;
      return true;
    }
    std::uint32_t make(std::uint32_t parent, std::uint32_t cls, std::uint32_t handle = 0) {
      nvidia::uapi::NVOS21_PARAMETERS args{};
      args.hRoot = client_->handle();
      args.hObjectParent = parent;
      args.hObjectNew = handle != 0 ? handle : next_object_++;
      args.hClass = cls;
      if (::ioctl(client_->fd(), nvidia::uapi::NV_RM_ALLOC, &args) != 0) return 0;
      return args.status == nvidia::uapi::NV_OK ? args.hObjectNew : 0;
    }
    bool perform(const std::string& order) {
      std::istringstream in{order};
      std::string verb;
      in >> verb;
      answer_ = std::ostringstream{};
      if (verb == "open") {
        std::string how;
        in >> how;
        if (!open(how)) return false;
        answer_ << client_->fd() << ' ' << client_->handle();
        for (const auto& each : client_->contexts())
          answer_ << ' ' << each.groups.front().handle << ' '
                  << each.groups.front().channels.front();
        return true;
      }
      if (verb == "second") {
        second_.reset();
        auto made = sim::nvidia_client::open({.device = device_});
        if (!made) return false;
        second_ = std::move(*made);
        answer_ << second_->handle();
        return true;
      }
      if (verb == "without") {
        int count = 0;
        for (in >> count; count > 0; --count)
          if (::open(device_.c_str(), O_RDWR | O_CLOEXEC) < 0) return false;
        return true;
      }
      if (verb == "take") {
        pid_t from = 0;
        int number = 0;
        in >> from >> number;
        const auto process = static_cast<int>(::syscall(SYS_pidfd_open, from, 0));
        const auto taken = static_cast<int>(::syscall(SYS_pidfd_getfd, process, number, 0));
        if (taken < 0 || ::fcntl(taken, F_SETFD, 0) != 0 || ::setuid(64003) != 0) return false;
        ::execlp("sleep", "sleep", "600", nullptr);
        return false;
      }
      if (verb == "ballast") {
        std::size_t left = 0;
        for (in >> left; left >= 64; left -= 64) {
          constexpr std::size_t piece = std::size_t{64} << 20U;
          void* const made =
              ::mmap(nullptr, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          if (made == MAP_FAILED) return false;
          // Two mappings that touch would be one, which is too large to be looked at.
          ::mprotect(made, 4096, PROT_NONE);
          std::memset(static_cast<char*>(made) + 4096, 1, piece - 4096);
        }
        return true;
      }
      if (verb == "lie") {
        std::uint32_t client = 0;
        std::uint32_t count = 0;
        in >> client >> count;
        auto* const words = static_cast<std::uint32_t*>(::mmap(nullptr, 12 * std::size_t{count},
                                                               PROT_READ | PROT_WRITE,
                                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (words == MAP_FAILED) return false;
        for (std::size_t pair = 0; pair < count; ++pair) {
          words[3 * pair] = client + static_cast<std::uint32_t>(pair);
          words[3 * pair + 1] = 0x5c000001;
        }
        return true;
      }
      return client_ && perform_with_client(verb, in);
    }
    bool perform_with_client(const std::string& verb, std::istringstream& in) {
      namespace rm = nvidia::uapi;
      if (verb == "memory") {
        const auto made = client_->allocate(std::uint64_t{1} << 30U);
        if (!made) return false;
        next_object_ = *made + 1;
        answer_ << *made;
        return true;
      }
      if (verb == "context") {
        std::size_t gpu = 0;
        in >> gpu;
        const auto group = make(client_->contexts().at(gpu).device, rm::KEPLER_CHANNEL_GROUP_A);
        const auto first = make(group, rm::HOPPER_CHANNEL_GPFIFO_A);
        const auto second = make(group, rm::HOPPER_CHANNEL_GPFIFO_A);
        answer_ << group << ' ' << first;
        return make(first, rm::HOPPER_COMPUTE_A) != 0 && make(second, rm::HOPPER_COMPUTE_A) != 0;
      }
      if (verb == "object") {
        std::uint32_t cls = 0;
        std::uint32_t parent = 0;
        std::uint32_t handle = 0;
        in >> cls >> parent >> handle;
        const auto made = make(parent, cls, handle);
        answer_ << made;
        return made != 0;
      }
      if (verb == "free") {
        rm::NVOS00_PARAMETERS args{};
        args.hRoot = client_->handle();
        in >> args.hObjectOld;
        return ::ioctl(client_->fd(), rm::NV_RM_FREE, &args) == 0 && args.status == rm::NV_OK;
      }
      if (verb == "run" || verb == "launch") {
        std::int64_t length = 20;
        std::size_t gpu = 0;
        if (verb == "launch") in >> length;
        in >> gpu;
        return launch(length, gpu) && (verb == "launch" || ends(gpu));
      }
      if (verb == "wait") {
        return std::all_of(queues_.begin(), queues_.end(),
                           [this](const auto& each) { return ends(each.first); });
      }
      if (verb == "close") {
        queues_.clear();
        client_.reset();
        return true;
      }
      if (verb == "move") {
        moved_ = ::fcntl(client_->fd(), F_DUPFD_CLOEXEC, 0);
        return moved_ >= 0 && ::close(client_->fd()) == 0;
      }
      if (verb == "return") {
        return ::dup3(moved_, client_->fd(), O_CLOEXEC) >= 0 && ::close(moved_) == 0;
      }
      if (verb == "fork" || verb == "stranger") {
        const pid_t child = ::fork();
        if (child == 0) wait_with_client(verb == "stranger");
        answer_ << child;
        return child > 0;
      }
      if (verb == "inherit") ::fcntl(client_->fd(), F_SETFD, 0);
      if (verb == "inherit" || verb == "exec") ::execlp("sleep", "sleep", "600", nullptr);
      return false;
    }
    bool launch(std::int64_t microseconds, std::size_t gpu) {
      auto& queue = queues_[gpu];
      if (!queue) {
        auto made = client_->create_queue({.gpu = client_->contexts().at(gpu).gpu});
        if (!made) return false;
        queue = std::move(*made);
      }
      if (!queue->submit({.length = std::chrono::microseconds{microseconds}})) return false;
      queue->ring();
      return true;
    }
    bool ends(std::size_t gpu) {
      auto& queue = queues_.at(gpu);
      return queue->wait(queue->submitted() - 1, patience).has_value();
    }
    /// With no other descriptor: the test's line to its parent has to end with that.
    [[noreturn]] void wait_with_client(bool as_stranger) {
      const auto fd = static_cast<unsigned>(client_->fd());
      ::syscall(SYS_close_range, 3U, fd - 1, 0U);
      ::syscall(SYS_close_range, fd + 1, ~0U, 0U);
      ::alarm(600);
      if (as_stranger) {
        ::fcntl(client_->fd(), F_SETFD, 0);
        const std::array<const char*, 2> environment{"A=stranger", nullptr};
        ::execle("/bin/sleep", "sleep", "600", nullptr, environment.data());
      }
      for (;;) ::pause();
    }

    const std::string device_;
    std::unique_ptr<sim::nvidia_client> client_;
    std::unique_ptr<sim::nvidia_client> second_;
    std::map<std::size_t, std::unique_ptr<sim::gpu_queue>> queues_;  ///< By GPU.
    std::uint32_t next_object_ = 0;
    int moved_ = -1;  ///< The client's descriptor, while its own number is closed.
    std::ostringstream answer_;
  };

  child_process process_;
  std::uint64_t start_time_;
};

}  // namespace sluice::test
