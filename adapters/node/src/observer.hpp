#pragma once
/// \file
/// What a node shows of itself: a thread of its own that reads the schedulers' journal and hands it
/// to whoever explains, counts or writes down, never at the expense of the scheduler's thread.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "sluice/journal.hpp"
#include "sluice/picture.hpp"
#include "sluice/reactor.hpp"
#include "sluice/result.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// What the observer and its readers ask of the node.
///
/// Threading: the observer's thread. All of it may block for some hundred milliseconds.
class observed_node {
 public:
  /// \return as scheduler::look(); errc::stopped where this program does not own the node.
  [[nodiscard]] virtual result<picture> look() = 0;
  /// As node::stats().
  virtual std::unique_ptr<statistics> stats() const = 0;

 protected:
  ~observed_node() = default;
};

/// Who is told the journal.
///
/// Threading: the observer's thread, all of it. May block on files, but the others wait meanwhile
///            and the journal, which is bounded, fills.
class journal_reader {
 public:
  virtual ~journal_reader() = default;

  /// In order, each once.
  virtual void hear(const journal_entry& entry) = 0;
  /// What comes is another scheduler's: ids mean other things, and nothing is open any more.
  virtual void begin_anew() {}
  /// So many entries are missing about here, for the observer was too slow.
  virtual void missed(std::uint64_t entries) { (void)entries; }
  /// After missed(): what is so, between the entries heard before and those heard after. Who is not
  /// in it is gone.
  virtual void mend(const picture& seen) { (void)seen; }
  /// After each lot of entries, and every observer::tick_every.
  virtual void tick(time_point now) { (void)now; }
  /// This program owns the node from now on, or does not any more. Also called before the thread
  /// ends, with false, after the last entry.
  virtual void owns(bool does) { (void)does; }
};

/// Threading: each call as it says; start() and stop() from one thread.
/// Lifetime:  outlives the schedulers that write to sink().
/// Errors:    result<T>.
class observer {
 public:
  static constexpr duration tick_every = std::chrono::seconds(1);
  /// Where entries go on being lost, each look being a turn of the scheduler.
  static constexpr duration mend_every = std::chrono::seconds(1);

  /// \return the system's error for a journal or a loop that cannot be had.
  [[nodiscard]] static result<std::unique_ptr<observer>> create();
  ~observer() { stop(); }
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;

  /// Readers are called in the order of add(). Before start().
  void add(std::unique_ptr<journal_reader> reader) { readers_.push_back(std::move(reader)); }
  /// Is looked at where entries were lost, until stop(). Before start(). Without one readers only
  /// hear missed().
  void show(observed_node& from) noexcept { shown_ = &from; }
  /// For descriptors and timers of readers. On the thread it is the reactor; before start(), any.
  reactor& loop() noexcept { return *loop_; }
  journal_sink& sink() noexcept { return *journal_; }

  [[nodiscard]] result<void> start();
  /// What has been written until here is heard yet. Idempotent.
  void stop();
  /// Any thread.
  void owns(bool does);

 private:
  observer(std::unique_ptr<journal> from, std::unique_ptr<reactor> loop)
      : journal_(std::move(from)), loop_(std::move(loop)) {}

  result<void> prepare();
  void drain();
  void hand_on(std::span<const journal_entry> entries);
  /// Looks, where entries were lost, and has what was written until then heard first.
  void look_again();
  void mend();
  void tick();
  void tell_owns(bool does);

  std::unique_ptr<journal> journal_;
  std::unique_ptr<reactor> loop_;
  std::vector<std::unique_ptr<journal_reader>> readers_;
  std::vector<journal_entry> lot_;
  timer_id linger_{};
  timer_id ticker_{};
  std::uint64_t last_turn_ = 0;
  std::uint64_t lost_ = 0;
  observed_node* shown_ = nullptr;
  bool look_owed_ = false;
  time_point next_look_{};
  std::optional<picture> seen_;  // until what was written before it has been heard
  bool owns_ = false;
  std::thread thread_;
};

}  // namespace sluice
