/// The resource manager's objects: clients and what belongs to them.

#include "rm_state.hpp"

#include <algorithm>

namespace sluice::sim {

namespace {

// nvstatuscodes.h, beside those of uapi.hpp.
constexpr std::uint32_t NV_ERR_INSERT_DUPLICATE_NAME = 0x19;
constexpr std::uint32_t NV_ERR_INSUFFICIENT_RESOURCES = 0x1A;
constexpr std::uint32_t NV_ERR_INVALID_OBJECT_HANDLE = 0x33;
constexpr std::uint32_t NV_ERR_NO_MEMORY = 0x51;

constexpr bool is_client_class(std::uint32_t cls) {
  constexpr std::uint32_t NV01_ROOT = 0x0;
  constexpr std::uint32_t NV01_ROOT_NON_PRIV = 0x1;
  return cls == NV01_ROOT || cls == NV01_ROOT_NON_PRIV || cls == rm::NV01_ROOT_CLIENT;
}

/// What an object of this class belongs to; 0: the GPU has no such class.
constexpr std::uint32_t parent_class(std::uint32_t cls) {
  switch (cls) {
    case rm::NV01_DEVICE_0: return rm::NV01_ROOT_CLIENT;
    case rm::NV20_SUBDEVICE_0:
    case rm::KEPLER_CHANNEL_GROUP_A:
    case nvidia_abi::NV01_MEMORY_LOCAL_USER: return rm::NV01_DEVICE_0;
    case rm::HOPPER_CHANNEL_GPFIFO_A: return rm::KEPLER_CHANNEL_GROUP_A;
    case rm::HOPPER_COMPUTE_A:
    case rm::HOPPER_DMA_COPY_A: return rm::HOPPER_CHANNEL_GPFIFO_A;
    default: return 0;
  }
}

}  // namespace

rm_object* rm_client::find(rm::NvHandle object) {
  const auto it = objects.find(object);
  return it == objects.end() ? nullptr : &it->second;
}

task<rm_driver::impl::status> rm_driver::impl::alloc(call_ptr c, rm::NVOS21_PARAMETERS& args) {
  if (const auto answer = co_await meet_fault(c, rm::NV_ESC_RM_ALLOC, nullptr)) co_return *answer;
  if (is_client_class(args.hClass)) co_return make_client(*c, args);
  rm_client* client = find(args.hRoot, c->file);
  if (client == nullptr) co_return rm::NV_ERR_INVALID_CLIENT;
  const std::uint32_t parents = parent_class(args.hClass);
  if (parents == 0) co_return rm::NV_ERR_INVALID_CLASS;
  rm_object* parent = client->find(args.hObjectParent);
  if (parent == nullptr) co_return rm::NV_ERR_OBJECT_NOT_FOUND;
  if (parent->cls != parents) co_return rm::NV_ERR_INVALID_OBJECT_PARENT;
  if (args.hObjectNew == client->handle) co_return NV_ERR_INVALID_OBJECT_HANDLE;
  if (client->find(args.hObjectNew) != nullptr) co_return NV_ERR_INSERT_DUPLICATE_NAME;
  rm_object made{.cls = args.hClass, .parent = args.hObjectParent, .gpu = parent->gpu};
  if (const auto wrong = fill(*c, args, *client, *parent, made); wrong != rm::NV_OK)
    co_return wrong;
  if (args.hObjectNew == 0) {
    constexpr rm::NvHandle generated = 0xCAF00000;  // RS_UNIQUE_HANDLE_BASE
    do args.hObjectNew = generated + ++client->last_generated;
    while (client->find(args.hObjectNew) != nullptr);
  }
  parent->children.push_back(args.hObjectNew);
  client->objects.emplace(args.hObjectNew, std::move(made));
  co_return rm::NV_OK;
}

rm_driver::impl::status rm_driver::impl::make_client(const rm_call& c,
                                                     rm::NVOS21_PARAMETERS& args) {
  const rm::NvHandle wanted = args.hObjectNew;
  if (wanted != 0 && clients_.contains(wanted)) return NV_ERR_INSERT_DUPLICATE_NAME;
  rm::NvHandle handle = wanted;
  while (handle == 0 || (wanted == 0 && clients_.contains(handle)))
    handle = rm::RS_CLIENT_HANDLE_BASE + ++last_client_ % rm::RS_CLIENT_HANDLE_MAX;
  auto& owner = processes_[c.caller->pid];
  if (!owner) owner = std::make_shared<rm_process>(rm_process{.pid = c.caller->pid});
  ++owner->clients;
  rm_client made{.handle = handle, .file = c.file, .owner = owner};
  made.objects.emplace(handle, rm_object{.cls = rm::NV01_ROOT_CLIENT});
  clients_.emplace(handle, std::move(made));
  args.hObjectNew = handle;
  return rm::NV_OK;
}

rm_driver::impl::status rm_driver::impl::fill(const rm_call& c, const rm::NVOS21_PARAMETERS& args,
                                              rm_client& client, const rm_object& parent,
                                              rm_object& made) {
  // _rmapiParamsCopyInit: a size without a pointer. A pointer without one takes the class's.
  if (args.pAllocParms == 0 && args.paramsSize != 0) return rm::NV_ERR_INVALID_ARGUMENT;
  const auto read = [&](auto& into) -> status {
    if (args.pAllocParms == 0) return rm::NV_OK;
    if (args.paramsSize != 0 && args.paramsSize != sizeof into)
      return rm::NV_ERR_INVALID_PARAM_STRUCT;
    if (!c.caller->memory ||
        !c.caller->memory->read(args.pAllocParms, std::as_writable_bytes(std::span{&into, 1})))
      return NV_ERR_INVALID_ADDRESS;
    return rm::NV_OK;
  };
  switch (made.cls) {
    case rm::NV01_DEVICE_0: {
      nvidia_abi::NV0080_ALLOC_PARAMETERS params{};
      if (const auto wrong = read(params); wrong != rm::NV_OK) return wrong;
      if (params.deviceId >= gpus_.size()) return rm::NV_ERR_INVALID_ARGUMENT;
      made.gpu = gpus_[params.deviceId].get();
      return rm::NV_OK;
    }
    case nvidia_abi::NV01_MEMORY_LOCAL_USER: {
      nvidia_abi::NV_MEMORY_ALLOCATION_PARAMS params{};
      if (const auto wrong = read(params); wrong != rm::NV_OK) return wrong;
      if (params.size == 0) return rm::NV_ERR_INVALID_ARGUMENT;
      if (params.size > made.gpu->shape.vram_bytes() - made.gpu->memory_used)
        return NV_ERR_NO_MEMORY;
      made.memory = params.size;
      made.gpu->memory_used += params.size;
      return rm::NV_OK;
    }
    case rm::KEPLER_CHANNEL_GROUP_A:
      made.group = std::make_shared<rm_group>();
      made.group->gpu = made.gpu;
      made.group->model = static_cast<model_process>(++last_group_);
      return rm::NV_OK;
    case rm::HOPPER_CHANNEL_GPFIFO_A:
      if (made.gpu->channels == made.gpu->shape.hqd_slots) return NV_ERR_INSUFFICIENT_RESOURCES;
      ++made.gpu->channels;
      made.channel = std::make_shared<rm_channel>(engine_);
      made.channel->group = parent.group;
      made.channel->owner = client.owner;
      return rm::NV_OK;
    case rm::HOPPER_COMPUTE_A:
      made.channel = parent.channel;
      made.channel->computes = true;
      ++made.channel->group->compute_objects;
      return rm::NV_OK;
    default: return rm::NV_OK;
  }
}

task<rm_driver::impl::status> rm_driver::impl::free(call_ptr c, rm::NVOS00_PARAMETERS& args) {
  if (const auto answer = co_await meet_fault(c, rm::NV_ESC_RM_FREE, nullptr)) co_return *answer;
  rm_client* client = find(args.hRoot, c->file);
  if (client == nullptr) co_return rm::NV_ERR_INVALID_CLIENT;
  if (args.hObjectOld == client->handle) {
    free_client(client->handle);
    co_return rm::NV_OK;
  }
  if (client->find(args.hObjectOld) == nullptr) co_return rm::NV_ERR_OBJECT_NOT_FOUND;
  free_object(*client, args.hObjectOld);
  co_return rm::NV_OK;
}

void rm_driver::impl::free_object(rm_client& client, rm::NvHandle handle) {
  rm_object object = std::move(client.objects.at(handle));
  client.objects.erase(handle);
  if (rm_object* parent = client.find(object.parent)) std::erase(parent->children, handle);
  while (!object.children.empty()) {
    const auto last = object.children.back();
    object.children.pop_back();
    free_object(client, last);
  }
  switch (object.cls) {
    case nvidia_abi::NV01_MEMORY_LOCAL_USER: object.gpu->memory_used -= object.memory; break;
    case rm::KEPLER_CHANNEL_GROUP_A: {
      auto& past = client.owner->past;
      const auto now = object.gpu->model.process_account(object.group->model);
      past.busy += now.busy;
      past.unfinished += now.unfinished;
      past.started += now.started;
      past.completed += now.completed;
      object.gpu->model.forget(object.group->model);
      break;
    }
    case rm::HOPPER_CHANNEL_GPFIFO_A: {
      rm_channel& channel = *object.channel;
      if (channel.disables != 0) hold_ended(channel);
      channel.freed = true;
      if (channel.queue != model_queue::none) {
        object.gpu->model.remove_queue(channel.queue);
        object.gpu->queues.erase(channel.queue);
      }
      --object.gpu->channels;
      channel.changed.wake_all();
      break;
    }
    case rm::HOPPER_COMPUTE_A:
      object.channel->computes = false;
      --object.channel->group->compute_objects;
      break;
    default: break;
  }
}

void rm_driver::impl::free_client(rm::NvHandle handle) {
  rm_client& client = clients_.at(handle);
  const auto owner = client.owner;
  free_object(client, handle);
  clients_.erase(handle);
  if (--owner->clients != 0) return;
  processes_.erase(owner->pid);
  exited_.push_back(owner);
  constexpr std::size_t remembered = 256;
  if (exited_.size() > remembered) exited_.pop_front();
}

}  // namespace sluice::sim
