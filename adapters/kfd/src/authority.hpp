#pragma once
/// \file
/// Whom the driver lets operate on a debug session.

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

}  // namespace sluice::kfd
