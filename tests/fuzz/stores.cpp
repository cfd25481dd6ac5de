// The files under /run/sluice: open breakers, written again as they were read, and said roles.

#include "fuzz.hpp"

#include "sluice/breaker_store.hpp"
#include "sluice/roles/role_store.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  static const fuzz::input_file file("store");
  file.write(fuzz::as_text(data, size));
  std::string message;
  const breaker_store breakers{file.path()};
  if (const auto read = breakers.read(message)) {
    const std::string text{fuzz::as_text(data, size)};
    const auto changed = breakers.change(*read, {}, message);
    fuzz::require(changed.has_value(), "what could be read can be written");
    const auto again = breakers.read(message);
    fuzz::require(again.has_value(), "what was written can be read");
    // What is over goes with the change.
    auto left = *read;
    std::erase_if(left, [&](const auto& each) { return !again->contains(each.first); });
    fuzz::require(left == *again, "and says the same");
    const auto now =
        std::chrono::time_point_cast<wall_time::duration>(std::chrono::system_clock::now());
    for (const auto& [gpu, what] : *read) {
      fuzz::require(what.over(now) || again->contains(gpu), "of all that is not over");
    }
    file.write(text);
  } else {
    fuzz::require(!message.empty(), "what is wrong is said");
  }
  message.clear();
  const roles::role_store roles{file.path()};
  if (!roles.read(message)) fuzz::require(!message.empty(), "what is wrong is said");
  return 0;
}
