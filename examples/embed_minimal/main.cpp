// Problem: a program outside sluice's tree has the scheduler in it, built against an installed
// sluice alone:
//   cmake -B build && cmake --build build        (find_package, CMakeLists.txt)
//   make                                         (pkg-config, Makefile)
//
// Notice: one target or one -l is all that it takes. Where the kernel refuses io_uring, as many
// containers do, it is sluice::sluice_epoll, or -lsluice-epoll.
//
// Expected output, after a second: what offline work was held back for (0 with nobody else on the
// GPU):
//   answered 5 requests; 0 queue suspends, 0 resumes

#include <sluice/kfd/driver.hpp>
#include <sluice/node.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <system_error>
#include <thread>

int main() {
  using namespace std::chrono_literals;
  std::string problem;
  const auto made = sluice::node::create({.driver = sluice::kfd::make_driver()}, problem);
  if (made.has_error()) {
    std::fprintf(stderr, "embed_minimal: cannot create the scheduler: %s\n", problem.c_str());
    return 1;
  }
  sluice::node& node = **made;
  if (const auto started = node.start(); started.has_error()) {
    std::fprintf(stderr, "embed_minimal: cannot start the scheduler: %s\n",
                 started.error().message().c_str());
    return 1;
  }
  std::error_code error;
  auto client = node.connect({.name = "embed_minimal"}, error);
  if (error) {
    std::fprintf(stderr, "embed_minimal: cannot connect to the scheduler: %s\n",
                 error.message().c_str());
    return 1;
  }
  for (int request = 0; request < 5; ++request) {
    std::this_thread::sleep_for(150ms);
    const auto busy = client.busy();
    std::this_thread::sleep_for(50ms);  // Stands for GPU work.
  }
  node.stop();
  const auto seen = node.stats();
  std::printf("answered 5 requests; %llu queue suspends, %llu resumes\n",
              static_cast<unsigned long long>(seen->suspends.value()),
              static_cast<unsigned long long>(seen->resumes.value()));
}
