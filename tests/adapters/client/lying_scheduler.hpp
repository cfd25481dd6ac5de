#pragma once
/// \file
/// The scheduler's side of the clients' socket for tests: it says what it is told to.

#include "send_with.hpp"
#include "wire.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace sluice::test {

/// One client at a time. Threading: send() any; the others one. Errors: the constructor throws
/// std::system_error.
class lying_scheduler {
 public:
  explicit lying_scheduler(std::string path) : path_(std::move(path)), page_(make_page()) {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    if (page_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) ||
        listen(listener_, 4) != 0)
      throw std::system_error(errno, std::generic_category(), path_);
  }
  ~lying_scheduler() {
    hang_up();
    close(listener_);
    close(page_);
    unlink(path_.c_str());
  }
  lying_scheduler(const lying_scheduler&) = delete;
  lying_scheduler& operator=(const lying_scheduler&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// A page that a client takes: sealed, all zeros.
  int page() const noexcept { return page_; }
  static int make_page(int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                       off_t size = sizeof(sluice_scheduler_words)) {
    const int fd = memfd_create("scheduler", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) return -1;
    return fd;
  }

  /// Connections that nobody has accepted, of clients that may be gone.
  void forget_callers() const {
    pollfd one{listener_, POLLIN, 0};
    while (poll(&one, 1, 0) == 1) close(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  }
  /// The next client's hello, with its page and its bell. \return false when none comes.
  bool accept(std::chrono::milliseconds timeout) {
    hang_up();
    if (!readable(listener_, timeout)) return false;
    client_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    iovec data{&hello_, sizeof hello_};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
    msghdr from{};
    from.msg_iov = &data;
    from.msg_iovlen = 1;
    from.msg_control = control.data();
    from.msg_controllen = control.size();
    if (!readable(client_, timeout) ||
        recvmsg(client_, &from, MSG_CMSG_CLOEXEC) != ssize_t{sizeof hello_})
      return false;
    const cmsghdr* const head = CMSG_FIRSTHDR(&from);
    if (head == nullptr || head->cmsg_len != CMSG_LEN(2 * sizeof(int))) return false;
    std::array<int, 2> fds{};
    std::memcpy(fds.data(), CMSG_DATA(head), sizeof fds);
    clients_page_ = fds[0];
    bell_ = fds[1];
    return true;
  }
  /// Refuses the next client without reading its hello. \return false when none comes.
  bool refuse_unread(int error, const std::string& why, std::chrono::milliseconds timeout) {
    hang_up();
    if (!readable(listener_, timeout)) return false;
    client_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (!readable(client_, timeout)) return false;
    sluice_wire_welcome said{};
    said.head = head(SLUICE_WIRE_WELCOME);
    said.error = error;
    why.copy(said.why, sizeof said.why - 1);
    const bool is_sent = send(&said, sizeof said, {});
    hang_up();
    return is_sent;
  }
  void hang_up() {
    for (int* const each : {&client_, &clients_page_, &bell_}) {
      if (*each >= 0) close(*each);
      *each = -1;
    }
  }

  /// -1 without a client.
  int clients_page() const noexcept { return clients_page_; }
  int bell() const noexcept { return bell_; }

  static sluice_wire_head head(std::uint32_t type) {
    return {type, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
  }
  /// Whether all of it went. Never waits.
  bool send(const void* what, std::size_t size, const std::vector<int>& fds) const {
    return client_ >= 0 && send_with(client_, what, size, fds, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  /// What a good scheduler says to an online client.
  void welcome() const {
    sluice_wire_welcome said{};
    said.head = head(SLUICE_WIRE_WELCOME);
    said.role = 1;
    (void)send(&said, sizeof said, {page_});
  }
  /// What the client has not taken off its socket yet, in bytes; 0 when it hung up.
  int unread() const {
    int left = 0;
    return client_ < 0 || ioctl(client_, SIOCOUTQ, &left) != 0 ? 0 : left;
  }

 private:
  static bool readable(int fd, std::chrono::milliseconds timeout) {
    pollfd one{fd, POLLIN, 0};
    int found = 0;
    do {
      found = poll(&one, 1, static_cast<int>(timeout.count()));
    } while (found < 0 && errno == EINTR);  // libFuzzer has a timer.
    return found == 1;
  }

  const std::string path_;
  const int page_;
  int listener_ = -1;
  int client_ = -1;
  int clients_page_ = -1;
  int bell_ = -1;
  sluice_wire_hello hello_{};
};

}  // namespace sluice::test
