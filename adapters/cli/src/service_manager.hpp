#pragma once
/// \file
/// What a daemon tells the service manager that started it (sd_notify(3)); nothing where none did.

#include <string_view>

#include "sluice/time.hpp"

namespace sluice::cli::service_manager {

// Never on the scheduler's loop: sd_notify() waits where the manager reads nothing (libsystemd has
// no call that does not). Errors are not the daemon's business: it runs without a manager, too.
void ready(std::string_view status);
void status(std::string_view status);
/// Until the next ready().
void reloading();
void stopping();
void alive();
/// How often alive() is wanted: half of what the manager waits for it; zero: not at all.
duration alive_every();

}  // namespace sluice::cli::service_manager
