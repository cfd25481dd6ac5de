#pragma once
/// \file
/// The processor time of the calling thread. A clock also shows what other processes did.

#include <time.h>

#include <chrono>

namespace sluice::test {

inline std::chrono::nanoseconds thread_time() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace sluice::test
