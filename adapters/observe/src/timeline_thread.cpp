#include "sluice/observe/timeline_thread.hpp"

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::observe {
namespace {

/// How long the end may have to wait, and what a program that is killed may lack.
constexpr int look_every_ms = 100;
constexpr std::size_t entries_at_once = 64;

}  // namespace

class timeline_thread::impl {
 public:
  impl(std::unique_ptr<journal> from, std::unique_ptr<trace_file> to, timeline_options options)
      : from_(std::move(from)), to_(std::move(to)), timeline_(*to_, std::move(options)) {}
  ~impl() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
  }

  result<void> start() {
    return start_quiet_thread(thread_, [this] { run(); });
  }
  journal_sink& sink() noexcept { return *from_; }

 private:
  void run() {
    for (;;) {
      const bool last = stopping_.load();
      take();
      to_->flush();
      if (last) break;
      pollfd ready{from_->ready_fd(), POLLIN, 0};
      if (from_->sleep()) ::poll(&ready, 1, look_every_ms);
    }
    timeline_.finish(clock::now());
  }
  void take() {
    std::array<journal_entry, entries_at_once> some;
    while (const std::size_t count = from_->take(some)) {
      if (const std::uint64_t lost = from_->lost(); lost != lost_)
        timeline_.missed(lost - std::exchange(lost_, lost));
      for (const journal_entry& each : std::span{some}.first(count)) timeline_.hear(each);
    }
  }

  std::unique_ptr<journal> from_;
  std::unique_ptr<trace_file> to_;
  timeline timeline_;
  std::uint64_t lost_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

timeline_thread::timeline_thread(std::unique_ptr<impl> body) noexcept : impl_(std::move(body)) {}
timeline_thread::~timeline_thread() = default;

result<std::unique_ptr<timeline_thread>> timeline_thread::start(const std::string& path,
                                                                timeline_options options) {
  auto from = journal::create();
  if (!from) return from.error();
  auto to = trace_file::create(path);
  if (!to) return to.error();
  auto body = std::make_unique<impl>(std::move(*from), std::move(*to), std::move(options));
  if (const auto started = body->start(); !started) return started.error();
  return std::unique_ptr<timeline_thread>{new timeline_thread{std::move(body)}};
}

journal_sink& timeline_thread::sink() noexcept { return impl_->sink(); }

}  // namespace sluice::observe
