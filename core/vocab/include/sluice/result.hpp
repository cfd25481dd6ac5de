#pragma once
/// \file
/// Errors as values: `result<T>` carries a T or an error_code of sluice's category or the system's.
/// Boost's categories have a fixed 64-bit id and so stay equal across shared objects, which
/// std::error_code's do not.

#include <cerrno>

#include <boost/system/error_code.hpp>
#include <boost/system/result.hpp>

#pragma GCC visibility push(default)
namespace sluice {

using error_code = boost::system::error_code;

template <class T>
using result = boost::system::result<T, error_code>;

enum class errc {
  busy = 1,        ///< The lane already has a batch in flight; try again after its completion.
  full,            ///< A bounded queue is full; nothing was recorded.
  not_supported,   ///< This backend, driver or kernel cannot do it.
  unknown_target,  ///< No such process, queue, group or client.
  already_owned,   ///< Another scheduler owns this node.
  lost,            ///< The acting side (agent, GPU) is gone; everything runs.
  stopped,         ///< The scheduler is stopping or has stopped.
  bad_config,      ///< A setting is out of its range.
  not_managed,     ///< The target cannot be suspended (no runtime, traced by another, busy debug
                   ///< VMID).
  no_file,         ///< A file is wanted, and something else is there: a directory, a pipe.
};

/// The category of sluice::errc. Any thread; never destroyed.
const boost::system::error_category& sluice_category() noexcept;

inline error_code make_error_code(errc value) noexcept {
  return {static_cast<int>(value), sluice_category()};
}

/// The calling thread's errno as an error_code.
inline error_code last_system_error() noexcept { return {errno, boost::system::system_category()}; }

namespace detail {

struct category final : boost::system::error_category {
  constexpr category() noexcept : error_category(0x5f1c'e5a7'0d1e'c0deULL) {}
  const char* name() const noexcept override { return "sluice"; }
  std::string message(int value) const override {
    switch (static_cast<errc>(value)) {
      case errc::busy: return "the lane is busy";
      case errc::full: return "a bounded queue is full";
      case errc::not_supported: return "not supported by this backend, driver or kernel";
      case errc::unknown_target: return "no such process, queue, group or client";
      case errc::already_owned: return "another scheduler owns this node";
      case errc::lost: return "the agent or the GPU is lost";
      case errc::stopped: return "the scheduler has stopped";
      case errc::bad_config: return "a setting is out of range";
      case errc::not_managed: return "the target cannot be suspended";
      case errc::no_file: return "not a regular file";
    }
    return "unknown sluice error";
  }
};

inline constexpr category category_instance{};

}  // namespace detail

inline const boost::system::error_category& sluice_category() noexcept {
  return detail::category_instance;
}

}  // namespace sluice
#pragma GCC visibility pop

template <>
struct boost::system::is_error_code_enum<sluice::errc> : std::true_type {};
