#include "sluice/roles/role_store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <string_view>

#include "sluice/os/proc.hpp"
#include "sluice/os/store_file.hpp"

namespace sluice::roles {

namespace {

constexpr std::string_view roles_head = "sluice roles 1";

store_file role_file(const std::string& path) { return {path, "role store"}; }

std::string boot_id() {
  std::array<char, 64> buffer;
  const auto text = read_small_file("/proc/sys/kernel/random/boot_id", buffer);
  return std::string{text ? text->substr(0, text->find('\n')) : ""};
}

bool lives(const process_identity& who) { return start_time_of(who.pid) == who.start_time; }

std::optional<role> role_named(std::string_view name) noexcept {
  for (const role each : {role::online, role::offline, role::unmatched})
    if (name == to_string(each)) return each;
  return {};
}

/// \return what is wrong with the line; empty: nothing.
std::string read_entry(std::string_view line, const std::string& boot, stored_roles& into) {
  const std::string_view kind = take_word(line);
  if (kind == "pid") {
    const auto pid = parse_number<pid_t>(take_word(line));
    const auto start = parse_number<std::uint64_t>(take_word(line));
    const std::string_view booted = take_word(line);
    const auto what = role_named(line);
    if (!pid || *pid <= 0 || !start || booted.empty() || !what)
      return "expected \"pid PID START_TIME BOOT_ID ROLE\"";
    const process_identity who{*pid, *start};
    if (booted == boot && lives(who)) into.by_process[who] = *what;
    return {};
  }
  if (kind == "released") {
    const auto pid = parse_number<pid_t>(take_word(line));
    const auto start = parse_number<std::uint64_t>(take_word(line));
    const std::string_view booted = take_word(line);
    const auto until = parse_number<std::int64_t>(line);
    if (!pid || *pid <= 0 || !start || booted.empty() || !until || *until < 0)
      return "expected \"released PID START_TIME BOOT_ID UNTIL\"";
    const process_identity who{*pid, *start};
    const boot_time end{*until};
    if (booted == boot && end > boot_time_now() && lives(who)) into.released[who] = end;
    return {};
  }
  if (kind == "cgroup") {
    const auto what = role_named(take_word(line));
    if (!what || !line.starts_with('/')) return "expected \"cgroup ROLE /PATTERN\"";
    into.by_cgroup.push_back({std::string{line}, *what});
    return {};
  }
  return "expected \"pid\", \"cgroup\" or \"released\" as the first word";
}

std::string text_of(const stored_roles& roles, const std::string& boot) {
  std::string text{roles_head};
  text += "\n# Written by sluice; see `sluice role --help`.\n";
  for (const auto& [who, what] : roles.by_process) {
    text += "pid " + std::to_string(who.pid) + " " + std::to_string(who.start_time) + " " + boot +
            " " + std::string{to_string(what)} + "\n";
  }
  for (const cgroup_rule& each : roles.by_cgroup)
    text += "cgroup " + std::string{to_string(each.what)} + " " + each.cgroup + "\n";
  for (const auto& [who, until] : roles.released) {
    text += "released " + std::to_string(who.pid) + " " + std::to_string(who.start_time) + " " +
            boot + " " + std::to_string(until.count()) + "\n";
  }
  return text;
}

}  // namespace

boot_time boot_time_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::duration_cast<boot_time>(std::chrono::seconds{now.tv_sec} +
                                               std::chrono::nanoseconds{now.tv_nsec});
}

result<stored_roles> role_store::read(std::string& message) const {
  stored_roles roles;
  const auto take = [&, boot = boot_id()](std::string_view line) {
    return read_entry(line, boot, roles);
  };
  if (auto done = role_file(path_).read(roles_head, take, message); !done) return done.error();
  return roles;
}

template <class Change>
result<void> role_store::change(std::string& message, Change apply) {
  if (path_.empty()) {
    message = "no role store is configured; set store in [roles] to the path of a file";
    return errc::bad_config;
  }
  const store_file file = role_file(path_);
  const auto lock = file.lock(message);
  if (!lock) return lock.error();
  auto roles = read(message);
  if (!roles) return roles.error();
  if (const result<void> applied = apply(*roles); !applied) return applied;
  const std::string boot = boot_id();
  if (boot.empty() && !(roles->by_process.empty() && roles->released.empty()))
    return with_system_error(message, "cannot read /proc/sys/kernel/random/boot_id");
  const std::string text = text_of(*roles, boot);
  if (text.size() > most_bytes) {
    message = "the role store " + path_ + " would exceed " + std::to_string(most_bytes) +
              " bytes; clear some entries";
    return errc::full;
  }
  return file.replace(text, message);
}

result<void> role_store::set(const process_identity& who, role what, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (!lives(who)) {
      message = "process " + std::to_string(who.pid) + " has ended";
      return errc::unknown_target;
    }
    roles.by_process[who] = what;
    return {};
  });
}

result<void> role_store::set(const std::string& cgroup, role what, std::string& message,
                             std::optional<std::size_t> position) {
  if (!cgroup.starts_with('/') || cgroup.find('\n') != cgroup.npos ||
      cgroup.find('\0') != cgroup.npos) {
    message = "invalid cgroup pattern \"" + cgroup.substr(0, 80) +
              "\": it must begin with / and be one line";
    return errc::bad_config;
  }
  return change(message, [&](stored_roles& roles) -> result<void> {
    auto& list = roles.by_cgroup;
    const auto former = std::ranges::find(list, cgroup, &cgroup_rule::cgroup);
    if (former != list.end() && !position) {
      former->what = what;
      return {};
    }
    if (former != list.end()) list.erase(former);
    const std::size_t place = std::min(position.value_or(list.size()), list.size());
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(place), {cgroup, what});
    return {};
  });
}

result<void> role_store::release(const process_identity& who, boot_time how_long,
                                 std::string& message) {
  if (how_long <= boot_time{} || how_long > longest_release) {
    message = "invalid duration of a release: expected more than 0 and at most 24 h";
    return errc::bad_config;
  }
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (!lives(who)) {
      message = "process " + std::to_string(who.pid) + " has ended";
      return errc::unknown_target;
    }
    roles.released[who] = boot_time_now() + how_long;
    return {};
  });
}

result<void> role_store::end_release(const process_identity& who, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (roles.released.erase(who) != 0) return {};
    message = "process " + std::to_string(who.pid) + " is not released, or its release has expired";
    return errc::unknown_target;
  });
}

result<void> role_store::clear(const process_identity& who, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (roles.by_process.erase(who) != 0) return {};
    message = "the role store " + path_ + " has no entry for process " + std::to_string(who.pid);
    return errc::unknown_target;
  });
}

result<void> role_store::clear(const std::string& cgroup, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (std::erase_if(roles.by_cgroup,
                      [&](const cgroup_rule& each) { return each.cgroup == cgroup; }) != 0)
      return {};
    message = "the role store " + path_ + " has no entry for the pattern \"" + cgroup + "\"";
    return errc::unknown_target;
  });
}

}  // namespace sluice::roles
