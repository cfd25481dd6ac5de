#pragma once
/// \file
/// Sequences of events for policy_check: as values, as text, and at random.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/policy.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice::testing {

enum class verb : std::uint8_t {
  costs,
  gpu,
  group,
  gone,
  begin,
  end,
  blink,
  pointers,
  span_begin,
  span_end,
  withdraw,
  wait,
};

/// Ids are 1 to `most_ids`. Which fields count depends on the verb.
struct step {
  static constexpr std::uint32_t most_ids = 8;
  verb what{};
  std::uint32_t id = 1;      ///< gpu, group, gone.
  std::uint32_t gpu = 1;     ///< begin, end, blink, pointers.
  std::uint32_t client = 1;  ///< begin, end, blink, span_begin, span_end, withdraw.
  std::uint32_t count = 1;   ///< begin, end, blink.
  std::uint32_t gpus = 2;    ///< group: bit n is GPU n.
  std::uint32_t queues = 1;  ///< group: on each GPU.
  std::uint32_t priority = 0;
  std::uint32_t slots = 0;
  std::uint32_t request = 1;
  role what_role = role::offline;
  bool attached = true;
  bool reserve = false;
  bool quantum = false;
  bool see = true;
  bool lost = false;
  online_work work = online_work::waiting;
  span_kind kind = span_kind::request;
  duration time{};     ///< wait.
  duration suspend{};  ///< costs, as what follows.
  duration resume{};
  bool operator==(const step&) const = default;
};

std::string to_text(const std::vector<step>& sequence);
/// \throws std::invalid_argument
std::vector<step> parse_sequence(std::string_view text);
/// \param length steps beyond those that set the node up.
std::vector<step> random_sequence(std::uint64_t seed, std::size_t length);

}  // namespace sluice::testing
