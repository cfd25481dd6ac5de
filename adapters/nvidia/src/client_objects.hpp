#pragma once
/// \file
/// The objects of an RM client that matter for suspending: channels, their groups and GPUs.

#include "handle_scan.hpp"
#include "rm.hpp"
#include "stop_function.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/nvidia/uapi.hpp"

namespace sluice::nvidia {

struct channel_group {
  uapi::NvHandle handle = 0;
  uapi::NvHandle subdevice = 0;
  gpu_id gpu{};
  bool computes = false;  ///< A channel of it has a compute object.
};

struct channel {
  uapi::NvHandle handle = 0;
  uapi::NvHandle group = 0;
};

/// libcuda numbers its objects upwards, so a look asks the driver for each number up to the newest
/// one. Questions about numbers that are not in use cost 2.5 us and leave no line in the kernel's
/// log.
///
/// Threading: one thread at a time. Lifetime: that of the client's descriptor.
class client_objects {
 public:
  /// \param newest a handle up to which there are objects, as far as known.
  client_objects(rm_client client, uapi::NvHandle newest) noexcept
      : client_(client), newest_(newest) {}

  /// Reads what is new, and removes what is gone. Asks a bounded number of questions: what a
  /// process creates faster than that is found by later looks.
  /// \param stops asked before each question; true ends the look. The next one then asks what is
  ///              left of it. What the process makes between both may be left to the one after it.
  void look(const stop_function& stops = {});
  /// Returns why sluice does not understand this client: the end of a sentence about the process.
  /// Empty: it does.
  [[nodiscard]] std::string not_understood() const;

  [[nodiscard]] const rm_client& client() const noexcept { return client_; }
  [[nodiscard]] const std::map<uapi::NvHandle, channel_group>& groups() const noexcept {
    return groups_;
  }
  [[nodiscard]] const std::map<uapi::NvHandle, channel>& channels() const noexcept {
    return channels_;
  }
  [[nodiscard]] const channel_group* group_of(const channel& which) const noexcept {
    const auto found = groups_.find(which.group);
    return found == groups_.end() ? nullptr : &found->second;
  }

 private:
  /// Asks for the numbers from `next_` to this one, exclusive. \return false if the driver did not
  /// answer.
  bool ask_again(uapi::NvHandle end);
  /// \return false if the driver did not answer.
  bool add(uapi::NvHandle handle, std::uint32_t cls);
  /// \param from the first number to ask for; those below were.
  /// \return false if it was stopped.
  template <class Objects>
  bool drop_freed(Objects& all, uapi::NvHandle& from, const stop_function& stops) const;
  /// \return false if it was stopped.
  bool sweep(const stop_function& stops);
  /// The next look asks for everything.
  void begin_anew() noexcept { groups_from_ = channels_from_ = swept_ = asked_ = missed_ = 0; }
  void check_listed();
  void name_gpu(channel_group& of) const;

  rm_client client_;
  uapi::NvHandle newest_;
  uapi::NvHandle next_ = first_object;  ///< All below were asked for.
  std::uint32_t sweep_ = 0;             ///< How far beyond `next_` the last sweep asked.
  /// What the look that was stopped has asked for.
  std::uint32_t swept_ = 0;
  uapi::NvHandle groups_from_ = 0;
  uapi::NvHandle channels_from_ = 0;
  uapi::NvHandle asked_ = 0;
  std::uint32_t missed_ = 0;  ///< Numbers in a row before `asked_` that are not in use.
  bool looked_ = false;
  bool complete_ = false;                             ///< The last look reached the newest object.
  std::map<uapi::NvHandle, uapi::NvHandle> devices_;  ///< Subdevice by device.
  std::map<uapi::NvHandle, gpu_id> subdevices_;
  std::map<uapi::NvHandle, channel_group> groups_;
  std::map<uapi::NvHandle, channel> channels_;
  bool partitioned_ = false;
  bool unlisted_ = false;  ///< It has an object that a look does not reach.
};

}  // namespace sluice::nvidia
