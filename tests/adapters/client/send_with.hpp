#pragma once
/// \file
/// One message with descriptors, as clients send it that speak the protocol themselves.

#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace sluice::test {

/// \param fds at most eight. \param flags as sendmsg's. \return whether all of it went.
inline bool send_with(int socket, const void* what, std::size_t size, const std::vector<int>& fds,
                      int flags) {
  iovec data{const_cast<void*>(what), size};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr to{};
  to.msg_iov = &data;
  to.msg_iovlen = 1;
  if (!fds.empty()) {
    to.msg_control = control;
    to.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const head = CMSG_FIRSTHDR(&to);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &to, flags) == static_cast<ssize_t>(size);
}

}  // namespace sluice::test
