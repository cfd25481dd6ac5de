#pragma once
/// \file
/// One look at the node for people and tools: its GPUs, the processes that use them and their
/// queues. A scheduler wants discovery.hpp, which follows what changes.

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/role.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Something that only one driver shows, as people and JSON get it.
struct driver_fact {
  std::string key;  ///< As in JSON.
  std::variant<std::string, std::uint64_t> value;
  std::string text{};  ///< As a line of text has it; empty: not there.
};

struct gpu_description {
  gpu_id id{};
  std::uint32_t ordinal = 0;  ///< As the vendor's environment variables count.
  std::string name{};
  std::string pci{};                    ///< "0000:c1:00.0"
  std::uint64_t reset_domain = 0;       ///< GPUs with the same are reset together. 0: none.
  std::optional<std::uint64_t> vram{};  ///< Bytes on the board, where the driver tells.
  std::vector<driver_fact> facts{};     ///< What there is beyond that, in the order to show it in.
};

struct queue_description {
  driver_queue_id id{};
  gpu_id gpu{};
  queue_kind kind{};
  std::string type{};  ///< The driver's name for its kind.
  std::uint64_t ring_bytes = 0;
  std::optional<std::uint32_t> priority{};  ///< 0 to 15; nothing where it is not known.
};

struct process_description {
  pid_t pid = 0;  ///< As the driver prints it.
  std::uint64_t start_time = 0;
  std::string command{};                         ///< /proc/PID/comm
  std::optional<uid_t> user{};                   ///< Real user.
  pid_t tracer = 0;                              ///< Thread that traces it, 0: none.
  std::map<gpu_id, std::uint64_t> vram{};        ///< Bytes.
  std::map<gpu_id, std::uint64_t> evicted_ms{};  ///< Since the process began.
  std::vector<queue_description> queues{};       ///< By id.
  /// Why the driver cannot suspend it: the end of a sentence about the process. Empty: it can, or a
  /// look does not tell.
  std::string not_suspended{};
};

struct node_view {
  std::vector<gpu_description> gpus;
  std::vector<process_description> processes;  ///< By pid.
  /// A sentence, if processes may be missing because this user may not see them. Else empty.
  std::string hidden{};

  const gpu_description* find(gpu_id id) const noexcept {
    for (const auto& each : gpus)
      if (each.id == id) return &each;
    return nullptr;
  }
  /// Returns the bytes of memory that processes use on the GPU. Empty: the driver does not show
  /// that of a process with queues there; or neither that of any process nor the size of the GPU's.
  std::optional<std::uint64_t> used_vram(gpu_id id) const noexcept {
    std::optional<std::uint64_t> used;
    if (const auto* const gpu = find(id); gpu != nullptr && gpu->vram) used = 0;
    for (const auto& each : processes) {
      if (const auto on = each.vram.find(id); on != each.vram.end())
        used = used.value_or(0) + on->second;
      else if (std::ranges::any_of(each.queues, [&](const auto& queue) { return queue.gpu == id; }))
        return {};
    }
    return used;
  }
};

/// Of process_description::tracer: "pid 15754 (strace)"; empty: it is gone.
[[nodiscard]] std::string words_of_tracer(pid_t thread);

/// Why a look does not list a process: it does not exist, it is a thread of another process, or it
/// does not use the driver. One sentence.
/// \param driver as in "does not use the AMD compute driver".
[[nodiscard]] std::string why_not_listed(pid_t pid, std::string_view driver);

}  // namespace sluice
#pragma GCC visibility pop
