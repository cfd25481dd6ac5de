#pragma once
/// \file
/// Requests of online processes that mark none themselves: what is seen of their work, as marks.

#include "front_desk.hpp"
#include "table.hpp"

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/online_work.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// How long no work may be seen before a request counts as ended. Between two kernels of a request
/// there are gaps, too: to end it there costs offline work a resume and a suspend, and the request
/// about as much; to wait costs offline work that time. It is the time that would have cost least
/// for the gaps seen so far.
class linger {
 public:
  void note(duration gap) noexcept;
  /// \param early what it costs to end a request in one of its gaps.
  [[nodiscard]] duration best(duration early) const noexcept;

 private:
  /// Gaps of up to 32 us, 64 us, and so on.
  std::array<std::uint32_t, 20> counts_{};
  std::uint32_t noted_ = 0;
};

/// Each online process that has work becomes a client, whose requests are the times between two
/// pauses. Where the end of work is not seen, a request ends a fixed time after the last
/// submission. A process of which a client has registered is left to that.
///
/// Threading: reactor thread. Cost: a look costs a comparison per online process; it allocates when
/// one appears.
class seen_requests {
 public:
  /// \param marks hears which processes mark their requests, as backend::marks_requests().
  seen_requests(const scheduler_config& config, table& world, std::shared_ptr<front_desk> desk,
                std::function<void(pid_t pid, bool so)> marks)
      : config_(config), table_(world), desk_(std::move(desk)), marks_(std::move(marks)) {}

  /// \param seen of kind pointers_seen, of a process that is not marked.
  void observe(const observation& seen);
  /// Ends what has ended; before the clients are looked at.
  void work(time_point now);
  [[nodiscard]] time_point next() const noexcept { return next_; }
  /// How often work is to be looked at. Zero: not at all.
  [[nodiscard]] duration interval(time_point now) const noexcept;
  /// Looks have ended: so have all requests.
  void forget() noexcept;

  /// A client of that process has registered, or has left.
  void client_came(pid_t pid);
  void client_left(pid_t pid) noexcept;
  /// Whether a client marks the requests of that process.
  [[nodiscard]] bool is_marked(pid_t pid) const noexcept;

 private:
  struct place {
    gpu_id gpu{};
    online_work work = online_work::unknown;
    time_point last{};  ///< When something last was under way, came, or was seen to have ended.
  };
  struct process_seen {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    time_point seen_at{};  ///< When anything of it last was.
    std::vector<place> places;
    std::shared_ptr<client_page> page;  ///< Null until it has work.
    std::vector<gpu_id> gpus;           ///< Of the page.
    std::uint64_t request = 0;
    bool open = false;   ///< A request is.
    bool quiet = false;  ///< No work was seen since quiet_since.
    time_point quiet_since{};
    time_point ended{};  ///< When the last request did.
    linger gaps;
  };
  /// Whether something of it is under way where it has queues.
  static bool works(const process_seen& which, const process& row) noexcept;
  void warn_of_blindness();
  void begin(process_seen& which, time_point at);
  void end(process_seen& which);
  void withdraw(process_seen& which) noexcept;
  [[nodiscard]] std::vector<gpu_id> gpus_of(const process_seen& which, time_point at) const;
  /// When its open request ends, if nothing more of it is seen.
  [[nodiscard]] time_point end_of(const process_seen& which) const noexcept;

  const scheduler_config& config_;
  table& table_;
  const std::shared_ptr<front_desk> desk_;
  const std::function<void(pid_t pid, bool so)> marks_;
  std::vector<process_seen> processes_;
  std::vector<pid_t> marked_;  ///< One for each client.
  time_point last_work_{};     ///< When any of them last had work.
  bool warned_ = false;
  time_point next_ = never;
};

}  // namespace sluice::core
