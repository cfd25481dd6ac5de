// Names and contents below the driver's sysfs tree. The first two line ends part an input in three.

#include "fuzz.hpp"

#include "sluice/kfd/sysfs_text.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto text = fuzz::as_text(data, size);
  (void)kfd::parse_proc_entry(text);
  if (const auto number = kfd::parse_sysfs_number(text)) {
    fuzz::require(kfd::parse_sysfs_number(std::to_string(*number)) == number,
                  "what was read is what was written");
  }
  const auto first = std::min(text.find('\n'), text.size());
  const auto second = std::min(text.find('\n', first + 1), text.size());
  const auto part = [text](std::size_t from, std::size_t to) {
    return from < to ? text.substr(from, to - from) : std::string_view{};
  };
  const auto queue = kfd::parse_sysfs_queue(part(0, first), part(first + 1, second),
                                            part(second + 1, text.size()));
  if (queue) {
    fuzz::require(kfd::parse_sysfs_number(part(0, first)) == queue->ring_size,
                  "a queue's size is the number in its file");
  }
  return 0;
}
