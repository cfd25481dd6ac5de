// Problem: this program answers requests on a GPU that best-effort processes use as well, and wants
// them off it while a request is in flight.
//
// Notice: one line around the work, `auto busy = client.busy();`, is all that the serving code
// sees. Start it twice: the second one follows the first, which counts its work, too, and takes
// over when the first one ends.
//
// Expected output, after 5 s (or at SIGINT or SIGTERM), with nobody else on the GPU:
//   answered 10 requests; 0 queue suspends, 0 resumes
// and beside an offline process (AMD_QUEUE_TAG=OFFLINE_AI in its environment) one suspend and one
// resume for each request that comes once that process has been attached, which is after 2 s.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "sluice/kfd/driver.hpp"
#include "sluice/node.hpp"

namespace {

using namespace std::chrono_literals;

std::atomic<int> stop_signal{0};

void wait_for_request() { std::this_thread::sleep_for(450ms); }

/// Stands for GPU work of 50 ms.
void answer_request() { std::this_thread::sleep_for(50ms); }

sluice::result<void> serve() {
  // [embed]
  sluice::node_options options;
  options.driver = sluice::kfd::make_driver();
  std::string problem;
  const auto made = sluice::node::create(std::move(options), problem);
  if (made.has_error()) return made.error();
  sluice::node& node = **made;
  if (auto started = node.start(); started.has_error()) return started.error();

  std::error_code error;
  auto client = node.connect({.name = "01_embed"}, error);
  int answered = 0;
  while (!error && answered < 10 && stop_signal == 0) {
    wait_for_request();
    auto busy = client.busy();  // begin of online work: offline work is suspended
    answer_request();
    ++answered;
  }  // end of `busy`: offline work may be resumed

  node.stop();  // resumes all suspended queues
  // [/embed]

  if (error) return sluice::error_code{error.value(), boost::system::system_category()};
  const auto seen = node.stats();
  std::printf("answered %d requests; %llu queue suspends, %llu resumes\n", answered,
              static_cast<unsigned long long>(seen->suspends.value()),
              static_cast<unsigned long long>(seen->resumes.value()));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    if (std::string_view{argv[1]} == "--help") {
      std::puts(
          "usage: 01_embed\n"
          "Answer ten requests with an embedded scheduler, beside offline processes.\n"
          "SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and SLUICE_KFD_DEBUGFS select a simulated\n"
          "device (examples/with_simulated_gpu.sh sets them).");
      return 0;
    }
    std::fprintf(stderr, "01_embed: unexpected argument '%s' (see --help)\n", argv[1]);
    return 2;
  }
#ifdef BOOST_ASIO_HAS_IO_URING  // Many containers refuse it; the epoll build needs nothing like it.
  if (const auto allowed = sluice::probe_io_uring(); allowed.has_error()) {
    std::fprintf(stderr,
                 "01_embed: the kernel refuses io_uring (%s); configure the epoll build with "
                 "-DSLUICE_ASIO_BACKEND=epoll\n",
                 allowed.error().message().c_str());
    return 1;
  }
#endif
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, [](int received) { stop_signal = received; });
  }
  const auto done = serve();
  if (done.has_value()) return stop_signal == 0 ? 0 : 128 + stop_signal;
  std::fprintf(stderr, "01_embed: %s\n", done.error().message().c_str());
  return 1;
}
