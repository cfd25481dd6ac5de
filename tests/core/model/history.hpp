#pragma once
/// \file
/// Histories of a node as lists of steps: how they are made at random, played to a whole scheduler
/// in virtual time, made smaller when one fails, and written down.

#include "driver.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sluice::tests {

/// What happens. A step that does not fit the moment (a queue of a process that is not there) does
/// nothing, so every part of a history is a history.
enum class op : std::uint8_t {
  world,      ///< Before all else: a: with SDMA, b: inbox capacity.
  turn,       ///< What is due now is done.
  wait,       ///< a: microseconds.
  start,      ///< a: slot, b: role by each source, gang, priority, c: how it is told.
  exit,       ///< a: slot, c: how.
  exec,       ///< a: slot, c: how.
  role,       ///< a: slot, b: as in start, c: how.
  create,     ///< a: slot, b: GPU and type, c: how.
  destroy,    ///< a: slot, b: queue, c: how.
  gpu,        ///< a: GPU, b: reset domain.
  tell,       ///< a: source, b: how many of what waits, c: 1: the wrong way round.
  repeat,     ///< a: slot, b: times: what is so is said again, by both.
  resync,     ///< a: source.
  begin,      ///< a: client.
  end,        ///< a: client.
  enlist,     ///< a: client, b: its GPUs by bit.
  withdraw,   ///< a: client.
  pointers,   ///< a: slot, b: GPU, c: what they say.
  peers,      ///< a: gang, b: for how many milliseconds they answer; 1: for ever, c: odd: they want
              ///< it held.
  fault,      ///< a: slot, b: queue, c: which.
  latency,    ///< a: slot, b: microseconds.
  stuck,      ///< a: slot.
  no_attach,  ///< a: slot, b: error.
  no_submit,  ///< a: error.
  no_detach,  ///<
  mute,       ///< a: slot, b: microseconds.
  order,      ///< a: with which lane.
  hang_up,    ///< a: slot: its session ends, and it is told b microseconds later.
  lose_gpu,   ///< a: GPU, b: who says so.
  rearm,      ///< a: GPU, b: who says so.
  keep,       ///< a: GPU, b: milliseconds.
  fall_back,  ///<
  crash,      ///< a: reports that are still heard.
  restore,    ///<
  configure,  ///< a: which settings.
  policy,     ///< a: which, b: seed.
  rest,       ///< Everything comes to rest, and is looked at. a: whose policy.
};

struct step {
  op what{};
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  bool operator==(const step&) const = default;
};
using steps = std::vector<step>;

/// The same for the same seed.
steps make_steps(std::uint64_t seed, std::size_t count);

struct verdict {
  std::string complaint;  ///< Empty: all was well.
  std::size_t at = 0;     ///< Steps up to the one that failed.
  // What it came to.
  std::uint64_t commands = 0;
  std::uint64_t turns = 0;
  std::uint64_t overflows = 0;
  std::uint64_t forced = 0;
  std::uint64_t restarts = 0;
  std::uint64_t for_peers = 0;
  bool well() const noexcept { return complaint.empty(); }
};

/// A new scheduler lives through it, stops, and is judged all the way.
verdict play(const steps& all, model_driver::planted bug = model_driver::planted::none);

/// Leaves out what is not needed for `fails` to hold, and makes arguments smaller: no step can be
/// left out of what comes out.
steps shrink(steps all, const std::function<bool(const steps&)>& fails);

/// As C++, for a regression test.
std::string to_text(const steps& all);

}  // namespace sluice::tests
