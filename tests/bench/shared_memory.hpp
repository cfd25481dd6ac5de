#pragma once
/// \file
/// Memory that a process and those that it forks from then on see.

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace sluice::bench {

/// One T, never unmapped.
template <class T>
T& shared() {
  void* const at =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return *new (at) T;
}

}  // namespace sluice::bench
