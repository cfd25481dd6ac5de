#pragma once
/// \file
/// A policy with an eye on it: what it does that a scheduler ignores without a word, and why it was
/// removed, for whoever judges it afterwards.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

struct policy_faults {
  std::uint64_t unknown_groups = 0;  ///< Declarations for groups that are not there.
  std::uint64_t not_offline = 0;     ///< Holds of groups that are not offline.
  std::uint64_t unknown_gpus = 0;    ///< Reservations on GPUs that are not there.
  std::uint64_t bad_numbers = 0;     ///< Shares outside 0 to 1, negative intervals and quanta.
  std::uint64_t past_holds = 0;      ///< Holds until a time that is not after the turn's.
  /// Why its decide() threw, or was made to; the scheduler then removes it. Empty: it did not.
  std::string removed_for;

  bool any_ignored() const noexcept {
    return unknown_groups + not_offline + unknown_gpus + bad_numbers + past_holds != 0;
  }
  /// Adds what another run of the same policy did; the first reason stays.
  void add(const policy_faults& other);
  /// "2 declarations for groups that are not there, 1 hold of groups that are not offline"; empty
  /// where nothing was ignored.
  std::string ignored_text() const;
};

/// So many turns may a policy ask for within that time, and then it is made to throw: awake, a
/// scheduler would spend a processor on it, and virtual time would hardly pass.
inline constexpr std::uint32_t most_wake_ups = 1000;
inline constexpr duration wake_up_window = std::chrono::milliseconds(10);

/// Decides as `inner` does, under its name.
/// Threading: as policy. Lifetime: `into` outlives it.
class policy_watch final : public policy, private decision_sink {
 public:
  policy_watch(std::unique_ptr<policy> inner, policy_faults& into)
      : inner_(std::move(inner)), faults_(into) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  void decide(const snapshot& seen, decision_sink& out) override;

 private:
  void count_wake_up(time_point now);

  // decision_sink, for the inner policy.
  void hold(group_id id, time_point until) override;
  void run(group_id id) override;
  void wake_at(time_point when) override;
  void poll_pointers(duration every) override;
  void reserve(gpu_id gpu, double offline_share) override;
  void set_quantum(group_id group, duration length) override;
  void listen(span_kind what, bool at_once) override { out_->listen(what, at_once); }
  void note(std::string_view text, std::span<const double> numbers) override {
    out_->note(text, numbers);
  }

  const std::unique_ptr<policy> inner_;
  policy_faults& faults_;
  const snapshot* seen_ = nullptr;  // During decide(), as `out_`.
  decision_sink* out_ = nullptr;
  time_point wake_ = never;
  time_point counted_since_{};
  std::uint32_t wake_ups_ = 0;
};

}  // namespace sluice::lab
