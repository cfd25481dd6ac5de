/// NV_RM_CONTROL: what may be asked of objects.

#include "rm_state.hpp"

#include <algorithm>

namespace sluice::sim {

namespace {

struct rm_method {
  std::uint32_t command;
  std::uint32_t cls;   ///< Of objects that have it.
  std::uint32_t size;  ///< Of its parameters.
};
constexpr std::array rm_methods{
    rm_method{rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, rm::NV01_ROOT_CLIENT,
              sizeof(rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS)},
    rm_method{rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, rm::NV01_ROOT_CLIENT,
              sizeof(rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS)},
    rm_method{rm::NV2080_CTRL_CMD_GPU_GET_ID, rm::NV20_SUBDEVICE_0,
              sizeof(rm::NV2080_CTRL_GPU_GET_ID_PARAMS)},
    rm_method{rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, rm::NV20_SUBDEVICE_0,
              sizeof(rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS)},
    rm_method{rm::NVA06C_CTRL_CMD_SET_TIMESLICE, rm::KEPLER_CHANNEL_GROUP_A,
              sizeof(rm::NVA06C_CTRL_TIMESLICE_PARAMS)},
    rm_method{rm::NVA06C_CTRL_CMD_GET_TIMESLICE, rm::KEPLER_CHANNEL_GROUP_A,
              sizeof(rm::NVA06C_CTRL_TIMESLICE_PARAMS)},
};

const rm_method* method_of(std::uint32_t command) {
  const auto found = std::find_if(rm_methods.begin(), rm_methods.end(),
                                  [command](const auto& each) { return each.command == command; });
  return found == rm_methods.end() ? nullptr : &*found;
}

/// Runs a handler on a typed copy of the parameters, and stores it back.
template <class Params, class Handler>
auto with_params(std::vector<std::byte>& bytes, const Handler& handler) {
  Params params;
  std::memcpy(&params, bytes.data(), sizeof params);
  const auto answer = handler(params);
  std::memcpy(bytes.data(), &params, sizeof params);
  return answer;
}

}  // namespace

/// In the order of rmapiControl and resControlLookup.
task<rm_driver::impl::status> rm_driver::impl::control_object(call_ptr c,
                                                              rm::NVOS54_PARAMETERS& args) {
  const rm_client* client = find(args.hClient, c->file);
  if (client == nullptr) co_return rm::NV_ERR_INVALID_CLIENT;
  const rm_method* method = method_of(args.cmd);
  if ((args.params == 0) != (args.paramsSize == 0) ||
      (method != nullptr && args.paramsSize != method->size))
    co_return rm::NV_ERR_INVALID_ARGUMENT;
  if (!client->objects.contains(args.hObject)) co_return rm::NV_ERR_OBJECT_NOT_FOUND;
  const rm_object& object = client->objects.at(args.hObject);
  if (method == nullptr || object.cls != method->cls) co_return rm::NV_ERR_NOT_SUPPORTED;
  std::vector<std::byte> parameters(method->size);
  if (!c->caller->memory || !c->caller->memory->read(args.params, parameters))
    co_return NV_ERR_INVALID_ADDRESS;

  async_mutex::guard held;
  if (object.gpu != nullptr) held = co_await object.gpu->lock.lock();
  if (const auto answer = co_await meet_fault(c, args.cmd, &parameters)) co_return *answer;
  const auto answer = co_await perform(c, args, parameters);
  if (answer != rm::NV_OK) co_return answer;
  // Parameters that are only read are copied back, too.
  const bool copied = c->caller->memory && c->caller->memory->write(args.params, parameters);
  co_return copied ? rm::NV_OK : NV_ERR_INVALID_ADDRESS;
}

task<rm_driver::impl::status> rm_driver::impl::perform(call_ptr c, rm::NVOS54_PARAMETERS& args,
                                                       std::vector<std::byte>& parameters) {
  // Looked for again: another thread may have freed it while this call waited.
  rm_client* client = find(args.hClient, c->file);
  if (client == nullptr) co_return rm::NV_ERR_INVALID_CLIENT;
  const rm_object* object = client->find(args.hObject);
  if (object == nullptr) co_return rm::NV_ERR_OBJECT_NOT_FOUND;
  switch (args.cmd) {
    case rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO:
      co_return with_params<rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS>(
          parameters, [&](auto& params) { return handle_info(*client, params); });
    case rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE:
      co_return with_params<rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS>(
          parameters, [&](auto& params) { return child_handle(*client, params); });
    case rm::NV2080_CTRL_CMD_GPU_GET_ID:
      co_return with_params<rm::NV2080_CTRL_GPU_GET_ID_PARAMS>(parameters, [&](auto& params) {
        params.gpuId = object->gpu->shape.gpu_id;
        return rm::NV_OK;
      });
    case rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS: {
      rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params;
      std::memcpy(&params, parameters.data(), sizeof params);
      co_return co_await disable_channels(*object->gpu, params);
    }
    case rm::NVA06C_CTRL_CMD_SET_TIMESLICE:
      co_return with_params<rm::NVA06C_CTRL_TIMESLICE_PARAMS>(
          parameters, [&](const auto& params) -> status {
            constexpr std::uint64_t longest = 10'000'000;  // Assumption: the hardware's is unknown.
            if (params.timesliceUs == 0 || params.timesliceUs > longest)
              return rm::NV_ERR_INVALID_ARGUMENT;
            object->group->timeslice = params.timesliceUs;
            object->gpu->model.set_quantum(object->group->model,
                                           std::chrono::microseconds{params.timesliceUs});
            return rm::NV_OK;
          });
    default:
      co_return with_params<rm::NVA06C_CTRL_TIMESLICE_PARAMS>(parameters, [&](auto& params) {
        params.timesliceUs = timeslice_of(*object->group);
        return rm::NV_OK;
      });
  }
}

rm_driver::impl::status rm_driver::impl::handle_info(
    rm_client& client, rm::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS& params) {
  const rm_object* of = client.find(params.hObject);
  if (of == nullptr) return rm::NV_ERR_OBJECT_NOT_FOUND;
  switch (params.index) {
    case rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT:
      params.iResult = of->parent;
      return rm::NV_OK;
    case rm::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID:
      params.iResult = of->cls;
      return rm::NV_OK;
    default: return rm::NV_ERR_INVALID_ARGUMENT;
  }
}

namespace {

/// The class of programs that has this internal number.
std::optional<std::uint32_t> internal_class(std::uint32_t number) {
  switch (number) {
    case rm::nvoc_class_id::Device: return rm::NV01_DEVICE_0;
    case rm::nvoc_class_id::Subdevice: return rm::NV20_SUBDEVICE_0;
    case rm::nvoc_class_id::KernelChannelGroupApi: return rm::KEPLER_CHANNEL_GROUP_A;
    case rm::nvoc_class_id::KernelChannel: return rm::HOPPER_CHANNEL_GPFIFO_A;
    default: return {};
  }
}

}  // namespace

rm_driver::impl::status rm_driver::impl::child_handle(
    rm_client& client, rm::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS& params) {
  const rm_object* parent = client.find(params.hParent);
  if (parent == nullptr) return rm::NV_ERR_OBJECT_NOT_FOUND;
  const auto kind = internal_class(params.classId);
  for (const rm::NvHandle handle : parent->children) {
    if (!kind || client.objects.at(handle).cls != *kind) continue;
    params.hObject = handle;
    return rm::NV_OK;
  }
  return rm::NV_ERR_OBJECT_NOT_FOUND;
}

std::uint64_t rm_driver::impl::timeslice_of(const rm_group& group) const {
  if (group.timeslice) return *group.timeslice;
  const auto& shape = group.gpu->shape;
  const auto whole = group.compute_objects != 0 ? shape.time_slice : shape.copy_time_slice;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(whole).count());
}

// --- Channels off and on -------------------------------------------------------------------------

task<rm_driver::impl::status> rm_driver::impl::disable_channels(
    rm_gpu& gpu, rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params) {
  if (params.pRunlistPreemptEvent != 0) co_return rm::NV_ERR_INSUFFICIENT_PERMISSIONS;
  if (params.numChannels > rm::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES)
    co_return rm::NV_ERR_INVALID_ARGUMENT;
  // What these two do is not simulated.
  if (params.bOnlyDisableScheduling != 0 || params.bRewindGpPut != 0)
    co_return rm::NV_ERR_NOT_SUPPORTED;
  std::vector<std::shared_ptr<rm_channel>> channels;
  for (std::size_t i = 0; i < params.numChannels; ++i) {
    // Of any open file: the caller need not have made these clients.
    const auto client = clients_.find(params.hClientList[i]);
    if (client == clients_.end()) co_return rm::NV_ERR_INVALID_CLIENT;
    const rm_object* object = client->second.find(params.hChannelList[i]);
    if (object == nullptr || object->cls != rm::HOPPER_CHANNEL_GPFIFO_A)
      co_return rm::NV_ERR_OBJECT_NOT_FOUND;
    if (object->gpu != &gpu) co_return rm::NV_ERR_INVALID_ARGUMENT;
    channels.push_back(object->channel);
  }
  if (channels.empty()) co_return rm::NV_OK;
  const bool disable = params.bDisable != 0;
  const duration cost = disable
                            ? gpu.suspends.next(gpu.shape.suspend_cost, gpu.shape.suspend_cost_p99)
                            : gpu.resumes.next(gpu.shape.resume_cost, gpu.shape.resume_cost_p99);
  co_await sleep_until{engine_, engine_.now() + cost};
  for (const auto& channel : channels) change_disables(*channel, disable);
  co_return rm::NV_OK;
}

void rm_driver::impl::change_disables(rm_channel& channel, bool disable) {
  if (channel.freed || (!disable && channel.disables == 0)) return;
  channel.disables += disable ? 1U : ~0U;
  if (channel.disables != (disable ? 1U : 0U)) return;  // It was off before, or still is.
  if (disable) {
    channel.off_since = engine_.now();
    ++channel.owner->channel_holds;
  } else {
    hold_ended(channel);
  }
  if (channel.queue != model_queue::none)
    channel.group->gpu->model.set_listed(channel.queue, !disable, cycle_kind::ordinary);
}

void rm_driver::impl::hold_ended(const rm_channel& channel) const {
  auto& longest = channel.owner->longest_hold;
  longest = std::max(longest, engine_.now() - channel.off_since);
}

}  // namespace sluice::sim
