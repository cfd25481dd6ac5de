#include "service_manager.hpp"

#include <systemd/sd-daemon.h>

#include <chrono>
#include <string>

#include <fmt/format.h>

namespace sluice::cli::service_manager {

namespace {

void tell(const std::string& state) { (void)::sd_notify(0, state.c_str()); }

}  // namespace

void ready(std::string_view status) { tell(fmt::format("READY=1\nSTATUS={}", status)); }
void status(std::string_view status) { tell(fmt::format("STATUS={}", status)); }
void reloading() {
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
  tell(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", now.count()));
}
void stopping() { tell("STOPPING=1"); }
void alive() { tell("WATCHDOG=1"); }

duration alive_every() {
  std::uint64_t microseconds = 0;
  if (::sd_watchdog_enabled(0, &microseconds) <= 0) return {};
  return std::chrono::microseconds(microseconds / 2);
}

}  // namespace sluice::cli::service_manager
