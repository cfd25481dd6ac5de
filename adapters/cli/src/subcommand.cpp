#include "subcommand.hpp"

#include "output.hpp"

#include <limits>

#include <fmt/format.h>

namespace sluice::cli {

CLI::Validator whole_number_of(std::string what, std::uint64_t least, std::uint64_t most) {
  return {[what = std::move(what), least, most](std::string& text) -> std::string {
            const auto value = whole_number<std::uint64_t>(text);
            if (value && *value >= least && *value <= most) return {};
            return fmt::format("invalid {} '{}': expected a whole number from {} to {}", what,
                               printable(text), least, most);
          },
          ""};
}

CLI::Validator a_process_id() { return whole_number_of("process id", 1, 4'194'304); }

// The driver has no more than 1024 for a process; what it does not have, it says itself.
CLI::Validator queue_number() {
  return whole_number_of("queue id", 0, std::numeric_limits<std::int32_t>::max());
}

}  // namespace sluice::cli
