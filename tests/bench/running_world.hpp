#pragma once
/// \file
/// A scheduler on its own loop and thread, with one offline process of 8 queues on an instant
/// driver, and a client of another thread whose work suspends it for a fixed timeslice.

#include "instant_backend.hpp"
#include "quick_world.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::bench {

/// The batches so far, for another thread, which may sleep until one comes.
struct batch_news {
  std::atomic<std::uint64_t> suspends{0};
  std::atomic<std::uint64_t> resumes{0};
  std::atomic<time_point> resumed_at{};
  const unique_fd fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void add(command_kind kind) {
    if (kind == command_kind::resume) {
      resumed_at.store(clock::now());
      resumes.fetch_add(1);
    } else {
      suspends.fetch_add(1);
    }
    ::eventfd_write(fd.get(), 1);
  }
};

/// Passes everything on, and remembers when online work came as the policy was told.
class overheard_policy final : public policy {
 public:
  overheard_policy(std::unique_ptr<policy> other, std::atomic<time_point>& arrived)
      : other_(std::move(other)), arrived_(arrived) {}
  std::string_view name() const noexcept override { return other_->name(); }
  void decide(const snapshot& seen, decision_sink& out) override {
    for (const event& each : seen.events) {
      if (each.kind == event_kind::online_begin) arrived_.store(each.at);
    }
    other_->decide(seen, out);
  }

 private:
  const std::unique_ptr<policy> other_;
  std::atomic<time_point>& arrived_;
};

/// Says that the affected process is there.
class one_process final : public source {
 public:
  std::string_view name() const noexcept override { return "one process"; }
  result<void> start(source_host& host) override {
    auto& to = host.claim_inbox();
    to.push(process_seen(affected_pid, role::offline));
    for (std::uint32_t number = 0; number < affected_queues; ++number) {
      to.push(queue_seen(affected_pid, number, shared_gpu));
    }
    return {};
  }
  void resync() override {}
  void stop() override {}
};

/// Threading: one thread, which is not the scheduler's.
class running_world {
 public:
  explicit running_world(duration slice) : slice_(slice) {
    auto driver = std::make_unique<test::instant_backend>();
    driver->add(affected_pid, shared_gpu, affected_queues);
    driver->on_submit([this](const batch& work) { news_.add(work.kind); });
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(std::make_unique<one_process>());
    auto loop = reactor::create();
    if (!loop) return;
    backend_ = (*loop)->backend();
    auto config = bench_config();
    config.max_suspend = 1s;
    auto made = scheduler::create(
        config, std::move(*loop), std::move(driver),
        std::make_unique<overheard_policy>(make_fixed_timeslice({.slice = slice}), arrived_),
        std::move(sources));
    if (!made || !(*made)->start()) return;
    scheduler_ = std::move(*made);
    if (auto client = scheduler_->register_client({"bench", {shared_gpu}})) {
      client_.emplace(std::move(*client));
    }
    thread_ = std::thread([this] { scheduler_->run(); });
  }
  ~running_world() {
    if (scheduler_) scheduler_->stop();
    if (thread_.joinable()) thread_.join();
  }
  running_world(const running_world&) = delete;
  running_world& operator=(const running_world&) = delete;

  reactor_backend backend() const noexcept { return backend_; }

  /// begin(), end() once it is suspended, and back. \return how long after the slice's end the
  /// batch that resumes was handed over; nothing when it was not suspended, or not resumed.
  std::optional<duration> cycle() {
    if (!client_) return {};
    const auto suspends = news_.suspends.load();
    const auto resumes = news_.resumes.load();
    client_->begin();
    const bool suspended = wait_for([&] { return news_.suspends.load() != suspends; });
    client_->end();
    if (!suspended || !wait_for([&] { return news_.resumes.load() != resumes; })) return {};
    return news_.resumed_at.load() - (arrived_.load() + slice_);
  }

  /// Until it has been attached to. \return whether it was.
  bool warm_up() {
    for (int i = 0; i < 500 && scheduler_ && scheduler_->stats().attaches == 0; ++i) {
      std::this_thread::sleep_for(10ms);
    }
    return cycle().has_value();
  }

 private:
  template <class Predicate>
  bool wait_for(Predicate reached) const {
    while (!reached()) {
      pollfd ready{news_.fd.get(), POLLIN, 0};
      if (::poll(&ready, 1, 2000) != 1) return false;
      eventfd_t ignored = 0;
      ::eventfd_read(news_.fd.get(), &ignored);
    }
    return true;
  }

  const duration slice_;
  batch_news news_;
  std::atomic<time_point> arrived_{};
  reactor_backend backend_{};
  std::unique_ptr<scheduler> scheduler_;
  std::optional<online_client> client_;
  std::thread thread_;
};

}  // namespace sluice::bench
