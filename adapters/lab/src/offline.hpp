#pragma once
/// \file
/// Offline work: processes that keep a GPU's queues filled, alone or as the ranks of a gang whose
/// steps end in a collective.

#include "engine.hpp"
#include "node.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/lab/offline_load.hpp"

namespace sluice::lab {

struct offline_spec {
  load_shape shape;
  std::uint32_t processes = 1;  ///< On each GPU; or gangs, each with one rank on every GPU.
  bool gang = false;
  /// Of a gang only. A rank's part spins, holding its compute units, until every rank's has begun;
  /// then each takes so long to exchange.
  duration all_reduce{};
  double all_reduce_occupancy = 0.25;
};

/// What the kernels of process `number` are drawn from: the seed itself for the first one, and for
/// the others what no other seed's processes have.
constexpr std::uint64_t kernel_seed(std::uint64_t seed, std::uint64_t number) noexcept {
  // splitmix64's step and mix (Steele, Lea, Flood 2014).
  const auto mixed = [](std::uint64_t z) {
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  };
  return number == 0 ? seed : mixed(mixed(seed) + number * 0x9E3779B97F4A7C15U);
}

class collective;

/// One process with its queues on one GPU.
///
/// Threading: one thread. Lifetime: all references outlive it, and it outlives the engine's events.
class offline_process final : public kernel_listener {
 public:
  struct lane {
    sim::model_queue queue{};
    std::uint64_t in_flight = 0;
    // Where a part of the GPU stretches kernels; else nothing is kept.
    std::deque<double> longer;  ///< By kernel in flight: how many times.
    duration counted{};         ///< Time its queue had been busy at the end of the last kernel.
    duration surplus{};         ///< Time by which finished kernels were longer.
  };
  /// \param wake_up from a kernel's end until the host sees it.
  offline_process(sim::engine& events, gpu& on, sim::model_process self, kernel_stream kernels,
                  duration wake_up);

  /// The gang it is a rank of; before begin().
  void join(collective& gang) { gang_ = &gang; }
  void begin();
  /// As SIGSTOP and SIGCONT: its host does nothing, its queues go on.
  void stop();
  void go_on();
  /// Time for which its kernels have run, without what it spent in collectives, and counted as on
  /// the whole GPU where a part of it makes kernels longer.
  duration work() const;
  /// Kernels completed, collectives not among them.
  std::uint64_t kernels() const noexcept { return kernels_; }
  /// Whether each kernel that was submitted is finished, or still there, once.
  bool conserved() const;

  gpu& on() noexcept { return gpu_; }
  const std::vector<lane>& lanes() const noexcept { return lanes_; }
  sim::model_process self() const noexcept { return self_; }

  /// Of collective: the rank's part ends when it has run for so long.
  void finish_collective(duration left);

  void kernel_started(std::uint64_t cookie, time_point at) override;
  void kernel_finished(std::uint64_t cookie, time_point at) override;

 private:
  /// What the host does when it runs; nothing while it is stopped.
  void host();
  void refill();
  void submit_step();
  void submit(std::size_t lane_number);
  duration busy(const lane& of) const { return gpu_.model().queue_account(of.queue).busy; }
  /// By how much its current kernel has been longer so far.
  duration surplus_now(const lane& of) const;

  sim::engine& events_;
  gpu& gpu_;
  const sim::model_process self_;
  kernel_stream stream_;
  const duration wake_up_;
  collective* gang_ = nullptr;
  std::vector<lane> lanes_;
  bool stopped_ = false;
  bool host_planned_ = false;
  bool host_owed_ = false;  ///< It was stopped when it had something to do.
  std::uint64_t submitted_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t kernels_ = 0;
  std::uint64_t twice_ = 0;
  std::vector<std::uint64_t> last_finished_;  ///< Cookie, by lane.
  std::optional<duration> collective_began_;  ///< Time its queue had been busy then.
  duration collectives_{};
};

/// The collectives of one gang, one after the other.
class collective {
 public:
  collective(duration exchange, double occupancy) : exchange_(exchange), occupancy_(occupancy) {}
  void add(offline_process& rank) { ranks_.push_back(&rank); }
  double occupancy() const noexcept { return occupancy_; }
  /// A rank's part has begun. Not from inside the model.
  void began();

 private:
  const duration exchange_;
  const double occupancy_;
  std::vector<offline_process*> ranks_;
  std::size_t there_ = 0;
};

}  // namespace sluice::lab
