#include "sluice/os/message_sink.hpp"

#include "sluice/os/standard_error.hpp"

namespace sluice {

message_sink messages_to_stderr() {
  return [](std::string_view sentence) { log_to_standard_error("sluice", "warning", sentence); };
}

}  // namespace sluice
