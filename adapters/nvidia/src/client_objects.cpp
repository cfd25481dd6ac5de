#include "client_objects.hpp"

#include <algorithm>
#include <vector>

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

}  // namespace

void client_objects::look() {
  if (looked_) drop_freed();
  const std::uint32_t gap = looked_ ? later_gap : first_gap;
  std::uint32_t missed = 0;
  const uapi::NvHandle end = std::min(next_ + most_questions, last_object);
  uapi::NvHandle handle = next_;
  for (; handle < end && (missed < gap || handle <= newest_); ++handle) {
    const auto cls = client_.class_of(handle);
    missed = cls ? 0 : missed + 1;
    if (!cls) continue;
    next_ = handle + 1;
    add(handle, *cls);
  }
  complete_ = handle < end;
  if (looked_) {
    sweep_ = sweep_ < longest_sweep ? sweep_ + sweep_step : later_gap;
    for (std::uint32_t step = 0; step < sweep_step; ++step) {
      if (!client_.class_of(next_ + sweep_ + step)) continue;
      newest_ = next_ + sweep_ + step;  // The next look asks for all up to it.
      break;
    }
  }
  looked_ = true;
}

void client_objects::add(uapi::NvHandle handle, std::uint32_t cls) {
  if (cls == AMPERE_SMC_PARTITION_REF) partitioned_ = true;
  const bool computes = uapi::is_compute_class(cls);
  const bool is_channel = uapi::is_channel_class(cls);
  if (cls != uapi::NV20_SUBDEVICE_0 && cls != uapi::KEPLER_CHANNEL_GROUP_A && !computes &&
      !is_channel)
    return;
  const auto parent = client_.parent_of(handle);
  if (!parent) return;  // It was freed meanwhile.
  if (cls == uapi::NV20_SUBDEVICE_0) {
    devices_[*parent] = handle;
    if (const auto gpu = client_.gpu_of(handle)) subdevices_[handle] = *gpu;
    for (auto& [number, each] : groups_)
      if (each.subdevice == 0) name_gpu(each);
    return;
  }
  if (cls == uapi::KEPLER_CHANNEL_GROUP_A) {
    channel_group& one = groups_[handle];
    one.handle = handle;
    name_gpu(one);
    return;
  }
  if (is_channel) {
    channels_[handle] = {.handle = handle, .group = *parent};
    return;
  }
  const auto on = channels_.find(*parent);
  if (on == channels_.end()) return;
  const auto in = groups_.find(on->second.group);
  if (in != groups_.end()) in->second.computes = true;
}

void client_objects::name_gpu(channel_group& of) const {
  const auto device = client_.parent_of(of.handle);
  const auto found = device ? devices_.find(*device) : devices_.end();
  if (found == devices_.end()) return;
  of.subdevice = found->second;
  if (const auto gpu = subdevices_.find(of.subdevice); gpu != subdevices_.end())
    of.gpu = gpu->second;
}

void client_objects::drop_freed() {
  // A failed call is no evidence: only the driver's word is.
  const auto freed = [&](uapi::NvHandle handle) {
    rm_status why;
    return !client_.class_of(handle, &why) && why.is(uapi::NV_ERR_OBJECT_NOT_FOUND);
  };
  std::erase_if(channels_, [&](const auto& each) { return freed(each.first); });
  std::erase_if(groups_, [&](const auto& each) { return freed(each.first); });
}

std::string client_objects::not_understood() const {
  if (partitioned_) return "uses a MIG partition, which sluice does not support";
  if (!complete_) return "has created more objects of the driver than sluice looks at";
  for (const auto& [handle, each] : channels_) {
    const channel_group* const in = group_of(each);
    if (in == nullptr) return "has channels outside of channel groups, as no CUDA program has";
    if (in->gpu == gpu_id::none) return "has a channel whose GPU the driver does not name";
  }
  // The first of each kind that the driver names must be among those that the look found.
  using namespace uapi::nvoc_class_id;
  const auto unlisted = [&](uapi::NvHandle parent, std::uint32_t kind, const auto& listed) {
    const auto first = client_.child(parent, kind);
    return first && !listed.contains(*first);
  };
  bool strange = unlisted(client_.handle(), Device, devices_);
  for (const auto& [device, subdevice] : devices_)
    strange = strange || unlisted(device, KernelChannelGroupApi, groups_) ||
              unlisted(device, KernelChannel, std::map<uapi::NvHandle, channel>{});
  if (strange) return "has channels that sluice cannot list: its runtime is not CUDA";
  return {};
}

}  // namespace sluice::nvidia
