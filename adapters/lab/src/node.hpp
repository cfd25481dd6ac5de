#pragma once
/// \file
/// The simulated node in virtual time: one clock, its GPUs, and the driver calls that change what
/// is on them, with the costs of a profile.

#include "engine.hpp"
#include "gpu_model.hpp"
#include "profile.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

/// Virtual time for whoever asks for a clock.
class virtual_time final : public time_source {
 public:
  explicit virtual_time(const sim::engine& events) : events_(events) {}
  time_point now() const noexcept override { return events_.now(); }

 private:
  const sim::engine& events_;
};

/// Who is told of a queue's kernels. Called from inside the model: must not call back into it, but
/// plan that on the engine.
class kernel_listener {
 public:
  virtual void kernel_started(std::uint64_t cookie, time_point at) = 0;
  virtual void kernel_finished(std::uint64_t cookie, time_point at) = 0;

 protected:
  ~kernel_listener() = default;
};

/// One GPU, or with a static split the part of one that a side may use.
///
/// Driver calls on one GPU take turns, in the order in which they were made, as under the driver's
/// lock; calls on several GPUs run side by side. Each costs what the profile says, and does to the
/// model what adapters/sim's driver does.
///
/// Threading: one thread. Lifetime: the engine and all listeners outlive it.
class gpu {
 public:
  /// \param share of the compute units that this part has.
  gpu(sim::engine& events, const sim::gpu_profile& shape, double share);

  sim::gpu_model& model() noexcept { return model_; }
  const sim::gpu_model& model() const noexcept { return model_; }
  gpu_id id() const noexcept { return gpu_id{shape_.gpu_id}; }
  const sim::gpu_profile& shape() const noexcept { return shape_; }
  bool is_part() const noexcept { return shape_.wave_slots() < whole_waves_; }

  sim::model_queue add_queue(sim::model_process owner, std::uint32_t priority,
                             kernel_listener& listener);
  /// \param occupancy share of the whole GPU's wave slots. With fewer of them a kernel takes so
  ///        much longer.
  /// \return how many times longer.
  double submit(sim::model_queue queue, duration length, double occupancy, std::uint64_t cookie);

  /// One queue to be taken off or put up: an item of a driver call.
  using queues = std::vector<sim::model_queue>;
  /// One driver call of `cost` (MES: of `cost` per queue). Of channels, it acts at its end. \param
  /// done at its end, with the moment at which its turn came.
  void change(queues which, bool listed, duration cost, std::function<void(time_point)> done);
  /// One call that changes settings: a debug session's begin or end, or what `apply` does to the
  /// model (runlist only) when its turn comes.
  void configure(duration cost, std::function<void(time_point)> done,
                 std::function<void(sim::gpu_model&)> apply = {});

  /// How long whoever owns the queue keeps this GPU once others have work; zero: the profile's.
  void set_quantum(sim::model_queue of, duration length);

  /// Counts the cycles that begin or go on while this process has unfinished work.
  void watch_disturbance(sim::model_process online) { watched_.push_back(online); }
  std::uint64_t disturbing_cycles() const noexcept { return disturbing_; }

 private:
  struct call {
    queues which;
    bool listed = false;
    bool configures = false;
    duration cost{};
    std::function<void(time_point)> done;
    std::size_t next = 0;
    time_point started{};
    std::function<void(sim::gpu_model&)> apply = {};
  };
  void enter(call one);
  void begin();
  void next_on_mes();
  void finish();
  bool online_has_work() const;

  sim::engine& events_;
  const sim::gpu_profile shape_;  ///< With the part's compute units.
  const std::uint32_t whole_waves_;
  std::vector<kernel_listener*> listeners_;  ///< By queue number.
  std::vector<sim::model_process> owners_;   ///< By queue number.
  std::vector<sim::model_process> watched_;
  std::uint64_t disturbing_ = 0;
  bool counted_ = false;    ///< This cycle is in `disturbing_`.
  std::deque<call> calls_;  ///< The first one is under way.
  sim::gpu_model model_;
};

}  // namespace sluice::lab
