#include "serving_options.hpp"

#include "arrivals.hpp"
#include "options.hpp"

#include <fmt/format.h>

namespace demo {

void serving_options::add_to(CLI::App& app) {
  const std::string group = "Serving loop";
  add_duration(app, "--decode-kernel", decode_kernel, "Longest kernel of a decode step")
      ->group(group);
  add_duration(app, "--prefill-kernel", prefill_kernel, "Longest kernel of a prefill")
      ->group(group);
  add_duration(app, "--host-gap", host_gap, "Host work between two steps")->group(group);
  app.add_option("--most-active", most_active, "Requests in one batch")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str()
      ->group(group);
  add_duration(app, "--drain-limit", drain_limit,
               "How long after the window unfinished requests are still served")
      ->group(group);
}

std::vector<std::string> serving_options::arguments() const {
  return {"--decode-kernel",  to_argument(decode_kernel),
          "--prefill-kernel", to_argument(prefill_kernel),
          "--host-gap",       to_argument(host_gap),
          "--most-active",    std::to_string(most_active),
          "--drain-limit",    to_argument(drain_limit)};
}

std::string serving_options::description() const {
  return fmt::format(
      "a generated token costs {:g} context tokens; kernels of at most {} (prefill, {:.0f} % of "
      "the "
      "wave slots) and {} (decode, {:.0f} %), host gap {}, up to {} requests in a batch; drain "
      "limit {}",
      decode_weight, to_text(prefill_kernel), 100 * prefill_occupancy, to_text(decode_kernel),
      100 * decode_occupancy, to_text(host_gap), most_active, to_text(drain_limit));
}

}  // namespace demo
