#pragma once
/// \file
/// The victim's work on an NVIDIA GPU, by the driver API of libcuda, which is loaded at run time.

#include "victim.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::accept {

/// What is used of libcuda.so.1. Types and numbers are those of its stable binary interface.
class cuda {
 public:
  using status = int;  ///< CUresult; 0: success.
  using device = int;
  using handle = struct opaque*;  ///< Contexts, modules, functions and streams.
  using address = std::uint64_t;  ///< CUdeviceptr

  cuda() {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr)
      cannot(std::string{"cannot load NVIDIA's libcuda.so.1: "} + ::dlerror() +
             "; install the driver's user libraries");
    find(error_name, "cuGetErrorName");
    find(init, "cuInit");
    find(get_device, "cuDeviceGet");
    find(get_attribute, "cuDeviceGetAttribute");
    find(set_context_flags, "cuDevicePrimaryCtxSetFlags_v2");
    find(retain_context, "cuDevicePrimaryCtxRetain");
    find(release_context, "cuDevicePrimaryCtxRelease_v2");
    find(set_context, "cuCtxSetCurrent");
    find(load_module, "cuModuleLoadData");
    find(unload_module, "cuModuleUnload");
    find(get_function, "cuModuleGetFunction");
    find(set_function_attribute, "cuFuncSetAttribute");
    find(allocate_host, "cuMemHostAlloc");
    find(device_address, "cuMemHostGetDevicePointer_v2");
    find(free_host, "cuMemFreeHost");
    find(create_stream, "cuStreamCreate");
    find(wait_for_stream, "cuStreamSynchronize");
    find(destroy_stream, "cuStreamDestroy_v2");
    find(launch, "cuLaunchKernel");
  }

  /// Ends the program with the call's name unless the call succeeded.
  void check(status got, const char* call) const {
    if (got == 0) return;
    const char* name = nullptr;
    (void)error_name(got, &name);
    cannot(std::string{call} + ": " + (name != nullptr ? name : "error " + std::to_string(got)));
  }

  status (*error_name)(status, const char**) = nullptr;
  status (*init)(unsigned) = nullptr;
  status (*get_device)(device*, int) = nullptr;
  status (*get_attribute)(int*, int, device) = nullptr;
  status (*set_context_flags)(device, unsigned) = nullptr;
  status (*retain_context)(handle*, device) = nullptr;
  status (*release_context)(device) = nullptr;
  status (*set_context)(handle) = nullptr;
  status (*load_module)(handle*, const void*) = nullptr;
  status (*unload_module)(handle) = nullptr;
  status (*get_function)(handle*, handle, const char*) = nullptr;
  status (*set_function_attribute)(handle, int, int) = nullptr;
  status (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
  status (*device_address)(address*, void*, unsigned) = nullptr;
  status (*free_host)(void*) = nullptr;
  status (*create_stream)(handle*, unsigned) = nullptr;
  status (*wait_for_stream)(handle) = nullptr;
  status (*destroy_stream)(handle) = nullptr;
  /// Grid and block of three dimensions each, bytes of shared memory, stream, parameters.
  status (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   handle, void**, void**) = nullptr;

  // Of its enumerations.
  static constexpr int multiprocessor_count = 16;
  static constexpr int max_shared_memory_per_block_optin = 97;
  static constexpr int max_dynamic_shared_size_bytes = 8;
  static constexpr unsigned blocking_sync = 4;    ///< Waiting threads sleep.
  static constexpr unsigned portable_mapped = 3;  ///< Host memory that GPUs can write.
  static constexpr unsigned non_blocking = 1;     ///< Stream without the default stream's order.

 private:
  template <class Function>
  void find(Function& into, const char* name) {
    into = reinterpret_cast<Function>(::dlsym(library_, name));
    if (into == nullptr)
      cannot(std::string{"libcuda.so.1 has no "} + name + "; install a newer driver");
  }

  void* library_ = nullptr;
};

/// `burn`: a chain of dependent operations, because a clock goes on while a kernel is off the GPU.
/// The comparison at the end keeps the compiler from dropping the chain. The first thread counts
/// the kernel in `counter`, in host memory; kernels of a stream do not overlap.
inline constexpr const char* burn_text = R"(
.version 6.0
.target sm_70
.address_size 64

.visible .entry burn(.param .u64 burn_rounds, .param .u64 burn_counter)
{
  .reg .pred %p<4>;
  .reg .f32 %f<4>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<6>;

  ld.param.u64 %rd1, [burn_rounds];
  ld.param.u64 %rd2, [burn_counter];
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  cvt.rn.f32.u32 %f1, %r1;
  mov.f32 %f2, 0f3F7FBE77;
  mov.f32 %f3, 0f3A83126F;
  mov.u64 %rd3, 0;
again:
  fma.rn.f32 %f1, %f1, %f2, %f3;
  add.u64 %rd3, %rd3, 1;
  setp.lt.u64 %p1, %rd3, %rd1;
  @%p1 bra again;

  setp.lt.f32 %p2, %f1, 0f00000000;
  or.b32 %r3, %r1, %r2;
  setp.eq.u32 %p3, %r3, 0;
  or.pred %p3, %p3, %p2;
  @!%p3 bra done;
  ld.volatile.global.u64 %rd4, [%rd2];
  add.u64 %rd4, %rd4, 1;
  st.volatile.global.u64 [%rd2], %rd4;
done:
  ret;
}
)";

/// Uses the first GPU in CUDA_VISIBLE_DEVICES.
class cuda_work final : public gpu_work {
 public:
  explicit cuda_work(unsigned queues) : streams_(queues) {
    api_.check(api_.init(0), "cuInit");
    api_.check(api_.get_device(&device_, 0), "cuDeviceGet");
    api_.check(api_.set_context_flags(device_, cuda::blocking_sync), "cuDevicePrimaryCtxSetFlags");
    api_.check(api_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
    enter();
    api_.check(api_.load_module(&module_, burn_text), "cuModuleLoadData");
    api_.check(api_.get_function(&burn_, module_, "burn"), "cuModuleGetFunction");
    // A block takes the shared memory of a whole multiprocessor. So one block for each fills the
    // GPU, and how long a kernel takes does not depend on the number of its blocks.
    blocks_ = attribute(cuda::multiprocessor_count);
    shared_bytes_ = attribute(cuda::max_shared_memory_per_block_optin);
    api_.check(api_.set_function_attribute(burn_, cuda::max_dynamic_shared_size_bytes,
                                           static_cast<int>(shared_bytes_)),
               "cuFuncSetAttribute");
    for (auto& each : streams_) {
      void* memory = nullptr;
      api_.check(api_.allocate_host(&memory, sizeof(std::uint64_t), cuda::portable_mapped),
                 "cuMemHostAlloc");
      each.counter = static_cast<volatile std::uint64_t*>(memory);
      *each.counter = 0;
      api_.check(api_.device_address(&each.counter_address, memory, 0),
                 "cuMemHostGetDevicePointer");
      api_.check(api_.create_stream(&each.stream, cuda::non_blocking), "cuStreamCreate");
    }
    calibrate();
    // Each stream's first kernel may take longer.
    for (unsigned i = 0; i < queues; ++i) submit(i, std::chrono::microseconds{1}, 1);
    for (unsigned i = 0; i < queues; ++i) wait(i);
  }

  void submit(unsigned queue, std::chrono::nanoseconds length, unsigned percent) override {
    const auto share = std::uint64_t{blocks_} * percent / 100 / streams_.size();
    launch(queue, static_cast<std::uint64_t>(static_cast<double>(length.count()) * rounds_per_ns_),
           static_cast<unsigned>(std::max<std::uint64_t>(share, 1)));
  }
  void wait(unsigned queue) override {
    own_stream& own = streams_[queue];
    api_.check(api_.wait_for_stream(own.stream), "cuStreamSynchronize");
    if (*own.counter != own.launched)
      cannot("the GPU ran " + std::to_string(*own.counter) + " kernels of a queue, but " +
             std::to_string(own.launched) + " were submitted");
  }
  void close() override {
    enter();
    for (const auto& each : streams_) {
      api_.check(api_.destroy_stream(each.stream), "cuStreamDestroy");
      api_.check(api_.free_host(const_cast<std::uint64_t*>(each.counter)), "cuMemFreeHost");
    }
    api_.check(api_.unload_module(module_), "cuModuleUnload");
    api_.check(api_.release_context(device_), "cuDevicePrimaryCtxRelease");
  }

 private:
  struct own_stream {
    cuda::handle stream = nullptr;
    volatile std::uint64_t* counter = nullptr;  ///< The GPU writes it.
    cuda::address counter_address = 0;
    std::uint64_t launched = 0;
  };

  /// A context is current in one thread.
  void enter() const { api_.check(api_.set_context(context_), "cuCtxSetCurrent"); }

  unsigned attribute(int which) const {
    int value = 0;
    api_.check(api_.get_attribute(&value, which, device_), "cuDeviceGetAttribute");
    return static_cast<unsigned>(value);
  }

  void launch(unsigned queue, std::uint64_t rounds, unsigned blocks) {
    constexpr unsigned block_threads = 1024;
    enter();
    own_stream& own = streams_[queue];
    std::array<void*, 2> parameters{&rounds, &own.counter_address};
    api_.check(api_.launch(burn_, blocks, 1, 1, block_threads, 1, 1, shared_bytes_, own.stream,
                           parameters.data(), nullptr),
               "cuLaunchKernel");
    ++own.launched;
  }

  void calibrate() {
    constexpr std::uint64_t rounds = 1U << 20U;
    launch(0, rounds, blocks_);  // The clocks go up.
    wait(0);
    const auto begin = std::chrono::steady_clock::now();
    launch(0, rounds, blocks_);
    wait(0);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    rounds_per_ns_ = static_cast<double>(rounds) / std::max(took.count(), 1.0);
  }

  const cuda api_;
  cuda::device device_ = 0;
  cuda::handle context_ = nullptr;
  cuda::handle module_ = nullptr;
  cuda::handle burn_ = nullptr;
  std::vector<own_stream> streams_;
  unsigned blocks_ = 1;
  unsigned shared_bytes_ = 0;
  double rounds_per_ns_ = 1;
};

}  // namespace sluice::accept
