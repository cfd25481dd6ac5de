#pragma once
/// \file
/// What host and agent share: one page of memory, an eventfd and two sockets. The agent is started
/// by the host and is of the same build; version and size say so, and anything else is refused.

#include "ring.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "sluice/acting.hpp"
#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

inline constexpr std::uint64_t protocol_magic = 0x746e'6761'636c'7573;
inline constexpr std::uint32_t protocol_version = 12;

/// The descriptors that the agent finds open when it starts.
enum inherited_fd : int {
  control_fd = 3,  ///< SOCK_SEQPACKET; carries notes up only; its end means that the host is done.
  memory_fd = 4,   ///< memfd of one shared_page, size sealed.
  agent_doorbell_fd = 5,  ///< eventfd: commands are there.
  /// SOCK_DGRAM: reports are there. No eventfd: whether a write to one waits is up to all who have
  /// it, and a host that fills it and has it wait would keep the agent from resuming for good. A
  /// send() says itself that it does not wait.
  host_doorbell_fd = 6,
  host_pidfd = 7,  ///< Readable once the host is gone.
  first_free_fd = 8,
};

enum class command_type : std::uint8_t {
  attach,
  detach,
  submit,
  reserve,
  quantum,
  follow,
  online,      ///< The host takes the process for online, whether it is followed or not.
  not_online,  ///< No longer.
};

struct command {
  command_type type{};
  process_id target{};
  pid_t pid = 0;                 ///< attach, follow, online, not_online
  std::uint64_t start_time = 0;  ///< The same.
  gpu_id gpu{};                  ///< reserve, quantum
  double offline_share = 1;      ///< reserve
  duration quantum{};            ///< quantum
  duration every{};              ///< follow
  batch work;                    ///< submit

  /// What has to be known to tell used_bytes().
  static std::size_t least_bytes() noexcept;
  /// Up to the last queue that means something. Of a count that cannot be, no more than there are.
  std::size_t used_bytes() const noexcept;
};
static_assert(std::is_trivially_copyable_v<command> && std::is_standard_layout_v<command>);

inline std::size_t command::least_bytes() noexcept {
  return offsetof(command, work) + offsetof(batch, queues);
}
inline std::size_t command::used_bytes() const noexcept {
  return least_bytes() +
         std::min<std::size_t>(work.count, max_batch_queues) * sizeof(work.queues[0]);
}

inline constexpr std::uint32_t most_commands = 128;
inline constexpr std::uint32_t most_reports = 256;

/// The shared memory. Both sides map it writable, so whatever it says may be a lie: each keeps its
/// own end of a ring in memory of its own, range-checks what the other published, and copies before
/// it looks. A count that cannot be means that the other side is out of its mind, and is taken for
/// its death. Of the contents, ids are looked up, counts are bounded, enumerators may be any value.
struct shared_page {
  std::uint64_t magic = protocol_magic;
  std::uint32_t version = protocol_version;
  std::uint32_t size = sizeof(shared_page);

  /// When the host last said that it lives (clock's nanoseconds). Release by the host, acquire by
  /// the agent, as for the heartbeat the other way; nothing else hangs on either.
  alignas(cache_line) std::atomic<duration::rep> lease_renewed{0};
  /// Not 0: the host ends in good order, and shuts its socket down next.
  std::atomic<std::uint32_t> goodbye{0};
  alignas(cache_line) std::atomic<duration::rep> heartbeat{0};

  alignas(cache_line) ring_memory<command, most_commands> commands;
  alignas(cache_line) ring_memory<report, most_reports> reports;
};
static_assert(std::atomic<duration::rep>::is_always_lock_free);
// No pointers, and the same layout wherever it is mapped.
static_assert(std::is_standard_layout_v<shared_page>);
static_assert(offsetof(shared_page, magic) == 0 && offsetof(shared_page, version) == 8 &&
              offsetof(shared_page, size) == 12);
static_assert(offsetof(shared_page, lease_renewed) == cache_line &&
              offsetof(shared_page, heartbeat) == 2 * cache_line &&
              offsetof(shared_page, commands) == 3 * cache_line);
static_assert(alignof(shared_page) == cache_line && sizeof(shared_page) % cache_line == 0);

using command_writer = ring_writer<command, most_commands>;
using command_reader = ring_reader<command, most_commands>;
using report_writer = ring_writer<report, most_reports>;
using report_reader = ring_reader<report, most_reports>;

/// What has come out of the ring is indexed by this, whoever wrote it, or is a number for people.
inline void bound_count(report& heard) noexcept {
  heard.result.count = std::min<std::uint16_t>(heard.result.count, max_batch_queues);
  heard.why.back() = '\0';
  // Of what was observed the listener takes no other enumerator.
  if (heard.seen.work > online_work::running) heard.seen.work = online_work::unknown;
}

/// What travels through the socket, upwards only.
enum class note_kind : std::uint32_t {
  guardian,  ///< There is one. Carries its pidfd.
  ready,     ///< The agent takes commands. Carries a pidfd of the agent.
  refused,   ///< It cannot start; error and text say why.
  message,   ///< A sentence for the operator.
  farewell,  ///< It ends; text says why.
};

struct note {
  std::uint64_t magic = protocol_magic;
  note_kind kind{};
  plain_error error;
  std::array<char, 480> text{};  ///< Ends with a zero byte.

  void set_text(std::string_view words) noexcept {
    const std::size_t length = std::min(words.size(), text.size() - 1);
    std::copy_n(words.begin(), length, text.begin());
    text[length] = '\0';
  }
  std::string_view get_text() const noexcept {
    const auto end = std::find(text.begin(), text.end(), '\0');
    return {text.data(), static_cast<std::size_t>(end - text.begin())};
  }
};
static_assert(std::is_trivially_copyable_v<note>);

}  // namespace sluice::agent
