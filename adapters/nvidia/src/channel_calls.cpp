#include "channel_calls.hpp"

#include <algorithm>

namespace sluice::nvidia {

namespace {

constexpr std::size_t most_channels = uapi::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES;

/// Whether the driver did not find what the call names.
bool names_a_gone_one(const rm_status& status) {
  return status.is(uapi::NV_ERR_OBJECT_NOT_FOUND) || status.is(uapi::NV_ERR_INVALID_CLIENT) ||
         status.is(uapi::NV_ERR_INVALID_CHANNEL);
}

/// What became of the channel that a call named alone.
channel_state state_after(const rm_status& status) {
  if (status) return channel_state::changed;
  if (names_a_gone_one(status)) return channel_state::gone;
  const bool refused = status.is(uapi::NV_ERR_INSUFFICIENT_PERMISSIONS) ||
                       status.is(uapi::NV_ERR_INVALID_ARGUMENT) ||
                       status.is(uapi::NV_ERR_INVALID_PARAM_STRUCT) ||
                       status.is(uapi::NV_ERR_NOT_SUPPORTED);
  return refused ? channel_state::refused : channel_state::doubtful;
}

}  // namespace

void channel_calls::expect(gpu_id gpu, bool disable, std::size_t threads) {
  const std::scoped_lock held{mutex_};
  devices_[gpu].expected[disable] = {.threads = threads, .until = clock::now() + gathering_};
}

rm_status channel_calls::call(const rm_client& client, uapi::NvHandle subdevice, gpu_id gpu,
                              bool disable, std::span<const channel_name> channels, bool joins) {
  request own{.disable = disable, .channels = channels};
  std::unique_lock lock{mutex_};
  device& on = devices_[gpu];
  on.waiting.push_back(&own);
  expectation& others = on.expected[disable];
  if (joins && others.threads > 0 && --others.threads == 0) gathered_.notify_all();
  freed_.wait(lock, [&] { return own.answered || !on.busy; });
  if (own.answered) return own.answer;
  on.busy = true;
  if (channels.size() < most_channels)
    gathered_.wait_until(lock, others.until, [&] { return others.threads == 0; });
  // This thread calls, for all that wait for the same and have room beside its own channels.
  std::vector<request*> shared{&own};
  std::vector<channel_name> names{channels.begin(), channels.end()};
  on.waiting.remove(&own);
  for (auto each = on.waiting.begin(); each != on.waiting.end();) {
    if ((*each)->disable != disable || names.size() + (*each)->channels.size() > most_channels) {
      ++each;
      continue;
    }
    names.insert(names.end(), (*each)->channels.begin(), (*each)->channels.end());
    shared.push_back(*each);
    each = on.waiting.erase(each);
  }
  lock.unlock();
  const rm_status answer = client.disable(subdevice, disable, names);
  lock.lock();
  on.busy = false;
  for (request* const each : shared) {
    each->answered = true;
    each->answer = answer;
  }
  freed_.notify_all();
  return answer;
}

rm_status channel_calls::change(const rm_client& client, uapi::NvHandle subdevice, gpu_id gpu,
                                bool disable, std::span<const channel_name> channels,
                                const std::function<void(std::size_t, channel_state)>& became) {
  rm_status refused;
  for (std::size_t first = 0; first < channels.size(); first += most_channels) {
    const auto part = channels.subspan(first, std::min(most_channels, channels.size() - first));
    rm_status done = call(client, subdevice, gpu, disable, part, first == 0);
    // What failed may be another client's part, and the call may have disabled those channels that
    // it names before a channel that is gone. An enable too many is harmless.
    if (!done && (!disable || client.disable(subdevice, false, part)))
      done = client.disable(subdevice, disable, part);
    if (done) {
      for (std::size_t index = 0; index < part.size(); ++index)
        became(first + index, channel_state::changed);
      continue;
    }
    for (std::size_t index = 0; index < part.size(); ++index) {
      const auto one = part.subspan(index, 1);
      // Without it, the channel may be disabled once more than is counted.
      const rm_status undone = disable ? client.disable(subdevice, false, one) : rm_status{};
      const rm_status single = undone ? client.disable(subdevice, disable, one) : undone;
      channel_state state = state_after(single);
      // Not the channel, but the client or the subdevice may be what the driver did not find.
      if (state == channel_state::gone && client.class_of(one.front().channel))
        state = channel_state::doubtful;
      if (state == channel_state::doubtful || state == channel_state::refused) refused = single;
      became(first + index, state);
    }
  }
  return refused;
}

}  // namespace sluice::nvidia
