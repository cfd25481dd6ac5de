// A program outside the tree. It has Asio of its own, as a host program may, and embeds a scheduler
// for a node that is not there: everything links, and the refusal is an error value.
#include <sluice/agent/agent_backend.hpp>
#include <sluice/asio.hpp>
#include <sluice/discovery.hpp>
#include <sluice/kfd/survey.hpp>
#include <sluice/policies/fixed_timeslice.hpp>
#include <sluice/scheduler.hpp>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "sluice/kfd/driver.hpp"

int main() {
  if (sluice::probe_io_uring().has_error()) {
    std::puts("this kernel refuses io_uring: nothing to try here");
    return 0;
  }
  boost::asio::io_context host;
  boost::asio::steady_timer timer(host, std::chrono::milliseconds(1));
  bool fired = false;
  timer.async_wait([&fired](const boost::system::error_code&) { fired = true; });

  const sluice::kfd::roots nowhere{"/nonexistent/kfd", "/nonexistent/sysfs",
                                   "/nonexistent/debugfs"};
  auto loop = sluice::make_reactor(host);
  if (loop.has_error()) {
    std::printf("no reactor: %s\n", loop.error().message().c_str());
    return 1;
  }
  std::vector<std::unique_ptr<sluice::source>> sources;
  sources.push_back(sluice::make_discovery(sluice::kfd::make_survey(nowhere)));
  auto made = sluice::scheduler::create(
      {}, std::move(*loop),
      sluice::agent::make_agent_backend(
          {.driver = sluice::kfd::acting({.where = nowhere}), .owner_lock = ""}),
      sluice::make_fixed_timeslice(), std::move(sources));
  if (made.has_error()) {
    std::printf("no scheduler: %s\n", made.error().message().c_str());
    return 1;
  }
  const auto started = (*made)->start();
  host.run_for(std::chrono::milliseconds(50));
  std::printf("timer fired: %d; start on a node without a GPU: %s\n", fired,
              started.has_error() ? started.error().message().c_str() : "worked");
  return fired && started.has_error() ? 0 : 1;
}
