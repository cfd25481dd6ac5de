#pragma once
/// \file
/// A child of the agent that lets go of what the agent held, once that is gone.

#include "hold_record.hpp"

#include <cstddef>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// Forks it, in a session of its own and with every signal blocked that can be, so that what
/// ends the agent does not end it as well. While the agent lives and says so, it only tries to let
/// go of what an earlier agent left. An agent that has not said so for `lease` it kills first, and
/// waits until the agent is gone for certain: a call in flight may still hold something. Then it
/// lets go of all that the record says, and ends; of what the driver refuses it goes on trying
/// until another agent wants the record. It keeps no descriptor of the agent's but the record's.
///
/// Threading: only while this process has one thread.
/// Lifetime:  record and driver as long as the process.
/// \return its pidfd: readable once it is gone. Then let go of everything and end.
[[nodiscard]] result<unique_fd> start_guardian(hold_record& record, acting_driver& driver,
                                               duration lease);

/// Lets go of all that is there, each on a thread of its own.
/// \param patience how long to try. In any case no longer than until another agent wants the
/// record,
///        which has what is still held.
/// \return how many are still there.
[[nodiscard]] std::size_t release_all(hold_record& record, acting_driver& driver, duration patience,
                                      const message_sink& say);

}  // namespace sluice::agent
