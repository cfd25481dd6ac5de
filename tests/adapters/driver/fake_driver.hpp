#pragma once
/// \file
/// A driver whose GPUs, processes and queues the test makes up.

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/survey.hpp"

namespace sluice::test {

/// Threading: any thread. Lifetime: surveys of it end before it does.
class fake_driver {
 public:
  static constexpr gpu_id gpu{4660};

  /// What the process has from now on: compute queues with these ids.
  void show(pid_t pid, const std::vector<std::uint32_t>& queues = {}) {
    const std::scoped_lock held{mutex_};
    auto& now = processes_[pid];
    now.clear();
    for (const std::uint32_t id : queues)
      now.push_back({driver_queue_id{id}, gpu, queue_kind::compute});
  }
  void hide(pid_t pid) {
    const std::scoped_lock held{mutex_};
    processes_.erase(pid);
  }
  /// An event of a survey with events.
  void say(survey_news news) {
    const std::scoped_lock held{mutex_};
    news_.push_back(std::move(news));
    ::eventfd_write(event_.get(), 1);
  }

  /// Whom work_watch::follow() named last, of a survey with events.
  std::vector<pid_t> followed() {
    const std::scoped_lock held{mutex_};
    return followed_;
  }
  int restated() const { return restated_; }
  /// Whether work_watch::follow() can read what shows work.
  void see(bool can) { can_see_ = can; }

  /// Has no more than a survey must have.
  std::unique_ptr<survey> make_survey() { return std::make_unique<least_survey>(*this); }
  std::unique_ptr<survey> make_survey_with_events() {
    return std::make_unique<survey_with_events>(*this);
  }

 private:
  class one_process final : public surveyed_process {
   public:
    one_process(fake_driver& of, pid_t pid) : of_(of), pid_(pid) {}
    result<void> list_queues(std::vector<surveyed_queue>& into) override {
      const std::scoped_lock held{of_.mutex_};
      if (const auto found = of_.processes_.find(pid_); found != of_.processes_.end())
        into = found->second;
      return {};
    }

   private:
    fake_driver& of_;
    const pid_t pid_;
  };

  class least_survey : public survey {
   public:
    explicit least_survey(fake_driver& of) : of_(of) {}
    std::string_view name() const noexcept override { return "fake"; }
    std::span<const surveyed_gpu> gpus() override { return of_.gpus_; }
    result<void> list_processes(std::vector<pid_t>& into) override {
      const std::scoped_lock held{of_.mutex_};
      for (const auto& [pid, queues] : of_.processes_) into.push_back(pid);
      return {};
    }
    std::unique_ptr<surveyed_process> open(const process_identity& who) override {
      return std::make_unique<one_process>(of_, who.pid);
    }

   protected:
    fake_driver& of_;
  };

  class recorded_watch final : public work_watch {
   public:
    explicit recorded_watch(fake_driver& of) : of_(of) {}
    void pace(duration) noexcept override {}
    void restate() noexcept override { ++of_.restated_; }
    bool can_see() const noexcept override { return of_.can_see_; }
    void follow(std::span<const process> online) override {
      const std::scoped_lock held{of_.mutex_};
      of_.followed_.clear();
      for (const process& each : online) of_.followed_.push_back(each.who.pid);
    }

   private:
    fake_driver& of_;
  };

  class survey_with_events final : public least_survey {
   public:
    using least_survey::least_survey;
    void watch(int epoll, std::uint64_t first_tag) override {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = first_tag + 1;
      (void)::epoll_ctl(epoll, EPOLL_CTL_ADD, of_.event_.get(), &event);
    }
    std::unique_ptr<work_watch> watch_work(inbox_producer&) override {
      return std::make_unique<recorded_watch>(of_);
    }
    void read_events(std::uint64_t, survey_news& news) override {
      const std::scoped_lock held{of_.mutex_};
      eventfd_t count = 0;
      ::eventfd_read(of_.event_.get(), &count);
      for (survey_news& each : std::exchange(of_.news_, {})) {
        news.look = news.look || each.look;
        news.queues_follow = news.queues_follow || each.queues_follow;
        news.resets.insert(news.resets.end(), each.resets.begin(), each.resets.end());
      }
    }
  };

  std::mutex mutex_;
  const std::vector<surveyed_gpu> gpus_{{gpu, 0, 24}};
  std::map<pid_t, std::vector<surveyed_queue>> processes_;
  std::vector<survey_news> news_;
  std::vector<pid_t> followed_;
  std::atomic<int> restated_{0};
  std::atomic<bool> can_see_{true};
  const unique_fd event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

}  // namespace sluice::test
