#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/breaker_store.hpp"
#include "sluice/os/file_watch.hpp"
#include "sluice/os/quiet_thread.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/time.hpp"

namespace sluice {

namespace {

constexpr int retry_ms = 10'000;

std::string name_of(gpu_id gpu) { return "GPU " + std::to_string(static_cast<std::uint32_t>(gpu)); }

class breaker_keeper final : public source {
 public:
  breaker_keeper(std::string path, message_sink say)
      : store_(std::move(path)), say_(std::move(say)) {}
  ~breaker_keeper() override { stop(); }

  std::string_view name() const noexcept override { return "breaker keeper"; }

  result<void> start(source_host& host) override {
    if (!wake_) return last_system_error();
    inbox_ = &host.claim_inbox();
    watch_ = std::make_unique<file_watch>(store_.path());
    stopping_.store(false);
    // Here, so that they are open before anything can be suspended.
    if (watch_->changed()) follow();
    return start_quiet_thread(worker_, [this] { run(); });
  }

  void resync() override {
    resync_.store(true);
    ::eventfd_write(wake_.get(), 1);
  }

  void breaker_changed(const breaker_change& what) override {
    {
      const std::scoped_lock held{mutex_};
      news_.push_back(what);
    }
    ::eventfd_write(wake_.get(), 1);
  }

  void stop() override {
    if (!worker_.joinable()) return;
    stopping_.store(true);
    ::eventfd_write(wake_.get(), 1);
    worker_.join();
    watch_.reset();
  }

 private:
  // Everything below runs on the worker's thread, but for the first follow().

  void run() {
    ::pthread_setname_np(::pthread_self(), "sluice-breakers");
    for (;;) {
      // In this order: what was said before stop() is still written.
      const bool last = stopping_.load();
      take_news();
      write();
      if (last) return;
      if (watch_->changed()) follow();
      if (resync_.exchange(false)) restate();
      std::array<pollfd, 2> sources{{{wake_.get(), POLLIN, 0}, {watch_->fd(), POLLIN, 0}}};
      ::poll(sources.data(), sources.size(), retry_ms);
      eventfd_t count = 0;
      if (sources[0].revents != 0) ::eventfd_read(wake_.get(), &count);
    }
  }

  void take_news() {
    std::vector<breaker_change> news;
    {
      const std::scoped_lock held{mutex_};
      news.swap(news_);
    }
    const wall_time now = wall_time_now();
    for (const breaker_change& each : news) {
      if (!each.open) {
        open_.erase(each.gpu);
        unwritten_.erase(each.gpu);
        closed_.insert(each.gpu);
        continue;
      }
      stored_breaker made{.why = each.why, .first = each.first, .since = now};
      if (each.until != never)
        made.until = now + std::chrono::ceil<std::chrono::milliseconds>(each.until - clock::now());
      open_[each.gpu] = made;
      unwritten_.insert(each.gpu);
      closed_.erase(each.gpu);
      rearmed_.erase(each.gpu);
    }
  }

  void write() {
    if (unwritten_.empty() && closed_.empty()) return;
    stored_breakers add;
    for (const gpu_id gpu : unwritten_) add.emplace(gpu, open_.at(gpu));
    const std::vector<gpu_id> remove{closed_.begin(), closed_.end()};
    std::string message;
    if (!store_.change(add, remove, message)) {
      complain(message +
               "; until this is fixed, 'sluice breaker' does not list this scheduler's breakers, "
               "and a restart forgets them");
      return;
    }
    complained_.clear();
    unwritten_.clear();
    closed_.clear();
  }

  /// The file is another one than before.
  void follow() {
    std::string message;
    const auto stored = store_.read(message);
    if (!stored) {
      complain(message + "; this scheduler keeps the breakers that it read before the error");
      return;
    }
    const wall_time now = wall_time_now();
    for (const auto& [gpu, each] : *stored) {
      if (open_.contains(gpu) || closed_.contains(gpu)) continue;
      if (each.over(now)) {
        closed_.insert(gpu);  // tidies up
        continue;
      }
      open_.emplace(gpu, each);
      rearmed_.erase(gpu);
      const auto number = std::to_string(static_cast<std::uint32_t>(gpu));
      say_(name_of(gpu) + ": breaker open since " + wall_text(each.since) + ": " +
           std::string{words_of(each.why)} +
           (each.first == gpu ? std::string{} : " (on " + name_of(each.first) + ", same hive)") +
           "; see dmesg; when the GPU works again, run: sluice breaker rearm " + number +
           " gpu=" + number);
      push(observation_kind::breaker_kept, gpu, end_of(each, now));
    }
    std::erase_if(open_, [&](const auto& each) {
      if (stored->contains(each.first) || unwritten_.contains(each.first)) return false;
      rearmed_.insert(each.first);
      push(observation_kind::breaker_rearmed, each.first);
      return true;
    });
  }

  /// An observation was lost.
  void restate() {
    const wall_time now = wall_time_now();
    push(observation_kind::resync_begin);
    for (const auto& [gpu, each] : open_)
      push(observation_kind::breaker_kept, gpu, end_of(each, now));
    for (const gpu_id gpu : rearmed_) push(observation_kind::breaker_rearmed, gpu);
    push(observation_kind::resync_end);
  }

  static time_point end_of(const stored_breaker& which, wall_time now) {
    return which.until ? clock::now() + (*which.until - now) : never;
  }

  void push(observation_kind kind, gpu_id gpu = {}, time_point at = {}) {
    observation seen;
    seen.kind = kind;
    seen.gpu = gpu;
    seen.at = at;
    (void)inbox_->push(seen);  // a full inbox asks for a resync
  }

  /// Once, until it is mended.
  void complain(const std::string& sentence) {
    if (std::exchange(complained_, sentence) != sentence) say_(sentence);
  }

  const breaker_store store_;
  const message_sink say_;
  const unique_fd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<file_watch> watch_;
  inbox_producer* inbox_ = nullptr;
  std::mutex mutex_;
  std::vector<breaker_change> news_;  // guarded by mutex_
  std::atomic<bool> stopping_{false};
  std::atomic<bool> resync_{false};
  stored_breakers open_;        // in the scheduler, as far as heard
  std::set<gpu_id> unwritten_;  // of these, not in the file yet
  std::set<gpu_id> closed_;     // not open any more, and perhaps still in the file
  std::set<gpu_id> rearmed_;    // by the file, and not opened since
  std::string complained_;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<source> make_breaker_keeper(std::string path, message_sink say) {
  return std::make_unique<breaker_keeper>(std::move(path), std::move(say));
}

}  // namespace sluice
