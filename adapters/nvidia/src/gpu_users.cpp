#include "gpu_users.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

gpu_users::gpu_users(const roots& where) : where_(where) {
  // NVML knows the machine's own driver only.
  if (where.are_own()) nvml_ = nvml::load();
}

const std::vector<gpu_information>& gpu_users::gpus() {
  if (!gpus_.empty()) return gpus_;
  if (auto read = read_gpus(where_)) gpus_ = std::move(*read);
  return gpus_;
}

bool gpu_users::sees_all() const {
  if (has_nvml()) return true;
  bool all = true;
  (void)for_each_numbered_entry<pid_t>("/proc", [&all](pid_t pid) {
    if (all && !open_directory("/proc/" + std::to_string(pid) + "/fd") && errno == EACCES)
      all = false;
  });
  return all;
}

result<std::vector<nvml_process>> gpu_users::list() {
  (void)gpus();
  std::vector<nvml_process> all;
  if (nvml_ == nullptr || !nvml_->list_processes(all)) {
    auto listed = list_descriptors();
    if (!listed) return listed.error();
    all = std::move(*listed);
  }
  const auto before = [](const nvml_process& one, const nvml_process& other) {
    return std::pair{one.gpu, one.pid} < std::pair{other.gpu, other.pid};
  };
  const auto same = [](const nvml_process& one, const nvml_process& other) {
    return one.gpu == other.gpu && one.pid == other.pid;
  };
  std::ranges::sort(all, before);
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  return all;
}

result<std::vector<nvml_process>> gpu_users::list_descriptors() {
  const auto control = device_file::at(where_.device);
  if (!control) return control.error();
  if (!users_ || users_->of() != *control) users_ = std::make_unique<user_list>(*control);
  const auto users = users_->now(duration::zero());
  std::vector<pid_t> pids;
  for (const remote_fd& each : users ? *users : list_users(*control)) pids.push_back(each.pid);
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  std::vector<nvml_process> all;
  for (const gpu_information& gpu : gpus_) {
    const auto node = device_file::at(where_.node(gpu.minor));
    if (!node) continue;
    for (const pid_t pid : pids) {
      std::vector<int> fds;
      if (node->list(pid, fds) && !fds.empty()) all.push_back({.pid = pid, .gpu = gpu.id});
    }
  }
  return all;
}

}  // namespace sluice::nvidia
