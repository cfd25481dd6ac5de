#include "sluice/kfd/checks.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/queue_pointers.hpp"
#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

namespace {

// linux/capability.h
constexpr unsigned cap_sys_ptrace = 19;

std::string error_text(int error) {
  return error_code{error, boost::system::system_category()}.message();
}

std::optional<int> module_parameter(const machine& here, const std::string& name) {
  const auto line = here.first_line("/sys/module/amdgpu/parameters/" + name);
  return line ? parse_number<int>(*line) : std::nullopt;
}

std::string parameter_path(const std::string& name) {
  return "/sys/module/amdgpu/parameters/" + name;
}

/// The number after "Name:" in /proc/self/status.
std::optional<std::string> own_status(const machine& here, const std::string& name) {
  std::ifstream file{here.prefix + "/proc/self/status"};
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    const auto begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? std::string{} : line.substr(begin);
  }
  return {};
}

/// Whether a program may trace by its file capabilities (struct vfs_cap_data of linux/capability.h:
/// a word of flags, then the permitted and inheritable words).
bool file_may_trace(const std::string& path) {
  std::array<std::uint32_t, 6> data{};
  const ssize_t got = ::getxattr(path.c_str(), "security.capability", data.data(), sizeof data);
  return got >= 8 && (data[1] >> cap_sys_ptrace & 1U) != 0;
}

std::string gpu_name(const gpu_description& gpu) {
  return fmt::format("GPU {} ({}, gfx {})", gpu.ordinal, gpu.pci, gfx_text(gpu.gfx_target_version));
}

}  // namespace

/// Gfx versions whose GPUs let several processes be debugged at once (kfd_dbg_is_per_vmid_supported
/// of the driver: GC 9.4.2, 9.4.3, 9.4.4, 9.5.0, 11.0.0 and later).
bool many_debugged(std::uint32_t gfx) {
  return gfx == 90010 || (gfx >= 90400 && gfx <= 90402) || gfx == 90500 || gfx >= 110000;
}

bool uses_mes(const machine& here, std::uint32_t gfx) {
  return gfx >= 110000 || module_parameter(here, "mes") == 1;
}

std::vector<check> check_device(const roots& where) {
  std::vector<check> all;
  const std::string& path = where.device;
  const unique_fd device{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (!device) {
    const int error = errno;
    std::string found = error_text(error);
    std::string advice = "see dmesg";
    if (error == ENOENT)
      advice =
          "load the amdgpu driver (modprobe amdgpu); in a container, pass the device to the "
          "container (--device=/dev/kfd); without an AMD GPU, use a simulated one (sluice sim)";
    else if (error == EACCES || error == EPERM)
      advice =
          "join the group that owns the device (often render: usermod -aG render USER), or run as "
          "root";
    else if (error == EAGAIN) {
      found = "a GPU is being reset (" + found + ")";
      advice = "try again in a few seconds; dmesg shows which GPU and why";
    }
    all.push_back({"device", verdict::blocked, fmt::format("{} cannot be opened: {}", path, found),
                   "open(2)", advice});
    return all;
  }
  struct stat about {};
  ::fstat(device.get(), &about);
  all.push_back({"device", verdict::good,
                 fmt::format("{} can be opened (mode {:04o}, user {}, group {})", path,
                             about.st_mode & 07777U, about.st_uid, about.st_gid),
                 "open(2)"});

  uapi::kfd_ioctl_get_version_args version{};
  if (::ioctl(device.get(), uapi::AMDKFD_IOC_GET_VERSION, &version) < 0) {
    all.push_back({"driver", verdict::blocked,
                   fmt::format("{} is not a KFD device: {}", path, error_text(errno)),
                   "GET_VERSION", "unset SLUICE_KFD_DEVICE, or set it to the KFD device"});
    return all;
  }
  const bool new_enough = version.major_version == uapi::KFD_IOCTL_MAJOR_VERSION &&
                          version.minor_version >= uapi::KFD_IOCTL_MINOR_VERSION_DEBUGGER;
  all.push_back({"driver", new_enough ? verdict::good : verdict::blocked,
                 fmt::format("KFD {}.{}", version.major_version, version.minor_version),
                 "GET_VERSION",
                 new_enough ? ""
                            : "suspending needs KFD 1.13 or a later 1.x; install Linux 6.5 or "
                              "later, or a current ROCm driver (amdgpu-dkms)"});

  uapi::kfd_ioctl_batch_unmap_queues_args nothing{};
  const bool batch = ::ioctl(device.get(), uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &nothing) >= 0;
  const int refused = batch ? 0 : errno;
  const bool stock = refused == ENOTTY || refused == EINVAL;  // See device::has_batch_commands().
  all.push_back({"batch commands", batch || stock ? verdict::good : verdict::unknown,
                 batch   ? "available (patched driver)"
                 : stock ? "not available (stock driver): sluice uses the debug interface"
                         : "refused: " + error_text(refused),
                 "BATCH_UNMAP_QUEUES with 0 queues"});
  return all;
}

std::vector<check> check_gpus(const machine& here, const roots& where, const node_view& node) {
  std::vector<check> all;
  const std::string topology = where.sysfs + "/topology/nodes";
  if (node.gpus.empty()) {
    all.push_back({"GPUs", verdict::blocked, "the driver lists no GPU", topology,
                   "check dmesg for amdgpu errors; in a container or cgroup, allow the "
                   "devices /dev/dri/renderD*"});
    return all;
  }
  for (const auto& gpu : node.gpus) {
    const std::string name = gpu_name(gpu);
    // No interface says which of the two it is.
    const bool by_generation = gpu.gfx_target_version >= 110000;
    const bool mes = uses_mes(here, gpu.gfx_target_version);
    all.push_back(
        {"scheduler", verdict::good,
         fmt::format("{}: {}", name,
                     mes ? "MES (firmware): a suspend is one command per queue"
                         : "runlist: each suspend briefly stops all processes on the GPU"),
         by_generation ? "derived: MES is the default from gfx 11 on"
         : mes         ? "derived: " + parameter_path("mes") + " is 1"
                       : "derived: the runlist is the default before gfx 11"});

    constexpr std::uint64_t trap_debug = 0x8000;
    constexpr std::uint64_t trap_debug_firmware = 0x20000000;
    const bool hardware = (gpu.capability & trap_debug) != 0;
    const bool firmware = (gpu.capability & trap_debug_firmware) != 0;
    check debug{"debug support", verdict::good, "",
                fmt::format("{}/{}/properties: capability {:#x}, gfx_target_version {}", topology,
                            gpu.node, gpu.capability, gpu.gfx_target_version)};
    if (!hardware || !firmware) {
      debug.what = verdict::blocked;
      debug.found = fmt::format(
          "{}: its {} does not support debugging, so the ROCm runtime disables debugging for all "
          "processes on this node",
          name, hardware ? "firmware" : "hardware");
      debug.advice = hardware ? "update the GPU's firmware (linux-firmware, or ROCm's amdgpu-dkms)"
                              : "this GPU cannot be preempted; hide it from the ROCm runtime";
    } else if (!many_debugged(gpu.gfx_target_version)) {
      debug.what = verdict::note;
      debug.found = name + ": supported for one process at a time";
      debug.advice =
          "put the offline work of this GPU into one process: sluice can suspend only one process "
          "on it at a time, and the others keep running";
    } else {
      debug.found = name + ": supported for any number of processes";
    }
    all.push_back(std::move(debug));
  }
  return all;
}

check check_scheduling(const machine& here) {
  const std::string how = parameter_path("sched_policy");
  const auto policy = module_parameter(here, "sched_policy");
  if (!policy)
    return {"sched_policy", verdict::unknown,
            "unknown: no amdgpu module found (the driver is built in, or the device is simulated)",
            how};
  if (*policy == 2)
    return {"sched_policy", verdict::blocked,
            "2: hardware scheduling is off, so queues cannot be suspended", how,
            "boot with amdgpu.sched_policy=0"};
  return {
      "sched_policy", verdict::good,
      *policy == 0 ? "0: hardware scheduling" : "1: hardware scheduling without oversubscription",
      how};
}

check check_cwsr(const machine& here) {
  const std::string how = parameter_path("cwsr_enable");
  const auto enabled = module_parameter(here, "cwsr_enable");
  if (!enabled) return {"cwsr_enable", verdict::unknown, "cannot be read", how};
  if (*enabled == 0)
    return {
        "cwsr_enable", verdict::blocked,
        "0: running waves cannot be saved, so a suspend waits for the longest kernel; after 9 s, "
        "the driver resets the GPU",
        how, "boot with amdgpu.cwsr_enable=1 (the default)"};
  return {"cwsr_enable", verdict::good, "1: running waves are saved", how};
}

check check_tracing(const machine& here) {
  const auto scope_line = here.first_line("/proc/sys/kernel/yama/ptrace_scope");
  const int scope = scope_line ? parse_number<int>(*scope_line).value_or(0) : 0;
  const auto mask = own_status(here, "CapEff");
  const bool own = mask && (std::strtoull(mask->c_str(), nullptr, 16) >> cap_sys_ptrace & 1U) != 0;
  const bool agent = !here.agent.empty() && file_may_trace(here.agent);
  check made{
      "tracing", verdict::good, "",
      fmt::format("{}; CapEff in /proc/self/status is {}; only CAP_SYS_PTRACE counts",
                  scope_line ? "/proc/sys/kernel/yama/ptrace_scope is " + *scope_line : "no Yama",
                  mask.value_or("unknown"))};
  if (scope >= 3) {
    made.what = verdict::blocked;
    made.found = "no process may trace another one until the next boot";
    made.advice = "set kernel.yama.ptrace_scope to 0, 1 or 2 in /etc/sysctl.d and reboot";
  } else if (own) {
    made.found = "this process may trace any process (CAP_SYS_PTRACE)";
  } else if (agent) {
    made.found = fmt::format("{} may trace any process; this process may not", here.agent);
    made.how += "; file capabilities of sluice-agent";
  } else if (scope == 0) {
    made.what = verdict::note;
    made.found = "sluice can suspend only processes of the same user";
    made.advice =
        "to suspend processes of other users, run as root, or run setcap cap_sys_ptrace+ep on "
        "sluice-agent";
  } else {
    made.what = verdict::blocked;
    made.found = scope == 1 ? "this process may trace only its own descendants"
                            : "tracing needs CAP_SYS_PTRACE, which this process lacks";
    made.advice =
        "run as root, or run setcap cap_sys_ptrace+ep on sluice-agent; to suspend only processes "
        "of the same user, set kernel.yama.ptrace_scope=0";
  }
  return made;
}

std::vector<check> check_debugfs(const machine& here, const roots& where) {
  std::vector<check> all;
  const std::string path = where.debugfs + "/mqds";
  const unique_fd mqds{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const int error = errno;
  const std::string without =
      "without debugfs, sluice cannot read queue priorities and pointer addresses, and detects "
      "online work only if a client announces it";
  const auto lockdown = here.first_line("/sys/kernel/security/lockdown");
  if (mqds) {
    all.push_back({"debugfs", verdict::good, path + " can be read", "open(2)"});
  } else if (lockdown && lockdown->find("[confidentiality]") != std::string::npos) {
    all.push_back({"debugfs", verdict::note, "the kernel is locked down (confidentiality)",
                   "/sys/kernel/security/lockdown", without});
  } else if (error == ENOENT) {
    std::ifstream mounts{here.prefix + "/proc/self/mounts"};
    bool mounted = false;
    for (std::string line; std::getline(mounts, line);)
      mounted |= line.find(" debugfs ") != std::string::npos;
    all.push_back({"debugfs", verdict::note, path + " does not exist",
                   mounted ? "open(2); /proc/self/mounts lists a debugfs"
                           : "open(2); /proc/self/mounts lists no debugfs",
                   (mounted ? "" : "mount -t debugfs none /sys/kernel/debug; ") + without});
  } else {
    all.push_back({"debugfs", verdict::note,
                   fmt::format("{} cannot be read: {}", path, error_text(error)), "open(2)",
                   "only root may read debugfs: run as root; " + without});
  }
  const bool processes = ::access((where.debugfs + "/proc").c_str(), R_OK | X_OK) == 0;
  const int refused = errno;
  all.push_back({"debugfs processes", processes ? verdict::good : verdict::note,
                 processes ? "sluice is notified when a process starts to use a GPU"
                           : (refused == ENOENT ? "does not exist"
                                                : "cannot be read: " + error_text(refused)) +
                                 ": sluice detects a new process when the process opens the "
                                 "device, or at the next scan (within 1 s)",
                 where.debugfs + "/proc"});
  return all;
}

std::vector<check> check_pointers(const roots& where, const node_view& node) {
  std::vector<check> all;
  const std::string name = "queue pointers";
  const std::string how = where.debugfs + "/mqds; process_vm_readv(2)";
  const std::string without =
      "the policy pointer_polling detects work only if a client announces it";
  const auto seen = read_mqds(where);
  if (!seen) {
    all.push_back({name, verdict::note,
                   "unknown: the addresses of the pointers are only in debugfs", how,
                   "follow the advice for debugfs; until then, " + without});
    return all;
  }
  std::size_t readable = 0;
  for (const auto& process : node.processes) {
    const auto compute = static_cast<std::size_t>(std::ranges::count_if(
        process.queues, [](const auto& each) { return each.kind == queue_kind::compute; }));
    if (compute == 0) continue;
    std::vector<pointer_addresses> addresses;
    for (const auto& each : seen->queues) {
      if (each.pid == process.pid && each.type == mqd_type::compute &&
          each.write_pointer_address != 0)
        addresses.push_back({each.read_pointer_address, each.write_pointer_address});
    }
    std::size_t known = 0;
    std::string why = "the driver's mqds file does not list their addresses";
    auto pointers = queue_pointers::open({process.pid, process.start_time});
    if (!pointers) {
      if (pointers.error() == errc::unknown_target) continue;  // it has ended
      why = "no access to the memory of the process: " + pointers.error().message() +
            "; run as root, or with CAP_SYS_PTRACE";
    } else if ((*pointers)->watch(addresses) && (*pointers)->read()) {
      for (const auto& each : (*pointers)->values()) known += each.known ? 1U : 0U;
      if (known < addresses.size()) why = "the pointers are in unreadable memory";
    }
    readable += std::min(known, compute);
    if (known >= compute) continue;
    all.push_back(
        {name, verdict::note,
         fmt::format("process {} ({}): the pointers of {} of {} compute queues cannot be read: {}",
                     process.pid, process.command, compute - known, compute, why),
         how, without});
  }
  if (all.empty()) {
    all.push_back({name, verdict::good,
                   readable == 0
                       ? "no process has a compute queue now"
                       : fmt::format("the pointers of all {} compute queues can be read", readable),
                   how});
  }
  return all;
}

std::vector<check> examine(const machine& here, const roots& where) {
  std::vector<check> all = check_device(where);
  const auto add = [&all](std::vector<check> more) {
    std::ranges::move(more, std::back_inserter(all));
  };
  const auto node = look_at_node(where);
  if (node)
    add(check_gpus(here, where, *node));
  else
    all.push_back({"GPUs", verdict::blocked,
                   fmt::format("{} cannot be read: {}", where.sysfs, node.error().message()),
                   "opendir(3)", "load the amdgpu driver; in a container, mount the host's /sys"});
  all.push_back(check_scheduling(here));
  all.push_back(check_cwsr(here));
  all.push_back(check_tracing(here));
  add(check_debugfs(here, where));
  if (node) add(check_pointers(where, *node));
  return all;
}

}  // namespace sluice::kfd
