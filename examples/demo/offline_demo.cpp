// Best-effort work on the simulated GPU, in a process that knows nothing of any scheduler: its only
// mark is AMD_QUEUE_TAG=OFFLINE_AI in the environment it is started with.
//
// It keeps books on every kernel: run exactly once, in order, for as long as it had to. Suspending
// its queues may cost it time and nothing else; anything else ends it with a message and code 3.

#include "control_channel.hpp"
#include "kernel_ledger.hpp"
#include "options.hpp"
#include "print.hpp"
#include "reset_text.hpp"
#include "stop_request.hpp"
#include "wire_report.hpp"
#include "workload.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "sluice/sim/client.hpp"

namespace {

using namespace std::chrono_literals;
using sluice::clock;
using sluice::duration;
using sluice::time_point;

constexpr std::uint32_t ring_packets = 1024;
constexpr duration drain_limit = 20s;

/// One queue with its books.
struct lane {
  std::unique_ptr<sluice::sim::gpu_queue> queue;
  demo::kernel_ledger<sluice::sim::gpu_queue> books;
  std::uint64_t last = 0;

  explicit lane(std::unique_ptr<sluice::sim::gpu_queue> made)
      : queue(std::move(made)), books(*queue, ring_packets) {}
  std::uint64_t in_flight() const { return queue->submitted() - queue->completed(); }
};

class offline_work {
 public:
  offline_work(demo::load_kind kind, std::uint64_t seed)
      : shape_(demo::shape_of(kind)), stream_(shape_, seed) {}

  sluice::result<void> open() {
    auto client = sluice::sim::gpu_client::open({});
    if (client.has_error()) return client.error();
    client_ = std::move(*client);
    for (std::uint32_t i = 0; i < shape_.queues; ++i) {
      auto queue = client_->create_queue({.packets = ring_packets});
      if (queue.has_error()) return queue.error();
      lanes_.push_back(std::make_unique<lane>(std::move(*queue)));
    }
    return {};
  }

  /// One round: fills what may be filled, then waits, at most until `end`, for what must be waited
  /// for.
  sluice::result<void> round(time_point end) {
    if (shape_.kernels_per_step == 0) return keep_filled();
    for (auto& each : lanes_) {
      for (std::uint32_t i = 0; i < shape_.kernels_per_step; ++i) {
        const bool last = i + 1 == shape_.kernels_per_step;
        if (auto sent = submit(*each, last); sent.has_error()) return sent;
      }
      each->queue->ring();
    }
    if (auto done = wait_for_all(end); done.has_error()) return done;
    std::this_thread::sleep_for(stream_.next_gap());
    return {};
  }

  /// Waits for what is in flight and closes the books.
  sluice::result<demo::verdict> finish() {
    if (auto done = wait_for_all(clock::now() + drain_limit, true); done.has_error()) {
      return done.error();
    }
    demo::verdict sum;
    for (auto& each : lanes_) sum += each->books.close();
    return sum;
  }

  sluice::result<void> close() {
    for (auto& each : lanes_) {
      if (auto gone = each->queue->destroy(); gone.has_error()) return gone;
    }
    return {};
  }

 private:
  sluice::result<void> submit(lane& to, bool notify) {
    const demo::drawn_kernel drawn = stream_.next();
    to.books.before_submit();
    const auto waves = static_cast<std::uint32_t>(
        std::lround(drawn.occupancy * static_cast<double>(client_->wave_slots())));
    const auto index = to.queue->submit(
        {.length = drawn.length, .waves = std::max<std::uint32_t>(waves, 1), .notify = notify});
    if (index.has_error()) return index.error();
    to.last = *index;
    to.books.submitted(*index, drawn.length);
    return {};
  }

  sluice::result<void> keep_filled() {
    for (auto& each : lanes_) {
      while (each->in_flight() < shape_.depth) {
        if (auto sent = submit(*each, true); sent.has_error()) return sent;
        each->queue->ring();
      }
    }
    for (auto& each : lanes_) {
      const std::uint64_t oldest = each->last + 1 - each->in_flight();
      if (auto done = wait(*each, oldest, 100ms); done.has_error()) return done;
    }
    return {};
  }

  sluice::result<void> wait_for_all(time_point deadline, bool ignore_stop = false) {
    for (auto& each : lanes_) {
      while (each->in_flight() > 0 && clock::now() < deadline &&
             (ignore_stop || demo::stop_signal() == 0)) {
        if (auto done = wait(*each, each->last, 100ms); done.has_error()) return done;
      }
    }
    return {};
  }

  /// A wait that its limit ends is no error.
  static sluice::result<void> wait(lane& on, std::uint64_t index, duration limit) {
    auto done = on.queue->wait(index, limit);
    on.books.collect();
    if (done.has_error() && done.error() != boost::system::errc::timed_out) return done;
    return {};
  }

  demo::load_shape shape_;
  demo::kernel_stream stream_;
  std::unique_ptr<sluice::sim::gpu_client> client_;
  std::vector<std::unique_ptr<lane>> lanes_;
};

int fail(const std::string& message) {
  demo::print(stderr, "offline_demo: {}\n", message);
  return 1;
}

int fail(const std::string& while_doing, const sluice::error_code& why) {
  if (why == sluice::errc::lost) return fail(demo::reset_text);
  return fail(while_doing + ": " + why.message());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Run best-effort GPU work on a simulated device (SLUICE_KFD_DEVICE, SLUICE_NVIDIA_DEVICE) "
      "and\n"
      "verify each kernel.\n"
      "The program runs until SIGINT or SIGTERM, or for --seconds. It is offline only if its\n"
      "environment contains AMD_QUEUE_TAG=OFFLINE_AI or a rule matches it. Otherwise its role in\n"
      "'sluice queues' is '-', and no scheduler suspends it.",
      "offline_demo");
  std::string load_name = "long";
  std::uint64_t seed = 1;
  std::optional<duration> length;
  int control_fd = -1;
  app.add_option("--load", load_name, "Shape of the work: long or train")
      ->check(CLI::IsMember({"long", "train"}))
      ->capture_default_str();
  demo::add_number(app, "--seed", seed, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
                   "Seed of the kernel lengths");
  demo::add_duration(app, "--seconds", length,
                     "Run time, in seconds or with a unit (default: until a signal)", {1ms, 24h},
                     1s);
  demo::add_control_fd(app, control_fd);
  if (const int code = demo::parse(app, argc, argv); code >= 0) return code;
  const demo::load_kind kind = *demo::parse_load(load_name);

  demo::catch_stop_signals();
  demo::control_channel control(control_fd);
  offline_work work(kind, seed);
  if (auto opened = work.open(); opened.has_error()) {
    return fail(
        "cannot open the device: " + opened.error().message() +
        (opened.error() == boost::system::errc::resource_unavailable_try_again
             ? "; a GPU is being reset, try again in a few seconds"
             : "; set SLUICE_KFD_DEVICE or SLUICE_NVIDIA_DEVICE to a node of a simulated device"));
  }
  const time_point start = clock::now();
  bool said_ready = false;
  const time_point end = length ? start + *length : time_point::max();
  while (demo::stop_signal() == 0 && clock::now() < end) {
    if (auto done = work.round(end); done.has_error()) {
      return fail("the device refused work", done.error());
    }
    if (!said_ready) {
      control.say("ready");
      said_ready = true;
    }
  }

  const auto books = work.finish();
  if (books.has_error()) return fail("waiting for the last kernels failed", books.error());
  const demo::verdict& seen = *books;
  const double seconds = std::chrono::duration<double>(clock::now() - start).count();
  if (control) control.say(demo::to_line(seen));
  if (!seen.clean()) {
    demo::print(
        stderr,
        "offline_demo: KERNELS FAILED VERIFICATION: {} lost, {} repeated, {} out of order, {} too "
        "short, of {}\n",
        seen.lost, seen.repeated, seen.out_of_order, seen.too_short,
        seen.completed + seen.lost + seen.repeated);
    return 3;
  }
  if (!control) {
    demo::print("offline_demo: load {} ({})\n", demo::to_string(kind), demo::description(kind));
    demo::print("{} kernels in {:.2f} s ({:.1f} per second), each exactly once and in order\n",
                seen.completed, seconds, static_cast<double>(seen.completed) / seconds);
  }
  if (auto gone = work.close(); gone.has_error()) {
    return fail("cannot destroy a queue: " + gone.error().message());
  }
  return 0;
}
