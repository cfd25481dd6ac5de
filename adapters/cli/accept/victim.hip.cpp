// The victim of `sluice accept` on AMD GPUs:
//
//   hipcc -std=c++17 -O2 -o hip-victim victim.hip.cpp
//
// It has been compiled, never run: the project has no AMD hardware. It uses the first GPU that
// HIP_VISIBLE_DEVICES leaves it.

#include "victim.hpp"

#include <hip/hip_runtime.h>

#include <string>
#include <vector>

namespace {

constexpr unsigned block_threads = 256;

void check(hipError_t error, const char* what) {
  if (error != hipSuccess)
    sluice::accept::cannot(std::string{what} + ": " + hipGetErrorString(error));
}

/// A chain of dependent operations, for a clock goes on while a wave is off the GPU. What it writes
/// keeps the compiler from dropping it.
__global__ void burn(std::uint64_t rounds, float* out) {
  float value = static_cast<float>(threadIdx.x);
  for (std::uint64_t i = 0; i < rounds; ++i) value = __builtin_fmaf(value, 0.999F, 0.001F);
  if (value < 0) *out = value;
}

__global__ void trap() { __builtin_trap(); }  // what a failed assert() ends in
__global__ void write_to(int* address) { *address = 1; }

class hip_work final : public sluice::accept::gpu_work {
 public:
  explicit hip_work(unsigned queues) : streams_(queues) {
    hipDeviceProp_t about{};
    check(hipGetDeviceProperties(&about, 0), "hipGetDeviceProperties");
    check(hipMalloc(reinterpret_cast<void**>(&out_), sizeof *out_), "hipMalloc");
    for (auto& each : streams_)
      check(hipStreamCreateWithFlags(&each, hipStreamNonBlocking), "hipStreamCreateWithFlags");
    int per_unit = 0;
    check(hipOccupancyMaxActiveBlocksPerMultiprocessor(&per_unit, burn, block_threads, 0),
          "hipOccupancyMaxActiveBlocksPerMultiprocessor");
    blocks_ = static_cast<unsigned>(about.multiProcessorCount * std::max(per_unit, 1));
    calibrate();
    // A hardware queue exists from a stream's first kernel on.
    for (unsigned i = 0; i < queues; ++i) submit(i, std::chrono::microseconds{1}, 1);
    for (unsigned i = 0; i < queues; ++i) wait(i);
  }

  void submit(unsigned queue, std::chrono::nanoseconds length, unsigned percent) override {
    const auto share = static_cast<std::size_t>(blocks_) * percent / 100 / streams_.size();
    launch(queue, static_cast<std::uint64_t>(static_cast<double>(length.count()) * rounds_per_ns_),
           static_cast<unsigned>(std::max<std::size_t>(share, 1)));
  }
  void wait(unsigned queue) override {
    check(hipStreamSynchronize(streams_[queue]), "hipStreamSynchronize");
  }
  void close() override {
    for (const auto each : streams_) check(hipStreamDestroy(each), "hipStreamDestroy");
    check(hipFree(out_), "hipFree");
  }
  [[noreturn]] void fail_assertion() override {
    trap<<<1, 1>>>();
    end_of_a_failed_kernel();
  }
  [[noreturn]] void fault() override {
    // Aligned, canonical, and of no allocation.
    write_to<<<1, 1>>>(reinterpret_cast<int*>(std::uintptr_t{0x7e0000000000}));
    end_of_a_failed_kernel();
  }

 private:
  /// The runtime ends the process (SIGABRT) where it does not report an error instead.
  [[noreturn]] static void end_of_a_failed_kernel() {
    const hipError_t error = hipDeviceSynchronize();
    if (error == hipSuccess)
      sluice::accept::cannot("the kernel that must fail completed without an error");
    std::fprintf(stderr, "victim: %s\n", hipGetErrorString(error));
    std::_Exit(3);
  }

  void launch(unsigned queue, std::uint64_t rounds, unsigned blocks) {
    burn<<<blocks, block_threads, 0, streams_[queue]>>>(std::max<std::uint64_t>(rounds, 1), out_);
    check(hipGetLastError(), "launch");
  }

  void calibrate() {
    constexpr std::uint64_t rounds = 1U << 20U;
    launch(0, rounds, blocks_);  // clocks go up
    wait(0);
    const auto begin = std::chrono::steady_clock::now();
    launch(0, rounds, blocks_);
    wait(0);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    rounds_per_ns_ = static_cast<double>(rounds) / std::max(took.count(), 1.0);
  }

  std::vector<hipStream_t> streams_;
  unsigned blocks_ = 1;
  double rounds_per_ns_ = 1;
  float* out_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned queues = sluice::accept::queues_of(argc, argv);
  // HIP shares out the streams of a priority among this many hardware queues, 4 unless told.
  ::setenv("GPU_MAX_HW_QUEUES", std::to_string(queues).c_str(), 1);
  hip_work work{queues};
  return sluice::accept::victim{work, queues}.obey();
}
