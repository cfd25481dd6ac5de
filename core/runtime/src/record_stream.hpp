#pragma once
/// \file
/// Writes down what comes in to a scheduler, line by line (see recording.hpp).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/online_client.hpp"
#include "sluice/policy.hpp"
#include "sluice/recording.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Threading: reactor thread. Cost: a line is some hundreds of nanoseconds; no allocation, no
/// system call of its own. Lifetime: the sink and the statistics outlive it.
class record_stream {
 public:
  /// \param base t = 0.
  record_stream(record_sink& into, statistics& stats, time_point base) noexcept
      : sink_(into), stats_(stats), base_(base), now_(base) {}

  /// The time of the lines from here on.
  void set_now(time_point now) noexcept { now_ = now; }

  struct beginning {
    std::string_view device, policy, policy_text, backend;
    pid_t own_pid = 0;
    const scheduler_config& config;
  };
  void begin(const beginning& what) noexcept;
  void seen(unsigned source, const observation& what) noexcept;
  void overflow(unsigned source, std::uint64_t dropped) noexcept;
  void client(client_id id, const client_options& options) noexcept;
  void work(client_id id, std::uint64_t begun, std::uint64_t ended, time_point first,
            bool withdrawn) noexcept;
  void mark(client_id id, span_kind span, std::uint64_t request, bool begins,
            time_point at) noexcept;
  void rearm(gpu_id gpu) noexcept;
  /// \param name empty: none.
  void new_policy(std::string_view name, bool removed) noexcept;
  void attach(process_id target, pid_t pid, std::uint64_t start, error_code error) noexcept;
  void attached(process_id target, error_code error) noexcept;
  void detach(process_id target, error_code error) noexcept;
  void detached(process_id target) noexcept;
  void queue(const queue_info& what) noexcept;
  void queue_gone(process_id target, driver_queue_id id) noexcept;
  void handed(const batch& work, error_code error) noexcept;
  void done(const batch_result& what) noexcept;
  void reserve(gpu_id gpu, double share, error_code error) noexcept;
  void reserved(gpu_id gpu, double share, error_code error) noexcept;
  void quantum(process_id target, gpu_id gpu, duration length, error_code error) noexcept;
  void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) noexcept;
  void acts_by(const capabilities& what, bool fell_back) noexcept;
  void gpu_lost(gpu_id gpu) noexcept;
  void lost(error_code reason) noexcept;
  void restored() noexcept;
  void off(gpu_id gpu, duration after) noexcept;
  /// \param so_far statistics::forced_resumes.
  void forced(std::uint64_t so_far) noexcept;
  void stop() noexcept;
  /// \param due when a turn had been asked for.
  void turn(time_point due) noexcept;
  /// Nothing is recorded from here on.
  void end() noexcept;

 private:
  class line;
  void put(line& made) noexcept;

  record_sink& sink_;
  statistics& stats_;
  const time_point base_;
  time_point now_;
  std::uint64_t forced_ = 0;
  std::uint64_t lost_ = 0;  ///< Since the last line that was taken.
  bool in_turn_ = false;    ///< Lines came since the last turn's.
  bool ended_ = false;
  /// More than the longest batch takes; a client's name and GPUs may be too long for it.
  std::array<char, 16384> text_;
};

}  // namespace sluice::core
