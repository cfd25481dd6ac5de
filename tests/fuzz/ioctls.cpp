// The simulated driver: calls of three processes in any order and of any content, on a machine that
// exists in memory only and in virtual time, with faults, deaths and signals between them.

#include "driver.hpp"
#include "driver_steps.hpp"
#include "engine.hpp"
#include "fake_os.hpp"
#include "fuzz.hpp"
#include "profile.hpp"
#include "topology.hpp"

#include <linux/capability.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace {

using namespace sluice;
using namespace std::chrono_literals;
namespace uapi = kfd::uapi;

class machine : public fuzz::driver_steps {
 public:
  explicit machine(FuzzedDataProvider& input) : driver_steps{input}, node_{sim::default_profile()} {
    node_.batch_commands = true;
    if (input.ConsumeBool()) node_.gpus[0].scheduler = sim::queue_scheduler::mes;
    node_.gpus.push_back(node_.gpus[0]);
    node_.gpus[1].gpu_id += 257;
    if (input.ConsumeBool()) {
      for (auto& each : node_.gpus) each.hive_id = 7;
    }
    for (std::size_t index = 0; index < gpus; ++index) {
      const auto& shape = node_.gpus.at(index);
      const auto saved = sim::save_area_of(shape);
      gpus_.at(index) = {.id = shape.gpu_id,
                         .context = saved.context,
                         .control_stack = saved.control_stack,
                         .save_area = (saved.context + saved.debugger) * shape.num_xcc};
    }
    driver_ = std::make_unique<sim::driver>(time_, os_, node_);
    // Whoever may trace and control here, to reach what lies behind these checks.
    for (std::size_t other = 0; other < processes; ++other) {
      if (other != tracer) os_.may_trace.insert({pids.at(tracer), pids.at(other)});
    }
    for (const int what : {CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE}) {
      os_.capabilities.insert({pids.at(tracer), what});
    }
  }

  void end_all() {
    // What was held is let go of, and what was asked is answered.
    for (std::size_t each = 0; each < processes; ++each) {
      if (alive(each)) end(each);
    }
    advance(200s);
    for (const auto& [request, answers] : answers_) {
      fuzz::require(answers == 1, "every call is answered, once");
    }
    fuzz::require(os_.taken() + os_.render_nodes_taken() == 0,
                  "no descriptor of a dead process is kept");
    fuzz::require(driver_->process_pids().empty(), "no process is left");
    (void)driver_->stats_json();
  }

 private:
  static constexpr std::array<pid_t, processes> pids{100, 200, 300};
  static constexpr int first_handed_fd = first_render_fd + static_cast<int>(gpus);
  static constexpr std::size_t handed_fds = 4;
  /// Of a save area, only the beginning can be written.
  static constexpr std::uint64_t save_bytes = 0x4000;

  const gpu& gpu_at(std::size_t index) const override { return gpus_.at(index); }
  std::uint32_t pid_of(std::size_t process) const override {
    return static_cast<std::uint32_t>(pids.at(process));
  }

  void begin(std::size_t process) override {
    prepare(os_.start(pids.at(process)));
    open(process);
  }
  static void prepare(sim::test::fake_memory& memory) {
    memory.map(scratch, scratch_bytes);
    memory.map(queue_area, areas * queue_stride);
    for (std::uint64_t i = 0; i < areas; ++i) memory.map(save_area + i * save_stride, save_bytes);
  }
  void open(std::size_t process) {
    sim::file_id file = 0;
    if (driver_->open(pids.at(process), 0, file) == 0) files_.at(process) = file;
    os_.open_file_of(pids.at(process), pipe_fd);
    for (int i = 0; i < static_cast<int>(gpus); ++i)
      os_.open_file_of(pids.at(process), first_render_fd + i)->render_node = true;
  }
  void close(std::size_t process) {
    if (const auto file = std::exchange(files_.at(process), {})) driver_->release(*file);
  }
  void reopen(std::size_t process) override {
    close(process);
    open(process);
  }
  void end(std::size_t process) override {
    os_.exit(pids.at(process));
    close(process);
    driver_->reap();
  }
  void exec(std::size_t process) override {
    prepare(os_.exec(pids.at(process)));
    driver_->reap();
  }

  void advance(duration how_long) {
    const auto until = time_.now() + how_long;
    // A queue whose packets can never be read is polled, so steps are bounded as well.
    for (int i = 0; i < 20'000 && time_.next() && *time_.next() <= until; ++i) {
      time_.run_until(*time_.next());
    }
    time_.run_until(until);
  }
  void pass(std::chrono::microseconds how_long) override { advance(how_long); }

  /// \return the arguments after the call; as they were while it has no answer.
  std::vector<std::byte> answered(std::size_t process, std::uint32_t command,
                                  std::vector<std::byte> arguments) {
    if (!files_.at(process)) return arguments;
    const auto out = std::make_shared<std::vector<std::byte>>(arguments);
    const auto number = ++calls_;
    answers_[number] = 0;
    last_ = driver_->ioctl(pids.at(process), *files_.at(process), command, arguments,
                           [this, number, out](const sim::ioctl_reply& reply) {
                             ++answers_[number];
                             std::copy_n(reply.out.begin(), std::min(out->size(), reply.out.size()),
                                         out->begin());
                           });
    return *out;
  }
  void call(std::size_t process, std::uint32_t command, std::vector<std::byte> arguments) override {
    (void)answered(process, command, std::move(arguments));
    receive_files(process);
  }
  /// The calling thread opens the files that it was promised, as a few descriptors in turn.
  void receive_files(std::size_t process) {
    for (; received_ < os_.handovers.size(); ++received_) {
      const auto& promised = os_.handovers.at(received_);
      fuzz::require(driver_->file_open(promised.file, promised.tid) == 0,
                    "a promised file can be opened");
      promised.told.done(0);
      const int fd = first_handed_fd + static_cast<int>(received_ % handed_fds);
      const auto file = os_.open_file_of(pids.at(process), fd);
      if (file->handed != 0) driver_->file_release(file->handed);
      file->handed = promised.file;
    }
  }
  template <class Args>
  Args call_now(std::size_t process, std::uint32_t command, Args args) {
    const auto from = std::as_bytes(std::span{&args, 1});
    const auto out = answered(process, command, {from.begin(), from.end()});
    std::copy(out.begin(), out.end(), std::as_writable_bytes(std::span{&args, 1}).begin());
    return args;
  }
  void acquire_vm(std::size_t process, std::size_t index) override {
    uapi::kfd_ioctl_acquire_vm_args args{};
    args.drm_fd = static_cast<std::uint32_t>(first_render_fd) + static_cast<std::uint32_t>(index);
    args.gpu_id = gpus_.at(index).id;
    (void)call_now(process, uapi::AMDKFD_IOC_ACQUIRE_VM, args);
  }
  void allocate(std::size_t process, std::size_t index, std::uint64_t address,
                std::uint64_t bytes) override {
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = address;
    alloc.size = bytes;
    alloc.gpu_id = gpus_.at(index).id;
    alloc.flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    alloc = call_now(process, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, alloc);
    constexpr std::uint64_t ids = scratch + 0xff00;
    os_.memory(pids.at(process)).put(ids, alloc.gpu_id);
    uapi::kfd_ioctl_map_memory_to_gpu_args map{};
    map.handle = alloc.handle;
    map.device_ids_array_ptr = ids;
    map.n_devices = 1;
    (void)call_now(process, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, map);
  }

  void put(std::size_t process, std::uint64_t address, std::span<const std::byte> what) override {
    (void)os_.memory(pids.at(process)).copy(address, {}, what);
  }
  std::uint64_t get(std::size_t process, std::uint64_t address) override {
    return os_.memory(pids.at(process)).get<std::uint64_t>(address);
  }
  void read_dumps(std::size_t process) override {
    (void)driver_->mqds();
    (void)driver_->hqds();
    (void)driver_->rls();
    (void)driver_->queues_of(pids.at(process));
  }
  void interrupt_last_call() override { driver_->interrupt(last_); }
  void control(const std::string& line) override {
    std::string problem;
    const int result = driver_->control(line, problem);
    fuzz::require(result == 0 || !problem.empty(), "a refused line is explained");
  }
  void fail_next_cycle(bool with_reset) override {
    driver_->fail_next_cycle(
        gpus_[0].id, 5ms,
        with_reset ? sim::driver::after_failure::reset : sim::driver::after_failure::goes_on);
  }
  void evict(std::size_t process) override { (void)driver_->evict(pids.at(process), gpus_[0].id); }
  void restore(std::size_t process) override {
    (void)driver_->restore(pids.at(process), gpus_[0].id);
  }

  sim::profile node_;
  std::array<gpu, gpus> gpus_;
  sim::engine time_{time_point{1s}};
  sim::test::fake_os os_;
  std::map<std::uint64_t, int> answers_;  // Outlives the driver, whose calls end with it.
  std::unique_ptr<sim::driver> driver_;
  std::array<std::optional<sim::file_id>, processes> files_;
  std::uint64_t calls_ = 0;
  std::size_t received_ = 0;  // Of the files that were promised.
  sim::request_id last_ = 0;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  machine one{input};
  one.run();
  one.end_all();
  return 0;
}
