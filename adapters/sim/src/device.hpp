#pragma once
/// \file
/// A simulated device in real time, put together: the directory, the driver above its engine, and
/// the file system that carries processes' calls to it.

#include "profile.hpp"

#include <functional>
#include <string>

namespace sluice::sim {

struct device_options {
  std::string root;  ///< Directory to appear under; made if it does not exist.
  profile node;
};

/// Runs a device until SIGINT or SIGTERM, then removes every trace of it.
///
/// Threading: from the main thread of a process with no other thread; blocks SIGINT, SIGTERM and
///            SIGHUP in it, and ignores SIGPIPE.
/// \param ready called once, when the device can be used.
/// Errors: throws std::runtime_error with a sentence for the user.
void run_device(const device_options& options, const std::function<void()>& ready);

}  // namespace sluice::sim
