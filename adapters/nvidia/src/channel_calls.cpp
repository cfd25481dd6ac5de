#include "channel_calls.hpp"

#include <algorithm>

namespace sluice::nvidia {

namespace {

/// Whether the driver did not find what the call names.
bool names_a_gone_one(const rm_status& status) {
  return status.is(uapi::NV_ERR_OBJECT_NOT_FOUND) || status.is(uapi::NV_ERR_INVALID_CLIENT) ||
         status.is(uapi::NV_ERR_INVALID_CHANNEL);
}

}  // namespace

rm_status change(const rm_client& client, uapi::NvHandle subdevice, bool disable,
                 std::span<const channel_name> channels,
                 const std::function<void(std::size_t, channel_state)>& became) {
  constexpr std::size_t most = uapi::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES;
  rm_status refused;
  for (std::size_t first = 0; first < channels.size(); first += most) {
    const auto part = channels.subspan(first, std::min(most, channels.size() - first));
    const rm_status done = client.disable(subdevice, disable, part);
    if (!done) refused = done;
    if (done || part.size() == 1 || !names_a_gone_one(done)) {
      const auto all = done                     ? channel_state::changed
                       : names_a_gone_one(done) ? channel_state::gone
                                                : channel_state::doubtful;
      for (std::size_t index = 0; index < part.size(); ++index) became(first + index, all);
      continue;
    }
    // The call may have disabled those that it names before that one. An enable too many is
    // harmless.
    for (std::size_t index = 0; index < part.size(); ++index) {
      const auto one = part.subspan(index, 1);
      if (disable) (void)client.disable(subdevice, false, one);
      const rm_status single = client.disable(subdevice, disable, one);
      if (!single) refused = single;
      became(first + index, single                     ? channel_state::changed
                            : names_a_gone_one(single) ? channel_state::gone
                                                       : channel_state::doubtful);
    }
  }
  return refused;
}

}  // namespace sluice::nvidia
