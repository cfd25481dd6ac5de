#pragma once
/// \file
/// How sluice discovers processes that use NVIDIA GPUs.

#include "gpu_users.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sluice/nvidia/roots.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/survey.hpp"

namespace sluice::nvidia {

/// Lists one queue for each process and GPU, which stands for its channels there
/// (unlisted_queues()): only the agent can see these.
class nvidia_survey final : public survey {
 public:
  nvidia_survey(roots where, message_sink say);

  std::string_view name() const noexcept override { return "nvidia"; }
  std::span<const surveyed_gpu> gpus() override;
  result<void> list_processes(std::vector<pid_t>& into) override;
  std::unique_ptr<surveyed_process> open(const process_identity& who) override;
  result<void> check(std::string& message) override;
  std::string remedy() const override;
  std::string location() const override { return where_.proc; }
  void watch(int epoll, std::uint64_t first_tag) override;
  void read_events(std::uint64_t tag, survey_news& news) override;
  bool renew_watches() override;

  /// Returns the queues of a process at the last list_processes().
  [[nodiscard]] std::vector<surveyed_queue> queues_of(pid_t pid) const;

 private:
  const roots where_;
  const message_sink say_;
  gpu_users users_;
  std::vector<surveyed_gpu> gpus_;
  std::multimap<pid_t, gpu_id> uses_;
  unique_fd opens_;  ///< inotify
  int watched_ = -1;
};

}  // namespace sluice::nvidia
