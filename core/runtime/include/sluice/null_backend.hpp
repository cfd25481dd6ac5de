#pragma once
/// \file
/// A backend that touches nothing: a scheduler on it decides as if it acted. For trying a scheduler
/// out where it must not disturb anybody; to try one policy beside what really happens, prefer the
/// policy `shadow`.

#include <chrono>
#include <memory>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

struct null_backend_options {
  /// What a call is assumed to take. The defaults are those of the simulated MI300X, design
  /// estimates that nobody has measured on hardware. 0 to 10 s.
  duration suspend_cost = std::chrono::milliseconds(5);
  duration resume_cost = std::chrono::milliseconds(10);
};

/// Every attach succeeds at once, with the queues that the sources saw; every batch is done after
/// what it is assumed to cost. It opens no driver, traces nobody and takes no lock. What the
/// scheduler counts then is what it would have done: say so wherever it is shown. Clients are told
/// that it observes, and never that a GPU is clear: who waits for that is answered at once.
///
/// What it cannot know: how online and offline work would have fared. A policy that learns from
/// requests (slo) learns how they fare without preemption.
///
/// Threading: the backend's (see sluice/backend.hpp). Errors: start() fails where no timer can be
/// had. Cost: as a table of the sources' queues.
[[nodiscard]] std::unique_ptr<backend> make_null_backend(null_backend_options options = {});

}  // namespace sluice
#pragma GCC visibility pop
