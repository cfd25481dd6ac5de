#include "nvidia_survey.hpp"

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::nvidia {

namespace {

class nvidia_process final : public surveyed_process {
 public:
  nvidia_process(const nvidia_survey& of, pid_t pid) : of_(of), pid_(pid) {}

  result<void> list_queues(std::vector<surveyed_queue>& into) override {
    listed_ = of_.queues_of(pid_);
    into.insert(into.end(), listed_.begin(), listed_.end());
    return {};
  }
  bool unchanged() noexcept override { return of_.queues_of(pid_) == listed_; }

 private:
  const nvidia_survey& of_;
  const pid_t pid_;
  std::vector<surveyed_queue> listed_;
};

}  // namespace

nvidia_survey::nvidia_survey(roots where, message_sink say)
    : where_(std::move(where)), say_(std::move(say)), users_(where_) {}

std::span<const surveyed_gpu> nvidia_survey::gpus() {
  for (const gpu_information& each : users_.gpus())
    if (std::ranges::find(gpus_, each.id, &surveyed_gpu::id) == gpus_.end())
      gpus_.push_back({.id = each.id});
  return gpus_;
}

result<void> nvidia_survey::list_processes(std::vector<pid_t>& into) {
  const auto listed = users_.list();
  if (!listed) return listed.error();
  uses_.clear();
  const pid_t self = ::getpid();
  for (const nvml_process& each : *listed)
    if (each.pid != self) uses_.emplace(each.pid, each.gpu);
  for (auto each = uses_.begin(); each != uses_.end(); each = uses_.upper_bound(each->first))
    into.push_back(each->first);
  return {};
}

std::unique_ptr<surveyed_process> nvidia_survey::open(const process_identity& who) {
  return std::make_unique<nvidia_process>(*this, who.pid);
}

std::vector<surveyed_queue> nvidia_survey::queues_of(pid_t pid) const {
  std::vector<surveyed_queue> all;
  const auto [begin, end] = uses_.equal_range(pid);
  for (auto each = begin; each != end; ++each) {
    const auto gpu = std::ranges::find(gpus_, each->second, &surveyed_gpu::id);
    if (gpu == gpus_.end()) continue;
    const auto number = static_cast<std::uint32_t>(gpu - gpus_.begin());
    all.push_back({.id = unlisted_queues(number), .gpu = each->second});
  }
  std::ranges::sort(all);
  return all;
}

result<void> nvidia_survey::check(std::string& message) {
  const auto loaded = read_release(where_);
  if (loaded) return {};
  message = "cannot read " + where_.proc + "/version: " + loaded.error().message();
  return loaded.error();
}

std::string nvidia_survey::remedy() const {
  return "load NVIDIA's driver, or set SLUICE_NVIDIA_PROC to the driver's tree in /proc";
}

/// A process that begins to use a GPU opens the control device.
void nvidia_survey::watch(int epoll, std::uint64_t first_tag) {
  opens_ = unique_fd{::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
  watched_ = -1;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = first_tag;
  if (opens_) (void)::epoll_ctl(epoll, EPOLL_CTL_ADD, opens_.get(), &event);
  (void)renew_watches();
  if (watched_ < 0)
    say_("cannot watch " + where_.device + "; sluice finds new processes up to 1 s later");
}

void nvidia_survey::read_events(std::uint64_t, survey_news& news) {
  alignas(inotify_event) std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::read(opens_.get(), piece.data(), piece.size());
    if (got <= 0) return;
    news.look = true;
    for (ssize_t at = 0; at < got;) {
      const auto* const each = reinterpret_cast<const inotify_event*>(piece.data() + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + each->len);
      if ((each->mask & IN_OPEN) != 0) news.queues_follow = true;
      if ((each->mask & IN_IGNORED) != 0) watched_ = -1;
    }
  }
}

bool nvidia_survey::renew_watches() {
  if (!opens_ || watched_ >= 0) return false;
  watched_ = ::inotify_add_watch(opens_.get(), where_.device.c_str(), IN_OPEN | IN_DELETE_SELF);
  // A process may have opened it in between.
  return watched_ >= 0;
}

}  // namespace sluice::nvidia
