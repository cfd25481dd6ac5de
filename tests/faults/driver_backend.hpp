#pragma once
/// \file
/// The acting side in virtual time: the calls that the lanes of adapters/kfd make, made to the
/// simulated device's driver without processes, threads or files. What lanes do about an answer is
/// told here once more, in short: their own code is tried on real processes.

#include "driver_bench.hpp"

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/uapi_batch.hpp"

namespace sluice::test {

using namespace std::chrono_literals;  // NOLINT: a header of tests only.

/// Threading: one thread. Lifetime: the node and the listener outlive it.
class driver_backend final : public backend {
 public:
  /// \param restarts whether another acting process follows one that had to end.
  driver_backend(sim::test::driver_bench& node, bool by_batch, bool restarts)
      : node_(node), by_batch_(by_batch), restarts_(restarts) {
    begin();
  }

  std::size_t attached() const {
    return static_cast<std::size_t>(std::count_if(
        sessions_.begin(), sessions_.end(), [](const auto& each) { return each.second.open; }));
  }
  /// How often the acting process had to end.
  int ends() const noexcept { return ends_; }

  /// That process is gone, and the driver knows it.
  void target_died(pid_t pid) {
    const auto one = sessions_.find(pid);
    if (one == sessions_.end()) return;
    if (one->second.work) answer(one->second, 0, outcome::target_gone);
    say([this, id = one->second.id] { listener_->detached(id); });
    sessions_.erase(one);
  }

  std::string_view name() const noexcept override { return "driver"; }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    say_mechanism(false);
    return {};
  }
  int ready_fd() const noexcept override { return -1; }
  void drain() override {
    for (const auto& each : std::exchange(reports_, {})) each();
  }
  result<void> attach(process_id target, pid_t pid, std::uint64_t) override {
    if (!lives_) return errc::lost;
    if (sessions_.contains(pid)) return errc::busy;
    sessions_[pid].id = target;
    enable(pid);
    return {};
  }
  result<void> detach(process_id target) override {
    for (auto& [pid, one] : sessions_) {
      if (one.id == target && one.open) {
        close(pid);
        return {};
      }
    }
    return errc::unknown_target;
  }
  result<void> submit(const batch& work) override {
    for (auto& [pid, one] : sessions_) {
      if (one.id != work.target || !one.open) continue;
      if (one.work) return errc::busy;
      one.work = std::make_unique<batch>(work);
      one.started = now();
      if (by_batch_) {
        waiting_.push_back(pid);
        next_batch();
      } else {
        perform_trap(pid);
      }
      return {};
    }
    return errc::unknown_target;
  }
  /// A call that does not answer: lanes_options::stuck_after.
  time_point tick(time_point at) override {
    for (auto& [number, since] : since_) {
      if (since == never || at < since + 3s) continue;
      since = never;
      say([this] { listener_->gpu_lost(gpu()); });
    }
    if (!lives_ && restarts_ && at >= ended_at_ + 100ms) {
      begin();
      say_mechanism(false);
      say([this] { listener_->restored(); });
    }
    return at + 100ms;
  }
  void stop() override {}

 private:
  struct session {
    process_id id{};
    bool open = false;
    bool closing = false;
    std::unique_ptr<batch> work;
    time_point started{};
  };
  static constexpr pid_t self = sim::test::scheduler;

  time_point now() const { return node_.planned.now(); }
  gpu_id gpu() const { return gpu_id{node_.profile_.gpus[0].gpu_id}; }
  void say(std::function<void()> what) { reports_.push_back(std::move(what)); }
  void say_mechanism(bool fell_back) {
    say([this, fell_back, by = by_batch_ ? testing::batched_calls : testing::single_calls] {
      listener_->acts_by(by, fell_back);
    });
  }

  void begin() {
    lives_ = true;
    file_ = node_.open(self);
    node_.pipe();
    for (const pid_t pid : {sim::test::app, sim::test::other}) {
      node_.machine.trace(pid, self);
      node_.machine.may_trace.insert({self, pid});
    }
  }
  /// With it every session and every hold ends.
  void end() {
    ++ends_;
    lives_ = false;
    ended_at_ = now();
    sessions_.clear();
    since_.clear();
    waiting_.clear();
    calling_ = false;
    node_.sim->release(file_);
    node_.machine.exit(self);
    node_.sim->reap();
    node_.start(self);
    say([this] { listener_->lost(errc::lost); });
  }

  template <class Args>
  void call(std::uint32_t command, const Args& args,
            const std::function<void(int, const Args&)>& then) {
    std::vector<std::byte> in(sizeof args);
    std::memcpy(in.data(), &args, sizeof args);
    since_[++calls_] = now();
    node_.sim->ioctl(self, file_, command, in,
                     [this, args, then, number = calls_, life = ends_](sim::ioctl_reply reply) {
                       if (life != ends_) return;
                       since_.erase(number);
                       Args out = args;
                       std::memcpy(&out, reply.out.data(), std::min(sizeof out, reply.out.size()));
                       // Not within the driver's own step.
                       node_.planned.at(now(), [this, then, life, out, result = reply.result] {
                         if (life == ends_) then(result, out);
                       });
                     });
  }
  void trap(const sim::test::uapi::kfd_ioctl_dbg_trap_args& args, std::function<void(int)> then) {
    call<sim::test::uapi::kfd_ioctl_dbg_trap_args>(
        sim::test::uapi::AMDKFD_IOC_DBG_TRAP, args,
        [then = std::move(then)](int result, const auto&) { then(result); });
  }
  void later(duration after, pid_t pid, std::function<void()> what) {
    node_.planned.at(now() + after, [this, pid, what = std::move(what), life = ends_] {
      if (life == ends_ && sessions_.contains(pid)) what();
    });
  }
  /// Each target has a part of the scheduler's memory.
  static std::uint64_t area(pid_t pid) {
    return sim::test::scratch + (pid == sim::test::app ? 0U : 0x4000U);
  }

  // Sessions.
  void enable(pid_t pid) {
    namespace uapi = sim::test::uapi;
    auto args = node_.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE, pid);
    args.enable = {.exception_mask = sim::test::new_bit | sim::test::delete_bit,
                   .rinfo_ptr = area(pid),
                   .rinfo_size = sizeof(uapi::kfd_runtime_info),
                   .dbg_fd = sim::test::driver_bench::pipe_fd};
    trap(args, [this, pid](int result) {
      if (!sessions_.contains(pid)) return;
      if (result == 0) {
        const auto state =
            node_.machine.memory(self).get<uapi::kfd_runtime_info>(area(pid)).runtime_state;
        if (state < 2) return list(pid);
        refuse(pid, errc::not_managed);
        trap(node_.trap_args(uapi::KFD_IOC_DBG_TRAP_DISABLE, pid), [](int) {});
        return;
      }
      refuse(pid, error_code{-result, boost::system::system_category()});
    });
  }
  void refuse(pid_t pid, error_code why) {
    say([this, id = sessions_[pid].id, why] { listener_->attached(id, why); });
    sessions_.erase(pid);
  }
  void list(pid_t pid) {
    namespace uapi = sim::test::uapi;
    auto args = node_.trap_args(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT, pid);
    args.queue_snapshot = {.exception_mask = sim::test::new_bit,
                           .snapshot_buf_ptr = area(pid) + 0x1000,
                           .num_queues = 16,
                           .entry_size = sizeof(uapi::kfd_queue_snapshot_entry)};
    call<uapi::kfd_ioctl_dbg_trap_args>(
        uapi::AMDKFD_IOC_DBG_TRAP, args, [this, pid](int result, const auto& out) {
          if (!sessions_.contains(pid)) return;
          if (result != 0) return later(100ms, pid, [this, pid] { list(pid); });
          session& one = sessions_[pid];
          one.open = true;
          say([this, id = one.id] { listener_->attached(id, {}); });
          for (std::uint32_t i = 0; i < out.queue_snapshot.num_queues; ++i) {
            const auto each = node_.machine.memory(self).get<uapi::kfd_queue_snapshot_entry>(
                area(pid) + 0x1000 + i * sizeof(uapi::kfd_queue_snapshot_entry));
            say([this, id = one.id, each] {
              listener_->queue_added({id, driver_queue_id{each.queue_id}, gpu_id{each.gpu_id},
                                      queue_kind::compute, each.ring_base_address, 0});
            });
          }
        });
  }
  /// Resumes what is suspended; where even that is refused, only the end of this side does.
  void close(pid_t pid) {
    session& one = sessions_[pid];
    one.open = false;
    if (std::exchange(one.closing, true)) return;
    if (by_batch_) remap_all([] {});
    disable(pid, now() + 300ms);
  }
  void disable(pid_t pid, time_point give_up) {
    trap(node_.trap_args(sim::test::uapi::KFD_IOC_DBG_TRAP_DISABLE, pid),
         [this, pid, give_up](int result) {
           if (!sessions_.contains(pid)) return;
           if (result == 0) {
             say([this, id = sessions_[pid].id] { listener_->detached(id); });
             sessions_.erase(pid);
           } else if (now() >= give_up) {
             end();
           } else {
             later(20ms, pid, [this, pid, give_up] { disable(pid, give_up); });
           }
         });
  }

  // Batches.
  /// \param every the outcome of all, where the call as a whole had one.
  void answer(session& one, int error, std::optional<outcome> every,
              const std::vector<std::uint32_t>& ids = {}) {
    const std::unique_ptr<batch> work = std::move(one.work);
    auto done = std::make_shared<batch_result>();
    done->id = work->id;
    done->target = work->target;
    done->gpu = work->gpu;
    done->kind = work->kind;
    done->count = work->count;
    done->driver_errno = error;
    done->started = one.started;
    done->finished = now();
    for (std::size_t i = 0; i < work->count; ++i) {
      done->queues[i] = work->queues[i];
      done->outcomes[i] = every                                ? *every
                          : (ids[i] & sim::test::invalid) != 0 ? outcome::invalid
                          : (ids[i] & sim::test::error) != 0   ? outcome::failed
                                                               : outcome::done;
    }
    say([this, done] { listener_->completed(*done); });
  }
  void perform_trap(pid_t pid) {
    const batch& work = *sessions_[pid].work;
    const bool suspends = work.kind == command_kind::suspend;
    const std::uint64_t array = area(pid) + 0x2000;
    for (std::size_t i = 0; i < work.count; ++i)
      node_.machine.memory(self).put(array + i * 4, static_cast<std::uint32_t>(work.queues[i]));
    auto args =
        suspends ? node_.suspend_args(work.count, 0, pid) : node_.resume_args(work.count, pid);
    (suspends ? args.suspend_queues.queue_array_ptr : args.resume_queues.queue_array_ptr) = array;
    trap(args, [this, pid, suspends, array](int result) {
      if (!sessions_.contains(pid)) return;
      session& one = sessions_[pid];
      if (result == -EINTR) return perform_trap(pid);
      if (result < 0) {
        answer(one, -result, outcome::invalid);
        if (!suspends) close(pid);
        return;
      }
      std::vector<std::uint32_t> ids;
      for (std::size_t i = 0; i < one.work->count; ++i)
        ids.push_back(node_.machine.memory(self).get<std::uint32_t>(array + i * 4));
      answer(one, 0, {}, ids);
    });
  }
  /// One call after the other, as the lane of a GPU makes them.
  void next_batch() {
    if (calling_ || waiting_.empty()) return;
    const pid_t pid = waiting_.front();
    waiting_.pop_front();
    const auto found = sessions_.find(pid);
    if (found == sessions_.end() || !found->second.work) return next_batch();
    if (by_batch_) {
      calling_ = true;
      return perform_batch(pid);
    }
    const bool suspends = found->second.work->kind == command_kind::suspend;
    answer(found->second, ECANCELED, suspends ? outcome::invalid : outcome::done);
    next_batch();
  }
  void perform_batch(pid_t pid) {
    namespace uapi = sim::test::uapi;
    using entry = uapi::kfd_batch_queue_entry;
    const batch& work = *sessions_[pid].work;
    const bool suspends = work.kind == command_kind::suspend;
    const std::uint64_t array = area(pid) + 0x3000;
    for (std::size_t i = 0; i < work.count; ++i)
      node_.machine.memory(self).put(array + i * sizeof(entry),
                                     entry{pid, static_cast<std::uint32_t>(work.queues[i])});
    const auto then = [this, pid, suspends, array](int result) {
      if (result < 0) {
        // Given up: everything is mapped again, and debug sessions are used from now on.
        by_batch_ = false;
        say_mechanism(true);
        return remap_all([this, pid, suspends, result] {
          calling_ = false;
          if (sessions_.contains(pid))
            answer(sessions_[pid], -result, suspends ? outcome::invalid : outcome::failed);
          next_batch();
        });
      }
      calling_ = false;
      later(0ns, pid, [this] { next_batch(); });
      if (!sessions_.contains(pid)) return next_batch();
      session& one = sessions_[pid];
      std::vector<std::uint32_t> ids;
      for (std::size_t i = 0; i < one.work->count; ++i)
        ids.push_back(node_.machine.memory(self).get<entry>(array + i * sizeof(entry)).queue_id);
      answer(one, 0, {}, ids);
    };
    const std::uint32_t count = work.count;
    if (suspends) {
      call<uapi::kfd_ioctl_batch_unmap_queues_args>(
          uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES,
          {.num_queues = count,
           .grace_period_us = 0,
           .flags = 0,
           .pad = 0,
           .queue_array_ptr = array},
          [then](int result, const auto&) { then(result); });
    } else {
      call<uapi::kfd_ioctl_fast_remap_args>(
          uapi::AMDKFD_IOC_FAST_REMAP, {.num_queues = count, .pad = 0, .queue_array_ptr = array},
          [then](int result, const auto&) { then(result); });
    }
  }
  /// All that is held, or it is the end of this side that does it.
  void remap_all(std::function<void()> then) {
    call<sim::test::uapi::kfd_ioctl_fast_remap_args>(
        sim::test::uapi::AMDKFD_IOC_FAST_REMAP, {},
        [this, then = std::move(then)](int result, const auto&) {
          if (result < 0) return end();
          then();
        });
  }

  sim::test::driver_bench& node_;
  bool by_batch_;
  const bool restarts_;
  backend_listener* listener_ = nullptr;
  sim::file_id file_ = 0;
  std::map<pid_t, session> sessions_;
  std::vector<std::function<void()>> reports_;
  std::map<std::uint64_t, time_point> since_;  ///< Calls in flight; never: said to be stuck.
  std::deque<pid_t> waiting_;                  ///< For a batch command.
  bool calling_ = false;
  std::uint64_t calls_ = 0;
  bool lives_ = true;
  int ends_ = 0;
  time_point ended_at_{};
};

}  // namespace sluice::test
