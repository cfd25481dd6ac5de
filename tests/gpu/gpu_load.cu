// Loads for tests/gpu/nvidia.sh: kernels of a known length, offline ones without end, and online
// requests with and without marks.

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <climits>

#include "sluice/client.h"

namespace {

constexpr char help[] =
    "usage: gpu_load calibrate [--device N]\n"
    "       gpu_load offline --page FILE --kernel-us T --rate R [--streams N] [--devices A,B,...]\n"
    "                        [--memory MIB] [--export 1]\n"
    "       gpu_load peer --page FILE --owner FILE [--device N]\n"
    "       gpu_load online --kernels N --kernel-us T --rate R --pause-us T --seconds T\n"
    "                       [--device N]\n"
    "       gpu_load serve --kernels N --kernel-us T --rate R [--device N] [--mark LIBRARY]\n"
    "       gpu_load mix --rate R [--device N]\n"
    "       gpu_load rest --page FILE [--device N]\n"
    "       gpu_load wakes --seconds T [--pause-us P]\n"
    "       gpu_load checksum --page FILE --kernel-us T [--device N] [--damage 1]\n"
    "\n"
    "calibrate prints the iterations that each kind of kernel makes in a microsecond (--rate); run "
    "it\n"
    "with nothing else on the GPU.\n"
    "offline runs kernels without end in each stream. The GPU counts in FILE (4096 bytes) how "
    "many\n"
    "iterations each stream has made. SIGUSR1 executes the program anew. While word 17 of FILE is\n"
    "not 0, it runs nothing, and word 18 is 1. These orders also work while the program is held: "
    "it\n"
    "makes as many more contexts, with kernels without end, as word 20 wants, and counts them in "
    "word\n"
    "21; word 22 makes it write to an illegal address, and word 23 makes it exit. --export lets "
    "other\n"
    "processes write into memory of it: word 40 is 1 once the words from 32 on have its IPC "
    "handle.\n"
    "peer writes from its GPU into that memory of the program with the page --owner. FILE: number "
    "of\n"
    "kernels that have each added 1 to a word there, of copies to there, and what the word is.\n"
    "online makes requests, with pauses of half to one and a half times T between them, and "
    "prints\n"
    "their latencies.\n"
    "serve and mix make requests without marks: serve always the same, mix of several kinds. They\n"
    "print the mean length of a request. A line 'T FILE' of the standard input starts requests at\n"
    "random times, T microseconds apart on average. A line 'rest' ends them and writes FILE: the\n"
    "kind of each request, its begin, when the first call had submitted, when all was launched, "
    "and\n"
    "its end (CLOCK_MONOTONIC, ns). A line 'play ARRIVALS T FILE' makes the first kind of request "
    "at\n"
    "the times in ARRIVALS (ns from the start, one a line), but none later than T microseconds, "
    "and\n"
    "then writes FILE: when each was due, its begin and its end. A line 'mark SOCKET' announces "
    "the\n"
    "following ones to that scheduler by libsluice_client.so.0, 'mark -' to none.\n"
    "rest makes a context, increments the generation in FILE, and then does nothing.\n"
    "wakes uses no GPU: it sleeps for 50 us over and over, and prints how late the machine wakes "
    "it\n"
    "(us). With --pause-us, it then wakes another thread every P microseconds and prints how long "
    "that\n"
    "takes (hand_over), and again while the processors may not sleep deeply (awake; null if "
    "/dev/cpu_dma_latency\n"
    "cannot be opened).\n"
    "checksum runs kernels without end that fill the shared memory and the registers, permute "
    "what\n"
    "is there, and compare it with what must have come of it. FILE: number of kernels, of blocks, "
    "of\n"
    "wrong words in registers and in shared memory, and the place of the first one. --damage "
    "makes\n"
    "each kernel change two words.\n";

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* form, ...) {
  va_list values;
  va_start(values, form);
  std::fprintf(stderr, "gpu_load: ");
  std::vfprintf(stderr, form, values);
  std::fprintf(stderr, "\n");
  va_end(values);
  std::exit(1);
}

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail("%s failed: %s", call, cudaGetErrorString(error));
}
#define CHECK(call) check(call, #call)

/// Of the page: a counter for each stream, and what the program itself writes.
enum word : std::size_t {
  first_counter = 0,
  counters = 16,
  generation = 16,
  pause_wanted = 17,
  paused = 18,
  contexts_wanted = 20,
  contexts = 21,
  crash_wanted = 22,
  exit_wanted = 23,
  exported = 32,
  is_exported = 40,
  words = 512
};

double now_us() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

__device__ std::uint64_t device_time_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

/// What one stream has done so far, and the first begin and last end of its blocks.
struct progress {
  std::uint64_t done;
  unsigned long long began;
  unsigned long long ended;
  float unused;
};

/// A fixed number of iterations, so that time off the GPU does not count as work.
__global__ void __launch_bounds__(1024)
    spin(volatile std::uint64_t* counter, progress* of, std::uint64_t iterations,
         std::uint32_t every, std::uint32_t shared_words) {
  extern __shared__ std::uint32_t scratch[];
  if (threadIdx.x == 0) atomicMin(&of->began, device_time_ns());
  for (std::uint32_t i = threadIdx.x; i < shared_words; i += blockDim.x) scratch[i] = i;
  float a[32];
#pragma unroll
  for (int i = 0; i < 32; ++i)
    a[i] = static_cast<float>(threadIdx.x) * 0.5F + static_cast<float>(i);
  const bool counts = counter != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
  const std::uint64_t before = counts ? of->done : 0;
  std::uint32_t left = every;
  for (std::uint64_t n = 1; n <= iterations; ++n) {
#pragma unroll
    for (int i = 0; i < 32; ++i) a[i] = a[i] * 0.9999F + 0.25F;
    if (counts && --left == 0) {
      left = every;
      *counter = before + n;
    }
  }
  if (counts) {
    of->done = before + iterations;
    *counter = before + iterations;
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum += a[i];
  if (sum == 12345.678F) of->unused = sum;  // Keeps the arithmetic.
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&of->ended, device_time_ns());
}

__global__ void write_to(std::uint64_t* place) { *place = 1; }

__global__ void add_to(volatile std::uint64_t* place, volatile std::uint64_t* page) {
  const std::uint64_t now = *place + 1;
  *place = now;
  __threadfence_system();
  page[2] = *place;
  page[0] = page[0] + 1;
}
constexpr std::size_t exported_bytes = std::size_t{16} << 20U;

/// How a kind of kernel fills a GPU.
struct shape {
  int blocks = 0;
  int threads = 0;
  int shared_bytes = 0;
};

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, what, device));
  return value;
}

/// One block with many threads and nearly all shared memory on each SM: the most that a context
/// switch has to save.
shape offline_shape(int device) {
  constexpr int most_shared = 200 * 1024;
  const int shared =
      std::min(most_shared, attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  CHECK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  return {attribute(cudaDevAttrMultiProcessorCount, device), 1024, shared};
}
shape online_shape(int device) {
  return {attribute(cudaDevAttrMultiProcessorCount, device), 512, 0};
}

void launch(const shape& as, cudaStream_t in, volatile std::uint64_t* counter, progress* of,
            std::uint64_t iterations, std::uint32_t every) {
  spin<<<as.blocks, as.threads, as.shared_bytes, in>>>(
      counter, of, iterations, every, static_cast<std::uint32_t>(as.shared_bytes) / 4);
  CHECK(cudaGetLastError());
}

progress* new_progress() {
  progress* made = nullptr;
  CHECK(cudaMalloc(&made, sizeof(progress)));
  const progress start{0, ~0ULL, 0, 0};
  CHECK(cudaMemcpy(made, &start, sizeof start, cudaMemcpyHostToDevice));
  return made;
}

/// Iterations in a microsecond, by the GPU's own timer.
double measured_rate(const shape& as) {
  progress* const of = new_progress();
  std::uint64_t iterations = 1000;
  const auto length_us = [&] {
    const progress start{0, ~0ULL, 0, 0};
    CHECK(cudaMemcpy(of, &start, sizeof start, cudaMemcpyHostToDevice));
    launch(as, nullptr, nullptr, of, iterations, 1);
    CHECK(cudaDeviceSynchronize());
    progress seen{};
    CHECK(cudaMemcpy(&seen, of, sizeof seen, cudaMemcpyDeviceToHost));
    return static_cast<double>(seen.ended - seen.began) / 1e3;
  };
  while (length_us() < 5000) iterations *= 2;
  const double warm = now_us() + 500e3;  // The clocks rise with load.
  while (now_us() < warm) length_us();
  std::vector<double> lengths;
  for (int i = 0; i < 21; ++i) lengths.push_back(length_us());
  std::sort(lengths.begin(), lengths.end());
  return static_cast<double>(iterations) / lengths[lengths.size() / 2];
}

volatile std::uint64_t* map_page(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("cannot open %s: %s", path.c_str(), std::strerror(errno));
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) fail("cannot map %s: %s", path.c_str(), std::strerror(errno));
  close(fd);
  return static_cast<volatile std::uint64_t*>(page);
}

struct options {
  std::string page;
  std::string library;
  std::vector<int> devices{0};
  double kernel_us = 0;
  double rate = 0;
  double pause_us = 0;
  double seconds = 0;
  int kernels = 1;
  int streams = 1;
  long memory_mib = 0;
  bool damage = false;
  bool shared = false;
  std::string owner;
};

double number(const char* option, const char* text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least))
    fail("%s: expected a number of at least %g, got '%s'", option, least, text);
  return value;
}

std::vector<int> numbers(const char* option, std::string text) {
  std::vector<int> all;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find(',', at), text.size());
    all.push_back(static_cast<int>(number(option, text.substr(at, end - at).c_str(), 0)));
    at = end + 1;
  }
  return all;
}

options read_options(int argc, char** argv) {
  options chosen;
  for (int i = 2; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) fail("%s: a value is missing", argv[i]);
    const char* const value = argv[i + 1];
    if (option == "--page")
      chosen.page = value;
    else if (option == "--mark")
      chosen.library = value;
    else if (option == "--devices" || option == "--device")
      chosen.devices = numbers(argv[i], value);
    else if (option == "--kernel-us")
      chosen.kernel_us = number(argv[i], value, 1);
    else if (option == "--rate")
      chosen.rate = number(argv[i], value, 1e-6);
    else if (option == "--pause-us")
      chosen.pause_us = number(argv[i], value, 0);
    else if (option == "--seconds")
      chosen.seconds = number(argv[i], value, 0.1);
    else if (option == "--kernels")
      chosen.kernels = static_cast<int>(number(argv[i], value, 1));
    else if (option == "--streams")
      chosen.streams = static_cast<int>(number(argv[i], value, 1));
    else if (option == "--memory")
      chosen.memory_mib = static_cast<long>(number(argv[i], value, 0));
    else if (option == "--damage")
      chosen.damage = number(argv[i], value, 0) > 0;
    else if (option == "--export")
      chosen.shared = number(argv[i], value, 0) > 0;
    else if (option == "--owner")
      chosen.owner = value;
    else
      fail("unknown option %s (see --help)", argv[i]);
  }
  return chosen;
}

std::uint64_t iterations_of(const options& chosen) {
  if (chosen.kernel_us <= 0 || chosen.rate <= 0) fail("--kernel-us and --rate are required");
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(chosen.kernel_us * chosen.rate));
}

int calibrate(const options& chosen) {
  const int device = chosen.devices.front();
  CHECK(cudaSetDevice(device));
  std::printf("{\"offline\": %.6f, ", measured_rate(offline_shape(device)));
  std::printf("\"online\": %.6f}\n", measured_rate(online_shape(device)));
  return 0;
}

char** own_arguments = nullptr;
std::array<char, PATH_MAX> own_path{};
void execute_anew(int) {
  execv(own_path.data(), own_arguments);
  _exit(127);
}

/// Runs kernels without end in a context of its own, beside the one of the runtime.
[[noreturn]] void run_in_new_context(int device, volatile std::uint64_t* page, std::size_t counter,
                                     std::uint64_t iterations, std::uint32_t every) {
  // All releases export it with these parameters; the headers of some name another one.
  using creator = int (*)(void**, unsigned, int);
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) fail("cannot load libcuda.so.1: %s", dlerror());
  const auto create = reinterpret_cast<creator>(dlsym(library, "cuCtxCreate_v2"));
  if (create == nullptr) fail("libcuda.so.1 lacks cuCtxCreate_v2");
  void* context = nullptr;
  const int error = create(&context, 0, device);
  if (error != 0) fail("cuCtxCreate_v2 failed: error %d", error);
  void* mapped = nullptr;
  CHECK(cudaHostGetDevicePointer(&mapped, const_cast<std::uint64_t*>(page), 0));
  progress* const of = new_progress();
  const shape as = offline_shape(device);
  page[contexts] = page[contexts] + 1;
  for (;;) {
    launch(as, nullptr, static_cast<std::uint64_t*>(mapped) + counter, of, iterations, every);
    CHECK(cudaDeviceSynchronize());
  }
}

int offline(const options& chosen) {
  constexpr std::size_t in_flight = 4;
  struct stream {
    int device;
    shape as;
    cudaStream_t in;
    progress* of;
    volatile std::uint64_t* counter;
    cudaEvent_t ends[in_flight];
    std::uint64_t launched;
  };
  if (chosen.page.empty()) fail("offline: --page is required");
  const std::uint64_t iterations = iterations_of(chosen);
  const auto every = static_cast<std::uint32_t>(std::max(1.0, 20 * chosen.rate));
  if (chosen.devices.size() * static_cast<std::size_t>(chosen.streams) > counters)
    fail("--streams times the number of devices is more than %d", static_cast<int>(counters));
  volatile std::uint64_t* const page = map_page(chosen.page);
  page[generation] =
      page[generation] + 1;  // Before the first call of CUDA, which may take seconds.
  if (readlink("/proc/self/exe", own_path.data(), own_path.size() - 1) <= 0)
    fail("cannot read /proc/self/exe: %s", std::strerror(errno));
  struct sigaction anew {};
  anew.sa_handler = execute_anew;
  sigaction(SIGUSR1, &anew, nullptr);
  sigset_t user;
  sigemptyset(&user);
  sigaddset(&user, SIGUSR1);
  sigprocmask(SIG_UNBLOCK, &user, nullptr);  // After an exec in the handler, it is blocked.

  std::vector<stream> all;
  bool registered = false;
  for (const int device : chosen.devices) {
    CHECK(cudaSetDevice(device));
    if (!registered)
      CHECK(cudaHostRegister(const_cast<std::uint64_t*>(page), 4096,
                             cudaHostRegisterMapped | cudaHostRegisterPortable));
    registered = true;
    void* mapped = nullptr;
    CHECK(cudaHostGetDevicePointer(&mapped, const_cast<std::uint64_t*>(page), 0));
    void* memory = nullptr;
    if (chosen.memory_mib > 0)
      CHECK(cudaMalloc(&memory, static_cast<std::size_t>(chosen.memory_mib) << 20U));
    const shape as = offline_shape(device);
    for (int i = 0; i < chosen.streams; ++i) {
      stream made{device,
                  as,
                  nullptr,
                  new_progress(),
                  static_cast<std::uint64_t*>(mapped) + first_counter + all.size(),
                  {},
                  0};
      CHECK(cudaStreamCreateWithFlags(&made.in, cudaStreamNonBlocking));
      for (cudaEvent_t& each : made.ends)
        CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming | cudaEventBlockingSync));
      all.push_back(made);
    }
  }
  if (chosen.shared) {
    void* memory = nullptr;
    cudaIpcMemHandle_t handle{};
    static_assert(sizeof handle == sizeof(std::uint64_t) * (is_exported - exported));
    CHECK(cudaMalloc(&memory, exported_bytes));
    CHECK(cudaMemset(memory, 0, exported_bytes));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcGetMemHandle(&handle, memory));
    std::memcpy(const_cast<std::uint64_t*>(page) + exported, &handle, sizeof handle);
    page[is_exported] = 1;
  }
  cudaFuncAttributes loaded{};  // A hold could delay the load of the kernel at its launch.
  CHECK(cudaFuncGetAttributes(&loaded, write_to));
  std::thread{[&] {
    CHECK(cudaSetDevice(all.front().device));
    std::size_t next = first_counter + all.size();
    const std::size_t first = next;
    for (;; usleep(1000)) {
      if (page[exit_wanted] != 0) std::exit(0);
      if (page[crash_wanted] != 0) {
        write_to<<<1, 1, 0, all.front().in>>>(reinterpret_cast<std::uint64_t*>(64));
        CHECK(cudaGetLastError());
        page[crash_wanted] = 0;
      }
      for (; next - first < page[contexts_wanted] && next < first_counter + counters; ++next)
        std::thread{run_in_new_context, all.front().device, page, next, iterations, every}.detach();
    }
  }}.detach();
  for (;;) {
    if (page[pause_wanted] != 0) {
      for (const stream& each : all) CHECK(cudaStreamSynchronize(each.in));
      page[paused] = 1;
      while (page[pause_wanted] != 0) usleep(1000);
      page[paused] = 0;
    }
    for (stream& each : all) {
      CHECK(cudaSetDevice(each.device));
      cudaEvent_t const end = each.ends[each.launched % in_flight];
      if (each.launched >= in_flight) CHECK(cudaEventSynchronize(end));
      launch(each.as, each.in, each.counter, each.of, iterations, every);
      CHECK(cudaEventRecord(end, each.in));
      ++each.launched;
    }
  }
}

[[noreturn]] void peer(const options& chosen) {
  constexpr int kernels = 100;
  if (chosen.page.empty() || chosen.owner.empty()) fail("peer: --page and --owner are required");
  volatile std::uint64_t* const page = map_page(chosen.page);
  volatile std::uint64_t* const of_owner = map_page(chosen.owner);
  while (of_owner[is_exported] == 0) usleep(1000);
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, const_cast<std::uint64_t*>(of_owner) + exported, sizeof handle);
  CHECK(cudaSetDevice(chosen.devices.front()));
  void* there = nullptr;
  CHECK(cudaIpcOpenMemHandle(&there, handle, cudaIpcMemLazyEnablePeerAccess));
  CHECK(cudaHostRegister(const_cast<std::uint64_t*>(page), 4096, cudaHostRegisterMapped));
  void* mapped = nullptr;
  CHECK(cudaHostGetDevicePointer(&mapped, const_cast<std::uint64_t*>(page), 0));
  const std::size_t half = exported_bytes / 2;
  void* here = nullptr;
  CHECK(cudaMalloc(&here, half));
  for (;;) {
    for (int i = 0; i < kernels; ++i) {
      add_to<<<1, 1>>>(static_cast<std::uint64_t*>(there), static_cast<std::uint64_t*>(mapped));
      CHECK(cudaGetLastError());
    }
    CHECK(cudaMemcpyAsync(static_cast<char*>(there) + half, here, half, cudaMemcpyDeviceToDevice));
    CHECK(cudaDeviceSynchronize());
    page[1] = page[1] + 1;
  }
}

/// Announces requests where --mark names the library.
class marker {
 public:
  explicit marker(const std::string& library) {
    if (library.empty()) return;
    library_ = dlopen(library.c_str(), RTLD_NOW);
    if (library_ == nullptr) fail("--mark: %s", dlerror());
    find(open_, "sluice_client_open");
    find(close_, "sluice_client_close");
    find(status_, "sluice_client_get_status");
    find(begin_, "sluice_client_begin");
    find(end_, "sluice_client_end");
    find(begin_span_, "sluice_client_begin_span_since");
    find(end_span_, "sluice_client_end_span");
  }
  void connect(const char* socket) {
    if (library_ == nullptr) return;
    disconnect();
    sluice_client_options how{};
    how.size = sizeof how;
    how.role = SLUICE_CLIENT_ONLINE;
    how.socket = socket;
    how.name = "gpu_load";
    if (open_(&how, &client_) < 0) fail("--mark: cannot open a client");
    sluice_client_status seen{};
    const double until = now_us() + 10e6;
    do {
      if (now_us() > until) fail("--mark: not connected to a scheduler within 10 s: %s", seen.why);
      usleep(1000);
      seen.size = sizeof seen;
      status_(client_, &seen);
    } while (seen.connected == 0);
  }
  void disconnect() {
    if (client_ != nullptr) close_(client_);
    client_ = nullptr;
  }
  /// A request that arrived at `since`.
  void begin(std::uint64_t request, std::int64_t since) const {
    if (client_ == nullptr) return;
    begin_(client_);
    begin_span_(client_, SLUICE_CLIENT_REQUEST, request, since);
  }
  void end(std::uint64_t request) const {
    if (client_ == nullptr) return;
    end_span_(client_, SLUICE_CLIENT_REQUEST, request);
    end_(client_);
  }

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) fail("--mark: the library lacks %s", name);
  }

  void* library_ = nullptr;
  sluice_connection* client_ = nullptr;
  decltype(&sluice_client_open) open_ = nullptr;
  decltype(&sluice_client_close) close_ = nullptr;
  decltype(&sluice_client_get_status) status_ = nullptr;
  decltype(&sluice_client_begin) begin_ = nullptr;
  decltype(&sluice_client_end) end_ = nullptr;
  decltype(&sluice_client_begin_span_since) begin_span_ = nullptr;
  decltype(&sluice_client_end_span) end_span_ = nullptr;
};

int online(const options& chosen) {
  const std::uint64_t iterations = iterations_of(chosen);
  const int device = chosen.devices.front();
  CHECK(cudaSetDevice(device));
  const shape as = online_shape(device);
  progress* const of = new_progress();
  cudaStream_t in = nullptr;
  CHECK(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking));
  const auto request = [&] {
    for (int i = 0; i < chosen.kernels; ++i) launch(as, in, nullptr, of, iterations, 1);
    CHECK(cudaStreamSynchronize(in));
  };
  for (int i = 0; i < 10; ++i) request();

  std::vector<double> latencies;
  std::uint32_t random = 1;
  const double until = now_us() + chosen.seconds * 1e6;
  while (now_us() < until) {
    random = random * 1664525U + 1013904223U;
    usleep(static_cast<useconds_t>(chosen.pause_us * (0.5 + random / 4294967296.0)));
    const double start = now_us();
    request();
    latencies.push_back(now_us() - start);
  }
  std::sort(latencies.begin(), latencies.end());
  const auto at = [&](double share) {
    return latencies[std::min(
        latencies.size() - 1,
        static_cast<std::size_t>(share * static_cast<double>(latencies.size())))];
  };
  std::printf("{\"n\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
              latencies.size(), at(0.5), at(0.99), latencies.back());
  return 0;
}

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1000000000} + t.tv_nsec;
}

/// Of one request. A step sets `launched`, and what does not begin before it or end after it.
struct times {
  std::int64_t begin;
  std::int64_t submitted;  ///< The first of its calls returned. 0: it has one, or none like that.
  std::int64_t launched;
  std::int64_t end;
};
struct step {
  const char* name;
  std::function<void(times&)> perform;
};

times timed(const step& which) {
  times of{now_ns(), 0, 0, 0};
  which.perform(of);
  if (of.end == 0) of.end = now_ns();
  return of;
}

/// Lines of the standard input.
class orders {
 public:
  /// \return false: none came until then. The end of the input ends the program.
  bool next(std::int64_t until, std::string& line) {
    for (;;) {
      const auto end = read_.find('\n');
      if (end != std::string::npos) {
        line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return true;
      }
      constexpr std::int64_t hour = std::int64_t{3600} * 1000000000;
      const std::int64_t left = std::min(std::max<std::int64_t>(until - now_ns(), 0), hour);
      const timespec limit{left / 1000000000, left % 1000000000};
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (ppoll(&input, 1, &limit, nullptr) <= 0) return false;
      std::array<char, 512> bytes{};
      const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
      if (got <= 0) std::exit(0);
      read_.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  std::string read_;
};

struct logged {
  const char* name;
  times of;
};

void write_log(const std::string& path, const std::vector<logged>& all) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) fail("cannot write %s: %s", path.c_str(), std::strerror(errno));
  for (const logged& each : all)
    std::fprintf(
        file, "%s %lld %lld %lld %lld\n", each.name, static_cast<long long>(each.of.begin),
        static_cast<long long>(each.of.submitted != 0 ? each.of.submitted : each.of.launched),
        static_cast<long long>(each.of.launched), static_cast<long long>(each.of.end));
  if (std::fclose(file) != 0) fail("cannot write %s: %s", path.c_str(), std::strerror(errno));
}

/// Mean over the steps of the median length.
double mean_length_us(const std::vector<step>& steps) {
  double sum = 0;
  for (const step& each : steps) {
    for (int i = 0; i < 5; ++i) timed(each);
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 21; ++i) {
      const times of = timed(each);
      lengths.push_back(of.end - of.begin);
    }
    std::sort(lengths.begin(), lengths.end());
    sum += static_cast<double>(lengths[lengths.size() / 2]) / 1e3;
  }
  return sum / static_cast<double>(steps.size());
}

void sleep_until(std::int64_t due) {
  const timespec at{due / 1000000000, due % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

/// Performs a step at given times. A request counts as arrived when it is due, so one that waits
/// for others is late.
void play(const std::string& line, const step& which, const marker& marks) {
  constexpr std::int64_t lead = 5000000;
  const auto second = line.find(' ', 5);
  const auto third = second == std::string::npos ? second : line.find(' ', second + 1);
  if (third == std::string::npos) fail("expected 'play ARRIVALS T FILE', got '%s'", line.c_str());
  const std::string path = line.substr(5, second - 5);
  const double limit_us = number("T", line.substr(second + 1, third - second - 1).c_str(), 1);
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) fail("cannot open %s: %s", path.c_str(), std::strerror(errno));
  std::vector<std::int64_t> due;
  const std::int64_t start = now_ns() + lead;
  for (long long at = 0; std::fscanf(file, "%lld", &at) == 1;) due.push_back(start + at);
  std::fclose(file);
  const std::int64_t until = start + static_cast<std::int64_t>(limit_us * 1e3);

  std::size_t announced = 0;
  const auto announce = [&] {
    for (const std::int64_t now = now_ns(); announced < due.size() && due[announced] <= now;
         ++announced)
      marks.begin(announced, due[announced]);
  };
  std::vector<times> made;
  made.reserve(due.size());
  for (const std::int64_t at : due) {
    if (now_ns() < at) sleep_until(at);
    if (now_ns() > until) break;
    announce();
    made.push_back(timed(which));
    announce();  // What has arrived since, so that the next one does not begin after a pause.
    marks.end(made.size() - 1);
  }
  for (std::size_t i = made.size(); i < announced; ++i) marks.end(i);

  const std::string log = line.substr(third + 1);
  std::FILE* const to = std::fopen(log.c_str(), "w");
  if (to == nullptr) fail("cannot write %s: %s", log.c_str(), std::strerror(errno));
  for (std::size_t i = 0; i < made.size(); ++i)
    std::fprintf(to, "%lld %lld %lld\n", static_cast<long long>(due[i]),
                 static_cast<long long>(made[i].begin), static_cast<long long>(made[i].end));
  if (std::fclose(to) != 0) fail("cannot write %s: %s", log.c_str(), std::strerror(errno));
  std::printf("{\"requests\": %zu}\n", made.size());
}

/// Performs steps as the standard input orders.
[[noreturn]] void obey(const std::vector<step>& steps, const std::string& library = {}) {
  constexpr std::int64_t longest_backlog = 100000000;
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  std::printf("{\"alone_us\": %.3f}\n", mean_length_us(steps));
  std::fflush(stdout);
  std::mt19937 random{1};
  std::uniform_int_distribution<std::size_t> choose{0, steps.size() - 1};
  marker marks{library};
  orders input;
  std::string line;
  for (;;) {
    while (!input.next(std::numeric_limits<std::int64_t>::max(), line)) {
    }
    if (line.rfind("play ", 0) == 0) {
      play(line, steps.front(), marks);
      std::fflush(stdout);
      continue;
    }
    if (line.rfind("mark ", 0) == 0) {
      if (library.empty()) fail("'%s' needs --mark", line.c_str());
      marks.disconnect();
      if (line != "mark -") marks.connect(line.c_str() + 5);
      std::printf("{}\n");
      std::fflush(stdout);
      continue;
    }
    const auto space = line.find(' ');
    if (space == std::string::npos) fail("expected 'T FILE', got '%s'", line.c_str());
    const std::string path = line.substr(space + 1);
    std::exponential_distribution<double> pause{
        1 / (1e3 * number("T", line.substr(0, space).c_str(), 1))};
    std::vector<logged> all;
    std::int64_t due = now_ns();
    for (;;) {
      due = std::max(due + static_cast<std::int64_t>(pause(random)), now_ns() - longest_backlog);
      if (input.next(due, line)) break;
      const step& which = steps[choose(random)];
      all.push_back({which.name, timed(which)});
    }
    write_log(path, all);
    std::printf("{\"requests\": %zu}\n", all.size());
    std::fflush(stdout);
  }
}

/// What the steps of a program work with.
struct workplace {
  explicit workplace(const options& chosen) : device(chosen.devices.front()), rate(chosen.rate) {
    if (rate <= 0) fail("--rate is required");
    CHECK(cudaSetDevice(device));
    as = online_shape(device);
    of = new_progress();
    for (cudaStream_t* each : {&first, &second, &third})
      CHECK(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
  }
  void run(cudaStream_t in, double us) const {
    launch(as, in, nullptr, of, std::max<std::uint64_t>(1, static_cast<std::uint64_t>(us * rate)),
           1);
  }

  int device;
  double rate;
  shape as;
  progress* of = nullptr;
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaStream_t third = nullptr;
};

[[noreturn]] void serve(const options& chosen) {
  if (chosen.kernel_us <= 0) fail("--kernel-us is required");
  const workplace at{chosen};
  obey({{"kernels",
         [&](times& of) {
           at.run(at.first, chosen.kernel_us);
           of.submitted = now_ns();
           for (int i = 1; i < chosen.kernels; ++i) at.run(at.first, chosen.kernel_us);
           of.launched = now_ns();
           CHECK(cudaStreamSynchronize(at.first));
         }}},
       chosen.library);
}

/// The names are known to seeing.py.
[[noreturn]] void mix(const options& chosen) {
  constexpr std::size_t much = std::size_t{256} << 20U;
  constexpr std::size_t some = std::size_t{8} << 20U;
  constexpr std::size_t little = std::size_t{1} << 20U;
  const workplace at{chosen};
  char* memory = nullptr;
  char* pinned = nullptr;
  CHECK(cudaMalloc(&memory, much));
  CHECK(cudaHostAlloc(&pinned, some, cudaHostAllocDefault));
  std::vector<char> pageable(little, 1);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  at.run(at.first, 1);  // Loads the kernel, which a capture may not.
  CHECK(cudaStreamSynchronize(at.first));
  CHECK(cudaStreamBeginCapture(at.first, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 20; ++i) at.run(at.first, 100);
  CHECK(cudaStreamEndCapture(at.first, &captured));
  CHECK(cudaGraphInstantiateWithFlags(&graph, captured, 0));

  const auto wait = [&](times& of, cudaStream_t in) {
    of.launched = now_ns();
    CHECK(cudaStreamSynchronize(in));
  };
  const auto whole_copy = [&](times& of, void* to, const void* from, cudaMemcpyKind kind) {
    CHECK(cudaMemcpy(to, from, little, kind));
    of.launched = now_ns();
  };
  obey({
      {"kernel",
       [&](times& of) {
         at.run(at.first, 65);
         wait(of, at.first);
       }},
      {"two_streams",
       [&](times& of) {
         at.run(at.first, 500);
         of.submitted = now_ns();
         at.run(at.second, 800);
         wait(of, at.first);
         CHECK(cudaStreamSynchronize(at.second));
       }},
      {"thread",
       [&](times& of) {
         std::thread{[&] {
           CHECK(cudaSetDevice(at.device));
           of.begin = now_ns();
           at.run(at.third, 500);
           wait(of, at.third);
           of.end = now_ns();
         }}.join();
       }},
      {"copy_in",
       [&](times& of) {
         CHECK(cudaMemcpyAsync(memory, pinned, some, cudaMemcpyHostToDevice, at.first));
         wait(of, at.first);
       }},
      {"copy_out",
       [&](times& of) {
         CHECK(cudaMemcpyAsync(pinned, memory, some, cudaMemcpyDeviceToHost, at.second));
         wait(of, at.second);
       }},
      {"pageable_in",
       [&](times& of) { whole_copy(of, memory, pageable.data(), cudaMemcpyHostToDevice); }},
      {"pageable_out",
       [&](times& of) { whole_copy(of, pageable.data(), memory, cudaMemcpyDeviceToHost); }},
      {"memset",
       [&](times& of) {
         CHECK(cudaMemsetAsync(memory, 1, much, at.first));
         wait(of, at.first);
       }},
      {"memset_4",
       [&](times& of) {
         CHECK(cudaMemsetAsync(memory, 1, 4, at.second));
         wait(of, at.second);
       }},
      {"graph",
       [&](times& of) {
         CHECK(cudaGraphLaunch(graph, at.first));
         wait(of, at.first);
       }},
      {"event",
       [&](times& of) {
         at.run(at.first, 500);
         of.submitted = now_ns();
         CHECK(cudaEventRecord(event, at.first));
         of.launched = now_ns();
         CHECK(cudaEventSynchronize(event));
       }},
  });
}

[[noreturn]] void rest(const options& chosen) {
  if (chosen.page.empty()) fail("rest: --page is required");
  volatile std::uint64_t* const page = map_page(chosen.page);
  CHECK(cudaSetDevice(chosen.devices.front()));
  progress* const of = new_progress();
  launch(online_shape(chosen.devices.front()), nullptr, nullptr, of, 1, 1);
  CHECK(cudaDeviceSynchronize());
  page[generation] = page[generation] + 1;
  for (;;) pause();
}

// checksum: every block computes x = a x + c for each word, round after round, and moves the words.
// What is in each place after n rounds is also known without the rounds.

struct affine {
  std::uint32_t a = 1;
  std::uint32_t c = 0;
  __device__ std::uint32_t operator()(std::uint32_t x) const { return a * x + c; }
};
__device__ affine after(affine first, affine then) {
  return {then.a * first.a, then.a * first.c + then.c};
}
__device__ affine power(affine of, std::uint32_t n) {
  affine made;
  for (; n != 0; n >>= 1U, of = after(of, of))
    if ((n & 1U) != 0) made = after(made, of);
  return made;
}
__device__ std::uint32_t start_value(std::uint32_t seed, std::uint32_t index) {
  std::uint32_t x = seed * 0x9e3779b9U + blockIdx.x * 0x85ebca6bU + index * 0xc2b2ae35U;
  x = (x ^ x >> 16U) * 0x7feb352dU;
  x = (x ^ x >> 15U) * 0x846ca68bU;
  return x ^ x >> 16U;
}

struct checked {
  unsigned long long kernels;
  unsigned long long blocks;
  unsigned long long wrong_registers;
  unsigned long long wrong_shared;
  unsigned long long
      first;  ///< 1 << 63 | its block << 32 | its index; registers follow shared memory.
};

constexpr int check_threads = 512;
constexpr std::uint32_t check_registers = 96;  // Of 128 that a thread can have.

/// rounds: an even number.
__global__ void __launch_bounds__(check_threads, 1)
    permute(checked* of, std::uint32_t seed, std::uint32_t rounds, std::uint32_t words,
            bool damage) {
  extern __shared__ std::uint32_t scratch[];
  constexpr affine step{1664525U, 1013904223U};
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t own = words + threadIdx.x * check_registers;
  for (std::uint32_t i = threadIdx.x; i < words; i += blockDim.x) scratch[i] = start_value(seed, i);
  std::uint32_t a[check_registers];
#pragma unroll
  for (std::uint32_t i = 0; i < check_registers; ++i) a[i] = start_value(seed, own + i);
  __syncthreads();
  for (std::uint32_t n = 0; n < rounds; ++n) {
    // Words j and (n mod 2) - j change places: two rounds move each word by one.
    const std::uint32_t sum = words + n % 2;
    for (std::uint32_t j = threadIdx.x; j <= words / 2 + 1; j += blockDim.x) {
      const std::uint32_t k = (sum - j) % words;
      if (j > k) continue;
      const std::uint32_t x = scratch[j];
      const std::uint32_t y = scratch[k];
      scratch[j] = step(y);
      scratch[k] = step(x);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < check_registers; ++i)
      a[i] = __shfl_sync(~0U, step(a[i]), static_cast<int>((lane + 1) % 32));
    if (damage && n == rounds / 2 && blockIdx.x == 0 && threadIdx.x == 40) {
      a[7] ^= 1U << 20U;
      scratch[threadIdx.x] ^= 1U;  // No other thread uses this word in this round.
    }
    __syncthreads();
  }
  const affine all = power(step, rounds);
  unsigned long long wrong_registers = 0;
  unsigned long long wrong_shared = 0;
  const auto note = [&](std::uint32_t index) {
    atomicCAS(&of->first, 0ULL,
              1ULL << 63U | static_cast<unsigned long long>(blockIdx.x) << 32U | index);
  };
  const std::uint32_t from =
      words + threadIdx.x / 32 * 32 * check_registers + (lane + rounds) % 32 * check_registers;
#pragma unroll
  for (std::uint32_t i = 0; i < check_registers; ++i)
    if (a[i] != all(start_value(seed, from + i))) {
      ++wrong_registers;
      note(own + i);
    }
  for (std::uint32_t i = threadIdx.x; i < words; i += blockDim.x)
    if (scratch[i] != all(start_value(seed, (i + words - rounds / 2 % words) % words))) {
      ++wrong_shared;
      note(i);
    }
  if (wrong_registers > 0) atomicAdd(&of->wrong_registers, wrong_registers);
  if (wrong_shared > 0) atomicAdd(&of->wrong_shared, wrong_shared);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&of->blocks, 1ULL);
}

__global__ void publish(checked* of, volatile std::uint64_t* page) {
  page[1] = of->blocks;
  page[2] = of->wrong_registers;
  page[3] = of->wrong_shared;
  page[4] = of->first;
  __threadfence_system();
  page[first_counter] = ++of->kernels;
}

[[noreturn]] void check_memory(const options& chosen) {
  if (chosen.page.empty() || chosen.kernel_us <= 0)
    fail("checksum: --page and --kernel-us are required");
  volatile std::uint64_t* const page = map_page(chosen.page);
  const int device = chosen.devices.front();
  CHECK(cudaSetDevice(device));
  CHECK(cudaHostRegister(const_cast<std::uint64_t*>(page), 4096, cudaHostRegisterMapped));
  void* mapped = nullptr;
  CHECK(cudaHostGetDevicePointer(&mapped, const_cast<std::uint64_t*>(page), 0));
  checked* of = nullptr;
  CHECK(cudaMalloc(&of, sizeof(checked)));
  CHECK(cudaMemset(of, 0, sizeof(checked)));
  const int shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  CHECK(cudaFuncSetAttribute(permute, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int blocks = attribute(cudaDevAttrMultiProcessorCount, device);
  std::uint32_t seed = 0;
  const auto start = [&](std::uint32_t rounds) {
    permute<<<blocks, check_threads, shared>>>(
        of, ++seed, rounds, static_cast<std::uint32_t>(shared) / 4, chosen.damage);
    CHECK(cudaGetLastError());
    publish<<<1, 1>>>(of, static_cast<std::uint64_t*>(mapped));
    CHECK(cudaGetLastError());
  };
  // Rounds that take T: from the slope, because the fill and the comparison take their time, too.
  const auto length_us = [&](std::uint32_t rounds) {
    const double begun = now_us();
    start(rounds);
    CHECK(cudaDeviceSynchronize());
    return now_us() - begun;
  };
  length_us(2);
  constexpr std::uint32_t few = 200;
  constexpr std::uint32_t many = 1200;
  const double round_us = (length_us(many) - length_us(few)) / (many - few);
  const double wanted = chosen.kernel_us / std::max(round_us, 0.1) / 2;
  const auto rounds = 2 * static_cast<std::uint32_t>(std::min(std::max(wanted, 1.0), 1e6));
  std::array<cudaEvent_t, 4> ends{};
  for (cudaEvent_t& each : ends)
    CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming | cudaEventBlockingSync));
  for (std::uint64_t n = 0;; ++n) {
    cudaEvent_t const end = ends[n % ends.size()];
    if (n >= ends.size()) CHECK(cudaEventSynchronize(end));
    start(rounds);
    CHECK(cudaEventRecord(end, nullptr));
  }
}

}  // namespace

struct delays {
  explicit delays(std::vector<double> all) : sorted(std::move(all)) {
    std::sort(sorted.begin(), sorted.end());
  }
  double at(std::size_t percent) const { return sorted[(sorted.size() - 1) * percent / 100]; }
  std::vector<double> sorted;
};

void nap(double us) {
  const timespec length{0, static_cast<long>(1e3 * us)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

/// How long another thread, which rests, takes from when it is woken until it runs.
delays hand_over(double pause_us, double seconds) {
  const int bell = eventfd(0, EFD_CLOEXEC);
  if (bell < 0) fail("eventfd: %s", std::strerror(errno));
  std::atomic<double> rung{0};
  std::vector<double> took;
  std::thread other{[&] {
    for (eventfd_t count = 0; eventfd_read(bell, &count) == 0 && count == 1;)
      took.push_back(now_us() - rung);
  }};
  for (const double end = now_us() + 1e6 * seconds; now_us() < end;) {
    nap(pause_us);
    rung = now_us();
    eventfd_write(bell, 1);
  }
  nap(pause_us);
  eventfd_write(bell, 2);
  other.join();
  close(bell);
  return delays{std::move(took)};
}

int wakes(const options& chosen) {
  constexpr double nap_us = 50;
  prctl(PR_SET_TIMERSLACK, 1UL);
  std::vector<double> late;
  for (const double end = now_us() + 1e6 * chosen.seconds; now_us() < end;) {
    const double due = now_us() + nap_us;
    nap(nap_us);
    late.push_back(now_us() - due);
  }
  const delays all{std::move(late)};
  const auto after =
      all.sorted.end() - std::upper_bound(all.sorted.begin(), all.sorted.end(), 100.0);
  std::printf("{\"n\": %zu, \"p50\": %.1f, \"p99\": %.1f, \"over_100_us\": %.4f", all.sorted.size(),
              all.at(50), all.at(99),
              100 * static_cast<double>(after) / static_cast<double>(all.sorted.size()));
  if (chosen.pause_us > 0) {
    const delays resting = hand_over(chosen.pause_us, chosen.seconds);
    std::printf(", \"hand_over\": [%.1f, %.1f]", resting.at(50), resting.at(99));
    const std::int32_t least = 0;
    const int awake = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);  // Until it is closed.
    if (awake >= 0 && write(awake, &least, sizeof least) == sizeof least) {
      const delays ready = hand_over(chosen.pause_us, chosen.seconds);
      std::printf(", \"awake\": [%.1f, %.1f]", ready.at(50), ready.at(99));
    } else {
      std::printf(", \"awake\": null");
    }
  }
  std::printf("}\n");
  return 0;
}

int main(int argc, char** argv) {
  own_arguments = argv;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--help") {
    std::fputs(help, stdout);
    return 0;
  }
  const std::array<std::string, 9> known{"calibrate", "offline", "online",   "serve", "mix",
                                         "rest",      "peer",    "checksum", "wakes"};
  if (std::find(known.begin(), known.end(), what) == known.end()) {
    std::fputs(help, stderr);
    return 2;
  }
  const options chosen = read_options(argc, argv);
  if (what == "serve") serve(chosen);
  if (what == "mix") mix(chosen);
  if (what == "rest") rest(chosen);
  if (what == "peer") peer(chosen);
  if (what == "checksum") check_memory(chosen);
  if (what == "calibrate") return calibrate(chosen);
  if (what == "wakes") return wakes(chosen);
  return what == "offline" ? offline(chosen) : online(chosen);
}
