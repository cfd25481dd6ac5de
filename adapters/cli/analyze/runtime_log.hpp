#pragma once
/// \file
/// What a log of the HIP runtime (AMD_LOG_LEVEL=5) or an ftrace text says of hardware queues.
///
/// The forms of lines are those of ROCclr (rocclr/utils/debug.cpp for what stands before a text,
/// rocclr/device/rocm/{rocdevice,rocvirtual}.cpp and rocclr/platform/command.cpp for the texts) and
/// of ROCr (core/util/flag.cpp, core/runtime/amd_blit_kernel.cpp), as they were from ROCm 5 to 7.
/// Facts that the figures rest on:
/// - SWq is the address of the hsa_queue_t and HWq that of its ring: two names of one hardware
///   queue. Which streams share it, only the reference counts of its acquires say, and which stream
///   a thread's last "Command (...) enqueued: ... to queue: ..." named.
/// - wptr is the index of the packet itself, rptr the read index just after that was written. So
///   wptr - rptr packets stood before it that the GPU's packet processor had not taken. Taken is
///   not finished. An rptr beyond wptr means that the packet was taken already: no backlog.
/// - Before lines had SWq, "created hardware queue", and the HWq of a BarrierValue, were the
///   hsa_queue_t, while other packets named the ring.

#include "ftrace_text.hpp"

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/histogram.hpp"

namespace sluice::cli {

/// Different values, as long as they are few.
class few_values {
 public:
  static constexpr std::size_t most = 64;

  void add(std::uint64_t value);
  std::size_t count() const noexcept { return seen_.size(); }
  bool more() const noexcept { return more_; }  ///< Than `most`.
  bool operator==(const few_values&) const = default;

 private:
  std::vector<std::uint64_t> seen_{};  // the latest last
  bool more_ = false;
};

struct hardware_queue {
  pid_t pid = 0;              ///< 0: the log does not say.
  std::uint64_t address = 0;  ///< Of its ring, where the log says so.
  std::uint64_t object = 0;   ///< Of its hsa_queue_t; 0: not said.
  std::optional<std::uint64_t> ring_packets{};
  std::optional<unsigned> priority{};  ///< HSA's: 0 low, 1 normal, 2 high.
  std::optional<bool> cooperative{};
  bool of_runtime = false;  ///< ROCr's own, which copies and fills.

  std::uint64_t created = 0;  ///< More than once: the address was used again.
  std::uint64_t deleted = 0;
  std::uint64_t acquired = 0;
  std::uint64_t released = 0;
  std::uint64_t most_users = 0;  ///< The largest reference count: streams at a time.
  few_values streams{};          ///< That commands for it were enqueued to.
  few_values threads{};          ///< That wrote packets.

  std::uint64_t dispatches = 0;
  std::uint64_t barriers = 0;
  std::uint64_t behind_others = 0;   ///< Dispatches that met packets that were not taken.
  std::uint64_t packets_before = 0;  ///< All of them, of the dispatches in `backlog`.
  histogram backlog{};  ///< Packets (as nanoseconds), of dispatches whose lines have them.

  bool shared() const noexcept { return most_users > 1 || streams.count() > 1; }
};

struct traced_task {
  pid_t pid = 0;  ///< 0: the trace does not say.
  std::string name{};
  std::array<std::uint64_t, driver_functions.size()> calls{};

  /// Queues that it made, by the surest function that was traced.
  std::uint64_t created() const noexcept;
};

enum class line_kind : std::uint8_t {
  dispatch,
  barrier,
  created,
  acquired,
  released,
  deleted,
  other_log,  ///< Of the runtime's log, and about something else.
  driver_call,
  other_trace,
  unknown,  ///< Fits no form; also what begins as one of the above and is damaged.
};
inline constexpr std::size_t line_kinds = 10;

struct log_usage {
  std::uint64_t lines = 0;                          ///< The sum of `of_kind`.
  std::array<std::uint64_t, line_kinds> of_kind{};  ///< By line_kind.
  std::uint64_t first_unknown = 0;                  ///< Its line number, from 1; 0: none.
  std::string first_unknown_text{};                 ///< How it begins, 60 bytes at most.
  std::uint64_t left_out = 0;  ///< Lines that were read, but are in no queue's or task's figures.
  std::optional<std::uint64_t> limit_per_priority{};  ///< Hardware queues that HIP makes at most.
  std::deque<hardware_queue> queues{};                ///< In order of appearance.
  std::vector<traced_task> tasks{};                   ///< In order of appearance.

  std::uint64_t count(line_kind kind) const noexcept {
    return of_kind[static_cast<std::size_t>(kind)];
  }
  /// Whether there is a line that could be read.
  bool any() const noexcept { return lines != count(line_kind::unknown); }
};

/// Threading: one thread. Cost: O(bytes), no allocation but for a queue, thread, stream or task
/// that was not seen before; memory for `most` queues (20 KiB each), tasks and `most_threads`
/// threads. Errors: none; what cannot be read is counted.
class runtime_log_parser {
 public:
  static constexpr std::size_t most = 1024;
  static constexpr std::size_t most_threads = 16384;
  /// Bytes of a line that are looked at; ROCclr's texts have 4096 at most.
  static constexpr std::size_t longest = 8192;

  /// The next piece of the text, cut anywhere.
  void feed(std::string_view piece);
  /// The text ends. \return what was read; the parser is then as new.
  [[nodiscard]] log_usage finish();

 private:
  struct log_line {
    pid_t pid = 0;
    std::uint64_t thread = 0;
    bool of_runtime = false;  // ROCr's own log
    std::string_view text{};
  };
  struct of_process {
    std::uint64_t what;  // an address, a thread
    pid_t pid;
    bool operator==(const of_process&) const = default;
  };
  struct hash {
    std::size_t operator()(const of_process& each) const noexcept {
      return std::hash<std::uint64_t>{}(each.what * 0x9e3779b97f4a7c15U +
                                        static_cast<std::uint64_t>(each.pid));
    }
  };

  static bool read_head(std::string_view text, bool at_begin, log_line& found) noexcept;
  static bool find_head(std::string_view line, log_line& found) noexcept;

  void keep(std::string_view piece);
  void end_line(std::string_view text);
  line_kind read(std::string_view text);
  line_kind read_text(const log_line& from);
  line_kind packet(const log_line& from);
  line_kind created(const log_line& from, std::string_view rest);
  line_kind counted(const log_line& from, std::string_view rest, line_kind kind);
  line_kind traced(const trace_line& from);
  /// \return nullptr, counted, when there are too many.
  hardware_queue* queue_at(pid_t pid, std::uint64_t address);
  hardware_queue* known(pid_t pid, std::uint64_t address) noexcept;

  log_usage out_{};
  std::string kept_{};
  bool within_line_ = false;
  bool trace_head_ = false;  // "# tracer: ..." came, and nothing but '#' since
  std::unordered_map<of_process, std::size_t, hash> by_address_{};
  std::unordered_map<of_process, std::uint64_t, hash> stream_of_thread_{};
};

/// The packets of a backlog.
inline std::uint64_t packets(duration value) noexcept {
  return static_cast<std::uint64_t>(value.count());
}

}  // namespace sluice::cli
