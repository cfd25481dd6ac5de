#include "node_scanner.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// An environment larger than this is not read to its end (the kernel's own limit for arguments and
/// environment together is a quarter of the stack, 2 MiB by default).
constexpr std::size_t most_environment = 4U << 20U;

/// How often mqds is read for one change of queues, when it does not show what sysfs shows.
constexpr int most_mqds_reads = 4;

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

template <class Number>
std::optional<Number> read_number(const std::string& path, int directory = AT_FDCWD) {
  std::array<char, 64> buffer;
  const auto text = read_small_file(path.c_str(), buffer, directory);
  return text ? parse_number<Number>(*text) : std::nullopt;
}

}  // namespace

node_scanner::node_scanner(const roots& where, roles::classification_rules rules, int exits,
                           message_sink say)
    : where_(where),
      processes_(where.sysfs + "/proc"),
      topology_(where.sysfs + "/topology"),
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
  mqds_reads_due_ = rules_.wants_queues() ? most_mqds_reads : 0;
  settled_ = false;
}

void node_scanner::want_pointers(bool wanted) {
  if (wanted && !pointers_wanted_) {
    // Said now: there may be no online process for long, or none that is seen to be one.
    const std::string path = where_.debugfs + "/mqds";
    const unique_fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file) say_no_pointers(last_system_error());
  }
  pointers_wanted_ = wanted;
}

bool node_scanner::readable() const { return ::access(processes_.c_str(), R_OK | X_OK) == 0; }

bool node_scanner::scan(const emit& out) {
  bool changed = scan_gpus(out);
  bool queues_changed = false;
  bool any = false;
  begin_turns();
  const auto see = [&](pid_t pid) {
    any = true;
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
      for (const queue& each : known.queues) out(about(observation_kind::queue_gone, known, each));
      known.queues.clear();
      known.details.clear();
      ++known.change;
      known.pointers.clear();
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
      found->second.pointer_reads_due = most_mqds_reads;
    }
  };
  // An empty one may be that of a driver that is no longer loaded.
  if (!for_each_numbered_entry<pid_t>(processes_directory_, see) || !any) {
    processes_directory_ = open_directory(processes_);
    if (!processes_directory_ && roles::is_for_want_of_descriptors(errno)) say_no_descriptors();
    (void)for_each_numbered_entry<pid_t>(processes_directory_, see);
  }
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
    if (queues_changed) mqds_reads_due_ = most_mqds_reads;
    if (mqds_reads_due_ > 0) read_mqds();
  }
  if (!settled_ && settle_roles(out)) changed = true;
  say_hidden_environments();
  if (pointers_wanted_) find_pointers();
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
  struct stat directory {};
  // kernfs counts the directories in one as links to it.
  return ::fstat(known.directory.get(), &directory) == 0 &&
         directory.st_nlink == 2 + known.queues.size() && known.stands &&
         roles::standing_of(known.pidfd.get()) == known.stands;
}

void node_scanner::restate(const emit& out) const {
  observation mark;
  mark.kind = observation_kind::resync_begin;
  mark.at = clock::now();
  out(mark);
  for (const gpu_node& each : gpus_) out(about(each));
  for (const auto& [pid, known] : known_) {
    out(about(observation_kind::process_seen, known));
    for (const queue& each : known.queues) out(about(observation_kind::queue_seen, known, each));
  }
  mark.kind = observation_kind::resync_end;
  mark.at = clock::now();
  out(mark);
}

observation node_scanner::about(const gpu_node& seen) noexcept {
  observation out;
  out.kind = observation_kind::gpu_seen;
  out.gpu = seen.id;
  out.group_key = seen.hive;
  out.count = seen.slots;
  out.at = clock::now();
  return out;
}

/// The file stays open; it fails when it was of a driver that is no longer loaded.
std::optional<std::string_view> node_scanner::read_generation(std::span<char> into) {
  const auto read = [&] { return ::pread(generation_file_.get(), into.data(), into.size(), 0); };
  ssize_t got = read();
  if (got <= 0) {
    const std::string path = topology_ + "/generation_id";
    generation_file_ = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    got = read();
  }
  if (got < 0) return {};
  return std::string_view{into.data(), static_cast<std::size_t>(got)};
}

bool node_scanner::scan_gpus(const emit& out) {
  std::array<char, 64> buffer;
  const auto generation = read_generation(buffer);
  if (generation && *generation == generation_ && !gpus_.empty()) return false;
  if (generation) generation_ = *generation;
  bool changed = false;
  const std::string nodes = topology_ + "/nodes";
  for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t node) {
    const auto number = read_number<std::uint32_t>(nodes + "/" + std::to_string(node) + "/gpu_id");
    if (!number || *number == 0) return;  // a CPU, or hidden from this device cgroup
    const gpu_id id{*number};
    if (std::ranges::find(gpus_, id, &gpu_node::id) != gpus_.end()) return;
    // Without properties it counts as alone.
    std::array<char, 8192> text;
    const auto properties =
        read_small_file((nodes + "/" + std::to_string(node) + "/properties").c_str(), text);
    const auto number_of = [&](std::string_view key) {
      return properties ? property(*properties, key).value_or(0) : 0;
    };
    gpus_.push_back(
        {id, number_of("hive_id"), static_cast<std::uint32_t>(number_of("num_cp_queues"))});
    out(about(gpus_.back()));
    changed = true;
  });
  return changed;
}

/// To open the directory anew for every look costs more than to read it.
void node_scanner::list_queues(process& of) {
  const auto list = [&] {
    listed_.clear();
    return for_each_numbered_entry<std::uint32_t>(
        of.directory, [this](std::uint32_t id, ino_t inode) { listed_.emplace_back(id, inode); });
  };
  // An empty one may be what is left of one that has another in its place, after an exec.
  if (!list() || listed_.empty()) {
    of.directory = open_directory(processes_ + "/" + std::to_string(of.traits.who.pid) + "/queues");
    if (!of.directory && roles::is_for_want_of_descriptors(errno)) say_no_descriptors();
    (void)list();
  }
  std::ranges::sort(listed_);
}

bool node_scanner::scan_queues(process& of, const emit& out) {
  list_queues(of);
  const auto number = [](const queue& each) { return static_cast<std::uint32_t>(each.id); };
  bool changed = false;
  of.fresh.clear();
  // A driver gives a freed id to the next queue at once: the same id in another directory is
  // another queue.
  std::erase_if(of.queues, [&](const queue& each) {
    if (std::ranges::binary_search(listed_, std::pair{number(each), each.inode})) return false;
    out(about(observation_kind::queue_gone, of, each));
    changed = true;
    return true;
  });
  for (const auto& [id, inode] : listed_) {
    const auto place = std::ranges::lower_bound(of.queues, id, {}, number);
    if (place != of.queues.end() && number(*place) == id) continue;
    errno = 0;
    auto seen = read_queue(of, id);
    if (!seen) {  // gone again, or not complete yet: the next look tells
      if (roles::is_for_want_of_descriptors(errno)) say_no_descriptors();
      continue;
    }
    seen->inode = inode;
    of.queues.insert(place, *seen);
    of.fresh.push_back(*seen);
    changed = true;
  }
  return changed;
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

void node_scanner::say_no_pointers(error_code why) {
  if (std::exchange(pointers_refused_, true)) return;
  say_("cannot read " + where_.debugfs + "/mqds: " + why.message() +
       "; sluice detects online work only if a client announces it; mount debugfs and run as root, "
       "or grant CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE; see DAEMON.md, \"Features that need "
       "more rights\"");
}

void node_scanner::read_mqds() {
  --mqds_reads_due_;
  settled_ = false;
  const auto seen = kfd::read_mqds(where_);
  if (!seen) {
    if (!std::exchange(mqds_refused_, true)) {
      say_("cannot read " + where_.debugfs + "/mqds: " + seen.error().message() +
           "; the rules about queues ([roles] rings, queue_priority) have no effect; "
           "mount debugfs and run as root");
    }
    for (auto& [pid, known] : known_) known.details.clear();
    return;
  }
  mqds_refused_ = false;
  for (auto& [pid, known] : known_) known.details.clear();
  for (const mqd& each : seen->queues) {
    const auto owner = known_.find(each.pid);
    if (owner == known_.end() || each.type != mqd_type::compute) continue;
    owner->second.details.push_back({each.ring_base, each.priority});
  }
  // A queue that came or went between the two files is there at the next look.
  if (std::ranges::all_of(known_, [&](const auto& each) { return details_complete(each.second); }))
    mqds_reads_due_ = 0;
}

void node_scanner::find_pointers() {
  const auto due = [](const process& each) {
    return each.is.what == role::online && each.pointer_reads_due > 0;
  };
  if (std::ranges::none_of(known_, [&](const auto& each) { return due(each.second); })) return;
  const auto seen = kfd::read_mqds(where_);
  if (seen)
    pointers_refused_ = false;
  else
    say_no_pointers(seen.error());
  for (auto& [pid, known] : known_) {
    if (!due(known)) continue;
    --known.pointer_reads_due;
    known.pointers.clear();
    if (seen) {
      for (const mqd& each : seen->queues) {
        if (each.pid != pid || each.type != mqd_type::compute || each.write_pointer_address == 0)
          continue;
        known.pointers.push_back({each.gpu,
                                  {each.read_pointer_address, each.write_pointer_address},
                                  each.ring_base,
                                  each.aql.value_or(false)});
      }
    }
    const auto compute = std::ranges::count_if(
        known.queues, [](const queue& each) { return kind_of(each.type) == queue_kind::compute; });
    if (std::ssize(known.pointers) == compute) known.pointer_reads_due = 0;
  }
}

std::vector<online_process> node_scanner::online() const {
  std::vector<online_process> all;
  for (const auto& [pid, known] : known_) {
    if (known.is.what != role::online) continue;
    online_process one{known.traits.who, known.change, known.pointers};
    // Those that sysfs shows and mqds does not.
    std::vector<gpu_id> shown;
    for (const online_queue& each : known.pointers) shown.push_back(each.gpu);
    for (const queue& each : known.queues) {
      if (kind_of(each.type) != queue_kind::compute) continue;
      const auto same = std::ranges::find(shown, each.gpu);
      if (same != shown.end()) {
        shown.erase(same);
      } else {
        one.queues.push_back({.gpu = each.gpu});
      }
    }
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
  const auto compute = std::ranges::count_if(
      of.queues, [](const queue& each) { return kind_of(each.type) == queue_kind::compute; });
  return std::ssize(of.details) == compute &&
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
    for (const queue& each : known.fresh) out(about(observation_kind::queue_seen, known, each));
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

std::optional<node_scanner::queue> node_scanner::read_queue(const process& of, std::uint32_t id) {
  // So that its name is looked up once.
  const unique_fd directory{
      ::openat(of.directory.get(), std::to_string(id).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!directory) return {};
  const auto gpu = read_number<std::uint32_t>("gpuid", directory.get());
  const auto type = read_number<int>("type", directory.get());
  if (!gpu || !type) return {};
  return queue{driver_queue_id{id}, gpu_id{*gpu}, type_from_sysfs(*type), 0};
}

observation node_scanner::about(observation_kind kind, const process& of) noexcept {
  observation seen;
  seen.kind = kind;
  seen.what = of.is.what;
  seen.pid = of.traits.who.pid;
  seen.start_time = of.traits.who.start_time;
  seen.group_key = of.is.key;
  seen.priority = roles::classifier::priority_of(of.traits);
  seen.at = clock::now();
  return seen;
}

observation node_scanner::about(observation_kind kind, const process& of,
                                const queue& which) noexcept {
  observation seen = about(kind, of);
  seen.queue = which.id;
  seen.gpu = which.gpu;
  seen.type = kind_of(which.type);
  return seen;
}

void node_scanner::say_gone(const process& gone, const emit& out) {
  for (const queue& each : gone.queues) out(about(observation_kind::queue_gone, gone, each));
  out(about(observation_kind::process_gone, gone));
}

}  // namespace sluice::kfd
