#include "sluice/kfd/text_lines.hpp"

namespace sluice::kfd {

void unread::note(std::uint64_t line, std::string_view text) {
  if (count++ != 0) return;
  constexpr std::size_t excerpt = 60;
  first_line = line;
  first_text = text.substr(0, excerpt);
  for (char& each : first_text) {
    if (each < ' ' || each > '~') each = '.';
  }
}

}  // namespace sluice::kfd
