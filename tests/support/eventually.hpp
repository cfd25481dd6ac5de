#pragma once
/// \file
/// Waiting for a condition instead of sleeping.

#include <chrono>
#include <thread>

namespace sluice::test {

/// For what takes milliseconds on an idle machine. A test that promises a duration does not use it.
inline constexpr std::chrono::seconds patience{30};

/// Asks `holds` about every millisecond until it says true, or until the deadline has passed.
/// \return the last answer.
template <class Predicate>
bool eventually(std::chrono::nanoseconds deadline, Predicate holds) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) return holds();
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

}  // namespace sluice::test
