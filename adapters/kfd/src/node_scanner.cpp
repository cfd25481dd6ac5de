#include "node_scanner.hpp"

#include "proc.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace sluice::kfd {

namespace {

/// An environment larger than this is not read to its end (the kernel's own limit for arguments and
/// environment together is a quarter of the stack, 2 MiB by default).
constexpr std::size_t most_environment = 4U << 20U;

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
std::optional<Number> read_number(const std::string& path) {
  std::array<char, 64> buffer;
  const auto text = read_small_file(path.c_str(), buffer);
  return text ? parse_number<Number>(*text) : std::nullopt;
}

}  // namespace

role role_of_environment(std::string_view environment) noexcept {
  constexpr std::string_view key = "AMD_QUEUE_TAG=";
  while (!environment.empty()) {
    const std::size_t end = environment.find('\0');
    const std::string_view entry = environment.substr(0, end);
    environment.remove_prefix(end == std::string_view::npos ? environment.size() : end + 1);
    if (!entry.starts_with(key)) continue;
    const std::string_view value = entry.substr(key.size());
    if (value == "ONLINE_AI") return role::online;
    if (value == "OFFLINE_AI") return role::offline;
    return role::unmatched;  // the first one counts, as for getenv()
  }
  return role::unmatched;
}

node_scanner::node_scanner(const roots& where, classification_rules rules, int exits)
    : processes_(where.sysfs + "/proc"),
      topology_(where.sysfs + "/topology"),
      rules_(std::move(rules)),
      exits_(exits) {}

bool node_scanner::readable() const { return ::access(processes_.c_str(), R_OK | X_OK) == 0; }

bool node_scanner::scan(const emit& out) {
  bool changed = scan_gpus(out);
  for (auto& [pid, known] : known_) known.listed = false;
  for_each_numbered_entry<pid_t>(processes_, [&](pid_t pid) {
    auto found = known_.find(pid);
    if (found != known_.end() && exited(found->second)) {
      // The directory may outlive the process for a moment, or belong to the pid's next owner.
      say_gone(found->second, out);
      known_.erase(found);
      found = known_.end();
      changed = true;
    }
    if (found == known_.end()) {
      auto admitted = admit(pid);
      if (!admitted) return;
      found = known_.emplace(pid, std::move(*admitted)).first;
      out(about(observation_kind::process_seen, found->second));
      changed = true;
    } else if (has_execed(found->second)) {
      process& known = found->second;
      for (const queue& each : known.queues) out(about(observation_kind::queue_gone, known, each));
      known.queues.clear();
      read_environment(known);
      known.what = role_of(known);
      out(about(observation_kind::process_seen, known));
      changed = true;
    } else if (const role what = role_of(found->second); what != found->second.what) {
      found->second.what = what;
      out(about(observation_kind::process_seen, found->second));
      changed = true;
    }
    found->second.listed = true;
    if (scan_queues(found->second, out)) changed = true;
  });
  for (auto each = known_.begin(); each != known_.end();) {
    if (each->second.listed) {
      ++each;
      continue;
    }
    say_gone(each->second, out);
    each = known_.erase(each);
    changed = true;
  }
  return changed;
}

void node_scanner::restate(const emit& out) const {
  observation mark;
  mark.kind = observation_kind::resync_begin;
  mark.at = clock::now();
  out(mark);
  for (const gpu_id gpu : gpus_) {
    observation seen;
    seen.kind = observation_kind::gpu_seen;
    seen.gpu = gpu;
    seen.at = clock::now();
    out(seen);
  }
  for (const auto& [pid, known] : known_) {
    out(about(observation_kind::process_seen, known));
    for (const queue& each : known.queues) out(about(observation_kind::queue_seen, known, each));
  }
  mark.kind = observation_kind::resync_end;
  mark.at = clock::now();
  out(mark);
}

bool node_scanner::scan_gpus(const emit& out) {
  std::array<char, 64> buffer;
  const std::string generation_path = topology_ + "/generation_id";
  const auto generation = read_small_file(generation_path.c_str(), buffer);
  if (generation && *generation == generation_ && !gpus_.empty()) return false;
  if (generation) generation_ = *generation;
  bool changed = false;
  const std::string nodes = topology_ + "/nodes";
  for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t node) {
    const auto number = read_number<std::uint32_t>(nodes + "/" + std::to_string(node) + "/gpu_id");
    if (!number || *number == 0) return;  // a CPU, or hidden from this device cgroup
    const gpu_id gpu{*number};
    if (std::ranges::find(gpus_, gpu) != gpus_.end()) return;
    gpus_.push_back(gpu);
    observation seen;
    seen.kind = observation_kind::gpu_seen;
    seen.gpu = gpu;
    seen.at = clock::now();
    out(seen);
    changed = true;
  });
  return changed;
}

bool node_scanner::scan_queues(process& of, const emit& out) {
  const std::string directory = processes_ + "/" + std::to_string(of.pid) + "/queues";
  std::vector<std::pair<std::uint32_t, ino_t>> listed;
  for_each_numbered_entry<std::uint32_t>(
      directory, [&](std::uint32_t id, ino_t inode) { listed.emplace_back(id, inode); });
  std::ranges::sort(listed);
  const auto number = [](const queue& each) { return static_cast<std::uint32_t>(each.id); };
  bool changed = false;
  // A driver gives a freed id to the next queue at once: the same id in another directory is
  // another queue.
  std::erase_if(of.queues, [&](const queue& each) {
    if (std::ranges::binary_search(listed, std::pair{number(each), each.inode})) return false;
    out(about(observation_kind::queue_gone, of, each));
    changed = true;
    return true;
  });
  for (const auto& [id, inode] : listed) {
    const auto place = std::ranges::lower_bound(of.queues, id, {}, number);
    if (place != of.queues.end() && number(*place) == id) continue;
    auto seen = read_queue(of.pid, id);
    if (!seen) continue;  // gone again, or not complete yet: the next look tells
    seen->inode = inode;
    of.queues.insert(place, *seen);
    out(about(observation_kind::queue_seen, of, *seen));
    changed = true;
  }
  return changed;
}

std::optional<node_scanner::process> node_scanner::admit(pid_t pid) const {
  process fresh;
  fresh.pid = pid;
  fresh.pidfd = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  const auto start = start_time_of(pid);
  if (!fresh.pidfd || !start || exited(fresh)) return {};
  fresh.start_time = *start;
  read_environment(fresh);
  fresh.what = role_of(fresh);
  if (exits_ >= 0) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(pid);
    // Without it (out of descriptors, say) the exit is found by the next look.
    (void)::epoll_ctl(exits_, EPOLL_CTL_ADD, fresh.pidfd.get(), &event);
  }
  return fresh;
}

void node_scanner::read_environment(process& of) const {
  of.environment = open_environment(of.pid);
  const std::string environment = of.environment ? read_whole(of.environment.get()) : "";
  of.empty_environment = environment.empty();
  of.claimed = role::unmatched;
  const auto user = user_of(of.pid);
  if (!user) return;
  const bool trusted = rules_.tag_users.empty()
                           ? *user == ::getuid()
                           : std::ranges::find(rules_.tag_users, *user) != rules_.tag_users.end();
  if (trusted) of.claimed = role_of_environment(environment);
}

role node_scanner::role_of(const process& of) const {
  const process_identity who{of.pid, of.start_time};
  if (std::ranges::find(rules_.never_touch, who) != rules_.never_touch.end())
    return role::unmatched;
  const auto said = rules_.by_process.find(who);
  const role what = said != rules_.by_process.end() ? said->second : of.claimed;
  return of.pid == ::getpid() && what == role::offline ? role::unmatched : what;
}

void node_scanner::set_roles(std::map<process_identity, role> said) {
  rules_.by_process = std::move(said);
}

bool node_scanner::exited(const process& known) noexcept {
  pollfd ended{known.pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) != 0;
}

bool node_scanner::has_execed(const process& known) noexcept {
  if (!known.environment) return false;  // not ours to read; its role cannot come from there either
  char first = 0;
  if (!known.empty_environment) return ::pread(known.environment.get(), &first, 1, 0) == 0;
  const unique_fd now = open_environment(known.pid);
  return now && ::pread(now.get(), &first, 1, 0) == 1;
}

std::optional<node_scanner::queue> node_scanner::read_queue(pid_t pid, std::uint32_t id) const {
  const std::string directory =
      processes_ + "/" + std::to_string(pid) + "/queues/" + std::to_string(id);
  const auto gpu = read_number<std::uint32_t>(directory + "/gpuid");
  const auto type = read_number<int>(directory + "/type");
  if (!gpu || !type) return {};
  return queue{driver_queue_id{id}, gpu_id{*gpu}, type_from_sysfs(*type), 0};
}

observation node_scanner::about(observation_kind kind, const process& of) noexcept {
  observation seen;
  seen.kind = kind;
  seen.what = of.what;
  seen.pid = of.pid;
  seen.start_time = of.start_time;
  seen.at = clock::now();
  return seen;
}

observation node_scanner::about(observation_kind kind, const process& of,
                                const queue& which) noexcept {
  observation seen = about(kind, of);
  seen.queue = which.id;
  seen.gpu = which.gpu;
  seen.type = which.type;
  return seen;
}

void node_scanner::say_gone(const process& gone, const emit& out) {
  for (const queue& each : gone.queues) out(about(observation_kind::queue_gone, gone, each));
  out(about(observation_kind::process_gone, gone));
}

}  // namespace sluice::kfd
