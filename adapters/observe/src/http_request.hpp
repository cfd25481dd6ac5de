#pragma once
/// \file
/// As much of HTTP/1.1 as somebody who asks for metrics speaks. Boost.Beast would bring Asio, whose
/// macros this project keeps out of all but the runtime.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string_view>

#include "sluice/observe/metrics.hpp"

namespace sluice::observe {

inline constexpr std::size_t longest_request = 8192;

struct http_request {
  int status = 0;  ///< What the answer begins with; 0: there is more to come.
  bool head = false;
  metrics_form form = metrics_form::prometheus;
};

/// \param so_far all that came.
inline http_request read_request(std::string_view so_far) {
  const auto end = so_far.find("\r\n\r\n");
  if (end == so_far.npos) return {.status = so_far.size() >= longest_request ? 431 : 0};
  std::string_view head = so_far.substr(0, end + 2);
  const auto next = [](std::string_view& text, std::string_view until) {
    const auto at = std::min(text.find(until), text.size());
    const std::string_view part = text.substr(0, at);
    text.remove_prefix(std::min(at + until.size(), text.size()));
    return part;
  };
  std::string_view line = next(head, "\r\n");
  const std::string_view method = next(line, " ");
  const std::string_view target = next(line, " ");
  if (!line.starts_with("HTTP/1.") || target.empty()) return {.status = 400};
  if (method != "GET" && method != "HEAD") return {.status = 405};
  if (target.substr(0, target.find('?')) != "/metrics")
    return {.status = 404, .head = method == "HEAD"};
  http_request made{.status = 200, .head = method == "HEAD"};
  const auto same = [](unsigned char one, unsigned char other) {
    return std::tolower(one) == std::tolower(other);
  };
  while (!head.empty()) {
    line = next(head, "\r\n");
    constexpr std::string_view accept = "accept:";
    constexpr std::string_view openmetrics = "application/openmetrics-text";
    if (!std::ranges::equal(line.substr(0, accept.size()), accept, same)) continue;
    // clang 14 cannot compile std::ranges::search.
    if (std::search(line.begin(), line.end(), openmetrics.begin(), openmetrics.end(), same) !=
        line.end())
      made.form = metrics_form::openmetrics;
  }
  return made;
}

}  // namespace sluice::observe
