#pragma once
/// \file
/// Whom the driver lets operate on a debug session.

#include <sys/types.h>

#include "sluice/kfd/device.hpp"

namespace sluice::kfd {

/// Whether the driver authorises the whole process that enabled a session (drivers of mid-2026 on),
/// and not only the thread that traces the target. Then nobody needs to be traced for longer than
/// the ENABLE lasts, and targets keep strace and gdb.
///
/// Found out on a child of our own that does nothing: a session without an enabled runtime costs no
/// GPU anything. Drivers that say no write one line to the kernel's log. The child has no exit
/// signal, so that nobody's wait calls meet it.
///
/// Threading: any thread; blocks for some milliseconds.
bool authorises_process(const device& node);

/// Whether somebody has a debug session with the process, which the calling thread traces. Asked
/// before an ENABLE where tracing excludes nobody: a second one is refused, but takes the authority
/// from whoever has the session, and its end ends that. Of no session the driver writes one line to
/// the kernel's log.
bool has_session(const device& node, pid_t target);

}  // namespace sluice::kfd
