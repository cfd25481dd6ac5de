#include "node_scanner.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice {

namespace {

/// An environment larger than this is not read to its end (the kernel's own limit for arguments and
/// environment together is a quarter of the stack, 2 MiB by default).
constexpr std::size_t most_environment = 4U << 20U;

/// How often what rules about queues go by is read for one change of queues, when it does not show
/// all of them.
constexpr int most_traits_reads = 4;

std::string read_whole(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  while (text.size() < most_environment) {
    const ssize_t got = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return text;
}

unique_fd open_environment(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/environ";
  return unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
}

bool is_compute(const surveyed_queue& each) noexcept { return each.kind == queue_kind::compute; }

}  // namespace

node_scanner::node_scanner(survey& of, roles::classification_rules rules, int exits,
                           message_sink say)
    : survey_(of),
      rules_(std::move(rules)),
      variables_(rules_.wanted_variables()),
      gangs_(rules_.rules().gangs.allow_partial),
      exits_(exits),
      say_(std::move(say)) {}

void node_scanner::set_rules(roles::classification_rules rules) {
  rules_ = roles::classifier{std::move(rules)};
  variables_ = rules_.wanted_variables();
  gangs_.allow_partial(rules_.rules().gangs.allow_partial);
  // Of an environment only what the rules look at was kept.
  for (auto& [pid, known] : known_)
    if (!has_execed(known)) (void)read_environment(known);
  traits_due_ = rules_.wants_queues() ? most_traits_reads : 0;
  settled_ = false;
}

bool node_scanner::scan(const emit& out) {
  bool changed = scan_gpus(out);
  bool queues_changed = false;
  begin_turns();
  const auto see = [&](pid_t pid) {
    auto found = known_.find(pid);
    if (found != known_.end() && is_as_before(found->second)) {
      found->second.listed = true;
      return;
    }
    if (found != known_.end() && (exited(found->second) || found->second.missed_environment)) {
      // The directory may outlive the process for a moment, or belong to the pid's next owner. One
      // whose environment could not be read is as good as new.
      say_gone(found->second, out);
      known_.erase(found);
      found = known_.end();
      changed = true;
    }
    if (found == known_.end()) {
      auto admitted = admit(pid);
      if (!admitted) return;
      found = known_.emplace(pid, std::move(*admitted)).first;
      settled_ = false;
    } else if (process& known = found->second; has_execed(known) && read_environment(known)) {
      for (const surveyed_queue& each : known.queues)
        out(about(observation_kind::queue_gone, known, each));
      known.queues.clear();
      known.details.clear();
      ++known.change;
      known.uses = survey_.open(known.traits.who);
      (void)read_traits(known);
      if (known.missed_environment) {
        say_no_descriptors();
        say_gone(known, out);
        known_.erase(found);
        changed = true;
        return;
      }
      known.emitted = false;
      settled_ = false;
    } else if (read_traits(known)) {
      settled_ = false;
    }
    found->second.listed = true;
    if (scan_queues(found->second, out)) {
      queues_changed = true;
      ++found->second.change;
    }
  };
  pids_.clear();
  if (const auto listed = survey_.list_processes(pids_); !listed) note(listed.error());
  for (const pid_t pid : pids_) see(pid);
  for (auto each = known_.begin(); each != known_.end();) {
    if (each->second.listed) {
      ++each;
      continue;
    }
    say_gone(each->second, out);
    each = known_.erase(each);
    changed = true;
  }
  if (changed || queues_changed) settled_ = false;
  if (rules_.wants_queues()) {
    if (queues_changed) traits_due_ = most_traits_reads;
    if (traits_due_ > 0) read_queue_traits();
  }
  if (!settled_ && settle_roles(out)) changed = true;
  say_hidden_environments();
  return queues_changed || changed;
}

void node_scanner::begin_turns() {
  for (auto& [pid, known] : known_) known.listed = known.whole = false;
  auto next = known_.upper_bound(last_turn_);
  const std::size_t share = (known_.size() + longest_turn - 1) / longest_turn;
  for (std::size_t left = std::min(std::max(whole_looks, share), known_.size()); left > 0;
       --left, ++next) {
    if (next == known_.end()) next = known_.begin();
    next->second.whole = true;
    last_turn_ = next->first;
  }
}

/// As far as a short look tells: a queue that has another in its place does not show, nor do
/// supplementary groups and cgroups of version 1.
bool node_scanner::is_as_before(const process& known) const noexcept {
  // Nobody else tells of an online process's queues, and rules about queues go by each.
  if (known.whole || known.is.what == role::online || rules_.wants_queues() ||
      known.missed_environment)
    return false;
  if (exited(known)) return false;
  // With a program's memory its queues go; one that has none may have begun another program.
  if (known.queues.empty() && (!known.environment || has_execed(known))) return false;
  return known.uses->unchanged() && known.stands &&
         roles::standing_of(known.pidfd.get()) == known.stands;
}

void node_scanner::restate(const emit& out) const {
  observation mark;
  mark.kind = observation_kind::resync_begin;
  mark.at = clock::now();
  out(mark);
  restate_gpus(out);
  for (const auto& [pid, known] : known_) {
    out(about(observation_kind::process_seen, known));
    for (const surveyed_queue& each : known.queues)
      out(about(observation_kind::queue_seen, known, each));
  }
  mark.kind = observation_kind::resync_end;
  mark.at = clock::now();
  out(mark);
}

void node_scanner::restate_gpus(const emit& out) const {
  for (const surveyed_gpu& each : gpus_) out(about(each));
}

observation node_scanner::about(const surveyed_gpu& seen) noexcept {
  observation out;
  out.kind = observation_kind::gpu_seen;
  out.gpu = seen.id;
  out.group_key = seen.reset_domain;
  out.count = seen.slots;
  out.at = clock::now();
  return out;
}

bool node_scanner::scan_gpus(const emit& out) {
  bool changed = false;
  for (const surveyed_gpu& each : survey_.gpus()) {
    if (std::ranges::find(gpus_, each.id, &surveyed_gpu::id) != gpus_.end()) continue;
    gpus_.push_back(each);
    out(about(each));
    changed = true;
  }
  return changed;
}

bool node_scanner::scan_queues(process& of, const emit& out) {
  listed_.clear();
  if (const auto listed = of.uses->list_queues(listed_); !listed) note(listed.error());
  std::ranges::sort(listed_);
  of.fresh.clear();
  if (listed_ == of.queues) return false;
  // A driver may give a freed id to the next queue at once: that is another queue.
  for (const surveyed_queue& each : of.queues)
    if (!std::ranges::binary_search(listed_, each))
      out(about(observation_kind::queue_gone, of, each));
  std::ranges::set_difference(listed_, of.queues, std::back_inserter(of.fresh));
  of.queues = listed_;
  return true;
}

std::optional<node_scanner::process> node_scanner::admit(pid_t pid) {
  process fresh;
  fresh.pidfd = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (fresh.pidfd) errno = 0;
  const auto start = fresh.pidfd ? start_time_of(pid) : std::nullopt;
  if (!start) {
    if (roles::is_for_want_of_descriptors(errno)) say_no_descriptors();
    return {};
  }
  fresh.traits.who = {pid, *start};
  fresh.stands = roles::standing_of(fresh.pidfd.get());  // as in read_traits()
  const bool all = roles::read_changing_traits(fresh.traits);
  if (!read_environment(fresh)) return {};
  // By half of what it is made of, its role might be another. The next look tells.
  if (!all || fresh.missed_environment) {
    say_no_descriptors();
    return {};
  }
  // Only now is it certain that all of that was its own, and not that of the pid's next owner.
  if (exited(fresh)) return {};
  fresh.uses = survey_.open(fresh.traits.who);
  if (exits_ >= 0) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(pid);
    // Without it (out of descriptors, say) the exit is found by the next look.
    (void)::epoll_ctl(exits_, EPOLL_CTL_ADD, fresh.pidfd.get(), &event);
  }
  return fresh;
}

bool node_scanner::read_traits(process& of) {
  // Asked first, so that a change in between shows at the next look.
  of.stands = roles::standing_of(of.pidfd.get());
  const auto as = of.traits.as;
  const auto cgroups = of.traits.cgroups;
  if (!roles::read_changing_traits(of.traits))
    of.stands.reset();  // so that the next look reads again
  return of.traits.as != as || of.traits.cgroups != cgroups;
}

bool node_scanner::read_environment(process& of) const {
  const pid_t pid = of.traits.who.pid;
  const auto end = environment_end_of(pid);
  unique_fd now = open_environment(pid);
  const int error = now ? 0 : errno;
  const std::string environment = now ? read_whole(now.get()) : "";
  if (error == ESRCH || error == ENOENT) return false;
  if (now && environment.empty() && (end == 0 || environment_end_of(pid) != end)) return false;
  of.environment = std::move(now);
  of.traits.hidden_environment = error == EACCES || error == EPERM;
  of.missed_environment = roles::is_for_want_of_descriptors(error);
  of.empty_environment = environment.empty();
  of.traits.variables = roles::parse_environment(environment, variables_);
  of.traits.network = roles::network_of(pid);
  return true;
}

void node_scanner::note(const error_code& why) {
  if (why.category() == boost::system::system_category() &&
      roles::is_for_want_of_descriptors(why.value()))
    say_no_descriptors();
}

void node_scanner::say_no_descriptors() {
  if (std::exchange(no_descriptors_said_, true)) return;
  say_(
      "out of file descriptors: sluice cannot discover or manage processes that start to use a "
      "GPU; close some descriptors, or raise the limit (ulimit -n, LimitNOFILE)");
}

void node_scanner::say_hidden_environments() {
  if (hidden_said_) return;
  // Whose role comes from elsewhere needs none, nor who only opened the device, as agents do.
  const auto counts = [](const auto& each) {
    const process& known = each.second;
    return known.traits.hidden_environment && !known.queues.empty() &&
           known.is.what == role::unmatched;
  };
  const auto first = std::ranges::find_if(known_, counts);
  if (first == known_.end()) return;
  hidden_said_ = true;
  const std::string pid = std::to_string(first->first);
  const auto count = std::ranges::count_if(known_, counts);
  say_("cannot read the environment of " + std::to_string(count) +
       (count == 1 ? " process that uses" : " processes that use") +
       " a GPU (for example process " + pid + ", " + command_of(first->first) +
       "): sluice ignores variables such as AMD_QUEUE_TAG of these processes. Grant CAP_SYS_PTRACE "
       "and CAP_DAC_READ_SEARCH, or assign roles by cgroup or with 'sluice role', or let the "
       "programs register as clients; see DAEMON.md, \"Features that need more rights\" pid=" +
       pid);
}

void node_scanner::read_queue_traits() {
  --traits_due_;
  settled_ = false;
  std::string message;
  const auto seen = survey_.list_queue_traits(message);
  for (auto& [pid, known] : known_) known.details.clear();
  if (!seen) {
    if (!std::exchange(traits_refused_, true)) say_(message);
    return;
  }
  traits_refused_ = false;
  for (const auto& [pid, traits] : *seen)
    if (const auto owner = known_.find(pid); owner != known_.end())
      owner->second.details.push_back(traits);
  // A queue that came or went in between is there at the next look.
  if (std::ranges::all_of(known_, [&](const auto& each) { return details_complete(each.second); }))
    traits_due_ = 0;
}

std::vector<work_watch::process> node_scanner::online() const {
  std::vector<work_watch::process> all;
  for (const auto& [pid, known] : known_) {
    if (known.is.what != role::online) continue;
    work_watch::process one{known.traits.who, known.change, {}};
    std::ranges::copy_if(known.queues, std::back_inserter(one.queues), is_compute);
    if (!one.queues.empty()) all.push_back(std::move(one));
  }
  return all;
}

roles::role_reasons node_scanner::reasons() const {
  roles::role_reasons all;
  for (const auto& [pid, known] : known_) all.emplace_hint(all.end(), known.traits.who, known.why);
  return all;
}

bool node_scanner::details_complete(const process& of) const noexcept {
  return std::ssize(of.details) == std::ranges::count_if(of.queues, is_compute) &&
         std::ranges::all_of(of.details, [&](const roles::queue_traits& each) {
           return each.ring_base != 0 && (each.priority || !rules_.rules().queue_priority);
         });
}

bool node_scanner::settle_roles(const emit& out) {
  std::map<pid_t, roles::gang_membership> members;
  gangs_.begin();
  for (const auto& [pid, known] : known_) {
    const auto member = members.emplace(pid, gang_of(rules_.rules().gangs, known.traits)).first;
    gangs_.see(member->second);
  }
  bool changed = false;
  settled_ = true;
  for (auto& [pid, known] : known_) {
    roles::role_reason why = rules_.reason_of(known.traits, known.details, details_complete(known));
    const roles::gang_book::settled now = gangs_.settle(members[pid], why);
    if (!known.emitted || why != known.why) {
      known.why = std::move(why);
      new_reasons_ = true;
    }
    if (!known.emitted || now != known.is) {
      known.is = now;
      known.emitted = changed = true;
      out(about(observation_kind::process_seen, known));
    }
    for (const surveyed_queue& each : known.fresh)
      out(about(observation_kind::queue_seen, known, each));
    known.fresh.clear();
  }
  return changed;
}

bool node_scanner::exited(const process& known) noexcept {
  pollfd ended{known.pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

bool node_scanner::has_execed(const process& known) noexcept {
  if (!known.environment) return false;  // not ours to read; its role cannot come from there either
  char first = 0;
  if (!known.empty_environment) return ::pread(known.environment.get(), &first, 1, 0) == 0;
  const unique_fd now = open_environment(known.traits.who.pid);
  return now && ::pread(now.get(), &first, 1, 0) == 1;
}

observation node_scanner::about(observation_kind kind, const process& of) noexcept {
  observation seen;
  seen.kind = kind;
  seen.what = of.is.what;
  seen.pid = of.traits.who.pid;
  seen.start_time = of.traits.who.start_time;
  seen.group_key = of.is.key;
  if (kind == observation_kind::process_seen) seen.count = of.is.nodes;
  seen.priority = roles::classifier::priority_of(of.traits);
  seen.at = clock::now();
  return seen;
}

observation node_scanner::about(observation_kind kind, const process& of,
                                const surveyed_queue& which) noexcept {
  observation seen = about(kind, of);
  seen.queue = which.id;
  seen.gpu = which.gpu;
  seen.type = which.kind;
  return seen;
}

void node_scanner::say_gone(const process& gone, const emit& out) {
  for (const surveyed_queue& each : gone.queues)
    out(about(observation_kind::queue_gone, gone, each));
  out(about(observation_kind::process_gone, gone));
}

}  // namespace sluice
