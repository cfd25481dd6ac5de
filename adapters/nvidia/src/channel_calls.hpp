#pragma once
/// \file
/// Disables and enables channels. The driver serialises the calls for one GPU, and takes channels
/// of several clients in a call: so threads that wait for the GPU, or that are expected, share the
/// next call.

#include "client_objects.hpp"
#include "rm.hpp"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::nvidia {

enum class channel_state : std::uint8_t {
  changed,  ///< Disabled or enabled once.
  gone,     ///< The driver does not have it any more: nothing was changed.
  refused,  ///< The driver refused before it changed anything.
  doubtful  ///< The driver refused, and may have changed it before.
};

/// Threading: any thread. Lifetime: longer than every call.
class channel_calls {
 public:
  /// \param gathering how long a thread waits at most for others that are expected: less than the
  ///                  0.3 ms that the shortest call takes on an H100.
  explicit channel_calls(duration gathering = std::chrono::microseconds{200})
      : gathering_(gathering) {}

  /// Announces that several threads are about to call change() for one GPU. The one that calls the
  /// driver then waits for the others. Returns at once.
  void expect(gpu_id gpu, bool disable, std::size_t threads);

  /// Disables or enables channels of one client on one GPU, 64 in a call. A call that fails is
  /// repeated without the channels of other clients, and then for each channel.
  /// \param subdevice of that client, on the channels' GPU.
  /// \param became    called once for each channel, by its index.
  /// \return the last refusal, of a channel that is not gone.
  rm_status change(const rm_client& client, uapi::NvHandle subdevice, gpu_id gpu, bool disable,
                   std::span<const channel_name> channels,
                   const std::function<void(std::size_t, channel_state)>& became);

 private:
  /// What one thread waits for.
  struct request {
    bool disable = false;
    std::span<const channel_name> channels{};
    bool answered = false;
    rm_status answer{};
  };
  /// Threads that have not come yet.
  struct expectation {
    std::size_t threads = 0;
    time_point until{};  ///< No call waits for them any longer.
  };
  struct device {
    bool busy = false;
    std::list<request*> waiting{};
    std::array<expectation, 2> expected{};  ///< To enable, and to disable.
  };

  /// At most 64 channels, in a call that other requests may share. It fails as a whole.
  /// \param joins the thread is one of those that were expected.
  rm_status call(const rm_client& client, uapi::NvHandle subdevice, gpu_id gpu, bool disable,
                 std::span<const channel_name> channels, bool joins);

  const duration gathering_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::condition_variable gathered_;
  std::map<gpu_id, device> devices_;
};

}  // namespace sluice::nvidia
