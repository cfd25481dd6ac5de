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

}  // namespace sluice
#pragma GCC visibility pop
