#pragma once
/// \file
/// The kinds of spans of a request.

#include <cstddef>
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace sluice {

/// What a client measures of its requests, and what users give targets for.
enum class span_kind : std::uint8_t {
  request,  ///< From arrival to the last byte of the answer.
  ttft,     ///< From arrival to the first token.
  itl,      ///< From one token to the next.
};
inline constexpr std::size_t span_kinds = 3;

constexpr std::string_view to_string(span_kind value) noexcept {
  switch (value) {
    case span_kind::request: return "request";
    case span_kind::ttft: return "ttft";
    case span_kind::itl: break;
  }
  return "itl";
}

}  // namespace sluice
#pragma GCC visibility pop
