#pragma once
/// \file
/// A recording (sluice/recording.hpp says what stands in one), read and checked.

#include <sys/types.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/lab/checked.hpp"
#include "sluice/observation.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

/// The lines, by their `is`. Times are points on the recorded scheduler's clock.
namespace rec {

struct seen {
  unsigned source = 0;
  observation what;
};
struct overflow {
  std::uint64_t count = 0;
};
struct client {
  client_id id{};
  std::string name;
  pid_t pid = 0;
  std::vector<gpu_id> gpus;
  std::array<duration, span_kinds> targets{};
};
struct work {
  client_id client{};
  std::uint64_t begins = 0;  ///< Since the line before, as `ends`.
  std::uint64_t ends = 0;
  time_point first{};
  bool withdrawn = false;
};
struct mark {
  client_id client{};
  span_kind span{};
  std::uint64_t request = 0;
  bool begins = false;
  time_point at{};
};
struct rearm {
  gpu_id gpu{};
};
struct new_policy {
  std::string name;
  bool removed = false;
};
struct attach {
  process_id process{};
  pid_t pid = 0;
  std::uint64_t start = 0;
  error_code error;
};
struct attached {
  process_id process{};
  error_code error;
};
struct detach {
  process_id process{};
  error_code error;
};
struct detached {
  process_id process{};
};
struct queue {
  queue_info what;
};
struct queue_gone {
  process_id process{};
  driver_queue_id queue{};
};
struct handed {
  std::uint64_t id = 0;
  process_id process{};
  gpu_id gpu{};
  command_kind kind{};
  std::vector<driver_queue_id> queues;
  error_code error;
};
struct done {
  std::uint64_t id = 0;
  process_id process{};
  gpu_id gpu{};
  command_kind kind{};
  time_point started{};
  time_point finished{};
  int driver_errno = 0;
  std::vector<driver_queue_id> queues;
  std::vector<outcome> outcomes;  ///< Empty: all done.
};
struct reserve {
  gpu_id gpu{};
  error_code error;
};
struct reserved {
  gpu_id gpu{};
  error_code error;
};
struct quantum {
  process_id process{};
  gpu_id gpu{};
  error_code error;
};
struct quantum_set {
  process_id process{};
  gpu_id gpu{};
  error_code error;
};
struct acts_by {
  capabilities what{};
  bool fell_back = false;
};
struct gpu_lost {
  gpu_id gpu{};
};
struct lost {
  error_code reason;
};
struct restored {};
struct off {
  gpu_id gpu{};
  duration after{};
};
struct forced {
  std::uint64_t count = 0;
};
struct turn {
  time_point due = never;  ///< When it had been asked for, where it was late.
};
struct stop {};

using what =
    std::variant<seen, overflow, client, work, mark, rearm, new_policy, attach, attached, detach,
                 detached, queue, queue_gone, handed, done, reserve, reserved, quantum, quantum_set,
                 acts_by, gpu_lost, lost, restored, off, forced, turn, stop>;

}  // namespace rec

/// What a process is over its whole life, whatever number a scheduler gives it.
struct identity {
  pid_t pid = 0;
  std::uint64_t start = 0;
  auto operator<=>(const identity&) const =
      default;  // NOLINT: clang-tidy 14 takes its 0 for a pointer.
};

struct recording {
  struct entry {
    time_point at{};
    std::size_t line = 0;  ///< In the file, from 1.
    rec::what what;
  };
  struct cut {
    std::size_t line = 0;     ///< Where.
    std::uint64_t count = 0;  ///< Lines that are missing; 0: not known.
    std::string text;         ///< One sentence.
  };

  std::string name;  ///< The file's.
  time_point base{};
  std::string device, policy, policy_text, backend;
  pid_t own_pid = 0;
  scheduler_config config;
  /// In order. The last is a turn; none where it breaks off before the first one.
  std::vector<entry> entries;
  time_point end{};  ///< Of the last line that counts.
  std::optional<cut>
      why;  ///< Why it ends before the recorded scheduler did; none when it does not.
};

/// Errors: one sentence that names the file and the line. What was cut short by a crash or has a
/// gap is no error: it is read up to there.
checked<recording> parse_recording(std::string_view text, std::string name);
checked<recording> read_recording(const std::string& path);

}  // namespace sluice::lab
