#pragma once
/// \file
/// A decision sink that remembers.

#include <cstdint>
#include <vector>

#include "sluice/policy.hpp"

namespace sluice::testing {

class recording_sink final : public decision_sink {
 public:
  enum class verb : std::uint8_t { hold, run, wake_at };
  struct call {
    verb what{};
    group_id group{};
    time_point until{};  ///< hold and wake_at.
    bool operator==(const call&) const = default;
  };

  void hold(group_id group, time_point until) override {
    calls.push_back({verb::hold, group, until});
  }
  void run(group_id group) override { calls.push_back({verb::run, group, {}}); }
  void wake_at(time_point when) override { calls.push_back({verb::wake_at, {}, when}); }

  std::vector<call> calls;
};

}  // namespace sluice::testing
