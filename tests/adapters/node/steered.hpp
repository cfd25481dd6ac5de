#pragma once
/// \file
/// A node for tests of what shows it: synthetic journal entries, a picture, and what was asked of
/// it.

#include "control_desk.hpp"
#include "history.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "sluice/journal.hpp"
#include "sluice/picture.hpp"

namespace sluice::test {

using namespace std::chrono_literals;

inline constexpr gpu_id gpu_one{51110};
inline constexpr group_id trainers{900};
inline constexpr process_id trainer{800};
inline constexpr pid_t trainer_pid = 4242;

/// Writes a journal as a scheduler does.
class script {
 public:
  explicit script(history& into) : into_(into) {}

  time_point at{clock::now() - 10s};

  void put(journal_entry entry) {
    entry.at = at;
    entry.turn = turn_;
    into_.hear(entry);
  }
  void turn(duration later = 1ms) {
    at += later;
    ++turn_;
  }
  journal_entry of_process(journal_kind kind) const {
    return {.kind = kind,
            .what = role::offline,
            .pid = trainer_pid,
            .process = trainer,
            .group = trainers,
            .start_time = 77};
  }
  void process(role what = role::offline) {
    turn();
    auto entry = of_process(journal_kind::process);
    entry.number = 1;
    entry.what = what;
    put(entry);
  }
  void attached(error_code error = {}) {
    turn();
    put(of_process(journal_kind::attach));
    turn();
    auto entry = of_process(journal_kind::attached);
    entry.error = error.value();
    if (error) entry.set_text(error.message());
    put(entry);
  }
  void client(const char* name, pid_t pid = 0) {
    turn();
    journal_entry entry{.kind = journal_kind::client, .pid = pid, .client = client_id{5}};
    entry.set_text(name);
    put(entry);
  }
  void policy(const char* name) {
    turn();
    journal_entry entry{.kind = journal_kind::policy};
    entry.set_text(name);
    put(entry);
  }
  void begin() {
    turn();
    put({.kind = journal_kind::begin, .gpu = gpu_one, .count = 1, .client = client_id{5}});
    put({.kind = journal_kind::busy, .gpu = gpu_one});
  }
  void end() {
    turn();
    put({.kind = journal_kind::end, .gpu = gpu_one, .count = 1, .client = client_id{5}});
    put({.kind = journal_kind::idle, .gpu = gpu_one});
  }
  void decide(journal_kind kind, journal_rule why = journal_rule::policy) {
    auto entry = of_process(kind);
    entry.why = why;
    put(entry);
  }
  /// \return its number.
  std::uint64_t hand(command_kind what, std::uint32_t queues, error_code error = {}) {
    auto entry = of_process(journal_kind::batch);
    entry.number = ++batches_;
    entry.command = what;
    entry.gpu = gpu_one;
    entry.count = queues;
    entry.error = error.value();
    if (error) entry.set_text(error.message());
    put(entry);
    return batches_;
  }
  void done(std::uint64_t number, command_kind what, std::uint32_t queues, duration took,
            std::int32_t error = 0, std::uint16_t failed = 0) {
    turn(took);
    auto entry = of_process(journal_kind::done);
    entry.number = number;
    entry.command = what;
    entry.gpu = gpu_one;
    entry.count = queues;
    entry.since = at - took;
    entry.until = at;
    entry.error = error;
    entry.failed = failed;
    put(entry);
  }
  void held(std::uint32_t queues = 2) {
    decide(journal_kind::held);
    done(hand(command_kind::suspend, queues), command_kind::suspend, queues, 5ms);
  }
  void let_go(std::uint32_t queues = 2) {
    decide(journal_kind::let_go);
    done(hand(command_kind::resume, queues), command_kind::resume, queues, 2ms);
  }
  void gone() {
    turn();
    put(of_process(journal_kind::process_gone));
  }

 private:
  history& into_;
  std::uint64_t turn_ = 1;
  std::uint64_t batches_ = 0;
};

inline std::string name_of_test(pid_t) { return "train"; }

/// What the script tells of, as a scheduler would show it.
inline picture usual_picture() {
  process_picture process{.id = trainer, .pid = trainer_pid, .start_time = 77};
  process.what = role::offline;
  process.attach = attach_picture::attached;
  process.queues = {{.gpu = gpu_one, .compute = 2}};
  group_picture group{.id = trainers, .what = role::offline};
  group.manageable = true;
  group.processes.push_back(process);
  picture made;
  made.policy = "fixed_timeslice";
  made.backend = "test";
  made.acts = true;
  made.backend_up = true;
  made.gpus.push_back({.id = gpu_one, .slots = 24});
  made.groups.push_back(std::move(group));
  return made;
}

class fake_node final : public steered_node {
 public:
  result<picture> look() override {
    ++looks;
    if (broken) return errc::busy;
    std::this_thread::sleep_for(takes);
    shown.at = clock::now();
    return shown;
  }
  std::unique_ptr<statistics> stats() const override { return std::make_unique<statistics>(); }
  node_facts facts() const override {
    return {.mode = node_mode::enforce,
            .paused = paused,
            .simulated = true,
            .without_gangs = without_gangs,
            .policy = policy,
            .policy_by = by};
  }
  std::shared_ptr<const roles::role_reasons> roles() const override { return reasons; }
  result<std::string> use_policy(const std::string& text, const std::string& who,
                                 std::string& message) override {
    ++changes;
    if (text.starts_with("no_such")) {
      message = "there is no policy no_such";
      return errc::unknown_target;
    }
    policy = text;
    by = who;
    return text;
  }

  picture shown = usual_picture();
  bool broken = false;
  duration takes{};  ///< A look.
  bool paused = false;
  bool without_gangs = false;
  std::string policy = "fixed_timeslice:slice=20ms";
  std::string by;
  std::shared_ptr<const roles::role_reasons> reasons;
  int looks = 0;
  int changes = 0;
};

}  // namespace sluice::test
