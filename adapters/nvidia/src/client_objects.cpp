#include "client_objects.hpp"

#include <algorithm>
#include <iterator>

namespace sluice::nvidia {

namespace {

/// clc637.h: an object of a client that uses a MIG partition.
constexpr std::uint32_t AMPERE_SMC_PARTITION_REF = 0xC637;

/// Numbers in a row that are not in use before the first look, or a later one, ends.
constexpr std::uint32_t first_gap = 1024;
constexpr std::uint32_t later_gap = 64;
/// Questions of one look at most, 0.6 s.
constexpr std::uint32_t most_questions = 262144;
/// A process may create and free more objects than `later_gap` between two looks. So each later
/// look also asks for some numbers further on, in turn.
constexpr std::uint32_t sweep_step = 128;
constexpr std::uint32_t longest_sweep = 16384;

/// A failed call is no evidence: only the driver's word is.
bool was_freed(const rm_status& why) { return why.is(uapi::NV_ERR_OBJECT_NOT_FOUND); }

}  // namespace

void client_objects::look(const stop_function& stops) {
  // Groups first: the channels of a group are freed with it.
  if (!drop_freed(groups_, groups_from_, stops) || !drop_freed(channels_, channels_from_, stops) ||
      !sweep(stops))
    return;
  const std::uint32_t gap = looked_ ? later_gap : first_gap;
  const uapi::NvHandle end = std::min(next_ + most_questions, last_object);
  asked_ = std::max(asked_, next_);
  for (; asked_ < end && (missed_ < gap || asked_ <= newest_); ++asked_) {
    if (stops && stops()) return;
    rm_status why;
    const auto cls = client_.class_of(asked_, &why);
    // Without an answer the next look asks again, from `next_` on.
    if (cls ? !ask_again(asked_) || !add(asked_, *cls) : !was_freed(why)) return begin_anew();
    missed_ = cls ? 0 : missed_ + 1;
    if (cls) next_ = asked_ + 1;
  }
  complete_ = asked_ < end;
  looked_ = true;
  begin_anew();
  check_listed();
}

bool client_objects::sweep(const stop_function& stops) {
  if (!looked_ || swept_ == sweep_step) return true;
  const std::uint32_t far = sweep_ < longest_sweep ? sweep_ + sweep_step : later_gap;
  for (; swept_ < sweep_step; ++swept_) {
    if (stops && stops()) return false;
    if (!client_.class_of(next_ + far + swept_)) continue;
    newest_ = next_ + far + swept_;  // This look asks for all up to it.
    swept_ = sweep_step;
    break;
  }
  sweep_ = far;
  return true;
}

/// Objects are made in the order of their numbers: what was not there when the look asked may have
/// been made before an object that it found.
bool client_objects::ask_again(uapi::NvHandle end) {
  for (uapi::NvHandle handle = next_; handle < end; ++handle) {
    rm_status why;
    const auto cls = client_.class_of(handle, &why);
    if (cls ? !add(handle, *cls) : !was_freed(why)) return false;
  }
  return true;
}

bool client_objects::add(uapi::NvHandle handle, std::uint32_t cls) {
  if (cls == AMPERE_SMC_PARTITION_REF) partitioned_ = true;
  const bool computes = uapi::is_compute_class(cls);
  const bool is_channel = uapi::is_channel_class(cls);
  if (cls == uapi::NV01_DEVICE_0) devices_.try_emplace(handle, 0);
  if (cls != uapi::NV20_SUBDEVICE_0 && cls != uapi::KEPLER_CHANNEL_GROUP_A && !computes &&
      !is_channel)
    return true;
  rm_status why;
  const auto parent = client_.parent_of(handle, &why);
  if (!parent) return was_freed(why);
  if (cls == uapi::NV20_SUBDEVICE_0) {
    devices_[*parent] = handle;
    if (const auto gpu = client_.gpu_of(handle)) subdevices_[handle] = *gpu;
    for (auto& [number, each] : groups_)
      if (each.subdevice == 0) name_gpu(each);
    return true;
  }
  if (cls == uapi::KEPLER_CHANNEL_GROUP_A) {
    channel_group& one = groups_[handle];
    one.handle = handle;
    name_gpu(one);
    return true;
  }
  if (is_channel) {
    channels_[handle] = {.handle = handle, .group = *parent};
    return true;
  }
  const auto on = channels_.find(*parent);
  if (on == channels_.end()) return true;
  const auto in = groups_.find(on->second.group);
  if (in != groups_.end()) in->second.computes = true;
  return true;
}

void client_objects::name_gpu(channel_group& of) const {
  const auto device = client_.parent_of(of.handle);
  const auto found = device ? devices_.find(*device) : devices_.end();
  if (found == devices_.end()) return;
  of.subdevice = found->second;
  if (const auto gpu = subdevices_.find(of.subdevice); gpu != subdevices_.end())
    of.gpu = gpu->second;
}

template <class Objects>
bool client_objects::drop_freed(Objects& all, uapi::NvHandle& from,
                                const stop_function& stops) const {
  for (auto each = all.lower_bound(from); each != all.end();) {
    if (stops && stops()) return false;
    from = each->first + 1;
    rm_status why;
    const bool gone = !client_.class_of(each->first, &why) && was_freed(why);
    each = gone ? all.erase(each) : std::next(each);
  }
  return true;
}

/// The first object of each kind that the driver names must be among those that the look found.
void client_objects::check_listed() {
  unlisted_ = false;
  const auto check = [this](std::optional<uapi::NvHandle> first, bool listed) {
    if (!first || listed) return;
    if (*first < next_ || *first >= std::min(next_ + most_questions, last_object)) {
      unlisted_ = true;
      return;
    }
    // Made since this look asked for its number: the next one asks again.
    newest_ = std::max(newest_, *first);
  };
  using namespace uapi::nvoc_class_id;
  const auto device = client_.child(client_.handle(), Device);
  check(device, device && devices_.contains(*device));
  for (const auto& [handle, subdevice] : devices_) {
    const auto group = client_.child(handle, KernelChannelGroupApi);
    check(group, group && groups_.contains(*group));
    check(client_.child(handle, KernelChannel), false);
  }
}

std::string client_objects::not_understood() const {
  if (partitioned_) return "uses a MIG partition, which sluice does not support";
  if (!complete_) return "has more objects of the driver than sluice can look at";
  for (const auto& [handle, each] : channels_) {
    const channel_group* const in = group_of(each);
    if (in == nullptr) return "has channels outside of channel groups, as no CUDA program has";
    if (in->gpu == gpu_id::none) return "has a channel whose GPU the driver does not name";
  }
  if (unlisted_) return "has channels that sluice cannot list: its runtime is not CUDA";
  return {};
}

}  // namespace sluice::nvidia
