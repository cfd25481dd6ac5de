#pragma once
/// \file
/// The source port: what looks at the node and says what it sees (see observation.hpp). A source
/// knows nothing of policies.

#include <sys/types.h>

#include <string_view>

#include "sluice/breaker.hpp"
#include "sluice/client_host.hpp"
#include "sluice/gang_state.hpp"
#include "sluice/inbox.hpp"
#include "sluice/reactor.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// What a source gets to work with.
///
/// Threading: reactor thread.
class source_host {
 public:
  virtual reactor& loop() = 0;
  /// One more inbox for this source: one per thread that pushes. Only before start() returns.
  virtual inbox_producer& claim_inbox() = 0;
  /// For sources that bring in clients. nullptr: this host takes none.
  virtual client_host* clients() noexcept { return nullptr; }

 protected:
  ~source_host() = default;
};

/// Threading: every call on the reactor thread.
/// Lifetime:  the host outlives the source. stop() always follows a successful start(), and nothing
///            may be pushed after it returned.
class source {
 public:
  virtual ~source() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Begins to watch. A source that reads its world once at start sends it between resync_begin
  /// and resync_end as well. May block for a short while.
  virtual result<void> start(source_host& host) = 0;
  /// An observation was lost: send everything again, between resync_begin and resync_end. What is
  /// not named in between counts as gone. Must not block; a source with a thread of its own passes
  /// the request on to it.
  virtual void resync() = 0;
  virtual void stop() = 0;
  /// A breaker opened or closed, but for one that opened by an observation_kind::breaker_kept. For
  /// who keeps them where a restarted scheduler and operators find them. Must not block.
  virtual void breaker_changed(const breaker_change& what) { (void)what; }
  /// Look at the read and write pointers of online queues every `every`, from now on, and say what
  /// changed as observation_kind::pointers_seen, everything once at first; zero: not at all, as at
  /// the start. Must not block.
  virtual void poll_pointers(duration every) { (void)every; }
  /// As backend::marks_requests(): leave the pointers of such a process alone, and look at them
  /// anew once its clients have left. What comes of it meanwhile is ignored. Must not block.
  virtual void marks_requests(pid_t pid, bool so) {
    (void)pid;
    (void)so;
  }
  /// What the scheduler wants of a gang on several nodes is new. For who tells the other nodes,
  /// which answer with observation_kind::gang_heard. Must not block.
  virtual void gang_changed(const gang_state& what) { (void)what; }
};

}  // namespace sluice
#pragma GCC visibility pop
