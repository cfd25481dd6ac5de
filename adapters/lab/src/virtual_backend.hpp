#pragma once
/// \file
/// The backend of the laboratory: what the agent does to a real driver, done to the model of one,
/// in virtual time and without ever failing.

#include "cost_draw.hpp"
#include "node.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sluice/backend.hpp"

namespace sluice::lab {

/// A batch as it went to the driver.
struct driver_decision {
  time_point decided{};   ///< Handed over by the scheduler.
  time_point started{};   ///< The call had the driver's lock.
  time_point finished{};  ///< The queues are off, or on again.
  gpu_id on{};
  std::uint32_t process = 0;  ///< Number of the offline process, from 0.
  command_kind kind{};
  std::uint32_t queues = 0;
  std::uint32_t online_in_flight = 0;  ///< Requests being served on that GPU when it was decided.
};

/// Each target has a lane that does one batch at a time. By debug trap a batch is a call of its
/// own; by batch commands a lane for each GPU makes one call of all batches that wait for it,
/// suspends first. A session costs a setting call on each GPU of the target at its begin. With
/// batch commands a runlist GPU takes reservations, for the queues of attached targets; each change
/// of one, or of who it is for, costs a cycle. On a time-sliced GPU it takes quanta, which cost
/// nothing and end with the session.
///
/// Threading: one thread. Lifetime: the GPUs, engine and listener outlive it.
class virtual_backend final : public backend {
 public:
  struct target_queue {
    gpu* on = nullptr;
    sim::model_queue queue{};
  };
  struct target {
    std::uint32_t number = 0;          ///< Of the process, from 0.
    std::vector<target_queue> queues;  ///< driver_queue_id is the index.
  };

  /// \param news called when the scheduler has something to drain.
  virtual_backend(sim::engine& events, const capabilities& how, std::function<void()> news);

  /// A process that can be attached to.
  void add_target(pid_t pid, target what) { targets_[pid].what = std::move(what); }
  /// \param in_flight asked for driver_decision::online_in_flight; nullptr: nothing is kept.
  void record_decisions(std::vector<driver_decision>* into,
                        std::function<std::uint32_t(gpu_id)> in_flight);
  std::uint64_t calls() const noexcept { return calls_; }
  std::size_t suspended_queues() const;
  std::size_t attached() const noexcept { return attached_; }

  std::string_view name() const noexcept override { return "lab"; }
  result<void> start(backend_listener& listener) override;
  int ready_fd() const noexcept override { return -1; }
  void drain() override;
  result<void> attach(process_id id, pid_t pid, std::uint64_t start_time) override;
  result<void> detach(process_id id) override;
  result<void> submit(const batch& work) override;
  result<void> reserve(gpu_id id, double offline_share) override;
  result<void> set_quantum(process_id whom, gpu_id id, duration length) override;
  void flush() override;
  time_point tick(time_point) override { return never; }
  void stop() override {}

 private:
  struct session {
    target what;
    process_id id{};
    bool attached = false;
    bool busy = false;  ///< Its lane has a batch.
    std::vector<bool> suspended;
    std::size_t calls_left = 0;  ///< Of an attach or a detach.
  };
  struct waiting_batch {
    batch work;
    time_point decided{};
    std::uint32_t in_flight = 0;
  };
  struct gpu_lane {
    std::vector<waiting_batch> waiting;
    bool busy = false;
    bool limited = false;  ///< There is a reservation.
  };

  session* find(process_id id);
  gpu* gpu_of(const session& whose, const batch& work);
  gpu* find(gpu_id id);
  static std::vector<gpu*> gpus_of(const session& whose);
  /// Makes the target's queues on its limited GPUs count as offline, or no longer.
  void mark(const session& whose, bool marked);
  /// On one GPU, or all.
  static void set_quantum(const session& whose, const gpu* only, duration length);
  duration cost_of(const gpu& on, command_kind kind);
  void call(gpu& on, command_kind kind, std::vector<waiting_batch> which,
            std::function<void()> then);
  void serve(gpu& on);
  void configure(session& whose, const std::function<void()>& then);
  void complete(const waiting_batch& one, time_point called, time_point started);

  sim::engine& events_;
  const capabilities how_;
  const std::function<void()> news_;
  backend_listener* listener_ = nullptr;
  std::map<pid_t, session> targets_;
  std::map<gpu*, gpu_lane> lanes_;
  sim::cost_draw suspends_, resumes_;
  std::vector<gpu*> to_flush_;
  std::vector<std::function<void()>> reports_;  ///< For the next drain().
  std::vector<batch_result> results_;           ///< Likewise, after these.
  std::vector<driver_decision>* record_ = nullptr;
  std::function<std::uint32_t(gpu_id)> in_flight_;
  std::uint64_t calls_ = 0;
  std::size_t attached_ = 0;
};

}  // namespace sluice::lab
