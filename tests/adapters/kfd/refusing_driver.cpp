#include "refusing_driver.hpp"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "sluice/kfd/uapi.hpp"

namespace {

namespace uapi = sluice::kfd::uapi;

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
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}
