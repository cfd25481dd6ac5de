#pragma once
/// \file
/// Time slices of channel groups, and those that the driver gave them: several lanes may have one
/// client.

#include "rm.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "sluice/nvidia/uapi.hpp"

namespace sluice::nvidia {

/// A group's slice, as one agent changes it.
///
/// Threading: any thread; calls for one group wait for each other.
class group_slice {
 public:
  explicit group_slice(uapi::NvHandle group) noexcept : group_(group) {}

  /// Reads the driver's own slice, unless that is known. \return the driver's refusal.
  rm_status own(const rm_client& client, std::uint64_t& microseconds);
  /// After own(). \param by which lane: any address.
  rm_status set(const rm_client& client, const void* by, std::uint64_t microseconds);
  /// Ends what this lane set: the slice is another lane's, or the driver's own.
  rm_status restore(const rm_client& client, const void* by);

 private:
  const uapi::NvHandle group_;
  std::mutex mutex_;
  std::optional<std::uint64_t> own_;
  std::map<const void*, std::uint64_t> wanted_;  ///< By lane.
};

/// Threading: any thread.
class slice_book {
 public:
  using entry = std::shared_ptr<group_slice>;
  /// Returns the object of a group. It lives as long as a lane has it, so that the driver's own
  /// slice is read only while no lane has changed it.
  [[nodiscard]] entry of(uapi::NvHandle client, uapi::NvHandle group);

 private:
  std::mutex mutex_;
  std::map<std::pair<uapi::NvHandle, uapi::NvHandle>, std::weak_ptr<group_slice>> entries_;
};

}  // namespace sluice::nvidia
