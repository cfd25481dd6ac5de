// The real driver: the calls of tests/fuzz/ioctls.cpp, made by three real processes. Finds
// complaints of the kernel, calls that do not return, and what dead processes leave behind. Runs on
// a machine of run.sh; fuzz.sh builds it.

#include "fuzz.hpp"

#include "driver_steps.hpp"
#include "eventually.hpp"
#include "gpus.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/kcov.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace sluice;
using namespace std::chrono_literals;
namespace uapi = kfd::uapi;

/// What libFuzzer takes for coverage besides this program's own: which places of the driver ran.
[[gnu::section("__libfuzzer_extra_counters")]] std::array<std::uint8_t, 1U << 16U> driver_coverage;

/// What all processes share.
struct board {
  std::atomic<std::uint32_t> turn;  ///< See wait_for().
  std::array<std::atomic<pid_t>, fuzz::driver_steps::processes> pids;
  std::array<std::uint8_t, std::tuple_size_v<decltype(driver_coverage)>> coverage;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

board& shared() {
  static board* const made = [] {
    void* const got =
        ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fuzz::require(got != MAP_FAILED, "memory to share");
    return new (got) board{};
  }();
  return *made;
}

const std::vector<test::gpu>& known_gpus() {
  static const auto all = test::find_gpus();
  return all;
}

std::string text_of(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// A process of the input ended or stands still by itself: the rest of the input cannot be done.
struct process_lost {};

class machine : public fuzz::driver_steps {
 public:
  explicit machine(FuzzedDataProvider& input) : driver_steps{input} {
    // As the simulated machine reads its kind and whether there is a hive.
    (void)input.ConsumeBool();
    (void)input.ConsumeBool();
    const auto& found = known_gpus();
    fuzz::require(found.size() == gpus, "two GPUs");
    for (std::size_t i = 0; i < gpus; ++i) {
      gpus_.at(i) = {.id = found.at(i).id,
                     .context = found.at(i).property("cwsr_size"),
                     .control_stack = found.at(i).property("ctl_stack_size"),
                     .save_area = (found.at(i).save_area_bytes() + 4095) / 4096 * 4096};
    }
    shared().turn = 0;
    std::ranges::fill(shared().coverage, std::uint8_t{0});
    for (auto& each : shared().pids) each = 0;
  }
  /// Only the process of libFuzzer has a life after the steps: it waits for all of them.
  void finish() {
    if (self_ != keeper)
      for (;;) ::pause();
    (void)wait_for(steps_);
  }
  static void kill_all() {
    for (std::size_t each = 0; each < processes; ++each) kill_process(each);
    fuzz::require(
        test::eventually(60s, [] { return std::erase_if(zombies(), reaped), zombies().empty(); }),
        "a killed process can be reaped once its tracer has ended");
  }

 private:
  static constexpr std::size_t keeper = processes;
  const bool traces = ::getenv("FUZZ_TRACE") != nullptr;
  static constexpr int kfd_fd = 8;
  static constexpr int pipe_end_fd = 9;
  static constexpr std::size_t coverage_words = 1U << 16U;

  /// What calls may ask for, in 32 bits at this place of their arguments.
  struct bound {
    std::uint32_t number;
    std::size_t at;
    std::uint32_t most;
  };
  static constexpr std::uint32_t most_elements = 4095;
  static constexpr std::array bounds{
      bound{_IOC_NR(uapi::AMDKFD_IOC_WAIT_EVENTS),
            offsetof(uapi::kfd_ioctl_wait_events_args, timeout), 2},
      // Not all of the machine's memory.
      bound{_IOC_NR(uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU),
            offsetof(uapi::kfd_ioctl_alloc_memory_of_gpu_args, size), 0x3fffff},
      bound{_IOC_NR(uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU),
            offsetof(uapi::kfd_ioctl_alloc_memory_of_gpu_args, size) + 4, 0},
      // The driver allocates memory for as many elements as a caller says. Of more than 4 MiB the
      // kernel warns (adapters/kfd/kernel/README.md).
      bound{_IOC_NR(uapi::AMDKFD_IOC_WAIT_EVENTS),
            offsetof(uapi::kfd_ioctl_wait_events_args, num_events), most_elements},
      bound{_IOC_NR(uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW),
            offsetof(uapi::kfd_ioctl_get_process_apertures_new_args, num_of_nodes), most_elements},
      bound{_IOC_NR(uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU),
            offsetof(uapi::kfd_ioctl_map_memory_to_gpu_args, n_devices), most_elements},
      bound{_IOC_NR(uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU),
            offsetof(uapi::kfd_ioctl_map_memory_to_gpu_args, n_devices), most_elements},
      bound{_IOC_NR(uapi::AMDKFD_IOC_CRIU_OP), offsetof(uapi::kfd_ioctl_criu_args, num_devices),
            most_elements},
      bound{_IOC_NR(uapi::AMDKFD_IOC_CRIU_OP), offsetof(uapi::kfd_ioctl_criu_args, num_bos),
            most_elements},
  };

  const gpu& gpu_at(std::size_t index) const override { return gpus_.at(index); }
  std::uint32_t pid_of(std::size_t process) const override {
    return static_cast<std::uint32_t>(shared().pids.at(process).load());
  }

  // The turn is twice the number of the step, and one more while that step is being done.

  /// Waits for the turn of a step. The keeper does not let a step keep it from its own: a call may
  /// wait for something that only another process does, and goes on beside the next steps.
  /// \return false if the step was passed.
  bool wait_for(std::uint32_t number) const {
    auto since = std::chrono::steady_clock::now();
    for (auto before = shared().turn.load();;) {
      auto now = shared().turn.load();
      if (now >= 2 * number) return now == 2 * number;
      if (now != std::exchange(before, now)) since = std::chrono::steady_clock::now();
      const timespec tick{.tv_sec = 0, .tv_nsec = 20'000'000};
      ::syscall(SYS_futex, &shared().turn, FUTEX_WAIT, now, &tick, nullptr, 0);
      if (self_ != keeper || shared().turn != now) continue;
      for (const auto& each : shared().pids) {
        if (each != 0 && std::string_view{"tZX"}.find(state_of(each)) != std::string_view::npos)
          throw process_lost{};
      }
      if (std::chrono::steady_clock::now() - since > 200ms) pass_turn(now, (now / 2 + 1) * 2);
    }
  }
  static bool pass_turn(std::uint32_t from, std::uint32_t to) {
    if (!shared().turn.compare_exchange_strong(from, to)) return false;
    ::syscall(SYS_futex, &shared().turn, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
              nullptr, 0);
    return true;
  }
  static bool claim(std::uint32_t number) { return pass_turn(2 * number, 2 * number + 1); }
  static void finish_step(std::uint32_t number) { pass_turn(2 * number + 1, 2 * number + 2); }
  static char state_of(pid_t pid) {
    const auto text = text_of("/proc/" + std::to_string(pid) + "/stat");
    const auto name_end = text.rfind(')');
    return name_end + 2 < text.size() ? text[name_end + 2] : 'X';
  }
  void begin_step(std::size_t process) override {
    number_ = steps_++;
    // The steps of a process are skipped after its exec.
    const auto actor = execed_.at(process) ? keeper : process;
    acts_ = self_ == actor && wait_for(number_) && claim(number_) && self_ != keeper;
    if (self_ == actor && !acts_) finish_step(number_);
  }
  void end_step() override {
    if (std::exchange(acts_, false)) finish_step(number_);
  }

  void begin(std::size_t process) override {
    const auto number = steps_++;
    execed_.at(process) = false;
    if (self_ != keeper) return;
    fuzz::require(wait_for(number) && claim(number), "the keeper passes no step of its own");
    const pid_t pid = ::fork();
    fuzz::require(pid >= 0, "a process");
    if (pid != 0) {
      shared().pids.at(process) = pid;
      fuzz::require(test::eventually(60s, [&] { return shared().turn != 2 * number + 1; }),
                    "a process begins");
      return;
    }
    self_ = process;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // libFuzzer would take this process's end for a finding.
    for (const int each : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGALRM})
      (void)std::signal(each, SIG_DFL);
    shared().pids.at(process) = ::getpid();
    prepare();
    finish_step(number);
  }
  void end(std::size_t process) override {
    const auto number = steps_++;
    if (self_ == process)
      for (;;) ::pause();
    if (self_ != keeper) return;
    (void)wait_for(number);
    kill_process(process);
    pass_turn(2 * number, 2 * number + 2);
  }
  static bool reaped(pid_t pid) {
    int status = 0;
    const pid_t ended = ::waitpid(pid, &status, __WALL | WNOHANG);
    fuzz::require(ended != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT,
                  "the processes of an input keep their promises, see above");
    return ended != 0;
  }
  static std::vector<pid_t>& zombies() {
    static std::vector<pid_t> all;
    return all;
  }
  static void kill_process(std::size_t process) {
    const pid_t pid = shared().pids.at(process).exchange(0);
    if (pid == 0) return;
    ::kill(pid, SIGKILL);
    // One whose tracer lives stays a zombie.
    fuzz::require(test::eventually(60s, [&] { return state_of(pid) == 'Z' || reaped(pid); }),
                  "a killed process ends, whatever call it is in");
    if (!reaped(pid)) zombies().push_back(pid);
  }
  void exec(std::size_t process) override {
    execed_.at(process) = true;
    if (!std::exchange(acts_, false)) return;
    say("exec");
    finish_step(number_);
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    ::_exit(1);
  }

  /// Moves a descriptor.
  static void place(int fd, int at) {
    const int aside = ::fcntl(fd, F_DUPFD_CLOEXEC, 20);
    fuzz::require(aside >= 0, "a descriptor");
    ::close(fd);
    ::dup3(aside, at, O_CLOEXEC);
    ::close(aside);
  }
  static void map(std::uint64_t address, std::uint64_t size) {
    void* const at = reinterpret_cast<void*>(address);
    fuzz::require(::mmap(at, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at,
                  "memory at a fixed address");
  }
  void prepare() {
    map(scratch, scratch_bytes);
    map(queue_area, areas * queue_stride);
    for (std::uint64_t i = 0; i < areas; ++i) map(save_area + i * save_stride, 0x4000);
    ::close_range(pipe_fd, ~0U, 0);
    int ends[2];
    fuzz::require(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
    place(ends[0], pipe_end_fd);
    place(ends[1], pipe_fd);
    for (std::size_t i = 0; i < gpus; ++i) {
      const auto minor = std::to_string(known_gpus().at(i).property("drm_render_minor"));
      place(::open(("/dev/dri/renderD" + minor).c_str(), O_RDWR | O_CLOEXEC),
            first_render_fd + static_cast<int>(i));
    }
    open_driver();
    open_coverage();
  }
  static void open_driver() { place(::open("/dev/kfd", O_RDWR | O_CLOEXEC), kfd_fd); }
  void open_coverage() {
    const int fd = ::open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
    fuzz::require(fd >= 0 && ::ioctl(fd, KCOV_INIT_TRACE, coverage_words) == 0, "KCOV");
    void* const got = ::mmap(nullptr, coverage_words * sizeof(std::uint64_t),
                             PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fuzz::require(got != MAP_FAILED && ::ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC) == 0, "KCOV");
    coverage_ = static_cast<std::uint64_t*>(got);
  }
  void keep_coverage() const {
    const auto count = std::atomic_ref{coverage_[0]}.load();
    for (std::uint64_t i = 1; i <= count; ++i) {
      // Places are close together; an odd factor spreads them.
      auto& counter = shared().coverage.at(coverage_[i] * 0x9e3779b97f4a7c15U >> 48U);
      if (counter != 0xff) ++counter;
    }
    std::atomic_ref{coverage_[0]}.store(0);
  }

  void say(const char* what) const {
    if (traces) std::fprintf(stderr, "%zu (pid %d): %s\n", self_, ::getpid(), what);
  }
  void reopen(std::size_t) override {
    if (!acts_) return;
    say("reopen");
    ::close(kfd_fd);
    open_driver();
  }
  int make(std::uint32_t command, void* arguments) const {
    std::atomic_ref{coverage_[0]}.store(0);
    std::array<std::uint32_t, 8> words{};
    std::memcpy(words.data(), arguments, std::min<std::size_t>(_IOC_SIZE(command), sizeof words));
    const int result = ::ioctl(kfd_fd, command, arguments);
    const int error = result < 0 ? errno : 0;
    keep_coverage();
    if (traces) {
      std::fprintf(stderr, "%zu (pid %d): call %#x, %u bytes, %x %x %x %x %x %x %x %x: %d %s\n",
                   self_, ::getpid(), static_cast<unsigned>(_IOC_NR(command)),
                   static_cast<unsigned>(_IOC_SIZE(command)), words[0], words[1], words[2],
                   words[3], words[4], words[5], words[6], words[7], result,
                   error == 0 ? "" : std::strerror(error));
    }
    return result;
  }
  void call(std::size_t process, std::uint32_t command, std::vector<std::byte> arguments) override {
    if (!acts_) return;
    for (const auto& each : bounds) {
      std::uint32_t value = 0;
      if (each.number != _IOC_NR(command) || arguments.size() < each.at + sizeof value) continue;
      std::memcpy(&value, arguments.data() + each.at, sizeof value);
      value %= each.most + 1;
      std::memcpy(arguments.data() + each.at, &value, sizeof value);
    }
    if (_IOC_NR(command) == _IOC_NR(uapi::AMDKFD_IOC_DBG_TRAP) && process == tracer &&
        arguments.size() >= 4) {
      std::uint32_t pid = 0;
      std::memcpy(&pid, arguments.data(), sizeof pid);
      for (std::size_t other = 0; other < processes; ++other) {
        if (other != tracer && pid_of(other) == pid && pid != 0)
          (void)::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr);
      }
    }
    arguments.resize(1U << 14U);  // the most that a command can name
    (void)make(command, arguments.data());
  }
  void acquire_vm(std::size_t, std::size_t index) override {
    if (!acts_) return;
    uapi::kfd_ioctl_acquire_vm_args args{};
    args.drm_fd = static_cast<std::uint32_t>(first_render_fd) + static_cast<std::uint32_t>(index);
    args.gpu_id = gpus_.at(index).id;
    (void)make(uapi::AMDKFD_IOC_ACQUIRE_VM, &args);
  }
  void allocate(std::size_t, std::size_t index, std::uint64_t address,
                std::uint64_t bytes) override {
    if (!acts_) return;
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = address;
    alloc.size = bytes;
    alloc.gpu_id = gpus_.at(index).id;
    alloc.flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT | uapi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
                  uapi::KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE | uapi::KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    if (make(uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &alloc) != 0) return;
    uapi::kfd_ioctl_map_memory_to_gpu_args map{};
    map.handle = alloc.handle;
    map.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(&alloc.gpu_id);
    map.n_devices = 1;
    (void)make(uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, &map);
    (void)::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, first_render_fd + static_cast<int>(index),
                 static_cast<off_t>(alloc.mmap_offset));
  }

  void put(std::size_t, std::uint64_t address, std::span<const std::byte> what) override {
    if (!acts_) return;
    if (traces)
      std::fprintf(stderr, "%zu (pid %d): put %zu bytes at %#lx\n", self_, ::getpid(), what.size(),
                   address);
    std::memcpy(reinterpret_cast<void*>(address), what.data(), what.size());
  }
  std::uint64_t get(std::size_t, std::uint64_t address) override {
    std::uint64_t value = 0;
    if (acts_) std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
  void read_dumps(std::size_t) override {
    if (!acts_) return;
    say("read dumps");
    for (const char* each : {"mqds", "hqds", "rls", "mem_limit"})
      (void)text_of(std::string{"/sys/kernel/debug/kfd/"} + each);
  }
  void pass(std::chrono::microseconds how_long) override {
    if (acts_) ::usleep(static_cast<useconds_t>(std::min(how_long, 2000us).count()));
  }

  std::array<gpu, gpus> gpus_;
  std::size_t self_ = keeper;
  std::uint32_t steps_ = 0;
  std::uint32_t number_ = 0;  ///< Of the step.
  bool acts_ = false;         ///< This process does the step.
  std::array<bool, processes> execed_{};
  std::uint64_t* coverage_ = nullptr;
};

/// So that the console shows the input that stopped the kernel.
void log_input(std::span<const std::uint8_t> input) {
  static const int log = ::open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
  for (std::size_t at = 0; at < input.size(); at += 400) {
    std::string line = "<2>input " + std::to_string(at) + " ";
    for (const auto each : input.subspan(at, std::min<std::size_t>(400, input.size() - at))) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", each);
      line += digits;
    }
    (void)!::write(log, line.data(), line.size());
  }
}

/// Processes that the driver lists, and queues that the firmware has.
std::string what_is_left() {
  std::string left;
  for (const auto& each : std::filesystem::directory_iterator{"/sys/class/kfd/kfd/proc"})
    left += "process " + each.path().filename().string() + "\n";
  for (unsigned i = 0; i < fuzz::driver_steps::gpus; ++i) {
    std::ifstream file{"/sys/kernel/debug/sluice" + std::to_string(i) + "/firmware"};
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("pasid")) left += line + "\n";
  }
  return left;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string taint = text_of("/proc/sys/kernel/tainted");
  log_input({data, size});
  FuzzedDataProvider input{data, size};
  machine one{input};
  static unsigned inputs = 0;
  static unsigned broken_off = 0;
  ++inputs;
  try {
    one.run();
    one.finish();
  } catch (const process_lost&) {
    ++broken_off;
  }
  fuzz::require(inputs < 100 || broken_off < inputs / 2, "most inputs are done to their end");
  machine::kill_all();
  if (!test::eventually(60s, [] { return what_is_left().empty(); })) {
    std::fprintf(stderr, "%s", what_is_left().c_str());
    fuzz::require(false, "no process and no queue is left");
  }
  driver_coverage = shared().coverage;
  fuzz::require(text_of("/proc/sys/kernel/tainted") == taint, "the kernel does not complain");
  return 0;
}
