#pragma once
/// \file
/// What the scheduler did lately and why, by group, out of its journal; and what that cost and
/// gave.

#include "minute.hpp"
#include "observer.hpp"
#include "recent_spans.hpp"
#include "words.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/breaker.hpp"
#include "sluice/ids.hpp"
#include "sluice/journal.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// Threading: the observer's thread.
/// Cost:      an entry costs what a map's look-up does; texts are made for decisions alone. Memory
///            is bounded by the numbers below.
class history final : public journal_reader {
 public:
  static constexpr std::size_t most_of_a_group = 64;
  static constexpr std::size_t most_decisions = 8192;
  static constexpr std::size_t most_commands = 16;  ///< Of a decision; further ones are counted.
  static constexpr std::size_t most_node_events = 64;
  static constexpr std::size_t most_ended = 1024;
  /// How long those that ended are remembered.
  static constexpr duration remember_ended = std::chrono::minutes(10);

  enum class outcome : std::uint8_t {
    pending,
    done,
    partly,   ///< Some queues failed, or the driver did nothing with them.
    failed,   ///< The call itself.
    refused,  ///< It was never handed over.
    unknown,  ///< The answer is missing in the journal, or the acting side was lost before it came.
  };
  /// What the driver was told.
  struct command {
    std::uint64_t number = 0;
    pid_t pid = 0;
    gpu_id gpu{};
    command_kind kind{};
    std::uint32_t queues = 0;
    outcome ended = outcome::pending;
    duration length{};  ///< Of the driver call.
    std::uint16_t failed = 0;
    std::uint16_t invalid = 0;
    std::uint16_t gone = 0;
    std::int32_t error = 0;
    std::string text{};  ///< Of a refusal.
  };
  struct decision {
    std::uint64_t sequence = 0;
    journal_kind what{};  ///< held, let_go, forced, attach, detach; batch: to mend what is so.
    journal_rule rule{};
    pid_t pid = 0;  ///< attach, detach.
    time_point at{};
    time_point since{};
    time_point until = never;
    std::string policy{};
    std::string event{};            ///< What came in the same turn.
    outcome ended = outcome::done;  ///< attach alone.
    std::string text{};             ///< Why an attach failed.
    std::vector<command> commands{};
    std::size_t more_commands = 0;
  };
  struct node_event {
    time_point at{};
    std::string text{};
  };
  struct known_process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    group_id group{};
    role what{};
    std::string command{};
    time_point ended = never;
    std::string attach_failure{};  ///< Of the last attach; empty: it did not fail.
  };
  struct known_group {
    std::uint64_t number = 0;  ///< The scheduler's, for people.
    std::deque<decision> decisions{};
    std::size_t processes = 0;  ///< That are remembered.
    duration lost{};  ///< GPU time: of each process on each GPU, while it is suspended there.
    last_minute lost_lately{};
    role what = role::unmatched;
    std::map<gpu_id, duration> gained_before{};  ///< On each GPU when it became online.
  };
  struct known_client {
    std::string name{};
    pid_t pid = 0;            ///< 0: this program's, or not known.
    time_point busy_since{};  ///< While it has something in flight.
  };

  explicit history(std::function<std::string(pid_t)> name_of = command_of_process)
      : name_of_(std::move(name_of)) {}

  // journal_reader
  void hear(const journal_entry& entry) override;
  void begin_anew() override;
  void missed(std::uint64_t entries) override;
  void mend(const picture& seen) override;
  void tick(time_point now) override;

  /// Of this pid the one that came last. \return nullptr: none is remembered.
  const known_process* find(pid_t pid) const;
  const known_process* find(process_id id) const;
  const known_group* find(group_id id) const;
  /// By known_group::number. \return none: there is no such group any more.
  group_id group_numbered(std::uint64_t number) const;
  const std::deque<node_event>& node_events() const noexcept { return node_events_; }
  std::uint64_t missed_entries() const noexcept { return missed_; }
  /// How many entries it has heard.
  std::uint64_t heard() const noexcept { return heard_; }
  const known_client* find(client_id id) const;
  std::vector<client_id> clients_of(pid_t pid) const;
  /// Where it has work in flight, as far as the journal tells.
  std::vector<gpu_id> busy_gpus(client_id id) const;
  /// "client 'llama' is busy on GPU 51110", of those GPUs that have online work; empty: none has.
  std::string online_work_on(const std::vector<gpu_id>& gpus, time_point now) const;

  struct loss {
    duration all{};
    duration lately{};
  };
  /// GPU time for which each group was held off, what goes on included. One pass over everything.
  std::map<group_id, loss> losses(time_point now) const;
  struct gpu_times {
    duration gained{};  ///< Online work was in flight, and some offline process was suspended.
    duration gained_lately{};
    duration busy_lately{};       ///< Online work was in flight.
    duration suspended_lately{};  ///< Some offline process was suspended.
  };
  gpu_times times_of(gpu_id id, time_point now) const;
  /// Since it has been online, on that GPU.
  loss gained_by(const known_group& group, gpu_id id, time_point now) const;
  /// Why the GPU's breaker opened; nothing: it is not open, or it is not known.
  std::optional<breaker_cause> breaker_cause_of(gpu_id id) const;
  const recent_spans& spans() const noexcept { return spans_; }
  /// When it last began to hear a scheduler: what is lately cannot be longer ago.
  time_point began() const noexcept { return began_; }

 private:
  struct book {
    bool busy = false;
    std::optional<breaker_cause> breaker{};
    std::uint32_t suspended = 0;  ///< Processes.
    time_point busy_since{};
    time_point mark{};  ///< Until when the sums count.
    duration gained{};
    last_minute gained_lately{};
    last_minute busy_lately{};
    last_minute suspended_lately{};
    std::map<client_id, std::uint64_t> in_flight{};  ///< Busy periods; none is zero.
    void close(time_point now);
  };
  using place = std::pair<process_id, gpu_id>;
  struct stretch {
    std::uint32_t queues = 0;
    time_point since{};
  };

  void take_process(const journal_entry& entry);
  void take_role(known_group& group, const journal_entry& entry);
  void take_end(process_id which, time_point at);
  void take_work(const journal_entry& entry);
  void forget_client(client_id which);
  void take_decision(const journal_entry& entry);
  void take_attached(const journal_entry& entry);
  void take_batch(const journal_entry& entry);
  void take_done(const journal_entry& entry);
  void take_node_event(const journal_entry& entry);
  void count_queues(const journal_entry& entry);
  void set_queues(place where, std::uint32_t queues, time_point at);
  void forget_place(process_id which, time_point at);
  void forget_all_places(time_point at);
  void end_commands(outcome how);
  decision& add(group_id group, const journal_entry& entry);
  decision* find(group_id group, std::uint64_t sequence);
  void drop_process(std::map<process_id, known_process>::iterator which);
  std::string what_came() const;
  std::string words_of(const journal_entry& entry) const;
  std::string client_words(client_id which) const;
  std::string process_words(const journal_entry& entry) const;

  std::function<std::string(pid_t)> name_of_;
  std::map<process_id, known_process> processes_;
  std::unordered_map<pid_t, process_id> by_pid_;
  std::deque<process_id> ended_;  // in the order in which they ended
  std::map<group_id, known_group> groups_;
  std::deque<std::pair<group_id, std::uint64_t>> order_;  // of all decisions; some are gone
  std::unordered_map<std::uint64_t, std::pair<group_id, std::uint64_t>> pending_;  // by batch
  std::map<client_id, known_client> clients_;
  std::map<gpu_id, book> gpus_;
  std::map<place, stretch> suspended_;
  std::deque<node_event> node_events_;
  recent_spans spans_;
  std::vector<journal_entry> came_;  // in this turn
  std::uint64_t turn_ = 0;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t missed_ = 0;
  std::uint64_t heard_ = 0;
  std::string policy_;
  time_point began_ = clock::now();
};

}  // namespace sluice
