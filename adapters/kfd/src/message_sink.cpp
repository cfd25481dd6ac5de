#include "sluice/kfd/message_sink.hpp"

#include <string>

#include "sluice/standard_error.hpp"

namespace sluice::kfd {

message_sink messages_to_stderr() {
  return [](std::string_view sentence) {
    std::string line = "sluice: ";
    line += sentence;
    line += '\n';
    write_to_standard_error(line);
  };
}

}  // namespace sluice::kfd
