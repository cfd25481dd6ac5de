// The steps of `sluice accept`.

#include "acceptance_hands.hpp"
#include "output.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/kfd/driver_trees.hpp"
#include "sluice/kfd/queue_pointers.hpp"
#include "sluice/os/process_identity.hpp"

namespace sluice::cli::acceptance {

namespace {

using namespace std::chrono_literals;

/// Of the victims' kernels: of what the bystander is measured by, and of what fills the GPU.
constexpr duration short_kernel = 1ms;
constexpr duration long_kernel = 5ms;
/// How long nothing may run to count as suspended: several kernels.
constexpr duration quiet = 15ms;
constexpr unsigned light = 10;  ///< Percent of the GPU, so that a bystander has room.
constexpr unsigned full = 100;
/// An attached victim that is slower than this share of its speed has not only lost a call's time.
constexpr double least_speed = 0.5;
/// For an attached victim to end, beyond what it takes unattached.
constexpr duration end_patience = 10s;

/// As many hardware queues as the victim was told to make, or more: a runtime has some of its own.
std::vector<queue_info> queues_of(bench& here, finding& found, unsigned wanted) {
  here.by.wait_for(500ms, [&] { return here.by.queues().size() >= wanted; });
  auto queues = here.by.queues();
  if (!here.by.attached()) fail("the victim ended unexpectedly");
  if (queues.size() < wanted)
    throw step_end{
        verdict::not_possible,
        fmt::format("the victim was started with --queues {} but has only {} compute queues",
                    wanted, queues.size())};
  if (queues.size() > wanted)
    found.notes.push_back(
        fmt::format("the victim has {} compute queues; {} of them belong to its runtime",
                    queues.size(), queues.size() - wanted));
  return queues;
}

void attach(bench& here, finding&) {
  victim target{here.by, here.chosen, 1};
  target.run(short_kernel, light);
  here.by.attach(target.pid());
  here.expect_progress(target, "after the attach");
  here.by.detach();
  here.expect_progress(target, "after the detach");
}

void pointers(bench& here, finding& found) {
  victim target{here.by, here.chosen, 2};
  here.by.attach(target.pid());
  const auto queues = queues_of(here, found, 2);
  const auto who = identity_of(target.pid());
  if (!who) fail("the victim ended unexpectedly");
  auto open = kfd::queue_pointers::open(*who);
  if (!open) fail("cannot read the victim's memory: " + open.error().message());
  auto& reader = **open;
  const auto shown = kfd::read_mqds(here.chosen.where);
  if (!shown)
    throw step_end{verdict::not_possible,
                   "cannot read the addresses of queue pointers from mqds: " +
                       shown.error().message() + "; mount debugfs and run as root"};
  std::vector<kfd::queue_ring> rings;
  for (const auto& each : queues) rings.push_back({each.id, each.gpu, each.incarnation});
  std::vector<kfd::pointer_addresses> at;
  for (const kfd::mqd* const each : kfd::join(*shown, target.pid(), rings)) {
    if (each == nullptr || each->write_pointer_address == 0)
      throw step_end{verdict::not_possible,
                     "the driver's mqds does not show the pointers of each queue of the victim"};
    at.push_back({each->read_pointer_address, each->write_pointer_address});
  }
  if (const auto watched = reader.watch(at); !watched)
    fail("the driver reported invalid queue pointer addresses: " + watched.error().message());
  const auto sum = [&](std::uint64_t kfd::pointer_values::*which) {
    if (const auto done = reader.read(); !done)
      fail("cannot read the victim's memory: " + done.error().message());
    std::uint64_t all = 0;
    for (const auto& each : reader.values()) {
      if (!each.known) fail("cannot read the queue pointers of one of the victim's queues");
      all += each.*which;
    }
    return all;
  };
  const auto before = sum(&kfd::pointer_values::write);
  target.run(short_kernel, light);
  here.expect_progress(target, "while its queue pointers were read");
  if (sum(&kfd::pointer_values::write) == before)
    fail("the write pointers did not change while the victim submitted kernels");
  target.idle();
  here.by.wait("the read pointers to reach the write pointers", [&] {
    (void)sum(&kfd::pointer_values::write);
    return std::ranges::all_of(reader.values(),
                               [](const auto& each) { return each.pending() == 0; });
  });
  const auto rocr = static_cast<std::size_t>(std::ranges::count_if(at, kfd::is_rocr_layout));
  found.notes.push_back(
      fmt::format("{} of {} queues have ROCr's layout of queue pointers; the pointers of {} queues "
                  "are read through /proc/PID/mem",
                  rocr, at.size(), reader.slow()));
  here.by.detach();
}

double kernels_per_second(bench& here, victim& of) {
  (void)of.count();
  const time_point begin = clock::now();
  here.by.pause(here.chosen.window);
  const auto done = of.count().done;
  return static_cast<double>(done) / std::chrono::duration<double>(clock::now() - begin).count();
}

void speed(bench& here, finding& found) {
  victim target{here.by, here.chosen, 4};
  target.run(short_kernel, full);
  here.expect_progress(target, "after it started");
  // Alternating, and by the median: other work on the node slows down some of the windows.
  std::array<double, 3> shares{};
  double before = kernels_per_second(here, target);
  for (double& share : shares) {
    here.by.attach(target.pid());
    const double attached = kernels_per_second(here, target);
    here.by.detach();
    const double after = kernels_per_second(here, target);
    found.notes.push_back(
        fmt::format("kernels per second: {:.1f} before the attach, {:.1f} while attached, {:.1f} "
                    "after the detach",
                    before, attached, after));
    share = attached / std::max((before + after) / 2, 1e-9);
    before = after;
  }
  std::ranges::nth_element(shares, shares.begin() + 1);
  found.notes.push_back(
      fmt::format("attached speed is {:.1f} % of unattached speed (median of 3)", 100 * shares[1]));
  if (shares[1] < least_speed)
    fail(fmt::format("the attached victim ran at {:.0f} % of its unattached speed",
                     100 * shares[1]));
}

void suspend(bench& here, finding& found, unsigned queues, bool busy) {
  victim target{here.by, here.chosen, queues};
  if (busy) {
    target.run(long_kernel, full);
    here.expect_progress(target, "after it started");
  }
  here.by.attach(target.pid());
  queues_of(here, found, queues);
  for (int i = 0; i < here.chosen.repeat; ++i) {
    found.measured(suspend_call, here.by.change(command_kind::suspend));
    if (busy) here.expect_quiet(target, quiet, "although its queues are suspended");
    found.measured(resume_call, here.by.change(command_kind::resume));
    if (busy) here.expect_progress(target, "after the resume");
  }
  here.by.detach();
}
template <unsigned Queues, bool Busy>
void suspend(bench& here, finding& found) {
  suspend(here, found, Queues, Busy);
}

void doorbell(bench& here, finding& found) {
  constexpr unsigned queues = 4;
  victim target{here.by, here.chosen, queues};
  here.by.attach(target.pid());
  queues_of(here, found, queues);
  for (int i = 0; i < std::min(here.chosen.repeat, 10); ++i) {
    here.by.change(command_kind::suspend);
    target.once(short_kernel, light);
    here.expect_quiet(target, quiet, "on suspended queues");
    here.by.change(command_kind::resume);
    const time_point resumed = clock::now();
    std::uint64_t done = 0;
    here.by.wait("the completion of the kernels submitted during the suspend",
                 [&] { return (done += target.count().done) >= queues; });
    found.measured("time from resume to completion of the kernels", clock::now() - resumed);
    if (done != queues)
      fail(fmt::format("the victim submitted {} kernels, but {} completed", queues, done));
  }
  here.by.detach();
}

/// By how much longer than usual the bystander waited for a kernel while `act` was done.
class stall_watch {
 public:
  stall_watch(bench& here, victim& bystander) : here_(here), bystander_(bystander) {
    here.expect_progress(bystander, "while it ran undisturbed, as the bystander");
    (void)bystander.count();
    const time_point begin = clock::now();
    here.by.pause(here.chosen.window);
    const auto seen = bystander.count();
    usual_ =
        (clock::now() - begin) / std::max<std::int64_t>(static_cast<std::int64_t>(seen.done), 1);
    undisturbed_ = seen.longest;
  }
  duration of(const std::function<void()>& act) {
    (void)bystander_.count();
    act();
    // What was held up shows when it ends.
    auto longest = bystander_.count().longest;
    const time_point end = clock::now() + 5s;
    for (std::uint64_t ended = 0; ended < 2;) {
      if (clock::now() >= end) fail("the bystander completed fewer than 2 kernels within 5 s");
      here_.by.pause(usual_);
      const auto seen = bystander_.count();
      ended += seen.done;
      longest = std::max(longest, seen.longest);
    }
    return std::max(longest - usual_, duration::zero());
  }
  /// Longer than one or two runlist cycles of driver kfd.
  static constexpr duration most = 1s;
  std::string text() const {
    return fmt::format(
        "the undisturbed bystander completed a kernel every {} on average; its longest wait was {}",
        time_text(usual_), time_text(undisturbed_));
  }

 private:
  bench& here_;
  victim& bystander_;
  duration usual_{};
  duration undisturbed_{};
};

void expect_short(const finding& found, std::string_view what) {
  const auto* const seen = found.find(what);
  if (seen == nullptr || seen->quantile(1) <= stall_watch::most) return;
  fail(fmt::format("the bystander stalled for {}, longer than {}", time_text(seen->quantile(1)),
                   to_text(stall_watch::most)));
}

void attach_stall(bench& here, finding& found) {
  victim bystander{here.by, here.chosen, 1};
  victim target{here.by, here.chosen, 1};
  bystander.run(short_kernel, light);
  target.run(short_kernel, light);
  stall_watch watch{here, bystander};
  found.notes.push_back(watch.text());
  // To attach to a process, the agent may have to search its memory.
  const time_point enough = clock::now() + here.chosen.limit / 2;
  for (int i = 0; i < here.chosen.repeat && (i == 0 || clock::now() < enough); ++i) {
    found.measured(stall_per_attach,
                   watch.of([&] { found.measured(attach_time, here.by.attach(target.pid())); }));
    here.by.detach();
    here.expect_progress(target, "after a detach");
  }
  expect_short(found, stall_per_attach);
}

void call_stall(bench& here, finding& found) {
  victim bystander{here.by, here.chosen, 1};
  victim target{here.by, here.chosen, 4};
  bystander.run(short_kernel, light);
  target.run(short_kernel, light);
  here.by.attach(target.pid());
  queues_of(here, found, 4);
  stall_watch watch{here, bystander};
  found.notes.push_back(watch.text());
  for (int i = 0; i < here.chosen.repeat; ++i)
    for (const auto kind : {command_kind::suspend, command_kind::resume})
      found.measured(kind == command_kind::suspend ? stall_per_suspend : stall_per_resume,
                     watch.of([&] { here.by.change(kind); }));
  here.by.detach();
  expect_short(found, stall_per_suspend);
  expect_short(found, stall_per_resume);
}

/// How long a request of the bystander takes: a short kernel, alone on its queue.
duration request(bench& here, victim& bystander) {
  constexpr duration kernel = 100us;
  (void)bystander.count();
  bystander.once(kernel, light);
  duration longest{};
  here.by.wait("the completion of a request of the bystander", [&] {
    const auto seen = bystander.count();
    longest = std::max(longest, seen.longest);
    return seen.done != 0;
  });
  return longest;
}

void quantum(bench& here, finding& found) {
  constexpr duration length = 50us;
  /// Of the time that a request waits for the victim: less is no effect.
  constexpr double least_effect = 0.2;
  victim target{here.by, here.chosen, 4};
  victim bystander{here.by, here.chosen, 1};
  const auto measure = [&](std::string_view name) {
    for (int i = 0; i < here.chosen.repeat; ++i) found.measured(name, request(here, bystander));
    return found.find(name)->quantile(0.5);
  };
  const duration alone = measure(request_alone);
  target.run(long_kernel, full);
  here.expect_progress(target, "after it started");
  here.by.attach(target.pid());
  queues_of(here, found, 4);
  // Known once the first attach has started the agent.
  if (!here.by.has(capability::set_quantum))
    throw step_end{verdict::not_possible, "the driver cannot set a quantum"};
  const duration beside = measure(request_beside);
  here.by.set_quantum(length);
  const duration shortened = measure(request_with_quantum);
  here.expect_progress(target, "with a quantum");
  here.by.set_quantum({});
  here.by.detach();
  const auto waits = std::chrono::duration<double>(beside - alone).count();
  if (std::chrono::duration<double>(beside - shortened).count() < least_effect * waits ||
      waits <= 0)
    found.notes.push_back(
        fmt::format("a quantum of {} had no effect: the median of requests beside the victim was "
                    "{} without and {} with it; do not rely on offline_quantum here",
                    to_text(length), time_text(beside), time_text(shortened)));
}

/// How a victim ends that is told `word`, and how long that takes.
struct ending {
  int status = 0;
  duration took{};
};
ending end_of(bench& here, const std::string& word, bool attached, duration limit) {
  victim target{here.by, here.chosen, 2};
  target.run(short_kernel, light);
  if (attached) here.by.attach(target.pid());
  here.expect_progress(target, "after it started");
  const time_point begin = clock::now();
  target.tell(word);
  const auto status = target.ends(limit);
  if (!status)
    fail(fmt::format("the {} victim received '{}' but did not end within {}",
                     attached ? "attached" : "unattached", word, time_text(clock::now() - begin)));
  const duration took = clock::now() - begin;
  if (attached)
    here.by.wait("the agent to report the end of the victim", [&] { return !here.by.attached(); });
  return {*status, took};
}

void end_as_alone(bench& here, finding& found, const std::string& word) {
  const auto alone = end_of(here, word, false, here.chosen.limit);
  const auto attached = end_of(here, word, true, alone.took + end_patience);
  found.measured("time to end, unattached", alone.took);
  found.measured("time to end, attached", attached.took);
  found.notes.push_back("the victim ended with " + status_text(alone.status));
  if (alone.status != attached.status)
    fail(fmt::format("the unattached victim ended with {}, the attached victim with {}",
                     status_text(alone.status), status_text(attached.status)));
}
void exiting(bench& here, finding& found) { end_as_alone(here, found, "exit"); }
void asserting(bench& here, finding& found) { end_as_alone(here, found, "assert"); }
void faulting(bench& here, finding& found) { end_as_alone(here, found, "fault"); }

void agent_killed(bench& here, finding& found) {
  victim target{here.by, here.chosen, 4};
  target.run(short_kernel, full);
  here.expect_progress(target, "after it started");
  here.by.attach(target.pid());
  queues_of(here, found, 4);
  const pid_t agent = here.by.agent();
  if (agent == 0)
    throw step_end{verdict::not_possible,
                   "cannot identify the agent: the owner lock does not name it"};
  here.by.change(command_kind::suspend);
  here.expect_quiet(target, quiet, "although its queues are suspended");
  const time_point killed = here.by.kill_agent(agent);
  here.expect_progress(target, "after the agent was killed: its queues were not resumed");
  found.measured("time from SIGKILL to completion of the first kernel", clock::now() - killed);
  // The next agent must find nothing in its way.
  here.by.attach(target.pid());
  here.by.detach();
}

}  // namespace

const std::vector<step>& all_steps() {
  static constexpr std::string_view no_debugger =
      "the agent does not debug the victim, so its errors are handled as usual";
  static const std::vector<step> all{
      {"attach", "all processes on the GPU wait for one or two runlist cycles",
       "the victim's GPU memory stays allocated until the agent ends",
       "attaches to a running victim and detaches", attach},
      {"pointers", "same as attach", "", "checks that the victim's queue pointers follow its work",
       pointers, "kfd", "the driver shows no queue pointers"},
      {"speed", "same as attach", "same as attach",
       "compares the victim's speed while attached and unattached", speed},
      {"attach-stall", "same as attach, but many times", "same as attach",
       "measures how long each attach stalls a bystander", attach_stall},
      {"suspend-1-idle", "a preemption fails, and the driver resets the GPU and its hive",
       "a preemption fails, the driver reports an Xid, and the GPU needs a reset",
       "suspends and resumes 1 idle queue", suspend<1, false>},
      {"suspend-4-idle", "same as suspend-1-idle", "same as suspend-1-idle",
       "suspends and resumes 4 idle queues", suspend<4, false>},
      {"suspend-10-idle", "same as suspend-1-idle", "same as suspend-1-idle",
       "suspends and resumes 10 idle queues", suspend<10, false>},
      {"doorbell", "same as suspend-1-idle", "same as suspend-1-idle",
       "checks that kernels submitted during a suspend run after the resume", doorbell},
      {"suspend-1-busy",
       "same as suspend-1-idle, but more likely, because the hardware saves running waves",
       "same as suspend-1-idle, but more likely, because the GPU saves running kernels",
       "suspends and resumes 1 queue whose kernels fill the GPU", suspend<1, true>},
      {"suspend-4-busy", "same as suspend-1-busy", "same as suspend-1-busy",
       "suspends and resumes 4 queues whose kernels fill the GPU", suspend<4, true>},
      {"suspend-10-busy", "same as suspend-1-busy", "same as suspend-1-busy",
       "suspends and resumes 10 queues whose kernels fill the GPU", suspend<10, true>},
      {"call-stall", "same as suspend-1-busy", "same as suspend-1-busy",
       "measures how long each suspend and resume stalls a bystander", call_stall},
      {"quantum", "", "the victim keeps a shorter time slice until it ends",
       "measures requests beside a victim with and without a shorter quantum", quantum, "nvidia",
       "the driver cannot set the quantum of a process"},
      {"exit", "the victim hangs while it exits", "the victim hangs while it exits",
       "compares how an attached and an unattached victim exit", exiting},
      {"assert", "the victim or the GPU hangs", "",
       "compares how a failed assertion ends an attached and an unattached victim", asserting,
       "kfd", no_debugger},
      {"fault", "the victim or the GPU hangs, or the driver resets the GPU", "",
       "compares how a memory fault ends an attached and an unattached victim", faulting, "kfd",
       no_debugger},
      {"agent-killed", "queues stay suspended until the victim is killed or the GPU is reset",
       "queues stay suspended until the victim is killed or 'sluice rescue' runs",
       "kills the agent during a suspend; checks that the victim's queues are resumed",
       agent_killed},
  };
  return all;
}

}  // namespace sluice::cli::acceptance
