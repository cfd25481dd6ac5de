#include "rm.hpp"

#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <cstdio>

namespace sluice::nvidia {

namespace {

std::string_view name_of(std::uint32_t status) {
  switch (status) {
    case uapi::NV_ERR_BUSY_RETRY: return "busy, try again";
    case uapi::NV_ERR_GPU_IS_LOST: return "GPU lost from the bus";
    case uapi::NV_ERR_INSUFFICIENT_PERMISSIONS: return "insufficient permissions";
    case uapi::NV_ERR_INVALID_ARGUMENT: return "invalid argument";
    case uapi::NV_ERR_INVALID_CLIENT: return "invalid client";
    case uapi::NV_ERR_INVALID_PARAM_STRUCT: return "invalid parameter structure";
    case uapi::NV_ERR_NOT_SUPPORTED: return "not supported";
    case uapi::NV_ERR_OBJECT_NOT_FOUND: return "object not found";
    default: return "see nvstatuscodes.h of the driver";
  }
}

}  // namespace

int rm_status::as_errno() const noexcept {
  if (system != 0) return system;
  switch (driver) {
    case uapi::NV_OK: return 0;
    case uapi::NV_ERR_BUSY_RETRY: return EBUSY;
    case uapi::NV_ERR_INSUFFICIENT_PERMISSIONS: return EPERM;
    case uapi::NV_ERR_INVALID_CLIENT:
    case uapi::NV_ERR_OBJECT_NOT_FOUND: return ENOENT;
    case uapi::NV_ERR_NOT_SUPPORTED: return EOPNOTSUPP;
    case uapi::NV_ERR_INVALID_ARGUMENT:
    case uapi::NV_ERR_INVALID_PARAM_STRUCT: return EINVAL;
    default: return EIO;
  }
}

std::string rm_status::text() const {
  if (system != 0) return error_code{system, boost::system::system_category()}.message();
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "status 0x%02x (", driver);
  return number.data() + std::string{name_of(driver)} + ")";
}

rm_status rm_client::control(uapi::NvHandle object, std::uint32_t command, void* parameters,
                             std::uint32_t size) const {
  uapi::NVOS54_PARAMETERS call{};
  call.hClient = handle_;
  call.hObject = object;
  call.cmd = command;
  call.params = reinterpret_cast<std::uintptr_t>(parameters);
  call.paramsSize = size;
  int got = 0;
  do got = ::ioctl(fd_, uapi::NV_RM_CONTROL, &call);
  while (got < 0 && errno == EINTR);
  if (got < 0) return {.system = errno};
  return {.driver = call.status};
}

rm_status rm_client::info(uapi::NvHandle object, std::uint32_t index, std::uint64_t& into) const {
  uapi::NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS asked{
      .hObject = object, .index = index, .iResult = 0};
  const rm_status done =
      control(handle_, uapi::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, &asked, sizeof asked);
  into = asked.iResult;
  return done;
}

std::optional<std::uint32_t> rm_client::class_of(uapi::NvHandle object, rm_status* why) const {
  std::uint64_t found = 0;
  const rm_status done =
      info(object, uapi::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID, found);
  if (why != nullptr) *why = done;
  if (!done) return {};
  return static_cast<std::uint32_t>(found);
}

std::optional<uapi::NvHandle> rm_client::parent_of(uapi::NvHandle object, rm_status* why) const {
  std::uint64_t found = 0;
  const rm_status done =
      info(object, uapi::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT, found);
  if (why != nullptr) *why = done;
  if (!done) return {};
  return static_cast<uapi::NvHandle>(found);
}

std::optional<uapi::NvHandle> rm_client::child(uapi::NvHandle parent,
                                               std::uint32_t internal_class) const {
  uapi::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS asked{
      .hParent = parent, .classId = internal_class, .hObject = 0};
  if (!control(handle_, uapi::NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, &asked, sizeof asked))
    return {};
  return asked.hObject;
}

std::optional<gpu_id> rm_client::gpu_of(uapi::NvHandle subdevice) const {
  uapi::NV2080_CTRL_GPU_GET_ID_PARAMS asked{};
  if (!control(subdevice, uapi::NV2080_CTRL_CMD_GPU_GET_ID, &asked, sizeof asked)) return {};
  if (asked.gpuId == 0) return {};
  return gpu_id{asked.gpuId};
}

rm_status rm_client::disable(uapi::NvHandle subdevice, bool so,
                             std::span<const channel_name> channels) const {
  uapi::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS asked{};
  constexpr std::size_t most = uapi::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES;
  if (channels.empty() || channels.size() > most) return {.system = EINVAL};
  asked.bDisable = so ? 1 : 0;
  asked.numChannels = static_cast<std::uint32_t>(channels.size());
  for (std::size_t index = 0; index < channels.size(); ++index) {
    asked.hClientList[index] = channels[index].client;
    asked.hChannelList[index] = channels[index].channel;
  }
  return control(subdevice, uapi::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &asked, sizeof asked);
}

rm_status rm_client::timeslice(uapi::NvHandle group, std::uint64_t& microseconds) const {
  uapi::NVA06C_CTRL_TIMESLICE_PARAMS asked{};
  const rm_status done = control(group, uapi::NVA06C_CTRL_CMD_GET_TIMESLICE, &asked, sizeof asked);
  microseconds = asked.timesliceUs;
  return done;
}

rm_status rm_client::set_timeslice(uapi::NvHandle group, std::uint64_t microseconds) const {
  uapi::NVA06C_CTRL_TIMESLICE_PARAMS asked{.timesliceUs = microseconds};
  return control(group, uapi::NVA06C_CTRL_CMD_SET_TIMESLICE, &asked, sizeof asked);
}

}  // namespace sluice::nvidia
