#include "message.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace sluice::client {

/// SCM_MAX_FD of the kernel (include/net/scm.h).
constexpr std::size_t most_descriptors = 253;

static_assert(sizeof(sluice_wire_hello) <= sizeof(message::bytes));

sluice_wire_head message::head() const noexcept {
  sluice_wire_head made{};
  if (size >= sizeof made) std::memcpy(&made, bytes.data(), sizeof made);
  return made;
}

received receive(int socket, message& into) noexcept {
  // Room for all that one message can carry: what does not fit, the kernel closes in this call.
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(most_descriptors * sizeof(int))>
          control;
  iovec data{into.bytes.data(), into.bytes.size()};
  msghdr from{};
  from.msg_iov = &data;
  from.msg_iovlen = 1;
  from.msg_control = control.data();
  from.msg_controllen = control.size();
  into.fds = {};
  into.sender = 0;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &from, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? received::none : received::hung_up;
  // Of more than there is room for, more than any message is.
  into.size = static_cast<std::size_t>(got);
  for (cmsghdr* each = CMSG_FIRSTHDR(&from); each != nullptr; each = CMSG_NXTHDR(&from, each)) {
    if (each->cmsg_level != SOL_SOCKET) continue;
    if (each->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(each), sizeof who);
      into.sender = who.pid;
    } else if (each->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
        foreign_fd owned(fd);
        if (i < into.fds.size()) into.fds[i] = std::move(owned);
      }
    }
  }
  // An empty message looks like the end, but may have brought descriptors.
  return got == 0 ? received::hung_up : received::one;
}

sluice_wire_head head_of(sluice_wire_type type) noexcept {
  return {type, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
}

bool send_message(int socket, const void* what, std::size_t size, int fd) noexcept {
  iovec data{const_cast<void*>(what), size};  // NOLINT: sendmsg() only reads
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr to{};
  to.msg_iov = &data;
  to.msg_iovlen = 1;
  if (fd >= 0) {
    to.msg_control = control.data();
    to.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&to);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &to, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

void send_refusal(int socket, int error, std::string_view why) noexcept {
  sluice_wire_welcome no{};
  no.head = head_of(SLUICE_WIRE_WELCOME);
  no.error = error;
  std::memcpy(no.why, why.data(), std::min(why.size(), sizeof no.why - 1));
  (void)send_message(socket, &no, sizeof no, -1);
}

}  // namespace sluice::client
