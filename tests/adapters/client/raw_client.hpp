#pragma once
/// \file
/// A client that speaks the protocol itself, well or badly.

#include "send_with.hpp"
#include "wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::test {

inline constexpr int good_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

inline int make_page(int seals = good_seals, off_t size = sizeof(sluice_client_words)) {
  const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, size), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

/// One connection. Nothing is sent by itself.
class raw_client {
 public:
  explicit raw_client(const std::string& path) : socket_(socket_at(path)) {}

  bool send(const void* what, std::size_t size, const std::vector<int>& fds = {}) {
    return send_with(socket_.get(), what, size, fds, MSG_NOSIGNAL);
  }
  static sluice_wire_hello good_hello() {
    sluice_wire_hello hello{};
    hello.head = {SLUICE_WIRE_HELLO, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
    hello.role = 1;
    std::strcpy(hello.name, "raw");
    return hello;
  }
  /// The scheduler's answer; its page, too, if `to` is given.
  std::optional<sluice_wire_welcome> welcome(int* to = nullptr) {
    sluice_wire_welcome said{};
    iovec data{&said, sizeof said};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr from{};
    from.msg_iov = &data;
    from.msg_iovlen = 1;
    from.msg_control = control;
    from.msg_controllen = sizeof control;
    pollfd one{socket_.get(), POLLIN, 0};
    if (poll(&one, 1, 20'000) <= 0) return {};
    ssize_t got = recvmsg(socket_.get(), &from, MSG_CMSG_CLOEXEC);
    // The kernel reports it once, before what the scheduler has said.
    if (got < 0 && errno == ECONNRESET) got = recvmsg(socket_.get(), &from, MSG_CMSG_CLOEXEC);
    if (got != sizeof said) return {};
    if (const cmsghdr* const head = CMSG_FIRSTHDR(&from)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      if (to != nullptr) {
        *to = fd;
      } else {
        close(fd);
      }
    }
    return said;
  }
  /// Says what every good client says first. \return as welcome().
  std::optional<sluice_wire_welcome> register_itself(int* to = nullptr) {
    const auto hello = good_hello();
    EXPECT_TRUE(send(&hello, sizeof hello, {page.get(), bell.get()}));
    return welcome(to);
  }
  /// The same, and it is taken. \return its page.
  sluice_client_words* join() {
    const auto said = register_itself();
    EXPECT_TRUE(said.has_value());
    if (said) {
      EXPECT_EQ(said->error, 0) << said->why;
    }
    void* const at = mmap(nullptr, sizeof(sluice_client_words), PROT_READ | PROT_WRITE, MAP_SHARED,
                          page.get(), 0);
    return static_cast<sluice_client_words*>(at);
  }
  void ring() const { eventfd_write(bell.get(), 1); }
  /// Whether the scheduler hangs up before patience ends.
  bool is_hung_up() const {
    pollfd one{socket_.get(), 0, 0};
    return poll(&one, 1, 20'000) == 1 && (one.revents & POLLHUP) != 0;
  }
  int fd() const noexcept { return socket_.get(); }

  unique_fd page{make_page()};
  unique_fd bell{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};

 private:
  static int socket_at(const std::string& path) {
    const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return made;
  }
  unique_fd socket_;
};

}  // namespace sluice::test
