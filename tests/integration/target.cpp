// An ordinary GPU process for the integration tests: opens the device, creates queues, keeps them
// busy from a feeder thread, and obeys one-line commands on stdin. Every answer is one line.

#include "affliction.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/sim/client.hpp"

namespace {

using namespace std::chrono_literals;

std::atomic<int> handled_signals{0};

/// One queue that a feeder keeps filled, and what it saw of its kernels.
struct fed_queue {
  std::unique_ptr<sluice::sim::gpu_queue> queue;
  std::uint64_t checked = 0;  ///< Kernels whose completion was verified.
  std::uint64_t wrong = 0;    ///< Not executed exactly once, out of order, or cut short.
  sluice::time_point last_end{};
};

class feeder {
 public:
  /// The queues lie on the given GPUs in turn.
  feeder(sluice::sim::gpu_client& client, std::size_t queues, sluice::duration length,
         const std::vector<std::uint32_t>& gpus)
      : length_(length), waves_(client.wave_slots()) {
    for (std::size_t i = 0; i < queues; ++i) {
      auto made = client.create_queue({.packets = 64, .gpu = gpus[i % gpus.size()]});
      if (!made) {
        std::cerr << "create_queue: " << made.error().message() << '\n';
        std::exit(3);
      }
      queues_.push_back({.queue = std::move(*made)});
    }
    if (length_ > 0ns) {
      for (std::size_t i = 0; i < queues_.size(); ++i) {
        threads_.emplace_back([this, i](const std::stop_token& stop) { feed(queues_[i], stop); });
      }
    }
  }

  std::uint64_t completed() const {
    std::uint64_t sum = 0;
    for (const auto& each : queues_) {
      if (each.queue) sum += each.queue->completed();
    }
    return sum;
  }

  std::uint64_t wrong() const { return wrong_.load(); }

  /// Stops feeding and waits for everything in flight; then each kernel has been verified.
  void drain() {
    for (auto& thread : threads_) thread.request_stop();
    threads_.clear();
  }

  /// One kernel on the first queue, which must not be fed. Without a signal nobody is told of its
  /// end, and completed() does not count it.
  std::string run_one(sluice::duration length, bool signal) {
    auto& queue = *queues_.at(0).queue;
    const auto index = queue.submit({.length = length, .waves = waves_});
    if (!index) return "submit failed: " + index.error().message();
    if (!signal) {
      // The device looks at the packet only once the doorbell rings.
      constexpr std::uint64_t ring_packets = 64;
      constexpr std::uint64_t packet_size = 64;
      constexpr std::uint64_t completion_signal_offset = 56;
      const std::uint64_t none = 0;
      std::memcpy(reinterpret_cast<void*>(queue.ring_base() + *index % ring_packets * packet_size +
                                          completion_signal_offset),
                  &none, sizeof none);
    }
    queue.ring();
    return "submitted";
  }

  std::string destroy(std::size_t index) {
    const auto done = queues_.at(index).queue->destroy();
    return done ? "destroyed" : "destroy failed: " + done.error().message();
  }

 private:
  void feed(fed_queue& fed, const std::stop_token& stop) {
    constexpr std::uint64_t depth = 4;
    bool lost = false;
    while (!stop.stop_requested() && !lost) {
      while (fed.queue->submitted() - fed.checked < depth) {
        if (!fed.queue->submit({.length = length_, .waves = waves_})) break;
      }
      fed.queue->ring();
      lost = !verify_next(fed);
    }
    while (!lost && fed.checked < fed.queue->submitted()) lost = !verify_next(fed);
  }

  bool verify_next(fed_queue& fed) {
    const auto waited = fed.queue->wait(fed.checked, 60s);
    if (!waited) {
      std::cerr << "kernel " << fed.checked << " lost: " << waited.error().message() << '\n';
      wrong_.fetch_add(1);
      return false;
    }
    const auto done = fed.queue->completion(fed.checked++);
    const bool once = done.value == 0;
    const bool whole = done.end - done.start >= length_;
    const bool ordered = done.start >= fed.last_end;
    if (!once || !whole || !ordered) wrong_.fetch_add(1);
    fed.last_end = done.end;
    return true;
  }

  sluice::duration length_;
  std::uint32_t waves_;
  std::vector<fed_queue> queues_;
  std::vector<std::jthread> threads_;
  std::atomic<std::uint64_t> wrong_{0};
};

void say(const std::string& line) { std::cout << line << std::endl; }

/// Sleeps in epoll_wait on nothing for `timeout_ms`; tells how it ended.
std::string epoll_once(int timeout_ms) {
  const int poller = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  const int got = epoll_wait(poller, &event, 1, timeout_ms);
  const int why = errno;
  close(poller);
  if (got == 0) return "timeout";
  return got < 0 && why == EINTR ? "EINTR" : "error";
}

}  // namespace

int main(int argc, char** argv) {
  const bool all_gpus = argc == 4 && std::strcmp(argv[3], "all-gpus") == 0;
  const bool no_runtime = argc == 4 && std::strcmp(argv[3], "no-runtime") == 0;
  const bool one_gpu = argc == 4 && std::strncmp(argv[3], "gpu=", 4) == 0;
  if (argc != 3 && !all_gpus && !no_runtime && !one_gpu) {
    std::cerr
        << "usage: integration_target QUEUES KERNEL_MICROSECONDS [all-gpus|gpu=N|no-runtime]\n"
           "0 us: idle queues. all-gpus: on all of them in turn. gpu=N: on that one, else on\n"
           "the first. no-runtime: without the runtime's debug support.\n";
    return 2;
  }
  sluice::sim::client_options how;
  how.runtime = !no_runtime;
  auto client = sluice::sim::gpu_client::open(how);
  if (!client) {
    std::cerr << "open: " << client.error().message() << '\n';
    return 3;
  }
  std::vector<std::uint32_t> gpus = (*client)->gpus();
  if (!all_gpus) gpus = {gpus.at(one_gpu ? std::strtoul(argv[3] + 4, nullptr, 10) : 0)};
  {
    feeder fed(**client, std::strtoul(argv[1], nullptr, 10),
               std::chrono::microseconds(std::strtol(argv[2], nullptr, 10)), gpus);
    say("ready");
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      std::string verb;
      int number = 0;
      words >> verb >> number;
      if (verb == "completed") {
        say(std::to_string(fed.completed()));
      } else if (verb == "drain") {
        fed.drain();
        say(std::to_string(fed.wrong()));
      } else if (verb == "run" || verb == "run-unsignalled") {
        say(fed.run_one(std::chrono::microseconds(number), verb == "run"));
      } else if (verb == "destroy") {
        say(fed.destroy(static_cast<std::size_t>(number)));
      } else if (verb == "handle") {
        struct sigaction action {};
        action.sa_handler = [](int) { handled_signals.fetch_add(1); };
        action.sa_flags = SA_RESTART;
        sigaction(number, &action, nullptr);
        say("handling");
      } else if (verb == "handled") {
        say(std::to_string(handled_signals.load()));
      } else if (verb == "epoll") {
        say(epoll_once(number));
      } else if (verb == "exec") {
        say("exec");
        execl("/bin/sleep", "sleep", "1000", nullptr);
        say("exec failed");
      } else if (verb == "suffer") {
        say(sluice::test::suffer(line.substr(7)));
      } else if (verb == "exit") {
        _exit(number);
      } else if (verb == "end") {
        break;
      } else {
        say("unknown command");
      }
    }
    fed.drain();
  }
  return 0;
}
