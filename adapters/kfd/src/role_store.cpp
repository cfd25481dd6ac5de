#include "sluice/kfd/role_store.hpp"

#include "proc.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <thread>

#include "sluice/kfd/unique_fd.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

constexpr std::string_view first_line = "sluice roles 1";
constexpr duration lock_limit = 5s;

std::string boot_id() {
  std::array<char, 64> buffer;
  const auto text = read_small_file("/proc/sys/kernel/random/boot_id", buffer);
  return std::string{text ? text->substr(0, text->find('\n')) : ""};
}

bool lives(const process_identity& who) { return start_time_of(who.pid) == who.start_time; }

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path{path}.parent_path().string();
  return parent.empty() ? "." : parent;
}

error_code failed(std::string& message, const std::string& what) {
  const error_code error = last_system_error();
  message = what + ": " + error.message();
  return error;
}

/// "root", or "user NUMBER or root".
std::string owner_of(const std::string& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0 || found.st_uid == 0) return "root";
  return "user " + std::to_string(found.st_uid) + " or root";
}

/// \return why a file or directory with these attributes is not to be trusted; empty: it is.
std::string mistrust(const struct stat& found) {
  if (found.st_uid != 0 && found.st_uid != ::geteuid())
    return "belongs to user " + std::to_string(found.st_uid) + "; root or user " +
           std::to_string(::geteuid()) + " must own it (chown)";
  // In a sticky directory others add names, but do not replace those of another owner.
  if (S_ISDIR(found.st_mode) && (found.st_mode & S_ISVTX) != 0) return {};
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "may be written by others than its owner; take that away (chmod go-w)";
  return {};
}

/// \return the file's text, nothing when there is no file.
result<std::optional<std::string>> trusted_text(const std::string& path, std::string& message) {
  const unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!fd && errno == ENOENT) return std::optional<std::string>{};
  if (!fd && errno == ELOOP) {
    message = "the role store " + path + " is a symbolic link; name the file itself";
    return errc::bad_config;
  }
  if (!fd) return failed(message, "cannot read the role store " + path);
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return failed(message, "cannot read the role store " + path);
  if (!S_ISREG(found.st_mode)) {
    message = "the role store " + path + " is not a regular file; remove it, or name another";
    return errc::bad_config;
  }
  if (const std::string why = mistrust(found); !why.empty()) {
    message = "the role store " + path + " " + why;
    return errc::bad_config;
  }
  const std::string directory = parent_of(path);
  struct stat around {};
  if (::stat(directory.c_str(), &around) != 0)
    return failed(message, "cannot read the role store's directory " + directory);
  if (const std::string why = mistrust(around); !why.empty()) {
    message = "the role store's directory " + directory + " " + why;
    return errc::bad_config;
  }
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(message, "cannot read the role store " + path);
    if (got == 0) return std::optional{std::move(text)};
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > role_store::most_bytes) {
      message = "the role store " + path + " has more than " +
                std::to_string(role_store::most_bytes) + " bytes; clear some entries";
      return errc::bad_config;
    }
  }
}

std::optional<role> role_named(std::string_view name) noexcept {
  for (const role each : {role::online, role::offline, role::unmatched})
    if (name == to_string(each)) return each;
  return {};
}

std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
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
      return "is not \"pid PID START_TIME BOOT_ID ROLE\"";
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
      return "is not \"released PID START_TIME BOOT_ID UNTIL\"";
    const process_identity who{*pid, *start};
    const boot_time end{*until};
    if (booted == boot && end > boot_time_now() && lives(who)) into.released[who] = end;
    return {};
  }
  if (kind == "cgroup") {
    const auto what = role_named(take_word(line));
    if (!what || !line.starts_with('/')) return "is not \"cgroup ROLE /PATTERN\"";
    into.by_cgroup.push_back({std::string{line}, *what});
    return {};
  }
  return "begins with none of \"pid\", \"cgroup\" and \"released\"";
}

std::string text_of(const stored_roles& roles, const std::string& boot) {
  std::string text{first_line};
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

result<void> replace_file(const std::string& path, const std::string& text, std::string& message) {
  // Only the lock's owner writes it, so a fixed name will do; what is left of one that was killed
  // goes first, for O_EXCL keeps us from writing through somebody's link.
  const std::string fresh = path + ".new";
  (void)::unlink(fresh.c_str());
  const unique_fd fd{
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!fd) return failed(message, "cannot write the role store " + fresh);
  const auto give_up = [&] {
    const error_code error = failed(message, "cannot write the role store " + fresh);
    (void)::unlink(fresh.c_str());
    return error;
  };
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return give_up();
    done += static_cast<std::size_t>(wrote);
  }
  // Whatever the umask: a reader that may not write is welcome.
  if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) return give_up();
  if (::rename(fresh.c_str(), path.c_str()) != 0) return give_up();
  const std::string directory = parent_of(path);
  const unique_fd around{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!around || ::fsync(around.get()) != 0)
    return failed(message, "cannot make the change durable in " + directory);
  return {};
}

result<unique_fd> lock_for(const std::string& path, std::string& message) {
  const std::string directory = parent_of(path);
  std::error_code refused;
  if (std::filesystem::create_directories(directory, refused))
    (void)::chmod(directory.c_str(), 0755);
  if (refused) {
    message = "cannot change the role store " + path + ": cannot make its directory " + directory +
              ": " + refused.message() + "; run as root, or name another store";
    return error_code{refused.value(), boost::system::system_category()};
  }
  const std::string name = path + ".lock";
  unique_fd fd{::open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!fd) {
    const bool denied = errno == EACCES || errno == EPERM;
    const error_code error =
        failed(message, "cannot change the role store " + path + ": cannot open " + name);
    if (denied) message += "; to write in " + directory + " takes " + owner_of(directory);
    return error;
  }
  const time_point end = clock::now() + lock_limit;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return failed(message, "cannot change the role store: cannot lock " + name);
    if (clock::now() >= end) {
      message = "cannot change the role store: another program has held " + name +
                " for 5 s; end that program";
      return errc::busy;
    }
    std::this_thread::sleep_for(10ms);
  }
  return fd;
}

}  // namespace

boot_time boot_time_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::duration_cast<boot_time>(std::chrono::seconds{now.tv_sec} +
                                               std::chrono::nanoseconds{now.tv_nsec});
}

result<stored_roles> role_store::read(std::string& message) const {
  auto text = trusted_text(path_, message);
  if (!text) return text.error();
  stored_roles roles;
  if (!*text) return roles;
  const std::string boot = boot_id();
  std::string_view rest = **text;
  for (std::size_t number = 1; !rest.empty() || number == 1; ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    std::string wrong;
    if (number == 1 && line != first_line)
      wrong = "is not \"" + std::string{first_line} + "\", as the first line must be";
    if (number != 1 && !line.empty() && line.front() != '#') wrong = read_entry(line, boot, roles);
    if (wrong.empty()) continue;
    message = path_ + ":" + std::to_string(number) + ": \"" + std::string{line.substr(0, 80)} +
              "\" " + wrong + "; correct the line, or remove the file to begin anew";
    return errc::bad_config;
  }
  return roles;
}

template <class Change>
result<void> role_store::change(std::string& message, Change apply) {
  if (path_.empty()) {
    message = "no role store is configured; name a file ([roles] store)";
    return errc::bad_config;
  }
  const auto lock = lock_for(path_, message);
  if (!lock) return lock.error();
  auto roles = read(message);
  if (!roles) return roles.error();
  if (const result<void> applied = apply(*roles); !applied) return applied;
  const std::string boot = boot_id();
  if (boot.empty() && !(roles->by_process.empty() && roles->released.empty()))
    return failed(message, "cannot read /proc/sys/kernel/random/boot_id");
  const std::string text = text_of(*roles, boot);
  if (text.size() > most_bytes) {
    message = "the role store " + path_ + " would have more than " + std::to_string(most_bytes) +
              " bytes; clear some entries";
    return errc::full;
  }
  return replace_file(path_, text, message);
}

result<void> role_store::set(const process_identity& who, role what, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (!lives(who)) {
      message = "there is no process " + std::to_string(who.pid) + " any more";
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
    message = "\"" + cgroup.substr(0, 80) +
              "\" is not a pattern of cgroups: it must begin with / and be one line";
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
    message = "a process is released for at most 24 h, and more than 0";
    return errc::bad_config;
  }
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (!lives(who)) {
      message = "there is no process " + std::to_string(who.pid) + " any more";
      return errc::unknown_target;
    }
    roles.released[who] = boot_time_now() + how_long;
    return {};
  });
}

result<void> role_store::end_release(const process_identity& who, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (roles.released.erase(who) != 0) return {};
    message = "process " + std::to_string(who.pid) + " is not released, or its time is over";
    return errc::unknown_target;
  });
}

result<void> role_store::clear(const process_identity& who, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (roles.by_process.erase(who) != 0) return {};
    message = "the role store " + path_ + " says nothing of process " + std::to_string(who.pid);
    return errc::unknown_target;
  });
}

result<void> role_store::clear(const std::string& cgroup, std::string& message) {
  return change(message, [&](stored_roles& roles) -> result<void> {
    if (std::erase_if(roles.by_cgroup,
                      [&](const cgroup_rule& each) { return each.cgroup == cgroup; }) != 0)
      return {};
    message = "the role store " + path_ + " says nothing of the pattern \"" + cgroup + "\"";
    return errc::unknown_target;
  });
}

}  // namespace sluice::kfd
