#pragma once
/// \file
/// How sluice-demo steers the programs it starts: lines over one socket. A program says "ready",
/// waits for "go", and reports as JSON; started by hand it has no channel and goes at once.

#include "workload.hpp"

#include <string>
#include <string_view>

#include "sluice/time.hpp"

namespace demo {

/// What hear() fails with when only the deadline has passed.
inline constexpr std::string_view no_answer_yet = "no answer in time";

/// One end of the socket. Threading: one thread. Errors: a peer that is gone reads as a failure.
class control_channel {
 public:
  /// \param fd owned from here on; -1 = no channel.
  explicit control_channel(int fd = -1);
  ~control_channel();
  control_channel(control_channel&& other) noexcept;
  control_channel& operator=(control_channel&& other) noexcept;

  explicit operator bool() const { return fd_ >= 0; }

  /// Sends one line; true when there is no channel.
  bool say(std::string_view line);

  /// The next line, without its end. Looks at stop_signal() while it waits.
  checked<std::string> hear(sluice::time_point deadline);

  /// Waits for whatever the peer says first; how much it says does not matter.
  checked<bool> hear_anything(sluice::time_point deadline);

  /// Says "ready" and waits for "go". True when there is no channel.
  checked<bool> ready_then_go(sluice::time_point deadline);

 private:
  /// Adds what has come to the buffer, waiting a little.
  checked<bool> receive(sluice::time_point deadline);

  int fd_;
  std::string buffer_;
};

}  // namespace demo
