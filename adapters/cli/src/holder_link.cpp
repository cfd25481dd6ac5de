#include "holder_link.hpp"

#include "output.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

constexpr int peer_patience_ms = 100;
constexpr std::size_t longest_line = 16384;
constexpr std::string_view name_prefix = "sluice-suspend.";

struct address {
  sockaddr_un name{};
  socklen_t length = 0;

  explicit address(const std::string& text) {
    name.sun_family = AF_UNIX;
    // The first byte of the path stays 0: an abstract name.
    std::memcpy(&name.sun_path[1], text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&name);  // NOLINT: the sockets API
  }
};

std::optional<ucred> peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return peer;
}

/// A line without its end, or nothing within the time.
std::optional<std::string> read_line(int fd, int at_most_ms) {
  std::string line;
  std::array<char, 512> piece;
  while (line.size() < longest_line) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, at_most_ms) != 1) return {};
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got <= 0) return {};
    line.append(piece.data(), static_cast<std::size_t>(got));
    if (const auto end = line.find('\n'); end != std::string::npos) return line.substr(0, end);
  }
  return {};
}

/// The number after a word of /proc/PID/status; of a thread, too.
std::optional<pid_t> number_in_status(pid_t of, std::string_view label, const std::string& proc) {
  std::ifstream status{fmt::format("{}/{}/status", proc, of)};
  for (std::string word; status >> word;) {
    pid_t number = 0;
    if (word == label && status >> number) return number;
  }
  return {};
}

bool write_line(int fd, std::string line) {
  line += '\n';
  return ::send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(line.size());
}

}  // namespace

std::optional<holder_server> holder_server::open(pid_t target) {
  unique_fd made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const address own{fmt::format("{}{}.{}", name_prefix, target, ::getpid())};
  if (!made || ::bind(made.get(), own.get(), own.length) != 0 || ::listen(made.get(), 16) != 0)
    return {};
  return holder_server{std::move(made)};
}

void holder_server::serve(const std::function<std::string(std::string_view)>& answer) const {
  const unique_fd peer{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  if (!peer) return;
  const auto who = peer_of(peer.get());
  if (!who || (who->uid != 0 && who->uid != ::geteuid())) {
    write_line(peer.get(), fmt::format("error run this command as user {} or root", ::geteuid()));
    return;
  }
  if (const auto request = read_line(peer.get(), peer_patience_ms))
    write_line(peer.get(), answer(*request));
}

std::optional<pid_t> tracer_of(pid_t pid, const std::string& proc) {
  const auto thread = number_in_status(pid, "TracerPid:", proc);
  if (!thread || *thread == 0) return thread;
  return number_in_status(*thread, "Tgid:", proc).value_or(0);  // it has just ended
}

holder_names list_holders(const std::string& proc) {
  holder_names names;
  std::ifstream sockets{proc + "/net/unix"};
  for (std::string line; std::getline(sockets, line);) {
    // The last column, where an abstract name has '@' for its first byte. Connections have their
    // listener's.
    const auto at = line.rfind(" @");
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 2);
    if (!name.starts_with(name_prefix) || name.size() >= sizeof(sockaddr_un::sun_path)) continue;
    const std::string_view rest = std::string_view{name}.substr(name_prefix.size());
    const auto target = whole_number<pid_t>(rest.substr(0, rest.find('.')));
    if (!target) continue;
    const auto [first, last] = names.equal_range(*target);
    if (std::none_of(first, last, [&](const auto& each) { return each.second == name; }))
      names.emplace(*target, name);
  }
  return names;
}

std::optional<holder_answer> ask_holder(const holder_names& names, pid_t target,
                                        const std::string& request, duration patience) {
  const time_point deadline = clock::now() + patience;
  struct stat owner {};
  if (::stat(fmt::format("/proc/{}", target).c_str(), &owner) != 0) return {};
  std::optional<holder_answer> silent;
  const auto [first, last] = names.equal_range(target);
  for (auto each = first; each != last; ++each) {
    const address there{each->second};
    // Of a listener that takes nobody, connect() would wait for ever.
    const unique_fd link{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!link || ::connect(link.get(), there.get(), there.length) != 0) continue;
    const auto who = peer_of(link.get());
    if (!who) continue;
    const bool known = who->uid == 0 || who->uid == ::geteuid() || who->uid == owner.st_uid;
    if (!known && who->pid != tracer_of(target)) continue;
    // Who refuses us may have said so, and closed, before we ask: that answer is there to be read.
    (void)write_line(link.get(), request);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
    if (auto text = read_line(link.get(), std::max(static_cast<int>(left.count()), 0)))
      return holder_answer{who->pid, std::move(*text)};
    if (clock::now() >= deadline) silent = holder_answer{who->pid, {}};
  }
  return silent;
}

std::optional<std::vector<driver_queue_id>> parse_ids(std::string_view text) {
  std::vector<driver_queue_id> ids;
  while (!text.empty()) {
    const auto end = text.find(' ');
    const auto word = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (word.empty()) continue;
    const auto id = whole_number<std::uint32_t>(word);
    if (!id) return {};
    ids.push_back(driver_queue_id{*id});
  }
  return ids;
}

std::optional<std::vector<driver_queue_id>> suspended_queues(std::string_view answer) {
  constexpr std::string_view verb = "suspended";
  if (!answer.starts_with(verb)) return {};
  return parse_ids(answer.substr(verb.size()));
}

}  // namespace sluice::cli
