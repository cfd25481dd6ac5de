#pragma once
/// \file
/// Where metrics are served: a Unix socket, or an address and a port.

#include <netinet/in.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <string_view>

namespace sluice::observe {

struct metrics_address {
  std::string unix_path{};  ///< Empty: by `ip`.
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } ip{};
  /// Whether nobody from another machine can connect.
  bool local = true;
};

/// From "unix:/run/sluice/metrics.sock", "127.0.0.1:9464" or "[::1]:9464"; no names, which would
/// have to be asked for. \return nothing when it is none of these; any thread.
[[nodiscard]] std::optional<metrics_address> parse_metrics_address(std::string_view text);

}  // namespace sluice::observe
