// sluice-agent against a host that lies: a page of any size and seals, commands of any content,
// counts that cannot be, in any order and at any moment. The agent's own loop and lanes run, and
// two processes are traced; the driver answers in this process's memory.

#include "agent_in_process.hpp"
#include <fuzzer/FuzzedDataProvider.h>

#include <sys/mman.h>
#include <sys/prctl.h>

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

namespace {

using namespace sluice;
using namespace std::chrono_literals;
using fuzz::gpus;

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

 private:
  std::array<pid_t, 2> pids_{};
};

const users& the_users() {
  static const users all;
  return all;
}

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
    fuzz::inherited::put(fd, agent::memory_fd);
  }

  void start_agent(agent::shared_page& page) {
    const bool batched = input_.ConsumeBool();
    const auto& pids = the_users().pids();
    fuzz::the_driver().start({.users = {pids.begin(), pids.end()},
                              .refusals = input_.ConsumeBytes<std::uint8_t>(8),
                              .batch_commands = batched});
    acting_.emplace(page, fuzz::acting_agent::options{});
  }
  void stop_agent() {
    wait([this] { return own_->commands.taken.load() == written_; });
    descriptors_.hang_up();
    acting_.reset();
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
      what.type = static_cast<agent::command_type>(input_.ConsumeIntegralInRange<int>(0, 6));
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
                          : fuzz::start_time_of(what.pid);
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
    while (!condition() && !acting_->over() && clock::now() < until)
      std::this_thread::sleep_for(100us);
  }

  FuzzedDataProvider& input_;
  fuzz::inherited descriptors_;
  agent::shared_page* own_ = nullptr;  ///< The host's mapping.
  std::uint32_t written_ = 0;
  std::uint32_t taken_ = 0;
  int looks_ = 0;
  std::optional<fuzz::acting_agent> acting_;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  (void)the_users();
  // What a shell may have left open there; libFuzzer has opened nothing yet.
  fuzz::inherited::leave_free();
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  host one{input};
  one.run();
  return 0;
}
