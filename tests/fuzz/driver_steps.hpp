#pragma once
/// \file
/// Steps of three processes that use two GPUs, made from an input of libFuzzer's: driver calls of
/// any content, packets, deaths. The derived class says what they act on.

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/kfd/uapi_memory.hpp"
#include "sluice/sim/abi.hpp"

namespace sluice::fuzz {

namespace uapi = kfd::uapi;

/// Which bytes of the input a step reads does not depend on what steps do: on the real driver, each
/// process reads the whole input and does only its own steps.
class driver_steps {
 public:
  /// Processes are numbers from 0 on. This one may trace and control the others.
  static constexpr std::size_t processes = 3;
  static constexpr std::size_t tracer = 1;
  static constexpr std::size_t gpus = 2;

  struct gpu {
    std::uint32_t id = 0;
    std::uint64_t context = 0;        ///< Of a save area, in bytes.
    std::uint64_t control_stack = 0;  ///< Part of it, in bytes.
    std::uint64_t save_area = 0;      ///< All of it, in bytes.
  };

  driver_steps(const driver_steps&) = delete;
  driver_steps& operator=(const driver_steps&) = delete;

  /// Begins the processes and does 200 steps at most.
  void run() {
    for (std::size_t each = 0; each < processes; ++each) begin_process(each);
    for (int step = 0; step < 200 && input_.remaining_bytes() > 0; ++step) take_a_step();
  }

 protected:
  // Addresses in each process.
  static constexpr std::uint64_t scratch = 0x10000;
  static constexpr std::uint64_t scratch_bytes = 0x10000;
  static constexpr std::uint64_t queue_area = 0x100000;
  static constexpr std::uint64_t queue_stride = 0x20000;
  static constexpr std::uint64_t areas = 4;
  static constexpr std::uint32_t ring_bytes = 0x10000;
  static constexpr std::uint64_t save_area = 0x1000000000;
  static constexpr std::uint64_t save_stride = 0x40000000;
  // Descriptors of each process.
  static constexpr int pipe_fd = 5;
  static constexpr int first_render_fd = 6;  ///< Of GPU 0; GPU 1's follows.

  explicit driver_steps(FuzzedDataProvider& input) : input_{input} {}
  virtual ~driver_steps() = default;

  virtual const gpu& gpu_at(std::size_t index) const = 0;
  virtual std::uint32_t pid_of(std::size_t process) const = 0;

  /// Around each step. Only `process` acts in it, except that begin() and end() are outside.
  virtual void begin_step(std::size_t /*process*/) {}
  virtual void end_step() {}
  virtual void begin(std::size_t process) = 0;
  virtual void end(std::size_t process) = 0;
  virtual void exec(std::size_t process) = 0;
  /// Closes the driver's device and opens it again.
  virtual void reopen(std::size_t process) = 0;
  virtual void call(std::size_t process, std::uint32_t command,
                    std::vector<std::byte> arguments) = 0;
  virtual void acquire_vm(std::size_t process, std::size_t index) = 0;
  /// System memory, mapped for this GPU.
  virtual void allocate(std::size_t process, std::size_t index, std::uint64_t address,
                        std::uint64_t bytes) = 0;
  virtual void put(std::size_t process, std::uint64_t address, std::span<const std::byte> what) = 0;
  /// The number at this address; 0 if it cannot be read.
  virtual std::uint64_t get(std::size_t process, std::uint64_t address) = 0;
  virtual void read_dumps(std::size_t process) = 0;
  virtual void pass(std::chrono::microseconds how_long) = 0;
  // Only a simulated device can be told to do these.
  virtual void interrupt_last_call() {}
  virtual void control(const std::string& /*line*/) {}
  virtual void fail_next_cycle(bool /*with_reset*/) {}
  virtual void evict(std::size_t /*process*/) {}
  virtual void restore(std::size_t /*process*/) {}

  bool alive(std::size_t process) const { return alive_.at(process); }

 private:
  void begin_process(std::size_t process) {
    alive_.at(process) = true;
    begin(process);
  }

  std::uint32_t word() {
    switch (input_.ConsumeIntegralInRange<int>(0, 4)) {
      case 0: return 0;
      case 1: return input_.ConsumeIntegralInRange<std::uint32_t>(0, 16);
      case 2: return gpu_at(input_.ConsumeBool() ? 1 : 0).id;
      case 3: return pid_of(input_.ConsumeIntegralInRange<std::size_t>(0, processes - 1));
      default: return input_.ConsumeIntegral<std::uint32_t>();
    }
  }
  std::uint64_t area() { return input_.ConsumeIntegralInRange<std::uint64_t>(0, areas - 1); }
  std::uint64_t address() {
    const auto offset = input_.ConsumeIntegralInRange<std::uint64_t>(0, 0x2000) * 8;
    return input_.ConsumeBool() ? scratch + offset : queue_area + area() * queue_stride + offset;
  }
  void fill(std::vector<std::byte>& bytes) {
    for (std::size_t at = 0; at + 4 <= bytes.size();) {
      if (at % 8 == 0 && at + 8 <= bytes.size() && input_.ConsumeBool()) {
        const std::uint64_t value = address();
        std::memcpy(bytes.data() + at, &value, sizeof value);
        at += sizeof value;
      } else {
        const std::uint32_t value = word();
        std::memcpy(bytes.data() + at, &value, sizeof value);
        at += sizeof value;
      }
    }
  }
  template <class Args>
  static std::vector<std::byte> bytes_of(const Args& args) {
    const auto from = std::as_bytes(std::span{&args, 1});
    return {from.begin(), from.end()};
  }
  template <class Value>
  void put_value(std::size_t process, std::uint64_t address, const Value& value) {
    put(process, address, std::as_bytes(std::span{&value, 1}));
  }

  /// A queue as a runtime makes it: with an address space of the GPU, and its buffers mapped.
  std::vector<std::byte> good_queue(std::size_t process) {
    const auto which = area();
    const auto base = queue_area + which * queue_stride;
    const auto saved = save_area + which * save_stride;
    const std::size_t index = input_.ConsumeBool() ? 1 : 0;
    const gpu& on = gpu_at(index);
    acquire_vm(process, index);
    // These fail where a buffer is mapped already, which is as good.
    allocate(process, index, base, ring_bytes);
    allocate(process, index, base + ring_bytes, 0x1000);
    allocate(process, index, base + ring_bytes + 0x1000, 0x1000);
    allocate(process, index, saved, on.save_area);
    uapi::kfd_ioctl_create_queue_args args{};
    args.ring_base_address = base;
    args.ring_size = ring_bytes;
    args.write_pointer_address = base + ring_bytes + 0x38;
    args.read_pointer_address = base + ring_bytes + 0x80;
    args.gpu_id = on.id;
    args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    args.queue_percentage = 100;
    args.queue_priority = 7;
    args.eop_buffer_address = base + ring_bytes + 0x1000;
    args.eop_buffer_size = 0x1000;
    args.ctx_save_restore_address = saved;
    args.ctx_save_restore_size = static_cast<std::uint32_t>(on.context);
    args.ctl_stack_size = static_cast<std::uint32_t>(on.control_stack);
    return bytes_of(args);
  }
  std::vector<std::byte> good_trap() {
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = pid_of(input_.ConsumeIntegralInRange<std::size_t>(0, processes - 1));
    args.op = input_.ConsumeIntegralInRange<std::uint32_t>(0, 17);
    if (args.op == uapi::KFD_IOC_DBG_TRAP_ENABLE) {
      args.enable = {.exception_mask = input_.ConsumeIntegral<std::uint64_t>(),
                     .rinfo_ptr = scratch,
                     .rinfo_size = sizeof(uapi::kfd_runtime_info),
                     .dbg_fd = pipe_fd};
    } else if (args.op == uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES) {
      args.suspend_queues = {.exception_mask = input_.ConsumeIntegral<std::uint8_t>(),
                             .queue_array_ptr = scratch + 0x8000,
                             .num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4),
                             .grace_period = word()};
    } else if (args.op == uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES) {
      args.resume_queues = {.queue_array_ptr = scratch + 0x8000,
                            .num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4),
                            .pad = 0};
    } else {
      auto rest = bytes_of(args);
      std::vector<std::byte> tail(rest.size() - 8);
      fill(tail);
      std::copy(tail.begin(), tail.end(), rest.begin() + 8);
      return rest;
    }
    return bytes_of(args);
  }
  std::vector<std::byte> good_batch() {
    uapi::kfd_ioctl_batch_unmap_queues_args args{};
    args.num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    args.grace_period_us = input_.ConsumeIntegralInRange<std::uint32_t>(0, 200);
    args.flags = input_.ConsumeIntegralInRange<std::uint32_t>(0, 7);
    args.queue_array_ptr = scratch + 0x8000;
    return bytes_of(args);
  }
  std::vector<std::byte> good_remap() {
    uapi::kfd_ioctl_fast_remap_args args{};
    args.num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    args.queue_array_ptr = input_.ConsumeBool() ? scratch + 0x8000 : 0;
    return bytes_of(args);
  }

  void make_a_call(std::size_t process) {
    std::uint32_t command = input_.PickValueInArray(commands);
    std::vector<std::byte> in(_IOC_SIZE(command));
    const bool likely = input_.ConsumeBool();
    if (likely && command == uapi::AMDKFD_IOC_CREATE_QUEUE) {
      in = good_queue(process);
    } else if (likely && command == uapi::AMDKFD_IOC_DBG_TRAP) {
      in = good_trap();
    } else if (likely && command == uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES) {
      in = good_batch();
    } else if (likely && command == uapi::AMDKFD_IOC_FAST_REMAP) {
      in = good_remap();
    } else {
      fill(in);
    }
    if (input_.ConsumeIntegralInRange<int>(0, 15) == 0) {
      // Of an older or a newer program: another size.
      const auto size = input_.ConsumeIntegralInRange<std::uint32_t>(0, 256);
      command = (command & ~(0x3fffU << 16U)) | size << 16U;
      in.resize(size);
    }
    call(process, command, std::move(in));
  }

  void publish_a_packet(std::size_t process) {
    const auto base = queue_area + area() * queue_stride;
    std::array<std::uint16_t, 32> packet{};
    packet[0] = input_.ConsumeBool() ? 0x1502 : input_.ConsumeIntegral<std::uint16_t>();
    packet[1] = 1;
    packet[2] = packet[3] = packet[4] = 1;
    for (std::size_t at = 6; at < 12; at += 2) packet[at] = 64;
    packet[16] = input_.ConsumeIntegral<std::uint16_t>();  // How long it runs.
    packet[17] = input_.ConsumeIntegralInRange<std::uint16_t>(0, 64);
    const auto write = get(process, base + ring_bytes + 0x38);
    put_value(process, base + write % (ring_bytes / 64) * 64, packet);
    const bool wild = input_.ConsumeIntegralInRange<int>(0, 9) == 0;
    put_value(process, base + ring_bytes + 0x38,
              wild ? input_.ConsumeIntegral<std::uint64_t>() : write + 1);
  }

  void take_a_step() {
    const auto process = input_.ConsumeIntegralInRange<std::size_t>(0, processes - 1);
    if (!alive(process)) {
      if (input_.ConsumeIntegralInRange<int>(0, 7) == 0) begin_process(process);
      return;
    }
    const int what = input_.ConsumeIntegralInRange<int>(0, 15);
    if (what == 13 && input_.ConsumeIntegralInRange<int>(0, 3) == 0) {
      alive_.at(process) = false;
      end(process);
      return;
    }
    const std::size_t actor = what == 4 && alive(tracer) ? tracer : process;
    begin_step(actor);
    switch (what) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: make_a_call(actor); break;
      case 5: publish_a_packet(actor); break;
      case 6:
        for (std::uint64_t i = 0; i < 4; ++i) put_value(actor, scratch + 0x8000 + i * 4, word());
        break;
      case 7: interrupt_last_call(); break;
      case 8: control(input_.ConsumeRandomLengthString(48)); break;
      case 9: fail_next_cycle(!input_.ConsumeBool()); break;
      case 10: evict(actor); break;
      case 11: restore(actor); break;
      case 12: reopen(actor); break;
      case 13:
        if (input_.ConsumeIntegralInRange<int>(0, 3) == 0)
          exec(actor);
        else
          read_dumps(actor);
        break;
      default: pass(std::chrono::microseconds{input_.ConsumeIntegralInRange<int>(0, 50'000)});
    }
    end_step();
  }

  static constexpr std::array commands{
      uapi::AMDKFD_IOC_CREATE_QUEUE,
      uapi::AMDKFD_IOC_DESTROY_QUEUE,
      uapi::AMDKFD_IOC_UPDATE_QUEUE,
      uapi::AMDKFD_IOC_RUNTIME_ENABLE,
      uapi::AMDKFD_IOC_DBG_TRAP,
      uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES,
      uapi::AMDKFD_IOC_FAST_REMAP,
      uapi::AMDKFD_IOC_SET_HQD_RESERVATION,
      uapi::AMDKFD_IOC_CREATE_EVENT,
      uapi::AMDKFD_IOC_DESTROY_EVENT,
      uapi::AMDKFD_IOC_SET_EVENT,
      uapi::AMDKFD_IOC_RESET_EVENT,
      uapi::AMDKFD_IOC_WAIT_EVENTS,
      uapi::AMDKFD_IOC_GET_VERSION,
      uapi::AMDKFD_IOC_SET_MEMORY_POLICY,
      uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS,
      uapi::AMDKFD_IOC_GET_PROCESS_APERTURES,
      uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW,
      uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA,
      uapi::AMDKFD_IOC_GET_TILE_CONFIG,
      uapi::AMDKFD_IOC_SET_TRAP_HANDLER,
      uapi::AMDKFD_IOC_ACQUIRE_VM,
      uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU,
      uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU,
      uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU,
      uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU,
      uapi::AMDKFD_IOC_SET_CU_MASK,
      uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE,
      uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS,
      uapi::AMDKFD_IOC_SMI_EVENTS,
      uapi::AMDKFD_IOC_SVM,
      uapi::AMDKFD_IOC_SET_XNACK_MODE,
      uapi::AMDKFD_IOC_CRIU_OP,
      uapi::AMDKFD_IOC_AVAILABLE_MEMORY,
      uapi::AMDKFD_IOC_CREATE_PROCESS,
      uapi::AMDKFD_IOC_GET_DMABUF_INFO,
      uapi::AMDKFD_IOC_IMPORT_DMABUF,
      uapi::AMDKFD_IOC_EXPORT_DMABUF,
      uapi::AMDKFD_IOC_DBG_REGISTER_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_UNREGISTER_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_ADDRESS_WATCH_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_WAVE_CONTROL_DEPRECATED,
      static_cast<std::uint32_t>(sim::SLUICE_SIM_IOC_SET_DOORBELL),
  };

  FuzzedDataProvider& input_;
  std::array<bool, processes> alive_{};
};

}  // namespace sluice::fuzz
