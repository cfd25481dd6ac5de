// A process of the soak: an ordinary user of the simulated GPU that keeps books on every kernel.
//
//   soak_worker offline|client|silent SEED BOOKS QUEUES GPU_ID SOCKET
//
// offline: so many queues at a time, each busy for a while, then destroyed (sometimes with kernels
// in flight) and made anew. client: serves requests in phases on one queue, and tells the scheduler
// of them. silent: the same, telling nobody. SIGTERM: finishes what is in flight and ends; SIGINT:
// ends at once, with kernels in flight.

#include "books.hpp"
#include "kernel_ledger.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/client.h"
#include "sluice/sim/client.hpp"
#include "sluice/time.hpp"

namespace sluice::soak {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t ring_packets = 64;
/// Offline work stands still for max_suspend at most, and online work may fill the GPU beside it.
constexpr auto drain_limit = 60s;

class dice {
 public:
  explicit dice(std::uint64_t seed) : bits_(seed) {}
  duration between(duration low, duration high) {
    return duration{std::uniform_int_distribution<duration::rep>{low.count(), high.count()}(bits_)};
  }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution{low, high}(bits_);
  }
  bool one_in(std::uint32_t n) { return between(1U, n) == 1; }

 private:
  std::mt19937_64 bits_;
};

/// By a reset, or by a page fault of this process.
struct gpu_is_lost {};

/// One queue of the GPU, from its creation to its end, whose kernels are in the books.
///
/// Threading: one thread. Errors: throws gpu_is_lost, or std::runtime_error.
class booked_queue {
 public:
  booked_queue(sim::gpu_client& client, std::uint32_t gpu, books& shared)
      : slots_(client.wave_slots()), shared_(shared), queue_(made(client, gpu)) {
    ++shared_.queues;
  }
  /// Kernels in flight count as dropped.
  ~booked_queue() {
    if (closed_) return;
    (void)queue_->destroy();
    publish(ledger_.abandon());
    (is_lost_ ? shared_.reset : shared_.dropped) += queue_->submitted() - finished_;
  }
  booked_queue(const booked_queue&) = delete;
  booked_queue& operator=(const booked_queue&) = delete;

  std::uint64_t in_flight() const { return queue_->submitted() - queue_->completed(); }

  /// \param share of the GPU, in 64ths. \return false when the ring is full.
  bool submit(duration length, std::uint32_t share, bool notify = true) {
    ledger_.before_submit();
    ++shared_.submitted;
    const auto index = queue_->submit(
        {.length = length, .waves = std::max(slots_ / 64 * share, 1U), .notify = notify});
    if (!index) {
      --shared_.submitted;
      return false;
    }
    ledger_.submitted(*index, length);
    last_ = *index;
    return true;
  }
  void ring() { queue_->ring(); }

  void wait_for_oldest() { wait(queue_->completed()); }
  /// \return false when it took longer than drain_limit.
  bool wait_for_all() {
    const auto limit = clock::now() + drain_limit;
    while (in_flight() > 0 && clock::now() < limit) wait(last_);
    return in_flight() == 0;
  }

  /// Waits for what is in flight: what has not finished by then is lost.
  void finish() {
    wait_for_all();
    publish(ledger_.close());
    closed_ = true;
    if (auto gone = queue_->destroy(); !gone)
      throw std::runtime_error{"cannot destroy a queue: " + gone.error().message()};
  }

 private:
  static std::unique_ptr<sim::gpu_queue> made(sim::gpu_client& client, std::uint32_t gpu) {
    auto queue = client.create_queue({.packets = ring_packets, .gpu = gpu});
    if (queue) return std::move(*queue);
    if (queue.error() == boost::system::errc::resource_unavailable_try_again)
      throw gpu_is_lost{};  // It is being reset.
    throw std::runtime_error{"cannot create a queue: " + queue.error().message()};
  }

  /// For the next that ends, not longer than a moment.
  void wait(std::uint64_t index) {
    if (index >= queue_->submitted()) return;
    const auto done = queue_->wait(index, 100ms);
    ledger_.collect();
    publish(ledger_.settled());
    if (done || done.error() == boost::system::errc::timed_out) return;
    if (done.error() == errc::lost) {
      is_lost_ = true;
      throw gpu_is_lost{};
    }
    throw std::runtime_error{"a wait failed: " + done.error().message()};
  }

  void publish(const demo::verdict& now) {
    const auto finished = queue_->completed();
    shared_.finished += finished - finished_;
    finished_ = finished;
    shared_.lost += now.lost - published_.lost;
    shared_.repeated += now.repeated - published_.repeated;
    shared_.out_of_order += now.out_of_order - published_.out_of_order;
    shared_.too_short += now.too_short - published_.too_short;
    published_ = now;
  }

  const std::uint32_t slots_;
  books& shared_;
  std::unique_ptr<sim::gpu_queue> queue_;
  demo::kernel_ledger<sim::gpu_queue> ledger_{*queue_, ring_packets};
  std::uint64_t last_ = 0;
  std::uint64_t finished_ = 0;
  demo::verdict published_;
  bool closed_ = false;
  bool is_lost_ = false;
};

struct settings {
  std::uint64_t seed = 0;
  std::uint32_t queues = 0;
  std::uint32_t gpu = 0;
  std::string socket;
};

/// One queue after the other.
void work_offline(sim::gpu_client& client, const settings& with, books& shared, std::uint64_t seed,
                  const std::stop_token& stop) {
  dice random{seed};
  while (!stop.stop_requested()) {
    booked_queue queue{client, with.gpu, shared};
    const time_point until = clock::now() + random.between(300ms, 5s);
    const bool in_steps = random.one_in(2);
    while (clock::now() < until && !stop.stop_requested()) {
      if (in_steps) {
        for (int left = 4; left > 0; --left)
          queue.submit(random.between(50us, 1ms), random.between(8U, 32U), left == 1);
        queue.ring();
        if (!queue.wait_for_all()) break;
        std::this_thread::sleep_for(random.between(5ms, 30ms));
      } else {
        while (queue.in_flight() < 3 &&
               queue.submit(random.between(2ms, 30ms), random.between(16U, 64U))) {
        }
        queue.ring();
        queue.wait_for_oldest();
      }
    }
    // Else it is destroyed as it is.
    if (stop.stop_requested() || !random.one_in(3)) queue.finish();
  }
}

/// A connection to the scheduler, or none.
class scheduler_link {
 public:
  explicit scheduler_link(const std::string& socket) {
    sluice_client_options with{};
    with.size = sizeof with;
    with.socket = socket.c_str();
    if (!socket.empty() && sluice_client_open(&with, &client_) != 0)
      throw std::runtime_error{sluice_client_last_error()};
  }
  ~scheduler_link() { sluice_client_close(client_); }
  scheduler_link(const scheduler_link&) = delete;
  scheduler_link& operator=(const scheduler_link&) = delete;

  void begin(std::uint64_t request) const {
    if (client_ == nullptr) return;
    sluice_client_begin(client_);
    sluice_client_begin_span(client_, SLUICE_CLIENT_REQUEST, request);
  }
  void end(std::uint64_t request) const {
    if (client_ == nullptr) return;
    sluice_client_end_span(client_, SLUICE_CLIENT_REQUEST, request);
    sluice_client_end(client_);
  }
  /// Waits until offline work is out of the way, or a little.
  void wait_until_clear() {
    if (client_ == nullptr) return;
    answered_ = 0;
    const auto answer = [](void* context, std::int32_t) {
      auto& word = *static_cast<std::atomic<int>*>(context);
      word.store(1);
      word.notify_one();
    };
    if (sluice_client_wait(client_, std::chrono::nanoseconds{200ms}.count(), answer, &answered_) >
        0)
      answered_.wait(0);
  }

 private:
  sluice_connection* client_ = nullptr;
  std::atomic<int> answered_{0};  // Until the library's thread, which notifies, has ended.
};

class online_service {
 public:
  online_service(sim::gpu_client& client, const settings& with, books& shared)
      : socket_(with.socket),
        shared_(shared),
        random_(with.seed),
        queue_(client, with.gpu, shared) {}

  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      scheduler_link link{socket_};  // As a client that comes and goes.
      for (auto phases = random_.between(1U, 6U); phases > 0 && !stop.stop_requested(); --phases)
        serve_phase(link, stop);
    }
    queue_.finish();
  }

 private:
  void serve_phase(scheduler_link& link, const std::stop_token& stop) {
    switch (random_.between(1U, 6U)) {
      case 1:  // Nobody asks.
        pause(random_.between(200ms, 3s), stop);
        return;
      case 2:  // Longer than offline work may be kept off, sometimes.
        request(link, clock::now(), random_.between(300ms, 2500ms));
        return;
      case 3:
      case 4: {  // One every 10 ms.
        const time_point until = clock::now() + random_.between(2s, 6s);
        for (time_point due = clock::now(); due < until && !stop.stop_requested(); due += 10ms) {
          if (clock::now() > due + 1s) due = clock::now();  // It was stopped, or is too slow.
          std::this_thread::sleep_until(due);
          request(link, due, random_.between(500us, 3ms));
          ++shared_.every_10_ms;
        }
        return;
      }
      default: {  // At random.
        const time_point until = clock::now() + random_.between(1s, 5s);
        const duration gap = random_.between(20ms, 400ms);
        while (clock::now() < until && !stop.stop_requested()) {
          pause(random_.between(0ms, 2 * gap), stop);
          request(link, clock::now(), random_.between(1ms, 20ms));
        }
      }
    }
  }

  void request(scheduler_link& link, time_point due, duration work) {
    const auto number = ++requests_;
    link.begin(number);
    if (random_.one_in(16)) link.wait_until_clear();
    for (duration left = work; left > 0ns; left -= 20ms) {
      queue_.submit(std::min<duration>(left, 20ms), 64);
      queue_.ring();
      if (!queue_.wait_for_all()) throw std::runtime_error{"an online kernel does not end"};
    }
    link.end(number);
    ++shared_.requests;
    const auto took = static_cast<std::uint64_t>((clock::now() - due).count());
    if (took > shared_.longest_request) shared_.longest_request = took;
  }

  static void pause(duration length, const std::stop_token& stop) {
    const time_point until = clock::now() + length;
    while (clock::now() < until && !stop.stop_requested())
      std::this_thread::sleep_for(std::min<duration>(until - clock::now(), 50ms));
  }

  const std::string socket_;
  books& shared_;
  dice random_;
  booked_queue queue_;
  std::uint64_t requests_ = 0;
};

int run(std::string_view role, const settings& with, books& shared) {
  sigset_t endings;
  sigemptyset(&endings);
  sigaddset(&endings, SIGTERM);
  sigaddset(&endings, SIGINT);
  pthread_sigmask(SIG_BLOCK, &endings, nullptr);

  sim::client_options how;
  how.gpu = with.gpu;
  auto opened = sim::gpu_client::open(how);
  if (!opened) {
    std::fprintf(stderr, "soak_worker: open: %s\n", opened.error().message().c_str());
    return opened.error() == boost::system::errc::resource_unavailable_try_again
               ? worker_lost_its_gpu
               : worker_failed;
  }
  const auto client = std::move(*opened);
  std::atomic<int> outcome{worker_done};
  const auto guarded = [&](auto&& body) {
    try {
      body();
    } catch (const gpu_is_lost&) {
      outcome = worker_lost_its_gpu;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "soak_worker: %s\n", problem.what());
      outcome = worker_failed;
    }
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < with.queues; ++i) {
    threads.emplace_back([&, i](const std::stop_token& stop) {
      guarded([&] {
        if (role == "offline")
          work_offline(*client, with, shared, with.seed + i, stop);
        else
          online_service{*client, with, shared}.serve(stop);
      });
    });
  }
  while (outcome == worker_done) {
    const timespec moment{0, 100'000'000};
    const int got = ::sigtimedwait(&endings, nullptr, &moment);
    if (got == SIGINT) ::_exit(worker_done);
    if (got == SIGTERM) break;
  }
  for (auto& each : threads) each.request_stop();
  threads.clear();
  return outcome;
}

}  // namespace
}  // namespace sluice::soak

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr,
                 "usage: soak_worker offline|client|silent SEED BOOKS QUEUES GPU_ID SOCKET\n");
    return 2;
  }
  const std::string_view role = argv[1];
  try {
    const auto shared = sluice::soak::open_books(argv[3]);
    return sluice::soak::run(role,
                             {.seed = std::stoull(argv[2]),
                              .queues = static_cast<std::uint32_t>(std::stoul(argv[4])),
                              .gpu = static_cast<std::uint32_t>(std::stoul(argv[5])),
                              .socket = role == "client" ? argv[6] : ""},
                             *shared);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "soak_worker: %s\n", problem.what());
    return sluice::soak::worker_failed;
  }
}
