#pragma once
/// \file
/// Journal entries as a scheduler would write them, and as it never would.

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "sluice/journal.hpp"
#include "sluice/observe/process_words.hpp"

namespace sluice::observe::test {

using namespace std::chrono_literals;

inline constexpr time_point start{1000s};

inline journal_entry entry(journal_kind kind, duration at) {
  return {.kind = kind, .at = start + at};
}
inline journal_entry of_process(journal_kind kind, duration at, unsigned id) {
  return {.kind = kind,
          .what = role::offline,
          .pid = static_cast<pid_t>(id),
          .process = process_id{id},
          .group = group_id{id},
          .start_time = id,
          .at = start + at};
}
inline journal_entry of_gpu(journal_kind kind, duration at, unsigned gpu = 7) {
  return {.kind = kind, .gpu = gpu_id{gpu}, .at = start + at};
}
inline journal_entry on(duration at, unsigned id, duration length) {
  auto made = of_process(journal_kind::process_on, at, id);
  made.length = length;
  made.since = made.at - length;
  return made;
}
inline journal_entry batch(duration at, unsigned id, command_kind what, std::uint64_t number) {
  auto made = of_process(journal_kind::batch, at, id);
  made.gpu = gpu_id{7};
  made.command = what;
  made.count = 2;
  made.number = number;
  return made;
}
inline journal_entry done(duration at, unsigned id, command_kind what, std::uint64_t number,
                          duration from, duration to) {
  auto made = batch(at, id, what, number);
  made.kind = journal_kind::done;
  made.since = start + from;
  made.until = start + to;
  return made;
}

inline process_words words(pid_t pid, std::uint64_t) {
  return {.command = "train\"" + std::to_string(pid), .user = "ann", .group = "slurm:42"};
}

/// Any entry at all, of a few processes, GPUs and clients; time goes on.
class random_entries {
 public:
  explicit random_entries(std::uint64_t seed) : random_(seed) {}

  journal_entry next() {
    now_ += duration(below(3'000'000));
    journal_entry made{
        .kind = static_cast<journal_kind>(below(static_cast<unsigned>(journal_kind::stop) + 1)),
        .why = static_cast<journal_rule>(below(9)),
        .what = static_cast<role>(below(3)),
        .command = static_cast<command_kind>(below(2)),
        .cause = static_cast<breaker_cause>(below(3)),
        .span = static_cast<span_kind>(below(3)),
        .pid = static_cast<pid_t>(1 + below(3)),
        .gpu = gpu_id{below(3)},
        .count = below(5),
        .process = process_id{1 + below(5)},
        .group = group_id{1 + below(3)},
        .client = client_id{1 + below(3)},
        .start_time = below(3),
        .number = below(100),
        .turn = ++turn_,
        .at = now_};
    if (below(4) == 0) made.error = 5;
    if (below(4) == 0) made.failed = static_cast<std::uint16_t>(below(3));
    if (below(4) == 0) made.invalid = static_cast<std::uint16_t>(below(3));
    made.until = now_ - duration(below(2'000'000));
    made.since = made.until - duration(below(5'000'000));
    made.length = duration(below(5'000'000));
    made.longest = made.length;
    made.set_text("say \"no\"\n\xff");
    return made;
  }
  unsigned below(unsigned end) { return static_cast<unsigned>(random_() % end); }

 private:
  std::mt19937 random_;
  time_point now_ = start;
  std::uint64_t turn_ = 0;
};

}  // namespace sluice::observe::test
