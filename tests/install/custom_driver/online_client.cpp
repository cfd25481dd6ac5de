// An online client that measures: online_client SOCKET EVENTS ROUNDS. Each round begins online
// work, waits until cgroup.events says "frozen 1", ends the work, and waits for "frozen 0". Prints
// the milliseconds of each freeze. With 0 rounds: begins, and stays online until it is killed.

#include <sluice/client.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

void wait_for(int events, const char* state) {
  for (const auto give_up = clock_type::now() + 20s; clock_type::now() < give_up;) {
    char text[100]{};
    if (::pread(events, text, sizeof text - 1, 0) > 0 && std::strstr(text, state) != nullptr)
      return;
    pollfd changed{events, POLLPRI, 0};
    ::poll(&changed, 1, 100);
  }
  std::fprintf(stderr, "no '%s' within 20 s\n", state);
  std::exit(1);
}

}  // namespace

int main(int, char** argv) {
  std::error_code error;
  auto client =
      sluice::client::connection::open({.socket = argv[1], .name = "online_client"}, error);
  if (error) return std::fprintf(stderr, "%s\n", error.message().c_str()), 1;
  const int events = ::open(argv[2], O_RDONLY);
  const int rounds = std::atoi(argv[3]);
  for (int round = 0; round < rounds; ++round) {
    const auto begin = clock_type::now();
    {
      const auto busy = client.busy();
      wait_for(events, "frozen 1");
      std::printf("%.3f\n",
                  std::chrono::duration<double, std::milli>{clock_type::now() - begin}.count());
    }
    wait_for(events, "frozen 0");
    ::usleep(20'000);  // the offline work's slice
  }
  if (rounds > 0) return 0;
  const auto busy = client.busy();
  std::puts("online");
  std::fflush(stdout);
  for (;;) ::pause();
}
