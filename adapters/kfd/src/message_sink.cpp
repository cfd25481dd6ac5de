#include "sluice/kfd/message_sink.hpp"

#include <unistd.h>

#include <string>

namespace sluice::kfd {

message_sink messages_to_stderr() {
  return [](std::string_view sentence) {
    std::string line = "sluice: ";
    line += sentence;
    line += '\n';
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  };
}

}  // namespace sluice::kfd
