#pragma once
/// \file
/// How a source brings in clients that live in other processes. For whoever writes such a source;
/// clients of this process use scheduler::register_client().

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "sluice/client_words.h"
#include "sluice/ids.hpp"
#include "sluice/online_client.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Hears of the client that it brought in.
///
/// Threading: reactor thread, inside a turn: take note, and act later.
class remote_client {
 public:
  /// Whether something that it began counts, whenever that changes.
  virtual void in_flight(bool any) = 0;
  /// What its page says cannot be, `why` being a clause for a log line: it counts no longer. The
  /// last call; remove() is still owed, and frees its page.
  virtual void thrown_out(std::string_view why) = 0;

 protected:
  ~remote_client() = default;
};

/// Threading: reactor thread, and not from inside remote_client's calls.
class client_host {
 public:
  /// The page with the scheduler's words (see client_words.h): a memfd that only this process can
  /// write. -1: the system gave none.
  virtual int scheduler_page() const noexcept = 0;
  /// Whether a source has seen that GPU.
  virtual bool knows(gpu_id which) const = 0;
  /// A client whose words another process writes. They may have been another scheduler's before:
  /// what is in flight in them begins now, and only the rest is past.
  /// \param words they must stay readable whatever that process does; kept until the turn after
  ///              remove(). Nothing in them is trusted.
  /// \param hears outlives the client, or hears of nothing after remove().
  /// \return errc::unknown_target when `options` names a GPU that no source has seen;
  ///         errc::stopped.
  [[nodiscard]] virtual result<client_id> add(client_options options,
                                              std::shared_ptr<sluice_client_words> words,
                                              remote_client& hears) = 0;
  /// What it had in flight counts as ended. Fine for one that is gone.
  virtual void remove(client_id id) = 0;
  /// As online_client::acquire(): calls `done(clear)` once, inside a turn, when every offline queue
  /// on the client's GPUs that can be suspended is, at `deadline`, or while nobody makes room.
  /// \return a number for stop_waiting(); 0: nobody will answer (the scheduler only observes, say),
  /// and `done` was not taken.
  virtual std::uint64_t wait_until_clear(client_id id, time_point deadline,
                                         std::function<void(bool)> done) = 0;
  /// \return whether it was in time: `done` will not be called then.
  virtual bool stop_waiting(std::uint64_t wait) = 0;
  /// A client rang: a turn, here and now.
  virtual void look() = 0;

 protected:
  ~client_host() = default;
};

}  // namespace sluice
#pragma GCC visibility pop
