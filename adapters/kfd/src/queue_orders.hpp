#pragma once
/// \file
/// The orders of one call: which of them a driver call takes, what became of each, and its words.

#include "lane_sentences.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/queue_holder.hpp"

namespace sluice::kfd {

enum class hold_phase : std::uint8_t { attaching, attached, leaving, gone };

struct held_process {
  process_id id{};
  pid_t pid = 0;
  hold_phase now = hold_phase::attaching;
  error_code why;                                 // of a refused attach
  bool listed = false;                            // its first list of queues is complete
  std::uint64_t in_flight{};                      // batch, 0: none
  bool overdue = false;                           // nobody waits for that batch any more
  std::map<std::uint64_t, batch_result> answers;  // to be fetched by those who wait
  std::map<driver_queue_id, held_queue> queues;
  // Lost while held, and gone since; a resume lets the process destroy them before it is
  // answered.
  std::map<driver_queue_id, gpu_id> buried;
  std::set<gpu_id> reported;  // GPUs of which a call has reported that they failed
};

held_process* find(const std::vector<std::shared_ptr<held_process>>& among, pid_t pid);

/// Orders for queues that are known to be dead.
void settle_buried(std::span<queue_order> orders,
                   const std::vector<std::shared_ptr<held_process>>& whom);
/// An order that needs no driver call, because the queue is known to be dead.
queue_order order_of_dead(pid_t pid, driver_queue_id queue, gpu_id gpu);
/// The first orders in progress of the process that are on one GPU.
batch next_batch(command_kind kind, std::span<queue_order> orders, const held_process& who);
void settle(std::span<queue_order> orders, const held_process& who, const batch& work, int error);
void settle(std::span<queue_order> orders, const held_process& who, driver_queue_id queue,
            int error, std::optional<breaker_cause> hardware = {});
/// The errno of one queue of an answered batch.
int error_of(const held_process& who, const batch_result& answer, std::size_t index);
std::string sentence_for(command_kind kind, const queue_order& order);

}  // namespace sluice::kfd
