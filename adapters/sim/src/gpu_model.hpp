#pragma once
/// \file
/// One GPU as its command processor's users feel it: which queue's kernel runs when, and what a
/// change of the runlist does to everybody. Pure: it knows no driver, process or memory.

#include "engine.hpp"
#include "profile.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::sim {

/// A queue's one life on one GPU; never reused, 0 is none.
enum class model_queue : std::uint64_t { none = 0 };
/// Whoever shares a VMID: one process.
enum class model_process : std::uint64_t { none = 0 };

struct model_kernel {
  duration length{};         ///< How long it runs when nobody interrupts it; negative counts as 0.
  std::uint32_t waves = 1;   ///< Occupancy while it runs.
  std::uint64_t cookie = 0;  ///< The submitter's; comes back in the callbacks.
};

struct account {
  duration busy{};          ///< At least one kernel running.
  duration unfinished{};    ///< At least one kernel submitted and not completed.
  duration disturbed{};     ///< Unfinished work while a debug cycle was going on.
  duration longest_wait{};  ///< Longest stretch with unfinished work in which no kernel ran.
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
};

/// Why the runlist is taken down and put up again, or (MES) one queue is.
enum class cycle_kind : std::uint8_t {
  ordinary,  ///< A queue's owner created, changed or destroyed it, or went away.
  debug,     ///< A debug session: suspend, resume, activation.
};

/// Assumptions, all of them:
///  - A queue is a FIFO. One kernel of it runs at a time, in order, each exactly once and exactly
///    for its length in total. Dispatch takes no time.
///  - A kernel occupies its waves from start to end, all or nothing. One that is larger than the
///    machine occupies the whole machine: its further rounds are part of its length. Kernels that
///    run together do not slow each other down.
///  - Waiting heads of mapped queues start in the order of pipe priority, queue priority, longest
///    wait (then age of the queue). None passes one that waits for room before it in that order.
///    Waves of a running kernel are never taken away by priority.
///  - KFD's priority 0..6 is pipe priority 0, 7..10 is 1, 11..15 is 2 (pipe_priority_map).
///  - A runlist cycle preempts every queue of the GPU. Running kernels are saved with the time they
///    have left; nothing runs until the cycle's end. Then saved kernels go on before any other is
///    started, as far as they fit (in the order above).
///  - A MES command takes one queue off, or puts it up; the others do not notice, but for the room.
///  - More active queues than HQD slots, or more processes than VMIDs, and the runlist is
///    oversubscribed: sets of queues, in the order of process and age, take turns of one quantum,
///    whether they have work or not; nothing runs for the switch cost between two sets. A cycle in
///    between stops the quantum's clock. Priority does not matter to the turns.
///  - A mapped queue sits in the lowest HQD slot that was free, its process in the lowest VMID that
///    was, as long as it is mapped. (Which ones the firmware takes is not documented.)
///  - While a limit is set (limit_marked), marked queues take turns among themselves in so many
///    slots, and the others have the rest.
///  - On a time-sliced GPU (gpu_profile::time_sliced) the kernels of one process run at a time. It
///    keeps the GPU while no other has work; one that comes waits for the end of the current slice,
///    which began a whole number of slices after the process got the GPU, and not at all once the
///    process has no work. Processes with work take turns in the order of their numbers, whatever
///    their priority; kernels of a process that loses its turn are saved with the time they have
///    left. Saving and putting back cost the switch, in which nothing runs; passing on a GPU where
///    nothing was saved and nothing is put back costs nothing. Each process's slice is the
///    profile's unless set_quantum() says otherwise; so it is the quantum of whoever has the GPU
///    that others wait for, and a longer one of their own saves them nothing.
///  - A grace period before a cycle lets running kernels end; nothing is started in it.
///  - Time is kept by plan: end = start + what is left, however late the engine is called.
///
/// Threading: the engine's thread. Callbacks must not call back into the model.
/// Lifetime:  engine and profile outlive it.
/// Errors:    an unknown queue is a caller's bug and ignored; nothing throws.
/// Cost:      O(mapped queues) per start and completion.
class gpu_model {
 public:
  /// A kernel begins for the first time (its packet is consumed).
  using started = std::function<void(model_queue, std::uint64_t cookie, time_point at)>;
  using completed =
      std::function<void(model_queue, std::uint64_t cookie, time_point start, time_point end)>;

  gpu_model(engine& events, const gpu_profile& shape, started on_start, completed on_complete);
  ~gpu_model();
  gpu_model(const gpu_model&) = delete;
  gpu_model& operator=(const gpu_model&) = delete;

  /// A new queue is neither active nor mapped. \param priority KFD's, 0..15.
  model_queue add_queue(model_process owner, std::uint32_t priority);
  /// Forgets the queue with everything in it; a running kernel ends without a word.
  void remove_queue(model_queue id);
  void set_priority(model_queue id, std::uint32_t priority);
  /// Whether the next end_cycle() puts it on the runlist.
  void set_active(model_queue id, bool active);
  /// Appends a kernel, as of now.
  void submit(model_queue id, const model_kernel& work);
  /// Forgets what has not started yet.
  void drop_waiting(model_queue id);
  /// Forgets everything in it; a running kernel ends without a word (the GPU was reset).
  void lose_kernels(model_queue id);

  /// Its oldest kernel, if it has begun, ends when it has run for `left` from now on: a kernel that
  /// spun until something came has got it.
  void finish_within(model_queue id, duration left);

  /// Whether the queue counts as marked for limit_marked(). Takes effect as set_active() does.
  void set_marked(model_queue id, bool marked);
  /// At most so many HQD slots for marked queues at one time, from the next end_cycle() on.
  void limit_marked(std::optional<std::uint32_t> slots) { marked_slots_ = slots; }
  /// Time-sliced: how long the process keeps the GPU once others have work; zero: the profile's. At
  /// once, for the current slice, too.
  void set_quantum(model_process who, duration length);
  /// VMIDs that processes may use, from the next end_cycle() on (the debugger may reserve one).
  void set_vmids(std::uint32_t count) { vmids_ = count; }

  /// Starts nothing any more until the cycle that follows, for at most `grace`.
  /// \return how long to wait with begin_cycle(): until what runs has ended, at most `grace`.
  duration begin_drain(duration grace);

  /// Unmaps everything. Cycles do not nest.
  void begin_cycle(cycle_kind kind);
  /// Maps again: with the changes of set_active(), or (a failed cycle) as it was before.
  void end_cycle(bool apply_changes = true);
  bool in_cycle() const noexcept { return in_cycle_; }
  /// MES: puts one queue on the firmware's list or takes it off, saving its kernel, as of now.
  void set_listed(model_queue id, bool listed, cycle_kind kind);
  /// Is any queue on the runlist, or would one be after the next cycle? If not, a cycle has nothing
  /// to wait for.
  bool runlist_in_use() const;

  /// Where a queue sits while it is mapped, both counted from 0.
  struct seat {
    std::uint32_t slot = 0;
    std::uint32_t vmid = 0;
    friend bool operator==(const seat&, const seat&) = default;
  };
  std::optional<seat> seat_of(model_queue id) const;
  /// Told of every queue that is unmapped, when its state is saved; not of one that is removed.
  std::function<void(model_queue, seat)> on_unmapped;

  bool on_runlist(model_queue id) const;  ///< Though perhaps not its turn (oversubscription).
  bool running(model_queue id) const;
  std::size_t backlog(model_queue id) const;  ///< Kernels not completed.
  std::uint32_t running_waves(model_process id) const;
  bool oversubscribed() const noexcept { return oversubscribed_; }

  account queue_account(model_queue id) const;
  /// Kept until forget(), however many of its queues come and go.
  account process_account(model_process id) const;
  void forget(model_process id);

  std::uint64_t cycles() const noexcept { return cycles_; }
  std::uint64_t debug_cycles() const noexcept { return debug_cycles_; }
  std::uint64_t switches() const noexcept { return switches_; }
  duration cycle_time() const;  ///< Time inside cycles of any kind.

 private:
  /// Total time during which a count was above zero.
  class meter {
   public:
    void up(time_point now) {
      if (count_++ == 0) since_ = now;
    }
    void down(time_point now) {
      if (--count_ == 0) total_ += now - since_;
    }
    bool on() const { return count_ != 0; }
    duration at(time_point now) const { return count_ == 0 ? total_ : total_ + (now - since_); }

   private:
    std::uint64_t count_ = 0;
    time_point since_{};
    duration total_{};
  };
  struct meters {
    meter busy, unfinished, disturbed;
    std::uint64_t started = 0, completed = 0;
    std::optional<time_point> waits_since;
    duration longest_wait{};
    /// After each change of `busy` or `unfinished`.
    void note(time_point now);
    account at(time_point now) const;
  };
  struct queue {
    model_process owner{};
    std::uint32_t priority = 0;
    bool active = false;      ///< Wanted on the runlist by the driver.
    bool on_runlist = false;  ///< As of the last cycle.
    bool mapped = false;      ///< Its turn, and no cycle going on.
    seat place;               ///< Valid while `mapped`.
    bool chosen = false;      ///< Scratch of put_up().
    bool marked = false;
    bool running = false;
    bool begun = false;        ///< The head has started (and is running or saved).
    bool disturbed = false;    ///< Its `disturbed` meter runs.
    duration left{};           ///< Of the head, when the current stretch began.
    time_point first_start{};  ///< Of the head.
    time_point stretch{};      ///< Begin of the head's current stretch.
    time_point ready_since{};  ///< When the head became the head.
    timer_id end{};
    std::deque<model_kernel> waiting;  ///< The front is the head.
    meters sums;
  };
  using entry = std::pair<const model_queue, queue>;
  static bool is_older(const entry* a, const entry* b) { return a->first < b->first; }

  queue* find(model_queue id);
  const queue* find(model_queue id) const;
  std::uint32_t waves_of(const queue& q) const;
  void start(entry& e);
  void plan_end(entry& e);
  void finish(entry& e);
  void preempt(entry& e);
  void save(queue& q, entry& e);  ///< Takes its running kernel off the GPU.
  void preempt_all();
  void seat_all(const std::vector<entry*>& arriving);
  void put_up();      ///< Chooses who is mapped, continues saved kernels, then dispatches.
  void change_set();  ///< The quantum is over.
  void dispatch(bool saved_only);
  bool see_to_turn();
  void pass_turn(model_process to);
  /// Of the mapped queues with work; none: nobody else's.
  model_process next_in_turn() const;
  void became_head(queue& q);
  void count_disturbed(queue& q);

  engine& engine_;
  const gpu_profile shape_;
  const started on_start_;
  const completed on_complete_;
  std::uint64_t last_id_ = 0;
  std::map<model_queue, queue> queues_;
  std::map<model_process, meters> processes_;
  std::uint32_t free_waves_;
  std::vector<entry*> mapped_;  ///< From the oldest on: few of many, and walked through often.
  std::vector<entry*> order_;   ///< Scratch of dispatch().

  bool in_cycle_ = false;
  bool debug_cycle_ = false;
  meter cycle_meter_;
  std::uint64_t cycles_ = 0, debug_cycles_ = 0, switches_ = 0;

  bool draining_ = false;
  std::uint32_t vmids_;
  std::optional<std::uint32_t> marked_slots_;

  bool oversubscribed_ = false;
  /// The runlist's order: by process, then by age.
  using place = std::pair<model_process, model_queue>;
  /// Whose turns are taken together: all queues, or with a limit the marked ones and the others.
  struct ring {
    place first_of_set{};  ///< Where the current set begins, or began: that queue may be gone.
    place first_of_next{};
  };
  ring others_, marked_;
  /// Chooses the ring's set. \return whether not all of its queues have their turn.
  bool choose(ring& turns, const std::vector<entry*>& runlist, std::size_t slots,
              std::vector<model_process>& processes);
  duration quantum_left_{};
  time_point quantum_began_{};
  bool switching_ = false;
  timer_id turn_{};

  // Time-sliced only.
  std::map<model_process, duration> quanta_;
  model_process turn_of_{};
  time_point turn_began_{};
  bool passing_ = false;               ///< Nobody has the GPU until slice_end_.
  std::optional<timer_id> slice_end_;  ///< None: nobody waits for it.
};

}  // namespace sluice::sim
