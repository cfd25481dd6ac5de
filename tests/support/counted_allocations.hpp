#pragma once
/// \file
/// Counts heap allocations of the whole program. For one file of a program of its own: it defines
/// malloc and its family. Sanitizers want these for themselves.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace sluice::test::allocation_hook {

// Constant-initialised, for malloc runs before main().
inline std::atomic<bool> counting{false};
inline std::atomic<unsigned long> allocations{0};

inline void count() noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace sluice::test::allocation_hook

// glibc's own names, which its malloc family is an alias of.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  sluice::test::allocation_hook::count();
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) {
  sluice::test::allocation_hook::count();
  return __libc_calloc(number, size);
}
void* realloc(void* old, std::size_t size) {
  sluice::test::allocation_hook::count();
  return __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  sluice::test::allocation_hook::count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  sluice::test::allocation_hook::count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** where, std::size_t alignment, std::size_t size) {
  sluice::test::allocation_hook::count();
  *where = __libc_memalign(alignment, size);
  return *where == nullptr ? ENOMEM : 0;
}
}

namespace sluice::test {

/// Allocations of this process while it lives. One at a time.
class counted_allocations {
 public:
  counted_allocations() {
    allocation_hook::allocations.store(0);
    allocation_hook::counting.store(true);
  }
  ~counted_allocations() { allocation_hook::counting.store(false); }
  counted_allocations(const counted_allocations&) = delete;
  counted_allocations& operator=(const counted_allocations&) = delete;
  unsigned long so_far() const { return allocation_hook::allocations.load(); }
};

}  // namespace sluice::test
