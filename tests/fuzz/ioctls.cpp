// The simulated driver: calls of three processes in any order and of any content, on a machine that
// exists in memory only and in virtual time, with faults, deaths and signals between them.

#include "driver.hpp"
#include "engine.hpp"
#include "fake_os.hpp"
#include "fuzz.hpp"
#include "profile.hpp"
#include "topology.hpp"
#include <fuzzer/FuzzedDataProvider.h>

#include <linux/capability.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/kfd/uapi_memory.hpp"
#include "sluice/sim/abi.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;
namespace uapi = kfd::uapi;

constexpr std::array<pid_t, 3> pids{100, 200, 300};
constexpr std::uint64_t scratch = 0x10000;
constexpr std::uint64_t queue_area = 0x100000;
constexpr std::uint64_t queue_stride = 0x20000;
constexpr std::uint32_t ring_bytes = 0x10000;
/// Save areas, which are large, and of which only the beginning can be written.
constexpr std::uint64_t save_area = 0x1000000000;
constexpr std::uint64_t save_stride = 0x40000000;
constexpr std::uint64_t save_bytes = 0x4000;
constexpr int pipe_fd = 5;
constexpr int first_render_fd = 6;  ///< Of GPU 0; the other follows.

constexpr std::array commands{
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
    static_cast<std::uint32_t>(sim::SLUICE_SIM_IOC_SET_DOORBELL),
};

class machine {
 public:
  explicit machine(FuzzedDataProvider& input) : input_{input}, node_{sim::default_profile()} {
    node_.batch_commands = true;
    if (input_.ConsumeBool()) node_.gpus[0].scheduler = sim::queue_scheduler::mes;
    node_.gpus.push_back(node_.gpus[0]);
    node_.gpus[1].gpu_id += 257;
    if (input_.ConsumeBool()) {
      for (auto& each : node_.gpus) each.hive_id = 7;
    }
    driver_ = std::make_unique<sim::driver>(time_, os_, node_);
    for (const pid_t pid : pids) begin(pid);
    // Whoever may trace and control here, to reach what lies behind these checks.
    for (const pid_t other : {100, 300}) os_.may_trace.insert({200, other});
    for (const int what : {CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE}) {
      os_.capabilities.insert({200, what});
    }
  }

  void run() {
    for (int step = 0; step < 200 && input_.remaining_bytes() > 0; ++step) take_a_step();
    // Everybody goes: what was held is let go of, and what was asked is answered.
    for (const pid_t pid : pids) {
      if (alive_[pid]) end(pid);
    }
    pass(200s);
    for (const auto& [request, answers] : answers_) {
      fuzz::require(answers == 1, "every call is answered, once");
    }
    fuzz::require(os_.taken() + os_.render_nodes_taken() == 0,
                  "no descriptor of a dead process is kept");
    fuzz::require(driver_->process_pids().empty(), "no process is left");
    (void)driver_->stats_json();
  }

 private:
  void begin(pid_t pid) {
    auto& memory = os_.start(pid);
    alive_[pid] = true;
    prepare(memory);
    reopen(pid);
  }
  void prepare(sim::test::fake_memory& memory) {
    memory.map(scratch, 0x10000);
    memory.map(queue_area, 4 * queue_stride);
    for (std::uint64_t i = 0; i < 4; ++i) memory.map(save_area + i * save_stride, save_bytes);
  }
  void reopen(pid_t pid) {
    sim::file_id file = 0;
    if (driver_->open(pid, file) == 0) files_[pid] = file;
    os_.open_file_of(pid, pipe_fd);
    for (int i = 0; i < 2; ++i) os_.open_file_of(pid, first_render_fd + i)->render_node = true;
  }
  void end(pid_t pid) {
    os_.exit(pid);
    alive_[pid] = false;
    if (const auto file = files_.extract(pid)) driver_->release(file.mapped());
    driver_->reap();
  }
  void pass(duration how_long) {
    const auto until = time_.now() + how_long;
    // A queue whose packets can never be read is polled, so steps are bounded as well.
    for (int i = 0; i < 20'000 && time_.next() && *time_.next() <= until; ++i) {
      time_.run_until(*time_.next());
    }
    time_.run_until(until);
  }

  std::uint32_t word() {
    switch (input_.ConsumeIntegralInRange<int>(0, 4)) {
      case 0: return 0;
      case 1: return input_.ConsumeIntegralInRange<std::uint32_t>(0, 16);
      case 2: return node_.gpus[input_.ConsumeBool() ? 1 : 0].gpu_id;
      case 3: return static_cast<std::uint32_t>(input_.PickValueInArray(pids));
      default: return input_.ConsumeIntegral<std::uint32_t>();
    }
  }
  std::uint64_t address() {
    const auto offset = input_.ConsumeIntegralInRange<std::uint64_t>(0, 0x2000) * 8;
    return input_.ConsumeBool()
               ? scratch + offset
               : queue_area + input_.ConsumeIntegralInRange<std::uint64_t>(0, 3) * queue_stride +
                     offset;
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

  /// A call that the driver answers at once. \return what it left in the arguments.
  template <class Args>
  Args call_now(pid_t pid, std::uint32_t command, const Args& args) {
    const auto out = std::make_shared<Args>(args);
    const auto number = ++calls_;
    answers_[number] = 0;
    driver_->ioctl(pid, files_.at(pid), command, bytes_of(args),
                   [this, number, out](const sim::ioctl_reply& reply) {
                     ++answers_[number];
                     std::copy_n(reply.out.begin(), std::min(sizeof(Args), reply.out.size()),
                                 std::as_writable_bytes(std::span{out.get(), 1}).begin());
                   });
    return *out;
  }
  /// Fails where a buffer is mapped already, which is as good.
  void map_memory(pid_t pid, std::uint32_t gpu_id, std::uint64_t at, std::uint64_t size) {
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = at;
    alloc.size = size;
    alloc.gpu_id = gpu_id;
    alloc.flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    alloc = call_now(pid, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, alloc);
    constexpr std::uint64_t ids = scratch + 0xff00;
    os_.memory(pid).put(ids, gpu_id);
    uapi::kfd_ioctl_map_memory_to_gpu_args map{};
    map.handle = alloc.handle;
    map.device_ids_array_ptr = ids;
    map.n_devices = 1;
    call_now(pid, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, map);
  }
  /// A queue as a runtime makes it, with an address space of the GPU and with its buffers mapped.
  std::vector<std::byte> good_queue(pid_t pid) {
    const auto area = input_.ConsumeIntegralInRange<std::uint64_t>(0, 3);
    const auto base = queue_area + area * queue_stride;
    const int gpu = input_.ConsumeBool() ? 1 : 0;
    const auto& shape = node_.gpus[static_cast<std::size_t>(gpu)];
    const auto saved = sim::save_area_of(shape);
    uapi::kfd_ioctl_acquire_vm_args acquire{};
    acquire.drm_fd = static_cast<std::uint32_t>(first_render_fd + gpu);
    acquire.gpu_id = shape.gpu_id;
    call_now(pid, uapi::AMDKFD_IOC_ACQUIRE_VM, acquire);
    map_memory(pid, shape.gpu_id, base, ring_bytes);
    map_memory(pid, shape.gpu_id, base + ring_bytes, 0x1000);
    map_memory(pid, shape.gpu_id, save_area + area * save_stride,
               (saved.context + saved.debugger) * shape.num_xcc);
    uapi::kfd_ioctl_create_queue_args args{};
    args.ring_base_address = base;
    args.ring_size = ring_bytes;
    args.write_pointer_address = base + ring_bytes + 0x38;
    args.read_pointer_address = base + ring_bytes + 0x80;
    args.gpu_id = shape.gpu_id;
    args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    args.queue_percentage = 100;
    args.queue_priority = 7;
    args.ctx_save_restore_address = save_area + area * save_stride;
    args.ctx_save_restore_size = static_cast<std::uint32_t>(saved.context);
    args.ctl_stack_size = static_cast<std::uint32_t>(saved.control_stack);
    return bytes_of(args);
  }
  std::vector<std::byte> good_trap() {
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(input_.PickValueInArray(pids));
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
  std::vector<std::byte> good_batch(bool remap) {
    if (remap) {
      uapi::kfd_ioctl_fast_remap_args args{};
      args.num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4);
      args.queue_array_ptr = input_.ConsumeBool() ? scratch + 0x8000 : 0;
      return bytes_of(args);
    }
    uapi::kfd_ioctl_batch_unmap_queues_args args{};
    args.num_queues = input_.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    args.grace_period_us = input_.ConsumeIntegralInRange<std::uint32_t>(0, 200);
    args.flags = input_.ConsumeIntegralInRange<std::uint32_t>(0, 7);
    args.queue_array_ptr = scratch + 0x8000;
    return bytes_of(args);
  }

  void call(pid_t pid) {
    const auto file = files_.find(pid);
    if (file == files_.end()) return;
    std::uint32_t command = input_.PickValueInArray(commands);
    std::vector<std::byte> in(_IOC_SIZE(command));
    const bool likely = input_.ConsumeBool();
    if (likely && command == uapi::AMDKFD_IOC_CREATE_QUEUE) {
      in = good_queue(pid);
    } else if (likely && command == uapi::AMDKFD_IOC_DBG_TRAP) {
      in = good_trap();
    } else if (likely && command == uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES) {
      in = good_batch(false);
    } else if (likely && command == uapi::AMDKFD_IOC_FAST_REMAP) {
      in = good_batch(true);
    } else {
      fill(in);
    }
    if (input_.ConsumeIntegralInRange<int>(0, 15) == 0) {
      // Of an older or a newer program: another size.
      const auto size = input_.ConsumeIntegralInRange<std::uint32_t>(0, 256);
      command = (command & ~(0x3fffU << 16U)) | size << 16U;
      in.resize(size);
    }
    const auto number = ++calls_;
    answers_[number] = 0;
    last_ = driver_->ioctl(pid, file->second, command, in,
                           [this, number](const sim::ioctl_reply&) { ++answers_[number]; });
  }

  void publish(pid_t pid) {
    auto& memory = os_.memory(pid);
    const auto base =
        queue_area + input_.ConsumeIntegralInRange<std::uint64_t>(0, 3) * queue_stride;
    std::array<std::uint16_t, 32> packet{};
    packet[0] = input_.ConsumeBool() ? 0x1502 : input_.ConsumeIntegral<std::uint16_t>();
    packet[1] = 1;
    packet[2] = packet[3] = packet[4] = 1;
    for (std::size_t at = 6; at < 12; at += 2) packet[at] = 64;
    packet[16] = input_.ConsumeIntegral<std::uint16_t>();  // How long it runs.
    packet[17] = input_.ConsumeIntegralInRange<std::uint16_t>(0, 64);
    const auto write = memory.get<std::uint64_t>(base + ring_bytes + 0x38);
    memory.put(base + write % (ring_bytes / 64) * 64, packet);
    memory.put(base + ring_bytes + 0x38, input_.ConsumeIntegralInRange<int>(0, 9) == 0
                                             ? input_.ConsumeIntegral<std::uint64_t>()
                                             : write + 1);
  }

  void write_somewhere(pid_t pid) {
    auto& memory = os_.memory(pid);
    for (std::uint64_t i = 0; i < 4; ++i) memory.put(scratch + 0x8000 + i * 4, word());
  }

  void take_a_step() {
    const pid_t pid = input_.PickValueInArray(pids);
    if (!alive_[pid]) {
      if (input_.ConsumeIntegralInRange<int>(0, 7) == 0) begin(pid);
      return;
    }
    switch (input_.ConsumeIntegralInRange<int>(0, 15)) {
      case 0:
      case 1:
      case 2:
      case 3: call(pid); break;
      case 4: call(200); break;
      case 5: publish(pid); break;
      case 6: write_somewhere(pid); break;
      case 7: driver_->interrupt(last_); break;
      case 8: {
        std::string problem;
        const int result = driver_->control(input_.ConsumeRandomLengthString(48), problem);
        fuzz::require(result == 0 || !problem.empty(), "a refused line is explained");
        break;
      }
      case 9:
        driver_->fail_next_cycle(node_.gpus[0].gpu_id, 5ms,
                                 input_.ConsumeBool() ? sim::driver::after_failure::goes_on
                                                      : sim::driver::after_failure::reset);
        break;
      case 10: (void)driver_->evict(pid, node_.gpus[0].gpu_id); break;
      case 11: (void)driver_->restore(pid, node_.gpus[0].gpu_id); break;
      case 12:
        if (const auto file = files_.extract(pid)) driver_->release(file.mapped());
        reopen(pid);
        break;
      case 13:
        if (input_.ConsumeIntegralInRange<int>(0, 3) == 0) {
          end(pid);
        } else if (input_.ConsumeIntegralInRange<int>(0, 3) == 0) {
          prepare(os_.exec(pid));
          driver_->reap();
        } else {
          (void)driver_->mqds();
          (void)driver_->hqds();
          (void)driver_->rls();
          (void)driver_->queues_of(pid);
        }
        break;
      default: pass(1us * input_.ConsumeIntegralInRange<int>(0, 50'000));
    }
  }

  FuzzedDataProvider& input_;
  sim::profile node_;
  sim::engine time_{time_point{1s}};
  sim::test::fake_os os_;
  std::map<std::uint64_t, int> answers_;  // Outlives the driver, whose calls end with it.
  std::unique_ptr<sim::driver> driver_;
  std::map<pid_t, sim::file_id> files_;
  std::map<pid_t, bool> alive_;
  std::uint64_t calls_ = 0;
  sim::request_id last_ = 0;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  machine one{input};
  one.run();
  return 0;
}
