#pragma once
/// \file
/// A node, all of it in processes of their own, for tests that break one of them; and what the
/// machine adds to every bound. It is on the simulated device, or with SLUICE_TEST_ON_DRIVER=1 on
/// the driver of a machine of tests/driver.

#include "affliction.hpp"
#include "cells.hpp"
#include "device_view.hpp"
#include "driver_view.hpp"
#include "run_delay.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
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

/// Suspends and resumes of a few processes on the simulated device, with the costs of
/// fast_profile(): what a bound adds for calls in flight.
inline constexpr duration calls_of_simulated_device = 30ms;
/// In QEMU (tests/driver), host and agent run 10 to 20 times slower, and are late by as much.
inline constexpr duration lease_on_driver = 3s;
/// What each bound has for our own work.
inline constexpr duration own_work = 200ms;

/// When something happened, as this process knows it: after one time, and by another.
struct moment {
  time_point after;
  time_point by;
};
template <class Act>
moment moment_of(Act act) {
  const time_point before = clock::now();
  act();
  return {before, clock::now()};
}
/// When something came to hold; nothing where it takes longer than `limit`. Asks every 10 ms: more
/// often, the device would be busy with answers.
/// \param after it did not hold yet.
template <class Predicate>
std::optional<moment> observe(duration limit, time_point after, Predicate holds) {
  const time_point end = clock::now() + limit;
  for (;;) {
    const time_point before = clock::now();
    if (holds()) return moment{after, clock::now()};
    if (before >= end) return {};
    after = before;
    std::this_thread::sleep_for(10ms);
  }
}

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
    duration lease = on_driver() ? lease_on_driver : 500ms;
    duration max_suspend = 60s;
    std::string more_driver = "";  ///< Lines of the profile.
  };

  /// What the simulated NVIDIA driver has of a program with one queue: channels that compute, and
  /// the time slice of their group in microseconds.
  static constexpr std::uint64_t computing_channels = 8;
  static constexpr std::uint64_t usual_slice = 2048;

  explicit world(settings with)
      : with_(std::move(with)),
        device_{on_driver() ? nullptr : make_device(with_)},
        directory_{device_ ? device_->root() + "/run" : "/tmp/faults." + std::to_string(++made_)} {
    std::filesystem::create_directory(directory_);
  }

  using process = std::unique_ptr<target_process>;

  /// A GPU process with one queue. Kernels of 0: it submits none by itself.
  process gpu_process(const std::string& tag, std::chrono::microseconds kernels = 2ms,
                      std::vector<std::string> more = {}) const {
    auto environment = device_environment();
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
                                 outlives_agent(with_.how) ? "nvidia"
                                 : in_agent(with_.how)     ? "agent"
                                                           : "in-process"},
        device_environment());
    EXPECT_EQ(made->hear(patience), "ready") << log();
    EXPECT_TRUE(eventually(patience, [&] {
      return made->ask("stats", patience).starts_with("attached " + std::to_string(attached) + " ");
    })) << log();
    return made;
  }
  process client() const {
    auto made = std::make_unique<target_process>(
        SLUICE_FAULTS_PARTY, std::vector<std::string>{"client", directory_}, device_environment());
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
  /// The agent's child that resumes what the agent held; 0: there is none.
  pid_t guardian() const {
    const std::string parent = " " + std::to_string(agent()) + " ";
    for (const auto& each : std::filesystem::directory_iterator{"/proc"}) {
      const std::string name = each.path().filename().string();
      if (name.find_first_not_of("0123456789") != name.npos) continue;
      const std::string stat = read_file("/proc/" + name + "/stat");
      // "PID (NAME) STATE PARENT ..."
      const auto name_end = stat.rfind(')');
      if (stat.find("(sluice-guardian") == stat.npos || name_end == stat.npos) continue;
      if (stat.compare(name_end + 3, parent.size(), parent) == 0) return std::stoi(name);
    }
    return 0;
  }

  std::uint64_t suspended(const process& who) const {
    return device_ ? view().process(who->pid()).suspended_queues
                   : executions_of(who->pid()).not_mapped;
  }
  std::uint64_t completed(const process& who) const {
    return device_ ? view().process(who->pid()).kernels_completed
                   : executions_of(who->pid()).completed;
  }
  bool is_held(const process& who) const {
    return suspended(who) == (outlives_agent(with_.how) ? computing_channels : 1);
  }
  bool all_held(const std::vector<const process*>& some) const {
    const auto held = [&](const process* one) { return is_held(*one); };
    if (eventually(patience, [&] { return std::all_of(some.begin(), some.end(), held); }))
      return true;
    for (const process* each : some)
      std::printf("  process %d has %llu suspended queues\n", (*each)->pid(),
                  static_cast<unsigned long long>(suspended(*each)));
    return false;
  }
  /// How often each of them was suspended.
  std::vector<std::uint64_t> suspends(const std::vector<const process*>& some) const {
    std::vector<std::uint64_t> counts;
    for (const process* each : some)
      counts.push_back(view().process((*each)->pid()).queue_suspends);
    return counts;
  }
  /// Whether none of them is suspended.
  /// \param before suspends() of while they were held: one that is held again ran, too.
  bool all_run(const std::vector<const process*>& some,
               const std::vector<std::uint64_t>& before = {}) const {
    const auto now = before.empty() ? before : suspends(some);
    for (std::size_t index = 0; index < some.size(); ++index) {
      const bool held_again = !before.empty() && now[index] > before[index];
      if (!held_again && suspended(*some[index]) != 0) return false;
    }
    return true;
  }
  /// When all_run() came to hold, after `since`; nothing where that takes too long.
  std::optional<moment> run_again(const std::vector<const process*>& some, time_point since,
                                  const std::vector<std::uint64_t>& before = {}) const {
    return observe(patience, since, [&] { return all_run(some, before); });
  }
  /// Whether what was set for the process while it was managed is as before.
  bool has_usual_slice(const process& who) const {
    if (!outlives_agent(with_.how)) return true;
    const auto slice = slice_of(who->pid());
    return !slice || *slice == usual_slice;
  }
  /// Of the process's group that computes, in microseconds; nothing where the driver has none.
  std::optional<std::uint64_t> slice_of(pid_t pid) const {
    const std::string all = device_->stats();
    const auto client = all.find("\"pid\":" + std::to_string(pid) + ",", all.find("\"clients\":["));
    const auto end = all.find("\"processes\":[");
    const std::string label = "\"timeslice_us\":";
    const auto at = all.find(label, std::min(client, all.size()));
    if (client >= end || at >= end) return {};
    return std::strtoull(all.c_str() + at + label.size(), nullptr, 10);
  }
  /// Whether the driver has nothing of the process any more.
  bool is_forgotten(pid_t pid) const {
    return !outlives_agent(with_.how) || !slice_of(pid).has_value();
  }
  bool progresses(const process& who) const {
    const auto before = completed(who);
    return eventually(patience, [&] { return completed(who) > before + 1; });
  }

  /// A line for the simulated device's sim/control.
  void command(const std::string& line) const {
    std::ofstream control(device_->root() + "/sim/control");
    control << line << std::endl;
    EXPECT_TRUE(control) << line << ": " << read_file(device_->root() + "/sim/control");
  }
  std::string log() const { return read_file(directory_ + "/log"); }
  bool log_says(std::string_view text) const {
    return eventually(patience, [&] { return log().find(text) != std::string::npos; });
  }
  /// Where cores may go.
  const std::string& directory() const noexcept { return directory_; }
  /// The simulated device's program; 0 on a driver.
  pid_t device_pid() const { return device_ ? device_->pid() : 0; }
  /// Of the simulated device.
  device_view view() const { return device_view{device_->root()}; }
  const settings& with() const noexcept { return with_; }

 private:
  static std::unique_ptr<simulated_device> make_device(const settings& with) {
    if (outlives_agent(with.how))
      return std::make_unique<simulated_device>(device_settings{.profile = "h100"});
    return std::make_unique<simulated_device>(device_settings{
        .profile = fast_profile((by_batch(with.how) ? "batch_commands = true\n" : "") +
                                with.more_driver)});
  }
  std::vector<std::string> device_environment() const {
    return device_ ? device_->environment() : std::vector<std::string>{};
  }

  static inline int made_ = 0;
  const settings with_;
  const std::unique_ptr<simulated_device> device_;  ///< Null on a driver.
  const std::string directory_;
};

/// What a bound adds for calls in flight. On a driver: the slowest of five preemptions of three
/// processes without a fault on this machine, measured once with each mechanism, whose times
/// include what the machine that runs User Mode Linux does meanwhile.
inline duration calls(mechanism_used how) {
  if (!on_driver()) return calls_of_simulated_device;
  static std::map<mechanism_used, duration> measured;
  if (const auto found = measured.find(how); found != measured.end()) return found->second;
  const world here{{.how = how}};
  const auto one = here.gpu_process("OFFLINE_AI");
  const auto two = here.gpu_process("OFFLINE_AI");
  const auto three = here.gpu_process("OFFLINE_AI");
  const auto host = here.host(3);
  const auto client = here.client();
  duration slowest{};
  for (int i = 0; i < 5; ++i) {
    const time_point begun = clock::now();
    EXPECT_EQ(client->ask("begin", patience), "begun");
    EXPECT_TRUE(here.all_held({&one, &two, &three})) << here.log();
    const time_point held = clock::now();
    EXPECT_EQ(client->ask("end", patience), "ended");
    EXPECT_TRUE(here.run_again({&one, &two, &three}, held)) << here.log();
    slowest = std::max({slowest, held - begun, clock::now() - held});
  }
  std::printf("  a preemption without a fault: at most %.0f ms (real driver, faked hardware)\n",
              std::chrono::duration<double, std::milli>(slowest).count());
  return measured[how] = slowest;
}

/// Keeps a process from running, for so long at a time with as long a pause, `rounds` times.
inline void slow_down(pid_t pid, duration each, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    ::kill(pid, SIGSTOP);
    std::this_thread::sleep_for(each);
    ::kill(pid, SIGCONT);
    std::this_thread::sleep_for(each);
  }
}

/// One try of a case. Of the processes under test only the time for which they waited for
/// processors is added to a bound, not the time for which they ran. Of what the test itself sees
/// late it knows a span of time.
///
/// A bound is met if that span is over within it, with what one thread waited, at most half of the
/// bound. It is broken if the span begins later than that, with what all threads waited. Else the
/// try is void. So is one that fails after the host or the agent was kept from running for half of
/// the lease, for the other may have taken it for dead. What may never happen, expect_free() and
/// expect_whole(), fails in a void try too.
class trial {
 public:
  explicit trial(testing::TestPartResultArray& failures)
      : failures_(failures),
        reporter_(testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures) {}

  /// Adds processes under test. What they did before does not count.
  void watch(const std::vector<pid_t>& processes) {
    for (const pid_t each : processes) {
      if (each > 0) given_.add(each);
    }
  }
  /// Adds host and agent.
  void watch_leases(const world& here, const std::vector<pid_t>& processes) {
    half_of_lease_ = here.with().lease / 2;
    with_lease_ = processes;
    watch(processes);
  }

  bool failed() const { return failures_.size() != 0; }
  /// Fails, and makes the try void: it did not become what was to be tested.
  void is_not_shown(const std::string& why) {
    not_shown_ = why;
    ADD_FAILURE() << why;
  }
  /// Why a try that failed is void; empty where it is not.
  std::string void_because() {
    if (is_broken_ || !not_shown_.empty()) return not_shown_;
    given_.look();
    for (const pid_t each : with_lease_) {
      const duration longest = given_.longest(each);
      if (longest >= half_of_lease_)
        return "process " + std::to_string(each) + " waited " + text(longest) +
               " for a processor, half of the lease or longer";
    }
    return failures_.size() == undecided_ ? "a bound was not decided" : "";
  }

  /// Waits for what has no bound, and fails after `patience`. The time for which the processes
  /// under test were kept from running does not count, at most as much again.
  template <class Predicate>
  std::optional<moment> expect_soon(const std::string& what, Predicate holds) {
    const time_point since = clock::now();
    bool held = false;
    const auto seen = observe(2 * patience, since, [&] {
      held = holds();
      const time_point now = clock::now();
      return held || now - since - given_.waited_by_any(since, now) >= patience;
    });
    EXPECT_TRUE(held) << what << ": not within " << text(clock::now() - since);
    return held ? seen : std::nullopt;
  }

  /// \param since when it was to begin.
  void expect_within(const std::optional<moment>& seen, const moment& since, duration promised,
                     const std::string& what) {
    ASSERT_TRUE(seen) << what << ": never";
    given_.look();
    const duration by_one = given_.waited_by_one(since.after, seen->by);
    const duration by_any = given_.waited_by_any(since.after, seen->by);
    const duration at_most = seen->by - since.after;
    const duration at_least = std::max(seen->after - since.by, duration{});
    const std::string waits = "promised " + text(promised) +
                              "; a thread waited for a processor for " + text(by_one) +
                              " of it, and some thread for " + text(by_any);
    std::printf("  %-44s %10s  (%s)\n", what.c_str(), text(at_most).c_str(), waits.c_str());
    if (at_most <= promised + std::min(by_one, promised / 2)) return;
    const bool is_broken = at_least > promised + by_any;
    if (!is_broken) ++undecided_;
    ADD_FAILURE() << what << (is_broken ? ": too late, " : ": not decided, ") << text(at_least)
                  << " to " << text(at_most) << "; " << waits;
  }

  /// Asserts that the process has no suspended queue, no other time slice and no tracer any more.
  void expect_free(const world& here, const world::process& each) {
    // A driver takes queues off the GPU for a moment when another one goes, and lets go of what a
    // dead queue is held by at its holder's end, which it sees later.
    if (eventually(patience, [&] { return here.suspended(each) == 0; }) &&
        eventually(patience, [&] { return here.has_usual_slice(each); }) &&
        eventually(patience, [&] { return tracer_of(each->pid()) == 0; }))
      return;
    is_broken_ = true;
    ADD_FAILURE() << here.suspended(each) << " queues of process " << each->pid()
                  << " are suspended, and its tracer is " << tracer_of(each->pid())
                  << (here.has_usual_slice(each) ? "" : "; its time slice is not restored") << "\n"
                  << here.log();
  }
  /// Asserts that its kernels ran exactly once, and all end.
  void expect_whole(const world::process& each) {
    const std::string wrong = each->ask("drain", 30s);
    if (wrong == "0") return;
    is_broken_ = true;
    ADD_FAILURE() << "kernels lost, repeated or cut short: " << wrong;
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
  static std::string text(duration span) {
    std::array<char, 32> all{};
    std::snprintf(all.data(), all.size(), "%.1f ms",
                  std::chrono::duration<double, std::milli>(span).count());
    return all.data();
  }
  testing::TestPartResultArray& failures_;
  testing::ScopedFakeTestPartResultReporter reporter_;
  run_delay given_;
  const regular_looks looks_{given_};
  duration half_of_lease_{};
  std::vector<pid_t> with_lease_;
  int undecided_ = 0;
  std::string not_shown_;
  bool is_broken_ = false;
};

/// Runs a case, and again as long as a try is void. Fails as "not shown" if all tries are.
inline void until_measured(const std::function<void(trial&)>& once) {
  constexpr int most_tries = 5;
  for (int tries = 1;; ++tries) {
    testing::TestPartResultArray failures;
    std::string void_because;
    {
      trial one{failures};
      once(one);
      if (one.failed()) void_because = one.void_because();
    }
    if (failures.size() == 0) {
      if (tries > 1) std::printf("  passed after %d void tries\n", tries - 1);
      return;
    }
    const bool is_void = !void_because.empty();
    const bool again = is_void && tries < most_tries;
    if (is_void)
      std::printf("  try %d of %d is void: %s\n", tries, most_tries, void_because.c_str());
    for (int i = 0; i < failures.size(); ++i) {
      const auto& each = failures.GetTestPartResult(i);
      if (again) {
        std::printf("    %s\n", each.summary());
      } else {
        GTEST_MESSAGE_AT_(each.file_name(), each.line_number(), each.message(), each.type());
      }
    }
    if (again) continue;
    if (is_void)
      ADD_FAILURE() << "not shown: all " << tries << " tries are void, the last because "
                    << void_because;
    return;
  }
}

}  // namespace sluice::test
