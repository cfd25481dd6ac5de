#pragma once
/// \file
/// Looks at the pointers of online queues at a pace, on a thread of its own, and says what changed.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/inbox.hpp"
#include "sluice/kfd/queue_pointers.hpp"
#include "sluice/online_work.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

/// A compute queue of an online process, as discovery knows it.
struct online_queue {
  gpu_id gpu{};
  pointer_addresses at{};  ///< Zeros: nobody says where they are.
  std::uint64_t ring_base = 0;
  bool aql = false;

  friend bool operator==(const online_queue&, const online_queue&) = default;
};

struct online_process {
  process_identity who{};
  std::uint64_t change =
      0;  ///< Another number after its queues changed, though they look the same.
  std::vector<online_queue> queues{};

  friend bool operator==(const online_process&, const online_process&) = default;
};

/// One process under observation: what its pointers say, GPU by GPU.
///
/// A queue whose packets are all consumed has *finished* when the completion signal of its last
/// packet is at 0 or below, where it has one and ring and signal can be read: that is the one word
/// of a packet that is read. (Assumed: the packets before it have ended then, which holds of
/// in-order streams, and the words stay until the ring comes round.) Where that does not say,
/// cu_occupancy does where the file exists: 0 twice in a row, for a queue that waits for its turn
/// on an oversubscribed GPU occupies nothing for a moment.
///
/// Threading: one thread. Cost: make() opens and allocates, look() does not.
class pointer_view {
 public:
  /// What a GPU's queues of this process said, and what is to be told of it.
  struct place {
    gpu_id gpu{};
    online_work work = online_work::unknown;
    std::uint64_t packets = 0;  ///< That came, not told yet.
    online_work told = online_work::unknown;
    bool ever_told = false;
    time_point told_at{};
    // cu_occupancy:
    std::string occupancy{};  ///< Its path; empty: not there.
    time_point occupancy_due{};
    bool occupancy_read = false;
    int empty_looks = 0;
  };

  /// \param sysfs root of the driver's tree.
  [[nodiscard]] static result<std::unique_ptr<pointer_view>> make(const online_process& what,
                                                                  const std::string& sysfs);

  /// Brings places() up to date: unknown throughout where nothing can be read.
  void look(time_point now) noexcept;
  /// The next look is as the first. Nobody looked for a while.
  void begin_anew() noexcept;
  std::vector<place>& places() noexcept { return places_; }
  const process_identity& who() const noexcept { return who_; }
  /// Queues whose pointers cannot be read, as of the last look.
  std::size_t unreadable() const noexcept { return unreadable_; }

 private:
  struct queue {
    std::size_t place = 0;
    bool aql = false;
    std::uint64_t ring_base = 0;
    std::uint64_t packets = 0;  ///< Of its ring; 0: no packet can be found.
    bool seen = false;
    std::uint64_t write = 0;
    std::uint64_t ended = 0;      ///< All packets before this one have ended.
    std::uint64_t signal_of = 0;  ///< The packet before this one has the signal...
    std::uint64_t signal = 0;     ///< ...at this address; 0: none.
  };
  enum class ending : std::uint8_t { ended, runs, not_shown };

  pointer_view(const process_identity& who, std::unique_ptr<queue_pointers> pointers)
      : who_(who), pointers_(std::move(pointers)) {}
  ending end_of(queue& which) noexcept;
  static ending occupancy_of(place& where, time_point now) noexcept;

  const process_identity who_;
  std::unique_ptr<queue_pointers> pointers_;
  std::vector<queue> queues_;  ///< As `pointers_` watches them.
  std::vector<place> places_;
  std::vector<std::size_t> hidden_;  ///< By place: queues without addresses.
  std::vector<online_work> found_;   ///< By place; scratch.
  std::vector<char> not_shown_;      ///< By place; scratch.
  std::size_t unreadable_ = 0;
  bool over_ = false;  ///< The process, or its program.
};

/// The thread. Observations: one for each process and GPU whose work changed or that got packets,
/// at once, but no more than one in a millisecond.
///
/// Threading: each call says which.
/// Lifetime:  the inbox outlives it; stop() or the destructor ends the thread.
class pointer_watch {
 public:
  /// \param say hears, once for each process, why its pointers cannot be read. On the thread that
  ///        calls set().
  pointer_watch(std::string sysfs, inbox_producer& inbox, message_sink say);
  ~pointer_watch() { stop(); }
  pointer_watch(const pointer_watch&) = delete;
  pointer_watch& operator=(const pointer_watch&) = delete;

  /// Zero: not at all. Any thread; does not block.
  void pace(duration every) noexcept;
  duration pace() const noexcept { return duration{every_.load()}; }
  /// Tells everything again, at the next look. Any thread.
  void restate() noexcept { restate_.store(true); }
  /// Whom to look at. One thread; it starts the thread when there is somebody and pace() is not
  /// zero. Opens what is new, so it may block.
  void set(std::vector<online_process> who);
  /// Forgets who is none of these, for while nobody calls set(): what is open of a process would
  /// stay so after its end. On set()'s thread.
  void retain(const std::vector<online_process>& who);
  void stop() noexcept;

 private:
  struct change {
    process_identity who{};
    std::unique_ptr<pointer_view> fresh{};  ///< Null: goes on as it is.
  };

  void run();
  void take_changes();
  void look(time_point now, bool all) noexcept;

  const std::string sysfs_;
  inbox_producer& inbox_;
  const message_sink say_;
  std::atomic<duration::rep> every_{0};
  std::atomic<bool> restate_{false};
  std::atomic<bool> stopping_{false};
  const unique_fd wake_;
  const unique_fd timer_;
  std::thread worker_;
  // set()'s thread.
  std::vector<online_process> known_;
  std::vector<process_identity> complained_;
  bool refused_ = false;
  // Handed over.
  std::mutex mutex_;
  std::optional<std::vector<change>> changes_;
  std::atomic<bool> changed_{false};
  // The worker's.
  std::vector<std::unique_ptr<pointer_view>> views_;
};

}  // namespace sluice::kfd
