#pragma once
/// \file
/// What the driver leaves in an id of a SUSPEND_QUEUES or RESUME_QUEUES array.

#include <cstdint>

#include "sluice/backend.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd {

/// \param asked the id that went in, \param answered the word that came out.
/// Every bit that is neither the id nor INVALID alone counts as a failure: ERROR, ERROR|INVALID,
/// and status bits that a later driver may add.
constexpr outcome decode_status(std::uint32_t asked, std::uint32_t answered) noexcept {
  if (answered == asked) return outcome::done;
  if (answered == (asked | uapi::KFD_DBG_QUEUE_INVALID_MASK)) return outcome::invalid;
  return outcome::failed;
}

}  // namespace sluice::kfd
