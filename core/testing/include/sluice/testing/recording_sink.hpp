#pragma once
/// \file
/// A decision sink that remembers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/policy.hpp"

namespace sluice::testing {

class recording_sink final : public decision_sink {
 public:
  enum class verb : std::uint8_t {
    hold,
    run,
    wake_at,
    poll_pointers,
    reserve,
    set_quantum,
    listen,
    note
  };
  struct call {
    verb what{};
    group_id group{};    ///< hold, run and set_quantum.
    time_point until{};  ///< hold and wake_at.
    duration every{};    ///< poll_pointers.
    duration length{};   ///< set_quantum.
    gpu_id gpu{};        ///< reserve, as what follows.
    double offline_share = 0;
    span_kind span{};  ///< listen, as what follows.
    bool at_once = false;
    std::string text = {};  ///< note, as what follows.
    std::vector<double> numbers = {};
    bool operator==(const call&) const = default;
  };

  void hold(group_id group, time_point until) override {
    calls.push_back({.what = verb::hold, .group = group, .until = until});
  }
  void run(group_id group) override { calls.push_back({.what = verb::run, .group = group}); }
  void wake_at(time_point when) override {
    calls.push_back({.what = verb::wake_at, .until = when});
  }
  void poll_pointers(duration every) override {
    calls.push_back({.what = verb::poll_pointers, .every = every});
  }
  void reserve(gpu_id gpu, double offline_share) override {
    calls.push_back({.what = verb::reserve, .gpu = gpu, .offline_share = offline_share});
  }
  void set_quantum(group_id group, duration length) override {
    calls.push_back({.what = verb::set_quantum, .group = group, .length = length});
  }
  void listen(span_kind what, bool at_once) override {
    calls.push_back({.what = verb::listen, .span = what, .at_once = at_once});
  }
  void note(std::string_view text, std::span<const double> numbers) override {
    calls.push_back({.what = verb::note,
                     .text = std::string(text),
                     .numbers = {numbers.begin(), numbers.end()}});
  }

  std::vector<call> calls;
};

}  // namespace sluice::testing
