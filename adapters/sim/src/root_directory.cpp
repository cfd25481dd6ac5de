#include "root_directory.hpp"

#include "nvidia_proc.hpp"
#include "topology.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace sluice::sim {

namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error{what + ": " + std::strerror(error)};  // NOLINT: one thread.
}

constexpr const char* debugfs = "/sys/kernel/debug/kfd";

}  // namespace

root_directory::root_directory(const std::string& path, const profile& node)
    : path_{std::filesystem::absolute(path).lexically_normal().string()} {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (path_ == "/")
    throw std::runtime_error{"invalid --root '/': expected a directory below the root directory"};
  if (mkdir(path_.c_str(), 0755) == 0) {
    made_root_ = true;
  } else if (errno != EEXIST) {
    fail("cannot create directory " + path_, errno);
  }
  try {
    lock_ = unique_fd{open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!lock_) fail("cannot open directory " + path_, errno);
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      throw std::runtime_error{"cannot use directory " + path_ +
                               ": another simulated device uses it; stop that device or " +
                               "choose another --root"};
    }
    clear_dead_mount();
    make_directory("/fuse");
    make_directory("/dev");
    make_link("/sim", "fuse/sim");
    if (node.driver == driver_kind::nvidia)
      make_nvidia(node);
    else
      make_kfd(node);
  } catch (...) {
    remove_everything();
    throw;
  }
}

void root_directory::make_kfd(const profile& node) {
  make_link("/dev/kfd", "../fuse/dev/kfd");
  make_directory("/dev/dri");
  // GPU memory that a client maps is memory all the same.
  for (std::size_t i = 0; i < node.gpus.size(); ++i)
    make_link("/dev/dri/renderD" + std::to_string(first_render_minor + i), "/dev/zero");
  make_directory("/sys");
  make_link("/sys/class", "../fuse/sys/class");
  make_directory("/sys/kernel");
  make_directory("/sys/kernel/debug", 0700);
  make_directory(debugfs);
  for (const std::string name : {"/mqds", "/hqds", "/rls", "/hang_hws", "/mem_limit"}) {
    make_link(debugfs + name, "../../../../fuse/debug" + name);
  }
  process_directories_ = node.debugfs_proc_dirs;
  if (process_directories_) {
    make_directory(std::string{debugfs} + "/proc");
    // Those of processes that a killed device knew.
    std::error_code ignored;
    for (const auto& each :
         std::filesystem::directory_iterator{path_ + debugfs + "/proc", ignored}) {
      remove_process(each.path());
    }
  }
}

void root_directory::make_nvidia(const profile& node) {
  const auto link_node = [this](const std::string& name) {
    make_link("/dev/" + name, "../fuse/dev/" + name);
  };
  link_node(nvidia_control_node);
  for (std::uint32_t i = 0; i < node.gpus.size(); ++i) link_node(nvidia_gpu_node(i));
  make_link("/proc", "fuse/proc");
}

root_directory::~root_directory() { remove_everything(); }

// Failures of what follows leave the device without a convenience, not without a function.

void root_directory::process_appeared(pid_t pid, std::span<const process_pasid> pasids) {
  if (!process_directories_) return;
  const auto folder = path_ + debugfs + "/proc/" + std::to_string(pid);
  if (mkdir(folder.c_str(), 0755) != 0) return;
  processes_.insert(pid);
  for (const auto& each : pasids) {
    const auto name = folder + "/pasid_" + std::to_string(each.gpu_id);
    const auto text = std::to_string(each.pasid) + "\n";
    unique_fd file{open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0444)};
    const bool nameless = static_cast<bool>(file);
    if (!nameless) file = unique_fd{open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0444)};
    if (!file || write(file.get(), text.data(), text.size()) < 0 || !nameless) continue;
    (void)!linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(file.get())).c_str(), AT_FDCWD,
                  name.c_str(), AT_SYMLINK_FOLLOW);
  }
}

void root_directory::process_disappeared(pid_t pid) {
  if (processes_.erase(pid) != 0) {
    remove_process(path_ + debugfs + "/proc/" + std::to_string(pid));
  }
}

void root_directory::remove_process(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::directory_iterator{folder, ignored}) {
    if (each.path().filename().string().starts_with("pasid_")) files.push_back(each.path());
  }
  for (const auto& each : files) unlink(each.c_str());
  rmdir(folder.c_str());
}

void root_directory::make_directory(const std::string& name, mode_t mode) {
  const auto full = path_ + name;
  struct stat found {};
  if (mkdir(full.c_str(), mode) != 0) {
    if (errno != EEXIST) fail("cannot create directory " + full, errno);
    if (lstat(full.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
      throw std::runtime_error{"cannot create directory " + full +
                               ": the path exists and is not a directory; " +
                               "remove it or choose another --root"};
    }
  }
  made_.push_back(full);
}

void root_directory::make_link(const std::string& name, const std::string& target) {
  const auto full = path_ + name;
  if (symlink(target.c_str(), full.c_str()) != 0) {
    if (errno != EEXIST) fail("cannot create link " + full, errno);
    std::array<char, 256> found{};
    const auto length = readlink(full.c_str(), found.data(), found.size());
    if (length < 0 ||
        target.compare(0, std::string::npos, found.data(), static_cast<std::size_t>(length)) != 0) {
      throw std::runtime_error{"cannot create link " + full +
                               ": the path exists and is not a link of a simulated device; " +
                               "remove it or choose another --root"};
    }
  }
  made_.push_back(full);
}

void root_directory::clear_dead_mount() const {
  // The kernel answers ENOTCONN at a mount whose server is gone; several may lie on each other.
  struct stat found {};
  const auto point = mountpoint();
  while (stat(point.c_str(), &found) != 0 && errno == ENOTCONN) {
    if (umount2(point.c_str(), MNT_DETACH) == 0) continue;
    const int error = errno;
    if (error == EPERM) {
      throw std::runtime_error{"cannot remove the mount of a killed device at " + point +
                               ": permission denied; run 'fusermount3 -u -z " + point + "'"};
    }
    fail("cannot remove the mount of a killed device at " + point, error);
  }
}

void root_directory::remove_everything() noexcept {
  for (const auto pid : processes_) {
    remove_process(path_ + debugfs + "/proc/" + std::to_string(pid));
  }
  for (auto name = made_.rbegin(); name != made_.rend(); ++name) {
    if (unlink(name->c_str()) != 0) rmdir(name->c_str());
  }
  made_.clear();
  if (made_root_) rmdir(path_.c_str());
}

}  // namespace sluice::sim
