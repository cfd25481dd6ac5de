#include "sluice/kfd/device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_batch.hpp"

namespace sluice::kfd {

result<std::unique_ptr<device>> device::open(const std::string& path, const message_sink& say) {
  unique_fd fd;
  do {
    fd.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  } while (!fd && errno == EINTR);  // The driver refuses to open while a signal is pending.
  if (!fd) {
    const error_code error = last_system_error();
    std::string advice;
    if (error == boost::system::errc::permission_denied)
      advice = "; run as a member of the group that owns it (often render), or as root";
    else if (error == boost::system::errc::no_such_file_or_directory)
      advice = "; load the amdgpu driver, or set SLUICE_KFD_DEVICE to the path of the device";
    else if (error == boost::system::errc::resource_unavailable_try_again)
      advice = "; a GPU is being reset; try again in a few seconds";
    say("cannot open " + path + ": " + error.message() + advice);
    return error;
  }
  std::unique_ptr<device> opened{new device{path, std::move(fd)}};
  uapi::kfd_ioctl_get_version_args version{};
  if (const auto answer = opened->call(uapi::AMDKFD_IOC_GET_VERSION, &version); !answer) {
    say(path + " is not a KFD device: GET_VERSION failed: " + answer.error().message() +
        "; set SLUICE_KFD_DEVICE to the path of the device");
    return answer.error();
  }
  if (version.major_version != uapi::KFD_IOCTL_MAJOR_VERSION ||
      version.minor_version < uapi::KFD_IOCTL_MINOR_VERSION_DEBUGGER) {
    say(path + " has KFD version " + std::to_string(version.major_version) + "." +
        std::to_string(version.minor_version) +
        "; to suspend queues, sluice needs KFD 1.13 or a later 1.x; install Linux 6.5 or later, or "
        "a current ROCm driver");
    return errc::not_supported;
  }
  opened->minor_ = version.minor_version;
  return opened;
}

result<int> device::call(std::uint32_t command, void* argument) const noexcept {
  int value = 0;
  do {
    value = ::ioctl(fd_.get(), command, argument);
  } while (value < 0 && errno == EINTR);
  if (value < 0) return last_system_error();
  return value;
}

bool device::has_batch_commands() const noexcept {
  uapi::kfd_ioctl_batch_unmap_queues_args nothing{};  // The driver does nothing.
  return call(uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &nothing).has_value();
}

}  // namespace sluice::kfd
