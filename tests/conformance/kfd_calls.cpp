/// \file
/// Makes driver calls from a script, in processes of its own, and prints the result of each. The
/// same script runs on the real driver and on the simulated device. See README.md for the language.

#include "eventually.hpp"
#include "gpus.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill(2)
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>  // NOLINT(modernize-deprecated-headers): timer_create(2)
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/kfd/uapi_memory.hpp"

namespace {

namespace uapi = sluice::kfd::uapi;
using namespace std::chrono_literals;
using sluice::test::find_gpus;
using sluice::test::gpu;

constexpr std::uint64_t page = 4096;
/// Where the buffers of a process lie: free in every process, also in User Mode Linux with its 512
/// GB.
constexpr std::uint64_t first_address = 0x2000000000;
/// No memory is there.
constexpr std::uint64_t bad_address = 0x1000;
/// What a call that does not wait needs, also on a busy machine; and what one that waits gets
/// before it counts as blocked.
constexpr auto long_enough = 20s;
constexpr auto blocked_after = 50ms;
constexpr std::size_t most_text = 1U << 16U;

std::uint64_t page_up(std::uint64_t size) { return (size + page - 1) / page * page; }
std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

std::string error_name(int error) {
  if (error == 524) return "ENOTSUPP";  // The kernel's own.
  const char* name = strerrorname_np(error);
  return name != nullptr ? name : std::to_string(error);
}
std::string outcome(long value) { return value < 0 ? error_name(errno) : std::to_string(value); }

std::string read_file(const std::string& path) {
  std::ifstream file{path};
  if (!file) return error_name(errno);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Brings all pages of this process in by one call. In User Mode Linux each fault takes 0.1 ms, and
/// a process has hundreds of them when it begins or has forked.
void touch_all_pages() {
  mlockall(MCL_CURRENT);
  munlockall();
}

/// Read once, by the process that forks the others: in User Mode Linux it takes milliseconds.
const std::vector<gpu>& known_gpus() {
  static const auto all = find_gpus();
  return all;
}

/// The words of a line, and its settings NAME=VALUE.
class command_line {
 public:
  explicit command_line(const std::string& text) {
    std::istringstream words{text};
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      if (equals == std::string::npos) {
        words_.push_back(word);
      } else {
        settings_[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }
  const std::string& word(std::size_t index) const {
    if (index >= words_.size()) throw std::runtime_error("a word is missing");
    return words_[index];
  }
  std::size_t words() const { return words_.size(); }
  static std::uint64_t number_of(const std::string& text) {
    if (text == "bad") return bad_address;
    char* end = nullptr;
    const auto value = std::strtoull(text.c_str(), &end, 0);
    if (text.empty() || *end != '\0') throw std::runtime_error("no number: " + text);
    return value;
  }
  std::uint64_t number(std::size_t index) const { return number_of(word(index)); }
  std::optional<std::string> text(const std::string& name) const {
    const auto found = settings_.find(name);
    if (found == settings_.end()) return std::nullopt;
    return found->second;
  }
  std::uint64_t setting(const std::string& name, std::uint64_t otherwise) const {
    const auto found = text(name);
    return found ? number_of(*found) : otherwise;
  }
  bool has(const std::string& name) const { return settings_.contains(name); }
  /// A list with commas.
  static std::vector<std::uint32_t> list_of(const std::string& text) {
    std::vector<std::uint32_t> out;
    std::istringstream items{text};
    for (std::string item; std::getline(items, item, ',');)
      out.push_back(static_cast<std::uint32_t>(number_of(item)));
    return out;
  }

 private:
  std::vector<std::string> words_;
  std::map<std::string, std::string> settings_;
};

std::string hex_list(const std::vector<std::uint32_t>& values) {
  std::string out;
  for (const auto value : values) out += fmt::format("{}{:x}", out.empty() ? "" : ",", value);
  return out;
}

/// A process that the script makes calls from.
class process {
 public:
  std::string run(const command_line& line) {
    const auto& name = line.word(0);
    const auto found = commands().find(name);
    if (found == commands().end()) throw std::runtime_error("unknown command " + name);
    return found->second(*this, line);
  }
  /// Runs a call that may wait in another thread.
  void start(const command_line& line) {
    running_ = std::async(std::launch::async, [this, line] {
      runner_ = gettid();
      return run(line);
    });
  }
  /// A signal that is handled, and after which a call is not repeated.
  std::string interrupt() const {
    struct sigaction handled {};
    handled.sa_handler = [](int) {};
    sigaction(SIGUSR1, &handled, nullptr);
    return outcome(syscall(SYS_tgkill, getpid(), runner_.load(), SIGUSR1));
  }
  std::string pending() const {
    return running_.wait_for(blocked_after) == std::future_status::ready ? "returned" : "blocked";
  }
  std::string join() {
    if (running_.wait_for(long_enough) != std::future_status::ready) return "never returned";
    return running_.get();
  }
  std::string in_thread(const command_line& line) {
    return std::async(std::launch::async, [&] { return run(line); }).get();
  }

 private:
  using handler = std::function<std::string(process&, const command_line&)>;

  struct buffer {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::uint64_t handle = 0;
  };

  template <class Argument>
  int call(std::uint32_t command, Argument& argument) const {
    return ioctl(kfd_, command, &argument);
  }

  /// The GPU of that index; an index without a GPU gives an id that no GPU has.
  std::uint32_t gpu_id(std::uint64_t index) const {
    return index < gpus_.size() ? gpus_[index].id : 0xdead0000 + static_cast<std::uint32_t>(index);
  }
  std::string gpu_name(std::uint32_t id) const {
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (gpus_[i].id == id) return std::to_string(i);
    }
    return id == 0 ? "none" : "unknown";
  }
  std::uint64_t property(std::uint64_t index, const std::string& name) const {
    return index < gpus_.size() ? gpus_[index].property(name) : 0;
  }

  std::string open() {
    kfd_ = ::open(sluice::kfd::roots::from_environment().device.c_str(), O_RDWR | O_CLOEXEC);
    return kfd_ < 0 ? error_name(errno) : "0";
  }
  int render(std::uint64_t index) {
    auto& fd = renders_[index];
    if (fd == 0) {
      const auto device = sluice::kfd::roots::from_environment().device;
      fd = ::open(fmt::format("{}/dri/renderD{}", device.substr(0, device.rfind('/')),
                              property(index, "drm_render_minor"))
                      .c_str(),
                  O_RDWR | O_CLOEXEC);
    }
    return fd;
  }
  std::string acquire(const command_line& line) {
    const auto index = line.setting("gpu", 0);
    uapi::kfd_ioctl_acquire_vm_args args{};
    const auto how = line.text("fd").value_or("render");
    int fd = -1;
    if (how == "render") {
      fd = render(std::min<std::uint64_t>(index, gpus_.size() - 1));
    } else if (how == "another") {
      renders_.erase(index);
      fd = render(index);
    } else {
      fd = descriptor(how);
    }
    args.drm_fd = static_cast<std::uint32_t>(fd);
    args.gpu_id = gpu_id(index);
    return outcome(call(uapi::AMDKFD_IOC_ACQUIRE_VM, args));
  }

  std::uint64_t reserve(std::uint64_t size) {
    const auto address = next_address_;
    next_address_ += page_up(size) + page;
    void* got = mmap(reinterpret_cast<void*>(address), page_up(size), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED) throw std::runtime_error("no memory");
    return address;
  }
  int alloc(buffer& made, std::uint64_t index, std::uint32_t flags) {
    uapi::kfd_ioctl_alloc_memory_of_gpu_args args{};
    args.va_addr = made.address;
    args.size = made.size;
    args.gpu_id = gpu_id(index);
    args.flags = flags;
    if ((flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) != 0) args.mmap_offset = made.address;
    const int value = call(uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, args);
    made.handle = args.handle;
    return value;
  }
  std::string alloc_command(const command_line& line) {
    static const std::map<std::string, std::uint32_t> kinds{
        {"vram", uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM},
        {"public", uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM | uapi::KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC},
        {"gtt", uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT},
        {"userptr", uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR},
        {"doorbell", uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL},
        {"mmio", uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP},
        {"none", 0}};
    const auto kind = kinds.find(line.text("kind").value_or("gtt"));
    if (kind == kinds.end()) throw std::runtime_error("unknown kind of memory");
    buffer made;
    made.size = line.setting("size", page);
    made.address = line.setting("at", 0);
    if (!line.has("at"))
      made.address = reserve(std::max(page, std::min<std::uint64_t>(made.size, 1U << 30U)));
    const int value = alloc(made, line.setting("gpu", 0),
                            kind->second | uapi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
                                uapi::KFD_IOC_ALLOC_MEM_FLAGS_COHERENT |
                                uapi::KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE);
    const auto out = outcome(value);
    if (value >= 0) buffers_[line.word(1)] = made;
    return out;
  }
  /// What a setting calls a descriptor: the name of an exported buffer, none, null, kfd or smi.
  int descriptor(const std::string& name) const {
    if (const auto found = dmabufs_.find(name); found != dmabufs_.end()) return found->second;
    if (name == "null") return ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (name == "kfd") return kfd_;
    if (name == "smi") return smi_;
    return -1;
  }
  std::string export_dmabuf(const command_line& line) {
    uapi::kfd_ioctl_export_dmabuf_args args{};
    args.handle = line.setting("handle", handle_of(line.word(1)));
    args.flags = static_cast<std::uint32_t>(line.setting("flags", 0));
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit limit{line.setting("limit", before.rlim_cur), before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
    const auto out = outcome(call(uapi::AMDKFD_IOC_EXPORT_DMABUF, args));
    setrlimit(RLIMIT_NOFILE, &before);
    if (out != "0") return out;
    const int fd = static_cast<int>(args.dmabuf_fd);
    dmabufs_[line.text("as").value_or(line.word(1))] = fd;
    return fmt::format("0 cloexec={} mode={} size={}", fcntl(fd, F_GETFD),
                       fcntl(fd, F_GETFL) & O_ACCMODE, lseek(fd, 0, SEEK_END));
  }
  std::string import_dmabuf(const command_line& line) {
    buffer made;
    made.size = line.setting("size", page);
    made.address = line.has("at") ? line.setting("at", 0) : reserve(made.size);
    uapi::kfd_ioctl_import_dmabuf_args args{};
    args.va_addr = made.address;
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    args.dmabuf_fd = static_cast<std::uint32_t>(descriptor(line.text("fd").value_or("x")));
    const auto out = outcome(call(uapi::AMDKFD_IOC_IMPORT_DMABUF, args));
    if (out != "0") return out;
    made.handle = args.handle;
    buffers_[line.word(1)] = made;
    return fmt::format("0 gpu={} id={}", gpu_name(static_cast<std::uint32_t>(made.handle >> 32U)),
                       made.handle & 0xffffffff);
  }
  std::string dmabuf_info(const command_line& line) const {
    std::array<char, 64> metadata{};
    uapi::kfd_ioctl_get_dmabuf_info_args args{};
    args.dmabuf_fd = static_cast<std::uint32_t>(descriptor(line.word(1)));
    args.metadata_ptr = line.setting("metadata", address_of(metadata.data()));
    args.metadata_size = static_cast<std::uint32_t>(line.setting("room", metadata.size()));
    const auto out = outcome(call(uapi::AMDKFD_IOC_GET_DMABUF_INFO, args));
    return fmt::format("{} size={} gpu={} flags={:x} metadata={}", out, args.size,
                       gpu_name(args.gpu_id), args.flags, args.metadata_size);
  }
  std::string close_dmabuf(const command_line& line) {
    return outcome(::close(dmabufs_.extract(line.word(1)).mapped()));
  }
  std::uint64_t handle_of(const std::string& name) const {
    const auto found = buffers_.find(name);
    if (found != buffers_.end()) return found->second.handle;
    return (std::uint64_t{gpu_id(0)} << 32U) | 0xffff;  // No buffer has it.
  }
  std::string mapping(const command_line& line, std::uint32_t command) {
    std::vector<std::uint32_t> ids;
    for (const auto index : command_line::list_of(line.text("gpu").value_or("0")))
      ids.push_back(gpu_id(index));
    uapi::kfd_ioctl_map_memory_to_gpu_args args{};
    args.handle = handle_of(line.word(1));
    args.device_ids_array_ptr = line.setting("array", address_of(ids.data()));
    args.n_devices = static_cast<std::uint32_t>(line.setting("n", ids.size()));
    args.n_success = static_cast<std::uint32_t>(line.setting("done", 0));
    const auto out = outcome(call(command, args));
    return fmt::format("{} done={}", out, args.n_success);
  }
  std::string free_command(const command_line& line) {
    uapi::kfd_ioctl_free_memory_of_gpu_args args{};
    args.handle = handle_of(line.word(1));
    return outcome(call(uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU, args));
  }

  /// Drops the pages of a buffer of this process's memory, which the driver notices.
  std::string discard(const command_line& line) const {
    const auto& at = buffers_.at(line.word(1));
    return outcome(madvise(reinterpret_cast<void*>(at.address), at.size, MADV_DONTNEED));
  }

  /// What a queue of that GPU needs: ring, pointers, end of pipe, save area; as large as the driver
  /// wants them.
  struct queue_memory {
    buffer ring, pointers, end_of_pipe, save;
    std::uint64_t control_stack = 0, context = 0;
  };
  queue_memory memory_of(std::uint64_t index) {
    if (const auto found = memories_.find(index); found != memories_.end()) return found->second;
    queue_memory made;
    made.control_stack = property(index, "ctl_stack_size");
    made.context = property(index, "cwsr_size");
    const auto total = page_up(index < gpus_.size() ? gpus_[index].save_area_bytes() : 0);
    for (auto& [each, size] : {std::pair{&made.ring, page}, std::pair{&made.pointers, page},
                               std::pair{&made.end_of_pipe, page}, std::pair{&made.save, total}}) {
      each->size = size;
      each->address = reserve(size);
      if (alloc(*each, index,
                uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT | uapi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
                    uapi::KFD_IOC_ALLOC_MEM_FLAGS_COHERENT |
                    uapi::KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE) != 0)
        return made;
      uapi::kfd_ioctl_map_memory_to_gpu_args args{};
      const auto id = gpu_id(index);
      args.handle = each->handle;
      args.device_ids_array_ptr = address_of(&id);
      args.n_devices = 1;
      if (call(uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, args) != 0) return made;
    }
    memories_[index] = made;
    return made;
  }
  std::string create_queue(const command_line& line) {
    static const std::map<std::string, std::uint32_t> types{
        {"pm4", 0}, {"sdma", 1}, {"aql", 2}, {"xgmi", 3}, {"engine", 4}};
    const auto index = line.setting("gpu", 0);
    const auto memory = memory_of(index < gpus_.size() ? index : 0);
    uapi::kfd_ioctl_create_queue_args args{};
    const auto type = line.text("type").value_or("aql");
    const auto known = types.find(type);
    args.queue_type = known != types.end()
                          ? known->second
                          : static_cast<std::uint32_t>(command_line::number_of(type));
    const bool compute = args.queue_type == 0 || args.queue_type == 2;
    args.gpu_id = gpu_id(index);
    args.ring_base_address =
        line.setting("ring", memory.ring.address) + line.setting("ring_offset", 0);
    args.ring_size = static_cast<std::uint32_t>(line.setting("ring_size", memory.ring.size));
    args.write_pointer_address = line.setting("write", memory.pointers.address + 0x38);
    args.read_pointer_address = line.setting("read", memory.pointers.address + 0x80);
    args.queue_percentage = static_cast<std::uint32_t>(line.setting("percentage", 100));
    args.queue_priority = static_cast<std::uint32_t>(line.setting("priority", 7));
    args.sdma_engine_id = static_cast<std::uint32_t>(line.setting("engine", 0));
    if (compute) {
      args.eop_buffer_address = line.setting("eop", memory.end_of_pipe.address);
      args.eop_buffer_size = line.setting("eop_size", page);
      args.ctx_save_restore_address = line.setting("save", memory.save.address);
      args.ctx_save_restore_size = static_cast<std::uint32_t>(
          line.setting("save_size", memory.context + line.setting("save_more", 0)));
      args.ctl_stack_size = static_cast<std::uint32_t>(
          line.setting("stack_size", memory.control_stack + line.setting("stack_more", 0)));
    }
    const auto out = outcome(call(uapi::AMDKFD_IOC_CREATE_QUEUE, args));
    return out == "0" ? fmt::format("0 id={}", args.queue_id) : out;
  }
  std::string update_queue(const command_line& line) {
    const auto memory = memory_of(line.setting("gpu", 0));
    uapi::kfd_ioctl_update_queue_args args{};
    args.queue_id = static_cast<std::uint32_t>(line.number(1));
    args.ring_base_address = line.setting("ring", memory.ring.address);
    args.ring_size = static_cast<std::uint32_t>(line.setting("ring_size", memory.ring.size));
    args.queue_percentage = static_cast<std::uint32_t>(line.setting("percentage", 100));
    args.queue_priority = static_cast<std::uint32_t>(line.setting("priority", 7));
    return outcome(call(uapi::AMDKFD_IOC_UPDATE_QUEUE, args));
  }
  std::string destroy_queue(const command_line& line) {
    uapi::kfd_ioctl_destroy_queue_args args{};
    args.queue_id = static_cast<std::uint32_t>(line.number(1));
    return outcome(call(uapi::AMDKFD_IOC_DESTROY_QUEUE, args));
  }
  std::string cu_mask(const command_line& line) {
    std::vector<std::uint32_t> words(64,
                                     static_cast<std::uint32_t>(line.setting("word", 0xffffffff)));
    uapi::kfd_ioctl_set_cu_mask_args args{};
    args.queue_id = static_cast<std::uint32_t>(line.number(1));
    args.num_cu_mask = static_cast<std::uint32_t>(line.setting("bits", 32));
    args.cu_mask_ptr = line.setting("mask", address_of(words.data()));
    return outcome(call(uapi::AMDKFD_IOC_SET_CU_MASK, args));
  }
  std::string wave_state(const command_line& line) {
    uapi::kfd_ioctl_get_queue_wave_state_args args{};
    args.queue_id = static_cast<std::uint32_t>(line.number(1));
    args.ctl_stack_address = line.setting("stack", memory_of(0).save.address);
    const auto out = outcome(call(uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE, args));
    return out == "0" ? fmt::format("0 stack={} saved={}", args.ctl_stack_used_size,
                                    args.save_area_used_size)
                      : out;
  }
  /// A kernel of one hour as the first packet on a GPU's ring; settings replace parts of the
  /// packet.
  std::string packet(const command_line& line) {
    const auto memory = memory_of(line.setting("gpu", 0));
    auto* const packet = reinterpret_cast<std::uint64_t*>(memory.ring.address);
    constexpr std::uint64_t kernel_dispatch = 2;
    constexpr std::uint64_t lanes = 64;
    constexpr std::uint64_t workgroup = (std::uint64_t{1} << 48U) | (lanes << 32U);
    constexpr std::uint64_t an_hour = 3'600'000'000'000;
    packet[1] = (lanes << 32U) | 1U;             // Grid x; workgroup z.
    packet[2] = (std::uint64_t{1} << 32U) | 1U;  // Grid z and y.
    packet[4] = line.setting("length", an_hour);
    packet[7] = line.setting("signal", 0);
    std::atomic_ref{packet[0]}.store(workgroup | line.setting("dimensions", 1) << 16U |
                                     line.setting("type", kernel_dispatch));
    std::atomic_ref{*reinterpret_cast<std::uint64_t*>(memory.pointers.address + 0x38)}.store(1);
    return "written";
  }
  /// The same, for the first queue of that GPU. Returns when it runs.
  std::string kernel(const command_line& line) {
    packet(line);
    const std::atomic_ref read{*reinterpret_cast<std::uint64_t*>(
        memory_of(line.setting("gpu", 0)).pointers.address + 0x80)};
    const auto end = std::chrono::steady_clock::now() + long_enough;
    while (read.load() == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(5ms);
    return read.load() == 1 ? "runs" : "waits";
  }
  /// The hardware reports a page fault of this process.
  std::string fault(const command_line& line) const {
    const auto roots = sluice::kfd::roots::from_environment();
    const auto index = line.setting("gpu", 0);
    std::ofstream out;
    if (sluice::kfd::is_simulated(roots)) {
      out.open(std::filesystem::path{roots.device}.parent_path().parent_path() / "sim/control");
      out << fmt::format("vmfault {} {}\n", getpid(), gpu_id(index));
    } else {
      // SOC15_IH_CLIENTID_VMC, of a VMID and a PASID (shim/interrupts.c).
      const auto pasid = read_file(fmt::format("{}/proc/{}/pasid", roots.sysfs, getpid()));
      out.open(fmt::format("/sys/kernel/debug/sluice{}/interrupt", index));
      out << fmt::format("0f000012 0 0 {:x} 0 0 0 0\n", std::stoul(pasid));
    }
    out.flush();
    return out ? "written" : "not written";
  }
  /// Where the driver reports errors of a GPU's queues: a word of memory, and this event.
  std::string error_event(const command_line& line) {
    const auto memory = memory_of(line.setting("gpu", 0));
    auto& header = *reinterpret_cast<uapi::kfd_context_save_area_header*>(memory.save.address);
    header.err_payload_addr = memory.pointers.address + 0x100;
    header.err_event_id = static_cast<std::uint32_t>(line.number(1));
    return "0";
  }
  std::string errors(const command_line& line) {
    const auto at = memory_of(line.setting("gpu", 0)).pointers.address + 0x100;
    return fmt::format("{:x}", *reinterpret_cast<const volatile std::uint64_t*>(at));
  }
  std::string gws(const command_line& line) {
    uapi::kfd_ioctl_alloc_queue_gws_args args{};
    args.queue_id = static_cast<std::uint32_t>(line.number(1));
    args.num_gws = static_cast<std::uint32_t>(line.setting("n", 1));
    return outcome(call(uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS, args));
  }

  std::string create_event(const command_line& line) {
    uapi::kfd_ioctl_create_event_args args{};
    args.event_type = static_cast<std::uint32_t>(line.setting("type", uapi::KFD_IOC_EVENT_SIGNAL));
    args.auto_reset = static_cast<std::uint32_t>(line.setting("auto_reset", 0));
    args.node_id = static_cast<std::uint32_t>(line.setting("node", 0));
    if (const auto page_of_events = line.text("page"))
      args.event_page_offset = handle_of(*page_of_events);
    const auto out = outcome(call(uapi::AMDKFD_IOC_CREATE_EVENT, args));
    return out == "0" ? fmt::format("0 id={:x} slot={}", args.event_id, args.event_slot_index)
                      : out;
  }
  template <class Argument>
  std::string with_event(const command_line& line, std::uint32_t command) {
    Argument args{};
    args.event_id = static_cast<std::uint32_t>(line.number(1));
    return outcome(call(command, args));
  }
  std::string wait_events(const command_line& line) {
    const auto ids = command_line::list_of(line.word(1));
    std::vector<uapi::kfd_event_data> events(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) events[i].event_id = ids[i];
    uapi::kfd_ioctl_wait_events_args args{};
    args.events_ptr = line.setting("events", address_of(events.data()));
    args.num_events = static_cast<std::uint32_t>(line.setting("n", ids.size()));
    args.wait_for_all = static_cast<std::uint32_t>(line.setting("all", 0));
    args.timeout = static_cast<std::uint32_t>(line.setting("timeout", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_WAIT_EVENTS, args));
    return fmt::format("{} result={}", out, args.wait_result);
  }

  std::string version() {
    uapi::kfd_ioctl_get_version_args args{};
    const auto out = outcome(call(uapi::AMDKFD_IOC_GET_VERSION, args));
    return fmt::format("{} {}", out, args.major_version);
  }
  std::string apertures(const command_line& line) {
    std::vector<uapi::kfd_process_device_apertures> all(64);
    uapi::kfd_ioctl_get_process_apertures_new_args args{};
    args.kfd_process_device_apertures_ptr = line.setting("array", address_of(all.data()));
    args.num_of_nodes = static_cast<std::uint32_t>(line.setting("n", gpus_.size()));
    auto out =
        fmt::format("{} n={}", outcome(call(uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args)),
                    args.num_of_nodes);
    if (out[0] != '0' || line.setting("n", 1) == 0) return out;
    for (std::size_t i = 0; i < std::min<std::size_t>(args.num_of_nodes, all.size()); ++i) {
      out += fmt::format(" {}:{:x}-{:x},{:x}-{:x}", gpu_name(all[i].gpu_id), all[i].lds_base,
                         all[i].lds_limit, all[i].scratch_base, all[i].scratch_limit);
    }
    return out;
  }
  std::string old_apertures() {
    uapi::kfd_ioctl_get_process_apertures_args args{};
    const auto out = outcome(call(uapi::AMDKFD_IOC_GET_PROCESS_APERTURES, args));
    return fmt::format("{} n={}", out, args.num_of_nodes);
  }
  std::string clock(const command_line& line) {
    uapi::kfd_ioctl_get_clock_counters_args args{};
    args.gpu_id = line.text("gpu").value_or("0") == "none" ? 0 : gpu_id(line.setting("gpu", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS, args));
    return fmt::format("{} cpu={} system={} frequency={}", out, args.cpu_clock_counter != 0,
                       args.system_clock_counter != 0, args.system_clock_freq);
  }
  std::string policy(const command_line& line) {
    uapi::kfd_ioctl_set_memory_policy_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    args.default_policy = static_cast<std::uint32_t>(line.setting("default", 0));
    args.alternate_policy = static_cast<std::uint32_t>(line.setting("alternate", 0));
    return outcome(call(uapi::AMDKFD_IOC_SET_MEMORY_POLICY, args));
  }
  std::string scratch(const command_line& line) {
    uapi::kfd_ioctl_set_scratch_backing_va_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    return outcome(call(uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA, args));
  }
  std::string trap_handler(const command_line& line) {
    uapi::kfd_ioctl_set_trap_handler_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    return outcome(call(uapi::AMDKFD_IOC_SET_TRAP_HANDLER, args));
  }
  std::string tiles(const command_line& line) {
    std::array<std::uint32_t, 64> first{};
    std::array<std::uint32_t, 64> second{};
    uapi::kfd_ioctl_get_tile_config_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    args.tile_config_ptr = address_of(first.data());
    args.macro_tile_config_ptr = address_of(second.data());
    return outcome(call(uapi::AMDKFD_IOC_GET_TILE_CONFIG, args));
  }
  std::string available(const command_line& line) {
    uapi::kfd_ioctl_get_available_memory_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_AVAILABLE_MEMORY, args));
    const auto [first, is_first] = available_.emplace(args.gpu_id, args.available);
    return fmt::format("{} any={}", out, args.available != 0) +
           (is_first ? "" : fmt::format(" taken={}K", (first->second - args.available) >> 10U));
  }
  /// Waits until as much VRAM is available as this process was told first.
  std::string regained(const command_line& line) {
    return sluice::test::eventually(long_enough,
                                    [&] { return available(line).ends_with(" taken=0K"); })
               ? "yes"
               : available(line);
  }
  /// Waits until no process has a MiB of system memory: the driver frees it after they ended.
  static std::string unused() {
    return sluice::test::eventually(long_enough, [] { return mem_limit() == "system=0 ttm=0"; })
               ? "yes"
               : mem_limit();
  }
  /// How much system memory the driver counts, in MiB.
  static std::string mem_limit() {
    const auto text = read_file(sluice::kfd::roots::from_environment().debugfs + "/mem_limit");
    static const std::regex used{
        "System mem used ([0-9]+)M[^\\n]*\nTTM mem used ([0-9]+)M[^\\n]*\n"};
    std::smatch found;
    if (!std::regex_match(text, found, used)) return text;
    return fmt::format("system={} ttm={}", found[1].str(), found[2].str());
  }
  /// Writes the id of a GPU, or another text, to the file that makes the GPU's scheduler hang.
  std::string hang_hws(const command_line& line) const {
    const auto index = line.setting("gpu", 0);
    auto text = line.text("text").value_or("GPU");
    if (const auto at = text.find("GPU"); at != std::string::npos)
      text.replace(at, 3, std::to_string(gpu_id(index)));
    if (line.has("newline")) text += "\n";
    // The firmware of the test bed ignores the invalid packet that stops a real one.
    const auto roots = sluice::kfd::roots::from_environment();
    if (line.has("hangs") && !sluice::kfd::is_simulated(roots) &&
        property(index, "gfx_target_version") < 110000) {
      std::ofstream{"/sys/module/sluice/parameters/hang"} << index;
      std::ofstream{"/sys/module/amdgpu/parameters/queue_preemption_timeout_ms"} << 500;
    }
    const int fd = ::open((roots.debugfs + "/hang_hws").c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return error_name(errno);
    const auto written = write(fd, text.data(), text.size());
    const auto out = written < 0 ? error_name(errno)
                                 : std::to_string(text.size() - static_cast<std::size_t>(written));
    ::close(fd);
    return out;
  }
  std::string xnack(const command_line& line) {
    uapi::kfd_ioctl_set_xnack_mode_args args{};
    args.xnack_enabled = static_cast<std::int32_t>(std::stol(line.word(1)));
    const auto out = outcome(call(uapi::AMDKFD_IOC_SET_XNACK_MODE, args));
    return fmt::format("{} enabled={}", out, args.xnack_enabled);
  }
  std::string runtime(const command_line& line) {
    uapi::kfd_ioctl_runtime_enable_args args{};
    args.mode_mask = static_cast<std::uint32_t>(line.number(1));
    args.r_debug = line.setting("r_debug", 0);
    return outcome(call(uapi::AMDKFD_IOC_RUNTIME_ENABLE, args));
  }
  /// Any number, with an argument of zeros.
  std::string raw(const command_line& line) {
    std::array<std::byte, 4096> argument{};
    const auto size = line.setting("size", 8);
    const auto command =
        uapi::detail::command(uapi::detail::wr, static_cast<std::uint32_t>(line.number(1)), size);
    return outcome(ioctl(kfd_, command, argument.data()));
  }
  /// The driver looks at the number alone.
  static bool is_number_of(std::uint32_t command, std::uint32_t known) {
    return ((command ^ known) & 0xffU) == 0;
  }
  /// The driver allocates as many entries as it is told, without a limit, and the kernel warns of
  /// allocations that are too large.
  static void limit_counts(std::uint32_t command, std::uint64_t* argument) {
    constexpr std::uint64_t most = 4095;
    const auto limit = [argument](std::size_t word) {
      argument[word] &= most | 0xffffffff00000000;
    };
    const auto operation = argument[0] >> 32U;
    const auto is = [command](std::uint32_t known) { return is_number_of(command, known); };
    if (is(uapi::AMDKFD_IOC_WAIT_EVENTS) || is(uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW))
      limit(1);
    else if (is(uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU) || is(uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU))
      limit(2);
    else if (is(uapi::AMDKFD_IOC_DBG_TRAP))
      limit(operation == uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES ? 2 : 3);
  }
  /// Calls with random numbers, sizes and arguments; a timer interrupts those that wait. CRIU's
  /// operations are left out: amdkfd 6.12 warns where UNPAUSE meets queues that are evicted for
  /// another reason.
  std::string noise(const command_line& line) {
    static constexpr std::array commands{
        uapi::AMDKFD_IOC_CREATE_QUEUE,
        uapi::AMDKFD_IOC_DESTROY_QUEUE,
        uapi::AMDKFD_IOC_UPDATE_QUEUE,
        uapi::AMDKFD_IOC_SET_MEMORY_POLICY,
        uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS,
        uapi::AMDKFD_IOC_GET_PROCESS_APERTURES,
        uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW,
        uapi::AMDKFD_IOC_CREATE_EVENT,
        uapi::AMDKFD_IOC_DESTROY_EVENT,
        uapi::AMDKFD_IOC_SET_EVENT,
        uapi::AMDKFD_IOC_RESET_EVENT,
        uapi::AMDKFD_IOC_WAIT_EVENTS,
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
        uapi::AMDKFD_IOC_GET_DMABUF_INFO,
        uapi::AMDKFD_IOC_IMPORT_DMABUF,
        uapi::AMDKFD_IOC_EXPORT_DMABUF,
        uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS,
        uapi::AMDKFD_IOC_SMI_EVENTS,
        uapi::AMDKFD_IOC_SVM,
        uapi::AMDKFD_IOC_SET_XNACK_MODE,
        uapi::AMDKFD_IOC_AVAILABLE_MEMORY,
        uapi::AMDKFD_IOC_RUNTIME_ENABLE,
        uapi::AMDKFD_IOC_DBG_TRAP,
        uapi::AMDKFD_IOC_CREATE_PROCESS,
    };
    constexpr std::size_t words = 128;
    std::mt19937_64 random{line.setting("seed", 1)};
    const auto pids = command_line::list_of(line.word(2));
    const std::uint64_t memory = reserve(16 * page);
    const auto value = [&]() -> std::uint64_t {
      switch (random() % 8) {
        case 0: return 0;
        case 1: return random() % 24;
        case 2: return gpu_id(random() % 3);
        case 3: return pids[random() % pids.size()];
        case 4: return memory + random() % (16 * page);
        case 5: return page << random() % 6;
        case 6: return std::uint64_t{1} << random() % 64;
        default: return random();
      }
    };
    const auto fill = [&](std::uint64_t* at, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        at[i] = random() % 2 == 0 ? value() : value() << 32U | (value() & 0xffffffff);
    };
    struct sigaction handled {};
    handled.sa_handler = [](int) {};
    sigaction(SIGALRM, &handled, nullptr);
    sigevent to_this_thread{};
    to_this_thread.sigev_notify = SIGEV_THREAD_ID;
    to_this_thread.sigev_signo = SIGALRM;
    to_this_thread._sigev_un._tid = gettid();  // glibc 2.36 has no other name for it.
    timer_t timer{};
    if (timer_create(CLOCK_MONOTONIC, &to_this_thread, &timer) != 0) return error_name(errno);
    const itimerspec every{.it_interval = {0, 5'000'000}, .it_value = {0, 5'000'000}};
    timer_settime(timer, 0, &every, nullptr);
    const auto calls = line.number(1);
    for (std::uint64_t i = 0; i < calls; ++i) {
      std::uint32_t command = commands[random() % commands.size()];
      // Of an older or a newer program.
      if (random() % 16 == 0)
        command = (command & ~(0x3fffU << 16U)) | static_cast<std::uint32_t>(random() % 256) << 16U;
      std::array<std::uint64_t, words> argument{};
      fill(argument.data(), argument.size());
      fill(reinterpret_cast<std::uint64_t*>(memory), 16 * page / sizeof(std::uint64_t) / 64);
      // Mostly an operation that there is, on a process that there is.
      if (command == uapi::AMDKFD_IOC_DBG_TRAP && random() % 8 != 0)
        argument[0] = random() % 16 << 32U | pids[random() % pids.size()];
      // ENABLE names the file for notifications. Any other number could be a socket of this
      // program.
      if (is_number_of(command, uapi::AMDKFD_IOC_DBG_TRAP) && argument[0] >> 32U == 0) {
        const std::array files{kfd_, pipe_[1], -1};
        const auto file = static_cast<std::uint32_t>(files[random() % files.size()]);
        argument[3] = (argument[3] & 0xffffffff) | std::uint64_t{file} << 32U;
      }
      limit_counts(command, argument.data());
      (void)!ioctl(kfd_, command, argument.data());
    }
    timer_delete(timer);
    return std::to_string(calls);
  }
  std::string criu(const command_line& line) {
    uapi::kfd_ioctl_criu_args args{};
    args.op = static_cast<std::uint32_t>(line.number(1));
    const auto out = outcome(call(uapi::AMDKFD_IOC_CRIU_OP, args));
    return fmt::format("{} devices={} bos={} objects={}", out, args.num_devices, args.num_bos,
                       args.num_objects);
  }

  std::string smi(const command_line& line) {
    uapi::kfd_ioctl_smi_events_args args{};
    args.gpuid = gpu_id(line.setting("gpu", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_SMI_EVENTS, args));
    if (out == "0") smi_ = static_cast<int>(args.anon_fd);
    return out;
  }
  std::string smi_mask(const command_line& line) {
    const auto mask = line.number(1);
    return outcome(write(smi_, &mask, line.setting("size", sizeof mask)));
  }
  std::string smi_read() const {
    std::array<char, 8192> text{};
    pollfd waited{smi_, POLLIN, 0};
    const bool ready = poll(&waited, 1, 0) == 1;
    const auto got = read(smi_, text.data(), text.size());
    if (got < 0) return fmt::format("{} poll={}", error_name(errno), ready);
    // Only the numbers of the events, since times and process ids differ.
    std::string out = fmt::format("events poll={}", ready);
    std::istringstream lines{std::string{text.data(), static_cast<std::size_t>(got)}};
    for (std::string each; std::getline(lines, each);) out += " " + each.substr(0, each.find(' '));
    return out;
  }

  uapi::kfd_ioctl_dbg_trap_args trap(const command_line& line, std::uint32_t op) const {
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(line.number(1));
    args.op = op;
    return args;
  }
  std::string enable(const command_line& line) {
    if (pipe_[0] < 0 && pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) return "no pipe";
    uapi::kfd_runtime_info info{};
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_ENABLE);
    args.enable.exception_mask = line.setting("mask", 0x00008000c0000000);
    args.enable.rinfo_ptr = line.setting("info", address_of(&info));
    args.enable.rinfo_size = static_cast<std::uint32_t>(line.setting("info_size", sizeof info));
    args.enable.dbg_fd = static_cast<std::uint32_t>(
        line.has("fd") ? line.setting("fd", 0) : static_cast<std::uint64_t>(pipe_[1]));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} size={} state={} ttmp={}", out, args.enable.rinfo_size,
                       info.runtime_state, info.ttmp_setup);
  }
  std::string disable(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_DISABLE);
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  std::string send(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
    args.send_runtime_event.exception_mask = line.setting("mask", 0x800000000000);
    args.send_runtime_event.gpu_id = line.has("gpu") ? gpu_id(line.setting("gpu", 0)) : 0;
    args.send_runtime_event.queue_id = static_cast<std::uint32_t>(line.setting("queue", 0));
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  std::string exceptions(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED);
    args.set_exceptions_enabled.exception_mask = line.setting("mask", 0);
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  std::string override_launch(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE);
    args.launch_override.override_mode = static_cast<std::uint32_t>(line.setting("mode", 0));
    args.launch_override.enable_mask = static_cast<std::uint32_t>(line.setting("enable", 0));
    args.launch_override.support_request_mask =
        static_cast<std::uint32_t>(line.setting("request", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} enabled={:x} supported={:x}", out, args.launch_override.enable_mask,
                       args.launch_override.support_request_mask);
  }
  std::string launch(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE);
    args.launch_mode.launch_mode = static_cast<std::uint32_t>(line.setting("mode", 0));
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  std::string watch(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH);
    args.set_node_address_watch.address = line.setting("address", first_address);
    args.set_node_address_watch.mode = static_cast<std::uint32_t>(line.setting("mode", 0));
    args.set_node_address_watch.mask = static_cast<std::uint32_t>(line.setting("mask", 0xffffff80));
    args.set_node_address_watch.gpu_id = gpu_id(line.setting("gpu", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return out == "0" ? fmt::format("0 id={}", args.set_node_address_watch.id) : out;
  }
  std::string unwatch(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH);
    args.clear_node_address_watch.gpu_id = gpu_id(line.setting("gpu", 0));
    args.clear_node_address_watch.id = static_cast<std::uint32_t>(line.setting("id", 0));
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  std::string flags(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SET_FLAGS);
    args.set_flags.flags = static_cast<std::uint32_t>(line.setting("flags", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} before={:x}", out, args.set_flags.flags);
  }
  std::string suspend(const command_line& line) {
    auto ids = command_line::list_of(line.words() > 2 ? line.word(2) : "");
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES);
    args.suspend_queues.exception_mask = line.setting("mask", 0);
    args.suspend_queues.queue_array_ptr =
        line.setting("array", ids.empty() ? 0 : address_of(ids.data()));
    args.suspend_queues.num_queues = static_cast<std::uint32_t>(line.setting("n", ids.size()));
    args.suspend_queues.grace_period = static_cast<std::uint32_t>(line.setting("grace", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} [{}]", out, hex_list(ids));
  }
  std::string resume(const command_line& line) {
    auto ids = command_line::list_of(line.words() > 2 && line.word(2) != "all" ? line.word(2) : "");
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);
    args.resume_queues.queue_array_ptr =
        line.setting("array", ids.empty() ? 0 : address_of(ids.data()));
    args.resume_queues.num_queues = static_cast<std::uint32_t>(line.setting("n", ids.size()));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} [{}]", out, hex_list(ids));
  }
  /// PID:QUEUE,...
  static std::vector<uapi::kfd_batch_queue_entry> entries_of(const std::string& text) {
    std::vector<uapi::kfd_batch_queue_entry> all;
    std::istringstream words{text};
    for (std::string word; std::getline(words, word, ',');) {
      const auto colon = word.find(':');
      all.push_back({static_cast<std::int32_t>(command_line::number_of(word.substr(0, colon))),
                     static_cast<std::uint32_t>(command_line::number_of(word.substr(colon + 1)))});
    }
    return all;
  }
  static std::string id_list(const std::vector<uapi::kfd_batch_queue_entry>& entries) {
    std::vector<std::uint32_t> ids;
    for (const auto& each : entries) ids.push_back(each.queue_id);
    return hex_list(ids);
  }
  std::string hold(const command_line& line) {
    auto entries = entries_of(line.words() > 1 ? line.word(1) : "");
    uapi::kfd_ioctl_batch_unmap_queues_args args{};
    args.flags = static_cast<std::uint32_t>(line.setting("flags", 0));
    args.pad = static_cast<std::uint32_t>(line.setting("pad", 0));
    args.grace_period_us = static_cast<std::uint32_t>(line.setting("grace", 0));
    args.num_queues = static_cast<std::uint32_t>(line.setting("n", entries.size()));
    args.queue_array_ptr = line.setting("array", address_of(entries.data()));
    const auto out = outcome(call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args));
    return fmt::format("{} [{}]", out, id_list(entries));
  }
  std::string remap(const command_line& line) {
    const std::string which = line.words() > 1 ? line.word(1) : "";
    const bool all = which == "all";
    auto entries = entries_of(all ? "" : which);
    uapi::kfd_ioctl_fast_remap_args args{};
    args.pad = static_cast<std::uint32_t>(line.setting("pad", 0));
    args.num_queues = static_cast<std::uint32_t>(line.setting("n", entries.size()));
    args.queue_array_ptr = line.setting("array", all ? 0 : address_of(entries.data()));
    const auto out = outcome(call(uapi::AMDKFD_IOC_FAST_REMAP, args));
    return fmt::format("{} [{}]", out, id_list(entries));
  }
  /// reserve ONLINE OFFLINE, in percent.
  std::string reserve_hqds(const command_line& line) {
    uapi::kfd_ioctl_set_hqd_reservation_args args{};
    args.gpu_id = gpu_id(line.setting("gpu", 0));
    args.online_percent = static_cast<std::uint32_t>(line.number(1));
    args.offline_percent = static_cast<std::uint32_t>(line.number(2));
    args.pad = static_cast<std::uint32_t>(line.setting("pad", 0));
    return outcome(call(uapi::AMDKFD_IOC_SET_HQD_RESERVATION, args));
  }
  /// become USER: gives up the rights of root.
  static std::string become(const command_line& line) {
    const auto user = static_cast<uid_t>(line.number(1));
    const int changed = setresuid(user, user, user);
    return outcome(changed != 0 ? changed : prctl(PR_SET_DUMPABLE, 1));
  }
  std::string query(const command_line& line) {
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT);
    args.query_debug_event.exception_mask = line.setting("clear", ~std::uint64_t{0});
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    if (out != "0") return out;
    return fmt::format("0 status={:x} gpu={} queue={}", args.query_debug_event.exception_mask,
                       gpu_name(args.query_debug_event.gpu_id), args.query_debug_event.queue_id);
  }
  std::string info(const command_line& line) {
    std::array<std::uint64_t, 32> text{};
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO);
    args.query_exception_info.info_ptr = line.setting("info", address_of(text.data()));
    args.query_exception_info.info_size =
        static_cast<std::uint32_t>(line.setting("size", sizeof text));
    args.query_exception_info.exception_code = static_cast<std::uint32_t>(line.setting("code", 48));
    args.query_exception_info.source_id = static_cast<std::uint32_t>(
        line.has("gpu") ? gpu_id(line.setting("gpu", 0)) : line.setting("source", 0));
    args.query_exception_info.clear_exception =
        static_cast<std::uint32_t>(line.setting("clear", 0));
    const auto out = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    return fmt::format("{} size={}", out, args.query_exception_info.info_size);
  }
  std::string snapshot(const command_line& line) {
    const auto room = line.setting("n", 16);
    std::vector<uapi::kfd_queue_snapshot_entry> entries(std::max<std::uint64_t>(room, 1));
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
    args.queue_snapshot.exception_mask = line.setting("clear", 0x40000000);
    args.queue_snapshot.snapshot_buf_ptr = line.setting("array", address_of(entries.data()));
    args.queue_snapshot.num_queues = static_cast<std::uint32_t>(room);
    args.queue_snapshot.entry_size =
        static_cast<std::uint32_t>(line.setting("entry_size", sizeof entries[0]));
    const auto result = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    auto out = fmt::format("{} n={} entry_size={}", result, args.queue_snapshot.num_queues,
                           args.queue_snapshot.entry_size);
    if (result != "0" || line.has("entry_size")) return out;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(room, args.queue_snapshot.num_queues);
         ++i) {
      const auto& each = entries[i];
      out += fmt::format(" {}:gpu{},type{},status{:x},ring{:x}+{:x},wptr{:x},rptr{:x}",
                         each.queue_id, gpu_name(each.gpu_id), each.queue_type,
                         each.exception_status, each.ring_base_address & (page - 1), each.ring_size,
                         each.write_pointer_address & (page - 1),
                         each.read_pointer_address & (page - 1));
    }
    return out;
  }
  std::string devices(const command_line& line) {
    const auto room = line.setting("n", 16);
    std::vector<uapi::kfd_dbg_device_info_entry> entries(std::max<std::uint64_t>(room, 1));
    auto args = trap(line, uapi::KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT);
    args.device_snapshot.exception_mask = line.setting("clear", 0);
    args.device_snapshot.snapshot_buf_ptr = line.setting("array", address_of(entries.data()));
    args.device_snapshot.num_devices = static_cast<std::uint32_t>(room);
    args.device_snapshot.entry_size =
        static_cast<std::uint32_t>(line.setting("entry_size", sizeof entries[0]));
    const auto result = outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
    auto out = fmt::format("{} n={} entry_size={}", result, args.device_snapshot.num_devices,
                           args.device_snapshot.entry_size);
    if (result != "0" || line.has("entry_size")) return out;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(room, args.device_snapshot.num_devices);
         ++i)
      out += fmt::format(" gpu{},status{:x}", gpu_name(entries[i].gpu_id),
                         entries[i].exception_status);
    return out;
  }
  std::string op(const command_line& line) {
    auto args = trap(line, static_cast<std::uint32_t>(line.number(2)));
    return outcome(call(uapi::AMDKFD_IOC_DBG_TRAP, args));
  }
  /// Waits for a notification of the debug session, and takes all that are there.
  std::string notified() const {
    pollfd waited{pipe_[0], POLLIN, 0};
    if (poll(&waited, 1, std::chrono::milliseconds{long_enough}.count()) != 1) return "no";
    std::array<char, 4096> bytes{};
    const auto got = read(pipe_[0], bytes.data(), bytes.size());
    return got > 0 &&
                   std::all_of(bytes.begin(), bytes.begin() + got, [](char c) { return c == '.'; })
               ? "yes"
               : "no";
  }

  static std::string seize(const command_line& line) {
    return outcome(ptrace(PTRACE_SEIZE, static_cast<pid_t>(line.number(1)), nullptr, nullptr));
  }
  static std::string detach(const command_line& line) {
    const auto pid = static_cast<pid_t>(line.number(1));
    if (ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) != 0) return error_name(errno);
    if (waitpid(pid, nullptr, __WALL) != pid) return error_name(errno);
    return outcome(ptrace(PTRACE_DETACH, pid, nullptr, nullptr));
  }
  static std::string reap(const command_line& line) {
    return waitpid(static_cast<pid_t>(line.number(1)), nullptr, __WALL) > 0 ? "0"
                                                                            : error_name(errno);
  }
  /// Uses the other process's descriptor of the device.
  std::string take(const command_line& line) {
    const auto pid = static_cast<pid_t>(line.number(1));
    const int other = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    for (int fd = 3; fd < 64 && other >= 0; ++fd) {
      std::error_code ignored;
      const auto target =
          std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", pid, fd), ignored);
      if (!target.string().ends_with("/kfd")) continue;
      kfd_ = static_cast<int>(syscall(SYS_pidfd_getfd, other, fd, 0));
      return kfd_ < 0 ? error_name(errno) : "0";
    }
    return "no descriptor";
  }

  /// Duplicates the first descriptor of the other process that the driver accepts as a dma-buf.
  std::string take_dmabuf(const command_line& line) {
    const auto pid = static_cast<pid_t>(line.number(1));
    const int other = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    for (int fd = 3; fd < 64 && other >= 0; ++fd) {
      const int taken = static_cast<int>(syscall(SYS_pidfd_getfd, other, fd, 0));
      uapi::kfd_ioctl_get_dmabuf_info_args args{};
      args.dmabuf_fd = static_cast<std::uint32_t>(taken);
      if (taken >= 0 && call(uapi::AMDKFD_IOC_GET_DMABUF_INFO, args) == 0) {
        dmabufs_[line.word(2)] = taken;
        return "0";
      }
      if (taken >= 0) ::close(taken);
    }
    return "no descriptor";
  }

  /// What sysfs lists of a process: of each queue id, GPU, size and type.
  std::string listed(const command_line& line) const {
    const auto folder =
        fmt::format("{}/proc/{}", sluice::kfd::roots::from_environment().sysfs, line.word(1));
    std::error_code error;
    if (!std::filesystem::exists(folder, error)) return "absent";
    std::map<std::uint32_t, std::string> found;
    for (const auto& each : std::filesystem::directory_iterator{folder + "/queues", error}) {
      const auto id = static_cast<std::uint32_t>(command_line::number_of(each.path().filename()));
      const auto path = each.path().string();
      found[id] = fmt::format(
          " {}:gpu{},size{},type{}", id,
          gpu_name(static_cast<std::uint32_t>(command_line::number_of(read_file(path + "/gpuid")))),
          read_file(path + "/size"), read_file(path + "/type"));
    }
    std::string out = "present";
    for (const auto& [id, text] : found) out += text;
    return out;
  }
  /// The names of the files of a process in sysfs.
  std::string files(const command_line& line) const {
    const auto folder =
        fmt::format("{}/proc/{}", sluice::kfd::roots::from_environment().sysfs, line.word(1));
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& each : std::filesystem::directory_iterator{folder, error}) {
      auto name = each.path().filename().string();
      for (std::size_t i = 0; i < gpus_.size(); ++i) {
        const auto ending = "_" + std::to_string(gpus_[i].id);
        if (name.ends_with(ending))
          name.replace(name.size() - ending.size(), ending.size(), "_gpu" + std::to_string(i));
      }
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return fmt::format("{}", fmt::join(names, " "));
  }
  /// The text of a file. In the path, SYSFS, DEBUGFS and GPU0 stand for folders and the id of a
  /// GPU.
  std::string text(const command_line& line) const {
    auto path = line.word(1);
    const auto put = [&path](std::string_view label, const std::string& value) {
      if (const auto at = path.find(label); at != std::string::npos)
        path.replace(at, label.size(), value);
    };
    put("SYSFS", sluice::kfd::roots::from_environment().sysfs);
    put("DEBUGFS", sluice::kfd::roots::from_environment().debugfs);
    for (std::size_t i = 0; i < gpus_.size(); ++i)
      put("GPU" + std::to_string(i), std::to_string(gpus_[i].id));
    auto out = read_file(path);
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }
  /// The form of a file's text: numbers as N, and each line once with how often it occurs.
  std::string form(const command_line& line) const {
    static const std::regex number{R"(\b(0x)?([0-9a-f]*[0-9][0-9a-f]*|[a-f]{8})M?\b)"};
    std::istringstream lines{std::regex_replace(text(line), number, "N")};
    std::vector<std::pair<std::string, int>> forms;
    for (std::string each; std::getline(lines, each);) {
      auto known = std::find_if(forms.begin(), forms.end(),
                                [&each](const auto& other) { return other.first == each; });
      if (known == forms.end()) known = forms.insert(known, {each, 0});
      ++known->second;
    }
    std::string out;
    for (const auto& [each, times] : forms) {
      out += out.empty() ? "" : " | ";
      out += times == 1 ? each : fmt::format("{}x {}", times, each);
    }
    return out.empty() ? "empty" : out;
  }
  static std::string gone(const command_line& line) {
    const auto folder =
        fmt::format("{}/proc/{}", sluice::kfd::roots::from_environment().sysfs, line.word(1));
    const auto end = std::chrono::steady_clock::now() + long_enough;
    while (std::filesystem::exists(folder)) {
      if (std::chrono::steady_clock::now() > end) return "no";
      std::this_thread::sleep_for(5ms);
    }
    return "yes";
  }
  /// The queues of a process in debugfs, as mqds prints them: type and GPU, and how many lines of
  /// registers follow.
  std::string descriptors(const command_line& line) const {
    std::istringstream text{read_file(sluice::kfd::roots::from_environment().debugfs + "/mqds")};
    std::string out;
    bool ours = false;
    std::size_t registers = 0;
    for (std::string each; std::getline(text, each);) {
      if (each.starts_with("Process ")) {
        ours = each.starts_with("Process " + line.word(1) + " ");
        if (ours) out += "process";
      } else if (ours && each.starts_with("  ") && each[2] != ' ') {
        const auto on = each.rfind(' ');
        std::uint32_t id = 0;
        std::from_chars(each.data() + on + 1, each.data() + each.size(), id, 16);
        out += fmt::format(" {}gpu{}", each.substr(2, each.find(' ', 2) - 2) + ":", gpu_name(id));
      } else if (ours) {
        ++registers;
      }
    }
    return out.empty() ? "none" : fmt::format("{} lines={}", out, registers);
  }

  static const std::map<std::string, handler>& commands() {
    using line = const command_line&;
    static const std::map<std::string, handler> all{
        {"pid", [](process&, line) { return std::to_string(getpid()); }},
        {"open", [](process& p, line) { return p.open(); }},
        {"close", [](process& p, line) { return outcome(::close(std::exchange(p.kfd_, -1))); }},
        {"version", [](process& p, line) { return p.version(); }},
        {"acquire", [](process& p, line l) { return p.acquire(l); }},
        {"alloc", [](process& p, line l) { return p.alloc_command(l); }},
        {"free", [](process& p, line l) { return p.free_command(l); }},
        {"discard", [](process& p, line l) { return p.discard(l); }},
        {"export_dmabuf", [](process& p, line l) { return p.export_dmabuf(l); }},
        {"import_dmabuf", [](process& p, line l) { return p.import_dmabuf(l); }},
        {"dmabuf_info", [](process& p, line l) { return p.dmabuf_info(l); }},
        {"close_dmabuf", [](process& p, line l) { return p.close_dmabuf(l); }},
        {"take_dmabuf", [](process& p, line l) { return p.take_dmabuf(l); }},
        {"map",
         [](process& p, line l) { return p.mapping(l, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU); }},
        {"unmap",
         [](process& p, line l) { return p.mapping(l, uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU); }},
        {"queue", [](process& p, line l) { return p.create_queue(l); }},
        {"update", [](process& p, line l) { return p.update_queue(l); }},
        {"destroy", [](process& p, line l) { return p.destroy_queue(l); }},
        {"cu_mask", [](process& p, line l) { return p.cu_mask(l); }},
        {"wave_state", [](process& p, line l) { return p.wave_state(l); }},
        {"packet", [](process& p, line l) { return p.packet(l); }},
        {"kernel", [](process& p, line l) { return p.kernel(l); }},
        {"fault", [](process& p, line l) { return p.fault(l); }},
        {"error_event", [](process& p, line l) { return p.error_event(l); }},
        {"errors", [](process& p, line l) { return p.errors(l); }},
        {"gws", [](process& p, line l) { return p.gws(l); }},
        {"event", [](process& p, line l) { return p.create_event(l); }},
        {"destroy_event",
         [](process& p, line l) {
           return p.with_event<uapi::kfd_ioctl_destroy_event_args>(l,
                                                                   uapi::AMDKFD_IOC_DESTROY_EVENT);
         }},
        {"set_event",
         [](process& p, line l) {
           return p.with_event<uapi::kfd_ioctl_set_event_args>(l, uapi::AMDKFD_IOC_SET_EVENT);
         }},
        {"reset_event",
         [](process& p, line l) {
           return p.with_event<uapi::kfd_ioctl_reset_event_args>(l, uapi::AMDKFD_IOC_RESET_EVENT);
         }},
        {"wait_events", [](process& p, line l) { return p.wait_events(l); }},
        {"apertures", [](process& p, line l) { return p.apertures(l); }},
        {"old_apertures", [](process& p, line) { return p.old_apertures(); }},
        {"clock", [](process& p, line l) { return p.clock(l); }},
        {"policy", [](process& p, line l) { return p.policy(l); }},
        {"scratch", [](process& p, line l) { return p.scratch(l); }},
        {"trap_handler", [](process& p, line l) { return p.trap_handler(l); }},
        {"tiles", [](process& p, line l) { return p.tiles(l); }},
        {"available", [](process& p, line l) { return p.available(l); }},
        {"regained", [](process& p, line l) { return p.regained(l); }},
        {"mem_limit", [](process&, line) { return mem_limit(); }},
        {"unused", [](process&, line) { return unused(); }},
        {"hang_hws", [](process& p, line l) { return p.hang_hws(l); }},
        {"xnack", [](process& p, line l) { return p.xnack(l); }},
        {"runtime", [](process& p, line l) { return p.runtime(l); }},
        {"raw", [](process& p, line l) { return p.raw(l); }},
        {"noise", [](process& p, line l) { return p.noise(l); }},
        {"criu", [](process& p, line l) { return p.criu(l); }},
        {"smi", [](process& p, line l) { return p.smi(l); }},
        {"smi_mask", [](process& p, line l) { return p.smi_mask(l); }},
        {"smi_read", [](process& p, line) { return p.smi_read(); }},
        {"enable", [](process& p, line l) { return p.enable(l); }},
        {"disable", [](process& p, line l) { return p.disable(l); }},
        {"send", [](process& p, line l) { return p.send(l); }},
        {"exceptions", [](process& p, line l) { return p.exceptions(l); }},
        {"override", [](process& p, line l) { return p.override_launch(l); }},
        {"launch", [](process& p, line l) { return p.launch(l); }},
        {"watch", [](process& p, line l) { return p.watch(l); }},
        {"unwatch", [](process& p, line l) { return p.unwatch(l); }},
        {"flags", [](process& p, line l) { return p.flags(l); }},
        {"suspend", [](process& p, line l) { return p.suspend(l); }},
        {"resume", [](process& p, line l) { return p.resume(l); }},
        {"hold", [](process& p, line l) { return p.hold(l); }},
        {"remap", [](process& p, line l) { return p.remap(l); }},
        {"reserve", [](process& p, line l) { return p.reserve_hqds(l); }},
        {"become", [](process&, line l) { return become(l); }},
        {"query", [](process& p, line l) { return p.query(l); }},
        {"info", [](process& p, line l) { return p.info(l); }},
        {"snapshot", [](process& p, line l) { return p.snapshot(l); }},
        {"devices", [](process& p, line l) { return p.devices(l); }},
        {"op", [](process& p, line l) { return p.op(l); }},
        {"notified", [](process& p, line) { return p.notified(); }},
        {"seize", [](process&, line l) { return seize(l); }},
        {"detach", [](process&, line l) { return detach(l); }},
        {"reap", [](process&, line l) { return reap(l); }},
        {"take", [](process& p, line l) { return p.take(l); }},
        {"listed", [](process& p, line l) { return p.listed(l); }},
        {"files", [](process& p, line l) { return p.files(l); }},
        {"text", [](process& p, line l) { return p.text(l); }},
        {"form", [](process& p, line l) { return p.form(l); }},
        {"gone", [](process&, line l) { return gone(l); }},
        {"descriptors", [](process& p, line l) { return p.descriptors(l); }},
    };
    return all;
  }

  const std::vector<gpu>& gpus_ = known_gpus();
  int kfd_ = -1;
  int smi_ = -1;
  std::array<int, 2> pipe_{-1, -1};
  std::map<std::uint64_t, int> renders_;
  std::map<std::string, buffer> buffers_;
  std::map<std::string, int> dmabufs_;
  std::map<std::uint32_t, std::uint64_t> available_;  // By GPU: what it was told first.
  std::map<std::uint64_t, queue_memory> memories_;
  std::uint64_t next_address_ = first_address;
  std::future<std::string> running_;
  std::atomic<pid_t> runner_ = 0;
};

constexpr std::string_view names = "abcd";
using sockets = std::array<std::array<int, 2>, names.size()>;

/// The loop of the process `index`; after exec, it first reports that it began.
[[noreturn]] void serve(std::size_t index, const sockets& all, bool after_exec) {
  auto mine = std::make_unique<process>();
  const auto room = std::make_unique_for_overwrite<char[]>(most_text);
  const auto answer = [&](int fd, const std::string& text) {
    (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  };
  if (after_exec) answer(all[index][1], "0 " + std::to_string(getpid()));
  const auto loop = [&](const auto& again) -> void {
    for (;;) {
      const int fd = all[index][1];
      const auto got = recv(fd, room.get(), most_text, 0);
      if (got <= 0) _exit(0);
      std::string text{room.get(), static_cast<std::size_t>(got)};
      std::string out;
      try {
        if (text.starts_with("fork ")) {
          const auto child = names.find(text[5]);
          const pid_t pid = fork();
          if (pid == 0) {
            index = child;
            continue;
          }
          out = pid < 0 ? error_name(errno) : "0 " + std::to_string(pid);
        } else if (text == "exec") {
          for (const auto& each : all) fcntl(each[1], F_SETFD, 0);
          std::string sockets_text;
          for (const auto& each : all) sockets_text += std::to_string(each[1]) + ",";
          const auto index_text = std::to_string(index);
          execl("/proc/self/exe", "kfd_calls", "--serve", index_text.c_str(), sockets_text.c_str(),
                nullptr);
          out = error_name(errno);
        } else if (text == "end_main_thread") {
          std::thread{[&, fd] {
            const auto stat = fmt::format("/proc/{}/stat", getpid());
            const bool ended = sluice::test::eventually(
                long_enough, [&] { return read_file(stat).find(") Z ") != std::string::npos; });
            answer(fd, ended ? "0" : "no end");
            again(again);
          }}.detach();
          syscall(SYS_exit, 0);  // Of this thread alone.
        } else if (text.starts_with("& ")) {
          mine->start(command_line{text.substr(2)});
          out = "started";
        } else if (text.starts_with("thread ")) {
          out = mine->in_thread(command_line{text.substr(7)});
        } else if (text == "pending") {
          out = mine->pending();
        } else if (text == "interrupt") {
          out = mine->interrupt();
        } else if (text == "join") {
          out = mine->join();
        } else {
          out = mine->run(command_line{text});
        }
      } catch (const std::exception& error) {
        out = std::string{"ERROR "} + error.what();
      }
      answer(fd, out);
    }
  };
  loop(loop);
  std::abort();
}

/// The processes of one case.
class party {
 public:
  party() {
    for (auto& each : sockets_) {
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, each.data()) != 0)
        throw std::runtime_error("no sockets");
    }
  }
  party(const party&) = delete;
  party& operator=(const party&) = delete;
  ~party() {
    for (const pid_t each : pids_) {
      if (each > 0) kill(each, SIGKILL);
    }
    for (auto& each : sockets_) {
      close(each[0]);
      close(each[1]);
    }
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }

  std::string run(const std::string& line) {
    if (line.starts_with("kill ")) {
      const auto during = command_line{line}.text("during");
      return during ? end_during(names.find(line[5]), names.find(*during))
                    : end(names.find(line[5]));
    }
    const auto index = names.find(line[0]);
    if (index == std::string::npos || line.size() < 3)
      throw std::runtime_error("unknown process: " + line);
    if (pids_[index] == 0) begin(index);
    auto text = line.substr(2);
    // @a is the process id of a.
    for (auto at = text.find('@'); at != std::string::npos; at = text.find('@')) {
      const auto other = names.find(text[at + 1]);
      if (other == std::string::npos) throw std::runtime_error("unknown process: " + line);
      if (pids_[other] == 0) begin(other);
      text.replace(at, 2, std::to_string(pids_[other]));
    }
    auto out = ask(index, text);
    if (text.starts_with("fork ") && out.starts_with("0 ")) {
      pids_[names.find(text[5])] = std::stoi(out.substr(2));
      out = "0";
    } else if (text == "exec" && out.starts_with("0 ")) {
      out = "0";
    }
    return out;
  }

 private:
  void begin(std::size_t index) {
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    touch_all_pages();
    if (pid == 0) serve(index, sockets_, false);
    pids_[index] = pid;
  }
  std::string ask(std::size_t index, const std::string& text) {
    const int fd = sockets_[index][0];
    if (send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0) return "no answer";
    const auto room = std::make_unique_for_overwrite<char[]>(most_text);
    pollfd waited{fd, POLLIN, 0};
    if (poll(&waited, 1, std::chrono::milliseconds{2 * long_enough}.count()) != 1)
      return "no answer";
    const auto got = recv(fd, room.get(), most_text, 0);
    return got <= 0 ? "no answer" : std::string{room.get(), static_cast<std::size_t>(got)};
  }
  std::string end(std::size_t index) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pids_[index], 0));
    kill(pids_[index], SIGKILL);
    pollfd waited{fd, POLLIN, 0};
    const bool ended = poll(&waited, 1, std::chrono::milliseconds{long_enough}.count()) == 1;
    close(fd);
    return ended ? "0" : "no end";
  }
  /// Kills a process as soon as another one waits in the driver where no signal reaches it.
  std::string end_during(std::size_t index, std::size_t other) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pids_[index], 0));
    std::thread{[fd, path = fmt::format("/proc/{}/stat", pids_.at(other))] {
      // The state follows the name: "PID (NAME) D ".
      if (!sluice::test::eventually(
              long_enough, [&path] { return read_file(path).find(") D ") != std::string::npos; })) {
        std::cerr << "kfd_calls: the process of " << path << " never waited in the driver\n";
        std::_Exit(1);
      }
      syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
      close(fd);
    }}.detach();
    return "started";
  }

  sockets sockets_{};
  std::array<pid_t, names.size()> pids_{};
};

/// What a line of a script is to give: `-> RESULT`, and `||mes RESULT` where GPUs with MES differ.
struct expectation {
  std::optional<std::string> usual, mes;
};

/// Splits a line of a script into its call and what is expected of it.
std::pair<std::string, expectation> split(const std::string& line) {
  constexpr std::string_view arrow = " -> ";
  constexpr std::string_view with_mes = " ||mes ";
  const auto at = line.find(arrow);
  if (at == std::string::npos) return {line, {}};
  expectation expected;
  auto rest = line.substr(at + arrow.size());
  if (const auto other = rest.find(with_mes); other != std::string::npos) {
    expected.mes = rest.substr(other + with_mes.size());
    rest.resize(other);
  }
  expected.usual = rest;
  return {line.substr(0, at), expected};
}

/// Runs a script, and prints it with the results (`check` false) or the differences from what it
/// expects.
class runner {
 public:
  explicit runner(bool check) : check_{check} {
    for (const auto& each : known_gpus())
      mes_ = mes_ || each.properties.at("gfx_target_version") >= 110000;
  }

  void line(const std::string& text) {
    ++number_;
    if (text.starts_with("define ")) {
      defined_ = text.substr(7);
    } else if (text == "end") {
      defined_.clear();
    } else if (!defined_.empty()) {
      definitions_[defined_].push_back(text);
    } else if (text.starts_with("case ")) {
      begin_case(text.substr(5));
    } else if (!text.empty() && text[0] != '#') {
      call(text);
      return;
    }
    print(text);
  }
  /// \return the exit code.
  int finish() {
    all_.reset();
    if (!check_) return 0;
    std::cout << fmt::format("{} cases, {} calls, {} differences\n", cases_, calls_, differences_);
    return cases_ > 0 && differences_ == 0 ? 0 : 1;
  }

 private:
  void print(const std::string& text) const {
    if (!check_) std::cout << text << "\n" << std::flush;
  }
  void begin_case(const std::string& text) {
    ++cases_;
    all_.reset();
    all_.emplace();
    const auto colon = text.find(": ");
    case_ = text.substr(0, colon);
    if (colon == std::string::npos) return;
    const auto found = definitions_.find(text.substr(colon + 2));
    if (found == definitions_.end()) throw std::runtime_error("undefined: " + text);
    for (const auto& each : found->second) {
      const auto result = all_->run(each);
      // Each of them has a case of its own.
      if (!result.starts_with("0")) differs(each, "0...", result);
    }
  }
  void call(const std::string& text) {
    ++calls_;
    if (!all_) throw std::runtime_error("a call outside of a case: " + text);
    const auto [command, expected] = split(text);
    const auto result = all_->run(command);
    if (check_) {
      const auto& wanted = mes_ && expected.mes ? expected.mes : expected.usual;
      if (result != wanted) differs(command, wanted.value_or("no result is recorded"), result);
      return;
    }
    auto usual = expected.usual;
    auto mes = expected.mes;
    (mes_ ? mes : usual) = result;
    if (!usual) std::swap(usual, mes);
    print(command + " -> " + *usual + (mes && mes != usual ? " ||mes " + *mes : ""));
  }
  void differs(const std::string& command, const std::string& wanted, const std::string& result) {
    ++differences_;
    if (check_)
      std::cout << fmt::format("line {}, case {}: {}\n  expected: {}\n  result:   {}\n", number_,
                               case_, command, wanted, result)
                << std::flush;
  }

  bool check_;
  bool mes_ = false;
  std::size_t number_ = 0, cases_ = 0, calls_ = 0, differences_ = 0;
  std::string defined_, case_;
  std::map<std::string, std::vector<std::string>> definitions_;
  std::optional<party> all_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view{argv[1]} == "--serve") {
    sockets all{};
    const auto fds = command_line::list_of(argv[3]);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {-1, static_cast<int>(fds.at(i))};
    serve(command_line::number_of(argv[2]), all, true);
  }
  const bool check = argc == 3 && std::string_view{argv[1]} == "--check";
  if (argc != (check ? 3 : 2) || argv[1] == std::string_view{"--help"}) {
    std::cerr
        << "usage: kfd_calls [--check] SCRIPT\n"
           "Makes the driver calls of SCRIPT (tests/conformance/README.md) and prints it with "
           "their results.\n"
           "  --check  Print only results that differ from those in SCRIPT, and fail.\n";
    return 2;
  }
  std::ifstream script{argv[argc - 1]};
  if (!script) {
    std::cerr << "kfd_calls: cannot read " << argv[argc - 1] << ": " << error_name(errno) << "\n";
    return 2;
  }
  if (known_gpus().empty()) {
    std::cerr << "kfd_calls: no GPU; run it on a simulated device or in the driver's test bed\n";
    return 2;
  }
  try {
    runner run{check};
    for (std::string line; std::getline(script, line);) run.line(line);
    return run.finish();
  } catch (const std::exception& error) {
    std::cerr << "kfd_calls: " << error.what() << "\n";
    return 2;
  }
}
