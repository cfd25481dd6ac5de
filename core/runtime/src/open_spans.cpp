#include "open_spans.hpp"

#include <sys/random.h>

#include <chrono>

namespace sluice::core {

std::uint64_t open_spans::secret() noexcept {
  std::uint64_t made = 0;
  if (::getrandom(&made, sizeof made, GRND_NONBLOCK) == sizeof made) return made;
  // Before the kernel has gathered any; then little is served, either.
  const auto address = reinterpret_cast<std::uintptr_t>(&made);
  return static_cast<std::uint64_t>(clock::now().time_since_epoch().count()) ^ (address << 32);
}

}  // namespace sluice::core
