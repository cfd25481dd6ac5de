#include "sluice/kfd/message_sink.hpp"

#include "sluice/standard_error.hpp"

namespace sluice::kfd {

message_sink messages_to_stderr() {
  return [](std::string_view sentence) { log_to_standard_error("sluice", "warning", sentence); };
}

}  // namespace sluice::kfd
