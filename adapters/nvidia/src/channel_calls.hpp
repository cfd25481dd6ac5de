#pragma once
/// \file
/// Disables and enables channels of one client.

#include "client_objects.hpp"
#include "rm.hpp"

#include <cstdint>
#include <functional>
#include <span>

namespace sluice::nvidia {

enum class channel_state : std::uint8_t {
  changed,  ///< Disabled or enabled once.
  gone,     ///< The driver does not have it any more: nothing was changed.
  doubtful  ///< The driver refused, and may have changed it before.
};

/// Disables or enables channels of one GPU, 64 in a call. After a call that names a channel that is
/// gone, the rest are named one by one.
/// \param client     one of those that the channels belong to.
/// \param subdevice  of that client, on the channels' GPU.
/// \param became     called once for each channel, by its index.
/// \return the last refusal.
rm_status change(const rm_client& client, uapi::NvHandle subdevice, bool disable,
                 std::span<const channel_name> channels,
                 const std::function<void(std::size_t, channel_state)>& became);

}  // namespace sluice::nvidia
