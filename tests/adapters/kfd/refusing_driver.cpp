#include "refusing_driver.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <mutex>

#include "sluice/kfd/uapi.hpp"

namespace {

namespace uapi = sluice::kfd::uapi;

std::mutex smi_mutex;
bool smi_given = false;
std::vector<sluice::test::smi_driver::stream> smi_streams;

bool give_smi(uapi::kfd_ioctl_smi_events_args& args) {
  const std::lock_guard held{smi_mutex};
  int ends[2];
  if (!smi_given || ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  args.anon_fd = static_cast<std::uint32_t>(ends[0]);
  smi_streams.push_back({args.gpuid, 0, ends[1]});
  return true;
}

/// The errno with which the operation is refused, 0 when it is not.
int refused(const uapi::kfd_ioctl_dbg_trap_args& args) {
  const char* const path = std::getenv(sluice::test::refusals_variable);
  if (path == nullptr) return 0;
  std::ifstream file{path};
  sluice::test::refusal each;
  while (file >> each.operation >> each.error)
    if (each.operation == args.op) return each.error;
  return 0;
}

}  // namespace

namespace sluice::test {

smi_driver::smi_driver() {
  const std::lock_guard held{smi_mutex};
  smi_given = true;
}

smi_driver::~smi_driver() {
  const std::lock_guard held{smi_mutex};
  for (const stream& each : smi_streams) ::close(each.fd);
  smi_streams.clear();
  smi_given = false;
}

std::vector<smi_driver::stream> smi_driver::streams() {
  const std::lock_guard held{smi_mutex};
  for (stream& each : smi_streams) {
    std::uint64_t mask = 0;
    if (::recv(each.fd, &mask, sizeof(mask), MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(mask)))
      each.mask = mask;
  }
  return smi_streams;
}

int smi_driver::say(std::uint32_t gpu, std::uint64_t bit, std::string_view line) {
  int said = 0;
  for (const stream& each : streams()) {
    if (each.gpu != gpu || (each.mask & bit) == 0) continue;
    if (::send(each.fd, line.data(), line.size(), MSG_NOSIGNAL) >= 0) ++said;
  }
  return said;
}

}  // namespace sluice::test

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (request == uapi::AMDKFD_IOC_DBG_TRAP) {
    if (const int error = refused(*static_cast<uapi::kfd_ioctl_dbg_trap_args*>(argument));
        error != 0) {
      errno = error;
      return -1;
    }
  }
  if (request == uapi::AMDKFD_IOC_SMI_EVENTS &&
      give_smi(*static_cast<uapi::kfd_ioctl_smi_events_args*>(argument)))
    return 0;
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}
