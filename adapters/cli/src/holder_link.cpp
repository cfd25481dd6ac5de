#include "holder_link.hpp"

#include "output.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

using kfd::unique_fd;

constexpr int peer_patience_ms = 100;
constexpr int holder_patience_ms = 15'000;
constexpr std::size_t longest_line = 16384;

struct address {
  sockaddr_un name{};
  socklen_t length = 0;

  explicit address(pid_t holder) {
    const std::string text = fmt::format("sluice-suspend.{}", holder);
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

bool write_line(int fd, std::string line) {
  line += '\n';
  return ::send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(line.size());
}

}  // namespace

std::optional<holder_server> holder_server::open() {
  unique_fd made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const address own{::getpid()};
  if (!made || ::bind(made.get(), own.get(), own.length) != 0 || ::listen(made.get(), 16) != 0)
    return {};
  return holder_server{std::move(made)};
}

void holder_server::serve(const std::function<std::string(std::string_view)>& answer) const {
  const unique_fd peer{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  if (!peer) return;
  const auto who = peer_of(peer.get());
  if (!who || (who->uid != 0 && who->uid != ::geteuid())) {
    write_line(peer.get(), fmt::format("error it was started by user {}; ask as that user or root",
                                       ::geteuid()));
    return;
  }
  if (const auto request = read_line(peer.get(), peer_patience_ms))
    write_line(peer.get(), answer(*request));
}

pid_t process_of_thread(pid_t thread, const std::string& proc) {
  std::ifstream status{fmt::format("{}/{}/status", proc, thread)};
  for (std::string word; status >> word;) {
    pid_t process = 0;
    if (word == "Tgid:" && status >> process) return process;
  }
  return 0;
}

std::optional<std::string> ask_holder(pid_t holder, const std::string& request) {
  const unique_fd link{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const address there{holder};
  if (!link || ::connect(link.get(), there.get(), there.length) != 0) return {};
  // Anybody may have taken the name.
  const auto who = peer_of(link.get());
  if (!who || who->pid != holder || !write_line(link.get(), request)) return {};
  return read_line(link.get(), holder_patience_ms);
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
