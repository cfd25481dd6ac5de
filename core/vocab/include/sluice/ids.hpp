#pragma once
/// \file
/// Names of the things sluice schedules. All ids are strong types; 0 is "none" and no id of
/// sluice's own (process, queue, group, client) is reused while a scheduler lives.

#include <cstdint>

#pragma GCC visibility push(default)
namespace sluice {

/// The driver's number of a GPU, never 0.
enum class gpu_id : std::uint32_t { none = 0 };

/// One incarnation of a process (a pid with its start time), as the queue table knows it.
enum class process_id : std::uint64_t { none = 0 };

/// One life of one hardware queue. A driver queue id that comes back is a new queue_id.
enum class queue_id : std::uint64_t { none = 0 };

/// What is suspended and resumed together.
enum class group_id : std::uint64_t { none = 0 };

/// A registered online client.
enum class client_id : std::uint64_t { none = 0 };

/// The driver's number of a queue: of one process, and perhaps reused at once (so never a key
/// alone).
enum class driver_queue_id : std::uint32_t {};

/// Where only the acting side can list a process's queues: the id with which a source announces
/// that the process uses a GPU. It stands for all queues of the process there, and does not count
/// beside them. \param gpu number of the GPU on this node, below 256.
[[nodiscard]] constexpr driver_queue_id unlisted_queues(std::uint32_t gpu) noexcept {
  return driver_queue_id{0xffffff00U | (gpu & 0xffU)};
}
[[nodiscard]] constexpr bool is_unlisted(driver_queue_id id) noexcept {
  return (static_cast<std::uint32_t>(id) & 0xffffff00U) == 0xffffff00U;
}

}  // namespace sluice
#pragma GCC visibility pop
