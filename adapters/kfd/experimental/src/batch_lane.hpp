#pragma once
/// \file
/// One GPU's thread for the batch commands of a patched driver (uapi_batch.hpp).

#include "target_holds.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/agent/lane.hpp"
#include "sluice/backend.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/lanes.hpp"
#include "sluice/kfd/uapi_batch.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

/// The batch commands on one opened device, and whether they are to be used.
///
/// Threading: any thread.
class batch_commands {
 public:
  explicit batch_commands(const device& node) noexcept : node_(node) {}

  /// \return the system's error when the call was refused as a whole.
  result<int> unmap(std::span<uapi::kfd_batch_queue_entry> entries) const noexcept;
  result<int> remap(std::span<uapi::kfd_batch_queue_entry> entries) const noexcept;
  /// Makes them count as offline, or takes that back.
  result<int> mark(std::span<uapi::kfd_batch_queue_entry> entries) const noexcept;
  result<int> unmark(std::span<uapi::kfd_batch_queue_entry> entries) const noexcept;
  /// What marked queues may have of the GPU's slots; 100 ends the limit.
  result<int> reserve(gpu_id gpu, std::uint32_t offline_percent) const noexcept;

  bool usable() const noexcept { return usable_.load(std::memory_order_acquire); }
  void use() noexcept { usable_.store(true, std::memory_order_release); }
  /// A call was refused for no known reason: maps everything that this process holds, and the
  /// commands are not used again. When even that is refused, stranded() is true.
  void give_up(const error_code& why) noexcept;
  /// Returns whether give_up() is done: only then stranded() tells.
  bool given_up() const noexcept { return given_up_.load(std::memory_order_acquire); }
  /// Nothing but the end of this process maps what it holds.
  bool stranded() const noexcept { return stranded_.load(std::memory_order_acquire); }
  /// errno of the call that ended their use.
  int reason() const noexcept { return reason_.load(std::memory_order_acquire); }
  /// Maps what is held of the target, whose memory is gone: nothing, then, unless a batch has met
  /// queues of the program that it runs now.
  void map_all(target_holds& whose) noexcept;
  /// Maps what is held of the target, which is let go of, and takes its marks back.
  void release(target_holds& whose) noexcept;

 private:
  const device& node_;
  std::atomic<bool> usable_{false};
  std::atomic<bool> given_up_{false};
  std::atomic<bool> stranded_{false};
  std::atomic<int> reason_{0};
};

/// Takes everything that was submitted for its GPU since the last call, of whatever targets, and
/// performs it as one call for the suspends and one for the resumes. Also limits the slots of
/// marked queues, and marks them.
///
/// Threading: as lane's.
class batch_lane {
 public:
  batch_lane(batch_commands& commands, gpu_id gpu, const agent::owner_bell& owner, unique_fd wake);
  ~batch_lane();
  batch_lane(const batch_lane&) = delete;
  batch_lane& operator=(const batch_lane&) = delete;

  /// \return the system's error when no thread can be had.
  result<void> start();
  gpu_id gpu() const noexcept { return gpu_; }
  /// \return false when too much waits already. Performed after flush().
  bool submit(const batch& work, std::shared_ptr<target_holds> whose);
  /// Limits what marked queues may have of the slots, after what was submitted before, and after
  /// the marks that were asked for before; 100 ends it. A `reserved` report answers, also later,
  /// with an error, when a queue could not be marked: then the limit has been ended. An end that
  /// the driver refuses is tried again until it is taken, whatever the error; giving up the
  /// commands and the thread's end end it, too. \return false when too much waits already.
  bool reserve(std::uint32_t offline_percent);
  /// \return false when too many wait already.
  bool mark(driver_queue_id queue, std::shared_ptr<target_holds> whose);
  void flush() noexcept;
  bool pop(report& out) { return reports_.pop(out); }
  /// Epoch when in no driver call.
  time_point call_since() const noexcept {
    return time_point{duration{call_since_.load(std::memory_order_acquire)}};
  }
  void end() noexcept;
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }

 private:
  static constexpr std::size_t most_waiting = 512;  ///< Targets, for each has one batch at a time.
  static constexpr std::size_t most_marks = uapi::KFD_BATCH_MAX_QUEUES;
  struct request {
    batch work;  ///< Number 0: of the owner's own.
    std::shared_ptr<target_holds> whose;
    std::optional<std::uint32_t> offline_percent = {};  ///< Then this is wanted, and no batch.
  };
  struct mark_request {
    driver_queue_id queue{};
    std::shared_ptr<target_holds> whose;
  };

  void run();
  /// Performs the requests of that kind, as many calls as the driver's limit asks for.
  void perform(command_kind kind, std::span<request> among);
  void call(command_kind kind, std::span<request*> which);
  void mark_all();
  void limit(std::uint32_t offline_percent);
  /// \return what the driver said.
  error_code set_limit(std::uint32_t offline_percent);
  /// Ends a limit that nobody wants any more, when it is time to try.
  void end_unwanted_limit();
  void say_reserved(std::uint32_t offline_percent, const error_code& refused);
  void say();
  void answer(const request& asked, const error_code& refused,
              std::span<const uapi::kfd_batch_queue_entry> entries, time_point started,
              time_point finished);

  batch_commands& commands_;
  const gpu_id gpu_;
  const agent::owner_bell& owner_;
  const unique_fd wake_;
  bool unflushed_ = false;  // The owner's.
  boost::lockfree::spsc_queue<request, boost::lockfree::capacity<most_waiting>> requests_;
  boost::lockfree::spsc_queue<mark_request, boost::lockfree::capacity<most_marks>> marks_;
  boost::lockfree::spsc_queue<report, boost::lockfree::capacity<most_waiting>> reports_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  std::atomic<duration::rep> call_since_{0};
  std::thread thread_;

  // The thread's only; their capacity is there from the start.
  std::vector<request> taken_;
  std::vector<request*> chosen_;
  std::vector<uapi::kfd_batch_queue_entry> entries_;
  std::vector<mark_request> taken_marks_;
  bool limited_ = false;
  time_point end_again_ = never;  ///< The end of the limit was refused: when it is tried again.
  error_code not_marked_;         ///< Why queues of the limit that comes are not.
  report report_;
};

}  // namespace sluice::kfd
