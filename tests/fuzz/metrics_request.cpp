// What anybody may send to the metrics' socket, and addresses of it.

#include "fuzz.hpp"
#include "http_request.hpp"

#include "sluice/observe/metrics_address.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const std::string_view text = fuzz::as_text(data, size);
  const int whole = observe::read_request(text).status;
  fuzz::require(whole == 0 || (whole >= 200 && whole < 500), "an answer, or more to come");
  fuzz::require(whole != 0 || size < observe::longest_request, "not for ever");
  // Wherever it is cut: once there is an answer, more text changes nothing.
  int answer = 0;
  for (std::size_t i = 0; i <= size && i < 256; ++i) {
    const int now = observe::read_request(text.substr(0, i)).status;
    fuzz::require(answer == 0 || answer == now, "an answer stays");
    answer = now;
  }
  if (const auto at = observe::parse_metrics_address(text)) {
    fuzz::require(at->unix_path.empty() || at->unix_path.front() == '/', "a path is absolute");
    fuzz::require(at->unix_path.size() < sizeof(sockaddr_un::sun_path), "a path fits");
  }
  return 0;
}
