#include "json_text.hpp"

#include <spdlog/fmt/fmt.h>

namespace sluice::observe {

void append_quoted(std::string& to, std::string_view text) {
  to += '"';
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    if (code < 0x20) {
      fmt::format_to(std::back_inserter(to), "\\u{:04x}", code);
    } else if (code >= 0x7f) {
      to += '?';
    } else {
      if (each == '"' || each == '\\') to += '\\';
      to += each;
    }
  }
  to += '"';
}

}  // namespace sluice::observe
