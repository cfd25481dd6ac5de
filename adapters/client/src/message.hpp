#pragma once
/// \file
/// One message off a client's socket, and one to it. Neither ever waits.

#include "foreign_fd.hpp"
#include "wire.h"

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

namespace sluice::client {

struct message {
  std::size_t size = 0;
  pid_t sender = 0;  ///< As the kernel says; 0: it does not.
  std::array<foreign_fd, SLUICE_WIRE_DESCRIPTORS> fds;
  alignas(8) std::array<std::byte, 512> bytes;

  /// Zeros: it is shorter.
  sluice_wire_head head() const noexcept;
  /// Nothing: it is shorter, or longer.
  template <class T>
  std::optional<T> as() const noexcept {
    static_assert(sizeof(T) <= sizeof bytes);
    if (size != sizeof(T)) return {};
    T made;
    std::memcpy(&made, bytes.data(), sizeof made);
    return made;
  }
};

enum class received { one, none, hung_up };
received receive(int socket, message& into) noexcept;

/// Of a message to a client.
sluice_wire_head head_of(sluice_wire_type type) noexcept;

/// \param fd goes with it; -1: none.
/// \return false when it cannot be sent at once.
bool send_message(int socket, const void* what, std::size_t size, int fd) noexcept;

/// The answer to a hello that is not granted, where it can be sent.
/// \param error a positive errno.
/// \param why   one sentence; what is longer than the message holds is cut off.
void send_refusal(int socket, int error, std::string_view why) noexcept;

}  // namespace sluice::client
