#pragma once
/// \file
/// What a driver holds that the kernel does not let go of when the agent ends: written down before
/// it is done, where the agent's guardian and whoever comes after both of them read it.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)
namespace sluice {

/// One thing that is held, or may be: what acting_driver::release() needs to let go of it.
struct hold {
  static constexpr std::size_t most_bytes = 1000;

  pid_t pid = 0;  ///< Whose it is. 0: nobody's.
  std::uint32_t bytes = 0;
  std::uint64_t start_time = 0;          ///< Of the process, as in /proc/PID/stat.
  std::array<char, most_bytes> about{};  ///< The driver's; the first `bytes` mean something.

  std::string_view text() const noexcept { return {about.data(), bytes}; }
};
static_assert(std::is_trivially_copyable_v<hold>);

/// Threading: any thread. Lifetime: as the agent's.
/// Cost:      a copy of the hold and two atomic operations; no system call.
class hold_book {
 public:
  using number = std::uint32_t;

  /// Before the driver call that may hold.
  /// \return nothing when there is no room: then nothing may be held.
  [[nodiscard]] virtual std::optional<number> enter(const hold& what) noexcept = 0;
  /// It is not held any more.
  virtual void strike(number which) noexcept = 0;

 protected:
  ~hold_book() = default;
};

}  // namespace sluice
#pragma GCC visibility pop
