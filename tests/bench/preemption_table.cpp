// What it costs to take queues off a GPU, and to put them back: 1, 10 and 100 queues of 1, 4 and 16
// processes, by every mechanism, on the simulated device. Real processes and real ioctls; what the
// hardware would take comes from the profiles. Prints a Markdown table.
// usage: preemption_table [--quick]

#include "simulated_device.hpp"
#include "target_process.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/discovery.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/time.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice;

constexpr duration patience = 60s;

/// A backend with its targets attached.
class acting_side final : public backend_listener {
 public:
  acting_side(const kfd::roots& where, bool batch_commands)
      : driver_(kfd::make_in_process_backend(
            {.roots = where, .owner_lock = "", .batch_commands = batch_commands})) {
    if (!driver_->start(*this)) throw std::runtime_error("the backend does not start");
  }

  void attach(pid_t pid, std::size_t queues) {
    const auto who = kfd::identity_of(pid);
    if (!who) throw std::runtime_error("a target has ended");
    const process_id id{targets_.size() + 1};
    targets_.push_back(id);
    if (!driver_->attach(id, pid, who->start_time)) throw std::runtime_error("attach refused");
    until([&] { return queues_[id].size() == queues; });
  }

  struct cost {
    std::size_t calls = 0;
    duration time{};
  };
  /// All queues of all targets, each call naming at most `at_once` of one target.
  cost all(command_kind kind, std::size_t at_once) {
    cost sum;
    std::map<process_id, std::size_t> next;
    const auto& by_commands = acting_ == mechanism::batch_commands;
    std::set<std::pair<time_point, time_point>> calls;
    const time_point began = clock::now();
    for (bool more = true; more;) {
      more = false;
      results_.clear();
      std::size_t sent = 0;
      for (const process_id target : targets_) {
        const auto& ids = queues_[target];
        std::size_t& from = next[target];
        if (from == ids.size()) continue;
        batch work;
        work.id = ++last_batch_;
        work.target = target;
        work.gpu = gpu_;
        work.kind = kind;
        while (from < ids.size() && work.count < at_once) work.queues[work.count++] = ids[from++];
        if (!driver_->submit(work)) throw std::runtime_error("submit refused");
        ++sent;
        if (at_once == 1) break;  // one by one
      }
      if (sent == 0) break;
      more = true;
      driver_->flush();
      until([&] { return results_.size() == sent; });
      for (const auto& result : results_) {
        const auto end = result.outcomes.begin() + result.count;
        if (std::any_of(result.outcomes.begin(), end,
                        [](outcome one) { return one != outcome::done; }))
          throw std::runtime_error("a queue was not " + std::string{kind == command_kind::suspend
                                                                        ? "suspended"
                                                                        : "resumed"});
        // Batches that went in one call share its times.
        if (by_commands)
          calls.emplace(result.started, result.finished);
        else
          ++sum.calls;
      }
    }
    sum.time = clock::now() - began;
    if (by_commands) sum.calls = calls.size();
    return sum;
  }

  mechanism acts() const { return acting_; }

 private:
  template <class Condition>
  void until(Condition condition) {
    const time_point give_up = clock::now() + patience;
    while (!condition()) {
      if (clock::now() > give_up) throw std::runtime_error("no answer within a minute");
      pollfd ready{driver_->ready_fd(), POLLIN, 0};
      ::poll(&ready, 1, 10);
      driver_->drain();
    }
  }

  void attached(process_id, error_code error) override {
    if (error) throw std::runtime_error("attach: " + error.message());
  }
  void queue_added(const queue_info& queue) override {
    gpu_ = queue.gpu;
    queues_[queue.target].push_back(queue.id);
  }
  void queue_removed(process_id, driver_queue_id) override {}
  void completed(const batch_result& result) override { results_.push_back(result); }
  void detached(process_id) override {}
  void acts_by(mechanism what, bool) override { acting_ = what; }
  void gpu_lost(gpu_id) override { throw std::runtime_error("the GPU is lost"); }
  void lost(error_code) override {}
  void restored() override {}

  std::unique_ptr<backend> driver_;
  mechanism acting_{};
  gpu_id gpu_{};
  std::vector<process_id> targets_;
  std::map<process_id, std::vector<driver_queue_id>> queues_;
  std::vector<batch_result> results_;
  std::uint64_t last_batch_ = 0;
};

double milliseconds(duration span) {
  return std::chrono::duration<double, std::milli>(span).count();
}

/// The median of several rounds, by time.
template <class Round>
acting_side::cost median(int rounds, Round round) {
  std::vector<acting_side::cost> all;
  for (int i = 0; i < rounds; ++i) all.push_back(round());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return all[all.size() / 2];
}

void measure(const std::string& generation, const std::string& profile, std::size_t processes,
             std::size_t queues, bool quick) {
  const test::simulated_device device{{.profile = profile}};
  std::vector<std::unique_ptr<test::target_process>> targets;
  for (std::size_t i = 0; i < processes; ++i) {
    targets.push_back(std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{std::to_string(queues), "0"},
        device.environment()));
    if (targets.back()->hear(30s) != "ready") throw std::runtime_error("a target did not start");
  }
  for (const bool batch_commands : {false, true}) {
    acting_side acting{device.roots(), batch_commands};
    for (const auto& each : targets) acting.attach(each->pid(), queues);
    for (const std::size_t at_once : {std::size_t{1}, max_batch_queues}) {
      if (at_once == 1 && (batch_commands || processes != 1 || queues == 1)) continue;
      const int rounds = quick || at_once == 1 ? 1 : 5;
      acting_side::cost resumed;
      const auto suspended = median(rounds, [&] {
        const auto sum = acting.all(command_kind::suspend, at_once);
        resumed = acting.all(command_kind::resume, at_once);
        return sum;
      });
      std::printf("| %s | %s%s | %zu | %zu | %zu | %.1f | %.1f |\n", generation.c_str(),
                  std::string{to_string(acting.acts())}.c_str(), at_once == 1 ? ", one by one" : "",
                  processes, queues, suspended.calls, milliseconds(suspended.time),
                  milliseconds(resumed.time));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view{argv[1]} == "--quick";
  std::puts("Simulated GPUs: the driver's share of the times is the profiles' (mi300x-batch, and");
  std::puts("gfx1100 with the same commands); medians of five rounds, one round one by one.\n");
  std::puts(
      "| generation | mechanism | processes | queues each | driver calls | suspend, ms | resume, "
      "ms |");
  std::puts("|---|---|---|---|---|---|---|");
  const std::string mes = test::profile_text(
      "batch_commands = true\n",
      "scheduler = \"mes\"\ngfx_target_version = 110000\nnum_xcc = 1\ncompute_units = 96\n"
      "simd_per_cu = 2\nwaves_per_simd = 16\nsuspend_cost = \"1ms\"\nresume_cost = \"1ms\"\n"
      "cycle_cost = \"500us\"\n");
  const std::vector<std::size_t> most =
      quick ? std::vector<std::size_t>{1, 4} : std::vector<std::size_t>{1, 4, 16};
  const std::vector<std::size_t> queues =
      quick ? std::vector<std::size_t>{1, 10} : std::vector<std::size_t>{1, 10, 100};
  try {
    for (const auto& [generation, profile] :
         {std::pair<std::string, std::string>{"runlist", "mi300x-batch"}, {"MES", mes}}) {
      for (const auto processes : most) {
        for (const auto each : queues) measure(generation, profile, processes, each, quick);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "preemption_table: %s\n", error.what());
    return 1;
  }
  return 0;
}
