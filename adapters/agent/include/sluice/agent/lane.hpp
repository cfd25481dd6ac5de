#pragma once
/// \file
/// A thread per target: what a driver's acting side is made of whose calls block.

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/acting.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

/// How lanes tell their owner that there is something to take.
///
/// Threading: any thread. Lifetime: what it was made of outlives it.
class owner_bell {
 public:
  /// \param ready the eventfd that the owner sleeps on.
  /// \param take_reports as acting_host::take_reports.
  owner_bell(int ready, const std::function<bool()>& take_reports) noexcept
      : ready_(ready), take_reports_(take_reports) {}

  /// There is a report.
  void report() const {
    if (!take_reports_ || !take_reports_()) ring();
  }
  /// Something else has changed.
  void ring() const noexcept { ::eventfd_write(ready_, 1); }

 private:
  const int ready_;
  const std::function<bool()>& take_reports_;
};

/// One target's thread: it takes batches from its owner and gives it reports.
///
/// Threading: the public members belong to the owner's thread, or to a lane's that takes reports in
///            its place (acting_host::take_reports); the protected ones to the lane's. Between
///            them: one batch slot, one ring of reports, atomics and an eventfd. All signals are
///            blocked in it.
/// Lifetime:  the owner bell outlives it. Before it is destroyed it is end()ed: run() is of a class
///            that is destroyed before this one.
class lane {
 public:
  struct progress {
    time_point call_since{};  ///< Epoch when in no driver call.
    gpu_id gpu{};             ///< Of the batch; none in other calls.
  };

  /// \param wake an eventfd.
  lane(const owner_bell& owner, unique_fd wake, process_id target) noexcept
      : wake_(std::move(wake)), target_(target), owner_(owner) {}
  virtual ~lane() = default;
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;

  /// \return the system's error when no thread can be had.
  [[nodiscard]] virtual result<void> start();
  /// Makes it leave() without waiting for somebody to take reports, and joins it.
  void end() noexcept;

  process_id target() const noexcept { return target_; }
  /// Performed at the latest once it is rung for.
  /// \return false while the previous batch is in flight.
  bool submit(const batch& work) noexcept;
  bool pop(report& out) { return reports_.pop(out); }
  /// Lets go of the target and ends the thread.
  void leave() noexcept;
  /// leave(), and no longer wait for somebody to take reports.
  void abandon() noexcept;
  void ring() noexcept { ::eventfd_write(wake_.get(), 1); }
  /// Whether the target has a status to take, or may have; for a side that hears of SIGCHLD. Takes
  /// none and wakes nobody.
  virtual bool child_changed() const noexcept { return false; }
  /// The batch that submit() took last is not answered yet.
  bool in_flight() const noexcept { return in_flight_.load(std::memory_order_acquire); }
  /// The last batch that submit() took.
  const batch& last_batch() const noexcept { return slot_; }
  /// The thread has done all it had to; join() is a matter of microseconds.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  void join() { thread_.join(); }
  /// The driver keeps something suspended and will not let go of it while this process lives.
  bool stranded() const noexcept { return stranded_.load(std::memory_order_acquire); }
  progress seen() const noexcept;

 protected:
  /// Publishes that the lane is inside the driver, and for which GPU.
  class call_scope {
   public:
    explicit call_scope(lane& owner, gpu_id gpu = gpu_id::none) noexcept;
    ~call_scope() { owner_.call_since_.store(0, std::memory_order_release); }
    call_scope(const call_scope&) = delete;
    call_scope& operator=(const call_scope&) = delete;

   private:
    lane& owner_;
  };

  /// The thread's life. Its last report is `attached` with an error, or `detached`.
  virtual void run() = 0;
  /// While a report has to wait for its owner: what must not wait with it.
  virtual void while_full() {}

  /// Waits while the owner does not take reports, unless it is abandoned.
  void say(const report& what);
  /// \param why a sentence, of an error.
  void say_attached(const error_code& error, std::string_view why = {});
  void say_detached();
  void say_queue(const queue_info& added);
  void say_removed(driver_queue_id queue);
  /// Answers the batch in flight. `what.result` says when and how, and of each queue what became of
  /// it; the rest is filled in.
  void answer(report& what);

  bool leaving() const noexcept { return leaving_.load(std::memory_order_acquire); }
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  /// \return what it was before.
  bool strand(bool so) noexcept { return stranded_.exchange(so, std::memory_order_acq_rel); }
  const owner_bell& owner() const noexcept { return owner_; }
  /// Readable when the owner rings. Wait for it by edges (EPOLLET): it need not be read then.
  int wake_fd() const noexcept { return wake_.get(); }

 private:
  const unique_fd wake_;
  const process_id target_;
  const owner_bell& owner_;

  // The owner stores slot_ when in_flight_ is false, then sets it (release); the lane takes the
  // slot after reading it (acquire), and clears it (release) once the batch is performed.
  batch slot_;
  std::atomic<bool> in_flight_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> stranded_{false};
  std::atomic<duration::rep> call_since_{0};
  std::atomic<std::uint32_t> call_gpu_{0};
  boost::lockfree::spsc_queue<report, boost::lockfree::capacity<32>> reports_;
  std::thread thread_;
};

/// All lanes of an acting side.
///
/// Threading: the owner's thread. Lifetime: destruction ends the lanes, for which it waits as long
///            as the driver makes it.
template <class Lane>
class lane_list {
 public:
  lane_list() = default;
  ~lane_list() {
    for (auto* list : {&active_, &ending_})
      for (const auto& each : *list) each->abandon();
    for (auto* list : {&active_, &ending_})
      for (const auto& each : *list) each->end();
  }
  lane_list(const lane_list&) = delete;
  lane_list& operator=(const lane_list&) = delete;

  /// Starts it. \return the system's error when no thread can be had.
  [[nodiscard]] result<void> add(std::unique_ptr<Lane> made) {
    if (const auto started = made->start(); !started) return started.error();
    active_.push_back(std::move(made));
    return {};
  }
  Lane* find(process_id target) const noexcept {
    for (const auto& each : active_)
      if (each->target() == target) return each.get();
    return nullptr;
  }
  /// Those that have not said their last.
  const std::vector<std::unique_ptr<Lane>>& active() const noexcept { return active_; }
  std::size_t size() const noexcept { return active_.size() + ending_.size(); }

  /// Takes one report, round and round, so that a talkative target does not keep the others
  /// waiting. \return whose; null when there is none.
  Lane* next(report& out) {
    for (std::size_t step = 0; step < active_.size(); ++step) {
      const std::size_t index = (next_ + step) % active_.size();
      if (!active_[index]->pop(out)) continue;
      next_ = index + 1;
      return active_[index].get();
    }
    return nullptr;
  }
  /// Whether a lane says nothing after this report.
  static bool is_last(const report& what) noexcept {
    return what.kind == report_kind::detached ||
           (what.kind == report_kind::attached && what.error.where != plain_error::domain::none);
  }
  /// It has said its last. It is joined by join_finished(), not here: the caller may be another
  /// lane, which must not wait.
  /// \return the answer to a batch that came too late for it, to be said before its last.
  std::optional<report> retire(Lane& ended) {
    std::optional<report> answer;
    if (ended.in_flight()) answer = unperformed(ended.last_batch(), outcome::target_gone, 0);
    for (auto each = active_.begin(); each != active_.end(); ++each) {
      if (each->get() != &ended) continue;
      ending_.push_back(std::move(*each));
      active_.erase(each);
      break;
    }
    return answer;
  }
  void join_finished() {
    std::erase_if(ending_, [](const std::unique_ptr<Lane>& each) {
      if (!each->finished()) return false;
      each->join();
      return true;
    });
  }
  void children_changed() noexcept {
    for (const auto* list : {&active_, &ending_})
      for (const auto& each : *list)
        if (each->child_changed()) each->ring();
  }
  bool stranded() const noexcept {
    for (const auto& each : active_)
      if (each->stranded()) return true;
    return false;
  }
  /// All leave; join_finished() joins each that has.
  void abandon_all() {
    for (auto& each : active_) ending_.push_back(std::move(each));
    active_.clear();
    for (const auto& each : ending_) each->abandon();
  }

 private:
  std::vector<std::unique_ptr<Lane>> active_;
  std::vector<std::unique_ptr<Lane>> ending_;  // said their last, or told to stop
  std::size_t next_ = 0;
};

/// Which GPUs are lost because a driver call for them does not come back.
class stuck_gpus {
 public:
  struct call {
    gpu_id gpu{};
    time_point since{};  ///< Epoch: in none.
  };
  explicit stuck_gpus(duration after) noexcept : after_(after) {}

  /// \param calls all that are under way.
  /// \return those that are lost since the last look. One whose calls come back may be lost, and
  ///         told of, again: an operator may have re-armed it.
  std::vector<call> look(const std::vector<call>& calls, time_point now);

 private:
  bool is_stuck(const call& one, time_point now) const noexcept {
    return one.gpu != gpu_id::none && one.since != time_point{} && now - one.since >= after_;
  }

  const duration after_;
  std::vector<gpu_id> lost_;
};

/// As a sentence.
std::string words_of(const stuck_gpus::call& lost, time_point now);

}  // namespace sluice::agent
#pragma GCC visibility pop
