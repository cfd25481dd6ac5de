#include "control_channel.hpp"

#include "stop_request.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace demo {

using namespace std::chrono_literals;

control_channel::control_channel(int fd) : fd_(fd) {
  if (fd_ >= 0) fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

control_channel::~control_channel() {
  if (fd_ >= 0) close(fd_);
}

control_channel::control_channel(control_channel&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

control_channel& control_channel::operator=(control_channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

bool control_channel::say(std::string_view line) {
  if (fd_ < 0) return true;
  std::string text(line);
  text += '\n';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

checked<bool> control_channel::receive(sluice::time_point deadline) {
  if (stop_signal() != 0) return failure("interrupted");
  if (sluice::clock::now() >= deadline) return failure(std::string(no_answer_yet));
  pollfd readable{fd_, POLLIN, 0};
  if (poll(&readable, 1, 50) <= 0) return true;
  char chunk[4096];
  const ssize_t n = recv(fd_, chunk, sizeof chunk, 0);
  if (n < 0 && errno == EINTR) return true;
  if (n <= 0) return failure("the program ended");
  buffer_.append(chunk, static_cast<std::size_t>(n));
  return true;
}

checked<std::string> control_channel::hear(sluice::time_point deadline) {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return checked<std::string>(boost::system::in_place_value, line);
    }
    if (const auto more = receive(deadline); more.has_error()) return more.error();
  }
}

checked<bool> control_channel::hear_anything(sluice::time_point deadline) {
  while (buffer_.empty()) {
    if (const auto more = receive(deadline); more.has_error()) return more.error();
  }
  buffer_.clear();
  return true;
}

checked<bool> control_channel::ready_then_go(sluice::time_point deadline) {
  if (fd_ < 0) return true;
  if (!say("ready")) return failure("the control channel is closed");
  checked<std::string> line = hear(deadline);
  if (line.has_error()) return line.error();
  if (*line != "go") return failure("the control channel sent '" + *line + "'; expected 'go'");
  return true;
}

}  // namespace demo
