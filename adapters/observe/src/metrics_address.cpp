#include "sluice/observe/metrics_address.hpp"

#include <arpa/inet.h>

#include <charconv>
#include <cstdint>
#include <system_error>

namespace sluice::observe {
namespace {

/// The socket is made as PATH.PID first.
constexpr std::size_t longest_path = sizeof(sockaddr_un::sun_path) - sizeof ".4194304";

}  // namespace

std::optional<metrics_address> parse_metrics_address(std::string_view text) {
  metrics_address made;
  constexpr std::string_view unix = "unix:";
  if (text.starts_with(unix)) {
    made.unix_path = text.substr(unix.size());
    const bool good = made.unix_path.starts_with('/') && made.unix_path.size() <= longest_path &&
                      made.unix_path.find('\0') == std::string::npos;
    return good ? std::optional{made} : std::nullopt;
  }
  const auto colon = text.rfind(':');
  if (colon == text.npos) return {};
  std::uint16_t port = 0;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size()) return {};
  std::string host{text.substr(0, colon)};
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (::inet_pton(AF_INET6, host.c_str(), &made.ip.v6.sin6_addr) != 1) return {};
    made.ip.v6.sin6_family = AF_INET6;
    made.ip.v6.sin6_port = htons(port);
    made.local = IN6_IS_ADDR_LOOPBACK(&made.ip.v6.sin6_addr);
    return made;
  }
  if (::inet_pton(AF_INET, host.c_str(), &made.ip.v4.sin_addr) != 1) return {};
  made.ip.v4.sin_family = AF_INET;
  made.ip.v4.sin_port = htons(port);
  made.local = (ntohl(made.ip.v4.sin_addr.s_addr) >> 24U) == 127;
  return made;
}

}  // namespace sluice::observe
