#include "serving_options.hpp"

#include "options.hpp"
#include "workload.hpp"

#include <chrono>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace demo {

using namespace std::chrono_literals;

void serving_options::add_to(CLI::App& app) {
  const std::string group = "Serving loop";
  add_duration(app, "--decode-kernel", decode_kernel, "Maximum length of a kernel in a decode step",
               {1us, 1s})
      ->group(group);
  add_duration(app, "--prefill-kernel", prefill_kernel, "Maximum length of a kernel in a prefill",
               {1us, 1s})
      ->group(group);
  add_duration(app, "--host-gap", host_gap, "Time of host work between two steps", {0ns, 1s})
      ->group(group);
  add_number(app, "--most-active", most_active, 1u, 100000u,
             "Maximum number of requests in one batch")
      ->group(group);
  add_duration(app, "--drain-limit", drain_limit,
               "Time after the window in which unfinished requests are still served", {0ns, 1h})
      ->group(group);
}

std::vector<std::string> serving_options::arguments() const {
  return {"--decode-kernel",  sluice::to_text(decode_kernel),
          "--prefill-kernel", sluice::to_text(prefill_kernel),
          "--host-gap",       sluice::to_text(host_gap),
          "--most-active",    std::to_string(most_active),
          "--drain-limit",    sluice::to_text(drain_limit)};
}

std::string serving_options::description() const {
  return fmt::format(
      "a generated token costs {:g} context tokens; kernels of at most {} (prefill, {:.0f} % of "
      "the wave slots) and {} (decode, {:.0f} %), host gap {}, up to {} requests in a batch; drain "
      "limit {}",
      decode_weight, rounded_text(prefill_kernel), 100 * prefill_occupancy,
      rounded_text(decode_kernel), 100 * decode_occupancy, rounded_text(host_gap), most_active,
      rounded_text(drain_limit));
}

}  // namespace demo
