#pragma once
/// \file
/// The survey of KFD.

#include "gpu_listener.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/kfd/survey.hpp"
#include "sluice/kfd/tree_watch.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

class kfd_survey final : public survey {
 public:
  kfd_survey(roots where, message_sink say);

  std::string_view name() const noexcept override { return "kfd"; }
  std::span<const surveyed_gpu> gpus() override;
  result<void> list_processes(std::vector<pid_t>& into) override;
  std::unique_ptr<surveyed_process> open(const process_identity& who) override;
  result<void> check(std::string& message) override;
  std::string remedy() const override;
  std::string location() const override { return where_.sysfs + " and " + where_.device; }
  void watch(int epoll, std::uint64_t first_tag) override;
  void read_events(std::uint64_t tag, survey_news& news) override;
  bool renew_watches() override;
  result<std::vector<std::pair<pid_t, roles::queue_traits>>> list_queue_traits(
      std::string& message) override;
  std::unique_ptr<work_watch> watch_work(inbox_producer& inbox) override;

  /// How many events of this kind the driver has told, of all GPUs. Any thread.
  std::uint64_t heard(smi_kind what) const noexcept {
    return heard_.at(static_cast<std::size_t>(what)).load(std::memory_order_relaxed);
  }

 private:
  std::optional<std::string_view> read_generation(std::span<char> into);

  const roots where_;
  const message_sink say_;
  const std::string processes_;  // <sysfs>/proc
  const std::string topology_;   // <sysfs>/topology
  unique_fd processes_directory_;
  unique_fd generation_file_;
  std::string generation_;
  std::vector<surveyed_gpu> gpus_;
  bool has_device_ = false;
  std::uint64_t first_tag_ = 0;
  std::unique_ptr<tree_watch> trees_;
  std::unique_ptr<gpu_listener> listener_;
  smi_counts heard_{};  // any thread's
};

}  // namespace sluice::kfd
