#pragma once
/// \file
/// Looks for what a policy does wrong: plays it thousands of random sequences of events, or one
/// that you wrote, checks what must hold for every policy, and boils a failure down to the shortest
/// sequence that shows it. To ask what a policy does in one situation, take policy_harness.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::testing {

/// What is wrong.
enum class defect : std::uint8_t {
  held_online,    ///< It held a group that is not offline, or set a quantum for one.
  unknown_group,  ///< It declared something for a group that is not there.
  left_held,  ///< A group was held to the end of max_suspend while nothing online or offline ran
              ///< on its GPUs: the limits ended a hold that the policy should have. Or it was for
              ///< so long in several holds, with nothing online in between: whoever lets groups
              ///< take turns must let one of them run.
  starved,  ///< It wanted a group held for longer than `patience` without online work on its GPUs,
            ///< while others ran. Short runs in between do not make up for that: it must run for
            ///< `offline_floor` of the time without the limits that see to it.
  not_repeatable,  ///< A second instance decided otherwise on the same snapshots.
  restless,        ///< It asked for turn after turn while nothing was held and nothing happened, or
                   ///< held a group more than eight times while nothing online or offline ran on
                   ///< its GPUs, with nothing online in between.
  busy_loop,       ///< It asked for 100 turns within a millisecond.
  past_wake,       ///< It asked to be woken at a time that is not after the turn's.
  bad_number,      ///< A share to reserve, a quantum or a poll interval out of its range.
  threw,           ///< It threw.
};
std::string_view to_string(defect what) noexcept;

struct check_options {
  /// Of the first sequence; the next one has the next.
  std::uint64_t seed = 1;
  std::size_t sequences = 1000;
  /// Steps of a sequence, beyond those that set the node up.
  std::size_t steps = 16;
  /// How long a group may wait for others; zero: for ever, of a policy that says that it leaves
  /// some to the limits. Under 12 s, which is the longest that a random sequence waits.
  duration patience = std::chrono::seconds(10);
  /// The scheduler's limits, as in scheduler_config.
  duration max_suspend = std::chrono::seconds(1);
  duration min_run = std::chrono::milliseconds(100);
  double offline_floor = 0.05;
  duration floor_window = std::chrono::seconds(10);
};

struct check_failure {
  defect what{};
  std::string how;       ///< One sentence, with ids and times.
  std::uint64_t seed{};  ///< Of the sequence; `{.seed = …, .sequences = 1}` finds it again.
  std::string sequence;  ///< For replay_sequence(). No step can be left out.
  /// All of it, for people.
  std::string text() const;
};

/// Makes a policy as new; all that it makes must be alike.
using policy_maker = std::function<std::unique_ptr<policy>()>;

/// Plays random sequences on a node of up to three GPUs, with up to five groups over one or more of
/// them and three clients. The policy's declarations take effect as in the scheduler: until they
/// expire, within max_suspend, min_run and offline_floor, after a suspend or a resume that takes
/// its time; groups come, go, move, change their role or priority, are not attached yet; GPUs are
/// lost; clients withdraw with work in flight and spans open, and come again. At the end all online
/// work and every span end, and 3 s pass.
///
/// Threading: one thread. Cost: some 10 us for each sequence and policy, in an optimised build.
/// \return the first failure, made short.
[[nodiscard]] std::optional<check_failure> check_policy(const policy_maker& make,
                                                        const check_options& options = {});

/// Plays one sequence: a step in each line, a verb with `name=value`s, # begins a comment. What
/// makes no sense (an end without a begin) is left out.
///
///     costs suspend=5ms resume=10ms
///     gpu id=1 slots=24 reserve=0 quantum=0 see=1 lost=0
///     group id=1 role=offline gpus=1+2 queues=4 priority=7 attached=1   (comes, or changes)
///     gone id=1
///     begin gpu=1 client=1 count=1            (end, blink: the same; client-1, client-2, ...)
///     pointers gpu=1 work=waiting             (running, consumed, finished; only while it polls,
///                                              and not on a GPU with see=0)
///     span_begin client=1 kind=ttft request=1 (span_end: the same)
///     withdraw client=1                       (it comes again as another of the same name)
///     wait time=20ms
///
/// Only seed, patience and limits of the options count. \throws std::invalid_argument for a line
/// that it does not understand.
[[nodiscard]] std::optional<check_failure> replay_sequence(const policy_maker& make,
                                                           std::string_view sequence,
                                                           const check_options& options = {});

}  // namespace sluice::testing
