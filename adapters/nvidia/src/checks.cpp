#include "checks.hpp"

#include "device_users.hpp"
#include "gpu_users.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "sluice/nvidia/driver_text.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::nvidia {

namespace {

// linux/capability.h
constexpr unsigned cap_dac_read_search = 2;
constexpr unsigned cap_sys_ptrace = 19;

std::string text_of(int error) {
  return error_code{error, boost::system::system_category()}.message();
}

/// The permitted capabilities of a file (struct vfs_cap_data of linux/capability.h: a word of
/// flags, then the permitted and inheritable words).
std::uint32_t permitted_of(const std::string& path) {
  std::array<std::uint32_t, 6> data{};
  const ssize_t got = ::getxattr(path.c_str(), "security.capability", data.data(), sizeof data);
  return got >= 8 ? data[1] : 0;
}

check check_device(const roots& where) {
  const unique_fd device{::open(where.device.c_str(), O_RDWR | O_CLOEXEC)};
  if (device) return {"device", verdict::good, where.device + " can be opened", "open(2)"};
  const int error = errno;
  return {"device", verdict::blocked,
          fmt::format("{} cannot be opened: {}", where.device, text_of(error)), "open(2)",
          error == ENOENT ? "load NVIDIA's driver (modprobe nvidia, nvidia-modprobe); in a "
                            "container, pass the GPUs to the container (--gpus all)"
                          : "run as a user who may use the GPUs"};
}

check check_release(const driver_options& how) {
  const std::string file = how.where.proc + "/version";
  const auto loaded = read_release(how.where);
  if (!loaded)
    return {"driver", verdict::blocked,
            fmt::format("{} cannot be read: {}", file, loaded.error().message()), file,
            "load NVIDIA's driver"};
  const std::string found = fmt::format("release {}, {} kernel modules", loaded->version,
                                        loaded->open_modules ? "open" : "closed");
  if (is_tested(*loaded)) return {"driver", verdict::good, found, file};
  if (how.allow_untested_driver)
    return {"driver", verdict::note,
            found + ": not tested with sluice; allow_untested_driver is set", file,
            "watch the kernel log for lines with NVRM and Xid"};
  return {"driver", verdict::blocked, found + ": not tested with sluice", file,
          fmt::format("use release {} with open kernel modules, or set allow_untested_driver = "
                      "true in [nvidia]",
                      tested_branch)};
}

check check_gpus(gpu_users& users, const roots& where) {
  const auto& gpus = users.gpus();
  const std::string directory = where.proc + "/gpus";
  if (gpus.empty())
    return {"GPUs", verdict::blocked, directory + " has no GPU", directory,
            "check that the GPU is in the machine (lspci), and see dmesg"};
  std::string names;
  for (const gpu_information& each : gpus)
    names += (names.empty() ? "" : ", ") +
             fmt::format("GPU {} ({}, {})", each.minor, each.pci, each.model);
  return {"GPUs", verdict::good, names, directory};
}

check check_discovery(const gpu_users& users, const roots& where) {
  if (users.has_nvml())
    return {"discovery", verdict::good, "NVML lists the processes of all users",
            "libnvidia-ml.so.1"};
  const std::string advice =
      where.are_own()
          ? "install NVML (package libnvidia-ml1 or the like), or run the daemon as root"
          : "run as root";
  if (!users.sees_all())
    return {"discovery", verdict::note,
            "this user may not read the descriptors of all processes, and NVML is not in use: "
            "processes of other users are not found",
            "/proc", advice};
  if (!where.are_own())
    return {"discovery", verdict::good, "descriptors in /proc show the processes of all users",
            "/proc"};
  return {"discovery", verdict::note,
          "NVML is absent: sluice finds processes whose descriptors it may read",
          "libnvidia-ml.so.1", advice};
}

check check_kcmp() {
  if (::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, 0, 0) >= 0 || errno == EBADF)
    return {"kcmp", verdict::good, "the kernel compares open files", "kcmp(2)"};
  return {"kcmp", verdict::blocked, "the kernel does not compare open files: " + text_of(errno),
          "kcmp(2)", "use a kernel with CONFIG_KCMP"};
}

check check_rights(const machine& here) {
  const auto scope = here.first_line("/proc/sys/kernel/yama/ptrace_scope");
  const bool attaches = !scope || *scope == "0";
  const std::uint32_t has = here.agent.empty() ? 0 : permitted_of(here.agent);
  const auto holds = [&](unsigned bit) { return (has >> bit & 1U) != 0; };
  if (scope && *scope == "3")
    return {"rights", verdict::blocked, "kernel.yama.ptrace_scope is 3: no process may attach",
            "/proc/sys/kernel/yama/ptrace_scope", "set it to 0, 1 or 2 and restart the machine"};
  if (::geteuid() == 0)
    return {"rights", verdict::good,
            "the agent of a daemon that runs as root may attach to any "
            "process",
            "geteuid(2)"};
  if (holds(cap_sys_ptrace) && holds(cap_dac_read_search))
    return {"rights", verdict::good, here.agent + " may attach to processes of all users",
            "security.capability"};
  return {"rights", attaches ? verdict::note : verdict::blocked,
          attaches ? "the agent can suspend processes of its own user only"
                   : "kernel.yama.ptrace_scope is " + *scope +
                         ": the agent needs CAP_SYS_PTRACE, also for processes of its own user",
          "security.capability",
          fmt::format("run: setcap cap_sys_ptrace,cap_dac_read_search+ep {}",
                      here.agent.empty() ? "sluice-agent" : here.agent)};
}

}  // namespace

std::vector<check> examine(const machine& here, const driver_options& how) {
  std::vector<check> all{check_device(how.where), check_release(how)};
  gpu_users users{how.where};
  all.push_back(check_gpus(users, how.where));
  all.push_back(check_discovery(users, how.where));
  all.push_back(check_kcmp());
  all.push_back(check_rights(here));
  return all;
}

}  // namespace sluice::nvidia
