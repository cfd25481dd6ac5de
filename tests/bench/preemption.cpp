// From the arrival of online work to offline off the GPU: begin() of a client, the scheduler, the
// agent, real processes and real ioctls on the simulated device, until the scheduler has been told
// of the last queue. With 1, 4 and 16 targets on each of one and two GPUs, by the debug trap and by
// batch commands. The floor is the time that driver calls took, as their lanes measured it; what
// overlaps counts once.
// Then what one preemption and its end do to the online process that shares the GPU: the runlist
// cycles that they cost, and the time that it stood still in them, as the device counts both. The
// floor is the same targets preempted by bare lanes, one call each (one for a GPU with batch
// commands), which is the fewest that the mechanism allows, and is checked to be.
// usage: preemption [--quick]

#include "acting_side.hpp"
#include "eventually.hpp"
#include "preemption_watch.hpp"
#include "series.hpp"
#include "simulated_device.hpp"
#include "tapped_backend.hpp"
#include "target_process.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t queues_each = 4;
/// Between two preemptions, so that everybody sleeps when the next one comes.
constexpr duration rest = 5ms;

/// A device with offline targets, whose queues are idle, and an online process on each GPU, which
/// always has a kernel running.
class node {
 public:
  node(std::size_t targets, std::uint32_t gpus) : device_{{.profile = profile, .gpus = gpus}} {
    for (std::uint32_t gpu = 0; gpu < gpus; ++gpu) {
      online_.push_back(start("ONLINE_AI", 1, "50000", gpu));
      for (std::size_t i = 0; i < targets; ++i)
        offline_.push_back(start("OFFLINE_AI", queues_each, "0", gpu));
    }
    for (const auto* some : {&online_, &offline_})
      for (const auto& each : *some)
        if (each->hear(60s) != "ready") throw std::runtime_error("a target did not start");
  }

  const test::simulated_device& device() const { return device_; }
  const auto& offline() const { return offline_; }
  std::size_t queues() const { return offline_.size() * queues_each; }

  struct counts {
    double cycles = 0;     ///< Of sessions and batch commands, on all GPUs.
    double disturbed = 0;  ///< Of the online processes together, ns.
    double off = 0;        ///< Offline queues off their GPU now.
  };
  counts now() const {
    const std::string text = device_.stats();
    counts all;
    for (std::size_t at = 0; (at = text.find("{\"gpu_id\":", at)) != text.npos; ++at)
      all.cycles += number(text, at, "debug_cycles");
    for (const auto& each : online_)
      all.disturbed += number(text, entry(text, *each), "disturbed_ns");
    for (const auto& each : offline_) {
      const auto at = entry(text, *each);
      all.off += number(text, at, "suspended_queues") + number(text, at, "held_queues");
    }
    return all;
  }
  void check_off(std::size_t wanted) const {
    if (now().off != static_cast<double>(wanted))
      throw std::runtime_error("the device does not have all offline queues " +
                               std::string{wanted == 0 ? "on" : "off"} + " the GPU");
  }

 private:
  static constexpr const char* profile = "mi300x-batch";

  std::unique_ptr<test::target_process> start(const std::string& tag, std::size_t queues,
                                              const std::string& kernel, std::uint32_t gpu) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    return std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET,
        std::vector<std::string>{std::to_string(queues), kernel, "gpu=" + std::to_string(gpu)},
        environment);
  }
  static std::size_t entry(const std::string& text, const test::target_process& of) {
    const auto at = text.find("{\"pid\":" + std::to_string(of.pid()) + ",");
    if (at == text.npos) throw std::runtime_error("the device does not know a process");
    return at;
  }
  static double number(const std::string& text, std::size_t from, const std::string& key) {
    const auto at = text.find("\"" + key + "\":", from);
    if (at == text.npos) throw std::runtime_error("the device does not count " + key);
    return std::strtod(text.c_str() + at + key.size() + 3, nullptr);
  }

  test::simulated_device device_;
  std::vector<std::unique_ptr<test::target_process>> online_;
  std::vector<std::unique_ptr<test::target_process>> offline_;
};

/// A whole scheduler on a thread of its own, and a client.
class deciding_side {
 public:
  deciding_side(const node& where, bool batch_commands) : where_(where) {
    scheduler_config config;
    config.attach_after = 0ns;
    config.attach_at_latest = 0ns;
    config.offline_floor = 0;
    config.min_run = 1ms;
    config.max_suspend = 10s;
    const auto& device = where.device();
    auto driver = agent::make_agent_backend(
        {.driver = kfd::acting({.where = device.roots(), .batch_commands = batch_commands}),
         .agent_path = SLUICE_AGENT_PROGRAM,
         .owner_lock = "",
         .lease = 4s});
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(
        make_discovery(kfd::make_survey(device.roots()), {.role_store = device.root() + "/roles"}));
    auto loop = reactor::create();
    if (!loop) throw std::runtime_error("reactor: " + loop.error().message());
    auto tapped = std::make_unique<tapped_backend>(
        std::move(driver), [this](const batch_result& what) { watch_.heard(what); });
    const tapped_backend& tap = *tapped;
    auto made = scheduler::create(config, std::move(*loop), std::move(tapped),
                                  make_fixed_timeslice({.slice = 1ms}), std::move(sources));
    if (!made) throw std::runtime_error("scheduler: " + made.error().message());
    scheduler_ = std::move(*made);
    if (const auto started = scheduler_->start(); !started)
      throw std::runtime_error("start: " + started.error().message());
    thread_ = std::thread([this] { scheduler_->run(); });
    if (!test::eventually(60s, [&] { return tap.queues() == where.queues(); }))
      throw std::runtime_error("the targets were not attached");
    auto client = scheduler_->register_client({.name = "bench", .gpus = {}});
    if (!client) throw std::runtime_error("client: " + client.error().message());
    client_ = std::move(*client);
    preempt();  // Once for everything that happens once.
  }
  ~deciding_side() {
    scheduler_->stop();
    thread_.join();
  }
  deciding_side(const deciding_side&) = delete;
  deciding_side& operator=(const deciding_side&) = delete;

  struct cost {
    duration total{};
    duration driver{};
    duration before{};  ///< Until the first driver call began.
    duration after{};   ///< From the end of the last one on.
  };
  /// Off the GPU and back on. \return what the first half took.
  cost preempt() {
    std::this_thread::sleep_for(rest);
    watch_.expect(command_kind::suspend, where_.queues());
    const time_point began = clock::now();
    client_->begin();
    const auto off = watch_.wait();
    where_.check_off(where_.queues());
    watch_.expect(command_kind::resume, where_.queues());
    client_->end();
    watch_.wait();
    where_.check_off(0);
    return {off.ended - began, off.driver, off.first - began, off.ended - off.last};
  }

 private:
  const node& where_;
  preemption_watch watch_;
  std::unique_ptr<scheduler> scheduler_;
  std::thread thread_;
  std::optional<online_client> client_;
};

/// One mechanism, one number of targets and GPUs.
class comparison {
 public:
  comparison(const node& where, std::size_t targets, std::uint32_t gpus, bool batch_commands)
      : where_(where),
        batch_commands_(batch_commands),
        least_cycles_(2.0 * gpus * static_cast<double>(batch_commands ? 1 : targets)),
        name_((batch_commands ? "batch_" : "trap_") + std::to_string(targets) + "x" +
              std::to_string(gpus)) {}

  void round(int preemptions) {
    {
      deciding_side scheduler{where_, batch_commands_};
      for (int i = 0; i < preemptions; ++i) {
        const auto before = where_.now();
        const auto took = scheduler.preempt();
        const auto after = where_.now();
        arrival_.add(took.total);
        before_driver_.add(took.before);
        after_driver_.add(took.after);
        driver_.add(took.driver);
        calls_.add(after.cycles - before.cycles);
        disturbed_.add(after.disturbed - before.disturbed);
      }
    }
    acting_side bare{where_.device().roots(), batch_commands_};
    for (auto each = where_.offline().rbegin(); each != where_.offline().rend(); ++each)
      bare.attach((*each)->pid(), queues_each);
    for (int i = 0; i < preemptions; ++i) {
      std::this_thread::sleep_for(rest);
      const auto before = where_.now();
      bare_.add(bare.all(command_kind::suspend, max_batch_queues).time);
      where_.check_off(where_.queues());
      bare.all(command_kind::resume, max_batch_queues);
      const auto after = where_.now();
      if (after.cycles - before.cycles != least_cycles_)
        throw std::runtime_error("bare lanes cost the GPU other cycles than the fewest");
      least_.add(after.cycles - before.cycles);
      least_disturbed_.add(after.disturbed - before.disturbed);
    }
    for (series* const each : all()) each->end_round();
  }

  void print() {
    for (series* const each : all()) each->print();
  }

 private:
  std::array<series*, 9> all() {
    return {&arrival_, &before_driver_, &driver_,    &after_driver_,   &bare_,
            &calls_,   &least_,         &disturbed_, &least_disturbed_};
  }

  const node& where_;
  const bool batch_commands_;
  const double least_cycles_;
  const std::string name_;
  series arrival_{"arrival_" + name_};
  series before_driver_{"before_driver_" + name_};
  series driver_{"driver_" + name_};
  series after_driver_{"after_driver_" + name_};
  series bare_{"bare_lanes_" + name_};
  series calls_{"cycles_" + name_, "calls"};
  series least_{"least_cycles_" + name_, "calls"};
  series disturbed_{"disturbed_" + name_};
  series least_disturbed_{"least_disturbed_" + name_};
};

void measure(std::size_t targets, bool quick) {
  const node one{targets, 1};
  const node two{targets, 2};
  std::vector<std::unique_ptr<comparison>> all;
  for (const bool batch_commands : {false, true}) {
    all.push_back(std::make_unique<comparison>(one, targets, 1, batch_commands));
    all.push_back(std::make_unique<comparison>(two, targets, 2, batch_commands));
  }
  const int rounds = quick ? 1 : 5;
  const int preemptions = quick ? 1 : targets == 1 ? 30 : targets == 4 ? 8 : 3;
  for (int i = 0; i < rounds; ++i)
    for (const auto& each : all) each->round(preemptions);
  for (const auto& each : all) each->print();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view{argv[1]} == "--quick";
  spdlog::stderr_logger_mt("sluice")->set_level(spdlog::level::warn);
  try {
    for (const std::size_t targets : {1U, 4U}) sluice::bench::measure(targets, quick);
    if (!quick) sluice::bench::measure(16, quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "preemption: %s\n", error.what());
    return 1;
  }
  return 0;
}
