/// The packet processor: what the GPU reads from and writes to its clients' memory.
///
/// Memory is read at the end of a step, so that what a client wrote after a late event's planned
/// time is not dated before it was written; packets are read ahead, so that a late step does not
/// leave the GPU idle on paper.

#include "aql.hpp"
#include "driver_state.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

namespace sluice::sim {

namespace {

constexpr std::uint64_t packet_size = sizeof(aql::kernel_dispatch_packet);
constexpr std::uint64_t packets_per_copy = 64;
constexpr std::uint64_t read_ahead =
    256;  ///< Packets taken from memory and not completed, at most.
constexpr std::uint64_t refill_below = 128;

/// HSA packet types beside those of aql.hpp.
constexpr std::uint16_t packet_vendor_specific = 0;

/// No kernel runs longer: protects the arithmetic of time points.
constexpr std::uint64_t longest_kernel = std::numeric_limits<std::int64_t>::max() / 8;

/// EC_NONE: the packet can be run.
uapi::kfd_dbg_trap_exception_code check(const aql::kernel_dispatch_packet& packet) {
  const auto type = static_cast<std::uint16_t>(packet.header & 0xffU);
  if (type == packet_vendor_specific) return uapi::EC_QUEUE_PACKET_VENDOR_UNSUPPORTED;
  if (type != aql::packet_kernel_dispatch) return uapi::EC_QUEUE_PACKET_UNSUPPORTED;
  const auto dimensions = packet.setup & 3U;
  if (dimensions == 0) return uapi::EC_QUEUE_PACKET_DISPATCH_DIM_INVALID;
  if (packet.kernel_object > longest_kernel) return uapi::EC_QUEUE_PACKET_DISPATCH_CODE_INVALID;
  if (packet.completion_signal % alignof(aql::signal) != 0) return uapi::EC_QUEUE_PACKET_RESERVED;
  return uapi::EC_NONE;
}

}  // namespace

// --- What the model tells: noted, and told to the client at the end of the step
// -------------------

void driver::impl::note(memory_update update) {
  kfd_process& process = *update.queue->owner;
  if (process.gone) return;
  if (process.updates.empty()) dirty_.push_back(process.shared_from_this());
  process.updates.push_back(std::move(update));
  plan_step_end();
}

void driver::impl::kernel_started(gpu_node& node, model_queue queue, std::uint64_t index) {
  const auto& q = node.queues.at(queue);
  q->consumed = index + 1;
  note({.kind = memory_update::what::consumed,
        .queue = q,
        .index = index,
        .packet = q->fetched[index - q->completed],
        .start = {},
        .end = {}});
}

void driver::impl::kernel_completed(gpu_node& node, model_queue queue, std::uint64_t index,
                                    time_point start, time_point end) {
  const auto& q = node.queues.at(queue);
  const auto packet = q->fetched.front();
  q->fetched.pop_front();
  q->completed = index + 1;
  if (packet.signal != 0) {
    note({.kind = memory_update::what::completed,
          .queue = q,
          .index = index,
          .packet = packet,
          .start = start,
          .end = end});
  }
  if (q->fetched.size() < refill_below && q->write_seen > q->next_fetch) plan_fetch(q);
}

// --- The end of a step ---------------------------------------------------------------------------

void driver::impl::plan_step_end() {
  if (std::exchange(step_end_planned_, true)) return;
  engine_.defer([alive = std::weak_ptr{alive_}] {
    if (const auto self = alive.lock()) (*self)->step_end();
  });
}

void driver::impl::step_end() {
  step_end_planned_ = false;
  for (const auto& process : std::exchange(dirty_, {})) flush(process);
  for (const auto& q : std::exchange(to_fetch_, {})) {
    q->fetch_planned = false;
    if (!q->destroyed) fetch(q);
  }
}

void driver::impl::plan_fetch(const std::shared_ptr<kfd_queue>& queue) {
  if (!queue->is_aql() || queue->failed || queue->destroyed) return;
  if (std::exchange(queue->fetch_planned, true)) return;
  to_fetch_.push_back(queue);
  plan_step_end();
}

// --- From memory ---------------------------------------------------------------------------------

void driver::impl::fetch(const std::shared_ptr<kfd_queue>& queue) {
  if (queue->failed || queue->owner->gone) return;
  const bool waiting = fetch_packets(queue);
  if (!queue->failed) plan_poll(queue, waiting);
  // What memory held when it was read may have been written after this step's moment: the next
  // step's is the first at which it was there for certain. So no kernel starts before its
  // submission.
  if (queue->arrived.empty()) return;
  engine_.after_step([weak = std::weak_ptr{queue}] {
    const auto arrived = weak.lock();
    if (arrived && !arrived->destroyed) admit(*arrived);
  });
}

void driver::impl::admit(kfd_queue& queue) {
  for (const auto& work : std::exchange(queue.arrived, {})) {
    queue.gpu->model.submit(queue.model, work);
  }
}

/// Takes what is new. \return whether a packet is announced but not published yet.
bool driver::impl::fetch_packets(const std::shared_ptr<kfd_queue>& queue) {
  kfd_queue& q = *queue;
  address_space& memory = *q.owner->memory;
  const std::uint64_t ring_packets = q.ring_size / packet_size;
  if (q.ring_base == 0 || ring_packets == 0) return false;
  if (q.write_pointer % sizeof(std::uint64_t) != 0 || q.read_pointer % sizeof(std::uint64_t) != 0) {
    fail_queue(q, uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION);
    return false;
  }
  const auto written = read_object<std::uint64_t>(memory, q.write_pointer);
  if (!written) {
    fail_queue(q, uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION);
    return false;
  }
  q.write_seen = *written;
  // A slot may hold a new packet only after the read index has passed the old one.
  const auto limit = std::min(q.write_seen, q.consumed + ring_packets);
  std::array<aql::kernel_dispatch_packet, packets_per_copy> packets;
  while (q.next_fetch < limit && q.fetched.size() < read_ahead) {
    const auto slot = q.next_fetch % ring_packets;
    const auto count = std::min({limit - q.next_fetch, ring_packets - slot, packets_per_copy,
                                 read_ahead - q.fetched.size()});
    const auto part = std::span{packets}.first(count);
    if (!memory.read(q.ring_base + slot * packet_size, std::as_writable_bytes(part))) {
      fail_queue(q, uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION);
      return false;
    }
    for (const auto& packet : part) {
      if ((packet.header & 0xffU) == aql::packet_invalid) return true;
      if (const auto wrong = check(packet); wrong != uapi::EC_NONE) {
        // The firmware looks at the first packet of a mapped queue, and at no other.
        if (!q.active || !q.fetched.empty()) return true;
        fail_queue(q, wrong);
        return false;
      }
      kfd_queue::packet kept{.signal = packet.completion_signal,
                             .slot = q.ring_base + (q.next_fetch % ring_packets) * packet_size,
                             .first_word = 0};
      std::memcpy(&kept.first_word, &packet, sizeof kept.first_word);
      q.fetched.push_back(kept);
      q.arrived.push_back({.length = duration{static_cast<std::int64_t>(packet.kernel_object)},
                           .waves = std::max(packet.grid_size_x / aql::wave_lanes, 1U),
                           .cookie = q.next_fetch});
      ++q.next_fetch;
    }
  }
  return false;
}

void driver::impl::plan_poll(const std::shared_ptr<kfd_queue>& queue, bool waiting_for_packet) {
  engine_.cancel(std::exchange(queue->poll, {}));
  // A doorbell tells of everything but a packet whose header comes after its doorbell.
  if (queue->doorbell >= 0 && !waiting_for_packet) return;
  const gpu_model& model = queue->gpu->model;
  const bool busy =
      waiting_for_packet || model.backlog(queue->model) > 0 || !queue->arrived.empty();
  const auto interval =
      busy && model.on_runlist(queue->model) ? profile_.poll_busy : profile_.poll_idle;
  queue->poll = engine_.at(engine_.now() + interval, [this, weak = std::weak_ptr{queue}] {
    if (const auto polled = weak.lock()) plan_fetch(polled);
  });
}

/// The ring moved: what was read ahead of the read index is read again, from the new one.
void driver::impl::forget_fetched(kfd_queue& queue) {
  queue.gpu->model.drop_waiting(queue.model);
  queue.arrived.clear();
  queue.fetched.resize(queue.consumed - queue.completed);
  queue.next_fetch = queue.consumed;
}

/// The queue goes into an error state: no packet is taken any more, those before are run.
void driver::impl::fail_queue(kfd_queue& queue, uapi::kfd_dbg_trap_exception_code why) {
  if (queue.owner->gone || queue.failed) return;
  if (!queue.owner->memory->alive()) return;  // Not the queue: its process went; reap() follows.
  queue.failed = true;
  ++queue.owner->broken_queues;
  engine_.cancel(std::exchange(queue.poll, {}));
  // kfd_set_dbg_ev_from_interrupt: what no debugger subscribed to goes to the runtime.
  if (!raise(*queue.owner, queue.exception_status, why) &&
      queue.owner->runtime.runtime_state == uapi::DBG_RUNTIME_STATE_ENABLED) {
    send_to_runtime(queue, uapi::KFD_EC_MASK(why));
  }
  if (queue.gpu->shape.scheduler == queue_scheduler::mes &&
      why != uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION) {
    scope_.start(suspend_bad_queue(queue.gpu->queues.at(queue.model)));
  }
}

// kfd_dqm_suspend_bad_queue_mes: it counts as evicted, until its process is evicted and restored.
task<void> driver::impl::suspend_bad_queue(std::shared_ptr<kfd_queue> queue) {
  gpu_node& node = *queue->gpu;
  const auto lock = co_await node.dqm.lock();
  if (queue->destroyed || !queue->active) co_return;
  queue->evicted = true;
  co_await change_queue(queue, false, cycle_kind::ordinary, node.shape.cycle_cost);
}

// --- To memory -----------------------------------------------------------------------------------

namespace {

using patch = address_space::patch;

/// Appends the stores of one update, in the order in which the client may see them.
/// \return the event to set afterwards (0: none), or nothing when the signal cannot be read.
std::optional<std::uint32_t> describe(const memory_update& update, address_space& memory,
                                      std::unordered_map<std::uint64_t, std::int64_t>& values,
                                      std::vector<patch>& patches) {
  if (update.kind == memory_update::what::consumed) {
    // The slot loses its packet first; then the read index allows it to be used again.
    const auto word = (update.packet.first_word & ~std::uint64_t{0xffff}) | aql::packet_invalid;
    patches.push_back({update.packet.slot, word});
    patches.push_back({update.queue->read_pointer, update.index + 1});
    return 0;
  }
  const std::uint64_t address = update.packet.signal;
  const auto signal = read_object<aql::signal>(memory, address);
  if (!signal) return std::nullopt;
  // One signal may count several packets of one batch.
  const auto value = values.try_emplace(address, signal->value).first->second--;
  const auto stamp = [](time_point t) {
    return static_cast<std::uint64_t>(t.time_since_epoch().count());
  };
  patches.push_back({address + offsetof(aql::signal, start_ts), stamp(update.start)});
  patches.push_back({address + offsetof(aql::signal, end_ts), stamp(update.end)});
  patches.push_back(
      {address + offsetof(aql::signal, value), static_cast<std::uint64_t>(value) - 1});
  return signal->event_id;
}

}  // namespace

void driver::impl::flush(const process_ptr& process) {
  const auto updates = std::exchange(process->updates, {});
  if (process->gone) return;
  address_space& memory = *process->memory;
  struct piece {
    kfd_queue* queue;
    std::size_t first, count;  ///< Of `patches`.
    std::uint32_t event;
  };
  std::vector<patch> patches;
  std::vector<piece> pieces;
  std::unordered_map<std::uint64_t, std::int64_t> values;  // Of signals, as of this batch so far.
  for (const auto& update : updates) {
    if (update.queue->destroyed) continue;
    const auto first = patches.size();
    if (const auto event = describe(update, memory, values, patches)) {
      pieces.push_back({update.queue.get(), first, patches.size() - first, *event});
    } else {
      fail_queue(*update.queue, uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION);
    }
  }
  if (!memory.write_words(patches)) {
    // One bad address spoils the batch: again, piece by piece, to find whose it is. What had been
    // written is written again with the same value.
    for (auto& each : pieces) {
      if (memory.write_words(std::span{patches}.subspan(each.first, each.count))) continue;
      each.event = 0;
      fail_queue(*each.queue, uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION);
    }
  }
  for (const auto& each : pieces) {
    const auto it = process->events.find(each.event);
    if (it != process->events.end()) it->second.set();
  }
}

}  // namespace sluice::sim
