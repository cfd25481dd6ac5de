#include "guardian.hpp"

#include "lease.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/os/standard_error.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// Between two attempts to let go of something: at first, and at last.
constexpr duration first_retry = 10ms;
constexpr duration last_retry = 500ms;
/// For an agent that lets go of everything before it ends; it gives itself 2 s.
constexpr duration ending_patience = 5s;

bool gone_within(int pidfd, duration at_most) noexcept {
  pollfd waiting{pidfd, POLLIN, 0};
  const int milliseconds =
      at_most == duration::max()
          ? -1
          : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(at_most).count());
  return ::poll(&waiting, 1, milliseconds) > 0;
}

void release_one(hold_record& record, acting_driver& driver, hold_book::number which,
                 const hold& what, duration patience, const message_sink& say) {
  std::string why;
  bool complained = false;
  duration pause = first_retry;
  const time_point begun = clock::now();
  for (;;) {
    const auto done = driver.release(what, [&why](std::string_view words) { why = words; });
    if (done || done.error() == errc::unknown_target) {
      record.strike(which);
      return;
    }
    if (why.empty()) why = done.error().message();
    if (!std::exchange(complained, true))
      say("process " + std::to_string(what.pid) + " is still held: " + why);
    // Where another agent waits for the record, it and its guardian go on.
    if (record.is_wanted() || clock::now() - begun >= patience) {
      say("process " + std::to_string(what.pid) + " stays held: " + why +
          "; run 'sluice rescue' as root");
      return;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, last_retry);
  }
}

using held_list = std::vector<std::pair<hold_book::number, hold>>;

/// Each on a thread of its own.
std::vector<std::thread> start_releasing(hold_record& record, const held_list& held,
                                         acting_driver& driver, duration patience,
                                         const message_sink& say) {
  std::vector<std::thread> releasing;
  for (const auto& [which, what] : held) {
    const auto act = [&record, &driver, which = which, what = what, patience, &say] {
      release_one(record, driver, which, what, patience, say);
    };
    try {
      releasing.emplace_back(act);
    } catch (const std::system_error&) {
      act();
    }
  }
  return releasing;
}

/// All but these two and the standard ones.
void close_others(int one, int another) noexcept {
  const auto [low, high] =
      std::minmax({static_cast<unsigned>(one), static_cast<unsigned>(another)});
  constexpr unsigned first = 3;
  if (low > first) ::syscall(SYS_close_range, first, low - 1, 0U);
  if (high > low + 1) ::syscall(SYS_close_range, low + 1, high - 1, 0U);
  ::syscall(SYS_close_range, high + 1, ~0U, 0U);
}

/// \param left what was held before this agent began: by now it may hold something itself.
[[noreturn]] void watch(hold_record& record, const held_list& left, acting_driver& driver,
                        duration length, int agent) {
  ::setsid();
  ::prctl(PR_SET_NAME, "sluice-guardian");
  close_others(record.fd(), agent);
  const message_sink say = [](std::string_view words) {
    log_to_standard_error("sluice-guardian", "error", words);
  };
  confinement rights = driver.needs(confined::guardian);
  rights.who = confined::guardian;
  if (!confine(rights)) ::_exit(1);
  const duration interval = std::min<duration>(100ms, length / 5);
  // What an earlier agent left.
  std::vector<std::thread> leftovers = start_releasing(record, left, driver, duration::max(), say);
  lease life{length, interval, clock::now()};
  time_point begun{};   // to act
  time_point ending{};  // seen first
  for (;;) {
    const time_point now = clock::now();
    record.guardian_lives(now);
    // Before it acts it holds nothing, and opening a device takes as long as it takes.
    if (begun == time_point{} && record.agent_lived() != time_point{}) {
      begun = now;
      life = lease{length, interval, now};
    }
    if (ending == time_point{} && record.agent_is_ending()) ending = now;
    life.renew(record.agent_lived(), now);
    const bool silent = ending != time_point{} ? now - ending >= ending_patience
                                               : begun != time_point{} && life.lapsed(now);
    if (silent) {
      say("the agent has been silent for longer than its lease; the guardian kills the agent");
      (void)::syscall(SYS_pidfd_send_signal, agent, SIGKILL, nullptr, 0);
      (void)gone_within(agent, duration::max());
    }
    if (gone_within(agent, interval)) break;
  }
  const std::size_t still = release_all(record, driver, duration::max(), say);
  // A leftover may be refused for as long as this process lives; the record keeps it.
  for (auto& each : leftovers) each.detach();
  ::_exit(still == 0 ? 0 : 1);
}

}  // namespace

std::size_t release_all(hold_record& record, acting_driver& driver, duration patience,
                        const message_sink& say) {
  for (auto& each : start_releasing(record, record.held(), driver, patience, say)) each.join();
  return record.held().size();
}

result<unique_fd> start_guardian(hold_record& record, acting_driver& driver, duration lease) {
  const unique_fd agent{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  if (!agent) return last_system_error();
  const held_list left = record.held();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t child = ::fork();
  const error_code error = child < 0 ? last_system_error() : error_code{};
  if (child == 0) watch(record, left, driver, lease, agent.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error) return error;
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, child, 0))};
  if (!pidfd) return last_system_error();
  return pidfd;
}

}  // namespace sluice::agent
