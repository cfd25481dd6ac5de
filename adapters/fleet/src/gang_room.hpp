#pragma once
/// \file
/// What one node knows of a gang's nodes, and what follows from it. No input or output.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/gang_state.hpp"
#include "sluice/time.hpp"

namespace sluice::fleet {

/// Each node of a gang has one key, its name. The value is a number, which is another one each time
/// that the node writes (a beat), what it wants (hold, run or refused), and how many nodes the gang
/// has: "17 hold 2".
///
/// A node hears all while all nodes have their keys, and all beats are fresh: those of other nodes
/// came less than `fresh` ago, and the own one, as it comes back from where all see it, was sent
/// less than `fresh` ago. If it does not, it refuses, whatever it wants. The gang may be held while
/// this node hears all and no other one refuses. So a node that can send but not hear, or the other
/// way round, finds out by itself, and the others find out as well.
///
/// Threading: one thread.
class gang_room {
 public:
  /// \param node this node's name.
  /// \param first number of the first beat: another for each program, to know own beats.
  gang_room(std::string node, std::uint32_t nodes, duration fresh, std::uint32_t first)
      : node_(std::move(node)), nodes_(nodes), fresh_(fresh), first_(first) {}

  void wants(gang_wish wish) noexcept { wish_ = wish; }
  std::uint32_t nodes() const noexcept { return nodes_; }
  /// What the own state is to be: "hold 2".
  std::string state(time_point now) const;
  /// A value to write.
  /// \param since when the scheduler last said that it lives: the beat is as old.
  std::string beat(time_point since, time_point now);
  /// A key was read: its beat is of an unknown age. Names that no node can have are ignored.
  void reads(std::string_view node, std::string_view value);
  /// A key was written, or deleted.
  void hears(std::string_view node, const std::optional<std::string>& value, time_point now);
  /// All that was heard is out of date.
  void forget();

  struct verdict {
    time_point until{};  ///< The gang may be held until then; the epoch: not.
    bool hold = false;   ///< Another node wants it.

    friend bool operator==(const verdict&, const verdict&) = default;
  };
  /// Until the own state is there as it is wanted, nothing counts for longer than before.
  verdict decide(time_point now);
  /// Why the gang may not be held; for a log.
  std::string problem(time_point now) const;

 private:
  struct peer {
    std::string state{};
    time_point heard{};  ///< When it was last written; the epoch: not since it was read.
  };
  std::string text_of(gang_wish wish) const;
  bool is_fresh(const peer& one, time_point now) const noexcept { return one.heard + fresh_ > now; }
  bool has_namesake(time_point now) const noexcept {
    return namesake_ != time_point{} && namesake_ + fresh_ > now;
  }
  bool hears_all(time_point now) const;
  bool refuses(const peer& one) const;

  const std::string node_;
  const std::uint32_t nodes_;
  const duration fresh_;
  const std::uint64_t first_;
  gang_wish wish_ = gang_wish::refused;
  time_point settled_until_{};                ///< As last decided with the own state there.
  std::uint64_t number_ = first_;             ///< Of the next beat.
  time_point namesake_{};                     ///< When another program wrote the key of this node.
  std::map<std::uint64_t, time_point> sent_;  ///< Own beats that have not come back.
  std::map<std::string, peer, std::less<>> peers_;
};

/// Of nodes and clusters, as parts of keys.
bool is_name(std::string_view text) noexcept;

}  // namespace sluice::fleet
