#pragma once
/// \file
/// Rows of a Markdown table of latencies, and memory in which a client process leaves what it took.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::test {

inline double nanoseconds(duration from) { return static_cast<double>(from.count()); }
inline double microseconds(duration from) { return nanoseconds(from) / 1000; }

inline void print_head() {
  std::printf("| %-58s | %9s | %9s |    |\n|---|---:|---:|---|\n", "", "p50", "p99");
  std::fflush(stdout);
}

inline void print_row(const char* what, double p50, double p99, const char* unit) {
  std::printf("| %-58s | %9.1f | %9.1f | %s |\n", what, p50, p99, unit);
}

/// \pre values is not empty
inline void print_row(const char* what, std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  print_row(what, at(0.5), at(0.99), unit);
}

/// One that this process and those that it forks from now on see; it is never unmapped.
template <class T>
T& shared() {
  void* const at =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory");
  return *new (at) T;
}

}  // namespace sluice::test
