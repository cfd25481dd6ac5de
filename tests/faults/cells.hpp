#pragma once
/// \file
/// The fault matrix as data: who fails, how, under which mechanism, and what comes of it. README.md
/// beside this file shows it; cells_test.cpp compares the two.

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::test {

/// `pair`: agent and guardian, at the same time. `unit`: these and the host, as when systemd or an
/// out-of-memory killer kills a whole cgroup.
enum class party : std::uint8_t {
  client,
  online,
  offline,
  gang,
  host,
  agent,
  device,
  guardian,
  pair,
  unit,
};
enum class fault : std::uint8_t { exit, kill, stop, exec, fork, descriptors, slow, core };
enum class mechanism_used : std::uint8_t {
  trap_agent,
  batch_agent,
  trap_in_process,
  batch_in_process,
  channels_agent,  ///< NVIDIA's driver.
};

inline constexpr std::array parties{party::client, party::online, party::offline, party::gang,
                                    party::host,   party::agent,  party::device};
/// Those that exist where suspended work outlives the agent.
inline constexpr std::array guarded_parties{party::guardian, party::pair, party::unit};
inline constexpr std::array faults{fault::exit, fault::kill,        fault::stop, fault::exec,
                                   fault::fork, fault::descriptors, fault::slow, fault::core};
/// AMD's.
inline constexpr std::array mechanisms{mechanism_used::trap_agent, mechanism_used::batch_agent,
                                       mechanism_used::trap_in_process,
                                       mechanism_used::batch_in_process};

constexpr std::string_view word(party who) {
  constexpr std::array words{"client", "online", "offline",  "gang", "host",
                             "agent",  "device", "guardian", "pair", "unit"};
  return words[static_cast<std::size_t>(who)];
}
constexpr std::string_view word(fault what) {
  constexpr std::array words{"exit", "kill", "stop", "exec", "fork", "descriptors", "slow", "core"};
  return words[static_cast<std::size_t>(what)];
}
constexpr std::string_view word(mechanism_used how) {
  constexpr std::array words{"trap_agent", "batch_agent", "trap_in_process", "batch_in_process",
                             "channels_agent"};
  return words[static_cast<std::size_t>(how)];
}
constexpr bool in_agent(mechanism_used how) {
  return how != mechanism_used::trap_in_process && how != mechanism_used::batch_in_process;
}
/// Whether what is suspended stays so when the agent dies, unless its guardian resumes it.
constexpr bool outlives_agent(mechanism_used how) { return how == mechanism_used::channels_agent; }
constexpr bool by_batch(mechanism_used how) {
  return how == mechanism_used::batch_agent || how == mechanism_used::batch_in_process;
}

/// What comes of it while online work is in flight and offline work is suspended. The bounds are
/// when offline work runs again; each adds the remaining time of driver calls in flight.
enum class effect : std::uint8_t {
  ends,          ///< The online work counts as ended: 200 ms.
  is_looked_up,  ///< The same, at discovery's next look: 1.2 s.
  goes_on,       ///< Nothing changes for the others: they run again 200 ms after the work's end.
  max_suspend,   ///< Nobody ends the work: max_suspend + 200 ms.
  breaks,        ///< The rest of the gang is let go of, the others stay held: 200 ms.
  releases,      ///< Whoever held is gone: 200 ms.
  lease,         ///< It is found out: lease + 200 ms.
  stays,         ///< Held until it goes on or is gone: what the agent is there for.
  calls,         ///< Calls in flight last as long.
  gone,          ///< There is no GPU any more: nobody hangs.
  next_agent,    ///< The next agent releases it when it starts.
  rescue,        ///< What systemd runs then releases it: `sluice rescue`.
  same,          ///< As another cell, see `like`.
};

constexpr std::string_view word(effect what) {
  constexpr std::array words{"ended",      "rescan", "unaffected", "max_suspend", "gang ends",
                             "released",   "lease",  "stays",      "calls",       "no GPU",
                             "next agent", "rescue", "same"};
  return words[static_cast<std::size_t>(what)];
}

struct cell {
  party who{};
  fault what{};
  effect then{};              ///< With the agent.
  effect in_process{};        ///< Where the scheduler's own process acts.
  std::string_view log = "";  ///< What host or agent says of it, a part of a line: see log_of().
  fault like{};               ///< Of `same`: the same party's.
};

inline constexpr std::array cells{
    cell{party::client, fault::exit, effect::ends, effect::ends, "with 1 request in flight"},
    cell{party::client, fault::kill, effect::same, effect::same, "", fault::exit},
    cell{party::client, fault::stop, effect::max_suspend, effect::max_suspend,
         "by the limit max_suspend"},
    cell{party::client, fault::exec, effect::ends, effect::ends, "with 1 request in flight"},
    cell{party::client, fault::fork, effect::ends, effect::ends, "with 1 request in flight"},
    cell{party::client, fault::descriptors, effect::goes_on, effect::goes_on},
    cell{party::client, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::client, fault::core, effect::ends, effect::ends, "is writing a core file with 1"},

    cell{party::online, fault::exit, effect::ends, effect::ends, "ended; its queues count as idle"},
    cell{party::online, fault::kill, effect::same, effect::same, "", fault::exit},
    cell{party::online, fault::stop, effect::goes_on, effect::goes_on},
    cell{party::online, fault::exec, effect::is_looked_up, effect::is_looked_up,
         "ended; its queues count as idle"},
    cell{party::online, fault::fork, effect::ends, effect::ends, "ended; its queues count as idle"},
    cell{party::online, fault::descriptors, effect::goes_on, effect::goes_on},
    cell{party::online, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::online, fault::core, effect::max_suspend, effect::max_suspend,
         "by the limit max_suspend"},

    cell{party::offline, fault::exit, effect::goes_on, effect::goes_on,
         "has ended while some of its queues"},
    cell{party::offline, fault::kill, effect::same, effect::same, "", fault::exit},
    cell{party::offline, fault::stop, effect::goes_on, effect::goes_on},
    cell{party::offline, fault::exec, effect::goes_on, effect::goes_on,
         "has executed another program while"},
    cell{party::offline, fault::fork, effect::goes_on, effect::goes_on,
         "has ended while some of its queues"},
    cell{party::offline, fault::descriptors, effect::goes_on, effect::goes_on},
    cell{party::offline, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::offline, fault::core, effect::goes_on, effect::goes_on},

    cell{party::gang, fault::exit, effect::breaks, effect::breaks,
         "has ended while some of its queues"},
    cell{party::gang, fault::kill, effect::same, effect::same, "", fault::exit},
    cell{party::gang, fault::stop, effect::goes_on, effect::goes_on},
    cell{party::gang, fault::exec, effect::goes_on, effect::goes_on,
         "has executed another program while"},
    cell{party::gang, fault::fork, effect::breaks, effect::breaks,
         "has ended while some of its queues"},
    cell{party::gang, fault::descriptors, effect::goes_on, effect::goes_on},
    cell{party::gang, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::gang, fault::core, effect::breaks, effect::breaks,
         "has ended while some of its queues"},

    // An exiting process closes its connection before it has ended.
    cell{party::host, fault::exit, effect::releases, effect::releases,
         "the agent resumes everything"},
    cell{party::host, fault::kill, effect::same, effect::same, "", fault::exit},
    cell{party::host, fault::stop, effect::lease, effect::stays, "the host has been silent"},
    cell{party::host, fault::exec, effect::releases, effect::releases,
         "the agent resumes everything"},
    cell{party::host, fault::fork, effect::releases, effect::releases,
         "the agent resumes everything"},
    cell{party::host, fault::descriptors, effect::goes_on, effect::goes_on,
         "out of file descriptors"},
    cell{party::host, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::host, fault::core, effect::lease, effect::stays, "the host has been silent"},

    cell{party::agent, fault::exit, effect::releases, effect::same,
         "the agent exits: it received a"},
    cell{party::agent, fault::kill, effect::releases, effect::same, "lost"},
    cell{party::agent, fault::stop, effect::lease, effect::same, "the agent has been silent"},
    cell{party::agent, fault::exec, effect::same, effect::same, "", fault::kill},
    cell{party::agent, fault::fork, effect::same, effect::same, "", fault::kill},
    cell{party::agent, fault::descriptors, effect::goes_on, effect::same, "Too many open files"},
    cell{party::agent, fault::slow, effect::goes_on, effect::same},
    cell{party::agent, fault::core, effect::same, effect::same, "", fault::kill},

    cell{party::device, fault::exit, effect::gone, effect::gone, "this program exits"},
    cell{party::device, fault::kill, effect::gone, effect::gone, "this program exits"},
    cell{party::device, fault::stop, effect::calls, effect::calls, "driver call timed out"},
    cell{party::device, fault::exec, effect::same, effect::same, "", fault::kill},
    cell{party::device, fault::fork, effect::same, effect::same, "", fault::exit},
    cell{party::device, fault::descriptors, effect::goes_on, effect::goes_on},
    cell{party::device, fault::slow, effect::goes_on, effect::goes_on},
    cell{party::device, fault::core, effect::same, effect::same, "", fault::stop},
};

/// Where suspended work outlives the agent.
inline constexpr std::array guarded_cells{
    cell{party::guardian, fault::kill, effect::releases, effect::same, "its guardian has exited"},
    cell{party::guardian, fault::stop, effect::lease, effect::same, "its guardian has been silent"},
    cell{party::guardian, fault::descriptors, effect::goes_on, effect::same},
    cell{party::guardian, fault::slow, effect::goes_on, effect::same},
    cell{party::pair, fault::kill, effect::next_agent, effect::same, "ended without resuming"},
    cell{party::unit, fault::kill, effect::rescue, effect::same},
};

constexpr const cell* find_cell(party who, fault what) {
  const auto is_it = [&](const cell& each) { return each.who == who && each.what == what; };
  for (const cell& each : cells) {
    if (is_it(each)) return &each;
  }
  for (const cell& each : guarded_cells) {
    if (is_it(each)) return &each;
  }
  return nullptr;
}

/// One to be run.
struct combination {
  party who{};
  fault what{};
  mechanism_used how{};
  friend auto operator<=>(const combination&, const combination&) =
      default;  // NOLINT: clang-tidy 14 takes its 0 for a pointer.
};

constexpr effect effect_of(const combination& one) {
  const cell* const found = find_cell(one.who, one.what);
  // NVIDIA: a program that has no descriptor of the device uses no GPU, and is no rank any more.
  if (outlives_agent(one.how) && one.who == party::gang && one.what == fault::exec)
    return effect::breaks;
  return in_agent(one.how) ? found->then : found->in_process;
}

/// What has to be in the log. Nothing where the host was the acting side, and who failed: nobody is
/// left to say it. Nor where discovery may see the end of a process before its lane does, and
/// lets go of the queues: batch commands do so at once. Of the end of a process NVIDIA's driver
/// needs no notice.
constexpr std::string_view log_of(const combination& one) {
  const effect then = effect_of(one);
  const bool nobody_says_it = !in_agent(one.how) && one.who == party::host &&
                              (then == effect::releases || then == effect::stays);
  const bool may_be_unsaid =
      (outlives_agent(one.how) ||
       (by_batch(one.how) && (!in_agent(one.how) || one.what == fault::core))) &&
      (one.who == party::offline || one.who == party::gang);
  return nobody_says_it || may_be_unsaid ? std::string_view{} : find_cell(one.who, one.what)->log;
}

/// All that can be told from their neighbours, of AMD's driver.
inline std::vector<combination> all_combinations() {
  std::vector<combination> all;
  for (const cell& each : cells) {
    for (const mechanism_used how : mechanisms) {
      const combination one{each.who, each.what, how};
      if (effect_of(one) != effect::same) all.push_back(one);
    }
  }
  return all;
}

/// The same of NVIDIA's driver, where no online work is seen but that of clients. It cannot go
/// while a process uses it.
inline std::vector<combination> all_of_channels() {
  constexpr auto how = mechanism_used::channels_agent;
  std::vector<combination> all;
  for (const cell& each : cells) {
    if (each.then != effect::same && each.then != effect::gone && each.who != party::online)
      all.push_back({each.who, each.what, how});
  }
  for (const cell& each : guarded_cells) all.push_back({each.who, each.what, how});
  return all;
}

/// Of these, the ones in which other code acts than in those of AMD's driver.
inline std::vector<combination> some_of_channels() {
  constexpr auto how = mechanism_used::channels_agent;
  return {{party::client, fault::exit, how},   {party::offline, fault::exit, how},
          {party::offline, fault::stop, how},  {party::offline, fault::exec, how},
          {party::host, fault::exit, how},     {party::host, fault::stop, how},
          {party::agent, fault::kill, how},    {party::agent, fault::stop, how},
          {party::guardian, fault::kill, how}, {party::guardian, fault::stop, how},
          {party::pair, fault::kill, how},     {party::unit, fault::kill, how},
          {party::device, fault::stop, how}};
}

using pair_of = std::pair<int, int>;
/// The three pairs of a combination, as numbers that tell them apart.
inline std::array<pair_of, 3> pairs_of(const combination& one) {
  const int who = static_cast<int>(one.who);
  const int what = 100 + static_cast<int>(one.what);
  const int how = 200 + static_cast<int>(one.how);
  return {pair_of{who, what}, pair_of{what, how}, pair_of{who, how}};
}

/// A subset in which each pair of party, fault and mechanism occurs that occurs in all of them:
/// always the combination that brings most that is new.
inline std::vector<combination> pairwise_combinations() {
  const auto all = all_combinations();
  std::set<pair_of> wanted;
  for (const combination& each : all) {
    for (const pair_of& pair : pairs_of(each)) wanted.insert(pair);
  }
  std::vector<combination> chosen;
  const auto news = [&](const combination& one) {
    const auto pairs = pairs_of(one);
    return std::count_if(pairs.begin(), pairs.end(),
                         [&](const pair_of& pair) { return wanted.contains(pair); });
  };
  while (!wanted.empty()) {
    const auto best = std::max_element(
        all.begin(), all.end(),
        [&](const combination& a, const combination& b) { return news(a) < news(b); });
    for (const pair_of& pair : pairs_of(*best)) wanted.erase(pair);
    chosen.push_back(*best);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

inline std::string name_of(const combination& one) {
  return std::string{word(one.who)} + "_" + std::string{word(one.what)} + "_" +
         std::string{word(one.how)};
}

}  // namespace sluice::test
