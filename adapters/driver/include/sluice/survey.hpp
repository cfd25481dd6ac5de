#pragma once
/// \file
/// The port through which a discovery (sluice/discovery.hpp) reads a driver: its GPUs, the
/// processes that use it, and their queues. Implement it to add a driver; README.md beside this
/// folder says in which order.

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/roles/process_traits.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

class inbox_producer;

struct surveyed_gpu {
  gpu_id id{};
  std::uint64_t reset_domain = 0;  ///< GPUs with the same number are reset together. 0: alone.
  std::uint32_t slots = 0;         ///< Hardware slots for compute queues. 0: not known.
};

struct surveyed_queue {
  driver_queue_id id{};  ///< Unique within the process.
  gpu_id gpu{};
  queue_kind kind{};
  /// Differs between two queues that had the same id one after the other. 0: the driver does not
  /// reuse ids.
  std::uint64_t incarnation = 0;

  friend auto operator<=>(const surveyed_queue&, const surveyed_queue&) = default;
};

/// A process that uses the driver, until it ends or an exec is seen.
///
/// Threading: the survey's. Lifetime: the survey outlives it.
class surveyed_process {
 public:
  virtual ~surveyed_process() = default;
  /// Appends its queues to `into`, in any order.
  /// \return the system's error if some could not be read; `into` then has the others. Discovery
  ///         logs a lack of descriptors, and tries again at the next look.
  virtual result<void> list_queues(std::vector<surveyed_queue>& into) = 0;
  /// Whether the queues are those that list_queues() listed last, and no exec came between if
  /// queues can outlive one. Return true only from a cheap check. It may miss rare changes:
  /// discovery lists the queues of every process at least once in sixteen looks, and those of
  /// online processes at each look.
  virtual bool unchanged() noexcept { return false; }
};

/// Watches whether the queues of online processes have work, and pushes what changed to its inbox
/// as observation_kind::pointers_seen.
class work_watch {
 public:
  /// An online process with compute queues.
  struct process {
    process_identity who{};
    std::uint64_t change = 0;              ///< Differs after each change of its queues.
    std::vector<surveyed_queue> queues{};  ///< Its compute queues, by id.
  };

  virtual ~work_watch() = default;
  /// As source::poll_pointers(). Any thread; does not block.
  virtual void pace(duration every) noexcept = 0;
  /// Pushes the state of every process again, soon. Any thread; does not block.
  virtual void restate() noexcept = 0;
  /// Called after each look, and after pace() became zero or another number than zero, with all
  /// online processes that do not mark their requests. If pace() is zero, only closes what is open.
  /// On the survey's thread.
  virtual void follow(std::span<const process> online) = 0;
  /// Whether follow() could read what shows work, for gpu_view::can_see_work. Asked after it, on
  /// its thread.
  virtual bool can_see() const noexcept { return true; }
};

/// What the driver's events reported.
struct survey_news {
  bool look = false;  ///< Something may have changed: look now.
  /// A process began to use the driver, and no event will announce its queues: after this look,
  /// repeat it at doubling intervals.
  bool queues_follow = false;
  std::vector<gpu_id> resets{};  ///< GPUs that were reset or are about to be.
};

/// Reads a driver. Discovery looks when read_events() asks for it, and every second.
///
/// Threading: one thread at a time, but check() before the start and watch_work() may be called
///            while another thread looks.
/// Errors:    what cannot be read is left out; a later look finds it.
class survey {
 public:
  survey() = default;
  virtual ~survey() = default;
  survey(const survey&) = delete;
  survey& operator=(const survey&) = delete;

  /// The driver's name, as in messages.
  virtual std::string_view name() const noexcept = 0;
  /// Returns the GPUs, which stay valid until the next call. Called at each look, so keep them if
  /// reading them is slow.
  virtual std::span<const surveyed_gpu> gpus() = 0;
  /// Appends the pid of each process that uses the driver to `into`. Called at each look.
  /// \return the system's error if they cannot be read. A process that is not listed counts as
  ///         ended.
  virtual result<void> list_processes(std::vector<pid_t>& into) = 0;
  /// Called when a process appears, and again after each exec of it. Never returns null; what
  /// cannot be opened is left to list_queues().
  virtual std::unique_ptr<surveyed_process> open(const process_identity& who) = 0;

  // The functions below are optional.

  /// Checks whether the driver is there and readable: before the start, then after each look.
  /// \param message on failure "cannot read WHAT: WHY".
  virtual result<void> check(std::string& message) {
    (void)message;
    return {};
  }
  /// What a user should do if the first check() fails, as the end of a sentence.
  virtual std::string remedy() const { return "load the driver"; }
  /// What check() reads, as in "LOCATION can be read again".
  virtual std::string location() const { return std::string{name()}; }

  /// Begins to watch for events: registers descriptors with `epoll`, now or later, with tags from
  /// `first_tag` on as their data. Called before the first look, and again with another `epoll`
  /// after each restart.
  virtual void watch(int epoll, std::uint64_t first_tag) {
    (void)epoll;
    (void)first_tag;
  }
  /// Reads all events of the descriptor with this tag.
  virtual void read_events(std::uint64_t tag, survey_news& news) {
    (void)tag;
    (void)news;
  }
  /// Watches what has appeared since. Called after each look.
  /// \return true if events may have been missed: look again soon.
  virtual bool renew_watches() { return false; }

  /// Lists the traits of all compute queues that rules about queues use. Called only with such
  /// rules, after a queue came or went.
  /// \param message on failure one sentence for the log.
  virtual result<std::vector<std::pair<pid_t, roles::queue_traits>>> list_queue_traits(
      std::string& message) {
    message = "driver " + std::string{name()} +
              " reports no rings and priorities of queues; the rules about queues ([roles] rings, "
              "queue_priority) have no effect";
    return errc::not_supported;
  }
  /// \return null if this process cannot see the work: then only clients and the acting side report
  ///         online work. Else policies see gpu_view::can_see_work on the GPUs of this survey, as
  ///         long as work_watch::can_see() is true.
  virtual std::unique_ptr<work_watch> watch_work(inbox_producer& inbox) {
    (void)inbox;
    return nullptr;
  }
};

}  // namespace sluice
#pragma GCC visibility pop
