#pragma once
/// \file
/// A node on the simulated device, all of it in processes of their own, for whoever wants to break
/// one of them; and what the machine adds to every bound.

#include "affliction.hpp"
#include "cells.hpp"
#include "device_view.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "sluice/time.hpp"

namespace sluice::test {

using namespace std::chrono_literals;

/// For what takes milliseconds on an idle machine.
inline constexpr auto patience = 20s;
/// Suspends and resumes of a few processes, with the costs of fast_profile(): what a bound adds for
/// calls in flight.
inline constexpr duration calls = 30ms;
/// What each bound has for our own work.
inline constexpr duration own_work = 200ms;

inline pid_t tracer_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return std::stoi(line.substr(10));
  }
  return 0;
}
/// Whether it is there and no zombie.
inline bool lives(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto end = text.rfind(')');
  return end != text.npos && text.size() > end + 2 && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

class world {
 public:
  struct settings {
    mechanism_used how{};
    duration lease = 500ms;
    duration max_suspend = 60s;
    std::string more_driver = "";  ///< Lines of the profile.
  };

  explicit world(settings with)
      : with_(std::move(with)),
        device_{{.profile = fast_profile((by_batch(with_.how) ? "batch_commands = true\n" : "") +
                                         with_.more_driver)}},
        view_{device_.root()},
        directory_{device_.root() + "/run"} {
    std::filesystem::create_directory(directory_);
  }

  using process = std::unique_ptr<target_process>;

  /// A GPU process with one queue. Kernels of 0: it submits none by itself.
  process gpu_process(const std::string& tag, std::chrono::microseconds kernels = 2ms,
                      std::vector<std::string> more = {}) const {
    auto environment = device_.environment();
    environment.insert(environment.end(), more.begin(), more.end());
    if (!tag.empty()) environment.push_back("AMD_QUEUE_TAG=" + tag);
    auto made = std::make_unique<target_process>(
        SLUICE_INTEGRATION_TARGET, std::vector<std::string>{"1", std::to_string(kernels.count())},
        environment);
    EXPECT_EQ(made->hear(patience), "ready");
    return made;
  }
  process rank(int number) const {
    return gpu_process("OFFLINE_AI", 2ms,
                       {"RANK=" + std::to_string(number), "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                        "MASTER_PORT=29500"});
  }
  /// A program that embeds the scheduler, once it has attached so many processes.
  process host(std::size_t attached) const {
    const auto ms = [](duration span) {
      return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(span).count());
    };
    auto made = std::make_unique<target_process>(
        SLUICE_FAULTS_PARTY,
        std::vector<std::string>{"host", directory_, ms(with_.lease), ms(with_.max_suspend),
                                 in_agent(with_.how) ? "agent" : "in-process"},
        device_.environment());
    EXPECT_EQ(made->hear(patience), "ready") << log();
    EXPECT_TRUE(eventually(patience, [&] {
      return made->ask("stats", patience).starts_with("attached " + std::to_string(attached) + " ");
    })) << log();
    return made;
  }
  process client() const {
    auto made = std::make_unique<target_process>(
        SLUICE_FAULTS_PARTY, std::vector<std::string>{"client", directory_}, device_.environment());
    EXPECT_EQ(made->hear(patience), "ready");
    EXPECT_TRUE(eventually(patience, [&] { return made->ask("connected", patience) == "yes"; }))
        << log();
    return made;
  }

  pid_t agent() const {
    std::ifstream file{directory_ + "/owner"};
    std::string first;
    pid_t pid = 0;
    std::getline(file, first);
    file >> pid;
    return pid;
  }

  std::uint64_t suspended(const process& who) const {
    return view_.process(who->pid()).suspended_queues;
  }
  bool is_held(const process& who) const { return suspended(who) == 1; }
  bool all_held(const std::vector<const process*>& some) const {
    return eventually(patience, [&] {
      return std::all_of(some.begin(), some.end(),
                         [&](const process* one) { return is_held(*one); });
    });
  }
  /// How long after `since` none of them was suspended; nothing where that takes longer.
  std::optional<duration> run_again(const std::vector<const process*>& some, time_point since,
                                    duration limit = patience) const {
    const bool all = eventually(limit, [&] {
      return std::all_of(some.begin(), some.end(),
                         [&](const process* one) { return suspended(*one) == 0; });
    });
    if (!all) return {};
    return clock::now() - since;
  }
  bool progresses(const process& who) const {
    const auto before = view_.process(who->pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(who->pid()).kernels_completed > before + 1; });
  }

  /// A line for the device's sim/control.
  void command(const std::string& line) const {
    std::ofstream control(device_.root() + "/sim/control");
    control << line << std::endl;
    EXPECT_TRUE(control) << line << ": " << read_file(device_.root() + "/sim/control");
  }
  std::string log() const { return read_file(directory_ + "/log"); }
  bool log_says(std::string_view text) const {
    return eventually(patience, [&] { return log().find(text) != std::string::npos; });
  }
  /// Where cores may go.
  const std::string& directory() const noexcept { return directory_; }
  const simulated_device& device() const { return device_; }
  const device_view& view() const { return view_; }
  const settings& with() const noexcept { return with_; }

 private:
  const settings with_;
  simulated_device device_;
  const device_view view_;
  const std::string directory_;
};

/// Keeps a process from running, for so long at a time with as long a pause, `rounds` times.
inline void slow_down(pid_t pid, duration each, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    ::kill(pid, SIGSTOP);
    std::this_thread::sleep_for(each);
    ::kill(pid, SIGCONT);
    std::this_thread::sleep_for(each);
  }
}

/// One try of a case. A bound adds the time for which the processes under test ran, and waited for
/// processors. Where one of them was kept from running for half of the lease, the others may have
/// taken it for dead: a failure then tells nothing, and the try is void.
class trial {
 public:
  explicit trial(testing::TestPartResultArray& failures)
      : failures_(failures),
        reporter_(testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures) {
    given_.add(::getpid());
  }

  /// \param processes those under test. What they did before does not count.
  void begin(const world& here, const std::vector<pid_t>& processes) {
    half_of_lease_ = here.with().lease / 2;
    for (const pid_t each : processes) {
      if (each > 0) given_.add(each);
    }
    given_.restart();
  }
  bool failed() const { return failures_.size() != 0; }
  bool is_void() {
    look();
    return half_of_lease_ > 0ns && longest_ >= half_of_lease_;
  }

  void expect_within(const std::optional<duration>& taken, duration promised,
                     const std::string& what) {
    look();
    const duration given = given_.ran() + given_.waited();
    given_.restart();
    const auto ms = [](duration span) {
      return std::chrono::duration<double, std::milli>(span).count();
    };
    ASSERT_TRUE(taken) << what << ": never";
    std::printf(
        "  %-44s %7.1f ms  (promised %.0f ms; our processes ran or waited to run for %.1f ms)\n",
        what.c_str(), ms(*taken), ms(promised), ms(given));
    EXPECT_LE(ms(*taken), ms(promised + 20ms + given)) << what;
  }

  /// Asserts that the agent is the one of before, and that its host has started no other and
  /// reported no silence.
  void expect_nobody_replaced(const world& here, const world::process& host, pid_t agent) {
    const std::string log = here.log();
    const std::string stats = host->ask("stats", patience);
    const bool same = !in_agent(here.with().how) || here.agent() == agent;
    EXPECT_TRUE(same && stats.find("restarts 0 ") != stats.npos && log.find("silent") == log.npos)
        << "somebody of ours died: agent " << agent << ", then " << here.agent() << "; " << stats
        << "\n"
        << log;
  }

 private:
  void look() {
    given_.look();
    longest_ = std::max(longest_, given_.longest());
  }
  testing::TestPartResultArray& failures_;
  testing::ScopedFakeTestPartResultReporter reporter_;
  run_delay given_;
  const regular_looks looks_{given_};
  duration half_of_lease_{};
  duration longest_{};
};

/// Runs a case, and again as long as a try is void, five times at most.
inline void until_measured(const std::function<void(trial&)>& once) {
  for (int tries = 1;; ++tries) {
    testing::TestPartResultArray failures;
    bool is_void = false;
    {
      trial one{failures};
      once(one);
      is_void = one.is_void();
    }
    const bool again = is_void && tries < 5;
    for (int i = 0; i < failures.size(); ++i) {
      const auto& each = failures.GetTestPartResult(i);
      if (again) {
        std::printf("  void, for a process was kept from running for half of the lease: %s\n",
                    each.summary());
      } else {
        GTEST_MESSAGE_AT_(each.file_name(), each.line_number(), each.message(), each.type());
      }
    }
    if (failures.size() == 0 || !again) return;
  }
}

}  // namespace sluice::test
